"""A consumer delivers in order from its cursor on; what it acknowledges is sent at once, or soon, never forgotten silently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oncelog import Client, Consumer, MessageId, Producer
from oncelog.errors import (
    ConnectionFailed,
    ConsumerClosed,
    ConsumerFenced,
    InvalidMessageId,
    InvalidRequest,
    OncelogError,
    SubscriptionNotFound,
)
from oncelog.wire.models import Acknowledge
from tests.patience import until

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


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    """A topic of ten messages."""
    with Producer[bytes](topic, client=client) as producer:
        producer.send_batch([b"%d" % number for number in range(10)])
    return topic


def payloads(messages: Any) -> list[bytes]:
    return [message.payload for message in messages]


# --- receiving


def test_it_iterates_until_its_timeout(client: Client, filled: str) -> None:
    with Consumer(filled, "s", client=client, timeout=0, page_size=3) as consumer:
        assert payloads(consumer) == [b"%d" % number for number in range(10)]
        assert list(consumer) == []
        assert consumer.acknowledged == 0  # delivering is not acknowledging


def test_its_position_is_the_last_message_delivered(client: Client, filled: str) -> None:
    with Consumer(filled, "s", client=client) as consumer:
        assert consumer.position is None
        messages = consumer.receive(3, timeout=0)
        assert consumer.position == messages[-1].message_id
        assert next(iter(consumer)).offset == 3


def test_what_is_available_is_known_without_delivering_it(client: Client, filled: str) -> None:
    with Consumer(filled, "s", client=client) as consumer:
        assert consumer.has_message_available()
        assert consumer.position is None
        assert len(consumer.receive(timeout=0)) == 10
        assert not consumer.has_message_available()


def test_values_are_decoded_by_its_codec(client: Client, filled: str) -> None:
    with Consumer(filled, "s", client=client, codec="str") as consumer:
        assert [message.value for message in consumer.receive(2, timeout=0)] == ["0", "1"]


def test_it_says_what_it_is(client: Client, filled: str) -> None:
    with Consumer(filled, "s", client=client) as consumer:
        assert (consumer.topic, consumer.namespace, consumer.subscription, consumer.epoch) == (filled, "default", "s", 1)
        assert (consumer.lag, consumer.status().lost) == (10, 0)


@pytest.mark.parametrize(
    "wrong", [{"page_size": 0}, {"ack_interval": 0}, {"start": -1}, {"start": "yesterday"}, {"start": True}, {"start": 1.5}]
)
def test_what_cannot_be_is_refused_when_it_is_made(client: Client, filled: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not"):
        Consumer(filled, "s", client=client, **wrong)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
def test_a_name_that_is_none_is_refused(client: Client, filled: str, name: str) -> None:
    with pytest.raises(InvalidRequest):
        Consumer(filled, name, client=client)


# --- acknowledging


def test_an_ack_is_sent_at_once(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched) as consumer:
        for message in consumer.receive(4, timeout=0):
            consumer.ack(message)
            assert watched.subscription(filled, "s").cursor == consumer.acknowledged == message.offset + 1
        assert watched.sent == 4


def test_many_acks_that_nobody_waits_for_are_one_request(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=LONG) as consumer:
        messages = consumer.receive(timeout=0)
        for message in messages[:7]:
            consumer.ack_async(message)
        consumer.ack_async(messages[2])  # which is acknowledged already
        assert (watched.sent, consumer.acknowledged) == (0, 0)
        consumer.flush()
        consumer.flush()
        assert (watched.sent, consumer.acknowledged) == (1, 7)
        consumer.ack_async(messages[8])
    assert (watched.sent, watched.subscription(filled, "s").cursor) == (2, 9)


def test_what_nobody_waits_for_is_sent_after_the_interval(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=0.01) as consumer:
        for message in consumer.receive(3, timeout=0):
            consumer.ack_async(message)
        until(lambda: watched.subscription(filled, "s").cursor == 3)
        until(lambda: consumer.acknowledged == 3)


def test_an_ack_covers_what_waits_before_it(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=LONG) as consumer:
        messages = consumer.receive(timeout=0)
        consumer.ack_async(messages[3])
        consumer.ack(messages[5])
        consumer.flush()
        assert watched.sent == 1


def test_acknowledgements_wait_while_the_service_does_not_answer(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=0.01) as consumer:
        messages = consumer.receive(timeout=0)
        watched.failing = ConnectionFailed()
        consumer.ack_async(messages[1])
        until(lambda: watched.sent >= 3)
        consumer.ack_async(messages[2])
        with pytest.raises(ConnectionFailed):
            consumer.flush()
        watched.failing = None
        until(lambda: consumer.acknowledged == 3)


def test_what_could_not_be_acknowledged_is_told_when_it_is_closed(watched: Watched, filled: str) -> None:
    consumer = Consumer(filled, "s", client=watched, ack_interval=LONG)
    consumer.ack_async(consumer.receive(timeout=0)[1])
    watched.failing = ConnectionFailed()
    with pytest.raises(ConnectionFailed):
        consumer.close()
    consumer.close()


def test_an_acknowledgement_that_is_refused_in_the_background_is_told_once(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=0.01) as consumer:
        messages = consumer.receive(2, timeout=0)
        consumer.ack_async(MessageId(2**50, 0))
        until(lambda: consumer._failure is not None)
        with pytest.raises(InvalidMessageId):
            consumer.receive(timeout=0)
        assert len(consumer.receive(timeout=0)) == 8  # it goes on where it stood
        consumer.ack(messages[-1])
        assert consumer.acknowledged == 2


def test_an_untold_refusal_is_told_when_it_is_closed(watched: Watched, filled: str) -> None:
    consumer = Consumer(filled, "s", client=watched, ack_interval=0.01)
    consumer.ack_async(MessageId(2**50, 0))
    until(lambda: consumer._failure is not None)
    with pytest.raises(InvalidMessageId):
        consumer.close()


def test_what_is_acknowledged_is_a_message_or_its_id(client: Client, filled: str) -> None:
    with Consumer(filled, "s", client=client) as consumer:
        messages = consumer.receive(timeout=0)
        consumer.ack(messages[1].message_id)
        assert consumer.acknowledged == 2
        for wrong in (3, "3", None, b"x" * 20):
            for acknowledge in (consumer.ack, consumer.ack_async):
                with pytest.raises(TypeError):
                    acknowledge(wrong)  # type: ignore[arg-type]


def test_a_message_of_another_reader_is_acknowledged_by_its_id(client: Client, filled: str) -> None:
    with Consumer(filled, "one", client=client) as one, Consumer(filled, "other", client=client) as other:
        messages = one.receive(timeout=0)
        other.ack(messages[3])
        assert other.acknowledged == 4
        assert payloads(other.receive(2, timeout=0)) == [b"4", b"5"]


@pytest.mark.parametrize("page_size", [3, 100])
def test_what_is_acknowledged_before_it_is_delivered_is_not_delivered(client: Client, filled: str, page_size: int) -> None:
    with Consumer(filled, "one", client=client) as one:
        messages = one.receive(timeout=0)
    with Consumer(filled, "s", client=client, timeout=0, page_size=page_size, ack_interval=0.01) as consumer:
        assert payloads(consumer.receive(2, timeout=0)) == [b"0", b"1"]
        consumer.ack(messages[4])
        assert payloads(consumer.receive(1, timeout=0)) == [b"5"]
        consumer.ack_async(messages[6].message_id)
        until(lambda: consumer.acknowledged == 7)
        assert payloads(consumer) == [b"7", b"8", b"9"]


# --- fenced


def test_a_fenced_consumer_hears_of_it_in_the_background(client: Client, filled: str) -> None:
    old = Consumer(filled, "s", client=client, ack_interval=0.01)
    messages = old.receive(2, timeout=0)
    with Consumer(filled, "s", client=client):
        old.ack_async(messages[0])
        until(lambda: old._failure is not None)
        for _ in range(2):  # although eight more were fetched ahead
            with pytest.raises(ConsumerFenced):
                old.receive(timeout=0)
            with pytest.raises(ConsumerFenced):
                next(iter(old))
            with pytest.raises(ConsumerFenced):
                old.ack_async(messages[0])
    old.close()  # it was told
    assert client.subscription(filled, "s").cursor == 0


def test_a_consumer_of_a_deleted_subscription_is_refused_for_ever(client: Client, filled: str) -> None:
    consumer = Consumer(filled, "s", client=client)
    messages = consumer.receive(timeout=0)
    client.delete_subscription(filled, "s")
    with pytest.raises(ConsumerFenced):
        consumer.ack(messages[0])
    with pytest.raises(SubscriptionNotFound):
        _ = consumer.lag


# --- seek and close


def test_a_seek_drops_what_was_fetched_and_what_was_not_sent(watched: Watched, filled: str) -> None:
    with Consumer(filled, "s", client=watched, ack_interval=LONG) as consumer:
        messages = consumer.receive(5, timeout=0)
        consumer.ack_async(messages[4])
        consumer.seek(2)
        assert payloads(consumer.receive(1, timeout=0)) == [b"2"]
        consumer.flush()
        assert (watched.sent, watched.subscription(filled, "s").cursor, consumer.epoch) == (0, 2, 2)
        consumer.ack(messages[4])  # from before the seek, and meant
        assert consumer.acknowledged == 5


def test_iterating_goes_on_where_it_was_put(client: Client, filled: str) -> None:
    with Consumer(filled, "s", client=client, timeout=0) as consumer:
        found = []
        for message in consumer:
            found.append(message.offset)
            if len(found) == 4:
                consumer.seek(8)
        assert found == [0, 1, 2, 3, 8, 9]


def test_a_closed_consumer_does_nothing(client: Client, filled: str) -> None:
    consumer = Consumer(filled, "s", client=client)
    message = consumer.receive(1, timeout=0)[0]
    consumer.close()
    for call in (
        lambda: consumer.receive(timeout=0),
        lambda: next(iter(consumer)),
        lambda: consumer.ack(message),
        lambda: consumer.ack_async(message),
        lambda: consumer.seek(0),
        lambda: consumer.flush(),
    ):
        with pytest.raises(ConsumerClosed):
            call()


def test_an_error_in_its_block_is_not_hidden_by_closing_it(watched: Watched, filled: str) -> None:
    def use() -> None:
        with Consumer(filled, "s", client=watched, ack_interval=LONG) as consumer:
            consumer.ack_async(consumer.receive(timeout=0)[0])
            watched.failing = ConnectionFailed()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()


def test_subscriptions_are_listed_page_by_page(client: Client, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.api.subscriptions._PAGE", 2)
    for name in ("c", "a", "e", "b", "d"):
        client.open_subscription(filled, name)
    assert [each.name for each in client.subscriptions(filled)] == ["a", "b", "c", "d", "e"]
