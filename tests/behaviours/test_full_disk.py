"""CONTRACT §10: below a floor of free space nothing more is taken in, while all that reads, ends or deletes goes on.

How room is counted: tests/service/test_room.py. A disk that is full to the last byte: test_durability.py.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from oncelog import Client, Producer, errors
from oncelog_service.bounds.room import look
from oncelog_service.service import Service
from oncelog_service.storage.port import Table
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, done, receipts
from tests.world.house import House, told
from tests.world.service import RunningService, running_service

MIB = 2**20
FLOOR = 8 * MIB
PLENTY = 10 * FLOOR


async def looked(service: Service) -> None:
    """The service looks at its disk now."""
    await look(service.room, service.opening.store.free_bytes, service.opening.writer.drained)


@contextmanager
def full(house: House) -> Iterator[None]:
    """The disk of the house has less than the floor, until the end."""
    house.disk.free = lambda: FLOOR - 1
    house.service.on_loop(looked)
    yield
    house.disk.free = lambda: PLENTY
    house.service.on_loop(looked)


def assert_full(answer: requests.Response) -> None:
    assert_problem(answer, 507, "disk_full", definite=True)
    assert answer.headers["retry-after"] == "1"


@pytest.fixture
def house(house: House) -> House:
    house.disk.free = lambda: PLENTY
    house.restart(min_free_bytes=FLOOR)
    return house


def ask(house: House, method: str, path: str, **options: Any) -> requests.Response:
    """Another address than a topic's."""
    return requests.request(method, house.service.url + path, timeout=TIMEOUT, **options)


def commit(house: House, id_: str, *messages: str, **fields: Any) -> requests.Response:
    parts = [{"namespace": "default", "topic": "t", "request": {"messages": list(messages)}}] if messages else []
    return ask(house, "POST", f"/v1/atomic/{id_}/commit", json={"parts": parts, **fields})


def stage(house: House, id_: str, chunk: int, payload: str) -> requests.Response:
    return ask(house, "PUT", f"/v1/namespaces/default/topics/t/stage/{id_}/{chunk}", json={"messages": [payload]})


def subscribe(house: House, name: str, nonce: str) -> requests.Response:
    return house.topic.request("POST", "/subscriptions", json={"name": name, "nonce": nonce, "start": {"at": "earliest"}})


def prepared(house: House) -> dict[str, Any]:
    """A topic, and something under way of each kind."""
    topic = house.topic
    topic.open_producer("p", "n1")
    topic.send("p", 0, 1)
    done(subscribe(house, "s", "n1"))
    pointers = {name: house.start() for name in ("published", "stored", "going on", "to abort", "asked")}
    rollback = topic.publish_under(pointers["published"], "rolled back")
    topic.store_under(pointers["stored"], "stored")
    topic.publish_under(pointers["to abort"], "aborted")
    for id_ in ("staged", "given.up"):
        done(ask(house, "POST", "/v1/atomic", json={"id": id_, "group": "g"}))
        done(stage(house, id_, 0, id_))
    return {**pointers, "rollback": rollback}


Call = Callable[[House, dict[str, Any]], requests.Response]
ADDS: dict[str, Call] = {
    "a publish": lambda house, _: house.topic.publish("x"),
    "one of a producer": lambda house, _: house.topic.publish("m2", producer="p", sequenceIds=[2]),
    "one of which a part is there": lambda house, _: house.topic.publish("m1", "m2", producer="p", sequenceIds=[1, 2]),
    "one in a transaction": lambda house, its: house.topic.publish("x", transactionWritePointer=its["going on"]),
    "storing": lambda house, its: house.topic.store(its["stored"], "y"),
    "publishing what is stored": lambda house, its: house.topic.publish(transactionWritePointer=its["stored"]),
    "a new producer": lambda house, _: house.topic.request("POST", "/producers", json={"name": "q", "nonce": "n"}),
    "a producer without a name": lambda house, _: house.topic.request("POST", "/producers", json={"nonce": "m"}),
    "a new subscription": lambda house, _: subscribe(house, "new", "n2"),
    "a topic": lambda house, _: Topic(house.service.url, "new", create=False).request("PUT", "", json={}),
    "starting a transaction": lambda house, _: ask(house, "POST", "/v1/transactions", json={}),
    "a checkpoint": lambda house, its: ask(house, "POST", f"/v1/transactions/{its['going on']}/checkpoint"),
    "beginning an atomic commit": lambda house, _: ask(house, "POST", "/v1/atomic", json={"id": "new", "group": "g"}),
    "staging": lambda house, _: stage(house, "staged", 1, "y"),
    "committing what is staged": lambda house, _: commit(house, "staged"),
    "a commit at once": lambda house, _: commit(house, "at.once", "z", group="g"),
}
"""What adds rows."""


