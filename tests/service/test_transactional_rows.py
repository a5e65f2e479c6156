"""Rows of transactions, of stored groups and of the Payload Table: they come back as written, and damage is noticed."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, row_id
from oncelog_service.storage.rows import (
    GROUP,
    PREVIOUS,
    TTL,
    Columns,
    GroupProducer,
    GroupRow,
    GroupSummary,
    Payload,
    Row,
    RowDamaged,
    T,
    decode_payload_row,
    decode_record,
    decode_row,
    encode_group_row,
    encode_payload_rows,
    encode_record,
    encode_rows,
    intact,
    message_of,
    messages_of,
    offset_of,
    payload_id_of,
    payload_place_of,
    payload_ttl_of,
    payloads_under,
    rolled_back,
    stored_message_of,
    tms_message_of,
    tms_stored_message_of,
    ttl_of,
    write_pointer_of,
)
from tests.service.test_rows import (
    EVERYTHING,
    GOLDEN,
    MAX,
    NAMED,
    ONCELOG_MESSAGE,
    TMS_MESSAGE,
    columns,
    entry,
    names,
    numbered,
    read,
    row_ids,
)

P = 1_790_000_000_000_000_001
pointers = st.integers(1, MAX)
producers = st.builds(GroupProducer, names, st.integers(0, MAX), st.integers(0, MAX), row_ids, st.integers(0, 2**32 - 1), row_ids)
summaries = st.builds(GroupSummary, st.integers(0, 2**32 - 1), row_ids, st.lists(producers, max_size=4).map(tuple), st.none())
SUMMARY = GroupSummary(
    5,
    row_id(1_789_999_999_999, 4),
    (
        GroupProducer("größe:1", 3, MAX, row_id(1_789_999_999_999, 3), 3, row_id(1_790_000_000_000, 2)),
        GroupProducer("flights", 0, 0, row_id(1_789_999_999_999, 4), 4, FIRST_ROW_ID),
    ),
)
EMPTY = GroupSummary(0, FIRST_PAYLOAD_ID, ())


def under(columns: Columns, pointer: int = P) -> Columns:
    return replace(columns, write_pointer=pointer)


# --- rows of a transaction


@settings(max_examples=40)
@given(columns(), pointers)
def test_a_message_of_a_transaction_reads_back_and_each_request_says_where_it_begins(columns: Columns, pointer: int) -> None:
    ids = numbered(len(columns.payloads))
    plain, rows = encode_rows(columns, ids, 7), encode_rows(under(columns, pointer), ids, 7)
    for index, (each, one, other) in enumerate(zip(ids, rows, plain, strict=True)):
        previous = None if index else columns.previous or FIRST_ROW_ID
        assert decode_row(each, one) == decode_row(each, other)._replace(write_pointer=pointer, previous=previous)
        assert write_pointer_of(one) == pointer
        assert (message_of(one), tms_message_of(one)) == (message_of(other), tms_message_of(other))
        assert (offset_of(one), messages_of(one)) == (7 + index, 1)
        if one[1] & TTL:
            assert ttl_of(one) == entry(columns.ttls, index)


@settings(max_examples=40)
@given(columns(), pointers, summaries)
def test_rolling_back_flips_the_sign_of_the_pointer_and_nothing_else(
    columns: Columns, pointer: int, summary: GroupSummary
) -> None:
    ids = numbered(len(columns.payloads) + 1)
    rows = [*encode_rows(under(columns, pointer), ids[:-1], 7), encode_group_row(ids[-1], 9, pointer, summary)]
    for each, row in zip(ids, rows, strict=True):
        marked = rolled_back(row)
        assert intact(marked)
        assert (marked[:6], marked[14:-4], len(marked)) == (row[:6], row[14:-4], len(row))
        assert decode_row(each, marked) == decode_row(each, row)._replace(write_pointer=-pointer)


def test_a_row_is_rolled_back_once_and_only_in_a_transaction() -> None:
    (plain,) = encode_rows(Columns([b"x"]), numbered(1), 0)
    (row,) = encode_rows(under(Columns([b"x"])), numbered(1), 0)
    for each in (plain, rolled_back(row)):
        with pytest.raises(AssertionError):
            rolled_back(each)


# --- rows of stored groups


@given(row_ids, st.integers(0, 2**50), pointers, summaries)
def test_the_row_of_a_group_says_what_is_in_it(at: bytes, offset: int, pointer: int, summary: GroupSummary) -> None:
    row = encode_group_row(at, offset, pointer, summary)
    decoded = decode_row(at, row)
    assert decoded == Row(at, offset, None, None, None, decoded.payload, pointer, FIRST_ROW_ID, summary)
    assert (decoded.messages, messages_of(row)) == (summary.messages, summary.messages)
    assert (offset_of(row), write_pointer_of(row), row[1]) == (offset, pointer, T | PREVIOUS | GROUP)
    assert decoded.message_id == at + bytes(10)


@given(row_ids, st.integers(0, 2**50), pointers, summaries)
def test_the_row_of_a_branch_is_of_no_transaction(at: bytes, offset: int, branch: int, summary: GroupSummary) -> None:
    summary = summary._replace(branch=branch)
    row = encode_group_row(at, offset, None, summary)
    decoded = decode_row(at, row)
    assert decoded == Row(at, offset, None, None, None, decoded.payload, None, None, summary)
    assert (messages_of(row), offset_of(row), row[1]) == (summary.messages, offset, GROUP)
    assert payloads_under(row) == decoded.payloads_under == -branch


def test_the_summary_of_a_group_is_laid_out_as_drawn() -> None:
    at = row_id(1_790_000_000_000, 7)
    name = "größe:1".encode()
    drawn = struct.pack(">I10sI", 5, row_id(1_789_999_999_999, 4), 2)
    drawn += struct.pack(">H", len(name)) + name
    drawn += struct.pack(">qq10sI10s", 3, MAX, row_id(1_789_999_999_999, 3), 3, row_id(1_790_000_000_000, 2))
    drawn += struct.pack(">H", 7) + b"flights" + struct.pack(">qq10sI10s", 0, 0, row_id(1_789_999_999_999, 4), 4, bytes(10))
    assert decode_row(at, encode_group_row(at, 0, P, SUMMARY)).payload == drawn


# --- rows of the Payload Table


@settings(max_examples=40)
@given(columns(), st.sampled_from([0, 1, 2**31]))
def test_a_payload_reads_back_as_it_was_stored(columns: Columns, first_place: int) -> None:
    ids = numbered(len(columns.payloads))
    for index, (each, row) in enumerate(zip(ids, encode_payload_rows(columns, ids, first_place), strict=True)):
        sequence_id, ttl = entry(columns.sequence_ids, index), entry(columns.ttls, index)
        assert decode_payload_row(each, row) == Payload(
            each, first_place + index, columns.producer, sequence_id, ttl, columns.payloads[index], entry(columns.keys, index)
        )
        assert (payload_id_of(row), payload_place_of(row)) == (each, first_place + index)
        assert bool(row[1] & TTL) == (ttl is not None)
        if ttl is not None:
            assert payload_ttl_of(row) == ttl


@settings(max_examples=40)
@given(columns(), row_ids)
def test_a_poll_answers_stored_messages_as_any_avro_reader_understands(columns: Columns, at: bytes) -> None:
    ids = numbered(len(columns.payloads))
    for index, (each, row) in enumerate(zip(ids, encode_payload_rows(columns, ids, 0), strict=True)):
        assert read(ONCELOG_MESSAGE, stored_message_of(at, 100 + index, row)) == {
            "id": at + each,
            "offset": 100 + index,
            "producer": columns.producer,
            "sequenceId": entry(columns.sequence_ids, index),
            "key": entry(columns.keys, index),
            "properties": entry(columns.properties, index),
            "ttl": entry(columns.ttls, index),
            "payload": columns.payloads[index],
        }
        tms = read(TMS_MESSAGE, tms_stored_message_of(at, 100 + index, row))
        assert tms == {"id": at + each, "payload": columns.payloads[index]}


# --- damage


def decode_any(row: bytes) -> Any:
    return decode_payload_row(numbered(1)[0], row)


def decode_message(row: bytes) -> Any:
    return decode_row(numbered(1)[0], row)


SAMPLES = [
    (encode_rows(under(EVERYTHING), numbered(3), 3)[0], decode_message),
    (encode_group_row(numbered(1)[0], 3, P, SUMMARY), decode_message),
    (encode_group_row(numbered(1)[0], 3, P, EMPTY), decode_message),
    (rolled_back(encode_group_row(numbered(1)[0], 3, P, SUMMARY)), decode_message),
    (encode_payload_rows(EVERYTHING, numbered(3), 3)[0], decode_any),
    (encode_payload_rows(Columns([b""]), numbered(1), 3)[0], decode_any),
]


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_damage_to_any_bit_of_any_byte_and_every_cut_is_noticed(sample: int) -> None:
    row, decode = SAMPLES[sample]
    decode(row)
    for at in range(len(row)):
        for bit in range(8):
            broken = bytearray(row)
            broken[at] ^= 1 << bit
            assert not intact(bytes(broken)), (at, bit)
            with pytest.raises(RowDamaged):
                decode(bytes(broken))
        with pytest.raises(RowDamaged):
            decode(row[:at])


@given(st.sampled_from(SAMPLES), st.data())
def test_several_damaged_bytes_are_noticed(sample: tuple[bytes, Any], data: st.DataObject) -> None:
    row, decode = sample
    at = data.draw(st.integers(0, len(row) - 1))
    other = data.draw(st.binary(min_size=1, max_size=min(20, len(row) - at)))
    broken = row[:at] + other + row[at + len(other) :]
    if broken != row:
        with pytest.raises(RowDamaged):
            decode(broken)


def test_a_payload_that_lies_under_another_key_is_refused() -> None:
    (row,) = encode_payload_rows(Columns([b"x"]), numbered(1), 0)
    with pytest.raises(RowDamaged, match="its place"):
        decode_payload_row(row_id(1, 1), row)


@pytest.mark.parametrize(("at", "value"), [(0, 0), (0, 2), (1, 16), (1, 255)])
def test_a_payload_of_a_version_to_come_is_refused(at: int, value: int) -> None:
    (row,) = encode_payload_rows(Columns([b"x"]), numbered(1), 0)
    body = bytearray(row[:-4])
    body[at] = value
    with pytest.raises(RowDamaged):
        decode_any(bytes(body) + crc32(body).to_bytes(4, "little"))


# --- golden bytes


def golden(name: str) -> list[bytes]:
    return [bytes.fromhex(line) for line in (GOLDEN / f"{name}.hex").read_text().split()]


def test_the_layout_of_group_rows_version_1_never_changes() -> None:
    at = row_id(1_790_000_000_000, 7)
    for data, summary in zip(golden("row_v1_group"), (SUMMARY, EMPTY), strict=True):
        assert encode_group_row(at, 1_000_000, P, summary) == data
        row = decode_row(at, data)
        assert (row.offset, row.write_pointer, row.previous, row.group) == (1_000_000, P, FIRST_ROW_ID, summary)


def test_the_layout_of_branch_rows_version_1_never_changes() -> None:
    at = row_id(1_790_000_000_000, 7)
    for data, summary in zip(golden("row_v1_branch"), (SUMMARY, EMPTY), strict=True):
        branch = summary._replace(branch=P)
        assert encode_group_row(at, 1_000_000, None, branch) == data
        assert decode_row(at, data).group == branch


def test_the_layout_of_rolled_back_rows_version_1_never_changes() -> None:
    ids = numbered(4)
    rows = [*encode_rows(under(NAMED), ids[:3], 63), encode_group_row(ids[3], 66, P, SUMMARY)]
    assert list(map(rolled_back, rows)) == golden("row_v1_rolled_back")
    decoded = [decode_row(each, data) for each, data in zip(ids, golden("row_v1_rolled_back"), strict=True)]
    assert [row.write_pointer for row in decoded] == [-P] * 4
    assert [row.payload for row in decoded[:3]] == NAMED.payloads
    assert [row.previous for row in decoded] == [row_id(1_790_000_000_000, 41), None, None, FIRST_ROW_ID]


def test_the_layout_of_payload_rows_version_1_never_changes() -> None:
    ids = numbered(4)
    rows = [*encode_payload_rows(EVERYTHING, ids[:3], 62), *encode_payload_rows(Columns([b"payload"]), ids[3:], 65)]
    assert rows == golden("payload_v1")
    decoded = [decode_payload_row(each, data) for each, data in zip(ids, golden("payload_v1"), strict=True)]
    assert decoded == [
        Payload(ids[0], 62, "größe:1", 62, 60, b"all of it", b"key"),
        Payload(ids[1], 63, "größe:1", 63, None, b""),
        Payload(ids[2], 64, "größe:1", 64, 2**40, b"x", b""),
        Payload(ids[3], 65, None, None, None, b"payload"),
    ]


RECORDS = {"group_v1": GroupRow(row_id(1_790_000_000_000, 7).hex(), "flights"), "group_expired_v1": GroupRow(None)}


@pytest.mark.parametrize("name", RECORDS)
def test_the_layout_of_a_groups_record_never_changes(name: str) -> None:
    data = (GOLDEN / f"{name}.json").read_bytes().strip()
    assert encode_record(RECORDS[name]) == data
    assert decode_record(GroupRow, data) == RECORDS[name]


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"{}", b'{"version":2}', b'{"version":1,"row_id":null,"more":0}'])
def test_what_is_no_record_of_a_group_is_refused(data: bytes) -> None:
    with pytest.raises(RowDamaged):
        decode_record(GroupRow, data)
