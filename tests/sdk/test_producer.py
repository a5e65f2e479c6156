"""A producer over real HTTP: order and once-ness through every loss, batches, numbering, stopping rather than skipping."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, as_completed, wait
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Producer, Reader, Receipt
from oncelog.errors import (
    ConnectionFailed,
    InitialSequenceIdTaken,
    InvalidRequest,
    InvalidResponse,
    MixedSequenceIds,
    OncelogError,
    ProducerClosed,
    ProducerEnded,
    ProducerFenced,
    ProducerStopped,
    RequestTooLarge,
    SequenceGap,
    SequenceIdNotRising,
    SequenceReused,
    StorageUnavailable,
    TopicNotFound,
)
from oncelog.producing import producer as module
from oncelog.wire.codec import decode_publish_request, encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE, until
from tests.sdk.fakes import Answer, Request, fake_server, forward, lossy_proxy, problem
from tests.support import RunningService, ServiceProcess


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.api.retry.FIRST_SECONDS", 0.002)
    monkeypatch.setattr("oncelog.api.retry.LONGEST_SECONDS", 0.05)


def stored(client: Client, topic: str) -> list[tuple[int | None, bytes]]:
    """(sequence id, payload) of everything in the topic, in its order; offsets dense."""
    with Reader(topic, client=client, timeout=0) as reader:
        messages = list(reader)
    assert [message.offset for message in messages] == list(range(len(messages)))
    return [(message.sequence_id, message.payload) for message in messages]


def numbered(n: int, begin: int = 0) -> list[tuple[int | None, bytes]]:
    return [(i, b"%d" % i) for i in range(begin, begin + n)]


def batch_sizes(requests: list[Request]) -> list[int]:
    return [
        len(decode_publish_request(ONCELOG_AVRO, request.body).payloads)
        for request in requests
        if request.path.endswith("/publish")
    ]


# --- receipts and futures


def test_a_receipt_says_where_the_message_lies(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        receipts = [producer.send(b"a"), producer.send(b"b")]
    with Reader(topic, client=client, timeout=0) as reader:
        messages = list(reader)
    assert [r.status for r in receipts] == ["stored", "stored"]
    assert [r.sequence_id for r in receipts] == [0, 1]
    assert [r.offset for r in receipts] == [0, 1]
    assert [r.message_id for r in receipts] == [m.message_id for m in messages]
    assert producer.last_sequence_id == 1
    assert producer.last_message_id == messages[1].message_id


def test_receipts_of_one_batch_differ_and_compare_by_value(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        first = producer.send_batch([b"%d" % i for i in range(50)])
    with Producer(topic, client=client, name="p") as producer:
        again = producer.send_batch([b"%d" % i for i in range(50)], sequence_ids=range(50))
    assert len(set(first)) == 50
    assert [r.status for r in again] == ["duplicate"] * 50
    assert [(r.message_id, r.offset) for r in again] == [(r.message_id, r.offset) for r in first]
    assert first[0] != again[0]
    assert "stored" in repr(first[0])
    assert first[0] != "stored"


def test_send_async_hands_out_a_future_as_the_standard_library_knows_it(client: Client, topic: str) -> None:
    called: list[Future[Receipt]] = []
    with Producer(topic, client=client, name="p") as producer:
        future = producer.send_async(b"a")
        assert isinstance(future, Future)
        future.add_done_callback(called.append)
        assert not future.cancel()
        assert future.result(PATIENCE).offset == 0
        assert future.exception() is None
        assert future.done()
        assert not future.cancelled()
        assert not future.running()
        producer.flush()
        assert called == [future]
        future.add_done_callback(called.append)
        assert called == [future, future]


def test_result_with_a_timeout_gives_up_and_the_message_goes_on(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", linger=1.5) as producer:
        future = producer.send_async(b"a")
        with pytest.raises(TimeoutError):
            future.result(0.01)
        with pytest.raises(TimeoutError):
            future.exception(0.01)
        assert future.result(PATIENCE).status == "stored"


def test_wait_and_as_completed_take_the_futures_of_many_batches(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", batch_max_messages=7) as producer:
        futures = [producer.send_async(b"%d" % i) for i in range(60)]
        assert {future.result().sequence_id for future in as_completed(futures, timeout=PATIENCE)} == set(range(60))
        more = [producer.send_async(b"%d" % i) for i in range(60)]
        done, left = wait(more, timeout=PATIENCE, return_when=FIRST_EXCEPTION)
    assert len(done) == 60
    assert not left


def test_a_future_can_be_awaited(client: Client, topic: str) -> None:
    async def send(producer: Producer[bytes]) -> list[Receipt]:
        return await asyncio.gather(*[asyncio.wrap_future(producer.send_async(b"%d" % i)) for i in range(20)])

    with Producer(topic, client=client, name="p") as producer:
        receipts = asyncio.run(send(producer))
    assert [receipt.sequence_id for receipt in receipts] == list(range(20))


def test_a_callback_that_raises_harms_no_other_message(client: Client, topic: str) -> None:
    def fail(_: Future[Receipt]) -> None:
        raise ZeroDivisionError

    seen: list[int] = []
    with Producer(topic, client=client, name="p") as producer:
        for i in range(5):
            future = producer.send_async(b"%d" % i)
            future.add_done_callback(fail)
            future.add_done_callback(lambda f: seen.append(f.result().sequence_id))
        producer.flush()
        assert seen == list(range(5))
        assert producer.send(b"5").status == "stored"


def test_a_callback_that_exits_its_thread_stops_the_producer_and_leaves_nobody_waiting(client: Client, topic: str) -> None:
    def leave(_: Future[Receipt]) -> None:
        raise SystemExit

    producer: Producer[bytes] = Producer(topic, client=client, name="p", batch_max_messages=2, linger=1.5)
    with producer._sending:  # nothing is sent before all three are queued
        first = producer.send_async(b"0")
        first.add_done_callback(leave)
        futures = [producer.send_async(b"%d" % i) for i in range(1, 3)]
    assert [future.exception(PATIENCE) is None for future in [first, *futures]] == [True, True, False]
    with pytest.raises(ProducerStopped):
        futures[1].result()
    with pytest.raises(OncelogError):
        producer.close()


def test_a_callback_may_send_more_but_not_wait_for_it(client: Client, topic: str) -> None:
    refused: list[BaseException] = []
    more: list[Future[Receipt]] = []

    def go_on(_: Future[Receipt]) -> None:
        more.append(producer.send_async(b"1"))
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
    assert more[0].result().sequence_id == 1


# --- order and once-ness


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_lost_on_the_way_is_stored_once_and_in_order(
    client: Client, house: RunningService, topic: str, seed: int, quick_retries: None
) -> None:
    with (
        lossy_proxy(house.url, seed) as (url, losses),
        Producer(topic, url=url, name="p", batch_max_messages=25, linger=0.001) as producer,
    ):
        futures = [producer.send_async(b"%d" % i) for i in range(1_000)]
        receipts = [future.result(PATIENCE) for future in futures]
        receipts += [producer.send(b"%d" % i) for i in range(1_000, 1_020)]
    assert losses.requests, f"seed {seed}"
    assert losses.answers, f"seed {seed}"
    assert stored(client, topic) == numbered(1_020), f"seed {seed}"
    with Reader(topic, client=client, timeout=0) as reader:
        ids = [message.message_id for message in reader]
    assert [receipt.message_id for receipt in receipts] == ids, f"seed {seed}"
    assert [receipt.offset for receipt in receipts] == list(range(1_020)), f"seed {seed}"
    assert {receipt.status for receipt in receipts} == {"stored", "duplicate"}, f"seed {seed}"


def test_a_lost_answer_makes_a_duplicate_with_the_original_id(client: Client, house: RunningService, topic: str) -> None:
    cut = iter([True])

    def lose_first_answer(request: Request) -> Answer | None:
        answer = forward(house.url, request)
        return None if request.path.endswith("/publish") and next(cut, False) else answer

    with fake_server(lose_first_answer) as fake, Producer(topic, url=fake.url, name="p") as producer:
        lost, fine = producer.send(b"0"), producer.send(b"1")
    with Reader(topic, client=client, timeout=0) as reader:
        messages = list(reader)
    assert [(r.status, r.message_id, r.offset) for r in (lost, fine)] == [
        ("duplicate", messages[0].message_id, 0),
        ("stored", messages[1].message_id, 1),
    ]
    assert len(messages) == 2


def test_order_holds_when_sends_that_wait_and_sends_that_do_not_alternate(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", linger=0.5) as producer:
        for i in range(0, 60, 3):
            producer.send_async(b"%d" % i)
            producer.send_async(b"%d" % (i + 1))
            assert producer.send(b"%d" % (i + 2)).offset == i + 2
    assert stored(client, topic) == numbered(60)


def test_threads_numbering_through_one_producer_lose_nothing(client: Client, topic: str) -> None:
    numbers, lock = count(), threading.Lock()
    receipts: list[Receipt] = []

    def own_numbers(producer: Producer[bytes]) -> None:
        for _ in range(300):
            with lock:  # what an application must do that numbers on several threads: one lock around number and send
                i = next(numbers)
                future = producer.send_async(b"%d" % i, sequence_id=i)
        receipts.append(future.result(PATIENCE))

    with Producer(topic, client=client, name="p", batch_max_messages=13) as producer:
        threads = [threading.Thread(target=own_numbers, args=(producer,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert stored(client, topic) == numbered(900)
    assert len(receipts) == 3


def test_threads_that_let_the_producer_number_get_ids_in_the_order_of_the_queue(client: Client, topic: str) -> None:
    receipts: dict[bytes, Receipt] = {}

    def send(producer: Producer[bytes], thread: int) -> None:
        futures = {b"%d-%d" % (thread, i): producer.send_async(b"%d-%d" % (thread, i)) for i in range(200)}
        futures_done = {payload: future.result(PATIENCE) for payload, future in futures.items()}
        receipts.update(futures_done)
        for i in range(200, 210):
            receipts[b"%d-%d" % (thread, i)] = producer.send(b"%d-%d" % (thread, i))

    with Producer(topic, client=client, name="p", batch_max_messages=11) as producer:
        threads = [threading.Thread(target=send, args=(producer, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    found = stored(client, topic)
    assert [number for number, _ in found] == list(range(840))
    assert {payload: number for number, payload in found} == {payload: r.sequence_id for payload, r in receipts.items()}
    assert all(r.offset == r.sequence_id for r in receipts.values())
    for n in range(4):
        own = [payload for _, payload in found if payload.startswith(b"%d-" % n)]
        assert own == [b"%d-%d" % (n, i) for i in range(210)]


# --- batches


def spied(house: RunningService, seen: list[Request]) -> Callable[[Request], Answer]:
    def handle(request: Request) -> Answer:
        seen.append(request)
        return forward(house.url, request)

    return handle


def test_a_batch_is_full_at_its_count_and_the_rest_goes_after_the_linger(house: RunningService, topic: str) -> None:
    seen: list[Request] = []
    with fake_server(spied(house, seen)) as fake, Producer(topic, url=fake.url, batch_max_messages=10, linger=2) as producer:
        futures = [producer.send_async(b"x") for _ in range(25)]
        futures[19].result(PATIENCE)
        assert batch_sizes(seen) == [10, 10]
        assert not futures[20].done()
        futures[24].result(PATIENCE)
        assert batch_sizes(seen) == [10, 10, 5]


def test_a_batch_is_full_at_its_bytes(house: RunningService, topic: str) -> None:
    seen: list[Request] = []
    with fake_server(spied(house, seen)) as fake, Producer(topic, url=fake.url, batch_max_bytes=10_000, linger=60) as producer:
        futures = [producer.send_async(b"x" * 4_000) for _ in range(6)]
        futures[5].result(PATIENCE)
    assert batch_sizes(seen) == [3, 3]


def test_messages_linger_for_company_and_then_go_unasked(house: RunningService, topic: str) -> None:
    seen: list[Request] = []
    with fake_server(spied(house, seen)) as fake, Producer(topic, url=fake.url, linger=1.5) as producer:
        futures = [producer.send_async(b"x") for _ in range(30)]
        futures[-1].result(PATIENCE)
        assert batch_sizes(seen) == [30]


def test_a_full_queue_makes_the_sender_wait(house: RunningService, topic: str) -> None:
    gate = threading.Event()

    def gated(request: Request) -> Answer:
        if request.path.endswith("/publish"):
            gate.wait(20)
        return forward(house.url, request)

    with fake_server(gated) as fake, Producer(topic, url=fake.url, name="p", max_pending=10, linger=0.001) as producer:
        sent: list[Future[Receipt]] = []
        thread = threading.Thread(target=lambda: sent.extend(producer.send_async(b"%d" % i) for i in range(25)))
        thread.start()
        until(lambda: producer._pending == 10)
        thread.join(0.3)
        assert thread.is_alive()
        assert producer._pending == 10
        gate.set()
        thread.join(PATIENCE)
        producer.flush()
        assert [future.result().sequence_id for future in sent] == list(range(25))


def test_a_full_queue_is_full_by_bytes_too(house: RunningService, topic: str) -> None:
    gate = threading.Event()

    def gated(request: Request) -> Answer:
        if request.path.endswith("/publish"):
            gate.wait(PATIENCE)
        return forward(house.url, request)

    megabyte = b"x" * (1 << 20)
    with fake_server(gated) as fake, Producer(topic, url=fake.url, name="p", max_pending_bytes=5 << 20, linger=0) as producer:
        sent: list[Future[Receipt]] = []
        thread = threading.Thread(target=lambda: sent.extend(producer.send_async(megabyte) for _ in range(12)))
        thread.start()
        until(lambda: producer._pending == 4)  # a fifth one and what it costs beside its payload are more
        thread.join(0.3)
        assert thread.is_alive()
        assert sum(batch.size for batch in producer._queue) + producer._batch.size <= 5 << 20
        gate.set()
        thread.join(PATIENCE)
        assert producer.send(b"x" * (6 << 20)).sequence_id == 12  # larger than the bound: by itself
        assert [future.result().sequence_id for future in sent] == list(range(12))
        assert producer._pending_bytes == producer._pending == 0


def test_a_full_queue_is_sent_and_does_not_wait_for_company_that_has_no_room(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", max_pending=2, linger=3_600) as producer:
        thread = threading.Thread(target=lambda: [producer.send_async(b"%d" % n) for n in range(5)], daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_closing_wakes_whoever_waits_for_room(house: RunningService, topic: str) -> None:
    gate = threading.Event()

    def gated(request: Request) -> Answer:
        if request.path.endswith("/publish"):
            gate.wait(20)
        return forward(house.url, request)

    with fake_server(gated) as fake:
        producer: Producer[bytes] = Producer(topic, url=fake.url, name="p", max_pending=1, linger=0.001)
        producer.send_async(b"0")
        raised: list[BaseException] = []

        def send() -> None:
            try:
                producer.send(b"1")
            except ProducerClosed as error:
                raised.append(error)

        waiting = threading.Thread(target=send)
        waiting.start()
        time.sleep(0.1)
        closing = threading.Thread(target=producer.close)
        closing.start()
        waiting.join(PATIENCE)
        assert len(raised) == 1
        gate.set()
        closing.join(PATIENCE)
        assert not closing.is_alive()


# --- numbering


def test_zero_is_a_sequence_id_like_any_other(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        assert producer.last_sequence_id is None
        assert producer.last_message_id is None
        assert producer.send(b"0", sequence_id=0).status == "stored"
        assert producer.last_sequence_id == 0
        assert producer.send(b"0", sequence_id=0).status == "duplicate"
    with Producer(topic, client=client, name="p") as producer:
        assert producer.last_sequence_id == 0
        assert list(producer.resume([0, 1], sequence_id=lambda i: i)) == [1]
        assert producer.send(b"1").sequence_id == 1
    assert stored(client, topic) == numbered(2)


def test_the_initial_sequence_id_is_that_of_the_first_message(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", initial_sequence_id=100) as producer:
        assert producer.send(b"100").sequence_id == 100
        assert producer.send(b"101").sequence_id == 101
    with Producer(topic, client=client, name="zero", initial_sequence_id=0) as producer:
        assert producer.send(b"x").sequence_id == 0


@pytest.mark.parametrize("initial", [0, 4, 5])
def test_an_initial_sequence_id_that_is_taken_is_an_error(client: Client, topic: str, initial: int) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"5", sequence_id=5)
    with pytest.raises(InitialSequenceIdTaken) as caught:
        Producer(topic, client=client, name="p", initial_sequence_id=initial)
    assert (caught.value.initial, caught.value.last_sequence_id) == (initial, 5)
    with Producer(topic, client=client, name="p", initial_sequence_id=6) as producer:
        assert producer.send(b"6").sequence_id == 6


def test_numbering_by_hand_and_by_the_sdk_do_not_mix(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="hand") as producer:
        producer.send(b"100", sequence_id=100)
        with pytest.raises(MixedSequenceIds):
            producer.send(b"?")
        producer.send(b"101", sequence_id=101)
    with Producer(topic, client=client, name="sdk") as producer:
        producer.send(b"0")
        with pytest.raises(MixedSequenceIds):
            producer.send(b"?", sequence_id=1)
        with pytest.raises(MixedSequenceIds):
            producer.send_batch([b"?"], sequence_ids=[1])
        producer.send(b"1")
    with Producer(topic, client=client, name="initial", initial_sequence_id=7) as producer, pytest.raises(MixedSequenceIds):
        producer.send(b"?", sequence_id=7)
    assert stored(client, topic) == [(100, b"100"), (101, b"101"), (0, b"0"), (1, b"1")]


def test_a_sequence_id_that_was_passed_over_is_refused_and_a_repeated_one_is_a_duplicate(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        for i in (1, 2, 5, 9):
            producer.send_async(b"%d" % i, sequence_id=i)
        for late in (0, 3, 4, 6, 8):
            with pytest.raises(SequenceIdNotRising) as caught:
                producer.send(b"late", sequence_id=late)
            assert (caught.value.last, caught.value.received) == (9, late)
        for again in (1, 2, 5, 9, 5):
            assert producer.send(b"%d" % again, sequence_id=again).status == "duplicate"
        assert producer.last_sequence_id == 9
    assert [number for number, _ in stored(client, topic)] == [1, 2, 5, 9]


@pytest.mark.parametrize("bad", [True, False, 1.0, "5", b"5", -1, 2**63, 2**64])
def test_what_is_no_sequence_id_is_refused_before_anything_is_sent(client: Client, topic: str, bad: Any) -> None:
    with Producer(topic, client=client, name="p") as producer:
        with pytest.raises(InvalidRequest):
            producer.send(b"x", sequence_id=bad)
        with pytest.raises(InvalidRequest):
            Producer(topic, client=client, name="other", initial_sequence_id=bad)
        assert producer.send(b"0").sequence_id == 0  # and the mistake did not choose who numbers
    assert stored(client, topic) == numbered(1)


def test_the_last_sequence_id_there_is_can_be_used_and_nothing_comes_after_it(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", initial_sequence_id=2**63 - 1) as producer:
        assert producer.send(b"last").sequence_id == 2**63 - 1
        with pytest.raises(InvalidRequest):
            producer.send(b"?")


def test_a_batch_needs_a_sequence_id_for_each_message_or_for_none(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        with pytest.raises(InvalidRequest):
            producer.send_batch([b"a", b"b"], sequence_ids=[1])
        assert producer.send_batch([]) == []
        assert [r.sequence_id for r in producer.send_batch([b"a", b"b"], sequence_ids=[3, 8])] == [3, 8]


def test_resume_skips_what_is_stored_also_from_a_one_shot_iterator(client: Client, topic: str) -> None:
    for end in (4, 9, 12):
        with Producer(topic, client=client, name="p") as producer:
            for i in producer.resume(iter(range(end)), sequence_id=lambda i: i):
                producer.send_async(b"%d" % i, sequence_id=i)
    assert stored(client, topic) == numbered(12)


def test_a_producer_of_the_same_name_numbers_on(client: Client, topic: str) -> None:
    for begin in (0, 3, 6):
        with Producer(topic, client=client, name="p") as producer:
            receipts = producer.send_batch([b"%d" % i for i in range(begin, begin + 3)])
            assert [r.sequence_id for r in receipts] == [begin, begin + 1, begin + 2]
    assert stored(client, topic) == numbered(9)


def test_a_producer_that_refuses_gaps_stops_at_one(client: Client, topic: str) -> None:
    with pytest.raises(SequenceGap), Producer(topic, client=client, name="p", gaps="refuse") as producer:  # noqa: PT012
        producer.send(b"0", sequence_id=0)
        with pytest.raises(SequenceGap) as caught:
            producer.send(b"2", sequence_id=2)
        assert (caught.value.expected, caught.value.received) == (1, 2)
        with pytest.raises(ProducerStopped):
            producer.send(b"3", sequence_id=3)
        raise caught.value
    with Producer(topic, client=client, name="p", gaps="refuse") as producer:
        producer.send_batch([b"1", b"2"], sequence_ids=[1, 2])
    assert stored(client, topic) == numbered(3)


def test_without_a_name_the_service_assigns_a_unique_one(client: Client, topic: str) -> None:
    with Producer(topic, client=client) as one, Producer(topic, client=client) as other:
        assert one.name
        assert one.name != other.name
        one.send(b"1")
        other.send(b"2")
        assert {producer.name for producer in client.producers(topic)} == {one.name, other.name}
    assert list(client.producers(topic)) == [], "they end with their producers"


def test_an_assigned_name_that_was_idle_too_long_is_exchanged_and_nothing_is_lost_or_doubled(client: Client, topic: str) -> None:
    with Producer[bytes](topic, client=client, linger=0.001) as producer:
        for number in range(0, 6, 2):
            before = producer.name
            client.end_producer(topic, producer.name, producer.epoch)
            assert producer.send(b"%d" % number).status == "stored"
            assert producer.name != before
            producer.send_async(b"%d" % (number + 1))
        producer.flush()
    assert stored(client, topic) == numbered(6)
    assert list(client.producers(topic)) == []


def test_a_producer_whose_name_ended_while_its_message_was_in_doubt_stops(
    house: RunningService, client: Client, topic: str, quick_retries: None
) -> None:
    """The message is stored, and nobody can say so any more: under another name it would be stored again."""

    def lost(request: Request) -> Answer | None:
        answer = forward(house.url, request)
        if request.path.endswith("/publish") and answer.status == 200:
            client.end_producer(topic, producer.name, producer.epoch)
            return None
        return answer

    with fake_server(lost) as fake:
        producer = Producer[bytes](topic, url=fake.url)
        with pytest.raises(ProducerEnded) as caught:
            producer.send(b"0")
        assert not caught.value.definite
        with pytest.raises(ProducerStopped):
            producer.send(b"1")
        producer.close()
    assert stored(client, topic) == numbered(1)


def test_a_name_does_not_end_while_something_is_in_doubt(house: RunningService, client: Client, topic: str) -> None:
    with fake_server(lambda request: None if request.path.endswith("/publish") else forward(house.url, request)) as fake:
        producer = Producer[bytes](topic, url=fake.url, delivery_timeout=0.1)
        future = producer.send_async(b"0")
        with pytest.raises(OncelogError) as caught:
            producer.close()
        assert not caught.value.definite
        assert future.exception() is caught.value
    assert [each.name for each in client.producers(topic)] == [producer.name]


def test_a_name_that_somebody_chose_does_not_end(client: Client, topic: str) -> None:
    with Producer[bytes](topic, client=client, name="p") as producer:
        producer.send(b"0")
    assert [each.name for each in client.producers(topic)] == ["p"]


def test_after_a_long_pause_a_transaction_is_given_a_name_that_lives(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.producing.producer.RENEW_SECONDS", -1.0)
    with Producer[bytes](topic, client=client) as producer:
        producer.send(b"0")
        client.end_producer(topic, producer.name, producer.epoch)
        with client.transaction() as tx:
            tx.send(topic, b"1", producer=producer)
        client.end_producer(topic, producer.name, producer.epoch)
        with client.atomic() as commit:
            commit.send(topic, b"2", producer=producer)
    assert stored(client, topic) == numbered(3)
    assert list(client.producers(topic)) == []


def test_a_machine_that_slept_gives_a_transaction_a_name_that_lives(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still meanwhile; every transaction was refused until an hour had passed on it."""
    with Producer[bytes](topic, client=client) as producer:
        client.end_producer(topic, producer.name, producer.epoch)
        asleep, awake = 26 * 3_600.0, time.time
        monkeypatch.setattr("oncelog.producing.producer.time.time", lambda: awake() + asleep)
        with client.transaction() as tx:
            tx.send(topic, b"0", producer=producer)
    assert stored(client, topic) == numbered(1)


