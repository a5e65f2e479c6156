"""A reader over real HTTP: where it begins, what it counts as delivered, how it waits. Where it goes next is in test_position."""

from __future__ import annotations

import time
from datetime import datetime
from itertools import islice
from typing import Any

import pytest

from oncelog import Client, MessageId, Producer, Reader
from oncelog.errors import OffsetOutOfRange, StaleMessageId, TopicNotFound
from oncelog.wire.requests import ConsumeRequest, Polled
from oncelog.wire.transaction import Transaction
from tests.sdk.test_position import NOTHING, page

pytestmark = pytest.mark.usefixtures("twin")


def publish(client: Client, topic: str, n: int, begin: int = 0) -> list[MessageId]:
    with Producer(topic, client=client, name="p") as producer:
        receipts = producer.send_batch([b"%d" % i for i in range(begin, begin + n)])
    return [receipt.message_id for receipt in receipts if receipt.message_id is not None]


def rest(reader: Reader, limit: int | None = None) -> list[int]:
    return [int(message.payload) for message in islice(reader, limit)]


@pytest.mark.parametrize("start", ["latest", MessageId.parse("ff" * 20)])
def test_from_latest_only_what_comes_afterwards(client: Client, topic: str, start: Any) -> None:
    with Reader(topic, client=client, start=start, timeout=0) as empty:
        publish(client, topic, 2)
        with Reader(topic, client=client, start=start, timeout=0) as filled:
            publish(client, topic, 2, begin=2)
            assert (rest(empty), rest(filled)) == ([0, 1, 2, 3], [2, 3])


def test_what_cannot_be_is_refused(client: Client, topic: str) -> None:
    options: list[dict[str, Any]] = [{"start": "newest"}, {"page_size": 0}, {"on_expired": "ignore"}]
    for wrong in options:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Reader(topic, client=client, **wrong)
    with Reader(topic, client=client) as reader, pytest.raises(ValueError, match="limit"):
        reader.read(0)


def test_what_is_not_there_is_told_at_the_first_read(client: Client, topic: str) -> None:
    old = publish(client, topic, 3)[0]
    with Reader(topic, client=client, start=4) as reader, pytest.raises(OffsetOutOfRange) as caught:
        reader.read()
    assert caught.value.upcoming == 3
    client.delete_topic(topic)
    with Reader(topic, client=client) as reader, pytest.raises(TopicNotFound):
        reader.read()
    with pytest.raises(TopicNotFound):
        Reader(topic, client=client, start="latest")
    client.create_topic(topic)
    publish(client, topic, 3)
    with Reader(topic, client=client, start=old) as reader, pytest.raises(StaleMessageId, match=r"the oldest; .*reset\(\)"):
        reader.read()


def test_what_is_polled_ahead_is_not_delivered_and_a_seek_drops_it(client: Client, topic: str) -> None:
    ids = publish(client, topic, 10)
    with Reader(topic, client=client, timeout=0) as reader:
        assert reader.has_message_available()
        assert reader.position is None
        assert [message.offset for message in reader.read(2)] == [0, 1]
        iterator = iter(reader)
        assert (reader.position, next(iterator).offset, reader.position) == (ids[1], 2, ids[2])
        reader.seek(ids[6])
        assert (reader.position, next(iterator).offset) == (ids[6], 7)
        with pytest.raises(ValueError, match="time zone"):
            reader.seek(datetime(2026, 1, 1))  # noqa: DTZ001
        assert [message.offset for message in reader.read(1)] == [8]
        reader.seek("latest")
        assert not reader.has_message_available()
        reader.seek("earliest")
        assert rest(reader) == list(range(10))


def test_closing_a_reader_leaves_a_client_that_was_given_open(client: Client, topic: str) -> None:
    reader = Reader(topic, client=client)
    reader.close()
    reader.close()
    assert client.healthy()


# --- waiting


class Scripted(Client):
    """Answers polls with what it was given, one after the other, and then with nothing."""

    def __init__(self, *answers: Polled) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = list(answers)
        self.asked: list[ConsumeRequest] = []

    def poll(self, topic: str, request: ConsumeRequest, namespace: str = "default") -> Polled:
        self.asked.append(request)
        assert len(self.asked) < 1_000, "it asks for ever"
        if self.answers:
            return self.answers.pop(0)
        time.sleep(0.001)  # a service holds a request that finds nothing, or a short wait would be a thousand of them
        return NOTHING


ROLLED_BACK = Polled([], page(1).position, 1)
UNDECIDED = Polled([], None, 1)


def test_how_long_it_asks_to_be_held() -> None:
    with Scripted(ROLLED_BACK, NOTHING, page(2)) as client:
        assert [message.offset for message in Reader("t", client=client).read()] == [2]
        assert [request.wait for request in client.asked] == [20_000] * 3
        client.asked.clear()
        assert Reader("t", client=client).read(timeout=0.02) == []
        assert all(0 <= (request.wait or 0) <= 20 for request in client.asked)
        assert list(Reader("t", client=client, timeout=0)) == []
        assert Reader("t", client=client, timeout=0).read() == [], "its own timeout, unless another is given"
        assert client.asked[-1].wait == 0


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_in_a_transaction_it_ends_before_what_is_undecided_and_waits_at_the_end_of_the_log(timeout: float | None) -> None:
    with Scripted(NOTHING, page(1), UNDECIDED, UNDECIDED) as client:
        reader = Reader("t", client=client, transaction=b"tx", timeout=timeout)
        assert [message.offset for message in reader] == [1]
        assert not reader.has_message_available()
        assert [request.transaction for request in client.asked] == [b"tx"] * 4


def test_whether_there_is_more_is_asked_past_what_is_passed_over_or_has_expired() -> None:
    long_ago = page(0, now_ms=10**15, ttl_ms=1)
    with Scripted(long_ago, ROLLED_BACK, page(2), NOTHING) as client:
        reader = Reader("t", client=client)
        assert reader.has_message_available()
        assert reader.has_message_available()
        assert [message.offset for message in reader.read()] == [2]
        assert not reader.has_message_available()
        assert not client.answers


# --- in a transaction ---------------------------------------------------------------------------------------------------


class Begun:
    transaction = Transaction(1, 1, write_pointer=1)


def test_a_transaction_is_given_in_any_form_and_asked_for_its_checkpoints() -> None:
    """What it sees of a log is proved in tests/service/test_pages."""
    begun, first, second = Begun(), Begun.transaction, Transaction(1, 1, write_pointer=2)
    for given in (begun, first, first.to_bytes()):
        with Scripted() as client, Reader("t", client=client, transaction=given) as reader:
            reader.read(timeout=0)
            begun.transaction = second
            reader.read(timeout=0)
            expected = second if given is begun else first
            assert [request.transaction for request in client.asked] == [first.to_bytes(), expected.to_bytes()]
