"""A producer over a real service: the shell around its core, with its threads, its futures, its clock and its end.

What is sent, tried again, divided, given back and completed is proved in test_producer_core.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from oncelog import Client, Producer, Reader, Receipt
from oncelog.api.api import surrounded
from oncelog.errors import (
    ConnectionFailed,
    InitialSequenceIdTaken,
    InvalidRequest,
    OffsetMismatch,
    OncelogError,
    ProducerClosed,
    ProducerStopped,
    RequestTooLarge,
    SequenceIdNotRising,
    SequenceReused,
    TopicNotFound,
)
from oncelog.process.clock import REAL
from oncelog.process.procedures import drive
from oncelog.wire.requests import PublishRequest, ReceiptRun
from tests.patience import PATIENCE, until
from tests.sdk.topics import stored
from tests.world.awaits import of_threads
from tests.world.service import RunningService

pytestmark = pytest.mark.usefixtures("twin")


class Watched(Client):
    """A client that notes its publishes, and does something before each and after it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.seen: list[PublishRequest] = []
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None

    def publish(self, topic: str, request: PublishRequest, namespace: str = "default") -> list[ReceiptRun]:
        self.seen.append(request)
        self.before()
        answer = super().publish(topic, request, namespace)
        self.after()
        return answer


@pytest.fixture
def watched(house: RunningService) -> Iterator[Watched]:
    with Watched(house.url) as client:
        yield client


@pytest.fixture
def checked(client: Client) -> str:
    """A topic that checks expectations."""
    name = f"t-{uuid4().hex}"
    client.create_topic(name, {"check.expected.offsets": True})
    return name


def numbered(n: int) -> list[tuple[int | None, bytes]]:
    return [(i, b"%d" % i) for i in range(n)]


def fill(client: Client, topic: str, messages: int) -> None:
    """Another producer was here."""
    with Producer(topic, client=client, name="before") as producer:
        producer.send_batch([b"before"] * messages)


