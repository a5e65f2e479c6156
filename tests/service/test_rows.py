"""A row comes back as it was written, damaged ones are refused, and the bytes on disk never change their meaning.

Messages with and without a transaction, stored groups, the Payload Table, and the small tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import crc32

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.wire.codec import avro_source
from oncelog.wire.media import AVRO, ONCELOG_AVRO
from oncelog_service.storage.fields import GROUP, PREVIOUS, TTL, Columns, T, intact
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, row_id
from oncelog_service.storage.payload_rows import (
    Payload,
    decode_payload_row,
    encode_payload_rows,
    payload_id_of,
    payload_index_of,
    payload_ttl_of,
    stored_message_of,
    tms_stored_message_of,
)
from oncelog_service.storage.port import RowDamaged
from oncelog_service.storage.records import (
    ChunkRow,
    CopyRow,
    ExpiryRow,
    GroupProducerRow,
    GroupRow,
    JournalMetaRow,
    NamespaceRow,
    ProducerRow,
    SubscriptionRow,
    TopicRow,
    TrimRow,
    decode_record,
    encode_record,
)
from oncelog_service.storage.rows import (
    GroupProducer,
    GroupSummary,
    Row,
    decode_row,
    encode_group_row,
    encode_rows,
    message_id_of,
    message_of,
    messages_of,
    offset_of,
    payloads_under,
    rolled_back,
    tms_message_of,
    ttl_of,
    write_pointer_of,
)

GOLDEN = Path(__file__).parent.parent / "golden"
ONCELOG_MESSAGE = fastavro.parse_schema(avro_source(ONCELOG_AVRO, "ConsumeResponse")["fields"][0]["type"]["items"])
TMS_MESSAGE = fastavro.parse_schema(avro_source(AVRO, "ConsumeResponse")["items"])

MAX = 2**63 - 1
row_ids = st.builds(row_id, st.integers(0, 2**62), st.integers(0, 65_535))
names = st.from_regex(r"[A-Za-z0-9_.:@=\-]{1,249}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
payloads = st.binary(max_size=200) | st.integers(100, 9_000).map(bytes)
pointers = st.integers(1, MAX)
producers = st.builds(GroupProducer, names, st.integers(0, MAX), st.integers(0, MAX), row_ids, st.integers(0, 2**32 - 1), row_ids)
summaries = st.builds(GroupSummary, st.integers(0, 2**32 - 1), row_ids, st.lists(producers, max_size=4).map(tuple), st.none())


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """The messages of a request with any of the columns that a request may have."""
    bodies = draw(st.lists(payloads, min_size=1, max_size=80 if draw(st.booleans()) else 4))

    def column(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(st.none() | values, min_size=len(bodies), max_size=len(bodies)))

    producer = draw(st.none() | names)
    sequence_ids = previous = None
    if producer is not None:
        begin = draw(st.sampled_from([0, 1, 60, 2**31, MAX - 200]))
        steps = draw(st.just([1] * len(bodies)) | st.lists(st.integers(1, 2), min_size=len(bodies), max_size=len(bodies)))
        sequence_ids = [begin + sum(steps[:number]) for number in range(len(bodies))]
        previous = draw(st.none() | row_ids)
    return Columns(
        payloads=bodies,
        producer=producer,
        sequence_ids=sequence_ids,
        keys=column(st.binary(max_size=20)),
        properties=column(st.dictionaries(texts, texts, max_size=3)),
        ttls=column(st.integers(1, MAX)),
        previous=previous,
    )


def numbered(count: int, begin: int = 1_790_000_000_000) -> list[bytes]:
    return [row_id(begin, number) for number in range(count)]


def read(schema: Any, data: bytes) -> Any:
    stream = BytesIO(data)
    record = fastavro.schemaless_reader(stream, schema, None)
    assert stream.tell() == len(data), "nothing follows the message"
    return record


def entry(column: Sequence[Any] | None, index: int) -> Any:
    return None if column is None else column[index]


@given(columns(), st.none() | pointers, st.sampled_from([0, 1, 60, 64, 8_190, 2**40]))
def test_a_message_reads_back_as_it_was_published_here_and_by_any_avro_reader(
    columns: Columns, pointer: int | None, first_offset: int
) -> None:
    """In a transaction each request says where it begins, also without a producer."""
    columns.write_pointer = pointer
    ids = numbered(len(columns.payloads))
    for index, (each, data) in enumerate(zip(ids, encode_rows(columns, ids, first_offset), strict=True)):
        begins = not index and (columns.producer is not None or pointer is not None)
        said = {
            "offset": first_offset + index,
            "producer": columns.producer,
            "key": entry(columns.keys, index),
            "ttl": entry(columns.ttls, index),
            "payload": columns.payloads[index],
        }
        sequence_id, properties = entry(columns.sequence_ids, index), entry(columns.properties, index)
        previous = (columns.previous or FIRST_ROW_ID) if begins else None
        row = Row(row_id=each, sequence_id=sequence_id, write_pointer=pointer, previous=previous, **said)
        assert decode_row(each, data) == row
        assert intact(data)
        assert (offset_of(data), messages_of(data)) == (first_offset + index, 1)
        assert (ttl_of(data) if data[1] & TTL else None) == entry(columns.ttls, index)
        assert (write_pointer_of(data) if data[1] & T else None) == pointer
        message = {"id": message_id_of(each), "sequenceId": sequence_id, "properties": properties, **said}
        assert read(ONCELOG_MESSAGE, message_of(data)) == message
        assert read(TMS_MESSAGE, tms_message_of(data)) == {"id": message_id_of(each), "payload": columns.payloads[index]}


@settings(max_examples=40)
@given(columns(), row_ids, st.sampled_from([0, 1, 2**31]))
def test_a_payload_reads_back_as_it_was_stored_here_and_by_any_avro_reader(columns: Columns, at: bytes, first_index: int) -> None:
    ids = numbered(len(columns.payloads))
    for index, (each, row) in enumerate(zip(ids, encode_payload_rows(columns, ids, first_index), strict=True)):
        sequence_id, ttl, key = (entry(column, index) for column in (columns.sequence_ids, columns.ttls, columns.keys))
        payload = columns.payloads[index]
        found = Payload(each, first_index + index, columns.producer, sequence_id, ttl, payload, key)
        assert decode_payload_row(each, row) == found
        assert (payload_id_of(row), payload_index_of(row)) == (each, first_index + index)
        assert (payload_ttl_of(row) if row[1] & TTL else None) == ttl
        assert read(ONCELOG_MESSAGE, stored_message_of(at, 100 + index, row)) == {
            "id": at + each,
            "offset": 100 + index,
            "producer": columns.producer,
            "sequenceId": sequence_id,
            "key": key,
            "properties": entry(columns.properties, index),
            "ttl": ttl,
            "payload": payload,
        }
        assert read(TMS_MESSAGE, tms_stored_message_of(at, 100 + index, row)) == {"id": at + each, "payload": payload}


@given(row_ids, st.integers(0, 2**50), pointers, summaries, st.booleans())
def test_the_row_of_a_group_says_what_is_in_it_and_that_of_a_branch_is_of_no_transaction(
    at: bytes, offset: int, number: int, summary: GroupSummary, is_branch: bool
) -> None:
    summary = summary._replace(branch=number if is_branch else None)
    pointer, previous = (None, None) if is_branch else (number, FIRST_ROW_ID)
    row = encode_group_row(at, offset, pointer, summary)
    decoded = decode_row(at, row)
    assert decoded == Row(at, offset, None, None, None, decoded.payload, pointer, previous, summary)
    assert (decoded.messages, messages_of(row), offset_of(row)) == (summary.messages, summary.messages, offset)
    assert row[1] == (GROUP if is_branch else T | PREVIOUS | GROUP)
    assert payloads_under(row) == decoded.payloads_under == (-number if is_branch else number)
    assert decoded.message_id == at + bytes(10)
    if not is_branch:
        assert write_pointer_of(row) == number


@settings(max_examples=40)
@given(columns(), pointers, summaries)
def test_rolling_back_flips_the_sign_of_the_pointer_and_nothing_else_once(
    columns: Columns, pointer: int, summary: GroupSummary
) -> None:
    ids = numbered(len(columns.payloads) + 1)
    plain = encode_rows(columns, ids[:1], 7)[0] if len(ids) == 2 else None
    columns.write_pointer = pointer
    rows = [*encode_rows(columns, ids[:-1], 7), encode_group_row(ids[-1], 9, pointer, summary)]
    for each, row in zip(ids, rows, strict=True):
        marked = rolled_back(row)
        assert intact(marked)
        assert (marked[:6], marked[14:-4], len(marked)) == (row[:6], row[14:-4], len(row))
        assert decode_row(each, marked) == decode_row(each, row)._replace(write_pointer=-pointer)
        for refused in (marked, plain):  # a second time, and where there is no transaction
            if refused is not None:
                with pytest.raises(AssertionError):
                    rolled_back(refused)


# --- golden bytes

P = 1_790_000_000_000_000_001
AT = row_id(1_790_000_000_000, 7)
PLAIN = Columns([b"payload"])
NAMED = Columns([b"first", b"second", bytes(range(70))], "flights", [0, 1, MAX], previous=row_id(1_790_000_000_000, 41))
EVERYTHING = Columns(
    [b"all of it", b"", b"x"],
    "größe:1",
    [62, 63, 64],
    keys=[b"key", None, b""],
    properties=[{"a": "1", "ü": ""}, {}, None],
    ttls=[60, None, 2**40],
)
SUMMARY = GroupSummary(
    5,
    row_id(1_789_999_999_999, 4),
    (
        GroupProducer("größe:1", 3, MAX, row_id(1_789_999_999_999, 3), 3, row_id(1_790_000_000_000, 2)),
        GroupProducer("flights", 0, 0, row_id(1_789_999_999_999, 4), 4, FIRST_ROW_ID),
    ),
)
EMPTY = GroupSummary(0, FIRST_PAYLOAD_ID, ())


def group_rows(pointer: int | None, branch: int | None) -> list[bytes]:
    return [encode_group_row(AT, 1_000_000, pointer, each._replace(branch=branch)) for each in (SUMMARY, EMPTY)]


def under(columns: Columns) -> Columns:
    return replace(columns, write_pointer=P)


ROWS = {
    "row_v1_plain": encode_rows(PLAIN, numbered(1), 0),
    "row_v1_named": encode_rows(NAMED, numbered(3), 63),
    "row_v1_everything": encode_rows(EVERYTHING, numbered(3), 1_000_000),
    "row_v1_group": group_rows(P, None),
    "row_v1_branch": group_rows(None, P),
    "row_v1_rolled_back": [
        rolled_back(each)
        for each in (*encode_rows(under(NAMED), numbered(3), 63), encode_group_row(numbered(4)[3], 66, P, SUMMARY))
    ],
    "payload_v1": [*encode_payload_rows(EVERYTHING, numbered(3), 62), *encode_payload_rows(PLAIN, numbered(4)[3:], 65)],
}
"""What is encoded reads back, as the properties above say: so what is on disk does."""


def golden(name: str) -> list[bytes]:
    return [bytes.fromhex(line) for line in (GOLDEN / f"{name}.hex").read_text().split()]


@pytest.mark.parametrize("name", ROWS)
def test_the_layout_of_rows_version_1_never_changes(name: str) -> None:
    assert ROWS[name] == golden(name)


def test_the_layout_of_a_transactional_row_version_1_never_changes() -> None:
    (data,) = golden("row_v1_transactional")
    at = row_id(1_790_000_000_000, 0)
    assert decode_row(at, data) == Row(at, 12, "p", 34, 56, b"payload", -1_790_000_000_000_000_000, row_id(78, 9))


# --- damage

SAMPLES = [
    (decode_row, encode_rows(PLAIN, numbered(1), 0)[0]),
    (decode_row, encode_rows(EVERYTHING, numbered(3), 3)[0]),
    (decode_row, encode_rows(under(EVERYTHING), numbered(3), 3)[0]),
    (decode_row, encode_group_row(numbered(1)[0], 3, P, SUMMARY)),
    (decode_row, encode_group_row(numbered(1)[0], 3, P, EMPTY)),
    (decode_row, rolled_back(encode_group_row(numbered(1)[0], 3, P, SUMMARY))),
    (decode_payload_row, encode_payload_rows(EVERYTHING, numbered(3), 3)[0]),
    (decode_payload_row, encode_payload_rows(Columns([b""]), numbered(1), 3)[0]),
]
"""Rows of the first row id, and what decodes them."""


@given(st.sampled_from(SAMPLES), st.data())
def test_damage_to_any_bit_and_every_cut_is_noticed(sample: tuple[Any, bytes], data: st.DataObject) -> None:
    decode, row = sample
    at, bit = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(0, 7))
    broken = row[:at] + bytes([row[at] ^ 1 << bit]) + row[at + 1 :]
    assert not intact(broken)
    for each in (broken, row[:at]):
        with pytest.raises(RowDamaged):
            decode(numbered(1)[0], each)


@pytest.mark.parametrize(("decode", "row"), SAMPLES, ids=range(len(SAMPLES)))
def test_a_row_under_another_key_or_of_a_version_to_come_is_refused_and_not_guessed_at(decode: Any, row: bytes) -> None:
    decode(numbered(1)[0], row)
    with pytest.raises(RowDamaged, match=r"belongs at|its index"):
        decode(numbered(2)[1], row)
    for at, value in ((0, 2), (0, 0), (1, 16), (1, 255)):
        body = bytearray(row[:-4])
        body[at] = value
        with pytest.raises(RowDamaged, match="unknown version"):
            decode(numbered(1)[0], bytes(body) + crc32(body).to_bytes(4, "little"))


# --- the small tables

RECORDS = {
    "topic_v1": TopicRow(3, 1_790_000_000_000, {"ttl": "3600", "deduplication": "false"}),
    "topic_deleted_v1": TopicRow(3, 1_790_000_000_000, deleted=True, last_timestamp=1_790_000_000_123),
    "namespace_v1": NamespaceRow({"deduplication": None}),
    "producer_v1": ProducerRow(7, [("nonce-1", 6), ("nonce-2", 7)], "refuse", 42),
    "producer_assigned_v1": ProducerRow(1, [("nonce-1", 1)], assigned_ms=1_790_000_000_000),
    "producer_never_opened_v1": ProducerRow(forgotten_below=9),
    "group_v1": GroupRow(row_id(1_790_000_000_000, 7).hex(), "flights"),
    "group_expired_v1": GroupRow(None),
    "trim_v1": TrimRow(336_776, "0000019d7a1f4e00000500000000000000000000"),
    "expiry_v1": ExpiryRow([[1_790_003_600_000, "0000019d7a1f4e000006"], [1_790_000_000_000, "0000019d7a1f4e000009"]]),
    "chunk_v1": ChunkRow(
        first_index=3,
        messages=2,
        digest="00112233445566778899aabbccddeeff",
        producer="loader",
        epoch=7,
        expected_offset=42,
        expected_last_message_id="01" * 20,
        expected_key_offsets={"\xff": None, "k": 41},
        key_indexes={"k": 1},
    ),
    "journal_meta_v1": JournalMetaRow(2, 1_790_000_000_000_000_000, [0, 1_000]),
    "subscription_v1": SubscriptionRow(7, [("nonce-1", 6), ("nonce-2", 7)], 336_776),
    "subscription_deleted_v1": SubscriptionRow(8),
    "copy_v1": CopyRow(of="00112233445566778899aabbccddeeff", source="leveldb:///var/lib/oncelog", finished=False),
    "group_producer_v1": GroupProducerRow(4, "2026-09-21", "t-4", 336_776, "c0ffee"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_the_layout_of_a_record_never_changes(name: str) -> None:
    golden = (GOLDEN / f"{name}.json").read_bytes().strip()
    assert encode_record(RECORDS[name]) == golden
    assert decode_record(type(RECORDS[name]), golden) == listed(RECORDS[name])


def listed(record: Any) -> Any:
    """JSON knows no tuples: what is read back holds lists."""
    opened = isinstance(record, ProducerRow | SubscriptionRow)
    return replace(record, opens=[list(each) for each in record.opens]) if opened else record


NO_RECORDS = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"1",
    b'{"version":2}',
    b'{"version":1,"surprise":0}',
    b"\xff",
    b'{"version":null}',
)


@pytest.mark.parametrize("kind", dict.fromkeys(type(record) for record in RECORDS.values()))
def test_what_is_no_record_of_this_version_is_refused(kind: type[Any]) -> None:
    for data in NO_RECORDS:
        with pytest.raises(RowDamaged):
            decode_record(kind, data)