def test_what_adds_rows_is_refused_changes_nothing_and_succeeds_later(house: House) -> None:
    its = prepared(house)
    before = house.topic.payloads(), house.topic.stats(), house.topic.producer("p")
    with full(house):
        for what, call in ADDS.items():
            with suppress_but(what):
                assert_full(call(house, its))
        assert (house.topic.payloads(), house.topic.stats(), house.topic.producer("p")) == before
        assert ask(house, "GET", "/v1/atomic/staged").json()["state"] == "in_progress"
        assert house.client.transaction_status(its["stored"]).state == "in_progress"
    offsets = house.topic.stats()["upcomingOffset"]
    for what, call in ADDS.items():
        with suppress_but(what):
            done(call(house, its))
    assert told(house.topic.send("p", 0, 1, 2)) == "ddd"
    read = house.topic.read()
    assert [each["offset"] for each in read] == list(range(len(read))), "no offset was burnt"
    assert len(read) > offsets
    assert [each["payload"] for each in read].count("m2") == 1


@contextmanager
def suppress_but(what: str) -> Iterator[None]:
    """Names what a failed assertion is about."""
    try:
        yield
    except AssertionError as failure:
        raise AssertionError(f"{what}: {failure}") from failure


GOES_ON: dict[str, Call] = {
    "what is stored already is answered so": lambda house, _: house.topic.publish("m0", "m1", producer="p", sequenceIds=[0, 1]),
    "a poll": lambda house, _: house.topic.poll(),
    "receiving": lambda house, _: house.topic.request("POST", "/subscriptions/s/receive", json={"epoch": 1}),
    "acknowledging": lambda house, _: house.topic.request(
        "POST", "/subscriptions/s/ack", json={"epoch": 1, "offset": 1, "generation": 1}
    ),
    "opening a subscription again": lambda house, _: subscribe(house, "s", "n3"),
    "deleting a subscription": lambda house, _: house.topic.request("DELETE", "/subscriptions/s"),
    "opening a producer again": lambda house, _: house.topic.request("POST", "/producers", json={"name": "p", "nonce": "n2"}),
    "why": lambda house, _: house.topic.request("GET", "/producers/p/why?sequenceId=1"),
    "rolling back": lambda house, its: house.topic.roll_back(its["rollback"]),
    "committing": lambda house, its: ask(house, "POST", f"/v1/transactions/{its['going on']}/commit"),
    "asking whether one can": lambda house, its: ask(
        house, "POST", f"/v1/transactions/{its['asked']}/can-commit", json={"changes": ["ab"]}
    ),
    "aborting": lambda house, its: ask(house, "POST", f"/v1/transactions/{its['to abort']}/abort"),
    "aborting what is staged": lambda house, _: ask(house, "POST", "/v1/atomic/given.up/abort"),
    "policies": lambda house, _: ask(house, "PUT", "/v1/namespaces/default/policies", json={"deduplication": True}),
    "a shorter ttl": lambda house, _: house.topic.request("PUT", "/properties", json={"ttl": "60"}),
    "verifying": lambda house, _: house.topic.request("POST", "/verify"),
    "forgetting a producer": lambda house, _: house.topic.request("DELETE", "/producers/p"),
    "deleting the topic": lambda house, _: house.topic.request("DELETE", ""),
}
"""What reads, changes, ends or deletes."""


def test_whatever_reads_ends_or_deletes_goes_on(house: House) -> None:
    house.make("other").send("p", 0, 1)
    its = prepared(house)
    with full(house):
        house.clock.advance(1)
        for what, call in GOES_ON.items():
            with suppress_but(what):
                done(call(house, its))
        assert_full(house.make("other").publish("x"))
        house.clock.advance(10 * 60 * 1000 + 1)
        house.service.on_loop(lambda service: service.opening.transactions.expire_due())  # type: ignore[union-attr]
        house.retain()
        assert not [key for key in house.disk.tables[Table.MESSAGE] if key.startswith(b"default:t:")]
        house.restart()
        assert house.make("other").payloads() == ["m0", "m1"]
        assert_full(house.make("other").publish("x"))


def test_a_flood_between_two_looks_is_refused_before_it_reaches_the_floor(house: House) -> None:
    """The disk says each time what it said at the first look, less what is on it; nobody else writes to it."""
    topic, free = house.topic, FLOOR + 4 * MIB

    def left() -> int:
        return free - sum(len(value) for rows in list(house.disk.tables.values()) for value in list(rows.values()))

    house.disk.free = left
    house.service.on_loop(looked)

    def flood(number: int) -> list[int]:
        own = house.aside()
        return [own.publish("x" * 100_000, producer=f"p{number}", sequenceIds=[each]).status_code for each in range(10)]

    with ThreadPoolExecutor(8) as pool:
        codes = [code for some in pool.map(flood, range(8)) for code in some]
    assert set(codes) == {200, 507}
    assert left() >= FLOOR
    assert topic.stats()["upcomingOffset"] == codes.count(200) >= 15, "2 MB lie within the room, written twice"