def on_a_thread(call: Callable[[], object]) -> BaseException | None:
    """Call it where no signal handler interrupts, so that the caller sends by itself. What it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    return raised[0] if raised else None


def test_a_message_that_is_too_large_alone_is_not_told_to_come_with_fewer(client: Client, topic: str) -> None:
    large, limit = b"x" * 9_000_000, 8 << 20
    with Producer(topic, client=client) as producer:
        for send in (
            lambda: producer.send(large),
            lambda: producer.send_batch([large, b"small"]),
            lambda: client.stage(client.begin_atomic().id, topic, 0, PublishRequest([large])),
        ):
            with pytest.raises(RequestTooLarge, match=rf"one message alone .* 900\d\d\d\d bytes, .* takes {limit}"):
                send()
        with pytest.raises(RequestTooLarge, match="send fewer messages at once"):
            client.publish(topic, PublishRequest([large, b"small"]))


# --- futures


@of_threads
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, ValueError])
def test_whatever_a_callback_raises_comes_out_of_nobodys_call(client: Client, topic: str, raised: type[BaseException]) -> None:
    def leave(_: Future[Receipt]) -> None:
        raise raised

    with Producer(topic, client=client, name="p", linger=30) as producer:
        future = producer.send_async(b"0")
        future.add_done_callback(leave)
        assert on_a_thread(lambda: producer.send(b"1")) is None, "which has sent both"
        assert [future.result(PATIENCE).offset, producer.send(b"2").offset] == [0, 2]


@of_threads
def test_a_callback_may_send_more_but_not_wait_for_it(client: Client, topic: str) -> None:
    refused: list[BaseException] = []

    def go_on(_: Future[Receipt]) -> None:
        producer.send_async(b"1")
        for waits in (lambda: producer.send(b"2"), lambda: producer.send_batch([b"2"]), producer.flush, producer.close):
            try:
                waits()
            except RuntimeError as error:
                refused.append(error)

    with Producer(topic, client=client, name="p", max_pending=1) as producer:
        future = producer.send_async(b"0")
        future.add_done_callback(go_on)
        future.result(PATIENCE)
        producer.flush()
        producer.flush()
    assert len(refused) == 4
    assert stored(client, topic) == numbered(2)


@of_threads
def test_a_message_carries_what_it_was_given_and_its_future_is_one_that_asyncio_takes(client: Client, topic: str) -> None:
    async def send(producer: Producer[Any]) -> list[Receipt]:
        return await asyncio.gather(*[asyncio.wrap_future(producer.send_async(i)) for i in range(3)])

    with Producer[Any](topic, client=client, name="p", codec="json") as producer:
        producer.send({"b": [1, None]}, key="schlüssel", properties={"a": "ä", "b": ""}, ttl=60)
        assert [receipt.sequence_id for receipt in asyncio.run(send(producer))] == [1, 2, 3]
    with Reader(topic, client=client, codec="json", timeout=0) as reader:
        first, *others = reader
    assert (first.value, first.key, first.properties) == ({"b": [1, None]}, "schlüssel".encode(), {"a": "ä", "b": ""})
    assert (first.ttl, first.producer) == (60, "p")
    assert [(each.value, each.key, each.properties, each.ttl) for each in others] == [(i, None, {}, None) for i in range(3)]


@of_threads
def test_futures_nobody_keeps_cost_no_memory_once_they_are_complete(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        kept = [weakref.ref(producer.send_async(b"x")) for _ in range(300)]
        producer.flush()
        gc.collect()
        assert not [ref for ref in kept if ref() is not None]


# --- order and once-ness


@of_threads
@pytest.mark.parametrize("by_caller", [True, False])
def test_threads_that_send_through_one_producer_lose_nothing(client: Client, topic: str, by_caller: bool) -> None:
    """Of those that number, each holds one lock around number and send, as an application must."""
    numbers, lock = count(), threading.Lock()
    sent: dict[bytes, Future[Receipt]] = {}

    def send(producer: Producer[bytes], thread: int) -> None:
        for i in range(200):
            payload = b"%d-%d" % (thread, i)
            if by_caller:
                with lock:
                    sent[payload] = producer.send_async(payload, sequence_id=next(numbers))
            elif i % 20:
                sent[payload] = producer.send_async(payload)
            else:
                producer.send(payload)

    with Producer(topic, client=client, name="p", batch_max_messages=11) as producer:
        threads = [threading.Thread(target=send, args=(producer, n)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    found = stored(client, topic)
    assert [number for number, _ in found] == list(range(600))
    assert all(found[future.result().offset or 0][1] == payload for payload, future in sent.items())
    for n in range(3):
        assert [payload for _, payload in found if payload.startswith(b"%d-" % n)] == [b"%d-%d" % (n, i) for i in range(200)]


# --- a full queue


@of_threads
def test_threads_that_wait_share_the_request_behind_the_one_that_is_under_way(watched: Watched, topic: str) -> None:
    """Each with a request of its own, sixteen threads had a fifth of what sixteen producers have."""
    gate, others = threading.Event(), 9
    watched.before = lambda: gate.wait(PATIENCE)
    with Producer(topic, client=watched, name="p") as producer, ThreadPoolExecutor(others) as threads:

        def send(sender: int) -> list[Receipt]:
            return [producer.send(b"%d %d" % (sender, number)) for number in range(3)]

        first = threads.submit(producer.send, b"first")
        until(lambda: watched.seen, "it is under way")
        sent = [threads.submit(send, sender) for sender in range(others - 2)]
        until(lambda: producer._sender.core.pending == others - 1, "they wait")
        producer._sender._wakes()
        until(lambda: producer._sender._thread is not None and producer._sender._thread.is_alive(), "its thread looks")
        sent.append(threads.submit(send, others - 2))
        until(lambda: producer._sender.core.pending == others, "all wait")
        assert len(watched.seen) == 1
        assert len(producer._sender.core.queue) == 1, "what waits takes more company, whoever looks meanwhile"
        gate.set()
        assert first.result(PATIENCE).offset == 0
        receipts = [each.result(PATIENCE) for each in sent]
    assert sorted(map(len, (each.payloads for each in watched.seen[:2]))) == [1, others - 1]
    found = [payload.decode() for _, payload in stored(watched, topic)]
    for sender, each in enumerate(receipts):
        assert [found[receipt.offset] for receipt in each] == [f"{sender} {number}" for number in range(3)]
    assert len(found) == 1 + 3 * (others - 1)


@of_threads
def test_of_threads_that_share_a_request_each_hears_of_its_own_message_alone(client: Client, checked: str) -> None:
    gate = threading.Event()
    with (
        Watched(client.url) as watched,
        Producer(checked, client=watched, name="p") as producer,
        ThreadPoolExecutor(5) as threads,
    ):
        producer.send(b"0")
        watched.before = lambda: gate.wait(PATIENCE)
        first = threads.submit(producer.send, b"1")
        until(lambda: len(watched.seen) == 2, "it is under way")
        sent = []
        for expected in (2, 3, 9, None):
            sent.append(threads.submit(producer.send, b"x", expected_offset=expected))
            until(lambda: producer._sender.core.pending == 1 + len(sent), "it waits")
        gate.set()
        assert first.result(PATIENCE).offset == 1
        assert [sent[at].result(PATIENCE).offset for at in (0, 1, 3)] == [2, 3, 4]
        assert isinstance(sent[2].exception(PATIENCE), OffsetMismatch)


def test_a_full_queue_is_sent_and_does_not_wait_for_company_that_has_no_room(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", max_pending=2, linger=3_600) as producer:
        assert on_a_thread(lambda: [producer.send_async(b"%d" % n) for n in range(5)]) is None
        assert producer._sender.core.numbers.next == 5


def test_a_full_queue_makes_the_sender_wait_until_there_is_room_or_the_producer_is_closed(watched: Watched, topic: str) -> None:
    gate = threading.Event()
    watched.before = lambda: gate.wait(PATIENCE)
    producer: Producer[bytes] = Producer(topic, client=watched, name="p", max_pending=10, linger=0.001)

    def begin(messages: int) -> tuple[threading.Thread, list[BaseException | None]]:
        ended: list[BaseException | None] = []
        send = lambda: [producer.send_async(b"x") for _ in range(messages)]  # noqa: E731
        thread = threading.Thread(target=lambda: ended.append(on_a_thread(send)))
        thread.start()
        until(lambda: producer._sender.core.pending == 10)
        return thread, ended

    thread, ended = begin(15)
    thread.join(0.1)
    assert not ended
    gate.set()
    thread.join(PATIENCE)
    assert ended == [None]
    producer.flush()
    gate.clear()
    thread, ended = begin(99)
    closing = threading.Thread(target=producer.close)
    closing.start()
    thread.join(PATIENCE)
    assert isinstance(ended[0], ProducerClosed)
    gate.set()
    closing.join(PATIENCE)


def test_closing_gives_up_after_its_timeout_and_whoever_waits_hears_of_it(watched: Watched, topic: str) -> None:
    gate = threading.Event()
    watched.before = lambda: gate.wait(PATIENCE)
    producer: Producer[bytes] = Producer(topic, client=watched, name="p", linger=60, batch_max_messages=1)
    futures = [producer.send_async(b"x") for _ in range(3)]
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(producer.flush), threads.submit(producer.close)]
        until(lambda: watched.seen and producer._sender.core.is_closed, "both wait")
        producer._sender.core.untold(SequenceReused())  # of an earlier one: it is not told behind what closing says
        with pytest.raises(TimeoutError, match="3 messages have no outcome and are given up, sequence ids 0 to 2"):
            producer.close(0.01)
        gate.set()
        for each in waiting:
            with pytest.raises(ProducerStopped, match="closed before this was answered"):
                each.result(PATIENCE)
    found = [future.exception(PATIENCE) for future in futures]
    assert [error.definite for error in found if isinstance(error, OncelogError)] == [False, True, True]
    assert isinstance(found[2], ProducerStopped)
    producer.flush()
    producer.close()


# --- numbers and names


@pytest.mark.parametrize("initial", [0, 4, 5])
def test_an_initial_sequence_id_that_is_taken_is_an_error(client: Client, topic: str, initial: int) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"5", sequence_id=5)
    with pytest.raises(InitialSequenceIdTaken) as caught:
        Producer(topic, client=client, name="p", initial_sequence_id=initial)
    assert (caught.value.initial, caught.value.last_sequence_id) == (initial, 5)
    with Producer(topic, client=client, name="p", initial_sequence_id=6) as producer:
        assert producer.send(b"6").sequence_id == 6


@of_threads
def test_an_assigned_name_that_was_idle_too_long_is_exchanged_and_nothing_is_lost_or_doubled(client: Client, topic: str) -> None:
    with Producer[bytes](topic, client=client, linger=0.001) as producer:
        for number in range(0, 6, 2):
            before = producer.name
            client.end_producer(topic, producer.name, producer.epoch)
            assert producer.send(b"%d" % number).status == "stored"
            assert producer.name != before
            producer.send_async(b"%d" % (number + 1))
        producer.flush()
        # At the exit the name ends before the producer does, which a handler that runs later may still use.
        drive(producer._sender.end_name(PATIENCE))
        assert list(client.producers(topic)) == []
        producer.send(b"6")
    assert stored(client, topic) == numbered(7)
    assert list(client.producers(topic)) == []


def test_a_name_does_not_end_while_something_is_in_doubt(watched: Watched, topic: str) -> None:
    def lose() -> None:
        raise ConnectionFailed

    watched.before = lose
    producer = Producer[bytes](topic, client=watched, delivery_timeout=0.1)
    future = producer.send_async(b"0")
    with pytest.raises(OncelogError) as caught:
        producer.close()
    assert not caught.value.definite
    assert future.exception() is caught.value
    assert [each.name for each in watched.producers(topic)] == [producer.name]


@of_threads
def test_a_name_ends_once_and_not_before_the_messages_that_are_under_way_or_in_a_transaction(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer[bytes](topic, client=client, linger=3_600) as producer:
        name = producer.name
        with client.transaction() as tx:
            tx.send(topic, b"0", producer=producer)
            drive(producer._sender.end_name(PATIENCE))
        producer.send_async(b"1")
        drive(producer._sender.end_name(PATIENCE))
        producer.flush()
        assert producer.name == name, "it was not exchanged"
    monkeypatch.setattr(client, "end_producer", None)
    producer.close()
    assert stored(client, topic) == numbered(2)


@of_threads
def test_a_machine_that_slept_gives_a_transaction_a_name_that_lives(house: RunningService, topic: str) -> None:
    """The monotonic clock stands still meanwhile; every transaction was refused until an hour had passed on it."""
    asleep = 0.0
    client = surrounded(Client, clock=REAL._replace(time=lambda: REAL.time() + asleep))(house.url)
    with Producer[bytes](topic, client=client) as producer:
        client.end_producer(topic, producer.name, producer.epoch)
        asleep = 26 * 3_600.0
        with client.transaction() as tx:
            tx.send(topic, b"0", producer=producer)
        client.end_producer(topic, producer.name, producer.epoch)
        asleep *= 2
        with client.atomic() as commit:
            commit.send(topic, b"1", producer=producer)
    assert stored(client, topic) == numbered(2)
    assert list(client.producers(topic)) == []


# --- failures


def test_a_failure_is_told_once_by_send_by_flush_or_at_the_end_of_the_block(client: Client, topic: str) -> None:
    with pytest.raises(SequenceReused) as told, Producer(topic, client=client, name="p") as producer:  # noqa: PT012
        producer.send_batch([b"0", b"1"], sequence_ids=[0, 1])
        with pytest.raises(SequenceReused):
            producer.send(b"other", sequence_id=0)
        with pytest.raises(SequenceReused):
            producer.send_batch([b"0", b"other"], sequence_ids=[0, 1])
        producer.flush()
        producer.send_async(b"first", sequence_id=0)
        producer.send_async(b"second", sequence_id=1)
        with pytest.raises(SequenceReused) as caught:
            producer.flush()
        assert caught.value.sequence_id == 0
        producer.flush()
        producer.send_async(b"third", sequence_id=1)
    assert told.value.sequence_id == 1
    with pytest.raises(ZeroDivisionError), Producer(topic, client=client, name="p", linger=5) as producer:  # noqa: PT012
        producer.send_async(b"other", sequence_id=0)  # would be raised at the end
        producer.send_async(b"2", sequence_id=2)
        raise ZeroDivisionError
    assert stored(client, topic) == numbered(3)


def test_a_failure_in_a_batch_whose_next_part_cannot_be_sent_is_told_by_flush(client: Client, topic: str) -> None:
    """Whether it has come by then or not."""
    cases: list[tuple[int, dict[str, Any]]] = [(4, {}), (9, {"batch_max_messages": 1, "max_pending": 1})]
    for number, options in cases:
        with Producer[bytes](topic, client=client, name="p", **options) as producer:
            producer.send_batch([b"0", b"1"], sequence_ids=[0, 1])
            with pytest.raises(SequenceIdNotRising):
                producer.send_batch([b"other", b"4", b"passed over"], sequence_ids=[0, number, number - 1])
            with pytest.raises(SequenceReused):
                producer.flush()
            producer.flush()


def test_what_stopped_a_batch_in_the_midst_of_it_is_told_by_its_call_alone(watched: Watched, topic: str) -> None:
    def refuse() -> None:
        raise TopicNotFound

    watched.before = refuse
    with Producer[bytes](topic, client=watched, name="p", batch_max_messages=1, max_pending=1) as producer:
        with pytest.raises(ProducerStopped) as caught:
            producer.send_batch([b"0", b"1", b"2"])
        assert isinstance(caught.value.__cause__, TopicNotFound)
        producer.flush()


@of_threads
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_exception_from_outside_in_send_stops_the_producer_rather_than_skip_a_message(
    watched: Watched, topic: str, moment: str
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    producer: Producer[bytes] = Producer(topic, client=watched, name="p", linger=5)
    producer.send(b"0")
    earlier = producer.send_async(b"1")
    setattr(watched, moment, interrupt)
    assert isinstance(on_a_thread(lambda: producer.send(b"2")), KeyboardInterrupt)
    setattr(watched, moment, lambda: None)
    error = earlier.exception(PATIENCE)
    assert isinstance(error, OncelogError)
    assert not error.definite
    with pytest.raises(ProducerStopped):
        producer.send(b"3")
    with pytest.raises(OncelogError):
        producer.close()
    with Producer(topic, client=watched, name="p") as again:
        for i in again.resume(range(4), sequence_id=lambda i: i):
            again.send(b"%d" % i, sequence_id=i)
    assert stored(watched, topic) == numbered(4)


@of_threads
def test_a_failure_whose_caller_was_interrupted_is_told_by_flush_whether_it_has_come_by_then_or_not(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer[bytes](topic, client=client, name="p", batch_max_messages=1, max_pending=1) as producer:
        producer.send_batch([b"0", b"1"], sequence_ids=[0, 1])
        wait, room = producer._sender.wait, producer._sender._wait_for_room

        def interrupted(_: Any) -> None:
            raise KeyboardInterrupt

        def interrupted_behind_it(outcome: Any) -> None:
            wait(outcome)
            raise KeyboardInterrupt

        def interrupted_behind_the_first(size: int, count: int = 1) -> None:
            room(size, count)
            if producer._sender.core.numbers.highest == 5:
                raise KeyboardInterrupt

        for name, patch, send in (
            *[("wait", patch, lambda: producer.send(b"other", sequence_id=0)) for patch in (interrupted, interrupted_behind_it)],
            ("wait", interrupted, lambda: producer.send_batch([b"other", b"1"], sequence_ids=[0, 1])),
            ("wait", interrupted_behind_it, lambda: producer.send_batch([b"2", b"other"], sequence_ids=[2, 0])),
            (
                "_wait_for_room",
                interrupted_behind_the_first,
                lambda: producer.send_batch([b"other", b"5", b"6"], sequence_ids=[0, 5, 6]),
            ),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(producer._sender, name, patch)
                with pytest.raises(KeyboardInterrupt):
                    send()
            with pytest.raises(SequenceReused):
                producer.flush()


@of_threads
def test_at_the_exit_a_flush_sends_also_what_is_told_after_the_last_message(
    client: Client, checked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread can be started then. The first message is there already; the refusal of the last one is known before that."""
    fill(client, checked, 2)
    producer = Producer[bytes](checked, client=client, name="p")
    monkeypatch.setattr(producer._sender, "_wake", lambda: False)
    producer.send(b"0", sequence_id=0)
    fill(client, checked, 2)
    futures = [producer.send_async(b"%d" % at, sequence_id=at, expected_offset=2 + at) for at in range(3)]
    with pytest.raises(OffsetMismatch):
        producer.flush(PATIENCE)
    assert futures[0].result(0).status == "duplicate"
    producer.close(PATIENCE)


