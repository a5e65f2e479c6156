"""The transactional half of the TMS page: its schemas byte for byte, in avro/binary and in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog import Client
from oncelog.wire.avro_parts import encode_bytes, encode_long
from oncelog.wire.media import AVRO, JSON
from oncelog.wire.transaction import Transaction
from tests.rest.talk import MEDIA, Topic, assert_problem, avro_poll, avro_publish
from tests.support import ManualClock, RunningService, running_service

NOW = 1_000_000
"""The time of the clock here, ms; the first write pointer is a million times that."""
GOLDEN = bytes.fromhex(
    "0a000100000000000000030a000200000000000000030f00030a000000000f00040a0000000100000000000000020a0005000000000000000208"
    "0006000000010a000700000000000000030f00080a000000000800090000000100"
)
"""CONTRACT §8.4."""


def published(pointer: int, first: int, last: int) -> bytes:
    """A PublishResponse of rows in the millisecond NOW."""
    at = encode_long(NOW)
    return b"\x00" + encode_long(pointer) + at + encode_long(first) + at + encode_long(last)


def message(row: int, payload: bytes, payload_id: bytes = bytes(10)) -> bytes:
    return encode_bytes(NOW.to_bytes(8, "big") + row.to_bytes(2, "big") + payload_id) + encode_bytes(payload)


def in_group(row: int, place: int, payload: bytes) -> bytes:
    return message(row, payload, NOW.to_bytes(8, "big") + place.to_bytes(2, "big"))


def poll(topic: Topic, transaction: Transaction | None = None) -> bytes:
    seen_by = b"\x02" if transaction is None else b"\x00" + encode_bytes(transaction.to_bytes())
    answer = topic.post("/poll", b"\x04" + b"\x01" + b"\x02" + seen_by, AVRO)
    assert (answer.status_code, answer.headers["content-type"]) == (200, AVRO), answer.text
    return answer.content


def array(*items: bytes) -> bytes:
    return (encode_long(len(items)) if items else b"") + b"".join(items) + b"\x00"


def test_a_transaction_in_the_tms_form_byte_for_byte() -> None:
    with running_service(clock=ManualClock(NOW)) as service:
        topic, client = Topic(service.url), Client(service.url)
        transaction = client.start_transaction()
        pointer = encode_long(transaction.write_pointer)
        first = topic.post("/publish", b"\x00" + pointer + array(b"\x02a", b"\x04bc"), AVRO)
        assert (first.status_code, first.headers["content-type"]) == (200, AVRO)
        assert first.content == published(transaction.write_pointer, 0, 1)
        for payloads in (array(b"\x02x"), array(b"\x02y", b"\x00")):
            stored = topic.post("/store", b"\x00" + pointer + payloads, AVRO)
            assert (stored.status_code, stored.content) == (200, b"")
        group = topic.post("/publish", b"\x00" + pointer + array(), AVRO)
        assert group.content == published(transaction.write_pointer, 2, 2), "the one row that makes them appear"
        one = message(0, b"a") + message(1, b"bc")
        many = in_group(2, 0, b"x") + in_group(2, 1, b"y") + in_group(2, 2, b"")
        assert poll(topic) == poll(topic, transaction) == encode_long(5) + one + many + b"\x00"
        assert poll(topic, client.start_transaction()) == array()
        rolled_back = topic.post("/rollback", first.content, AVRO)
        assert rolled_back.status_code == 200, rolled_back.text
        assert poll(topic, transaction) == encode_long(3) + many + b"\x00"
        client.commit_transaction(transaction.write_pointer)
        assert poll(topic, client.start_transaction()) == encode_long(3) + many + b"\x00"
        assert poll(topic) == encode_long(5) + one + many + b"\x00"


def test_a_transaction_in_json() -> None:
    with running_service(clock=ManualClock(NOW)) as service:
        topic, client = Topic(service.url), Client(service.url)
        pointer = client.start_transaction().write_pointer
        first = topic.publish("a", "b", transactionWritePointer={"long": pointer})
        assert without_receipts(first.json()) == {
            "transactionWritePointer": {"long": pointer},
            "startTimestamp": NOW,
            "startSequenceId": 0,
            "endTimestamp": NOW,
            "endSequenceId": 1,
        }
        assert topic.store(pointer, "x", "y").status_code == 200
        group = topic.publish(transactionWritePointer=pointer)
        assert without_receipts(group.json())["startSequenceId"] == 2
        assert topic.payloads() == ["a", "b", "x", "y"]
        assert topic.roll_back_range(**without_receipts(first.json())).status_code == 200
        client.commit_transaction(pointer)
        assert topic.seen(client.start_transaction()) == ["x", "y"]


def without_receipts(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "receipts"}


@pytest.mark.parametrize("media", MEDIA)
def test_the_answer_of_a_publish_is_taken_back_as_it_came(running: RunningService, media: str) -> None:
    topic, client = Topic(running.url), Client(running.url)
    for stored in (False, True):
        transaction = client.start_transaction()
        if stored:
            topic.store_under(transaction.write_pointer, "a", "b")
        body = publish_body(media, transaction.write_pointer, () if stored else (b"a", b"b"))
        answer = topic.post("/publish", body, media)
        assert answer.status_code == 200, answer.text
        assert topic.seen(transaction) == ["a", "b"]
        for _ in range(2):
            assert topic.post("/rollback", answer.content, media).status_code == 200
            assert topic.seen(transaction) == []


def publish_body(media: str, pointer: int, messages: tuple[bytes, ...]) -> bytes:
    if media == JSON:
        return json.dumps({"transactionWritePointer": pointer, "messages": [each.decode() for each in messages]}).encode()
    return avro_publish(*messages, media=media, transactionWritePointer=pointer)


# --- the transaction of a poll ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(shared: RunningService) -> Topic:
    """A topic with one message, which nothing here changes."""
    topic = Topic(shared.url, "plain")
    assert topic.publish("plain").status_code == 200
    return topic


@pytest.fixture(autouse=True)
def nothing_changes(plain: Topic) -> Iterator[None]:
    yield
    assert plain.payloads() == ["plain"]


def poll_in(topic: Topic, media: str, transaction: bytes) -> Any:
    if media == JSON:
        return topic.poll(transaction=transaction.decode("latin-1"))
    return topic.post("/poll", avro_poll(media, transaction=transaction), media)


@pytest.mark.parametrize("media", MEDIA)
def test_the_golden_bytes_of_a_transaction_are_taken(plain: Topic, media: str) -> None:
    answer = poll_in(plain, media, GOLDEN)
    assert answer.status_code == 200, answer.text
    assert b"plain" in answer.content


@pytest.mark.parametrize("media", MEDIA)
def test_a_transaction_cut_short_anywhere_is_refused(plain: Topic, media: str) -> None:
    for end in range(len(GOLDEN)):
        assert_problem(poll_in(plain, media, GOLDEN[:end]), 400, "invalid_transaction")


@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize(
    "transaction",
    [
        GOLDEN + b"\x00",
        GOLDEN + GOLDEN,
        GOLDEN[:-1] + b"\x0a\x00\x01" + bytes(8) + b"\x00",
        GOLDEN.replace(b"\x0f\x00\x04\x0a\x00\x00\x00\x01", b"\x0f\x00\x04\x0a\x7f\xff\xff\xff"),
        GOLDEN.replace(b"\x0f\x00\x04\x0a\x00\x00\x00\x01", b"\x0f\x00\x04\x0a\xff\xff\xff\xff"),
        GOLDEN.replace(b"\x0f\x00\x04\x0a\x00\x00\x00\x01", b"\x0f\x00\x04\x08\x00\x00\x00\x01"),
        GOLDEN.replace(b"\x08\x00\x06\x00\x00\x00\x01", b"\x08\x00\x06\x00\x00\x00\x07"),
        GOLDEN.replace(b"\x08\x00\x09\x00\x00\x00\x01", b"\x08\x00\x09\x00\x00\x00\x00"),
        GOLDEN.replace(b"\x08\x00\x09", b"\x08\x00\x0a"),
        GOLDEN.replace(b"\x0a\x00\x07", b"\x0b\x00\x07"),
        b"\x80\x01\x00\x01" + GOLDEN,
        b"{}",
        b"",
        b"\x00",
        b"\x0c\x00\x01" * 4_000 + b"\x00",
    ],
    ids=[
        "a byte behind", "twice", "a field twice", "a list of two billion", "a list of minus one", "a list of i32", "no type",
        "no visibility", "an unknown field", "another type", "a message's head", "JSON", "nothing", "an empty struct", "nested",
    ],
)  # fmt: skip
def test_bytes_that_are_no_transaction_are_refused(plain: Topic, media: str, transaction: bytes) -> None:
    assert_problem(poll_in(plain, media, transaction), 400, "invalid_transaction")


def test_a_transaction_of_a_hundred_thousand_pointers_is_taken(running: RunningService) -> None:
    topic, client = Topic(running.url), Client(running.url)
    topic.publish("plain")
    started = client.start_transaction()
    many = Transaction(started.transaction_id, started.read_pointer, range(1, 100_000), write_pointer=started.write_pointer)
    assert b"plain" in poll(topic, many)


def test_lists_out_of_order_hide_what_they_name(running: RunningService) -> None:
    """Tephra looks a pointer up by bisection: an unsorted list of invalid ones leaked messages."""
    topic, client = Topic(running.url), Client(running.url)
    pointers = [client.start_transaction().write_pointer for _ in range(9)]
    for number, pointer in enumerate(pointers):
        topic.publish_under(pointer, f"m{number}")
    reader = client.start_transaction()
    shuffled = [pointers[at] for at in (5, 0, 7, 2, 6, 1, 4)]
    hiding = Transaction(reader.transaction_id, reader.transaction_id - 1, shuffled, write_pointer=reader.write_pointer)
    assert topic.seen(hiding) == ["m3", "m8"]
    stopping = Transaction(
        reader.transaction_id, reader.transaction_id - 1, [pointers[1], pointers[0]], [pointers[8], pointers[3], pointers[6]],
        write_pointer=reader.write_pointer,
    )  # fmt: skip
    assert topic.seen(stopping) == ["m2"]