def test_it_is_said_before_it_comes_to_that(house: House) -> None:
    def said() -> tuple[str, Any, str]:
        health = done(ask(house, "GET", "/healthz")).json()
        lines = dict(line.rsplit(" ", 1) for line in ask(house, "GET", "/metrics").text.splitlines() if line[0] != "#")
        assert float(lines["oncelog_disk_min_free_bytes"]) == FLOOR
        assert float(lines["oncelog_disk_free_bytes"]) == house.disk.free()  # type: ignore[misc]
        return health["status"], health.get("disk"), lines["oncelog_disk_full"]

    for free, *expected in [
        (2 * FLOOR, "ok", None, "0.0"),
        (2 * FLOOR - 1, "ok", {"state": "low", "freeBytes": 2 * FLOOR - 1, "minFreeBytes": FLOOR}, "0.0"),
        (FLOOR - 1, "full", {"state": "full", "freeBytes": FLOOR - 1, "minFreeBytes": FLOOR}, "1.0"),
        (PLENTY, "ok", None, "0.0"),
    ]:
        house.disk.free = lambda free=free: free  # type: ignore[misc]
        house.service.on_loop(looked)
        assert said() == tuple(expected)


@pytest.mark.real
def test_a_producer_waits_for_room_and_stores_each_message_once(house: House) -> None:
    refused, admit = [], house.service.service.room.admit

    def noted(size: int = 0) -> None:
        try:
            admit(size)
        except errors.DiskFull as refusal:
            refused.append(refusal)
            raise

    house.topic.send("p", 0)
    house.service.service.room.admit = noted  # type: ignore[method-assign]
    with Producer("t", name="p", url=house.service.url, delivery_timeout=PATIENCE) as producer:
        with full(house):
            sent = [producer.send_async(f"m{each}".encode()) for each in range(1, 4)]
            until(lambda: len(refused) > 1, "it was refused, and has tried again")
        assert [each.result(PATIENCE).status for each in sent] == ["stored"] * 3
    assert house.topic.payloads() == ["m0", "m1", "m2", "m3"]


def test_a_producer_whose_time_is_over_says_why_and_the_next_one_goes_on(house: House) -> None:
    _ = house.topic
    with Producer("t", name="p", url=house.service.url, delivery_timeout=0.2) as producer:
        producer.send(b"m0")
        with full(house), pytest.raises(errors.DiskFull) as refused:
            producer.send(b"lost")
        assert refused.value.definite
    with Producer("t", name="p", url=house.service.url) as producer:
        assert producer.send(b"m1").offset == 1
    assert house.topic.payloads() == ["m0", "m1"]


