"""The messages of a transaction: in order, all or none, within a bound of memory, and never twice whatever gets lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog import Client, Producer, Reader, TransactionContext
from oncelog.errors import (
    ConnectionFailed,
    InternalError,
    InvalidRequest,
    MixedSequenceIds,
    OncelogError,
    ProducerClosed,
    ProducerInTransaction,
    ProducerStopped,
    SequenceIdNotRising,
    StorageUnavailable,
    TopicNotFound,
    TransactionClosed,
    TransactionInDoubt,
)
from oncelog.transactions import message_publisher
from oncelog.transactions.message_publisher import MessagePublisher
from oncelog.wire.transaction import Transaction
from tests.sdk.fakes import Answer, Request, fake_server, forward, lossy_proxy
from tests.sdk.recording import RecordedClient
from tests.support import RunningService, until

KIB = b"x" * 1024


@pytest.fixture
def recorded(house: RunningService) -> Iterator[RecordedClient]:
    with RecordedClient(house.url, retry=0.5) as client:
        yield client


@pytest.fixture
def other(client: Client, topic: str) -> str:
    client.create_topic(topic + "-other")
    return topic + "-other"


@contextmanager
def snapshot(client: Client) -> Iterator[Transaction]:
    tx = client.start_transaction()
    yield tx
    client.abort_transaction(tx.transaction_id)


def started_and_aborted(client: Client) -> Transaction:
    with snapshot(client) as tx:
        return tx


def visible(client: Client, topic: str) -> list[bytes]:
    with snapshot(client) as tx, Reader(topic, client=client, transaction=tx, timeout=0) as reader:
        return [message.payload for message in reader]


def run(context: TransactionContext, block: Callable[[TransactionContext], object], cause: BaseException | None = None) -> None:
    with context as tx:
        block(tx)
        if cause is not None:
            raise cause


def sending(topic: str, *payloads: bytes, **options: Any) -> Callable[[TransactionContext], None]:
    def block(tx: TransactionContext) -> None:
        for payload in payloads:
            tx.send(topic, payload, **options)

    return block


# --- all or none --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_bytes", [0, 5_000, 1 << 20], ids=["stored at once", "spilling", "in memory"])
def test_messages_of_all_topics_appear_in_order_when_the_transaction_commits(
    client: Client, topic: str, other: str, buffer_bytes: int
) -> None:
    sent = {topic: [b"%d" % n for n in range(25)], other: [b"%d" % n for n in range(100, 107)]}
    context = client.transaction(buffer_bytes=buffer_bytes)
    with context as tx:
        for name, payloads in sent.items():
            for payload in payloads:
                tx.send(name, payload)
        assert visible(client, topic) == visible(client, other) == []
        assert list(Reader(topic, client=client, timeout=0)) == []  # not even in the log
    assert {name: visible(client, name) for name in sent} == sent


@pytest.mark.parametrize("buffer_bytes", [0, 1 << 20])
def test_messages_of_an_aborted_transaction_never_appear(client: Client, topic: str, other: str, buffer_bytes: int) -> None:
    def block(tx: TransactionContext) -> None:
        tx.send(topic, b"a")
        tx.send(other, b"b")

    with pytest.raises(ZeroDivisionError):
        run(client.transaction(buffer_bytes=buffer_bytes), block, ZeroDivisionError())
    assert visible(client, topic) == visible(client, other) == []


@pytest.mark.parametrize("buffer_bytes", [0, 1 << 20])
def test_key_properties_ttl_codec_and_namespace_travel(client: Client, topic: str, buffer_bytes: int) -> None:
    client.create_topic(topic, namespace="elsewhere")
    with client.transaction(buffer_bytes=buffer_bytes) as tx:
        tx.send(topic, {"a": 1}, key="k", properties={"p": "v"}, ttl=100, namespace="elsewhere", codec="json")
        tx.send(topic, b"plain", namespace="elsewhere")
    with snapshot(client) as seen, Reader(topic, namespace="elsewhere", client=client, transaction=seen, timeout=0) as reader:
        first, second = reader
    assert (first.payload, first.key, first.properties) == (b'{"a":1}', b"k", {"p": "v"})
    assert (second.payload, second.key) == (b"plain", None)


def test_what_cannot_be_a_message_is_refused_and_the_transaction_goes_on(client: Client, topic: str) -> None:
    with client.transaction() as tx:
        for wrong in ({"value": "text"}, {"value": b"", "key": 5}, {"value": b"", "properties": {"a": 1}}):
            with pytest.raises(TypeError):
                tx.send(topic, **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            tx.send(topic, b"", ttl=0)
        with pytest.raises(ValueError, match="producer"):
            tx.send(topic, b"", sequence_id=5)
        tx.send(topic, b"good")
    assert visible(client, topic) == [b"good"]


# --- the bound ----------------------------------------------------------------------------------------------------------


def test_no_more_than_the_buffer_is_held_in_memory(client: Client, topic: str, other: str) -> None:
    seed = 20261121
    chance = random.Random(seed)
    bound = 20_000
    sent: dict[str, list[bytes]] = {topic: [], other: []}
    with client.transaction(buffer_bytes=bound) as tx:
        for number in range(300):
            name = topic if chance.random() < 0.8 else other
            sent[name].append(b"%d:" % number + b"x" * chance.randrange(500))
            tx.send(name, sent[name][-1])
            assert tx.buffered_bytes <= bound, f"seed {seed}, message {number}"
    assert tx.buffered_bytes == 0
    assert {name: visible(client, name) for name in sent} == sent


def test_the_largest_topic_is_what_spills(recorded: RecordedClient, topic: str, other: str) -> None:
    with recorded.transaction(buffer_bytes=6 * len(KIB)) as tx:
        tx.send(other, b"small")
        for _ in range(8):
            tx.send(topic, KIB)
    assert {(call, name) for call, name, _ in recorded.requests} == {("store", topic), ("publish", topic), ("publish", other)}
    assert len(visible(recorded, topic)) == 8


def test_requests_stay_within_what_a_service_takes(
    recorded: RecordedClient, topic: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_publisher, "REQUEST_BYTES", 5 * len(KIB))
    monkeypatch.setattr(message_publisher, "REQUEST_MESSAGES", 10)
    with recorded.transaction() as tx:
        for _ in range(12):
            tx.send(topic, KIB)
        tx.send(topic, KIB * 9)  # too large for one with others
        for _ in range(25):
            tx.send(other, b"x")
    sizes = [len(request.payloads) for _, _, request in recorded.requests]
    assert sizes == [4, 4, 4, 1, 10, 10, 5]
    assert visible(recorded, topic) == [KIB] * 12 + [KIB * 9]


def test_a_buffer_cannot_be_negative(client: Client) -> None:
    with pytest.raises(ValueError, match="buffer_bytes"):
        client.transaction(buffer_bytes=-1)


def test_after_a_message_has_failed_the_transaction_cannot_commit(client: Client, topic: str) -> None:
    context = client.transaction(buffer_bytes=0)
    with context as tx:
        tx.send(topic, b"stored")
        with pytest.raises(TopicNotFound):
            tx.send("no-such-topic", b"x")
        with pytest.raises(TransactionClosed, match="failed"):
            tx.send(topic, b"y")
        with pytest.raises(TransactionClosed, match="failed"):
            tx.finish()
    assert context.state == "aborted"
    assert visible(client, topic) == []


def test_a_publisher_outside_of_a_transaction_takes_nothing(client: Client, topic: str) -> None:
    with pytest.raises(TransactionClosed):
        MessagePublisher(client).send(topic, b"x", namespace="default")


# --- losses -------------------------------------------------------------------------------------------------------------


@contextmanager
def losing(target: str, action: str, answer: bool, always: bool = False) -> Iterator[Client]:
    """A client whose first request to …/``action`` is lost, or each: before it arrives, or its answer."""
    lost: list[Request] = []

    def handle(request: Request) -> Answer | None:
        lose = request.path.endswith(f"/{action}") and (always or not lost)
        if lose:
            lost.append(request)
        if lose and not answer:
            return None
        answered = forward(target, request)
        return None if lose else answered

    with fake_server(handle) as fake, Client(fake.url, retry=1) as client:
        yield client
    assert lost


@pytest.mark.parametrize("buffer_bytes", [0, 5_000, 1 << 20], ids=["stored at once", "spilling", "in memory"])
def test_what_the_network_repeats_is_there_once_also_without_a_producer(
    house: RunningService, topic: str, buffer_bytes: int
) -> None:
    """A gateway sends each request again; a second time also when others have come between."""
    sent: list[Request] = []

    def handle(request: Request) -> Answer | None:
        if not request.path.endswith(("/publish", "/store")):
            return forward(house.url, request)
        sent.append(request)
        answer = forward(house.url, request)
        for again in (request, sent[0]):
            forward(house.url, again)
        return answer

    with fake_server(handle) as fake, Client(fake.url, retry=1) as client:
        with client.transaction(buffer_bytes=buffer_bytes) as tx:
            for _ in range(2):
                sending(topic, *[b"%d" % (n % 3) for n in range(40)])(tx)
                tx.checkpoint()
        assert visible(client, topic) == [b"%d" % (n % 3) for n in range(40)] * 2


@pytest.mark.parametrize("answer", [False, True], ids=["request lost", "answer lost"])
@pytest.mark.parametrize(("action", "buffer_bytes"), [("publish", 1 << 20), ("store", 0)])
@pytest.mark.parametrize("named", [True, False])
def test_what_was_lost_is_repeated_and_nothing_is_there_twice(
    house: RunningService, topic: str, named: bool, action: str, buffer_bytes: int, answer: bool
) -> None:
    with losing(house.url, action, answer) as client, Producer(topic, name="p", client=client) as producer:
        with client.transaction(buffer_bytes=buffer_bytes) as tx:
            for payload in (b"a", b"a", b"b"):
                tx.send(topic, payload, producer=producer if named else None)
        assert visible(client, topic) == [b"a", b"a", b"b"]
        if not named:
            return
        assert producer.last_sequence_id == 2
        assert producer.send(b"d").sequence_id == 3


@pytest.mark.parametrize("answer", [False, True], ids=["request lost", "answer lost"])
@pytest.mark.parametrize(("action", "buffer_bytes"), [("publish", 1 << 20), ("store", 0)])
def test_a_loss_without_end_aborts_and_the_service_undoes_what_came_through(
    house: RunningService, topic: str, action: str, buffer_bytes: int, answer: bool
) -> None:
    """Nobody has to know what came through: the service marks what the topic holds, and refuses what comes later."""
    with losing(house.url, action, answer, always=True) as client:
        context = client.transaction(buffer_bytes=buffer_bytes)
        with pytest.raises(ConnectionFailed) as caught:
            run(context, sending(topic, b"a", b"b"))
        assert not caught.value.definite
        pointer = context.transaction_id
        assert (context.state, client.transaction_status(pointer).state) == ("aborted", "aborted")
        assert visible(client, topic) == []
        assert pointer not in [each.write_pointer for each in client.transactions("invalid")]
        until(lambda: pointer not in started_and_aborted(client).invalids)
        assert visible(client, topic) == []


def test_a_publish_that_comes_after_the_abort_is_refused(house: RunningService, topic: str) -> None:
    """Its client was told that it is lost, and has aborted."""
    late: list[Request] = []

    def handle(request: Request) -> Answer | None:
        if request.path.endswith("/publish"):
            late.append(request)
            return None
        return forward(house.url, request)

    with fake_server(handle) as fake, Client(fake.url, retry=1) as client:
        with pytest.raises(ConnectionFailed):
            run(client.transaction(), sending(topic, b"a"))
        refused = forward(house.url, late[0])
        assert refused.status == 409
        assert b"transaction_not_in_progress" in refused.body
        assert visible(client, topic) == []


@pytest.mark.parametrize("named", [True, False])
def test_a_stored_group_is_published_once_though_the_answer_was_lost(house: RunningService, topic: str, named: bool) -> None:
    with losing(house.url, "publish", answer=True) as client, Producer(topic, name="p", client=client) as producer:
        options = {"producer": producer} if named else {}
        with client.transaction(buffer_bytes=0) as tx:
            sending(topic, b"a", b"b", **options)(tx)
        assert visible(client, topic) == [b"a", b"b"]


def test_a_stored_group_whose_answer_was_lost_can_be_rolled_back(house: RunningService, topic: str) -> None:
    with losing(house.url, "publish", answer=True) as client:
        context = client.transaction(buffer_bytes=0)

        def block(tx: TransactionContext) -> None:
            sending(topic, b"a", b"b")(tx)
            tx.checkpoint()

        with pytest.raises(ZeroDivisionError):
            run(context, block, ZeroDivisionError())
        assert context.state == "aborted"
        assert visible(client, topic) == []


def test_what_was_refused_for_now_is_tried_again(recorded: RecordedClient, topic: str) -> None:
    recorded.faults["publish"] = [StorageUnavailable("planted")]
    with recorded.transaction() as tx:
        tx.send(topic, b"x")
    assert recorded.calls.count("client.publish") == 2
    assert visible(recorded, topic) == [b"x"]


def test_what_was_published_is_undone_by_the_abort_alone(recorded: RecordedClient, topic: str) -> None:
    context = recorded.transaction()

    def block(tx: TransactionContext) -> None:
        for payload in (b"x", b"y"):
            tx.send(topic, payload)
            tx.checkpoint()

    with pytest.raises(ZeroDivisionError):
        run(context, block, ZeroDivisionError())
    assert recorded.calls[-2:] == ["client.publish", "client.abort"]
    assert context.state == "aborted"
    assert visible(recorded, topic) == []


def test_an_interruption_while_the_producers_get_their_numbers_back_aborts_all_the_same(
    recorded: RecordedClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("oncelog.transactions.held_producers.HeldProducers.roll_back", interrupted)
    context = recorded.transaction()
    with pytest.raises(KeyboardInterrupt):
        run(context, sending(topic, b"x"), ZeroDivisionError())
    assert (context.state, recorded.transaction_status(context.transaction_id).state) == ("aborted", "aborted")


@pytest.mark.parametrize("seed", [1, 2])
def test_through_every_loss_transactions_of_a_named_producer_appear_once_or_not_at_all(
    house: RunningService, topic: str, seed: int
) -> None:
    expected: list[bytes] = []
    with lossy_proxy(house.url, seed, share=0.15) as (url, losses), Client(url, retry=20) as client:
        with Producer(topic, name="p", client=client) as producer:
            number = 0
            while number < 12:
                payloads = [b"%d.%d" % (number, part) for part in range(3)]
                try:
                    run(
                        client.transaction(buffer_bytes=0 if number % 2 else 1 << 20),
                        sending(topic, *payloads, producer=producer),
                    )
                except ConnectionFailed:  # the start was lost; nothing was begun for us
                    continue
                expected += payloads
                number += 1
        assert losses.requests
        assert losses.answers
    with Client(house.url) as direct, Reader(topic, client=direct, transaction=direct.start_transaction(), timeout=0) as reader:
        assert [message.payload for message in reader] == expected, f"seed {seed}"


# --- named producers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def producer(client: Client, topic: str) -> Iterator[Producer[bytes]]:
    with Producer[bytes](topic, name="p", client=client) as producer:
        yield producer


def ids(client: Client, topic: str) -> list[int | None]:
    with snapshot(client) as tx, Reader(topic, client=client, transaction=tx, timeout=0) as reader:
        return [message.sequence_id for message in reader]


@pytest.mark.parametrize("buffer_bytes", [0, 1 << 20])
def test_a_producers_numbers_go_on_through_transactions(
    client: Client, topic: str, producer: Producer[bytes], buffer_bytes: int
) -> None:
    producer.send(b"0")
    with client.transaction(buffer_bytes=buffer_bytes) as tx:
        sending(topic, b"1", b"2", producer=producer)(tx)
    assert producer.last_sequence_id == 2
    assert producer.send(b"3").sequence_id == 3
    assert ids(client, topic) == [0, 1, 2, 3]


def test_the_last_message_id_moves_with_the_commit(client: Client, topic: str, producer: Producer[bytes]) -> None:
    with client.transaction() as tx:
        sending(topic, b"0", b"1", producer=producer)(tx)
        assert producer.last_message_id is None
    with snapshot(client) as seen, Reader(topic, client=client, transaction=seen, timeout=0) as reader:
        assert producer.last_message_id == [message.message_id for message in reader][-1]


@pytest.mark.parametrize("buffer_bytes", [0, 1 << 20])
@pytest.mark.parametrize("given", [None, 5])
def test_numbers_of_a_rolled_back_transaction_are_used_again(
    client: Client, topic: str, producer: Producer[bytes], buffer_bytes: int, given: int | None
) -> None:
    def block(tx: TransactionContext) -> None:
        tx.send(topic, b"gone", producer=producer, sequence_id=given)
        tx.checkpoint()

    with pytest.raises(ZeroDivisionError):
        run(client.transaction(buffer_bytes=buffer_bytes), block, ZeroDivisionError())
    assert producer.last_sequence_id is None
    with client.transaction(buffer_bytes=buffer_bytes) as tx:
        tx.send(topic, b"there", producer=producer, sequence_id=given)
    assert ids(client, topic) == [given or 0]
    assert visible(client, topic) == [b"there"]


def test_while_it_is_in_a_transaction_a_producer_sends_nothing_else(
    client: Client, topic: str, producer: Producer[bytes]
) -> None:
    with client.transaction() as tx:
        tx.send(topic, b"0", producer=producer)
        for use in (lambda: producer.send(b"x"), lambda: producer.send_async(b"x"), lambda: producer.send_batch([b"x"])):
            with pytest.raises(ProducerInTransaction) as caught:
                use()
            assert (caught.value.producer, caught.value.write_pointer) == ("p", tx.write_pointer)
        with client.transaction() as second, pytest.raises(ProducerInTransaction):
            second.send(topic, b"x", producer=producer)
    assert visible(client, topic) == [b"0"]


def test_what_a_producer_was_given_before_is_sent_first(client: Client, topic: str) -> None:
    with Producer[bytes](topic, name="slow", client=client, linger=60) as producer, client.transaction() as tx:
        pending = producer.send_async(b"before")
        tx.send(topic, b"within", producer=producer)
        assert pending.done()
    assert visible(client, topic) == [b"before", b"within"]


def test_a_duplicate_in_a_transaction_is_dropped_and_rolling_back_takes_only_what_is_new(client: Client, topic: str) -> None:
    with Producer[bytes](topic, name="dup", client=client) as first:
        first.send_batch([b"0", b"1"], sequence_ids=[0, 1])
    with Producer[bytes](topic, name="dup", client=client) as producer:

        def block(tx: TransactionContext) -> None:
            for number in range(3):
                tx.send(topic, b"%d" % number, producer=producer, sequence_id=number)

        with pytest.raises(ZeroDivisionError):
            run(client.transaction(), block, ZeroDivisionError())
        run(client.transaction(), block)
        run(client.transaction(), lambda tx: tx.send(topic, b"2", producer=producer, sequence_id=2))
        assert producer.last_sequence_id == 2
    assert visible(client, topic) == [b"0", b"1", b"2"]


def test_numbers_rise_inside_a_transaction_and_are_given_by_one_side_only(
    client: Client, topic: str, producer: Producer[bytes]
) -> None:
    with client.transaction() as tx:
        tx.send(topic, b"5", producer=producer, sequence_id=5)
        for low in (4, 5):
            with pytest.raises(SequenceIdNotRising):
                tx.send(topic, b"x", producer=producer, sequence_id=low)
        with pytest.raises(MixedSequenceIds):
            tx.send(topic, b"x", producer=producer)
        tx.send(topic, b"7", producer=producer, sequence_id=7)
    assert ids(client, topic) == [5, 7]


def test_a_producer_serves_its_own_topic_and_only_one_of_a_name(client: Client, topic: str, other: str) -> None:
    old, new = (Producer[bytes](topic, name="twin", client=client) for _ in range(2))
    with client.transaction() as tx:
        with pytest.raises(ValueError, match="publishes to"):
            tx.send(other, b"x", producer=new)
        tx.send(topic, b"x", producer=new)
        with pytest.raises(ValueError, match="fenced"):
            tx.send(topic, b"y", producer=old)
    assert visible(client, topic) == [b"x"]


def test_a_closed_producer_takes_part_in_nothing(client: Client, topic: str) -> None:
    producer = Producer[bytes](topic, name="closed", client=client)
    producer.close()
    with client.transaction() as tx, pytest.raises(ProducerClosed):
        tx.send(topic, b"x", producer=producer)


def test_a_producers_codec_is_used(client: Client, topic: str) -> None:
    with Producer[Any](topic, client=client, codec="json") as producer, client.transaction() as tx:
        tx.send(topic, {"a": 1}, producer=producer)
    assert visible(client, topic) == [b'{"a":1}']


def test_a_producer_whose_transaction_is_in_doubt_stops(recorded: RecordedClient, topic: str) -> None:
    with Producer[bytes](topic, name="doubt", client=recorded) as producer:
        for call in ("commit", "status"):
            recorded.faults[call] = [InternalError("planted")] * 20
        with pytest.raises(TransactionInDoubt):
            run(recorded.transaction(), sending(topic, b"x", producer=producer))
        with pytest.raises(ProducerStopped):
            producer.send(b"y")


def test_with_and_without_a_producer_everything_of_a_topic_appears(client: Client, topic: str) -> None:
    for buffer_bytes in (0, 1 << 20):
        with Producer[bytes](topic, client=client) as one, Producer[bytes](topic, client=client) as two:
            with client.transaction(buffer_bytes=buffer_bytes) as tx:
                for producer in (one, None, two, None, one):
                    tx.send(topic, b"x", producer=producer)
            assert (one.last_sequence_id, two.last_sequence_id) == (1, 0)
    assert len(visible(client, topic)) == 10


def test_an_answer_that_does_not_name_all_messages_is_none(recorded: RecordedClient, topic: str) -> None:
    def halved(*given: Any) -> Any:
        response = Client.publish_transactional(recorded, *given)
        response.receipts = [run._replace(count=1) for run in response.receipts]
        return response

    recorded.publish_transactional = halved  # type: ignore[method-assign]
    for options in ({}, {"producer": Producer(topic, client=recorded)}):
        context = recorded.transaction()
        with pytest.raises(OncelogError, match="does not name"):
            run(context, sending(topic, b"a", b"b", **options))
        assert context.state == "aborted"
    assert visible(recorded, topic) == []