def test_every_name_that_a_producer_was_given_ends(client: Client, topic: str) -> None:
    """At the exit the name ends before the producer does, which a handler that runs later may still use."""
    producer = Producer[bytes](topic, client=client)
    for number in range(3):
        producer.send(b"%d" % number)
        producer._end_name(PATIENCE)
        assert list(client.producers(topic)) == []
    producer.close()
    assert stored(client, topic) == numbered(3)


# --- what a message may be


def test_a_message_carries_key_properties_and_ttl(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"1", key="schlüssel", properties={"a": "ä", "b": ""}, ttl=60)
        producer.send_async(b"2", key=b"\xff")
        producer.send_async(b"3")
    with Reader(topic, client=client, timeout=0) as reader:
        first, second, third = reader
    assert (first.key, first.properties, first.ttl) == ("schlüssel".encode(), {"a": "ä", "b": ""}, 60)
    assert (second.key, second.properties, second.ttl) == (b"\xff", {}, None)
    assert (third.key, third.properties, third.ttl, third.producer) == (None, {}, None, "p")


def test_a_value_goes_through_the_codec(client: Client, topic: str) -> None:
    with Producer[Any](topic, client=client, codec="json") as producer:
        producer.send({"b": [1, None]})
        producer.send_batch([1, "ä"])
    with Reader(topic, client=client, codec="json", timeout=0) as reader:
        assert [message.value for message in reader] == [{"b": [1, None]}, 1, "ä"]


