"""CONTRACT §2: what is acknowledged is on disk; after a failed write nothing is believed until it has been read back."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from oncelog_dedup import Mark, SequenceMap, Snapshot
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Table
from tests.behaviours.conftest import Machine
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, receipts, without_status
from tests.support import RunningService, running_service


class Gate:
    """Holds the writer in the middle of a write until it is opened; then the write succeeds or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self._error = error

    def __call__(self, _: object) -> None:
        self.entered.set()
        assert self.opened.wait(TIMEOUT)
        if self._error is not None:
            raise self._error


def no_space() -> OSError:
    return OSError(28, "No space left on device")


def wait_until_healthy(topic: Topic) -> None:
    until(lambda: topic.session.get(topic.base + "/healthz", timeout=TIMEOUT).status_code == 200, "the store is reopened")


def in_background(pool: ThreadPoolExecutor, service: RunningService, call: Callable[[Topic], Any]) -> Any:
    return pool.submit(lambda: call(Topic(service.url, create=False)))


# --- the acknowledgement ------------------------------------------------------------------------------------------------


def test_nothing_is_acknowledged_shown_or_called_a_duplicate_before_it_is_synced(machine: Machine) -> None:
    with machine.run() as service, ThreadPoolExecutor(4) as pool:
        topic = Topic(service.url)
        topic.send("p", 0)
        assert topic.payloads() == ["m0"], "the first poll of a topic reads the store, which this disk holds up with the sync"
        machine.disk.before_sync = gate = Gate()
        first = in_background(pool, service, lambda each: each.send("p", 1, 2))
        assert gate.entered.wait(TIMEOUT)
        second = in_background(pool, service, lambda each: each.send("p", 1, 2))
        opened = in_background(pool, service, lambda each: each.open_producer("p", "n"))
        service.arrived(3)
        assert not first.done()
        assert not second.done(), "the duplicate waits for the sync of its original"
        assert not opened.done(), "so does who asks how far the producer has come"
        assert topic.payloads() == ["m0"]
        shown = topic.request("GET", "/producers/p").json()
        assert (shown["lastPushed"], shown["lastPersisted"]) == (2, 0)
        assert topic.request("GET", "/producers/p/why?sequenceId=1").json()["verdict"] == "in_flight"
        crashed = machine.crash()
        gate.opened.set()
        assert without_status(first.result(TIMEOUT)) == without_status(second.result(TIMEOUT))
        assert opened.result(TIMEOUT)["lastSequenceId"] == 2
    with crashed.run() as service:
        assert Topic(service.url, create=False).payloads() == ["m0"]


def test_a_refused_gap_waits_for_what_it_lost_to(machine: Machine) -> None:
    with machine.run() as service, ThreadPoolExecutor(2) as pool:
        topic = Topic(service.url)
        topic.open_producer("p", "n", gaps="refuse")
        machine.disk.before_sync = gate = Gate()
        first = in_background(pool, service, lambda each: each.send("p", 0))
        assert gate.entered.wait(TIMEOUT)
        refused = in_background(pool, service, lambda each: each.publish("x", producer="p", sequenceIds=[5]))
        service.arrived(2)
        assert not refused.done()
        gate.opened.set()
        assert_problem(refused.result(TIMEOUT), 409, "sequence_gap")
        assert first.result(TIMEOUT)[0]["status"] == "stored"


def test_requests_that_come_together_share_one_sync(machine: Machine) -> None:
    with machine.run() as service, ThreadPoolExecutor(12) as pool:
        topic = Topic(service.url)
        machine.disk.before_sync = gate = Gate()
        first = in_background(pool, service, lambda each: each.publish("first"))
        assert gate.entered.wait(TIMEOUT)
        before = machine.disk.writes
        others = [in_background(pool, service, lambda each: each.publish("x")) for _ in range(10)]
        service.arrived(11)
        gate.opened.set()
        assert all(each.result(TIMEOUT).status_code == 200 for each in [first, *others])
        assert machine.disk.writes - before <= 3
        assert len(topic.read()) == 11


