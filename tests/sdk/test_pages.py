"""Pages that are cut lazily hold what an Avro decoder finds in them, and refuse what that refuses."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from typing import Any

import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncelog import Message
from oncelog.errors import InvalidRequest
from oncelog.wire import codec
from oncelog.wire.avro_parts import encode_long, encode_varint
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.pages import read_page

SCHEMA = fastavro.parse_schema(codec.avro_source(ONCELOG_AVRO, "ConsumeResponse"))
NUMBERS = st.integers(0, 300) | st.sampled_from([2**31, 2**62, 2**63 - 1])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.just("x" * 70)
FIELDS = st.fixed_dictionaries(
    {
        "producer": st.none() | st.sampled_from(["p", "q", "ä" * 40]),
        "sequenceId": st.none() | NUMBERS,
        "key": st.none() | st.sampled_from([b"", b"a", b"k" * 63, b"k" * 64]),
        "properties": st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
        "ttl": st.none() | NUMBERS,
        "payload": st.sampled_from([b"", b"x", b"\x00" * 63, b"y" * 64, b"z" * 9_000]),
    }
)
STEPS = st.tuples(FIELDS, st.integers(1, 40), st.sampled_from([0, 0, 0, 1, 100]))
"""What some neighbours are like, how many they are, how many offsets are left out before them."""


def messages_of(steps: list[tuple[dict[str, Any], int, int]], first: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for fields, count, gap in steps:
        first += gap
        for at in range(count):
            number = fields["sequenceId"]
            rising = None if number is None else min(number + at, 2**63 - 1)
            record_id = (1_700_000_000_000 + first).to_bytes(8) + bytes(12)
            messages.append({"id": record_id, "offset": first, **fields, "sequenceId": rising})
            first += 1
    return messages


def encoded(messages: Sequence[dict[str, Any]], blocks: int = 1) -> bytes:
    """As one array of so many blocks, and what stands behind it."""
    cuts = [len(messages) * at // blocks for at in range(blocks + 1)]
    out = b""
    for begin, end in pairwise(cuts):
        part = codec.encode("ConsumeResponse", ONCELOG_AVRO, {"messages": messages[begin:end], "position": None})
        out += part[: -len(BEHIND) - 1]
    return out + b"\x00" + BEHIND


BEHIND = bytes(5)


@given(st.lists(STEPS, max_size=6), st.sampled_from([0, 60, 8_000, 2**40]), st.integers(1, 3))
def test_a_page_that_is_cut_holds_what_is_decoded_eagerly(
    steps: list[tuple[dict[str, Any], int, int]], first: int, blocks: int
) -> None:
    messages = messages_of(steps, first)
    body = encoded(messages, blocks if len(messages) >= blocks else 1)
    assert fastavro.schemaless_reader(BytesIO(body), SCHEMA, None)["messages"] == messages
    page, end = read_page(body, len(messages))
    assert (page, end) == (messages, len(body) - len(BEHIND))
    assert [dict(record) for record in page] == messages
    assert page.ids == [message["id"] for message in messages]
    assert [offset for run in page.offsets for offset in run] == [message["offset"] for message in messages]
    assert page.any_ttl is any(message["ttl"] is not None for message in messages)
    for lazy, eager in zip(map(Message, page), map(Message, messages), strict=True):
        assert (lazy, hash(lazy), repr(lazy)) == (eager, hash(eager), repr(eager))
        assert (lazy.producer, lazy.sequence_id, lazy.key, lazy.ttl) == (eager.producer, eager.sequence_id, eager.key, eager.ttl)
        assert (lazy.offset, lazy.message_id, lazy.publish_timestamp) == (eager.offset, eager.message_id, eager.publish_timestamp)
        assert (lazy.payload, lazy.properties) == (eager.payload, eager.properties)
        assert pickle.loads(pickle.dumps(lazy)) == eager
    if messages:
        with pytest.raises(InvalidRequest, match=f"more than {len(messages) - 1} messages"):
            read_page(body, len(messages) - 1)


def test_a_record_is_a_mapping_of_its_fields_and_equals_nothing_else() -> None:
    (message,) = messages_of(
        [({"producer": "p", "sequenceId": 1, "key": None, "properties": {"b": "1", "a": "2"}, "ttl": 5, "payload": b"x"}, 1, 0)],
        7,
    )
    (record,), _ = read_page(encoded([message]))
    assert (len(record), repr(record)) == (8, repr(message))
    turned = {**message, "properties": {"a": "2", "b": "1"}}
    assert record == read_page(encoded([turned]))[0][0], "the order of properties means nothing"
    assert record != {**message, "ttl": 6}
    assert record != [*message]
    with pytest.raises(KeyError):
        _ = record["value"]


def like(count: int, **fields: Any) -> tuple[dict[str, Any], int, int]:
    common = {"producer": "p", "sequenceId": 300, "key": b"k", "properties": {"a": "b"}, "ttl": 1, "payload": b"xy" * 40}
    return {**common, **fields}, count, 0


BODY = encoded(messages_of([like(8), like(1, producer="q"), like(2), like(1, sequenceId=None, key=None, payload=b"")], 60))


@settings(max_examples=max(200, settings().max_examples))  # any byte of some hundreds becomes any other
@given(st.integers(0, len(BODY) - 1), st.integers(0, 255), st.integers(0, 3))
@example(22, 0x01, 0)
@example(BODY.index(b"\x02p") - 1, 4, 0)
def test_what_is_found_well_formed_never_fails_later_and_is_what_a_decoder_finds(at: int, byte: int, cut: int) -> None:
    spoilt = bytearray(BODY)
    spoilt[at] = byte
    body = bytes(spoilt[: len(spoilt) - cut])
    try:
        page, end = read_page(body, 1_000)
    except InvalidRequest:
        return
    decoded: Any = fastavro.schemaless_reader(BytesIO(body[:end] + BEHIND), SCHEMA, None)
    assert page == decoded["messages"]
    assert [dict(record) for record in page] == decoded["messages"]


def test_a_page_that_is_cut_short_is_refused() -> None:
    for end in range(len(BODY) - len(BEHIND)):
        with pytest.raises(InvalidRequest):
            read_page(BODY[:end])


def test_a_number_without_end_and_a_block_of_the_other_form_are_refused() -> None:
    head = encode_long(1) + b"\x28" + bytes(20)
    largest = 2**63 - 1
    beyond = enumerate(
        [*map(encode_long, range(largest - 2, largest + 1)), encode_varint(2**64)]
    )  # foretold, were it not too large
    for wrong in (
        head + b"\xff" * 1_000_000,
        head + b"\x00\x00\x02" + b"\xff" * 1_000_000,
        head + b"\x00\x00\x02" + b"\xff" * 9 + b"\x7f" + bytes(5),
        head + b"\x01" + bytes(7),
        head + b"\x00\x04" + bytes(20),
        head + b"\x00\x00\x04" + bytes(20),
        head + b"\x00\x02\x02\xff" + bytes(20),
        head + bytes(3) + b"\x02\x01" + bytes(20),
        head + bytes(3) + b"\x04" + bytes(20),
        head + bytes(3) + b"\x00\x04" + bytes(20),
        head + bytes(3) + b"\x00\x00\x04" + bytes(20),
        head + bytes(6) + b"\x01" + bytes(20),
        head + bytes(6) + b"\x7e" + bytes(20),
        encode_long(-1) + encode_long(28) + head[1:] + bytes(8),
        encode_long(2) + head[1:] + bytes(8),
        encode_long(4)
        + b"".join(b"\x28" + bytes(20) + encode_long(at) + b"\x00\x02" + number + bytes(4) for at, number in beyond)
        + b"\x00",
    ):
        with pytest.raises(InvalidRequest):
            read_page(wrong)
    (record,), _ = read_page(head + bytes(3) + b"\x00\x02\x01" + bytes(20))
    assert record["properties"] == {"": ""}, "but a map's block may say its size, as Avro has it"
    (record,), _ = read_page(head + bytes(8))
    assert (record["id"], record["offset"], record["payload"]) == (bytes(20), 0, b"")
