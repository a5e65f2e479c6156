"""CONTRACT §1 and §7: order and ids whatever the clock does, paging, waiting, ttl, deleted and re-created topics."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncelog_service.clock import SystemClock
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Rows, Table
from tests.behaviours.conftest import Machine
from tests.patience import PATIENCE
from tests.rest.talk import TIMEOUT, Topic, assert_problem, hex_id
from tests.support import ManualClock, RunningService, running_service

HOUR = 3_600_000


async def retention(service: Service) -> int:
    return await service.retention.once()


def whole(topic: Topic) -> list[dict[str, Any]]:
    """Every message, page by page: one of JSON is short."""
    found = topic.read(limit=100_000)
    while page := topic.read(limit=100_000, startFrom=found[-1]["id"], inclusive=False) if found else []:
        found += page
    return found


def ids_of(topic: Topic) -> list[str]:
    return [hex_id(message["id"]) for message in whole(topic)]


def offsets_of(topic: Topic) -> list[int]:
    return [message["offset"] for message in whole(topic)]


# --- ids and time -------------------------------------------------------------------------------------------------------


def test_a_clock_that_steps_back_an_hour_overwrites_and_reorders_nothing(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        for step in (0, -1, 1, -HOUR, 0, HOUR + 5, -2 * HOUR):
            machine.clock.ms += step
            topic.publish(f"{step}a", f"{step}b")
        assert topic.payloads() == [f"{step}{each}" for step in (0, -1, 1, -HOUR, 0, HOUR + 5, -2 * HOUR) for each in "ab"]
        crashed = machine.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        topic.publish("last")
        ids = ids_of(topic)
        assert ids == sorted(set(ids))
        assert offsets_of(topic) == list(range(15))
        assert topic.payloads()[-1] == "last"


def test_a_frozen_clock_and_more_messages_than_a_millisecond_holds(machine: Machine) -> None:
    with machine.run(max_messages=40_000) as service:
        topic = Topic(service.url)
        for _ in range(2):
            assert topic.post("/publish", b'{"messages":[' + b",".join([b'"x"'] * 32_770) + b"]}").status_code == 200
        ids = ids_of(topic)
        assert len(ids) == 65_540
        assert ids == sorted(set(ids))
        first, last = int(ids[0][:16], 16), int(ids[-1][:16], 16)
        assert (first, last) == (machine.clock.ms, machine.clock.ms + 1)


def test_a_restart_within_the_same_millisecond_reuses_no_id(machine: Machine) -> None:
    for _ in range(4):
        with machine.run() as service:
            Topic(service.url).publish("a", "b")
        machine = machine.crash()
    with machine.run() as service:
        ids = ids_of(Topic(service.url, create=False))
        assert len(ids) == 8
        assert ids == sorted(set(ids))


def test_a_consumer_past_the_clock_still_sees_what_is_published_behind_a_step_back(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        topic.publish("before")
        position = topic.read()[0]["id"]
        machine.clock.ms -= HOUR
        topic.publish("after")
        assert topic.payloads(startFrom=position, inclusive=False) == ["after"]


def test_messages_of_one_request_are_contiguous(running: RunningService) -> None:
    Topic(running.url)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda each: Topic(running.url, create=False).publish(*[f"{each}"] * 20), range(30)))
    payloads = Topic(running.url, create=False).payloads()
    assert len(payloads) == 600
    assert all(len(set(payloads[at : at + 20])) == 1 for at in range(0, 600, 20))


# --- paging -------------------------------------------------------------------------------------------------------------


def page_through(topic: Topic, limit: int) -> list[str]:
    seen: list[str] = []
    start = None
    while page := topic.read(startFrom=start, inclusive=False, limit=limit):
        assert len(page) <= limit
        seen += [message["payload"] for message in page]
        start = page[-1]["id"]
    return seen


@pytest.mark.parametrize("cache_bytes", [64 * 2**20, 0], ids=["from memory", "from the store"])
@pytest.mark.parametrize("limit", [1, 2, 3, 10, 100, 1_000])
def test_paging_with_any_limit_delivers_every_message_once(clock: ManualClock, cache_bytes: int, limit: int) -> None:
    with running_service(clock=clock, cache_bytes=cache_bytes) as service:
        topic = Topic(service.url)
        lives = []
        for request in range(12):
            ttls = [1 if (number + request) % 3 == 0 or request in (4, 5) else None for number in range(25)]
            messages = [f"{request}.{number}" for number in range(25)]
            topic.publish(*messages, ttls=ttls)
            lives += [message for message, ttl in zip(messages, ttls, strict=True) if ttl is None]
            clock.advance(request % 3)
        clock.advance(2_000)
        assert len(lives) < 200
        assert page_through(topic, limit) == lives
        service.on_loop(retention)
        assert page_through(topic, limit) == lives


def test_an_expired_start_id_drops_nothing_behind_it(clock: ManualClock) -> None:
    with running_service(clock=clock) as service:
        topic = Topic(service.url)
        topic.publish("short", "long", "long too", ttls=[1, None, None])
        start = topic.read(limit=1)[0]["id"]
        clock.advance(1_000)
        for inclusive in (True, False):
            assert topic.payloads(startFrom=start, inclusive=inclusive) == ["long", "long too"]
        service.on_loop(retention)
        for inclusive in (True, False):
            assert topic.payloads(startFrom=start, inclusive=inclusive) == ["long", "long too"]


@pytest.mark.parametrize("cache_bytes", [64 * 2**20, 0], ids=["from memory", "from the store"])
def test_reading_starts_where_it_is_told(clock: ManualClock, cache_bytes: int) -> None:
    with running_service(clock=clock, cache_bytes=cache_bytes) as service:
        topic = Topic(service.url)
        for number in range(10):
            topic.publish(f"{number}a", f"{number}b")
            clock.advance(10)
        begin = clock.ms - 100
        every = topic.payloads()
        messages = topic.read()
        for at, message in enumerate(messages):
            assert topic.payloads(startFrom=message["id"]) == every[at:]
            assert topic.payloads(startFrom=message["id"], inclusive=False) == every[at + 1 :]
            assert topic.payloads(startFrom=hex_id(message["id"])) == every[at:]
            assert topic.payloads(startOffset=at) == every[at:]
            assert topic.payloads(startOffset=at, inclusive=False) == every[at + 1 :]
        for at in range(10):
            assert topic.payloads(startFrom=begin + 10 * at) == every[2 * at :]
            assert topic.payloads(startFrom=begin + 10 * at, inclusive=False) == every[2 * at + 2 :]
            assert topic.payloads(startFrom=begin + 10 * at - 5) == every[2 * at :]
        assert topic.payloads(startFrom=0) == every
        assert topic.payloads(startFrom=clock.ms + HOUR) == []
        assert topic.payloads(startOffset=20) == []
        assert_problem(topic.poll(startOffset=21), 400, "offset_out_of_range")


def test_a_page_is_bounded_in_bytes_and_always_holds_a_message() -> None:
    with running_service(max_poll_bytes=1_024) as service:
        topic = Topic(service.url)
        topic.publish(*["x" * 400] * 10)
        topic.publish("y" * 5_000)
        assert 1 <= len(topic.read()) < 10
        assert page_through(topic, 1_000) == ["x" * 400] * 10 + ["y" * 5_000]


# --- waiting ------------------------------------------------------------------------------------------------------------


def test_an_empty_poll_waits_and_wakes_when_something_arrives(running: RunningService) -> None:
    topic = Topic(running.url)
    topic.publish("old")
    start = topic.read()[0]["id"]
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        waiting = pool.submit(Topic(running.url, create=False).payloads, startFrom=start, inclusive=False, wait=60_000)
        running.arrived(1)
        assert not waiting.done()
        topic.publish("new")
        assert waiting.result(TIMEOUT) == ["new"]
        assert time.monotonic() - begun < 30


def test_an_empty_poll_answers_empty_when_the_wait_is_over(running: RunningService) -> None:
    topic = Topic(running.url)
    begun = time.monotonic()
    assert topic.read(wait=200) == []
    assert 0.19 <= time.monotonic() - begun < 30
    topic.publish("x")
    begun = time.monotonic()
    assert topic.payloads(wait=60_000) == ["x"]
    assert time.monotonic() - begun < 30


def test_a_poll_that_waits_on_a_deleted_topic_is_let_go(running: RunningService) -> None:
    topic = Topic(running.url)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Topic(running.url, create=False).poll, wait=30_000)
        running.arrived(1)
        topic.request("DELETE", "")
        assert waiting.result(PATIENCE).status_code in (404, 503)
    assert_problem(topic.poll(wait=30_000), 404, "topic_not_found")


# --- ttl ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", [64 * 2**20, 0], ids=["from memory", "from the store"])
def test_a_message_is_gone_from_the_first_millisecond_of_its_expiry(clock: ManualClock, cache_bytes: int) -> None:
    with running_service(clock=clock, cache_bytes=cache_bytes) as service:
        topic = Topic(service.url, ttl="10")
        topic.publish("own", "topic's", "longer than the topic's", ttls=[3, None, 100])
        clock.advance(2_999)
        assert len(topic.read()) == 3
        clock.advance(1)
        assert topic.payloads() == ["topic's", "longer than the topic's"], "a ttl of its own shortens"
        clock.advance(6_999)
        assert len(topic.read()) == 2
        clock.advance(1)
        assert topic.read() == [], "and never lengthens"


def test_the_clock_of_a_service_never_goes_back_so_the_expired_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_790_000_000_000_000_000]
    monkeypatch.setattr("oncelog_service.clock.time.time_ns", lambda: now[0])
    with running_service(clock=SystemClock()) as service:
        topic = Topic(service.url, ttl="5")
        topic.publish("x")
        now[0] += 5_000_000_000
        assert topic.read() == []
        now[0] -= 3_600_000_000_000
        assert topic.read() == []


def test_what_was_deleted_does_not_come_back_when_the_ttl_is_raised(clock: ManualClock) -> None:
    with running_service(clock=clock) as service:
        topic = Topic(service.url, ttl="5")
        topic.publish("old")
        clock.advance(5_000)
        assert service.on_loop(retention) == 1
        topic.request("PUT", "/properties", json={"ttl": "5000"})
        assert topic.read() == []
        topic.publish("new")
        assert topic.payloads() == ["new"]
        assert topic.payloads(startOffset=0) == ["new"]


def test_expired_rows_are_deleted_in_slices_and_sequence_ids_stay(machine: Machine) -> None:
    with machine.run(max_messages=3_000) as service:
        topic = Topic(service.url, ttl="5")
        topic.send("p", *range(2_500))
        machine.clock.advance(4_000)
        topic.send("q", 0)
        topic.open_producer("r", "n")
        machine.clock.advance(1_000)
        assert service.on_loop(retention) == 2_500
        assert len(machine.disk.tables[Table.MESSAGE]) == 1
        assert service.on_loop(retention) == 0
        stats = topic.stats()
        assert (stats["earliestOffset"], stats["upcomingOffset"]) == (2_500, 2_501)
        assert [each["status"] for each in topic.send("p", 2_499, 2_500)] == ["duplicate", "stored"]
        verification = topic.verify()
        assert verification["ok"], verification


def test_what_has_expired_is_unseen_while_its_deletion_waits_and_is_gone_when_the_topic_is_idle(machine: Machine) -> None:
    """Two maps of 20 producers for 20 messages are not affordable; the stop of a service brings one."""
    with machine.run() as service:
        topic = Topic(service.url, ttl="5")
        for number in range(20):
            topic.send(f"p{number}", 0)
        machine.clock.advance(5_000)
        assert service.on_loop(retention) == 0
        assert topic.read() == topic.read(startOffset=0) == []
        machine = machine.crash()
    machine.clock.ms -= HOUR
    with machine.run() as service:
        topic = Topic(service.url, create=False)
        topic.request("PUT", "/properties", json={"ttl": "50000"})
        assert topic.read() == [], "nor when the clock is set back, the service crashed and the ttl is raised"
        machine.clock.advance(26 * HOUR)
        assert service.on_loop(retention) == 20
        assert not machine.disk.tables[Table.MESSAGE]
        assert [each["status"] for each in topic.send("p7", 0, 1)] == ["duplicate", "stored"]
        verification = topic.verify()
        assert verification["ok"], verification


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
def test_after_everything_was_deleted_ids_offsets_and_maps_go_on(machine: Machine, clean: bool) -> None:
    with machine.run() as service:
        topic = Topic(service.url, ttl="5")
        epoch = topic.open_producer("p", "n")["epoch"]
        topic.send("p", *range(10), epoch=epoch)
        last_id = topic.read()[-1]["id"]
        machine.clock.advance(5_000)
        assert service.on_loop(retention) == 10
        assert not machine.disk.tables[Table.MESSAGE]
        crashed = machine.crash()
    machine = machine if clean else crashed
    machine.clock.ms -= HOUR
    with machine.run() as service:
        topic = Topic(service.url, create=False)
        stats = topic.stats()
        assert (stats["earliestOffset"], stats["upcomingOffset"]) == (10, 10)
        assert [each["status"] for each in topic.send("p", 9)] == ["duplicate"]
        assert topic.open_producer("p", "m")["lastSequenceId"] == 9
        new = topic.send("p", 10)[0]
        assert (new["status"], new["offset"]) == ("stored", 10)
        assert new["id"] > hex_id(last_id)
        assert topic.payloads(startFrom=last_id, inclusive=False) == ["m10"]
        assert topic.payloads(startOffset=3) == ["m10"]
        assert topic.verify()["ok"]


def test_retention_leaves_idle_topics_closed(machine: Machine) -> None:
    with machine.run() as service:
        for number in range(20):
            Topic(service.url, f"t{number}").publish("x")
    with machine.run() as service:
        assert service.on_loop(retention) == 0
        assert not service.service.topics.opened


# --- deleted and re-created topics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
def test_a_re_created_topic_starts_empty_with_the_next_generation(machine: Machine, restart: bool) -> None:
    with machine.run() as service:
        topic = Topic(service.url, ttl="500")
        topic.open_producer("p", "n")
        topic.send("p", 0, 1, 2)
        old = topic.read()
        assert topic.request("DELETE", "").status_code == 200
        if not restart:
            Topic(service.url)
    machine.clock.ms -= HOUR
    with machine.run() as service:
        topic = Topic(service.url)
        assert topic.request("GET", "").json()["properties"] == {"ttl": "604800", "generation": "2"}
        assert topic.read() == []
        assert topic.request("GET", "/producers").json() == []
        for message in old:
            problem = assert_problem(topic.poll(startFrom=message["id"]), 400, "stale_message_id")
            assert problem["generation"] == 2
        new = topic.send("p", 0)[0]
        assert (new["status"], new["offset"]) == ("stored", 0)
        assert new["id"] > hex_id(old[-1]["id"]), "also with the clock set back"
        assert topic.payloads() == ["m0"]
        assert topic.verify()["ok"]


def test_every_generation_is_the_next_and_the_old_ones_are_cleaned(machine: Machine) -> None:
    last = ""
    with machine.run(max_messages=3_000) as service:
        for generation in range(1, 5):
            topic = Topic(service.url)
            assert topic.stats()["generation"] == generation
            topic.open_producer("p", f"n{generation}")
            ids = [each["id"] for each in topic.send("p", *range(1_200))]
            assert ids[0] > last
            last = ids[-1]
            topic.request("DELETE", "")
            machine.clock.ms -= HOUR
        assert len(machine.disk.tables[Table.MESSAGE]) == 4_800
        topic = Topic(service.url)
        topic.send("p", 0)
        rounds = service.service.retention
        assert service.on_loop(lambda _: rounds.once()) >= 4_800
        assert len(machine.disk.tables[Table.MESSAGE]) == 1
        assert len(machine.disk.tables[Table.PRODUCER]) == 4, "an open that the network holds up is known for some minutes"
        service.on_loop(lambda _: rounds.once())
        machine.clock.seconds += 600
        service.on_loop(lambda _: rounds.once())
        assert len(machine.disk.tables[Table.PRODUCER]) == 0
        assert topic.payloads() == ["m0"]
        topic.request("DELETE", "")
        service.on_loop(retention)
        assert not machine.disk.tables[Table.MESSAGE]
    with machine.run() as service:
        assert Topic(service.url).stats()["generation"] == 6, "a name never forgets how often it lived"


def test_deleting_while_others_publish_and_open_hangs_nobody(machine: Machine) -> None:
    """A delete holds the topic's lock; a recovery that waits for it must not be waited for in turn."""
    with machine.run() as service:
        Topic(service.url).publish("x")
    with machine.run() as service, ThreadPoolExecutor(8) as pool:
        for round_ in range(15):
            start = threading.Barrier(8)

            def act(number: int, start: threading.Barrier = start) -> int:
                topic = Topic(service.url, create=False)
                start.wait(TIMEOUT)
                if number == 0:
                    return topic.request("DELETE", "").status_code
                return topic.publish("x").status_code if number % 2 else topic.poll().status_code

            found: list[int] = list(pool.map(act, range(8)))
            assert found[0] == 200, (round_, found)
            assert set(found) <= {200, 404, 503}
            Topic(service.url)