@of_threads
def test_one_producer_goes_on_while_a_step_of_another_one_is_interrupted(client: Client, topic: str) -> None:
    with Producer(topic, client=client) as interrupted, Producer(topic, client=client) as other, interrupted._sender._lock:
        sent: list[object] = []
        on_a_thread(lambda: sent.append(other.send(b"0")))
        assert sent


@pytest.mark.real
@of_threads
def test_threads_that_wait_for_messages_of_two_producers_do_not_wait_for_each_other(client: Client, topic: str) -> None:
    """concurrent.futures.wait holds the locks of all its futures, and takes them in any order."""
    both = threading.Barrier(2)

    def wait_for(first: Any, second: Any) -> bool:
        with first._condition:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            got: bool = second._condition.acquire(timeout=2)
            if got:
                second._condition.release()
            return got

    with Producer[bytes](topic, client=client) as one, Producer[bytes](topic, client=client) as two, ThreadPoolExecutor() as pool:
        a, b = one.send_async(b"a"), two.send_async(b"b")
        waiting = [pool.submit(wait_for, a, b), pool.submit(wait_for, b, a)]
        assert all(each.result() for each in waiting)


@pytest.mark.parametrize("fault", ["value", "key", "properties"])
def test_messages_of_a_batch_have_their_own_keys_and_properties_and_where_one_cannot_be_encoded_nothing_is_sent(
    client: Client, checked: str, fault: str
) -> None:
    with Producer(checked, client=client, name="p", linger=0) as producer:
        for more, at in ({}, 0), ({"expected_offset": 2}, 2):
            given: dict[str, Any] = {"keys": ["a", None], "properties": [None, {"n": "1"}]}
            for wrong in ({"keys": ["k"]}, {"properties": [None] * 3}):
                with pytest.raises(InvalidRequest, match="for 2 messages"):
                    producer.send_batch([b"x", b"y"], **wrong, **more)
            values: list[Any] = [b"0", b"1"]
            producer.send_batch(values, **given, **more)
            {"value": values, "key": given["keys"], "properties": given["properties"]}[fault][1] = {"n": 2}
            with pytest.raises((TypeError, InvalidRequest)):
                producer.send_batch(values, **given, **more)
            producer.flush()
            assert producer.last_sequence_id == at + 1
    with Reader(checked, client=client, timeout=0) as reader:
        found = [(each.payload, each.key, each.properties) for each in reader]
    assert found == [(b"0", b"a", {}), (b"1", None, {"n": "1"})] * 2