# --- a failed write -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True], ids=["not written", "written all the same"])
def test_after_a_failed_write_each_answer_says_truly_whether_it_is_definite(machine: Machine, on_disk: bool) -> None:
    with machine.run() as service, ThreadPoolExecutor(4) as pool:
        topic = Topic(service.url)
        acknowledged = topic.send("p", 0, 1)
        machine.disk.before_sync = gate = Gate(no_space())
        machine.disk.fail_after_apply = on_disk
        failed = in_background(pool, service, lambda each: each.publish("m2", "m3", producer="p", sequenceIds=[2, 3]))
        assert gate.entered.wait(TIMEOUT)
        repeated = in_background(pool, service, lambda each: each.publish("m2", "m3", producer="p", sequenceIds=[2, 3]))
        behind = in_background(pool, service, lambda each: each.publish("b", producer="q", sequenceIds=[0]))
        follower = in_background(pool, service, lambda each: each.publish("m4", producer="p", sequenceIds=[4]))
        service.arrived(4)
        gate.opened.set()
        problem = assert_problem(failed.result(TIMEOUT), 503, "storage_failed", definite=False)
        assert "No space left" in problem["detail"]
        assert_problem(repeated.result(TIMEOUT), 503, "storage_failed", definite=False)
        assert_problem(behind.result(TIMEOUT), 503, "storage_unavailable", definite=True)
        assert_problem(follower.result(TIMEOUT), 503, "storage_unavailable", definite=True)
        machine.disk.before_sync = None
        wait_until_healthy(topic)
        assert topic.payloads() == ["m0", "m1", *(["m2", "m3"] if on_disk else [])]
        assert without_status(topic.send("p", 0, 1)) == without_status(acknowledged)
        assert {each["status"] for each in topic.send("p", 2, 3)} == {"duplicate" if on_disk else "stored"}
        assert topic.send("p", 4)[0]["status"] == "stored", "a definite refusal burnt no sequence id"
        assert topic.send("q", 0)[0]["status"] == "stored"
        assert topic.payloads() == ["m0", "m1", "m2", "m3", "m4", "m0"]
        assert [message["offset"] for message in topic.read()] == list(range(6))
        verification = topic.verify()
        assert verification["ok"], verification


def test_a_disk_that_stays_full_is_tried_again_until_it_is_not(machine: Machine) -> None:
    """Also where it lets itself be opened, and only writes fail."""
    with machine.run() as service:
        topic = Topic(service.url)
        topic.send("p", 0)
        machine.disk.before_sync = Gate(no_space())
        machine.disk.before_sync.opened.set()
        assert_problem(topic.publish("m1", producer="p", sequenceIds=[1]), 503, "storage_failed", definite=False)
        until(lambda: service.service.failures >= 4)
        assert_problem(topic.publish("m1", producer="p", sequenceIds=[1]), 503, "storage_unavailable", definite=True)
        machine.disk.before_sync = None
        wait_until_healthy(topic)
        assert [each["status"] for each in topic.send("p", 0, 1)] == ["duplicate", "stored"]


def test_whatever_changes_topics_fails_truly_too(machine: Machine) -> None:
    changes: list[Callable[[Topic], Any]] = [
        lambda topic: Topic(topic.base, "new", create=False).request("PUT", "", json={}),
        lambda topic: topic.request("PUT", "/properties", json={"ttl": "60"}),
        lambda topic: topic.request("POST", "/producers", json={"name": "p", "nonce": "n2"}),
        lambda topic: topic.request("DELETE", "/producers/p"),
        lambda topic: topic.session.put(
            topic.base + "/v1/namespaces/default/policies", json={"deduplication": False}, timeout=TIMEOUT
        ),
        lambda topic: topic.request("DELETE", ""),
    ]
    with machine.run() as service:
        topic = Topic(service.url)
        epoch = topic.open_producer("p", "n")["epoch"]
        topic.send("p", 0, epoch=epoch)
        for change in changes:
            machine.disk.before_sync = Gate(no_space())
            machine.disk.before_sync.opened.set()
            assert_problem(change(topic), 503, "storage_failed", definite=False)
            machine.disk.before_sync = None
            wait_until_healthy(topic)
            assert topic.request("GET", "").json()["properties"] == {"ttl": "604800", "generation": "1"}
            assert [each["status"] for each in topic.send("p", 0, epoch=epoch)] == ["duplicate"]
            assert topic.stats()["deduplication"]
        assert topic.session.get(topic.base + "/v1/namespaces/default/topics", timeout=TIMEOUT).json() == ["t"]


