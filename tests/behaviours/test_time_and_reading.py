"""CONTRACT §3.5 and §7: waiting, retention, deleted and re-created topics. Pages and where they begin are in test_pages.py."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from oncelog import Producer
from oncelog.errors import ProducerFenced, ProducerStopped
from oncelog_service.log.names.generations import UNREADABLE
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Rows, Table
from tests.patience import PATIENCE
from tests.rest.talk import TIMEOUT, Topic, assert_problem
from tests.world.house import HOUR, House, told
from tests.world.service import running_service


def test_a_page_is_bounded_in_bytes_and_always_holds_a_message(house: House) -> None:
    house.restart(max_poll_bytes=1_024)
    house.topic.publish(*["x" * 400] * 10)
    house.topic.publish("y" * 5_000)
    assert 1 <= len(house.topic.read()) < 10
    assert house.topic.payloads(startOffset=10) == ["y" * 5_000]


# --- waiting


def test_a_poll_that_waits_on_a_deleted_topic_is_let_go(house: House) -> None:
    topic = house.topic
    with ThreadPoolExecutor(1) as pool:
        waiting = house.at_once(pool, "poll", wait=30_000)
        house.service.arrived(1)
        topic.request("DELETE", "")
        assert waiting.result(PATIENCE).status_code in (404, 503)
    assert_problem(topic.poll(wait=30_000), 404, "topic_not_found")


# --- retention


def test_a_round_of_retention_asks_once_for_each_idle_topic_and_leaves_it_closed() -> None:
    """Where a question is a query to a database, fourteen for each of 10,000 topics took minutes."""
    asked: list[Table] = []

    class Asked(MemoryStore):
        def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
            asked.append(table)
            return super().scan(table, start, stop, reverse=reverse)

    disk = Disk()
    with running_service(open_store=lambda: Asked(disk)) as service:
        for number in range(15):
            assert told(Topic(service.url, f"t{number}").send("p", 0)) == "s"
        for number in range(10):
            assert Topic(service.url, f"t{number}").request("DELETE", "").status_code == 200
        for number in range(5):  # come back
            Topic(service.url, f"t{number}")
    with running_service(open_store=lambda: Asked(disk), retention_seconds=86_400) as service:
        rounds = service.service.opening.retention()
        for _ in range(3):
            asked.clear()
            service.on_loop(lambda _: rounds.once())
        assert len(asked) <= 10 + 5
        assert not service.service.opening.topics.logs.opened
        assert len(disk.tables[Table.MESSAGE]) == 5, "of the deleted ones nothing is left"


# --- deleted and re-created topics


def test_every_generation_is_the_next_and_the_old_ones_are_cleaned(house: House) -> None:
    topic, last = house.topic, ""
    house.restart(max_messages=3_000)
    for generation in range(1, 4):
        assert topic.stats()["generation"] == generation
        topic.open_producer("p", f"n{generation}")
        ids = [each["id"] for each in topic.send("p", *range(1_200))]
        assert ids[0] > last
        last = ids[-1]
        house.clock.ms -= HOUR
        house.again()
        assert topic.read() == topic.request("GET", "/producers").json() == []
        assert assert_problem(topic.poll(startFrom=last), 400, "stale_message_id")["generation"] == generation + 1
    topic.send("p", 0)
    assert house.retain() >= 9, "a row of each 32 KiB"
    assert house.rows(Table.MESSAGE, Table.PRODUCER) == (1, 3), "an open that the network holds up is known for some minutes"
    house.retain()
    house.clock.seconds += 600
    house.retain()
    assert house.rows(Table.PRODUCER) == (0,)
    assert topic.payloads() == ["m0"]
    topic.request("DELETE", "")
    house.retain()
    assert house.rows(Table.MESSAGE) == (0,)
    house.restart()
    topic.request("PUT", "", json={})
    assert topic.stats()["generation"] == 5, "a name never forgets how often it lived"


def test_deleting_while_others_publish_and_open_hangs_nobody(house: House) -> None:
    """A delete holds the topic's lock; a recovery that waits for it must not be waited for in turn."""
    topic = house.topic
    topic.publish("x")
    house.restart()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            start = threading.Barrier(8)

            def act(number: int, start: threading.Barrier = start) -> int:
                aside = house.aside()
                start.wait(TIMEOUT)
                if number == 0:
                    return aside.request("DELETE", "").status_code
                return aside.publish("x").status_code if number % 2 else aside.poll().status_code

            found: list[int] = list(pool.map(act, range(8)))
            assert found[0] == 200, found
            assert set(found) <= {200, 404, 503}
            topic.request("PUT", "", json={})


