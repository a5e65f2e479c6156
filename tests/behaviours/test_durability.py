"""CONTRACT §2: what is acknowledged is on disk; after a failed write nothing is believed until it has been read back.

Writes that fail at random beside everything else: tests/simulation.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncelog_dedup import LastEntry, SequenceMap, Snapshot
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Table
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, receipts, without_status
from tests.world.disk import Gate, crashed, flip, no_space
from tests.world.house import House, told
from tests.world.service import running_service

ON_DISK = pytest.mark.parametrize("on_disk", [False, True], ids=["not written", "written all the same"])


# --- the acknowledgement; what else waits for the disk is in test_answers_wait.py


def test_nothing_is_acknowledged_shown_or_called_a_duplicate_before_it_is_synced(house: House, pool: ThreadPoolExecutor) -> None:
    topic = house.topic
    topic.send("p", 0)
    assert topic.payloads() == ["m0"], "the first poll of a topic reads the store, which this disk holds up with the sync"
    house.disk.before_sync = gate = Gate()
    first = house.at_once(pool, "send", "p", 1, 2)
    assert gate.entered.wait(TIMEOUT)
    second = house.at_once(pool, "send", "p", 1, 2)
    house.service.arrived(2)
    assert not first.done()
    assert not second.done(), "the duplicate waits for the sync of its original"
    assert topic.payloads() == ["m0"]
    shown = topic.producer("p")
    assert (shown["lastPushed"], shown["lastPersisted"]) == (2, 0)
    assert topic.request("GET", "/producers/p/why?sequenceId=1").json()["verdict"] == "in_flight"
    survivor = crashed(house.disk)
    gate.opened.set()
    assert without_status(first.result(TIMEOUT)) == without_status(second.result(TIMEOUT))
    house.disk.before_sync = None
    with house.off():
        house.disk = survivor
    assert topic.payloads() == ["m0"]


# --- a failed write


@ON_DISK
def test_after_a_failed_write_each_answer_says_truly_whether_it_is_definite(
    house: House, pool: ThreadPoolExecutor, on_disk: bool
) -> None:
    topic = house.topic
    acknowledged = topic.send("p", 0, 1)
    house.disk.before_sync = gate = Gate(no_space())
    house.disk.fail_after_apply = on_disk

    def publish(producer: str, *ids: int) -> Any:
        return house.at_once(pool, "publish", *(f"m{each}" for each in ids), producer=producer, sequenceIds=list(ids))

    failed = publish("p", 2, 3)
    assert gate.entered.wait(TIMEOUT)
    repeated, *behind = publish("p", 2, 3), publish("q", 0), publish("p", 4)
    house.service.arrived(4)
    gate.opened.set()
    for each in (failed, repeated):
        problem = assert_problem(each.result(TIMEOUT), 503, "storage_failed", definite=False)
        assert "No space left" in problem["detail"]
    for each in behind:
        assert_problem(each.result(TIMEOUT), 503, "storage_unavailable", definite=True)
    house.healthy()
    assert topic.payloads() == ["m0", "m1", *(["m2", "m3"] if on_disk else [])]
    assert without_status(topic.send("p", 0, 1)) == without_status(acknowledged)
    assert told(topic.send("p", 2, 3)) == ("dd" if on_disk else "ss")
    assert told(topic.send("p", 4)) + told(topic.send("q", 0)) == "ss", "a definite refusal burnt no sequence id"
    assert topic.payloads() == ["m0", "m1", "m2", "m3", "m4", "m0"]
    assert [message["offset"] for message in topic.read()] == list(range(6))


def test_a_disk_that_stays_full_is_tried_again_until_it_is_not(house: House) -> None:
    """Also where it lets itself be opened, and only writes fail."""
    topic = house.topic
    topic.send("p", 0)
    house.disk.before_sync = Gate(no_space(), opened=True)
    assert_problem(topic.publish("m1", producer="p", sequenceIds=[1]), 503, "storage_failed", definite=False)
    until(lambda: house.service.service.failures >= 3)
    assert_problem(topic.publish("m1", producer="p", sequenceIds=[1]), 503, "storage_unavailable", definite=True)
    house.healthy()
    assert told(topic.send("p", 0, 1)) == "ds"


CHANGES: dict[str, Callable[[Topic], Any]] = {
    "a topic": lambda topic: Topic(topic.base, "new", create=False).request("PUT", "", json={}),
    "properties": lambda topic: topic.request("PUT", "/properties", json={"ttl": "60"}),
    "an open": lambda topic: topic.request("POST", "/producers", json={"name": "p", "nonce": "n2"}),
    "forgetting": lambda topic: topic.request("DELETE", "/producers/p"),
    "an acknowledgement": lambda topic: topic.request(
        "POST", "/subscriptions/s/ack", json={"epoch": 1, "offset": 0, "generation": 1}
    ),
    "policies": lambda topic: topic.session.put(
        topic.base + "/v1/namespaces/default/policies", json={"deduplication": False}, timeout=TIMEOUT
    ),
    "deleting": lambda topic: topic.request("DELETE", ""),
}


def test_whatever_changes_topics_fails_truly_too(house: House) -> None:
    topic = house.topic
    epoch = topic.open_producer("p", "n")["epoch"]
    topic.send("p", 0, epoch=epoch)
    topic.request("POST", "/subscriptions", json={"name": "s", "nonce": "n", "start": {"at": "earliest"}})
    for change in CHANGES.values():
        house.disk.before_sync = Gate(no_space(), opened=True)
        assert_problem(change(topic), 503, "storage_failed", definite=False)
        house.healthy()
        assert topic.request("GET", "").json()["properties"] == {"ttl": "604800", "generation": "1"}
        assert told(topic.send("p", 0, epoch=epoch)) == "d"
        assert topic.stats()["deduplication"]
        assert topic.request("GET", "/subscriptions/s").json()["cursor"] == 0
    assert topic.session.get(topic.base + "/v1/namespaces/default/topics", timeout=TIMEOUT).json() == ["t"]


def test_a_poll_that_waits_through_a_failure_is_told_so(house: House, pool: ThreadPoolExecutor) -> None:
    topic = house.topic
    waiting = house.at_once(pool, "poll", wait=30_000)
    house.service.arrived(1)
    house.disk.before_sync = Gate(no_space(), opened=True)
    topic.publish("x")
    assert_problem(waiting.result(PATIENCE), 503, "storage_unavailable")
    house.healthy()


# --- a disk that is really full


@contextmanager
def full_soon(path: Path) -> Iterator[tuple[dict[str, Any], Callable[[], None]]]:
    """Settings of a service whose store soon has no space left, and what makes space again.

    A small tmpfs where one may be mounted; elsewhere a store in memory that refuses beyond some bytes.
    """
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)], capture_output=True, check=False)
    if mounted.returncode == 0:
        ballast = path / "ballast"
        ballast.write_bytes(bytes(16 * 2**20))
        try:
            yield {"store": f"leveldb://{path / 'data'}"}, ballast.unlink
        finally:
            subprocess.run(["umount", "-l", str(path)], check=True)
        return
    disk = Disk()

    def refuse_beyond(_: object) -> None:
        if sum(map(len, disk.tables[Table.MESSAGE].values())) > 5 * 2**20:
            raise no_space()

    disk.before_sync = refuse_beyond
    yield {"open_store": lambda: MemoryStore(disk)}, lambda: setattr(disk, "before_sync", None)


@pytest.mark.real
def test_a_full_disk_is_refused_clearly_and_works_again_when_there_is_space(tmp_path: Path) -> None:
    payload, acknowledged = "x" * 400_000, []
    with full_soon(tmp_path / "small") as (settings, make_space), running_service(min_free_bytes=0, **settings) as service:
        topic = Topic(service.url)
        for sequence_id in range(100):
            answer = topic.publish(payload, producer="p", sequenceIds=[sequence_id])
            if answer.status_code != 200:
                break
            acknowledged += receipts(answer)
        assert "No space" in assert_problem(answer, 503, "storage_failed", definite=False)["detail"]
        stored = len(acknowledged)
        assert stored > 3
        make_space()
        until(lambda: topic.session.get(topic.base + "/healthz", timeout=TIMEOUT).status_code == 200, "the store is reopened")
        for receipt in acknowledged:
            again = topic.send("p", receipt["sequence_id"], payload=payload)
            assert (told(again), without_status(again)) == ("d", without_status([receipt]))
        topic.send("p", *range(stored, stored + 5), payload=payload)
        offsets = [topic.read(startOffset=at, limit=1)[0]["sequenceId"]["long"] for at in range(stored + 5)]
        assert offsets == list(range(stored + 5))
        assert topic.verify()["ok"]


# --- damage


@contextmanager
def damaging(house: House) -> Iterator[tuple[dict[bytes, bytes], list[bytes]]]:
    """Stop the service with 20 messages of one producer on a topic, and few on another; what lies on disk, and their keys."""
    house.damaged = True
    house.topic.send("p", *range(20))
    house.make("healthy").send("p", 0)
    with house.off() as disk:
        rows = disk.tables[Table.MESSAGE]
        yield rows, sorted(key for key in rows if key.startswith(b"default:t:"))
    assert house.make("healthy").verify()["ok"]


def test_half_a_map_is_never_opened(house: House) -> None:
    """A topic whose log cannot be folded stays closed rather than forget; which ones those are is in test_recovery.py."""
    with damaging(house) as (rows, keys):
        del rows[keys[-1]]
    topic = house.topic
    for answer in (topic.publish("m5", producer="p", sequenceIds=[5]), topic.poll(), topic.request("GET", "/producers")):
        assert_problem(answer, 500, "topic_damaged")
    house.again()  # an operator can still give it up
    assert topic.send("p", 0)[0]["offset"] == 0


@pytest.mark.parametrize("sequence_id", [18, 25])
def test_verify_finds_a_map_that_does_not_match_the_log(house: House, sequence_id: int) -> None:
    with damaging(house):
        snapshots = house.disk.tables[Table.SNAPSHOT]
        for key in [key for key in snapshots if key.startswith(b"default:t:")]:
            snapshot = Snapshot.from_bytes(snapshots[key])
            last_entry = snapshot.last_entries.get("p")
            assert last_entry is not None
            wrong = SequenceMap({"p": LastEntry(sequence_id, last_entry.message_id, last_entry.offset)})
            snapshots[key] = Snapshot(wrong, snapshot.position).to_bytes()
    found = house.topic.verify()
    assert not found["ok"]
    assert "producer 'p'" in found["problems"][0]


def test_verify_finds_a_message_that_is_stored_twice(house: House) -> None:
    topic = house.make(deduplication="false")
    topic.send("p", 0, 1)
    topic.send("p", 1)
    assert topic.verify()["ok"], "nothing was promised"
    topic.request("PUT", "/properties", json={"deduplication": "true"})
    found = topic.verify()
    assert (found["ok"], found["duplicates"]) == (False, 1)
    house.damaged = True


@pytest.mark.parametrize("table", [Table.TOPIC, Table.PRODUCER])
def test_a_damaged_small_row_is_an_error_and_not_an_absence(house: House, table: Table) -> None:
    house.topic.open_producer("p", "n")
    house.damaged = True
    with house.off() as disk:
        for key in disk.tables[table]:
            flip(disk, table, key, -1)
    assert_problem(house.topic.publish("x"), 500, "topic_damaged")
    if table is Table.TOPIC:
        assert_problem(house.topic.request("PUT", "", json={}), 500, "topic_damaged")