def test_a_poll_that_waits_through_a_failure_is_told_so(machine: Machine) -> None:
    with machine.run() as service, ThreadPoolExecutor(1) as pool:
        topic = Topic(service.url)
        waiting = in_background(pool, service, lambda each: each.poll(wait=30_000))
        service.arrived(1)
        machine.disk.before_sync = Gate(no_space())
        machine.disk.before_sync.opened.set()
        topic.publish("x")
        machine.disk.before_sync = None
        assert_problem(waiting.result(PATIENCE), 503, "storage_unavailable")


@pytest.mark.parametrize("seed", range(3))
def test_writes_that_fail_at_random_lose_and_double_nothing(machine: Machine, seed: int) -> None:
    chance, writes = random.Random(seed), count(1)

    def maybe(_: object) -> None:
        if chance.random() < 0.08 or next(writes) == 10:  # there are twenty at least: one fails in any case
            machine.disk.fail_after_apply = chance.random() < 0.5
            raise no_space()

    acknowledged: dict[str, list[tuple[int, str]]] = {}

    def produce(number: int) -> None:
        name, at = f"p{number}", 0
        topic = Topic(service.url, create=False)
        while at < 60:
            ids = list(range(at, min(60, at + 3)))
            answer = topic.publish(*[f"{name}:{each}" for each in ids], producer=name, sequenceIds=ids)
            if answer.status_code == 503:
                time.sleep(0.02)
                continue
            assert answer.status_code == 200, answer.text
            found = [(each["sequence_id"], each["id"]) for each in receipts(answer)]
            acknowledged.setdefault(name, []).extend(found)
            at += 3

    with machine.run() as service, ThreadPoolExecutor(4) as pool:
        topic = Topic(service.url)
        machine.disk.before_sync = maybe
        list(pool.map(produce, range(4)))
        machine.disk.before_sync = None
        wait_until_healthy(topic)
        messages = topic.read()
        assert service.service.failures > 0, f"seed {seed} failed nothing"
        for name, expected in acknowledged.items():
            of_it = [m for m in messages if m["producer"] == {"string": name}]
            assert [m["payload"] for m in of_it] == [f"{name}:{each}" for each in range(60)], f"seed {seed}"
            assert [m["id"].encode("latin-1").hex() for m in of_it] == [each for _, each in expected], f"seed {seed}"
        verification = topic.verify()
        assert verification["ok"], (seed, verification)


# --- a disk that is really full -----------------------------------------------------------------------------------------


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


def test_a_full_disk_is_refused_clearly_and_works_again_when_there_is_space(tmp_path: Path) -> None:
    payload = "x" * 400_000
    with full_soon(tmp_path / "small") as (settings, make_space), running_service(**settings) as service:
        topic = Topic(service.url)
        acknowledged = []
        for sequence_id in range(100):
            answer = topic.publish(payload, producer="p", sequenceIds=[sequence_id])
            if answer.status_code != 200:
                break
            acknowledged.append(receipts(answer)[0])
        problem = assert_problem(answer, 503, "storage_failed", definite=False)
        assert "No space" in problem["detail"]
        assert len(acknowledged) > 3
        make_space()
        wait_until_healthy(topic)
        for receipt in acknowledged:
            again = topic.send("p", receipt["sequence_id"], payload=payload)
            assert again[0]["status"] == "duplicate"
            assert without_status(again) == without_status([receipt])
        for sequence_id in range(len(acknowledged), len(acknowledged) + 5):
            topic.send("p", sequence_id, payload=payload)
        found: list[int] = []
        start = None
        while page := topic.read(startFrom=start, inclusive=False, limit=5):
            found += [message["sequenceId"]["long"] for message in page]
            start = page[-1]["id"]
        assert found == list(range(len(acknowledged) + 5))
        verification = topic.verify()
        assert verification["ok"], verification


# --- damage -------------------------------------------------------------------------------------------------------------


def stored_and_stopped(machine: Machine, snapshot: bool) -> list[bytes]:
    """20 messages of one producer; the keys of their rows."""
    with machine.run() as service:
        Topic(service.url).send("p", *range(20))
        Topic(service.url, "healthy").send("p", 0)
    if not snapshot:
        machine.disk.tables[Table.SNAPSHOT].clear()
    return sorted(key for key in machine.disk.tables[Table.MESSAGE] if key.startswith(b"default:t:"))


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