def test_a_round_of_retention_asks_once_for_each_idle_topic() -> None:
    """Where a question is a query to a database, fourteen for each of 10,000 topics took minutes."""
    asked: list[Table] = []

    class Asked(MemoryStore):
        def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
            asked.append(table)
            return super().scan(table, start, stop, reverse=reverse)

    disk = Disk()
    with running_service(open_store=lambda: Asked(disk), retention_seconds=86_400) as service:
        for number in range(30):
            assert Topic(service.url, f"t{number}").send("p", 0)[0]["status"] == "stored"
        for number in range(20):  # ten of them come back
            assert Topic(service.url, f"t{number}").request("DELETE", "").status_code == 200
        for number in range(10):
            Topic(service.url, f"t{number}")
        rounds = service.service.retention
        counts = []
        for _ in range(3):
            asked.clear()
            service.on_loop(lambda _: rounds.once())
            counts.append(len(asked))
        assert counts[-1] <= 20 + 5
        assert len(disk.tables[Table.MESSAGE]) == 10, "of the deleted ones nothing is left"


@pytest.mark.parametrize("topics", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_topics_open_lazily(machine: Machine, topics: int) -> None:
    with machine.run() as service:

        async def create_all(inside: Service) -> None:
            for first in range(0, topics, 500):
                await asyncio.gather(*(inside.topics.create("many", f"t{number}", {}) for number in range(first, first + 500)))

        service.on_loop(create_all)
    with machine.run() as service:
        assert len(service.service.topics.opened) == 0
        first: Any = Topic(service.url, create=False)
        assert len(first.session.get(f"{service.url}/v1/namespaces/many/topics", timeout=TIMEOUT).json()) == topics
        for number in range(0, topics, topics // 20):
            topic = Topic(service.url, f"t{number}", "many", create=False)
            assert topic.send("p", 0)[0]["status"] == "stored"
        assert len(service.service.topics.opened) == 20
        service.on_loop(retention, 500)
        assert len(service.service.topics.opened) == 20