# --- a real one


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own. Skips where none may be mounted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def free_on(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def free_for(service: RunningService) -> float:
    """As of the service's last look."""
    return service.service.room.free


PAYLOAD = "x" * 200_000


def fill(service: RunningService, name: str, **fields: Any) -> int:
    """Publish until it is refused right after a look at the disk; how many messages are stored."""
    topic = Topic(service.url, name)
    fields = fields or {"producer": "p"}
    number, refused = int(topic.stats()["upcomingOffset"]), 0
    while refused < 2:
        answer = topic.publish(PAYLOAD, sequenceIds=[number], **fields)
        if answer.status_code == 200:
            number, refused = number + 1, 0
        else:
            assert_full(answer)
            refused += 1
            service.on_loop(looked)
        assert number < 2_000, "the disk is larger than it says"
    return number


@pytest.mark.real
@pytest.mark.parametrize("kind", ["leveldb", "sqlite"])
def test_a_disk_that_runs_full_stays_readable_and_takes_in_again_what_deleting_makes_room_for(tmp_path: Path, kind: str) -> None:
    floor = 96 * MIB
    with small_disk(tmp_path / "small", 208) as disk:
        settings = {"store": f"{kind}://{disk}/data", "min_free_bytes": floor, "retention_seconds": 0.2}
        with running_service(**settings) as service:
            kept = receipts(Topic(service.url, "kept").publish("a", "b", producer="p", sequenceIds=[0, 1]))
            stored = fill(service, "large")
            assert stored > 100
            assert free_on(disk) > floor // 2, "what stands below the floor is for the store itself"
            assert service.service.failures.count == 0
        with running_service(**settings) as service:  # it opens, and knows that it is full
            large = Topic(service.url, "large", create=False)
            stored = fill(service, "large")  # closing may have made some room
            assert done(large.request("GET", "/stats")).json()["upcomingOffset"] == stored
            assert large.read(startOffset=stored - 1)[0]["payload"] == PAYLOAD
            assert large.request("DELETE", "").status_code == 200
            until(lambda: free_for(service) > floor + 20 * MIB, "what was deleted has made room")
            again = Topic(service.url, "again")
            for number in range(50):
                done(again.publish(PAYLOAD, producer="p", sequenceIds=[number]))
            kept_topic = Topic(service.url, "kept", create=False)
            repeated = receipts(kept_topic.publish("a", "b", producer="p", sequenceIds=[0, 1]))
            assert [each["id"] for each in repeated] == [each["id"] for each in kept]
            assert service.service.failures.count == 0
            assert kept_topic.verify()["ok"]
            assert again.verify()["ok"]


@pytest.mark.real
@pytest.mark.slow
def test_a_transaction_larger_than_what_is_left_is_rolled_back_and_a_part_of_the_floor_stays_free(tmp_path: Path) -> None:
    """Its messages are written again, all of them: so in slices, between which the store gives back what they were before."""
    floor = 160 * MIB
    with ExitStack() as ends:
        disk = ends.enter_context(small_disk(tmp_path / "small", 420))
        service = ends.enter_context(running_service(store=f"leveldb://{disk}/data", min_free_bytes=floor))
        client = ends.enter_context(Client(service.url))
        kept = Topic(service.url, "kept")
        done(kept.publish("a", producer="p", sequenceIds=[0]))
        pointer = client.start_transaction("long").write_pointer
        stored = fill(service, "t", transactionWritePointer=pointer)
        assert stored * len(PAYLOAD) > 1.3 * floor
        client.abort_transaction(pointer)
        done(kept.publish("a", producer="p", sequenceIds=[0]))  # reading, and what is stored, go on
        service.settled()
        assert service.service.failures.count == 0
        found = Topic(service.url, create=False)
        assert {each["state"]["string"] for each in found.read(limit=50)} == {"rolled_back"}
        assert found.verify()["ok"]
        assert free_on(disk) > floor // 2, "the store gave back what the rows were before"


@pytest.mark.real
def test_others_that_fill_the_disk_to_the_last_byte_are_survived_too(tmp_path: Path) -> None:
    """Then a write fails, and the store is reopened once it can be: below the floor it still refuses, and says that."""
    with small_disk(tmp_path / "small", 128) as disk:
        ballast = disk / "ballast"
        with running_service(store=f"leveldb://{disk}/data", min_free_bytes=64 * MIB) as service:
            topic = Topic(service.url)
            first = receipts(topic.publish(PAYLOAD, producer="p", sequenceIds=[0]))
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            for ttl in range(60, 100_000):  # what may go on even now, until it finds no space
                answer = topic.request("PUT", "/properties", json={"ttl": ttl, "transactional": "both"})
                if answer.status_code != 200:
                    break
            assert_problem(answer, 503, "storage_failed", definite=False)
            os.truncate(ballast, os.path.getsize(ballast) - 32 * MIB)
            health = service.url + "/healthz"
            until(lambda: requests.get(health, timeout=TIMEOUT).status_code == 200, "the store is open again")
            assert_full(topic.publish(PAYLOAD, producer="p", sequenceIds=[1]))
            again = receipts(topic.publish(PAYLOAD, producer="p", sequenceIds=[0]))
            assert [each["id"] for each in again] == [each["id"] for each in first]
            ballast.unlink()
            until(lambda: topic.publish(PAYLOAD, producer="p", sequenceIds=[1]).status_code == 200, "there is room again")
            assert [each["offset"] for each in topic.read()] == [0, 1]


def test_a_roll_back_that_waits_for_room_holds_up_no_other_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    with House(min_free_bytes=FLOOR) as house:
        aborted, committed = [house.start("long") for _ in range(12)], [house.start("long") for _ in range(2)]
        for number, pointer in enumerate(aborted):
            house.make(f"aborted{number}").publish_under(pointer, "x")
        for pointer in committed:
            house.make("committed").publish_under(pointer, "x")
        house.disk.free = lambda: FLOOR // 2
        house.service.on_loop(looked)
        for pointer in aborted:
            house.end(pointer, "abort")
        room = house.service.service.room
        until(lambda: room._rewrites, "roll-backs wait")
        for left, pointer in zip((1, 0), committed, strict=True):
            house.end(pointer, "commit")
            until(lambda left=left: house.make("committed").stats()["heldWritePointers"] == left, "it is settled")
        assert room._rewrites
        house.disk.free = lambda: PLENTY
        house.settle()
        assert room._rewrites == 0