@pytest.mark.parametrize("topics", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_topics_open_lazily(house: House, topics: int) -> None:
    async def create_all(service: Service) -> None:
        for first in range(0, topics, 100):
            await asyncio.gather(
                *(service.opening.topics.changes.create("many", f"t{number}", {}) for number in range(first, first + 100))
            )

    house.service.on_loop(create_all)
    house.restart()
    url = f"{house.service.url}/v1/namespaces/many/topics"
    assert len(house.topic.session.get(url, timeout=TIMEOUT).json()) == topics
    for number in range(0, topics, topics // 10):
        assert told(house.make(f"t{number}", "many").send("p", 0)) == "s"
    house.retain()
    assert len([name for name in house.service.service.opening.topics.logs.opened if name[0] == "many"]) == 10


def fenced_by_generation(answer: object, generation: int) -> None:
    body = assert_problem(answer, 403, "producer_fenced")  # type: ignore[arg-type]
    assert (body["definite"], body["generation"]) == (True, generation)
    assert "made anew" in body["detail"]


def test_a_fence_of_an_older_generation_holds_wherever_a_producer_is_named(house: House) -> None:
    topic = house.topic
    old = topic.open_producer("p", "old")["epoch"]
    house.again()
    named = {"producer": "p", "sequenceIds": [0], "epoch": old}
    pointer = house.start()
    fenced_by_generation(topic.publish("x", transactionWritePointer=pointer, **named), 2)
    fenced_by_generation(topic.store(pointer, "x", **named), 2)
    fenced_by_generation(topic.publish(transactionWritePointer=pointer, producer="p", epoch=old), 2)
    begun = topic.session.post(f"{topic.base}/v1/atomic", json={"id": "tx", "group": "g"}, timeout=PATIENCE)
    assert begun.status_code == 200
    fenced_by_generation(topic.request("PUT", "/stage/tx/0", json={"messages": ["x"], **named}), 2)
    assert topic.payloads() == []


def test_a_topic_whose_producers_cannot_be_read_can_be_deleted_and_its_epochs_do_not_come_again(house: House) -> None:
    old = house.topic.open_producer("p", "old")["epoch"]
    with house.off() as disk:
        (key,) = disk.tables[Table.PRODUCER]
        disk.tables[Table.PRODUCER][key] = b"damaged"
    house.again()
    fenced_by_generation(house.topic.publish("x", producer="p", sequenceIds=[0], epoch=old), 2)
    assert house.topic.open_producer("p", "new")["epoch"] > UNREADABLE


def test_a_producer_of_the_sdk_that_meets_the_next_generation_stops_and_says_why(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer[bytes](house.make().url.rpartition("/")[2], name="p", client=house.client)
    producer.send(b"0")
    house.again()
    sent, futures, publish = [], [], house.client.publish
    monkeypatch.setattr(house.client, "publish", lambda *request: [sent.append(1), publish(*request)][1])
    with suppress(ProducerStopped):  # once it has heard of it
        futures.extend(producer.send_async(b"x") for _ in range(500))
    with pytest.raises((ProducerFenced, ProducerStopped), match="made anew"):
        producer.send(b"x")
    with pytest.raises(ProducerStopped, match=r"is told where to go on; open it again$"):
        producer.send(b"x")
    failures = [future.exception() for future in futures]
    assert all(isinstance(each, ProducerFenced | ProducerStopped) and "made anew" in str(each) for each in failures)
    assert len(sent) < 10  # and not 999, looking for the one message whose fault it might be
    assert house.topic.payloads() == []
