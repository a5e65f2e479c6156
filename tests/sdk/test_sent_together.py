"""What transactions and atomic commits promise alike: messages in order, all or none, within a bound of memory, never twice;
and the messages of a transaction where answers are lost, wrong or never come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from oncelog import AtomicBatch, Client, Message, Producer, Reader, TransactionContext
from oncelog.errors import (
    InvalidRequest,
    MixedSequenceIds,
    OncelogError,
    ProducerClosed,
    ProducerInTransaction,
    SequenceIdNotRising,
    TopicNotFound,
    TransactionClosed,
)
from oncelog.wire.transaction import Transaction
from tests.world.awaits import of_threads

pytestmark = pytest.mark.usefixtures("twin")


Begun = TransactionContext | AtomicBatch
Begin = Callable[..., Any]


@pytest.fixture(params=["transaction", "atomic"])
def begin(request: pytest.FixtureRequest) -> Begin:
    return lambda client, *args, **options: getattr(client, request.param)(*args, **options)


@pytest.fixture
def other(client: Client, topic: str) -> str:
    client.create_topic(topic + "-other")
    return topic + "-other"


@contextmanager
def snapshot(client: Client) -> Iterator[Transaction]:
    tx = client.start_transaction()
    yield tx
    client.abort_transaction(tx.transaction_id)


def delivered(client: Client, topic: str, namespace: str = "default") -> list[Message]:
    """What a transaction that begins now is given."""
    with (
        snapshot(client) as tx,
        Reader(topic, namespace=namespace, client=client, transaction=tx, timeout=0) as reader,
    ):
        return list(reader)


def visible(client: Client, topic: str) -> list[bytes]:
    return [message.payload for message in delivered(client, topic)]


def state(client: Client, begun: Begun) -> str:
    """As the service says."""
    is_atomic = isinstance(begun, AtomicBatch)
    return client.atomic_outcome(begun.id).state if is_atomic else client.transaction_status(begun.transaction_id).state


@pytest.mark.parametrize("buffer_bytes", [0, 1 << 20])
def test_everything_that_a_message_is_given_travels_with_and_without_producers(
    client: Client, topic: str, begin: Begin, buffer_bytes: int
) -> None:
    client.create_topic(topic, namespace="elsewhere")
    where = {"client": client, "namespace": "elsewhere"}
    with Producer[Any](topic, codec="json", **where) as one, Producer[bytes](topic, **where) as two:  # type: ignore[call-overload]
        with begin(client, buffer_bytes=buffer_bytes) as begun:
            begun.send(topic, {"a": 1}, key="k", properties={"p": "v"}, ttl=100, namespace="elsewhere", producer=one)
            for by in (None, two, None):
                begun.send(topic, b"5", namespace="elsewhere", producer=by)
            begun.send(topic, 5, namespace="elsewhere", producer=one)
        assert (one.last_sequence_id, two.last_sequence_id) == (1, 0)
    first, *others = sorted(delivered(client, topic, "elsewhere"), key=lambda message: message.payload, reverse=True)
    assert (first.payload, first.key, first.properties, first.ttl) == (b'{"a":1}', b"k", {"p": "v"}, 100)
    assert [(each.payload, each.key) for each in others] == [(b"5", None)] * 4


def test_what_cannot_be_a_message_is_refused_and_harms_no_other(client: Client, topic: str, begin: Begin) -> None:
    refused: list[tuple[type[Exception], dict[str, Any]]] = [
        (TypeError, {"value": "text"}),
        (TypeError, {"key": 5}),
        (TypeError, {"properties": {"a": 1}}),
        (InvalidRequest, {"ttl": 0}),
        (ValueError, {"sequence_id": 5}),  # without a producer
    ]
    with begin(client) as begun:
        for error, wrong in refused:
            with pytest.raises(error):
                begun.send(topic, **{"value": b"", **wrong})
        begun.send(topic, b"good")
    assert visible(client, topic) == [b"good"]
    with pytest.raises(ValueError, match="buffer_bytes"):
        begin(client, buffer_bytes=-1)


@of_threads
def test_a_message_that_failed_spoils_everything(client: Client, topic: str, begin: Begin) -> None:
    with pytest.raises(TransactionClosed, match="failed"), begin(client, buffer_bytes=0) as begun:  # noqa: PT012
        begun.send(topic, b"never")
        with pytest.raises(TopicNotFound):
            begun.send("no-such-topic", b"x")
        with pytest.raises(TransactionClosed, match="failed") as caught:
            begun.send(topic, b"never")
        assert isinstance(caught.value.__cause__, TopicNotFound)
    assert state(client, begun) == "aborted"
    assert visible(client, topic) == []


# --- named producers


@pytest.mark.real
@pytest.mark.parametrize(("buffer_bytes", "given"), [(0, 5), (1 << 20, None)])
@of_threads
def test_a_producer_goes_on_behind_what_is_committed_and_uses_the_numbers_again_of_what_is_not(
    client: Client, topic: str, producer: Producer[bytes], begin: Begin, buffer_bytes: int, given: int | None
) -> None:
    with pytest.raises(ZeroDivisionError), begin(client, buffer_bytes=buffer_bytes) as begun:  # noqa: PT012
        begun.send(topic, b"gone", producer=producer, sequence_id=given)
        if isinstance(begun, TransactionContext):
            begun.checkpoint()
        raise ZeroDivisionError
    assert producer.last_sequence_id is None
    pending = None if given else producer.send_async(b"before")
    with begin(client, buffer_bytes=buffer_bytes) as begun:
        begun.send(topic, b"there", producer=producer, sequence_id=given)
        assert pending is None or pending.done(), "what it was given before is sent first"
        name = begun.id if isinstance(begun, AtomicBatch) else str(begun.write_pointer)
        with pytest.raises(ProducerInTransaction, match=name):
            producer.send(b"x")
        with begin(client) as second, pytest.raises(ProducerInTransaction):
            second.send(topic, b"x", producer=producer)
    first = given or 1
    assert (producer.last_sequence_id, producer.send(b"on", sequence_id=given and given + 1).sequence_id) == (first, first + 1)
    assert visible(client, topic) == [b"before"] * (pending is not None) + [b"there", b"on"]
    producer.close()
    with begin(client) as begun, pytest.raises(ProducerClosed):
        begun.send(topic, b"x", producer=producer)


def test_numbers_rise_and_are_given_by_one_side_only_and_a_producer_serves_its_own_topic(
    client: Client, topic: str, other: str, producer: Producer[bytes], begin: Begin
) -> None:
    newer = Producer[bytes](topic, name="p", client=client)
    refused: list[tuple[type[Exception], str, Producer[bytes], int | None]] = [
        (SequenceIdNotRising, topic, newer, 4),
        (SequenceIdNotRising, topic, newer, 5),
        (MixedSequenceIds, topic, newer, None),
        (ValueError, other, newer, 6),
        (ValueError, topic, producer, 6),  # which is fenced
    ]
    with begin(client) as begun:
        begun.send(topic, b"5", producer=newer, sequence_id=5)
        for error, name, by, number in refused:
            with pytest.raises(error):
                begun.send(name, b"x", producer=by, sequence_id=number)
        begun.send(topic, b"7", producer=newer, sequence_id=7)
    assert [message.sequence_id for message in delivered(client, topic)] == [5, 7]


@pytest.mark.real
@pytest.mark.parametrize("buffer_bytes", [0, 1 << 20])
def test_what_a_topic_has_is_left_out_and_without_a_commit_the_rest_alone_is_given_back(
    client: Client, topic: str, producer: Producer[bytes], begin: Begin, buffer_bytes: int
) -> None:
    producer.send_batch([b"0", b"1"], sequence_ids=[0, 1])
    again = Producer[bytes](topic, name="p", client=client)
    for numbers, commits in ((range(3), False), (range(3), True), (range(2, 3), True)):
        with suppress(ZeroDivisionError), begin(client, buffer_bytes=buffer_bytes) as begun:
            for number in numbers:
                begun.send(topic, b"%d" % number, producer=again, sequence_id=number)
            if not commits:
                raise ZeroDivisionError
    assert again.last_sequence_id == 2
    assert visible(client, topic) == [b"0", b"1", b"2"]


@pytest.mark.real
@of_threads
def test_threads_may_send_through_one(client: Client, topic: str, begin: Begin) -> None:
    with begin(client, buffer_bytes=3_000) as begun, ThreadPoolExecutor(4) as threads:
        send = lambda thread: [begun.send(topic, b"%d %02d" % (thread, number)) for number in range(20)]  # noqa: E731
        list(threads.map(send, range(4)))
    found = visible(client, topic)
    assert len(found) == 80
    for thread in range(4):
        assert [each for each in found if each.startswith(b"%d " % thread)] == [b"%d %02d" % (thread, n) for n in range(20)]


@pytest.mark.parametrize("named", [True, False])
@of_threads
def test_an_answer_that_does_not_name_all_messages_is_none(
    client: Client, topic: str, producer: Producer[bytes], monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    def halved(*given: Any) -> Any:
        response = Client.publish_transactional(client, *given)
        response.receipts = [run._replace(count=1) for run in response.receipts]
        return response

    monkeypatch.setattr(client, "publish_transactional", halved)
    with pytest.raises(OncelogError, match="does not name"), client.transaction() as context:  # noqa: PT012
        for payload in (b"a", b"b"):
            context.send(topic, payload, producer=producer if named else None)
    assert context.state == "aborted"
    assert visible(client, topic) == []
