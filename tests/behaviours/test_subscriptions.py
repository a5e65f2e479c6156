"""Durable consumers: what was acknowledged is never delivered again, what was not is; one consumer at a time moves the cursor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from oncelog import Client, Consumer, Message, MessageId, Producer
from oncelog.errors import (
    ConsumerFenced,
    InvalidMessageId,
    InvalidRequest,
    OffsetOutOfRange,
    OncelogError,
    StaleMessageId,
    StorageUnavailable,
    SubscriptionNotFound,
    TopicNotFound,
)
from oncelog.wire.models import Acknowledge, ReceiveMessages
from oncelog_service.storage.port import Table
from tests.behaviours.conftest import Machine
from tests.behaviours.mixed_log import MixedLog
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic
from tests.support import RunningService

LIVES = 10**9


@pytest.fixture
def client(running: RunningService) -> Iterator[Client]:
    with Client(running.url) as client:
        client.create_topic("t")
        yield client


def publish(client: Client, *payloads: bytes, topic: str = "t") -> None:
    with Producer(topic, client=client) as producer:
        producer.send_batch(payloads)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def rest(consumer: Consumer) -> list[bytes]:
    """All that it is given now."""
    found: list[bytes] = []
    while messages := consumer.receive(timeout=0):
        found += payloads(messages)
    return found


# --- where it goes on


def test_a_new_consumer_goes_on_behind_the_last_acknowledged_message(client: Client) -> None:
    publish(client, *numbered(5))
    with Consumer("t", "s", client=client) as consumer:
        messages = consumer.receive(timeout=0)
        assert payloads(messages) == numbered(5)
        consumer.ack(messages[2])
    with Consumer("t", "s", client=client) as consumer:
        assert rest(consumer) == [b"3", b"4"]


def test_what_was_acknowledged_is_on_disk_when_ack_returns(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        client.create_topic("t")
        publish(client, *numbered(10))
        consumer = Consumer("t", "s", client=client)
        for message in consumer.receive(timeout=0)[:7]:
            consumer.ack(message)
        after = machine.crash()
    with after.run() as service, Consumer("t", "s", url=service.url) as consumer:
        assert rest(consumer) == numbered(3, 7)
        assert consumer.epoch == 2


def test_subscriptions_of_a_topic_know_nothing_of_each_other(client: Client) -> None:
    publish(client, *numbered(3))
    with Consumer("t", "a", client=client) as a, Consumer("t", "b", client=client) as b:
        a.ack(a.receive(timeout=0)[-1])
        assert rest(b) == numbered(3)
    assert [(each.name, each.cursor, each.lag) for each in client.subscriptions("t")] == [("a", 3, 0), ("b", 0, 3)]


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", 0), ("latest", 4), (2, 2), (4, 4), ("third", 3), ("at the third", 2)]
)
def test_a_new_subscription_begins_where_it_is_told_to(client: Client, start: Any, expected: int) -> None:
    publish(client, *numbered(4))
    inclusive = start == "at the third"
    if isinstance(start, str) and "third" in start:
        with Consumer("t", "other", client=client) as other:
            start = other.receive(timeout=0)[2].message_id
    with Consumer("t", "s", client=client, start=start, inclusive=inclusive) as consumer:
        assert rest(consumer) == numbered(4 - expected, expected)
    with Consumer("t", "s", client=client, start="earliest") as consumer:  # it is not new any more
        assert rest(consumer) == numbered(4 - expected, expected)


def test_a_subscription_can_begin_at_a_time(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        client.create_topic("t")
        publish(client, b"before")
        machine.clock.advance(1_000)
        publish(client, b"after")
        with Consumer("t", "x", client=client) as other:
            at = other.receive(timeout=0)[1].message_id.published_at
        with Consumer("t", "s", client=client, start=at) as consumer:
            assert rest(consumer) == [b"after"]


def test_a_start_that_is_not_there_is_refused_and_leaves_no_subscription(client: Client) -> None:
    publish(client, b"a")
    for start, error in ((2, OffsetOutOfRange), (MessageId(2**50, 0), InvalidMessageId), (2**70, OffsetOutOfRange)):
        with pytest.raises(error):
            Consumer("t", "s", client=client, start=start)
    assert list(client.subscriptions("t")) == []
    with pytest.raises(TopicNotFound):
        Consumer("missing", "s", client=client)
    with pytest.raises(InvalidRequest):
        Consumer("t", "a name", client=client)


# --- the cursor


def test_an_acknowledgement_backwards_is_answered_and_moves_nothing(client: Client) -> None:
    publish(client, *numbered(5))
    with Consumer("t", "s", client=client) as consumer:
        messages = consumer.receive(timeout=0)
        consumer.ack(messages[3])
        consumer.ack(messages[0])
        consumer.ack(messages[1].message_id)
        assert consumer.acknowledged == client.subscription("t", "s").cursor == 4
        assert consumer.lag == 1


def test_an_acknowledgement_beyond_the_end_is_refused(client: Client) -> None:
    publish(client, *numbered(2))
    consumer = Consumer("t", "s", client=client)
    for offset in (2, 3, 2**62):
        with pytest.raises(OffsetOutOfRange) as refused:
            client.acknowledge("t", "s", Acknowledge(epoch=1, generation=1, offset=offset))
        assert (refused.value.upcoming, refused.value.definite) == (2, True)
    with pytest.raises(InvalidMessageId):
        consumer.ack(MessageId(2**50, 0))
    first, last = (message.message_id for message in consumer.receive(timeout=0))
    with pytest.raises(InvalidMessageId):  # behind the last message, in its millisecond
        consumer.ack(MessageId(last.publish_timestamp, last.seq_id + 1))
    with pytest.raises(InvalidMessageId):  # within the row of a message that is no group
        consumer.ack(MessageId(first.publish_timestamp, first.seq_id, 1, 0))
    assert client.subscription("t", "s").cursor == 0


def test_an_acknowledgement_of_another_generation_is_refused(client: Client) -> None:
    publish(client, *numbered(3))
    old = Consumer("t", "s", client=client)
    messages = old.receive(timeout=0)
    client.delete_topic("t")
    client.create_topic("t")
    publish(client, *numbered(3))
    with pytest.raises(ConsumerFenced, match="made anew"):
        client.acknowledge("t", "s", Acknowledge(epoch=old.epoch, generation=2, offset=2))
    with Consumer("t", "s", client=client) as new:
        assert new.epoch > old.epoch
        for refused in (lambda: old.ack(messages[2]), lambda: new.ack(messages[2]), lambda: new.ack(messages[2].message_id)):
            with pytest.raises(StaleMessageId):
                refused()
        with pytest.raises(StaleMessageId):
            old.receive(timeout=0)
        assert new.status().cursor == 0


def test_what_is_acknowledged_by_id_lies_in_stored_groups_too(running: RunningService, client: Client) -> None:
    topic = Topic(running.url, create=False)
    topic.publish("a")
    pointer = client.start_transaction().write_pointer
    topic.store_under(pointer, "b", "c", "d")
    topic.publish_under(pointer)
    client.commit_transaction(pointer)
    topic.publish("e")
    with Consumer("t", "s", client=client) as consumer:
        messages: list[Message] = []
        while len(messages) < 5:
            messages += consumer.receive(timeout=TIMEOUT)
        for number, message in enumerate(messages):
            consumer.ack(message.message_id)
            assert consumer.acknowledged == message.offset + 1 == number + 1
        for number, message in enumerate(messages):
            consumer.seek(message.message_id)
            assert consumer.acknowledged == number + 1
            consumer.seek(message.message_id, inclusive=True)
            assert payloads(consumer.receive(1, timeout=0)) == [message.payload]


def test_a_store_that_fails_acknowledges_nothing(machine: Machine) -> None:
    with machine.run() as service, Client(service.url, retry=0) as client, Client(service.url) as patient:
        client.create_topic("t")
        publish(client, *numbered(3))
        consumer = Consumer("t", "s", client=client)
        messages = consumer.receive(timeout=0)

        def full(batches: Any) -> None:
            if any(table is Table.SUBSCRIPTION for batch in batches for table, _, _ in batch.puts):
                raise OSError("disk full")

        machine.disk.before_sync = full
        with pytest.raises(OncelogError) as failed:
            consumer.ack(messages[1])
        assert not failed.value.definite
        machine.disk.before_sync = None
        assert patient.subscription("t", "s").cursor == 0

        def acknowledged() -> bool:
            with suppress(StorageUnavailable):
                consumer.ack(messages[1])
            return consumer.acknowledged > 0

        until(acknowledged)
        assert client.subscription("t", "s").cursor == 2


# --- one consumer at a time


def test_a_second_consumer_fences_the_first_for_ever(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        client.create_topic("t")
        publish(client, *numbered(3))
        old = Consumer("t", "s", client=client)
        messages = old.receive(timeout=0)
        with Consumer("t", "s", client=client) as new:
            for refused in (lambda: old.ack(messages[2]), lambda: old.receive(timeout=0), lambda: old.seek("earliest")):
                with pytest.raises(ConsumerFenced) as fenced:
                    refused()
                assert (fenced.value.subscription, fenced.value.epoch, fenced.value.current_epoch) == ("s", 1, 2)
                assert fenced.value.definite
            assert new.status().cursor == 0
            assert rest(new) == numbered(3)
    with machine.run() as service, Client(service.url) as client:
        for ask in (
            lambda: client.acknowledge("t", "s", Acknowledge(epoch=1, generation=1, offset=2)),
            lambda: client.receive("t", "s", ReceiveMessages(epoch=1)),
            lambda: client.seek_subscription("t", "s", "latest", epoch=1),
        ):
            with pytest.raises(ConsumerFenced):
                ask()
        assert client.subscription("t", "s").cursor == 0


def test_a_consumer_that_waits_hears_at_once_that_it_is_fenced(running: RunningService, client: Client) -> None:
    waiting = Consumer("t", "s", url=running.url)
    heard: list[BaseException | None] = []

    def wait() -> None:
        try:
            waiting.receive()
        except BaseException as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    log = running.on_loop(lambda service: service.topics.open("default", "t"))
    until(lambda: log.subscriptions._changes._waiting)
    began = time.monotonic()
    Consumer("t", "s", client=client).close()
    thread.join(TIMEOUT)
    assert isinstance(heard[0], ConsumerFenced)
    assert time.monotonic() - began < 15  # its request is held for 20 s


def test_a_consumer_whose_epoch_was_never_handed_out_is_refused(client: Client) -> None:
    Consumer("t", "s", client=client).close()
    for epoch in (2, 0, -1):
        with pytest.raises(InvalidRequest, match="never handed out"):
            client.receive("t", "s", ReceiveMessages(epoch=epoch))
    with pytest.raises(SubscriptionNotFound):
        client.receive("t", "other", ReceiveMessages(epoch=1))


def test_a_deleted_subscription_fences_its_consumer_and_begins_anew(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        client.create_topic("t")
        publish(client, *numbered(3))
        old = Consumer("t", "s", client=client)
        messages = old.receive(timeout=0)
        old.ack(messages[1])
        client.delete_subscription("t", "s")
        assert list(client.subscriptions("t")) == []
        for ask in (lambda: client.subscription("t", "s"), lambda: client.delete_subscription("t", "s")):
            with pytest.raises(SubscriptionNotFound):
                ask()
        with pytest.raises(ConsumerFenced, match="deleted"):
            old.ack(messages[2])
        with pytest.raises(SubscriptionNotFound):
            client.seek_subscription("t", "s", "earliest")
    with machine.run() as service, Client(service.url) as client:
        with Consumer("t", "s", client=client, start=1) as new:
            assert new.epoch == 3
            assert rest(new) == [b"1", b"2"]
        with pytest.raises(ConsumerFenced):
            client.acknowledge("t", "s", Acknowledge(epoch=1, generation=1, offset=2))


# --- seek


def test_a_consumer_can_replay_from_anywhere(client: Client) -> None:
    publish(client, *numbered(6))
    with Consumer("t", "s", client=client) as consumer:
        messages = consumer.receive(timeout=0)
        consumer.ack(messages[-1])
        for start, expected in (("earliest", 0), (2, 2), (messages[3].message_id, 4), ("latest", 6)):
            consumer.seek(start)
            assert consumer.status().cursor == consumer.acknowledged == expected
            assert consumer.position is None
            assert rest(consumer) == numbered(6 - expected, expected)
        consumer.seek(messages[3].message_id, inclusive=True)
    with Consumer("t", "s", client=client) as consumer:
        assert rest(consumer) == numbered(3, 3)


def test_a_late_acknowledgement_from_before_a_seek_moves_nothing(client: Client) -> None:
    publish(client, *numbered(4))
    with Consumer("t", "s", client=client) as consumer:
        consumer.receive(timeout=0)
        consumer.seek("earliest")
        with pytest.raises(ConsumerFenced):  # as one that was on its way for long
            client.acknowledge("t", "s", Acknowledge(epoch=1, generation=1, offset=3))
        assert consumer.status().cursor == 0
        consumer.ack(consumer.receive(timeout=0)[-1])
        assert consumer.status().cursor == 4


def test_an_operator_who_seeks_fences_the_consumer(client: Client) -> None:
    publish(client, *numbered(4))
    consumer = Consumer("t", "s", client=client)
    messages = consumer.receive(timeout=0)
    assert client.seek_subscription("t", "s", 1).cursor == 1
    with pytest.raises(ConsumerFenced):
        consumer.ack(messages[-1])
    with Consumer("t", "s", client=client) as again:
        assert rest(again) == numbered(3, 1)


# --- expiry


def test_retention_waits_for_no_subscription_and_the_lag_says_what_is_lost(machine: Machine) -> None:
    with machine.run(retention_seconds=0.02) as service, Client(service.url) as client:
        client.create_topic("t", {"ttl": 10})
        publish(client, *numbered(5))
        consumer = Consumer("t", "s", client=client, page_size=2)
        consumer.ack(consumer.receive(1, timeout=0)[0])
        assert (consumer.status().lag, consumer.status().lost) == (4, 0)
        machine.clock.advance(10_001)
        publish(client, *numbered(2, 5))
        assert (consumer.status().lag, consumer.status().lost) == (2, 4)  # expired, whether deleted or not
        until(lambda: client.stats("t").earliest_offset >= 5)
        assert (consumer.status().lag, consumer.status().lost) == (2, 4)
        gone = consumer.receive(timeout=0)  # one it had fetched ahead
        assert payloads(gone) == [b"1"]
        consumer.ack(gone[0].message_id)  # not there any more: nothing moves
        assert consumer.status().cursor == 1
        messages = consumer.receive(timeout=0)
        assert payloads(messages) == numbered(2, 5)
        consumer.ack(messages[-1])
        assert (consumer.status().cursor, consumer.status().lag, consumer.status().lost) == (7, 0, 0)
        with Consumer("t", "s", client=client) as again:
            assert rest(again) == []


def test_subscriptions_of_an_older_generation_are_deleted(machine: Machine) -> None:
    with machine.run(retention_seconds=0.02) as service, Client(service.url) as client:
        client.create_topic("t")
        Consumer("t", "s", client=client).close()
        assert len(machine.disk.tables[Table.SUBSCRIPTION]) == 1
        client.delete_topic("t")

        def gone() -> bool:
            machine.clock.seconds += 600  # as long as an open that the network holds up is known again
            return not machine.disk.tables[Table.SUBSCRIPTION]

        until(gone)


# --- transactions


def test_what_is_undecided_waits_and_what_is_rolled_back_is_never_delivered(running: RunningService, client: Client) -> None:
    topic = Topic(running.url, create=False)
    early, late = client.start_transaction().write_pointer, client.start_transaction().write_pointer
    topic.publish("a")
    topic.publish_under(early, "early")
    topic.publish_under(late, "late")
    topic.publish("b")
    with Consumer("t", "s", client=client) as consumer:
        messages = consumer.receive(timeout=0)
        assert payloads(messages) == [b"a"]
        consumer.ack(messages[-1])
        status = consumer.status()
        assert (status.lag, status.settled_offset, status.upcoming_offset) == (3, 1, 4)
        for offset in (1, 3):  # an acknowledgement must not pass over what is undecided
            with pytest.raises(OffsetOutOfRange):
                client.acknowledge("t", "s", Acknowledge(epoch=1, generation=1, offset=offset))
        client.commit_transaction(late)
        assert consumer.receive(timeout=0.1) == []
        client.abort_transaction(early)
        found = []
        while len(found) < 2:
            found += payloads(consumer.receive(timeout=TIMEOUT))
        assert found == [b"late", b"b"]


def test_a_consumer_that_waits_gets_a_transaction_when_it_commits(running: RunningService, client: Client) -> None:
    topic = Topic(running.url, create=False)
    pointer = client.start_transaction().write_pointer
    topic.publish_under(pointer, "a", "b")
    found: list[bytes] = []
    with Consumer("t", "s", url=running.url) as consumer:
        thread = threading.Thread(target=lambda: found.extend(payloads(consumer.receive(timeout=TIMEOUT))))
        thread.start()
        client.commit_transaction(pointer)
        thread.join(TIMEOUT)
    assert found == [b"a", b"b"]


def test_a_new_subscription_at_the_latest_message_loses_no_transaction_that_commits_later(
    running: RunningService, client: Client
) -> None:
    topic = Topic(running.url, create=False)
    topic.publish("seen")
    pointer = client.start_transaction().write_pointer
    topic.publish_under(pointer, "late")
    with Consumer("t", "s", client=client, start="latest") as consumer:
        assert consumer.receive(timeout=0) == []
        client.commit_transaction(pointer)
        assert payloads(consumer.receive(timeout=TIMEOUT)) == [b"late"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_happens_committed_messages_come_once_each_in_order(
    machine: Machine, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that acknowledges at random beside everything that can be in a log; the service is stopped between."""
    monkeypatch.setattr("tests.behaviours.mixed_log.TTL", LIVES)
    monkeypatch.setattr("tests.behaviours.mixed_log.SHORT_TTL", LIVES)
    monkeypatch.setattr(MixedLog, "_foreign", lambda _: None)  # undecided for as long as a transaction may live
    log, random = MixedLog(machine.clock, seed, 30), Random(seed)
    acknowledged: list[bytes] = []

    def consume(consumer: Consumer, given: list[Message]) -> None:
        while messages := consumer.receive(random.randint(1, 20), timeout=0):
            given += messages
            if random.random() < 0.7:
                count = random.randint(1, len(given))
                consumer.ack(given[count - 1] if random.random() < 0.5 else given[count - 1].message_id)
                acknowledged.extend(payloads(given[:count]))
                del given[:count]

    for _ in range(4):
        with machine.run() as service:
            log.attach(service)
            with Consumer("t", "s", url=service.url, page_size=random.choice((1, 7, 100))) as consumer:
                given: list[Message] = []  # and not acknowledged yet
                for _ in range(5):
                    log._steps(8)
                    consume(consumer, given)
            if random.random() < 0.5:
                machine = machine.crash()
    with machine.run() as service:
        log.attach(service)
        log.finish()
        whole = log.topic.stats()["upcomingOffset"]
        with Consumer("t", "s", url=service.url) as consumer:
            until(lambda: consumer.status().settled_offset >= whole)
            acknowledged += rest(consumer)
    counting = [each for each in log.rows if each.payload is not None and not each.rolled_back]
    assert acknowledged == [(each.payload or "").encode() for each in counting if each.pointer not in log._hidden]
    assert len(acknowledged) > 100
