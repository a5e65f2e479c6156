"""A consumer delivers in order from its cursor on; what it acknowledges is sent at once, or soon, never forgotten silently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep
from typing import Any

import pytest

from oncelog import Client, Consumer, MessageId, Producer, Reader
from oncelog.errors import (
    ConnectionFailed,
    ConsumerClosed,
    ConsumerFenced,
    InvalidMessageId,
    InvalidRequest,
    OncelogError,
    StaleMessageId,
)
from oncelog.wire.models import Acknowledge, Subscription
from tests.patience import until
from tests.sdk.conftest import OVER_BOTH
from tests.world.awaits import of_threads

pytestmark = [pytest.mark.usefixtures("twin"), OVER_BOTH]

LONG = 3_600.0
"""Seconds: what waits so long is not sent by the thread in any test."""


class Watched(Client):
    """Counts acknowledgements, and fails some."""

    sent = 0
    failing: OncelogError | None = None

    def acknowledge(
        self, topic: str, name: str, asked: Acknowledge, namespace: str = "default", *, within: float | None = None
    ) -> int:
        self.sent += 1
        if self.failing is not None:
            raise self.failing
        return super().acknowledge(topic, name, asked, namespace, within=within)


@pytest.fixture
def watched(client: Client) -> Iterator[Watched]:
    with Watched(client.url) as watched:
        yield watched


def offsets(messages: Any) -> list[int]:
    return [message.offset for message in messages]


# --- reading


def test_it_delivers_from_its_cursor_on_and_says_where_it_stands(client: Client, filled: str) -> None:
    with Consumer(filled, "s", client=client, timeout=0, page_size=3, codec="str") as consumer:
        assert (consumer.topic, consumer.namespace, consumer.subscription, consumer.epoch) == (filled, "default", "s", 1)
        assert consumer.has_message_available()
        assert consumer.position is None
        messages = consumer.read(2, timeout=0)
        assert ([message.value for message in messages], consumer.position) == (["0", "1"], messages[-1].message_id)
        assert offsets(consumer) == list(range(2, 10))
        assert not consumer.has_message_available()
        assert list(consumer) == []
        assert consumer.acknowledged == 0, "delivering is not acknowledging"
        assert (consumer.lag, consumer.status().lost) == (10, 0)


@pytest.mark.parametrize("wrong", [{"page_size": 0}, {"ack_interval": 0}, {"ack_interval": 1e9}, {"start": "yesterday"}], ids=str)
def test_what_cannot_be_is_refused_when_it_is_made(client: Client, filled: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not"):
        Consumer(filled, "s", client=client, **wrong)
    with pytest.raises(InvalidRequest):
        Consumer(filled, "a b", client=client)


# --- acknowledging


def test_many_acks_that_nobody_waits_for_are_one_request(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=LONG) as consumer:
        messages = consumer.read(timeout=0)
        for message in messages[:7]:
            consumer.ack_async(message)
        consumer.ack_async(messages[2])  # which is acknowledged already
        assert (watched.sent, consumer.acknowledged) == (0, 0)
        watched.failing = ConnectionFailed()
        for _ in range(2):  # it waits on
            with pytest.raises(ConnectionFailed):
                consumer.flush()
        watched.failing, watched.sent = None, 0
        consumer.flush()
        consumer.flush()
        assert (watched.sent, consumer.acknowledged) == (1, 7)
        consumer.ack_async(messages[7])
        consumer.ack(messages[8])  # which covers what waits before it
        consumer.flush()
        assert watched.sent == 2
        consumer.ack_async(messages[9])
        consumer.ack(messages[8])  # which does not cover what waits behind it
    assert (watched.sent, watched.subscription(filled, "s").cursor) == (4, 10)


def test_acknowledgements_are_sent_after_the_interval_and_wait_while_the_service_does_not_answer(
    watched: Watched, filled: str
) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=0.01) as consumer:
        messages = consumer.read(timeout=0)
        watched.failing = ConnectionFailed()
        consumer.ack_async(messages[1])
        until(lambda: watched.sent >= 3)
        consumer.ack_async(messages[2])
        with pytest.raises(ConnectionFailed):
            consumer.flush()
        watched.failing = None
        until(lambda: consumer.acknowledged == watched.subscription(filled, "s").cursor == 3)


@pytest.mark.parametrize(("acknowledged", "left"), [(2, range(2, 10)), (6, range(6, 10))])
def test_an_acknowledgement_that_is_refused_in_the_background_is_told_once(
    watched: Watched, filled: str, acknowledged: int, left: range
) -> None:
    """It goes on where it stood, behind what was acknowledged before it was delivered."""
    with Consumer(filled, "s", client=watched, ack_interval=0.01) as consumer:
        first = consumer.read(2, timeout=0)[0].message_id
        consumer.ack(MessageId(first.publish_timestamp, first.seq_id + acknowledged - 1))
        assert watched.subscription(filled, "s").cursor == consumer.acknowledged == acknowledged
        consumer.ack_async(MessageId(2**50, 0))
        until(lambda: consumer._failure is not None)
        with pytest.raises(InvalidMessageId):
            consumer.read(timeout=0)
        assert offsets(consumer.read(timeout=0)) == list(left)


def test_a_flush_hears_of_the_refusal_that_the_thread_meets_meanwhile_and_the_rest_is_acknowledged(
    watched: Watched, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, refuse = Event(), Event()

    def acknowledge(*_: object, **__: object) -> int:
        asked.set()
        assert refuse.wait(30)
        raise InvalidMessageId

    with Consumer(filled, "s", client=watched, ack_interval=0.01) as consumer, ThreadPoolExecutor() as pool:
        messages = consumer.read(timeout=0)
        with monkeypatch.context() as patched:
            patched.setattr(watched, "acknowledge", acknowledge)
            consumer.ack_async(messages[1])
            assert asked.wait(30)
        consumer.ack_async(messages[2])
        flushed = pool.submit(consumer.flush)
        sleep(0.05)  # it waits for the answer by now
        refuse.set()
        with pytest.raises(InvalidMessageId):
            flushed.result(30)
        consumer.flush()
        assert consumer.acknowledged == 3


def test_what_another_reader_was_given_is_acknowledged_and_not_delivered(client: Client, filled: str) -> None:
    with Consumer(filled, "one", client=client) as one:
        messages = one.read(timeout=0)
    with Consumer(filled, "s", client=client, timeout=0, page_size=3, ack_interval=0.01) as consumer:
        assert offsets(consumer.read(2, timeout=0)) == [0, 1]
        consumer.ack(messages[4])
        assert consumer.acknowledged == 5
        assert offsets(consumer.read(1, timeout=0)) == [5]
        consumer.ack_async(messages[6].message_id)
        until(lambda: consumer.acknowledged == 7)
        assert offsets(consumer) == [7, 8, 9]


# --- fenced


def test_a_message_of_a_topic_that_was_made_anew_moves_no_cursor(client: Client, filled: str) -> None:
    with Reader(filled, client=client, timeout=0) as reader:
        former = reader.read()[0]
        client.delete_topic(filled)
        client.create_topic(filled)
        with Producer(filled, client=client) as producer:
            producer.send(b"anew")
        reader.seek("earliest")
        assert reader.has_message_available()
        [anew] = list(reader)
    assert [(each.topic, each.generation) for each in (former, anew)] == [(filled, 1), (filled, 2)]
    with Consumer(filled, "s", client=client, timeout=0) as consumer:
        with pytest.raises(StaleMessageId, match=r"generation 2 .* generation 1") as refused:
            consumer.ack(former)
        assert refused.value.generation == 2
        assert consumer.read() == [anew]
        consumer.ack(anew)
        assert consumer.acknowledged == 1


@pytest.mark.parametrize("in_the_background", [False, True])
def test_an_id_from_before_the_topic_is_refused_and_the_consumer_goes_on(
    client: Client, filled: str, in_the_background: bool
) -> None:
    """It used to end for good, by a position that somebody else had kept."""
    with Reader(filled, client=client) as reader:
        old = reader.read(1)[0].message_id
    client.delete_topic(filled)
    client.create_topic(filled)
    with Producer[bytes](filled, client=client) as producer:
        producer.send_batch([b"0", b"1", b"2"])
    with Consumer(filled, "s", client=client, timeout=0, ack_interval=0.01) as consumer:
        first, second = consumer.read(2, timeout=0)
        if in_the_background:
            consumer.ack_async(old)
            time.sleep(1)
        with pytest.raises(StaleMessageId):
            consumer.flush() if in_the_background else consumer.ack(old)
        consumer.ack(first)
        consumer.ack_async(second)
        consumer.flush()
        assert consumer.acknowledged == second.offset + 1
        assert offsets(consumer)[:1] == [second.offset + 1]


@pytest.mark.parametrize("again", [False, True], ids=["alone", "opened again"])
@pytest.mark.parametrize("call", ["read", "ack", "seek"])
def test_a_consumer_of_a_topic_that_was_made_anew_is_fenced_and_told_the_generation(
    client: Client, filled: str, call: str, again: bool
) -> None:
    with Consumer(filled, "s", client=client, timeout=0) as consumer:
        [message] = consumer.read(1)
        list(consumer)
        client.delete_topic(filled)
        client.create_topic(filled)
        if again:
            Consumer(filled, "s", client=client).close()
        asked = {"read": consumer.read, "ack": lambda: consumer.ack(message), "seek": lambda: consumer.seek("earliest")}
        for _ in range(2):
            with pytest.raises(ConsumerFenced) as fenced:
                asked[call]()
            assert (fenced.value.generation, fenced.value.subscription) == (2, "s")


def test_a_fenced_consumer_hears_of_it_in_the_background(client: Client, filled: str) -> None:
    old = Consumer(filled, "s", client=client, ack_interval=0.01)
    messages = old.read(2, timeout=0)
    with Consumer(filled, "s", client=client):
        old.ack_async(messages[0])
        until(lambda: old._failure is not None)
        for _ in range(2):  # although eight more were polled ahead
            with pytest.raises(ConsumerFenced):
                old.read(timeout=0)
            with pytest.raises(ConsumerFenced):
                next(iter(old))
            with pytest.raises(ConsumerFenced):
                old.ack_async(messages[0])
    old.close()  # it was told
    assert client.subscription(filled, "s").cursor == 0


def test_what_is_acknowledged_while_it_hears_that_it_is_fenced_is_given_up_too(
    watched: Watched, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=LONG) as consumer:
        messages = consumer.read(timeout=0)

        def fenced(*_: object, **__: object) -> int:
            consumer.ack_async(messages[5])
            raise ConsumerFenced

        monkeypatch.setattr(watched, "acknowledge", fenced)
        consumer.ack_async(messages[1])
        with pytest.raises(ConsumerFenced):
            consumer.flush()


# --- seek and close


def test_a_seek_drops_what_was_polled_and_what_was_not_sent(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched, timeout=0, ack_interval=LONG) as consumer:
        iterator = iter(consumer)
        messages = [next(iterator) for _ in range(5)]
        consumer.ack_async(messages[4])
        consumer.seek(8)
        assert offsets(iterator) == [8, 9]
        consumer.flush()
        assert (watched.sent, watched.subscription(filled, "s").cursor, consumer.epoch) == (0, 8, 2)
        consumer.seek(2)
        assert offsets(consumer.read(1, timeout=0)) == [2]
        consumer.ack(messages[4])  # from before the seek, and meant
        assert consumer.acknowledged == 5


@of_threads
def test_an_acknowledgement_by_a_handler_in_the_middle_of_a_seek_does_not_end_the_consumer(
    watched: Watched, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Consumer(filled, "s", client=watched) as consumer:
        message, seek = consumer.read(1, timeout=0)[0], watched.seek_subscription

        def interrupted(*args: Any, **options: Any) -> Subscription:
            sought = seek(*args, **options)
            with pytest.raises(ConsumerFenced):
                consumer.ack(message)
            return sought

        monkeypatch.setattr(watched, "seek_subscription", interrupted)
        consumer.seek(8)
        assert offsets(consumer.read(timeout=0)) == [8, 9]


def test_a_closed_consumer_does_nothing(client: Client, filled: str) -> None:
    consumer = Consumer(filled, "s", client=client)
    message = consumer.read(1, timeout=0)[0]
    consumer.close()
    for call in (
        lambda: consumer.read(timeout=0),
        lambda: next(iter(consumer)),
        lambda: consumer.ack(message),
        lambda: consumer.ack_async(message),
        lambda: consumer.seek(0),
        consumer.flush,
        consumer.has_message_available,
    ):
        with pytest.raises(ConsumerClosed):
            call()


@pytest.mark.parametrize("cause", [None, ZeroDivisionError])
@pytest.mark.parametrize(("failing", "raised"), [(ConnectionFailed(), ConnectionFailed), (None, InvalidMessageId)])
def test_closing_tells_what_was_not_acknowledged_and_hides_no_error_of_the_block(
    watched: Watched, filled: str, failing: OncelogError | None, raised: type[Exception], cause: type[Exception] | None
) -> None:
    consumer = Consumer(filled, "s", client=watched, ack_interval=0.01 if failing is None else LONG)
    with pytest.raises(cause or raised), consumer:  # noqa: PT012
        first = consumer.read(timeout=0)[0]
        watched.failing = failing
        consumer.ack_async(first if failing is not None else MessageId(2**50, 0))
        until(lambda: failing is not None or consumer._failure is not None)
        if cause is not None:
            raise cause
    consumer.close()
