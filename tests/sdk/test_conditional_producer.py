"""Expectations through a producer: who wins is stored, who loses fails alone, and no number is lost over it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from oncelog import Client, MessageId, Producer, Reader, Receipt
from oncelog.errors import (
    ConnectionFailed,
    ExpectationsNotChecked,
    InvalidRequest,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    ProducerStopped,
    RequestTooLarge,
    SequenceIdNotRising,
    SequenceReused,
)
from oncelog.producing.batching import Batch
from oncelog.wire.codec import decode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest, ReceiptRun
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, Request, fake_server, forward, problem
from tests.sdk.test_producer import on_a_thread
from tests.support import RunningService


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t-{uuid4().hex}"
    client.create_topic(name, {"check.expected.offsets": True})
    return name


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.api.retry.FIRST_SECONDS", 0.002)
    monkeypatch.setattr("oncelog.api.retry.LONGEST_SECONDS", 0.05)


def stored(client: Client, topic: str) -> list[tuple[int | None, bytes]]:
    with Reader(topic, client=client, timeout=0) as reader:
        return [(message.sequence_id, message.payload) for message in reader]


def fill(client: Client, topic: str, messages: int) -> None:
    """Another producer was here."""
    with Producer(topic, client=client, name="before") as producer:
        producer.send_batch([b"before"] * messages)


def mismatch(future: Future[Receipt]) -> tuple[int | str | None, int | str | None]:
    error = future.exception(10)
    assert isinstance(error, OffsetMismatch)
    assert error.definite
    return error.expected, error.actual


@contextmanager
def watched(
    house: RunningService, answer: Callable[[PublishRequest, Request], Answer | None] | None = None
) -> Iterator[tuple[str, list[PublishRequest]]]:
    """The service's address, and the publishes that arrive there; ``answer``: instead of the service's."""
    seen: list[PublishRequest] = []

    def handle(request: Request) -> Answer | None:
        if not request.path.endswith("/publish"):
            return forward(house.url, request)
        seen.append(decode_publish_request(ONCELOG_AVRO, request.body))
        return forward(house.url, request) if answer is None else answer(seen[-1], request)

    with fake_server(handle) as fake:
        yield fake.url, seen


# --- what is expected


def test_each_expectation_is_judged_and_told_by_expected_and_actual(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        first = producer.send(b"0", expected_offset=0, expected_last_id=MessageId.NONE, key="k", expected_key_offset=None)
        assert first.message_id is not None
        second = producer.send(b"1", expected_offset=1, expected_last_id=first.message_id, key=b"\xff", expected_key_offset=None)
        for options, told in (
            ({"expected_offset": 1}, ("offset", 1, 2, None)),
            ({"expected_last_id": first.message_id}, ("last_message_id", str(first.message_id), str(second.message_id), None)),
            ({"expected_last_id": MessageId.NONE}, ("last_message_id", None, str(second.message_id), None)),
            ({"key": "k", "expected_key_offset": None}, ("key_offset", None, 0, "k")),
            ({"key": b"\xff", "expected_key_offset": 0}, ("key_offset", 0, 1, "\xff")),
            ({"key": "new", "expected_key_offset": 0}, ("key_offset", 0, None, "new")),
        ):
            with pytest.raises(OffsetMismatch) as caught:
                producer.send(b"lost", **options)  # type: ignore[arg-type]
            error = caught.value
            assert (error.condition, error.expected, error.actual, error.key) == told
            assert error.definite
        assert producer.send(b"2", key="k", expected_key_offset=0).offset == 2
    assert stored(client, topic) == [(0, b"0"), (1, b"1"), (2, b"2")]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"expected_offset": -1}, InvalidRequest),
        ({"expected_offset": True}, InvalidRequest),
        ({"expected_offset": 2**63}, InvalidRequest),
        ({"expected_key_offset": None}, InvalidRequest),
        ({"expected_key_offset": 5}, InvalidRequest),
        ({"expected_key_offset": -1, "key": "k"}, InvalidRequest),
        ({"expected_last_id": bytes(20)}, TypeError),
    ],
)
def test_what_cannot_be_expected_is_refused_before_anything_is_sent(
    client: Client, topic: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with Producer(topic, client=client, name="p") as producer:
        with pytest.raises(error):
            producer.send(b"x", **options)
        assert producer.send(b"0").sequence_id == 0


def test_a_topic_that_checks_nothing_refuses_what_expects_something_and_the_producer_goes_on(client: Client) -> None:
    name = f"t-{uuid4().hex}"
    client.create_topic(name)
    with Producer(name, client=client, name="p", linger=5) as producer:
        futures = [producer.send_async(b"x", expected_offset=at) for at in range(3)]
        futures.append(producer.send_async(b"plain"))
        with pytest.raises(ExpectationsNotChecked):
            producer.flush()
        assert [type(future.exception()) for future in futures] == [ExpectationsNotChecked] * 3 + [type(None)]
    assert stored(client, name) == [(3, b"plain")]


# --- what shares a request


def test_only_offsets_that_follow_on_share_a_request_with_what_is_before_them(
    house: RunningService, client: Client, topic: str
) -> None:
    with watched(house) as (url, seen), Producer(topic, url=url, name="p", linger=5) as producer:
        producer.send_async(b"0")
        producer.send_async(b"1", expected_offset=1)
        producer.send_async(b"2", expected_offset=2)
        producer.send_async(b"3")
        producer.send_async(b"4", expected_offset=4, key="k", expected_key_offset=None)
        producer.send_async(b"5", expected_offset=5)
        producer.flush()
    sent = [(len(request.payloads), request.expected_offset, request.expected_key_offsets) for request in seen]
    assert sent == [(1, None, None), (2, 1, None), (1, None, None), (1, 4, {"k": None}), (1, 5, None)]
    assert stored(client, topic) == [(at, b"%d" % at) for at in range(6)]


def test_messages_of_a_batch_have_keys_and_properties_of_their_own(house: RunningService, client: Client, topic: str) -> None:
    with Producer(topic, url=house.url, name="p") as producer, Reader(topic, url=house.url, timeout=0) as reader:
        producer.send_batch([b"a", b"b"], keys=["k", None], properties=[None, {"n": "1"}])
        producer.send_batch([b"c", b"d"], keys=[b"l", "m"], properties=[{"n": "2"}, None], expected_offset=2)
        for wrong in ({"keys": ["k"]}, {"properties": [None] * 3}):
            for more in ({}, {"expected_offset": 4}):
                with pytest.raises(InvalidRequest, match="for 2 messages"):
                    producer.send_batch([b"x", b"y"], **wrong, **more)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a key is bytes or str"):
            producer.send_batch([b"x", b"y"], keys=["k", 1], expected_offset=4)  # type: ignore[list-item]
        found = [(each.payload, each.key, dict(each.properties or {})) for each in reader]
    assert found == [(b"a", b"k", {}), (b"b", None, {"n": "1"}), (b"c", b"l", {"n": "2"}), (b"d", b"m", {})]


def test_a_batch_that_expects_something_is_one_request_and_all_of_it_is_stored_or_nothing(
    house: RunningService, client: Client, topic: str
) -> None:
    fill(client, topic, 2)
    with watched(house) as (url, seen), Producer(topic, url=url, name="p", batch_max_messages=10) as producer:
        producer.send_async(b"before it")
        receipts = producer.send_batch([b"x"] * 50, expected_offset=3)
        assert (producer._pending, producer._pending_bytes) == (0, 0)
        assert [receipt.offset for receipt in receipts] == list(range(3, 53))
        assert [len(request.payloads) for request in seen] == [1, 50]
        last = receipts[-1].message_id
        with pytest.raises(OffsetMismatch) as caught:
            producer.send_batch([b"y"] * 50, expected_offset=40)
        assert (caught.value.expected, caught.value.actual) == (40, 53)
        with pytest.raises(RequestTooLarge):
            producer.send_batch([b"y" * 1_000_000] * 9, expected_last_id=last)
        assert len(producer.send_batch([b"z"] * 2, expected_last_id=last)) == 2
        assert producer.send_batch([], expected_offset=7) == []
    assert [payload for _, payload in stored(client, topic)] == [b"before"] * 2 + [b"before it"] + [b"x"] * 50 + [b"z"] * 2


def test_a_batch_whose_numbers_cannot_be_takes_none_of_them(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send_batch([b"1", b"5"], sequence_ids=[1, 5])
        for bad, error in (([7, 4], SequenceIdNotRising), ([8, 8], SequenceIdNotRising), ([9, "10"], InvalidRequest)):
            with pytest.raises(error):
                producer.send_batch([b"x", b"x"], sequence_ids=bad, expected_offset=2)  # type: ignore[arg-type]
        assert producer.send(b"6", sequence_id=6).offset == 2


# --- one message's fault


def test_one_answer_judges_every_message_of_a_request_and_who_expects_the_upcoming_offset_wins(
    house: RunningService, client: Client, topic: str
) -> None:
    fill(client, topic, 30)
    with watched(house) as (url, seen):
        producer: Producer[bytes] = Producer(topic, url=url, name="p", linger=5)
        futures = [producer.send_async(b"%d" % at, expected_offset=at) for at in range(10, 60)]
        with pytest.raises(OffsetMismatch):
            producer.flush()
        assert [mismatch(future) for future in futures[:20]] == [(at, 30) for at in range(10, 30)]
        assert [future.result().offset for future in futures[20:]] == list(range(30, 60))
        ahead = [producer.send_async(b"ahead", expected_offset=at) for at in range(100, 150)]
        behind = producer.send_async(b"behind")
        with pytest.raises(OffsetMismatch):
            producer.flush()
        assert [mismatch(future) for future in ahead] == [(at, 60) for at in range(100, 150)]
        assert behind.result().offset == 60
        producer.close()
    assert len(seen) == 4


def test_a_writer_that_is_overtaken_before_each_of_its_requests_hears_of_every_message(house: RunningService, topic: str) -> None:
    class Overtaken(Client):
        def publish(self, topic: str, request: PublishRequest, namespace: str = "default") -> list[ReceiptRun]:
            raise OffsetMismatch(condition="offset", expected=request.expected_offset, actual=next(upcoming), topic=topic)

    upcoming = count(1)
    with Overtaken(house.url) as client:
        producer: Producer[bytes] = Producer(topic, client=client, name="p", linger=5)
        futures = [producer.send_async(b"x", expected_offset=at) for at in range(600)]
        with pytest.raises(OffsetMismatch):
            producer.flush()
        assert [mismatch(future) for future in futures] == [(at, at + 1) for at in range(600)]
        producer.close()


def test_what_is_stored_already_is_a_duplicate_even_in_one_request_with_what_lost(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        first = producer.send_batch([b"%d" % at for at in range(5)], sequence_ids=range(5), expected_offset=0)
    fill(client, topic, 1)
    producer = Producer(topic, client=client, name="p", linger=5)
    futures = [producer.send_async(b"%d" % at, sequence_id=at, expected_offset=at) for at in range(10)]
    with pytest.raises(OffsetMismatch):
        producer.flush()
    assert [(future.result().status, future.result().offset) for future in futures[:5]] == [
        ("duplicate", receipt.offset) for receipt in first
    ]
    assert mismatch(futures[5]) == (5, 6)
    assert [future.result().offset for future in futures[6:]] == list(range(6, 10))
    producer.close()


def test_a_repeated_batch_is_answered_with_its_receipts_whatever_the_topic_is_now(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        first = producer.send_batch([b"a", b"b"], sequence_ids=[0, 1], expected_offset=0)
    fill(client, topic, 3)
    with Producer(topic, client=client, name="p") as producer:
        again = producer.send_batch([b"a", b"b"], sequence_ids=[0, 1], expected_offset=0)
    assert [(r.status, r.offset, r.message_id) for r in again] == [("duplicate", r.offset, r.message_id) for r in first]


def test_a_faulty_message_among_those_that_follow_on_is_found_and_those_behind_it_expected_too_much(
    client: Client, topic: str
) -> None:
    with Producer(topic, client=client, name="p", linger=5, batch_max_bytes=10**9) as producer:
        payloads = [b"x" * (9_000_000 if at == 5 else 1) for at in range(10)]
        futures = [producer.send_async(payload, expected_offset=at) for at, payload in enumerate(payloads)]
        with pytest.raises(RequestTooLarge):
            producer.flush()
        assert [future.result().offset for future in futures[:5]] == list(range(5))
        assert isinstance(futures[5].exception(), RequestTooLarge)
        assert [mismatch(future) for future in futures[6:]] == [(at, 5) for at in range(6, 10)]


# --- the numbers of what was refused


@pytest.mark.parametrize(
    ("payload", "options"),
    [(b"x", {"expected_offset": 9}), (b"x", {"key": "k", "expected_key_offset": 9}), (b"x" * 9_000_000, {})],
)
def test_the_number_of_what_was_refused_is_the_next_messages(
    client: Client, topic: str, payload: bytes, options: dict[str, Any]
) -> None:
    with Producer(topic, client=client, name="p", gaps="refuse") as producer:
        producer.send(b"0")
        for _ in range(2):
            with pytest.raises(OncelogError):
                producer.send(payload, **options)
        assert producer.send(b"1").sequence_id == 1
        with pytest.raises(OffsetMismatch):
            producer.send_batch([b"lost"] * 5, expected_offset=9)
        assert [receipt.sequence_id for receipt in producer.send_batch([b"2", b"3"], expected_offset=2)] == [2, 3]
    assert [number for number, _ in stored(client, topic)] == [0, 1, 2, 3]


def test_the_number_of_what_was_refused_stays_empty_when_something_was_sent_behind_it(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", linger=5) as producer:
        lost = producer.send_async(b"lost", expected_offset=9)
        behind = producer.send_async(b"behind")
        with pytest.raises(OffsetMismatch):
            producer.flush()
        assert isinstance(lost.exception(), OffsetMismatch)
        assert behind.result().sequence_id == 1
        assert producer.send(b"next").sequence_id == 2


def test_an_initial_number_that_was_refused_is_still_the_first(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p", initial_sequence_id=100) as producer:
        with pytest.raises(OffsetMismatch):
            producer.send(b"lost", expected_offset=1)
        assert producer.send(b"first").sequence_id == 100


def test_a_number_of_the_callers_own_may_be_sent_again_until_something_is_sent_behind_it(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"3", sequence_id=3)
        for _ in range(2):
            with pytest.raises(OffsetMismatch):
                producer.send(b"8", sequence_id=8, expected_offset=0)
        assert producer.send(b"8", sequence_id=8, expected_offset=1).status == "stored"
        with pytest.raises(OffsetMismatch):
            producer.send(b"11", sequence_id=11, expected_offset=0)
        assert producer.send(b"10", sequence_id=10).status == "stored"  # nothing above 8 was used
        with pytest.raises(OffsetMismatch):
            producer.send(b"12", sequence_id=12, expected_offset=0)
        producer.send(b"13", sequence_id=13)
        with pytest.raises(SequenceIdNotRising):  # the service would call it a duplicate
            producer.send(b"12", sequence_id=12)
        assert producer.send(b"10", sequence_id=10).status == "duplicate"
    assert stored(client, topic) == [(3, b"3"), (8, b"8"), (10, b"10"), (13, b"13")]


def test_a_number_that_is_stored_is_never_given_back(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"3", sequence_id=3)
        with pytest.raises(SequenceReused):
            producer.send(b"other", sequence_id=3, expected_offset=1)
        with pytest.raises(RequestTooLarge):
            producer.send(b"x" * 9_000_000, sequence_id=3)
        with pytest.raises(SequenceIdNotRising):
            producer.send(b"2", sequence_id=2)
        assert producer.send(b"3", sequence_id=3).status == "duplicate"


def test_a_transaction_that_is_rolled_back_gives_back_no_number_that_was_refused_before_it(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"0")
        with pytest.raises(OffsetMismatch):
            producer.send(b"lost", expected_offset=0)
        with pytest.raises(ZeroDivisionError), client.transaction() as tx:  # noqa: PT012
            tx.send(topic, b"undone", producer=producer)
            raise ZeroDivisionError
        assert producer.send(b"1").sequence_id == 1


def test_a_number_that_is_refused_while_a_transaction_waits_for_the_producer_is_unused_in_it(
    house: RunningService, client: Client, topic: str
) -> None:
    gate, waiting = threading.Event(), threading.Event()

    def gated(_: PublishRequest, request: Request) -> Answer:
        waiting.set()
        gate.wait(20)
        return forward(house.url, request)

    def lose() -> None:
        with pytest.raises(OffsetMismatch):
            producer.send(b"lost", expected_offset=9)

    with watched(house, gated) as (url, _), Producer(topic, url=url, name="p") as producer:
        losing = threading.Thread(target=lose)
        losing.start()
        waiting.wait(PATIENCE)
        holding = threading.Thread(target=producer._hold, args=(5,))
        holding.start()
        while producer._held is None:
            holding.join(0.001)
        gate.set()
        losing.join(PATIENCE)
        holding.join(PATIENCE)
        producer._roll_back()
        assert producer.send(b"0").sequence_id == 0


# --- losses on the way


def test_a_send_whose_answer_was_lost_is_told_that_it_won(
    house: RunningService, client: Client, topic: str, quick_retries: None
) -> None:
    losses = iter([True])

    def lose_the_first(_: PublishRequest, request: Request) -> Answer | None:
        answer = forward(house.url, request)
        if next(losses, False):
            fill(client, topic, 2)
            return None
        return answer

    with watched(house, lose_the_first) as (url, seen), Producer(topic, url=url, name="p") as producer:
        receipt = producer.send(b"won", expected_offset=0, expected_last_id=MessageId.NONE, key="k", expected_key_offset=None)
        assert (receipt.status, receipt.offset) == ("duplicate", 0)
        assert len(seen) == 2
        assert producer.send(b"next", expected_offset=3).offset == 3


def test_who_lost_behind_a_lost_request_is_told_so_for_good(
    house: RunningService, client: Client, topic: str, quick_retries: None
) -> None:
    losses = iter([True])

    def lose_the_first(_: PublishRequest, request: Request) -> Answer | None:
        if next(losses, False):
            fill(client, topic, 2)
            return None
        return forward(house.url, request)

    with watched(house, lose_the_first) as (url, _), Producer(topic, url=url, name="p", gaps="refuse") as producer:
        with pytest.raises(OffsetMismatch) as caught:
            producer.send(b"lost", expected_offset=0)
        assert caught.value.definite
        assert producer.send(b"next").sequence_id == 0


def test_a_mismatch_that_may_still_turn_while_an_earlier_try_is_on_its_way_stops_the_producer(
    house: RunningService, topic: str, quick_retries: None
) -> None:
    losses = iter([True])

    def lose_the_first(_: PublishRequest, request: Request) -> Answer | None:
        return None if next(losses, False) else forward(house.url, request)

    with watched(house, lose_the_first) as (url, _):
        producer: Producer[bytes] = Producer(topic, url=url, name="p")
        with pytest.raises(OffsetMismatch) as caught:
            producer.send(b"ahead", expected_offset=1)
        assert not caught.value.definite
        with pytest.raises(ProducerStopped):
            producer.send(b"next")
        producer.close()


def test_a_key_in_a_transaction_is_waited_for_and_then_fails_alone(
    house: RunningService, client: Client, topic: str, quick_retries: None
) -> None:
    refusals = iter([problem(409, "key_in_transaction", key="k", write_pointer=5)] * 3)

    def undecided_for_a_while(publish: PublishRequest, request: Request) -> Answer | None:
        if publish.payloads[0] == b"never":
            return problem(409, "key_in_transaction", key="k", write_pointer=5)
        return next(refusals, None) or forward(house.url, request)

    with watched(house, undecided_for_a_while) as (url, seen):
        with Producer(topic, url=url, name="p") as producer:
            assert producer.send(b"0", key="k", expected_key_offset=None).offset == 0
        assert len(seen) == 4
        with Producer(topic, url=url, name="p", delivery_timeout=0.1) as producer:
            with pytest.raises(KeyInTransaction) as caught:
                producer.send(b"never", key="k", expected_key_offset=0)
            assert (caught.value.write_pointer, caught.value.definite) == (5, True)
            assert producer.send(b"1").sequence_id == 1


def test_a_check_that_was_switched_off_behind_a_lost_answer_leaves_it_open(
    house: RunningService, topic: str, quick_retries: None
) -> None:
    losses = iter([True])

    def switched_off(_: PublishRequest, __: Request) -> Answer | None:
        return None if next(losses, False) else problem(409, "expectations_not_checked")

    with watched(house, switched_off) as (url, _):
        producer: Producer[bytes] = Producer(topic, url=url, name="p")
        with pytest.raises(ExpectationsNotChecked) as caught:
            producer.send(b"x", expected_offset=0)
        assert not caught.value.definite
        with pytest.raises(ProducerStopped):
            producer.send(b"x")
        producer.close()


def test_what_was_told_that_it_lost_is_not_judged_again_after_an_interruption(
    house: RunningService, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(house) as (url, seen), Producer(topic, url=url, name="p") as producer:
        deliver = producer._deliver

        def interrupted_behind(batch: Batch) -> None:
            deliver(batch)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(producer, "_deliver", interrupted_behind)
            with pytest.raises(KeyboardInterrupt):
                on_a_thread(lambda: producer.send(b"lost", expected_offset=2))
        fill(client, topic, 2)
        assert producer.send(b"next", expected_offset=2).offset == 2
        assert len(seen) == 2
    assert [payload for _, payload in stored(client, topic)] == [b"before", b"before", b"next"]


def test_producers_race_for_each_offset_and_nobody_is_told_the_wrong_thing(
    house: RunningService, client: Client, topic: str
) -> None:
    won: dict[int, bytes] = {}
    behind: list[bool] = []

    def race(name: bytes) -> None:
        with Producer(topic, url=house.url, name=name.decode()) as producer:
            offset = 0
            while offset < 40:
                try:
                    receipt = producer.send(name, expected_offset=offset)
                except OffsetMismatch as error:
                    behind.append(int(error.actual or 0) > offset)
                    offset += 1
                else:
                    won[offset] = name
                    behind.append(receipt.offset == offset)

    threads = [threading.Thread(target=race, args=(b"p%d" % number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [payload for _, payload in stored(client, topic)] == [won[offset] for offset in range(40)]
    assert all(behind)


def test_a_service_that_stays_away_stops_the_producer_as_for_any_message(
    house: RunningService, topic: str, quick_retries: None
) -> None:
    with watched(house, lambda *_: None) as (url, _):
        producer: Producer[bytes] = Producer(topic, url=url, name="p", delivery_timeout=0.2)
        with pytest.raises(ConnectionFailed) as caught:
            producer.send(b"x", expected_offset=0)
        assert not caught.value.definite
        with pytest.raises(ProducerStopped):
            producer.send(b"x", expected_offset=0)
        producer.close()