def test_a_batch_takes_as_many_requests_as_it_needs_and_waits_for_room(watched: Watched, topic: str) -> None:
    with Producer[bytes](topic, client=watched, name="p", batch_max_messages=7, max_pending=5, linger=5) as producer:
        first = producer.send_async(b"0")
        receipts = producer.send_batch([b"%d" % number for number in range(1, 18)])
        assert [len(request.payloads) for request in watched.seen] == [1, 5, 5, 5, 2]
        assert first.result().sequence_id == 0
        assert [(each.status, each.sequence_id, each.offset) for each in receipts] == [("stored", at, at) for at in range(1, 18)]
        assert len({each.message_id for each in receipts}) == 17
        assert producer.last_message_id == receipts[-1].message_id
    assert stored(watched, topic) == numbered(18)


# --- expectations


@of_threads
def test_a_number_that_is_refused_while_a_transaction_waits_for_the_producer_is_unused_in_it(
    watched: Watched, checked: str
) -> None:
    gate, waiting = threading.Event(), threading.Event()
    watched.before = lambda: (waiting.set(), gate.wait(PATIENCE))
    with Producer(checked, client=watched, name="p") as producer:
        lost: list[BaseException | None] = []
        lose = lambda: lost.append(on_a_thread(lambda: producer.send(b"lost", expected_offset=9)))  # noqa: E731
        threads = [threading.Thread(target=lose), threading.Thread(target=lambda: drive(producer._sender.enlist(5)))]
        threads[0].start()
        waiting.wait(PATIENCE)
        threads[1].start()
        until(lambda: producer._sender.core.enlisted is not None)
        gate.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert isinstance(lost[0], OffsetMismatch)
        producer._sender.roll_back()
        assert producer.send(b"0").sequence_id == 0