def test_a_view_of_bytes_is_copied_when_it_is_sent(client: Client, topic: str) -> None:
    buffer = bytearray(b"before")
    with Producer[Any](topic, client=client, linger=0.2) as producer:
        producer.send_async(buffer)
        producer.send_async(memoryview(buffer))
        buffer[:] = b"after!"
    assert [payload for _, payload in stored(client, topic)] == [b"before", b"before"]


@pytest.mark.parametrize(
    ("value", "extras", "error"),
    [
        ("text", {}, TypeError),
        (5, {}, TypeError),
        (None, {}, TypeError),
        (b"x", {"key": 5}, TypeError),
        (b"x", {"properties": {"a": 1}}, TypeError),
        (b"x", {"properties": {1: "a"}}, TypeError),
        (b"x", {"properties": {"a": "\ud800"}}, ValueError),
        (b"x", {"key": "\ud800"}, ValueError),
        (b"x", {"ttl": 0}, InvalidRequest),
        (b"x", {"ttl": True}, InvalidRequest),
        (b"x", {"ttl": "60"}, InvalidRequest),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once_and_harms_no_other(
    client: Client, topic: str, value: Any, extras: dict[str, Any], error: type[Exception]
) -> None:
    with Producer(topic, client=client, name="p", linger=0.1) as producer:
        producer.send_async(b"0")
        with pytest.raises(error):
            producer.send_async(value, **extras)
        producer.send_async(b"1")
    assert stored(client, topic) == numbered(2)


# --- one message's fault


def test_a_reused_sequence_id_in_the_middle_of_a_batch_fails_alone(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send_batch([b"%d" % i for i in range(10)], sequence_ids=range(10))
    producer = Producer(topic, client=client, name="p", linger=5)
    futures = [producer.send_async(b"other" if i == 9 else b"%d" % i, sequence_id=i) for i in range(5, 200)]
    with pytest.raises(SequenceReused):
        producer.flush()
    outcomes = {i: future.exception() for i, future in enumerate(futures, 5)}
    assert [i for i, error in outcomes.items() if error] == [9]
    assert isinstance(outcomes[9], SequenceReused)
    assert outcomes[9].sequence_id == 9
    assert [future.result().status for future in futures[:4]] == ["duplicate"] * 4
    assert producer.send(b"200", sequence_id=200).status == "stored"
    producer.close()
    assert stored(client, topic) == numbered(201)


def test_a_faulty_message_among_thousands_is_found_with_few_requests(house: RunningService, client: Client, topic: str) -> None:
    seen: list[Request] = []
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"0")
    with fake_server(spied(house, seen)) as fake:
        producer = Producer(topic, url=fake.url, name="p", linger=5)
        futures = [producer.send_async(b"%d" % max(i, 1), sequence_id=i) for i in range(3_000)]
        with pytest.raises(SequenceReused):
            producer.flush()
        producer.close()
    assert [i for i, future in enumerate(futures) if future.exception()] == [0]
    assert stored(client, topic) == numbered(3_000)
    assert len(batch_sizes(seen)) < 30


def test_a_message_too_large_fails_alone(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", linger=5, batch_max_bytes=10**9) as producer:
        futures = [producer.send_async(payload) for payload in (b"0", b"x" * 9_000_000, b"2")]
        with pytest.raises(RequestTooLarge):
            producer.flush()
        assert isinstance(futures[1].exception(), RequestTooLarge)
        assert producer.send(b"3").sequence_id == 3
    assert stored(client, topic) == [(0, b"0"), (2, b"2"), (3, b"3")]


def test_a_batch_too_large_as_a_whole_is_sent_in_parts(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", linger=5, batch_max_bytes=10**9) as producer:
        receipts = producer.send_batch([b"x" * 3_000_000] * 5)
    assert [receipt.offset for receipt in receipts] == list(range(5))


def test_flush_raises_the_first_failure_and_only_once(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send_batch([b"0", b"1"], sequence_ids=[0, 1])
        producer.send_async(b"first", sequence_id=0)
        producer.send_async(b"second", sequence_id=1)
        with pytest.raises(SequenceReused) as caught:
            producer.flush()
        assert caught.value.sequence_id == 0
        producer.flush()


def test_a_failure_that_send_raised_is_not_raised_again_at_the_end(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"0", sequence_id=0)
        with pytest.raises(SequenceReused):
            producer.send(b"other", sequence_id=0)


def test_the_error_of_a_batch_is_raised_for_each_message_with_a_traceback_of_its_own(client: Client, topic: str) -> None:
    producer: Producer[bytes] = Producer(topic, client=client, name="p", linger=5)
    client.delete_topic(topic)
    futures = [producer.send_async(b"x") for _ in range(50)]
    with pytest.raises(TopicNotFound):
        producer.flush()
    lengths = set()
    for future in futures:
        with pytest.raises(TopicNotFound) as caught:
            future.result()
        lengths.add(len(caught.traceback))
    assert len(lengths) == 1
    producer.close()


# --- stopping


def test_a_newer_incarnation_fences_the_older_which_then_stops(client: Client, topic: str) -> None:
    old: Producer[bytes] = Producer(topic, client=client, name="p")
    old.send(b"0")
    new: Producer[bytes] = Producer(topic, client=client, name="p")
    assert new.epoch > old.epoch
    with pytest.raises(ProducerFenced) as caught:
        old.send(b"zombie")
    assert (caught.value.epoch, caught.value.current_epoch) == (old.epoch, new.epoch)
    for _ in range(2):
        with pytest.raises(ProducerStopped) as stopped:
            old.send(b"zombie")
        assert isinstance(stopped.value.__cause__, ProducerFenced)
    assert new.send(b"1").sequence_id == 1
    old.close()
    new.close()
    assert stored(client, topic) == numbered(2)


def test_a_producer_of_an_unknown_topic_or_an_impossible_name_is_not_opened(client: Client, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        Producer("no-such-topic", client=client)
    for name in ("", "a b", "ä", "x" * 250):
        with pytest.raises(InvalidRequest):
            Producer(topic, client=client, name=name)
    with pytest.raises(InvalidRequest):
        Producer(topic, client=client, gaps="sometimes")  # type: ignore[arg-type]
    assert not list(client.producers(topic))


def test_a_service_away_for_too_long_stops_the_producer_and_nothing_is_skipped(
    house: RunningService, client: Client, topic: str, quick_retries: None
) -> None:
    away = threading.Event()

    def sometimes(request: Request) -> Answer | None:
        if away.is_set():
            forward(house.url, request)  # it arrives; only the answer never does
            return None
        return forward(house.url, request)

    with fake_server(sometimes) as fake:
        producer: Producer[bytes] = Producer(topic, url=fake.url, name="p", delivery_timeout=1.0, batch_max_messages=2, linger=5)
        producer.send_batch([b"0", b"1"])
        away.set()
        futures = [producer.send_async(b"%d" % i) for i in range(2, 7)]
        with pytest.raises(ConnectionFailed) as caught:
            producer.flush()
        assert not caught.value.definite
        errors = [future.exception(PATIENCE) for future in futures]
        assert [type(error) for error in errors] == [ConnectionFailed] * 2 + [ProducerStopped] * 3
        assert [error.definite for error in errors if isinstance(error, OncelogError)] == [False] * 2 + [True] * 3
        away.clear()
        with pytest.raises(ProducerStopped):
            producer.send(b"7")
        with pytest.raises(ProducerStopped):
            producer.send_async(b"7")
        producer.close()
        with Producer(topic, url=fake.url, name="p") as again:
            assert again.last_sequence_id == 3  # 2 and 3 had arrived
            for i in again.resume(range(8), sequence_id=lambda i: i):
                again.send_async(b"%d" % i, sequence_id=i)
    assert stored(client, topic) == numbered(8)


def test_a_definite_failure_of_a_producer_without_a_name_is_of_its_message_alone(
    house: RunningService, client: Client, topic: str, quick_retries: None
) -> None:
    refusing = threading.Event()

    def sometimes(request: Request) -> Answer:
        if refusing.is_set() and request.path.endswith("/publish"):
            return problem(503, "storage_unavailable")
        return forward(house.url, request)

    with fake_server(sometimes) as fake:
        producer = Producer[bytes](topic, url=fake.url, delivery_timeout=0.3, batch_max_messages=2, linger=0.001)
        producer.send(b"0")
        refusing.set()
        dropped = [producer.send_async(b"lost") for _ in range(6)]
        found = [future.exception(PATIENCE) for future in dropped]
        assert [(type(error).__name__, error.definite) for error in found if isinstance(error, OncelogError)] == [
            ("StorageUnavailable", True)
        ] * 6
        refusing.clear()
        assert producer.send(b"1").status == "stored"
        with pytest.raises(StorageUnavailable):
            producer.close()
        assert [payload for _, payload in stored(client, topic)] == [b"0", b"1"]

        for kind in ({"name": "p"}, {"gaps": "refuse"}):  # somebody relies on none being left out
            strict: Producer[bytes] = Producer(topic, url=fake.url, delivery_timeout=0.3, **kind)  # type: ignore[call-overload]
            refusing.set()
            with pytest.raises(StorageUnavailable):
                strict.send(b"x")
            refusing.clear()
            with pytest.raises(ProducerStopped):
                strict.send(b"y")
            strict.close()


def test_a_producer_without_a_name_that_is_fenced_stops_all_the_same(client: Client, topic: str) -> None:
    """Whatever it sends would be refused: it says so at once."""
    producer = Producer[bytes](topic, client=client)
    producer.send(b"0")
    client.open_producer(topic, producer.name)
    with pytest.raises(ProducerFenced):
        producer.send(b"1")
    with pytest.raises(ProducerStopped):
        producer.send(b"2")
    producer.close()


def test_a_failure_is_definite_only_if_no_earlier_try_can_have_got_through(
    house: RunningService, client: Client, topic: str, quick_retries: None
) -> None:
    tries = iter([forward])

    def once_then_full(request: Request) -> Answer | None:
        if not request.path.endswith("/publish"):
            return forward(house.url, request)
        through = next(tries, None)
        if through is None:
            return problem(503, "storage_unavailable")
        through(house.url, request)
        return None

    with fake_server(once_then_full) as fake, Producer(topic, url=fake.url, name="p", delivery_timeout=1.5) as producer:
        future = producer.send_async(b"0")
        with pytest.raises(OncelogError) as caught:
            future.result(PATIENCE)
        assert caught.value.code == "storage_unavailable"
        assert not caught.value.definite
        with pytest.raises(OncelogError):
            producer.flush()
    assert stored(client, topic) == numbered(1)


def test_a_service_that_comes_back_in_time_stores_everything_once(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service, Client(service.url) as client:
        client.create_topic("t")
        with Producer("t", url=service.url, name="p", batch_max_messages=50) as producer:
            futures = [producer.send_async(b"%d" % i) for i in range(1_000)]
            service.kill()
            futures += [producer.send_async(b"%d" % i) for i in range(1_000, 1_500)]
            service.start()
            assert [future.result(PATIENCE).sequence_id for future in futures] == list(range(1_500))
        assert stored(client, "t") == numbered(1_500)


@pytest.mark.parametrize("fault", ["nothing", "others", "fewer", "text"])
def test_an_answer_that_does_not_name_the_ids_is_not_taken_for_a_receipt(
    house: RunningService, client: Client, topic: str, fault: str
) -> None:
    kept: list[bytes] = []

    def wrong(request: Request) -> Answer:
        if not request.path.endswith("/publish"):
            return forward(house.url, request)
        right = forward(house.url, request)
        if not kept:
            kept.append(right.body)  # the receipt of the first message, given for each later one
            return right
        nameless = Request("POST", request.path.replace(topic, plain), request.headers, one_plain_message)
        bodies = {"nothing": b"", "others": kept[0], "fewer": forward(house.url, nameless).body, "text": b"OK"}
        return Answer(200, bodies[fault], right.headers)

    plain = f"plain-{topic}"[:200]
    client.create_topic(plain)
    one_plain_message = encode_publish_request(PublishRequest([b"x"]))
    with fake_server(wrong) as fake:
        producer: Producer[bytes] = Producer(topic, url=fake.url, name="p")
        producer.send(b"0")
        with pytest.raises(InvalidResponse) as caught:
            producer.send(b"1")
        assert not caught.value.definite
        assert producer.last_sequence_id == 0
        with pytest.raises(ProducerStopped):
            producer.send(b"2")
        producer.close()
    assert stored(client, topic) == numbered(2)


# --- interrupted


def on_a_thread(call: Callable[[], object]) -> None:
    """Call it where no signal handler interrupts, so that whoever sends does so by itself; raise what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    for error in raised:
        raise error


class Interrupting(Client):
    """A client whose publishes are broken into as a worker's time-out does."""

    before = False
    after = False

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        if self.before:
            raise KeyboardInterrupt
        answer = super().publish(*args, **kwargs)
        if self.after:
            raise KeyboardInterrupt
        return answer


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_exception_from_outside_in_send_stops_the_producer_rather_than_skip_a_message(
    house: RunningService, topic: str, moment: str
) -> None:
    with Interrupting(house.url) as client:
        producer: Producer[bytes] = Producer(topic, client=client, name="p", linger=5)
        producer.send(b"0")
        earlier = producer.send_async(b"1")
        setattr(client, moment, True)
        with pytest.raises(KeyboardInterrupt):
            on_a_thread(lambda: producer.send(b"2"))
        setattr(client, moment, False)
        error = earlier.exception(5)
        assert isinstance(error, OncelogError)
        assert not error.definite
        with pytest.raises(ProducerStopped):
            producer.send(b"3")
        with pytest.raises(OncelogError):
            producer.close()
        with Producer(topic, client=client, name="p") as again:
            for i in again.resume(range(4), sequence_id=lambda i: i):
                again.send(b"%d" % i, sequence_id=i)
        assert stored(client, topic) == numbered(4)


def test_an_exception_from_outside_between_two_statements_loses_and_doubles_nothing(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer: Producer[bytes] = Producer(topic, client=client, name="p", linger=5)
    waiting = [producer.send_async(b"%d" % i) for i in range(3)]

    def half_settled(outcomes: Any, receipts: Any) -> None:
        real_settle(outcomes[:1], receipts[:1])
        raise KeyboardInterrupt

    real_settle = module.settle
    with monkeypatch.context() as patched:
        patched.setattr(module, "settle", half_settled)
        with pytest.raises(KeyboardInterrupt):
            on_a_thread(lambda: producer.send(b"3"))
    with pytest.raises(ProducerStopped):
        producer.send(b"4")
    with pytest.raises(OncelogError):
        producer.close()
    assert all(future.done() for future in waiting)
    assert waiting[0].exception() is None
    with Producer(topic, client=client, name="p") as again:
        for i in again.resume(range(5), sequence_id=lambda i: i):
            again.send(b"%d" % i, sequence_id=i)
    assert stored(client, topic) == numbered(5)


def test_what_breaks_on_the_senders_thread_reaches_every_message_behind_it(house: RunningService, topic: str) -> None:
    with Interrupting(house.url) as client:
        producer: Producer[bytes] = Producer(topic, client=client, name="p", batch_max_messages=1)
        client.before = True
        futures = [producer.send_async(b"0")]
        for _ in range(20):
            try:
                futures.append(producer.send_async(b"x"))
            except ProducerStopped:
                break
        for future in futures:
            assert isinstance(future.exception(5), OncelogError)
        with pytest.raises(OncelogError):
            producer.close()


# --- the end


def test_flush_gives_up_after_its_timeout_and_the_messages_go_on(house: RunningService, topic: str) -> None:
    gate = threading.Event()

    def gated(request: Request) -> Answer:
        if request.path.endswith("/publish"):
            gate.wait(20)
        return forward(house.url, request)

    with fake_server(gated) as fake, Producer(topic, url=fake.url, name="p", linger=5) as producer:
        producer.flush(0)
        future = producer.send_async(b"0")
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            producer.flush(0.1)
        assert time.monotonic() - begin < 15
        gate.set()
        producer.flush(10)
        assert future.done()


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
                producer.flush(20)
                assert producer.send(b"y").status == "stored"
        finally:
            stop.set()
            thread.join()


def test_closing_sends_what_lingers_and_closing_twice_is_as_once(client: Client, topic: str) -> None:
    producer: Producer[bytes] = Producer(topic, client=client, name="closing", linger=60)
    futures = [producer.send_async(b"%d" % i) for i in range(5)]
    producer.close()
    producer.close()
    assert all(future.done() for future in futures)
    until(lambda: "oncelog-producer-closing" not in {thread.name for thread in threading.enumerate()}, "its thread ends")
    for send in (producer.send, producer.send_async):
        with pytest.raises(ProducerClosed):
            send(b"late")
    assert stored(client, topic) == numbered(5)
    assert client.topics()  # a client that was given is not closed


def test_an_exception_in_the_block_is_the_one_that_gets_out(client: Client, topic: str) -> None:
    with pytest.raises(ZeroDivisionError), Producer(topic, client=client, name="p", linger=5) as producer:  # noqa: PT012
        producer.send(b"0", sequence_id=0)
        producer.send_async(b"other", sequence_id=0)  # would be raised at the end
        producer.send_async(b"1", sequence_id=1)
        raise ZeroDivisionError
    assert stored(client, topic) == numbered(2)


def test_a_failure_nobody_asked_about_is_raised_at_the_end_of_the_block(client: Client, topic: str) -> None:
    with pytest.raises(SequenceReused), Producer(topic, client=client, name="p") as producer:  # noqa: PT012
        producer.send(b"0", sequence_id=0)
        producer.send_async(b"other", sequence_id=0)


def test_futures_nobody_keeps_cost_no_memory_once_they_are_settled(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        kept = [weakref.ref(producer.send_async(b"x")) for _ in range(3_000)]
        producer.flush()
        gc.collect()
        assert not [ref for ref in kept if ref() is not None]
        assert len(producer._queue) == 0
        assert producer._pending == 0


@pytest.mark.parametrize("fault", ["value", "key", "properties"])
def test_a_batch_in_which_one_cannot_be_encoded_leaves_nothing_sent(client: Client, topic: str, fault: str) -> None:
    values: list[Any] = [b"0", b"1", b"2"]
    keys: list[Any] = ["a", "b", "c"]
    properties: list[Any] = [{"n": "0"}, None, {}]
    {"value": values, "key": keys, "properties": properties}[fault][2] = 5 if fault != "properties" else {"n": 2}
    with Producer(topic, client=client, name="p", linger=0) as producer:
        with pytest.raises((TypeError, InvalidRequest)):
            producer.send_batch(values, keys=keys, properties=properties)
        producer.flush()
        producer.send(b"behind")
        assert producer.last_sequence_id == 0
    assert stored(client, topic) == [(0, b"behind")]


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
@pytest.mark.parametrize("option", ["linger", "delivery_timeout", "exit_timeout"])
def test_seconds_that_nobody_can_wait_for_are_refused(client: Client, topic: str, option: str, seconds: float) -> None:
    """The sender's thread would end, and flush() wait for it for ever."""
    with pytest.raises(ValueError, match=option):
        Producer(topic, client=client, **{option: seconds})  # type: ignore[call-overload]
