"""A reader over real HTTP: where it begins, what it counts as delivered, how it waits."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Consumer, MessageId, Producer, Reader, TransactionContext
from oncelog.errors import CodecError, InvalidTransaction, OffsetOutOfRange, StaleMessageId, TopicNotFound
from oncelog.wire.models import TopicAsked
from oncelog.wire.requests import ConsumeRequest, Polled
from tests.patience import PATIENCE, until
from tests.support import ManualClock, RunningService, ServiceProcess, running_service


def publish(client: Client, topic: str, n: int, begin: int = 0) -> list[MessageId]:
    with Producer(topic, client=client, name="p") as producer:
        receipts = producer.send_batch([b"%d" % i for i in range(begin, begin + n)])
    return [receipt.message_id for receipt in receipts if receipt.message_id is not None]


def rest(reader: Reader) -> list[int]:
    return [int(message.payload) for message in reader]


# --- where it begins


def test_from_earliest_everything_is_delivered_in_order(client: Client, topic: str) -> None:
    ids = publish(client, topic, 10)
    with Reader(topic, client=client, timeout=0) as reader:
        messages = list(reader)
    assert [message.message_id for message in messages] == ids
    assert [message.offset for message in messages] == list(range(10))


def test_from_latest_only_what_comes_afterwards(client: Client, topic: str) -> None:
    publish(client, topic, 3)
    with Reader(topic, client=client, start="latest", timeout=0) as reader:
        publish(client, topic, 2, begin=3)
        assert rest(reader) == [3, 4]


def test_from_latest_of_an_empty_topic_loses_nothing(client: Client, topic: str) -> None:
    with Reader(topic, client=client, start="latest", timeout=0) as reader:
        publish(client, topic, 2)
        assert rest(reader) == [0, 1]


def test_from_an_id_is_after_it_and_inclusive_is_at_it(client: Client, topic: str) -> None:
    ids = publish(client, topic, 5)
    for at in range(5):
        with Reader(topic, client=client, start=ids[at], timeout=0) as reader:
            assert reader.position == ids[at]
            assert rest(reader) == list(range(at + 1, 5))
        with Reader(topic, client=client, start=ids[at], inclusive=True, timeout=0) as reader:
            assert reader.position is None
            assert rest(reader) == list(range(at, 5))


def test_from_an_offset_is_at_it(client: Client, topic: str) -> None:
    publish(client, topic, 5)
    for offset in range(6):
        with Reader(topic, client=client, start=offset, timeout=0) as reader:
            assert rest(reader) == list(range(offset, 5))
    with Reader(topic, client=client, start=6, timeout=0) as reader, pytest.raises(OffsetOutOfRange) as caught:
        rest(reader)
    assert caught.value.upcoming == 5


def test_from_a_time_is_the_first_message_not_before_it(clock: ManualClock) -> None:
    with running_service(clock=clock) as house, Client(house.url) as client:
        client.create_topic("t")
        moments = []
        for i in range(4):
            publish(client, "t", 1, begin=i)
            moments.append(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=clock.ms))
            clock.advance(7)
        for i, moment in enumerate(moments):
            for shift, first in ((timedelta(), i), (timedelta(microseconds=1), i + 1), (-timedelta(microseconds=1), i)):
                there = (moment + shift).astimezone(timezone(timedelta(hours=-7)))
                with Reader("t", client=client, start=there, timeout=0) as reader:
                    assert rest(reader) == list(range(first, 4)), (i, shift)
        with Reader("t", client=client, start=datetime(1960, 1, 1, tzinfo=UTC), timeout=0) as reader:
            assert rest(reader) == [0, 1, 2, 3]


@pytest.mark.parametrize("start", [datetime(2026, 1, 1), "newest", "", -1, True, 1.5, None, b"x" * 20])  # noqa: DTZ001
def test_what_is_no_start_is_refused(client: Client, topic: str, start: Any) -> None:
    with pytest.raises(ValueError, match="start"):
        Reader(topic, client=client, start=start)


@pytest.mark.parametrize("size", [0, -1])
def test_a_page_or_a_limit_of_nothing_is_refused(client: Client, topic: str, size: int) -> None:
    with pytest.raises(ValueError, match="page_size"):
        Reader(topic, client=client, page_size=size)
    with Reader(topic, client=client) as reader, pytest.raises(ValueError, match="limit"):
        reader.read(size)


def test_an_unknown_topic_is_told_at_the_first_read(client: Client) -> None:
    with Reader("no-such-topic", client=client) as reader, pytest.raises(TopicNotFound):
        reader.read()
    with pytest.raises(TopicNotFound):
        Reader("no-such-topic", client=client, start="latest")


def test_an_id_of_a_deleted_generation_is_refused_not_mapped(client: Client, topic: str) -> None:
    ids = publish(client, topic, 3)
    client.delete_topic(topic)
    client.create_topic(topic)
    publish(client, topic, 3)
    with Reader(topic, client=client, start=ids[0], timeout=0) as reader, pytest.raises(StaleMessageId):
        rest(reader)


# --- what counts as delivered


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 5_000])
def test_any_page_size_delivers_each_message_once(client: Client, topic: str, page_size: int) -> None:
    publish(client, topic, 20)
    with Reader(topic, client=client, page_size=page_size, timeout=0) as reader:
        assert rest(reader) == list(range(20))
        publish(client, topic, 5, begin=20)
        assert rest(reader) == list(range(20, 25))


def test_a_failure_in_the_loop_loses_nothing_and_repeats_nothing(client: Client, topic: str) -> None:
    publish(client, topic, 20)
    seen: list[int] = []
    position: MessageId | None = None
    for fail_at in (0, 4, 5, 13, 99):
        with Reader(topic, client=client, start=position or "earliest", page_size=6, timeout=0) as reader:
            try:
                for message in reader:
                    seen.append(int(message.payload))
                    assert reader.position == message.message_id
                    if message.offset == fail_at:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            position = reader.position
    assert seen == list(range(20))


def test_what_is_fetched_ahead_is_not_delivered(client: Client, topic: str) -> None:
    ids = publish(client, topic, 5)
    with Reader(topic, client=client) as reader:
        assert reader.has_message_available()
        assert reader.position is None
        assert [message.offset for message in reader.read(2)] == [0, 1]
        assert reader.position == ids[1]
        assert reader.has_message_available()
        assert reader.position == ids[1]
        assert next(iter(reader)).offset == 2
        assert reader.position == ids[2]


def test_has_message_available_sees_the_end_and_what_comes_after_it(client: Client, topic: str) -> None:
    with Reader(topic, client=client) as reader:
        assert not reader.has_message_available()
        publish(client, topic, 1)
        assert reader.has_message_available()
        reader.read()
        assert not reader.has_message_available()
        publish(client, topic, 1, begin=1)
        assert reader.has_message_available()


def test_seek_goes_on_from_anywhere_and_drops_what_was_fetched_ahead(client: Client, topic: str) -> None:
    ids = publish(client, topic, 10)
    with Reader(topic, client=client, timeout=0) as reader:
        iterator = iter(reader)
        assert next(iterator).offset == 0
        reader.seek(ids[6])
        assert reader.position == ids[6]
        assert next(iterator).offset == 7
        reader.seek(ids[2], inclusive=True)
        assert next(iterator).offset == 2
        reader.seek(5)
        assert reader.position is None
        assert [message.offset for message in reader.read(2)] == [5, 6]
        reader.seek("latest")
        assert not reader.has_message_available()
        reader.seek("earliest")
        assert rest(reader) == list(range(10))


def test_a_seek_that_is_refused_leaves_the_reader_where_it_was(client: Client, topic: str) -> None:
    ids = publish(client, topic, 10)
    with Reader(topic, client=client, timeout=0, page_size=3) as reader:
        reader.read(2)
        with pytest.raises(ValueError, match="time zone"):
            reader.seek(datetime(2026, 1, 1))  # noqa: DTZ001
        assert reader.position == ids[1]
        assert rest(reader) == list(range(2, 10))


def test_read_hands_out_at_most_its_limit(client: Client, topic: str) -> None:
    publish(client, topic, 10)
    with Reader(topic, client=client, page_size=4) as reader:
        sizes = []
        while page := reader.read(3, timeout=0):
            sizes.append(len(page))
    assert sum(sizes) == 10
    assert max(sizes) == 3


# --- waiting


@pytest.mark.parametrize("timeout", [0, 0.0001, 0.05, -1])
def test_a_timeout_ends_reading_at_the_end_of_the_log(client: Client, topic: str, timeout: float) -> None:
    publish(client, topic, 3)
    begin = time.monotonic()
    with Reader(topic, client=client, timeout=timeout) as reader:
        assert rest(reader) == [0, 1, 2]
        assert reader.read(timeout=timeout) == []
    assert max(0, 2 * timeout) <= time.monotonic() - begin < 30


def test_a_waiting_reader_is_woken_by_a_publish(client: Client, topic: str) -> None:
    with Reader(topic, client=client) as reader, Producer(topic, client=client) as producer:
        sent: list[float] = []
        timer = threading.Timer(0.2, lambda: (sent.append(time.monotonic()), producer.send(b"0")))
        timer.start()
        assert [message.payload for message in reader.read()] == [b"0"]
        assert time.monotonic() - sent[0] < 30
        timer.join()


def test_reading_goes_on_over_a_restart_of_the_service(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service, Client(service.url) as client:
        client.create_topic("t")
        publish(client, "t", 10)
        with Reader("t", client=client, page_size=4, timeout=0) as reader:
            iterator = iter(reader)
            seen = [int(next(iterator).payload) for _ in range(3)]
            service.kill()
            restart = threading.Thread(target=service.start)
            restart.start()
            seen += [int(message.payload) for message in iterator]
            restart.join()
            publish(client, "t", 2, begin=10)
            seen += rest(reader)
    assert seen == list(range(12))


# --- what is delivered


def test_a_message_can_be_pickled_with_its_codec(client: Client, topic: str) -> None:
    with Producer[Any](topic, client=client, name="p", codec="json") as producer:
        producer.send({"a": 1}, key="k", properties={"x": "y"})
    with Reader(topic, client=client, codec="json", timeout=0) as reader:
        (message,) = reader
    copy = pickle.loads(pickle.dumps(message))
    assert copy == message
    assert hash(copy) == hash(message)
    assert (copy.value, copy.key, copy.properties, copy.sequence_id) == ({"a": 1}, b"k", {"x": "y"}, 0)


def test_a_payload_the_codec_cannot_read_fails_when_it_is_looked_at_and_reading_goes_on(client: Client, topic: str) -> None:
    with Producer(topic, client=client) as producer:
        producer.send_batch([b"1", b"{", b"3"])
    with Reader(topic, client=client, codec="json", timeout=0) as reader:
        first, broken, third = reader
    assert (first.value, broken.payload, third.value) == (1, b"{", 3)
    with pytest.raises(CodecError):
        _ = broken.value


def test_closing_a_reader_leaves_a_client_that_was_given_open(client: Client, topic: str, house: RunningService) -> None:
    reader = Reader(topic, client=client)
    reader.close()
    reader.close()
    assert client.healthy()
    with Reader(topic, url=house.url, timeout=0) as own:
        assert list(own) == []


# --- in a transaction ---------------------------------------------------------------------------------------------------


@pytest.fixture
def undecided(client: Client, topic: str) -> Iterator[TransactionContext]:
    """A transaction whose message lies between others."""
    with Producer(topic, client=client) as producer:
        producer.send(b"before")
        context = client.transaction()
        context.start()
        context.send(topic, b"undecided")
        context.checkpoint()
        producer.send(b"behind")
    yield context
    if context.state == "in_progress":
        context.abort()


def payloads(reader: Reader) -> list[bytes]:
    return [message.payload for message in reader]


@pytest.mark.parametrize("timeout", [None, 60.0, 0.0])
def test_reading_in_a_transaction_ends_before_what_is_undecided_without_waiting(
    client: Client, topic: str, undecided: TransactionContext, timeout: float | None
) -> None:
    begun = time.monotonic()
    with client.transaction() as tx, Reader(topic, client=client, transaction=tx, timeout=timeout) as reader:
        assert payloads(reader) == [b"before"]
        assert reader.read(timeout=timeout) == []
        assert not reader.has_message_available()
    assert time.monotonic() - begun < 30


def test_a_later_transaction_goes_on_from_the_position(client: Client, topic: str, undecided: TransactionContext) -> None:
    with client.transaction() as tx, Reader(topic, client=client, transaction=tx, timeout=0) as reader:
        assert payloads(reader) == [b"before"]
    undecided.finish()
    assert reader.position is not None
    with client.transaction() as tx, Reader(topic, client=client, transaction=tx, timeout=0, start=reader.position) as reader:
        assert payloads(reader) == [b"undecided", b"behind"]


def test_what_was_rolled_back_is_passed_over(client: Client, topic: str, undecided: TransactionContext) -> None:
    undecided.abort()
    with client.transaction() as tx, Reader(topic, client=client, transaction=tx, timeout=0) as reader:
        assert payloads(reader) == [b"before", b"behind"]


@pytest.mark.parametrize("form", ["context", "transaction", "bytes"])
def test_a_transaction_reads_its_own_messages_in_whichever_form_it_is_given(
    client: Client, topic: str, undecided: TransactionContext, form: str
) -> None:
    given = {"context": undecided, "transaction": undecided.transaction, "bytes": undecided.transaction.to_bytes()}[form]
    with Reader(topic, client=client, transaction=given, timeout=0) as reader:
        assert payloads(reader) == [b"before", b"undecided", b"behind"]


def test_without_a_transaction_everything_in_the_log_is_delivered(
    client: Client, topic: str, undecided: TransactionContext
) -> None:
    with Reader(topic, client=client, timeout=0) as reader:
        assert payloads(reader) == [b"before", b"undecided", b"behind"]


def test_at_the_end_of_the_log_a_reader_in_a_transaction_waits(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.reading.stream._WAIT_MS", 30)  # several polls long
    slow = Producer(topic, client=client, linger=0.2)
    with client.transaction() as tx, Reader(topic, client=client, transaction=tx) as reader, slow as producer:
        producer.send_async(b"soon")
        assert [message.payload for message in reader.read()] == [b"soon"]


def test_bytes_that_are_no_transaction_are_refused(client: Client, topic: str) -> None:
    with Reader(topic, client=client, transaction=b"nonsense", timeout=0) as reader, pytest.raises(InvalidTransaction):
        list(reader)


# --- how long it waits


@pytest.mark.parametrize("longest_ms", [60_000, 100], ids=["the service waits", "the service cuts waits short"])
def test_a_read_that_finds_nothing_takes_its_timeout_and_no_less(longest_ms: int) -> None:
    with running_service(max_wait_ms=longest_ms) as service, Client(service.url) as client:
        client.create_topic("t")
        asked: list[int] = []
        poll = client.poll

        def watched(topic: str, request: ConsumeRequest, *more: Any) -> Polled:
            asked.append(request.wait or 0)
            return poll(topic, request, *more)

        client.poll = watched  # type: ignore[method-assign]
        with client.transaction() as tx:
            for reader in (Reader("t", client=client), Reader("t", client=client, transaction=tx)):
                for timeout in (0.0, 0.45):
                    asked.clear()
                    began = time.monotonic()
                    assert reader.read(timeout=timeout) == []
                    assert time.monotonic() - began >= timeout
                    assert max(asked) <= timeout * 1000, "nobody is held for longer than asked"
                    assert len(asked) <= 4 + timeout * 1000 / 100, "nor asks again without having waited"


def test_waits_longer_than_the_service_allows_are_cut_to_what_it_does() -> None:
    with running_service(max_wait_ms=100) as service, Client(service.url) as client:
        client.create_topic("t")
        consumer = Consumer("t", "s", client=client)
        assert consumer.receive(timeout=0.25) == []
        assert client.offsets({"t": TopicAsked(after=0)}, wait=3_600)["t"].settled == 0
        assert client.poll("t", ConsumeRequest(wait=3_600_000)).messages == []
        reader = Reader("t", client=client)  # which asks for 20 s
        with Producer("t", client=client) as producer, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(reader.read)
            until(lambda: service.service.topics.opened)
            producer.send(b"0")
            assert [message.payload for message in waiting.result(PATIENCE)] == [b"0"]
