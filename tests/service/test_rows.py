"""A row comes back as it was published, damaged ones are refused, and the bytes on disk never change their meaning."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import crc32

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.wire.codec import avro_source
from oncelog.wire.media import AVRO, ONCELOG_AVRO
from oncelog_service.storage.keys import FIRST_ROW_ID, row_id
from oncelog_service.storage.rows import (
    PREVIOUS,
    TTL,
    ChunkRow,
    Columns,
    CopyRow,
    ExpiryRow,
    GroupProducerRow,
    JournalMetaRow,
    NamespaceRow,
    ProducerRow,
    Row,
    RowDamaged,
    SubscriptionRow,
    T,
    TopicRow,
    TrimRow,
    decode_record,
    decode_row,
    encode_record,
    encode_rows,
    intact,
    message_id_of,
    message_of,
    offset_of,
    tms_message_of,
    ttl_of,
)

GOLDEN = Path(__file__).parent.parent / "golden"
ONCELOG_MESSAGE = fastavro.parse_schema(avro_source(ONCELOG_AVRO, "ConsumeResponse")["fields"][0]["type"]["items"])
TMS_MESSAGE = fastavro.parse_schema(avro_source(AVRO, "ConsumeResponse")["items"])

MAX = 2**63 - 1
row_ids = st.builds(row_id, st.integers(0, 2**62), st.integers(0, 65_535))
names = st.from_regex(r"[A-Za-z0-9_.:@=\-]{1,249}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
payloads = st.binary(max_size=200) | st.integers(100, 9_000).map(bytes)


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


@given(columns(), st.sampled_from([0, 1, 60, 64, 8_190, 2**40]))
def test_a_message_reads_back_as_it_was_published(columns: Columns, first_offset: int) -> None:
    ids = numbered(len(columns.payloads))
    rows = encode_rows(columns, ids, first_offset)
    assert len(rows) == len(ids)
    for index, (each, data) in enumerate(zip(ids, rows, strict=True)):
        previous = None if columns.producer is None or index else columns.previous or FIRST_ROW_ID
        assert decode_row(each, data) == Row(
            row_id=each,
            offset=first_offset + index,
            producer=columns.producer,
            sequence_id=entry(columns.sequence_ids, index),
            ttl=entry(columns.ttls, index),
            payload=columns.payloads[index],
            write_pointer=None,
            previous=previous,
            key=entry(columns.keys, index),
        )
        assert intact(data)
        assert offset_of(data) == first_offset + index
        assert bool(data[1] & TTL) == (entry(columns.ttls, index) is not None)
        if data[1] & TTL:
            assert ttl_of(data) == entry(columns.ttls, index)


@given(columns())
def test_a_poll_answers_what_any_avro_reader_understands(columns: Columns) -> None:
    ids = numbered(len(columns.payloads))
    for index, (each, data) in enumerate(zip(ids, encode_rows(columns, ids, 7), strict=True)):
        assert read(ONCELOG_MESSAGE, message_of(data)) == {
            "id": each + bytes(10),
            "offset": 7 + index,
            "producer": columns.producer,
            "sequenceId": entry(columns.sequence_ids, index),
            "key": entry(columns.keys, index),
            "properties": entry(columns.properties, index),
            "ttl": entry(columns.ttls, index),
            "payload": columns.payloads[index],
        }
        assert read(TMS_MESSAGE, tms_message_of(data)) == {"id": message_id_of(each), "payload": columns.payloads[index]}


def with_fields(row: bytes, flags: int, fields: bytes) -> bytes:
    """The same message in a row with other flags and what they bring."""
    (payload_at,) = struct.unpack_from(">I", row, 2)
    body = struct.pack(">BBI", 1, flags, payload_at) + fields + message_of(row)
    return body + crc32(body).to_bytes(4, "little")


@pytest.mark.parametrize("pointer", [1, MAX, -1, -MAX])
def test_a_row_of_a_transaction_reads_back_with_its_write_pointer(pointer: int) -> None:
    columns = Columns([b"payload"], "p", [5], keys=[b"k"], properties=[{"a": "b"}], ttls=[60])
    (row,) = encode_rows(columns, numbered(1), 3)
    previous = row_id(5, 6)
    both = with_fields(row, T | PREVIOUS | TTL, struct.pack(">q", pointer) + previous)
    assert decode_row(numbered(1)[0], both) == decode_row(numbered(1)[0], row)._replace(write_pointer=pointer, previous=previous)
    alone = with_fields(row, T | TTL, struct.pack(">q", pointer))
    assert decode_row(numbered(1)[0], alone) == decode_row(numbered(1)[0], row)._replace(write_pointer=pointer, previous=None)
    for each in (both, alone):
        assert (message_of(each), tms_message_of(each)) == (message_of(row), tms_message_of(row))
        assert (offset_of(each), ttl_of(each)) == (3, 60)


# --- damage


@given(columns(), st.data())
def test_one_flipped_bit_anywhere_in_a_row_is_noticed(columns: Columns, data: st.DataObject) -> None:
    row = bytearray(encode_rows(columns, numbered(len(columns.payloads)), 3)[0])
    bit = data.draw(st.integers(0, len(row) * 8 - 1))
    row[bit // 8] ^= 1 << bit % 8
    assert not intact(bytes(row))
    with pytest.raises(RowDamaged):
        decode_row(numbered(1)[0], bytes(row))


@given(columns(), st.data())
def test_a_cut_row_is_noticed(columns: Columns, data: st.DataObject) -> None:
    row = encode_rows(columns, numbered(len(columns.payloads)), 3)[0]
    cut = row[: data.draw(st.integers(0, len(row) - 1))]
    with pytest.raises(RowDamaged):
        decode_row(numbered(1)[0], cut)


def test_a_row_that_lies_under_another_key_is_refused() -> None:
    (row,) = encode_rows(Columns([b"payload"]), numbered(1), 0)
    with pytest.raises(RowDamaged, match="belongs at"):
        decode_row(row_id(1, 1), row)


@pytest.mark.parametrize(("at", "value"), [(0, 2), (0, 0), (1, 16), (1, 255)])
def test_a_row_of_a_version_to_come_is_refused_and_not_guessed_at(at: int, value: int) -> None:
    (row,) = encode_rows(Columns([b"payload"]), numbered(1), 0)
    body = bytearray(row[:-4])
    body[at] = value
    with pytest.raises(RowDamaged, match="unknown version"):
        decode_row(numbered(1)[0], bytes(body) + crc32(body).to_bytes(4, "little"))


# --- the small tables

RECORDS = {
    "topic_v1": TopicRow(3, 1_790_000_000_000, {"ttl": "3600", "deduplication": "false"}),
    "topic_deleted_v1": TopicRow(3, 1_790_000_000_000, deleted=True, last_timestamp=1_790_000_000_123),
    "namespace_v1": NamespaceRow({"deduplication": None}),
    "producer_v1": ProducerRow(7, [("nonce-1", 6), ("nonce-2", 7)], "refuse", 42),
    "producer_assigned_v1": ProducerRow(1, [("nonce-1", 1)], assigned_ms=1_790_000_000_000),
    "producer_never_opened_v1": ProducerRow(forgotten_below=9),
    "trim_v1": TrimRow(336_776, "0000019d7a1f4e00000500000000000000000000"),
    "expiry_v1": ExpiryRow([[1_790_003_600_000, "0000019d7a1f4e000006"], [1_790_000_000_000, "0000019d7a1f4e000009"]]),
    "chunk_v1": ChunkRow(
        first_place=3,
        messages=2,
        digest="00112233445566778899aabbccddeeff",
        producer="loader",
        epoch=7,
        expected_offset=42,
        expected_last_message_id="01" * 20,
        expected_key_offsets={"\xff": None, "k": 41},
        key_places={"k": 1},
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


@pytest.mark.parametrize(
    "kind",
    [
        TopicRow,
        NamespaceRow,
        ProducerRow,
        TrimRow,
        ExpiryRow,
        ChunkRow,
        JournalMetaRow,
        GroupProducerRow,
        SubscriptionRow,
        CopyRow,
    ],
)
@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b"{}", b"1", b'{"version":2}', b'{"version":1,"surprise":0}', b"\xff", b'{"version":null}'],
)
def test_what_is_no_record_of_this_version_is_refused(kind: type[Any], data: bytes) -> None:
    with pytest.raises(RowDamaged):
        decode_record(kind, data)


@given(
    st.builds(
        ProducerRow,
        st.none() | st.integers(1, MAX),
        st.lists(st.tuples(texts, st.integers(1, MAX)), max_size=16),
        st.sampled_from(["allow", "refuse"]),
        st.integers(0, MAX),
    )
)
def test_a_producers_record_reads_back(record: ProducerRow) -> None:
    assert decode_record(ProducerRow, encode_record(record)) == listed(record)
    assert dict(decode_record(ProducerRow, encode_record(record)).opens) == dict(record.opens)


# --- the message rows' golden bytes

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


@pytest.mark.parametrize(
    ("name", "columns", "first_offset"),
    [("row_v1_plain", PLAIN, 0), ("row_v1_named", NAMED, 63), ("row_v1_everything", EVERYTHING, 1_000_000)],
)
def test_the_layout_of_rows_version_1_never_changes(name: str, columns: Columns, first_offset: int) -> None:
    golden = [bytes.fromhex(line) for line in (GOLDEN / f"{name}.hex").read_text().split()]
    ids = numbered(len(columns.payloads))
    assert encode_rows(columns, ids, first_offset) == golden
    for index, (each, data) in enumerate(zip(ids, golden, strict=True)):
        row = decode_row(each, data)
        assert row.payload == columns.payloads[index]
        assert row.sequence_id == entry(columns.sequence_ids, index)
        assert row.offset == first_offset + index
        assert row.ttl == entry(columns.ttls, index)
        assert row.key == entry(columns.keys, index)


def test_the_layout_of_a_transactional_row_version_1_never_changes() -> None:
    (data,) = (bytes.fromhex(line) for line in (GOLDEN / "row_v1_transactional.hex").read_text().split())
    assert decode_row(row_id(1_790_000_000_000, 0), data) == Row(
        row_id(1_790_000_000_000, 0), 12, "p", 34, 56, b"payload", -1_790_000_000_000_000_000, row_id(78, 9)
    )


def test_a_record_is_plain_json() -> None:
    assert json.loads(encode_record(TrimRow(5))) == {"version": 1, "earliest_offset": 5, "last_id": None}