@pytest.mark.parametrize("fault", ["flipped", "cut", "missing", "swapped"])
def test_a_damaged_or_missing_row_in_the_middle_is_found_and_never_skipped(machine: Machine, fault: str) -> None:
    keys = stored_and_stopped(machine, snapshot=True)
    rows = machine.disk.tables[Table.MESSAGE]
    if fault == "flipped":
        rows[keys[9]] = flip(rows[keys[9]], len(rows[keys[9]]) // 2)
    elif fault == "cut":
        rows[keys[9]] = rows[keys[9]][:-3]
    elif fault == "missing":
        del rows[keys[9]]
    else:
        rows[keys[9]], rows[keys[10]] = rows[keys[10]], rows[keys[9]]
    with machine.run() as service:
        topic = Topic(service.url, create=False)
        found = topic.verify()
        assert not found["ok"]
        assert found["problems"]
        problem = assert_problem(topic.poll(), 500, "topic_damaged")
        assert problem["detail"]
        assert len(topic.read(limit=9)) == 9, "what lies before it can be read"
        assert_problem(topic.poll(startOffset=9), 500, "topic_damaged")
        assert Topic(service.url, "healthy", create=False).verify()["ok"]


@pytest.mark.parametrize("fault", ["flipped", "missing", "no end"])
def test_half_a_map_is_never_opened(machine: Machine, fault: str) -> None:
    """Without a snapshot the log is folded; where that ends early, the topic stays closed rather than forget."""
    keys = stored_and_stopped(machine, snapshot=fault == "no end")
    rows = machine.disk.tables[Table.MESSAGE]
    if fault == "flipped":
        rows[keys[9]] = flip(rows[keys[9]], 30)
    elif fault == "missing":
        del rows[keys[9]]
    else:
        del rows[keys[-1]]
    with machine.run() as service:
        topic = Topic(service.url, create=False)
        for answer in (topic.publish("m5", producer="p", sequenceIds=[5]), topic.poll(), topic.request("GET", "/producers")):
            assert_problem(answer, 500, "topic_damaged")
        assert Topic(service.url, "healthy", create=False).send("p", 0, 1)[1]["status"] == "stored"
        assert topic.request("DELETE", "").status_code == 200, "an operator can still give it up"
        assert Topic(service.url).send("p", 0)[0]["offset"] == 0


@pytest.mark.parametrize("sequence_id", [18, 25])
def test_verify_finds_a_map_that_does_not_match_the_log(machine: Machine, sequence_id: int) -> None:
    stored_and_stopped(machine, snapshot=True)
    for key, data in machine.disk.tables[Table.SNAPSHOT].items():
        snapshot = Snapshot.from_bytes(data)
        mark = snapshot.marks.get("p")
        assert mark is not None
        wrong = SequenceMap({"p": Mark(sequence_id, mark.message_id, mark.offset)})
        machine.disk.tables[Table.SNAPSHOT][key] = Snapshot(wrong, snapshot.position).to_bytes()
    with machine.run() as service:
        found = Topic(service.url, create=False).verify()
        assert not found["ok"]
        assert "producer 'p'" in found["problems"][0]


def test_verify_finds_a_message_that_is_stored_twice(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url, deduplication="false")
        topic.send("p", 0, 1)
        topic.send("p", 1)
        assert topic.verify()["ok"], "nothing was promised"
        topic.request("PUT", "/properties", json={"deduplication": "true"})
        found = topic.verify()
        assert (found["ok"], found["duplicates"]) == (False, 1)


@pytest.mark.parametrize("table", [Table.TOPIC, Table.PRODUCER])
def test_a_damaged_small_row_is_an_error_and_not_an_absence(machine: Machine, table: Table) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        topic.open_producer("p", "n")
    for key, data in machine.disk.tables[table].items():
        machine.disk.tables[table][key] = data[:-2]
    with machine.run() as service:
        topic = Topic(service.url, create=False)
        assert_problem(topic.publish("x"), 500, "topic_damaged")
        if table is Table.TOPIC:
            assert_problem(topic.request("PUT", "", json={}), 500, "topic_damaged")
