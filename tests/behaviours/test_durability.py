"""CONTRACT §2: what is acknowledged is on disk; after a failed write nothing is believed until it has been read back.

Writes that fail at random beside everything else: tests/simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog.errors import StorageUnavailable
from oncelog_dedup import LastEntry, SequenceMap, Snapshot
from oncelog_service.log import verify as verifying
from oncelog_service.rest.handlers import verification
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Rows, StoreError, Table
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, Topic, assert_problem
from tests.world.disk import Gate, flip, no_space
from tests.world.house import House, told

# --- a failed write


def test_a_disk_that_stays_full_is_tried_again_until_it_is_not(house: House) -> None:
    """Also where it lets itself be opened, and only writes fail."""
    topic = house.topic
    topic.send("p", 0)
    house.disk.before_sync = Gate(no_space(), opened=True)
    assert_problem(topic.publish("m1", producer="p", sequenceIds=[1]), 503, "storage_failed", definite=False)
    until(lambda: house.service.service.failures.count >= 3)
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


@pytest.mark.parametrize("scans", [0, 1, 2])
def test_a_check_of_a_store_that_cannot_be_read_is_one_error(house: House, monkeypatch: pytest.MonkeyPatch, scans: int) -> None:
    for number in range(4):
        house.topic.send("p", number)
    scan, left = MemoryStore.scan, scans

    def failing(store: MemoryStore, table: Table, *bounds: bytes, **options: bool) -> Rows:
        nonlocal left
        left -= table is Table.MESSAGE
        if left < 0:
            raise StoreError("planted")
        return scan(store, table, *bounds, **options)

    with monkeypatch.context() as patched:
        patched.setattr(verifying, "_SLICE_ROWS", 2)
        patched.setattr(verification, "_REPORT_EVERY", 1)
        patched.setattr(MemoryStore, "scan", failing)
        with pytest.raises(StorageUnavailable, match="planted"):
            list(house.client.verify("t"))
        assert left == -1, "it is asked for once"


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