# --- the end


def test_flush_gives_up_after_its_timeout_and_the_messages_go_on(watched: Watched, topic: str) -> None:
    gate = threading.Event()
    watched.before = lambda: gate.wait(PATIENCE)
    with Producer(topic, client=watched, name="p", linger=5) as producer:
        producer.flush(0)
        future = producer.send_async(b"0")
        with pytest.raises(TimeoutError):
            producer.flush(0.1)
        assert not gate.is_set()
        gate.set()
        producer.flush(PATIENCE)
        assert future.done()


@pytest.mark.real
def test_a_flush_ends_although_another_thread_goes_on_sending(client: Client, topic: str) -> None:
    stop = threading.Event()

    def endless(producer: Producer[bytes]) -> None:
        while not stop.is_set():
            producer.send_async(b"x")

    with Producer(topic, client=client, name="p", batch_max_messages=20, max_pending=1_000) as producer:
        thread = threading.Thread(target=endless, args=(producer,))
        thread.start()
        try:
            for _ in range(3):
                time.sleep(0.02)
                producer.flush(PATIENCE)
                assert producer.send(b"y").status == "stored"
        finally:
            stop.set()
            thread.join()


def test_closing_sends_what_lingers_is_idempotent_and_leaves_a_given_client_open(client: Client, topic: str) -> None:
    producer: Producer[bytes] = Producer(topic, client=client, name="closing", linger=60)
    futures = [producer.send_async(b"%d" % i) for i in range(5)]
    producer.close()
    producer.close()
    assert all(future.done() for future in futures)
    until(lambda: "oncelog-producer-closing" not in {thread.name for thread in threading.enumerate()}, "its thread ends")
    assert stored(client, topic) == numbered(5)
