"""Durable consumers: what was acknowledged is never delivered again, what was not is; one consumer at a time moves the cursor.

That nothing else moves it, whatever happens in which order, is in test_subscriptions_at_random.py; what is delivered beside
everything that can be in a log, in tests/simulation.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from oncelog import Consumer, Message, MessageId
from oncelog.errors import (
    ConsumerFenced,
    InvalidMessageId,
    InvalidRequest,
    OffsetOutOfRange,
    TopicNotFound,
)
from oncelog.wire.models import Acknowledge
from oncelog_service.rest.routes import SUBSCRIPTIONS
from oncelog_service.storage.port import Table
from tests.patience import until
from tests.rest.talk import TIMEOUT, Calls
from tests.world.house import House


def publish(house: House, count: int, first: int = 0) -> None:
    house.topic.publish(*map(str, range(first, first + count)))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def consumer(house: House, **options: Any) -> Consumer:
    return Consumer("t", "s", client=house.client, **options)


def rest(consumer: Consumer) -> list[bytes]:
    """All that it is given now."""
    found: list[bytes] = []
    while messages := consumer.read(timeout=0):
        found += payloads(messages)
    return found


def acknowledge(house: House, offset: int, epoch: int = 1, generation: int = 1) -> None:
    house.client.acknowledge("t", "s", Acknowledge(epoch=epoch, generation=generation, offset=offset))


# --- where it goes on


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", 0), ("latest", 4), (2, 2), (4, 4), ("behind", 3), ("at", 2), ("time", 2)]
)
def test_a_new_subscription_begins_where_it_is_told_to(house: House, start: Any, expected: int) -> None:
    publish(house, 2)
    house.clock.advance(1_000)
    publish(house, 2, 2)
    with Consumer("t", "other", client=house.client) as other:
        third = other.read(timeout=0)[2].message_id
    inclusive, start = start == "at", {"behind": third, "at": third, "time": third.published_at}.get(start, start)
    for chosen in (start, "earliest"):  # the second time it is not new any more
        with consumer(house, start=chosen, inclusive=inclusive) as opened:
            assert rest(opened) == numbered(4 - expected, expected)


def test_a_start_that_is_not_there_is_refused_and_leaves_no_subscription(house: House) -> None:
    publish(house, 1)
    for start, error in (
        (2, OffsetOutOfRange),
        (MessageId(2**50, 0), InvalidMessageId),
        (2**63 - 1, OffsetOutOfRange),
        (2**70, ValueError),
    ):
        with pytest.raises(error):
            consumer(house, start=start)
    assert list(house.client.subscriptions("t")) == []
    with pytest.raises(TopicNotFound):
        Consumer("missing", "s", client=house.client)
    with pytest.raises(InvalidRequest):
        Consumer("t", "a name", client=house.client)


# --- what is known of it


def test_it_is_said_how_old_what_is_not_acknowledged_is_and_when_the_consumer_was_heard(house: House) -> None:
    def shown(name: str = "s") -> tuple[int | None, int | None]:
        (alone,) = [each for each in house.client.subscriptions("t") if each.name == name]
        assert alone == house.client.subscription("t", name)
        return alone.oldest_ms, alone.heard_ms

    published = []
    for number in range(3):
        publish(house, 1, number)
        published.append(house.clock.now_ms())
        house.clock.advance(10)
    with consumer(house) as opened:
        assert shown() == (published[0], house.clock.now_ms())
        house.clock.advance(10)
        messages = opened.read(timeout=0)
        heard = house.clock.now_ms()
        assert shown() == (published[0], heard)
        house.clock.advance(10)
        assert shown() == (published[0], heard)
        opened.ack(messages[1])
        assert shown() == (published[2], heard + 10)
        house.clock.advance(10)
        opened.seek(1)
        assert shown() == (published[1], heard + 20)
        opened.ack(messages[2])
        assert shown() == (None, heard + 20)
        house.client.seek_subscription("t", "s", 0)
        assert shown() == (published[0], None)  # that consumer is fenced: the next one has not been heard
        with pytest.raises(ConsumerFenced):
            opened.read(timeout=0)
        assert shown() == (published[0], None)
    for _ in house.lives():
        assert shown() == (published[0], None)
    house.client.trim_topic("t", 1)
    assert shown() == (published[1], None)
    with consumer(house):
        assert shown()[1] is not None
    house.client.delete_subscription("t", "s")
    with Consumer("t", "s", client=house.client, start="latest"):
        assert shown() == (None, house.clock.now_ms())


def test_all_subscriptions_are_listed_also_of_topics_that_nobody_has_used_since(house: House) -> None:
    expected = []
    for namespace in ("default", "other"):
        for topic in ("a", "a-b", "a.b", "ab"):
            house.client.create_topic(topic, namespace=namespace)
            for name in ("s", "s2", "t"):
                house.client.open_subscription(topic, name, namespace=namespace)
                expected.append((namespace, topic, name))
    house.client.delete_subscription("ab", "s2")
    house.client.delete_topic("a.b")
    house.client.create_topic("a.b")
    expected = [each for each in expected if each != ("default", "ab", "s2") and each[:2] != ("default", "a.b")]
    for _ in house.lives():
        found = list(house.client.all_subscriptions())
        assert sorted((each.namespace, each.topic, each.name) for each in found) == expected
        paged, after = list[str](), dict[str, str]()
        while page := Calls(house.service.url, SUBSCRIPTIONS).good("GET", params={"limit": 5, **after}):
            assert len(page) <= 5
            paged += [f"{each['namespace']}/{each['topic']}/{each['name']}" for each in page]
            after = {"after": paged[-1]}
        assert paged == [f"{each.namespace}/{each.topic}/{each.name}" for each in found]


def test_a_damaged_topic_keeps_nobody_from_seeing_the_subscriptions_of_the_others(house: House) -> None:
    for name in ("a", "b", "c"):
        house.make(name).publish("m")
        house.client.open_subscription(name, "s")
    house.damaged = True
    with house.off() as disk:
        rows = disk.tables[Table.MESSAGE]
        (key,) = [each for each in rows if each.startswith(b"default:b:")]
        rows[key] = rows[key][:-1] + bytes([rows[key][-1] ^ 1])
        for table in (Table.SNAPSHOT, Table.KEY_SNAPSHOT):
            disk.tables[table].clear()
    assert [(each.topic, each.name) for each in house.client.all_subscriptions()] == [("a", "s"), ("c", "s")]


# --- the cursor


def test_what_is_acknowledged_by_id_lies_in_stored_groups_too(house: House) -> None:
    topic, pointer = house.topic, house.start()
    topic.publish("a")
    topic.store_under(pointer, "b", "c", "d")
    topic.publish_under(pointer)
    house.end(pointer, "commit")
    house.settle()
    topic.publish("e")
    with consumer(house) as opened:
        messages = opened.read(timeout=TIMEOUT)
        for number, message in enumerate(messages):
            opened.ack(message.message_id)
            assert opened.acknowledged == message.offset + 1 == number + 1
        for number, message in enumerate(messages):
            opened.seek(message.message_id)
            assert opened.acknowledged == number + 1
            opened.seek(message.message_id, inclusive=True)
            assert payloads(opened.read(1, timeout=0)) == [message.payload]
        assert number == 4


# --- one consumer at a time


def test_a_consumer_that_waits_hears_at_once_that_it_is_fenced(house: House) -> None:
    house.make()
    waiting = Consumer("t", "s", url=house.service.url)
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            waiting.read()
        except BaseException as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    log = house.service.on_loop(lambda service: service.opening.topics.logs.open("default", "t"))
    until(lambda: log.subscriptions._changes._waiting)
    began = time.monotonic()
    consumer(house).close()
    thread.join(TIMEOUT)
    assert isinstance(heard[0], ConsumerFenced)
    assert time.monotonic() - began < 15  # its request is held for 20 s


# --- expiry


def test_subscriptions_of_an_older_generation_are_deleted(house: House) -> None:
    house.topic.publish("a")
    consumer(house).close()
    assert house.rows(Table.SUBSCRIPTION) == (1,)
    house.client.delete_topic("t")
    for _ in range(5):
        house.retain()
        house.clock.seconds += 600  # as long as an open that the network holds up is known again
    assert house.rows(Table.SUBSCRIPTION) == (0,)
