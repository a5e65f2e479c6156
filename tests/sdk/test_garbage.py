"""What no service answers is InvalidResponse: never another exception, never memory without end, never a message."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client, Consumer, MessageId, OncelogError, Producer, Reader
from oncelog.api.calls import decoded
from oncelog.api.plausible import check_columns, check_names_all, check_names_rise, check_page, check_receipts
from oncelog.errors import InvalidResponse
from oncelog.http.transport import MAX_ANSWER_BYTES, Transport
from oncelog.values.numbers import MAX_LONG
from oncelog.wire.avro_parts import encode_bytes, encode_long
from oncelog.wire.codec import decode_polled, encode
from oncelog.wire.columns import (
    MessageColumns,
    OffsetRun,
    ProducerRun,
    decode_message_columns,
    encode_message_columns,
    pack,
)
from oncelog.wire.isolation import headers_of
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.models import ReceiveMessages
from oncelog.wire.requests import CommitRequest, PublishRequest, ReceiptRun
from tests.sdk.fakes import Answer, fake_server

NOW = 1_700_000_000_000


def id_of(number: int) -> bytes:
    return bytes(MessageId(NOW + number, 0))


def record(offset: int, **other: object) -> dict[str, Any]:
    blank = {"producer": None, "sequenceId": None, "key": None, "properties": None, "ttl": None}
    return {"id": id_of(offset), "offset": offset, **blank, "payload": b"%d" % offset, **other}


def page(records: Sequence[dict[str, Any]], position: bytes | None) -> bytes:
    return encode("ConsumeResponse", ONCELOG_AVRO, {"messages": list(records), "position": position})


# --- pages

GOOD = [record(offset) for offset in range(3, 9)]
"""What is behind the message 2."""


def changed(at: int, **other: object) -> list[dict[str, Any]]:
    return [*GOOD[:at], {**GOOD[at], **other}, *GOOD[at + 1 :]]


def test_a_page_as_a_service_answers_it_is_taken() -> None:
    check_page(GOOD, id_of(8), start=id_of(2), limit=6)
    check_page(GOOD, id_of(20), start=id_of(3), inclusive=True)
    check_page(GOOD, id_of(8), start=NOW, first_offset=3)
    check_page(GOOD[::2], id_of(8), start=id_of(2))  # of the others, some have expired and some are rolled back
    check_page([], None, start=id_of(2))
    check_page([], id_of(2), start=id_of(2), inclusive=True)


def test_a_page_that_cannot_be_one_is_refused() -> None:
    bad: list[tuple[list[dict[str, Any]], bytes | None]] = [
        *[(changed(2, id=b"short"), id_of(8)), (changed(5, id=bytes(21)), id_of(8))],
        *[(changed(2, id=id_of(4)), id_of(8)), (changed(2, id=id_of(1)), id_of(8)), (changed(0, id=id_of(2)), id_of(8))],
        (changed(5, id=b"\x7f" + bytes(19)), b"\x7f" + bytes(19)),
        (changed(0, id=b"\x80" + bytes(19)), id_of(8)),
        *[(changed(2, offset=4), id_of(8)), (changed(2, offset=0), id_of(8)), (changed(0, offset=-1), id_of(8))],
        *[(GOOD[::-1], id_of(8)), (GOOD + GOOD, id_of(8)), (GOOD, id_of(7)), (GOOD, None), (GOOD, b"")],
        *[([], id_of(2)), ([], id_of(1)), ([], b"x" * 20)],
        ([record(offset) for offset in range(3, 30)], id_of(29)),
    ]
    for records, position in bad:
        with pytest.raises(InvalidResponse):
            check_page(records, position, start=id_of(2), limit=20)
    asked: list[dict[str, Any]] = [{"start": NOW + 100}, {"start": None, "first_offset": 100}]
    for each in asked:
        with pytest.raises(InvalidResponse):
            check_page(GOOD, id_of(8), **each)


@pytest.mark.usefixtures("twin")
def test_a_page_that_comes_again_is_not_delivered_again() -> None:
    again = Answer(body=page(GOOD, id_of(8)), headers=headers_of("committed"))
    with fake_server(lambda _: again) as fake, Client(fake.url, retry=0) as client:
        reader = Reader("t", client=client)
        assert [message.offset for message in reader.read()] == [3, 4, 5, 6, 7, 8]
        with pytest.raises(InvalidResponse, match=r"delivered already|come again"):
            reader.read()
        assert reader.position == MessageId.from_bytes(id_of(8))
        with pytest.raises(InvalidResponse):
            client.receive("t", "s", ReceiveMessages(epoch=1, after=reader.position, limit=20))


def test_a_page_of_nothing_but_messages_is_given_up_before_they_are_made() -> None:
    """Two million empty messages in 56 MB would be half a gigabyte of records."""
    empty = encode_bytes(bytes(20)) + bytes(7)
    body = encode_long(2_000_000) + empty * 2_000_000 + b"\x00\x00"
    blocks = b"".join([encode_long(2) + empty * 2] * 100_000) + b"\x00\x00"
    for each in (body, blocks):
        tracemalloc.start()
        with pytest.raises(Exception, match="more than 1000"):
            decode_polled(each, 1_000)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert held < len(each) + 5_000_000


# --- receipts, columns, listings


def runs(*given: tuple[object, ...]) -> list[ReceiptRun]:
    return [ReceiptRun(*each) for each in given]  # type: ignore[arg-type]


def check_answered(answered: list[ReceiptRun], sequence_ids: list[int]) -> None:
    """As a producer does, one after the other."""
    check_receipts(answered, len(sequence_ids))
    check_names_all(answered, sequence_ids)


def test_receipts_of_other_messages_are_refused() -> None:
    check_answered(runs(("duplicate", 1, 5, None, None), ("stored", 2, 6, id_of(0), 0)), [5, 6, 7])
    check_receipts(runs(("stored", 2, None, id_of(0), 0)), 2)
    for answered in (
        runs(),
        runs(("stored", 2, 5, id_of(0), 0)),
        runs(("stored", 4, 5, id_of(0), 0)),
        runs(("stored", 2**62, 5, None, None)),  # which would fill the memory
        runs(("stored", 3, 4, id_of(0), 0)),
        runs(("stored", 3, None, id_of(0), 0)),
        runs(("stored", -1, 5, None, None), ("stored", 4, 5, None, None)),
        runs(("stored", 0, 5, None, None), ("stored", 3, 5, None, None)),
        runs(("stored", 3, 5, b"short", 0)),
        runs(("stored", 3, 5, id_of(0)[:8] + b"\xff\xfe" + bytes(10), 0)),
        runs(("stored", 3, 5, id_of(0), -7)),
        runs(("stored", 3, 5, id_of(0), MAX_LONG)),
        runs(("stored", 1, 5, None, None), ("stored", 1, 7, None, None), ("stored", 1, 6, None, None)),
    ):
        with pytest.raises(InvalidResponse):
            check_answered(answered, [5, 6, 7])


@pytest.mark.usefixtures("twin")
def test_a_producer_is_opened_only_as_it_was_asked_for() -> None:
    good = {"name": "p", "epoch": 1, "lastSequenceId": None, "lastMessageId": None}
    changes: list[dict[str, object]] = [{"name": "other"}, {"epoch": 0}, {"epoch": 10**400}, {"epoch": None}]
    changes += [{"lastSequenceId": -1}, {"lastSequenceId": 2**63}, {"lastMessageId": "ff"}]
    answers = [{**good, **change} for change in changes] + [[], {"name": "p", "epoch": 1}]
    with fake_server(lambda _: Answer(body=json.dumps(answers[0]).encode())) as fake:
        while answers:
            with pytest.raises(InvalidResponse):
                Producer("t", name="p", url=fake.url)
            answers.pop(0)


COLUMNS = MessageColumns(
    next=6,
    offsets=[OffsetRun(3, 3)],
    message_ids=id_of(3) + id_of(4) + id_of(5),
    producers=[ProducerRun("p", 0, 3)],
    values=pack([b"a", b"b", b"c"]),
)


def int32(numbers: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def test_columns_that_cannot_be_of_the_range_are_refused() -> None:
    def taken(columns: MessageColumns) -> None:
        check_columns(decoded(decode_message_columns, encode_message_columns(columns)), 3, 10, 5)

    taken(COLUMNS)
    check_columns(COLUMNS._replace(offsets=[], message_ids=b"", producers=[]), 3, 10, 5)
    with pytest.raises(InvalidResponse, match="2 were asked for"):
        check_columns(COLUMNS, 3, 10, 2)
    for other in (
        *[{"next": 3}, {"next": 99}, {"next": 5}, {"offsets": [OffsetRun(2, 3)]}, {"offsets": [OffsetRun(4, 3)]}],
        {"offsets": [OffsetRun(4, 1), OffsetRun(3, 1), OffsetRun(5, 1)]},
        *[{"offsets": [OffsetRun(3, 2**62)]}, {"offsets": [OffsetRun(3, 3), OffsetRun(6, 0)]}],
        {"producers": [ProducerRun("p", 0, 4), ProducerRun(None, None, -1)]},
        *[{"message_ids": id_of(3) + id_of(5) + id_of(4)}, {"message_ids": bytes(59)}],
        *[{"producers": [ProducerRun("p", MAX_LONG, 3)]}, {"producers": [ProducerRun("p", -3, 3)]}],
        *({"values": COLUMNS.values._replace(positions=int32(at))} for at in ((0, 2, 1, 3), (1, 1, 2, 3), (0, 1, 2, 2), (0, 3))),
    ):
        with pytest.raises(InvalidResponse):
            taken(COLUMNS._replace(**other))  # type: ignore[arg-type]
    body = encode_message_columns(COLUMNS._replace(next=99))
    with fake_server(lambda _: Answer(body=body)) as fake, Client(fake.url) as client, pytest.raises(InvalidResponse):
        client.read_columns("t", 3, 10)


def test_a_listing_that_begins_anew_is_given_up() -> None:
    check_names_rise([b"a", b"b"], None)
    check_names_rise([b"b", b"c"], b"a")
    for names, after in (([b"b", b"a"], None), ([b"a", b"a"], None), ([b"a"], b"a"), ([b"a"], b"b")):
        with pytest.raises(InvalidResponse):
            check_names_rise(names, after)


# --- any answer

DEEP = b"[" * 200_000
CALLS: list[Callable[[Client], object]] = [
    *[Client.topics, Client.namespaces, lambda client: client.topic("t"), lambda client: client.stats("t")],
    *[lambda client: list(client.producers("t")), lambda client: list(client.subscriptions("t"))],
    *[lambda client: list(client.verify("t")), lambda client: list(client.backup("d"))],
    *[Client.start_transaction, lambda client: client.transaction_status(5), lambda client: client.commit_transaction(5)],
    *[lambda client: list(client.transactions()), lambda client: client.prune_transactions([1])],
    *[lambda client: client.publish_transactional("t", PublishRequest([])), lambda client: client.store("t", PublishRequest([]))],
    *[Client.begin_atomic, lambda client: client.commit_atomic("x", CommitRequest())],
    *[lambda client: Producer("t", client=client), lambda client: Consumer("t", "s", client=client)],
    *[lambda client: Reader("t", client=client).read(timeout=0), lambda client: client.read_columns("t", 0, 5)],
]


def test_whatever_answers_it_is_an_error_of_ours() -> None:
    problem = {"content-type": "application/problem+json"}
    answers = [
        *[Answer(body=body) for body in (b"", b"null", b"{}", b"[1]", DEEP, b"\xff" * 50)],
        *[Answer(body=body) for body in (b'{"of": "x", "messages": []}', b'{"problem": "x"}')],
        Answer(body=b"<html>Welcome to this hotel", headers={"content-type": "text/html"}),
        Answer(400, DEEP, problem),
        Answer(409, b'{"code": "offset_mismatch", "detail": {}, "definite": 5, "expected": [1]}', problem),
        *[Answer(307, b"", {"location": to}) for to in ("http://[", "http://" + "a" * 300 + "/")],
        Answer(307, DEEP, {"location": "/x", **problem}),
        Answer(200, b"", {"content-length": "5, 6"}),
    ]
    with fake_server(lambda _: answers[0]) as fake, Client(fake.url, retry=0, timeout=60) as client:
        while answers:
            for call in CALLS:
                with pytest.raises(OncelogError) as caught:
                    call(client)
                assert answers[0].status != 200 or not caught.value.definite
            answers.pop(0)
        answers.append(Answer(body=b"<html>", headers={"content-type": "text/html"}))
        with pytest.raises(InvalidResponse, match="HTML"):
            client.create_topic("t")
        assert not client.healthy()


@pytest.mark.usefixtures("twin")
def test_no_answer_is_read_for_ever_or_unpacked() -> None:
    packed = zlib.compress(bytes(50_000_000))
    answers = [
        Answer(body=packed, headers={"content-encoding": "deflate"}),
        Answer(body=b"x", claimed_length=10**15),
        Answer(body=b"x", claimed_length=MAX_ANSWER_BYTES + 1),
        Answer(body=bytes(2_000_000)),
        Answer(body=bytes(2_000_000), claimed_length=-1),
        Answer(500, bytes(20_000_000)),
    ]
    with fake_server(lambda _: answers[0]) as fake:
        transport = Transport(fake.url)
        while answers:
            tracemalloc.start()
            with pytest.raises(InvalidResponse):
                transport.call("GET", "/", most=1_000_000)
            held = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert held < 30_000_000, answers[0].status  # the fake server's own copies are among it
            answers.pop(0)


# --- at random


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_what_is_taken_of_a_page_rises_behind_what_was_asked(
    places: list[tuple[int, int]], position: int | None, inclusive: bool
) -> None:
    records = [{**record(offset), "id": id_of(number)} for number, offset in places]
    with suppress(InvalidResponse):
        check_page(records, None if position is None else id_of(position), start=id_of(2), inclusive=inclusive)
        placed = [(2 - inclusive, -1), *places]
        assert all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(placed))
        assert position is None or max(placed)[0] <= position


@given(
    st.lists(st.tuples(st.sampled_from(["stored", "duplicate"]), st.integers(-1, 4), st.none() | st.integers(-1, 4)), max_size=4)
)
def test_receipts_that_are_taken_name_what_was_sent(answered: list[tuple[str, int, int | None]]) -> None:
    with suppress(InvalidResponse):
        check_answered(runs(*((*each, None, None) for each in answered)), [0, 1, 2])
        assert [first + at for _, count, first in answered for at in range(count) if first is not None] == [0, 1, 2]
