"""Records of the journal on disk: every layout is golden, and no bit can be flipped unnoticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.atomic.records import (
    KINDS,
    Abort,
    Begin,
    Commit,
    Enlist,
    Record,
    RecordDamaged,
    TopicRef,
    decode,
    encode,
)

GOLDEN = Path(__file__).parent.parent / "golden"
N = 1_790_000_000_000_000_000
ORDERS = TopicRef("default", "orders", 1)

RECORDS: dict[str, Record] = {
    "begin": Begin(N, "order=41", "orders", 1_790_000_000_000, 1_790_000_060_000, None),
    "begin_branch": Begin(N + 1, "order=41:1", "orders", 1_790_000_000_001, 1_790_000_060_001, "order=41"),
    "enlist": Enlist(N, ORDERS),
    "commit": Commit(N, (N + 1, N + 2)),
    "commit_plain": Commit(N, ()),
    "abort": Abort(N),
}

numbers = st.integers(1, 2**63 - 1)
texts = st.text(max_size=8)
names = st.none() | texts
topics = st.builds(TopicRef, texts, texts, st.integers(1, 2**31 - 1))
some_numbers = st.lists(numbers, max_size=3).map(tuple)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(Begin, numbers, texts, texts, numbers, numbers, names),
    st.builds(Enlist, numbers, topics),
    st.builds(Commit, numbers, some_numbers),
    st.builds(Abort, numbers),
)


def with_checksum(body: bytes) -> bytes:
    return body + crc32(body).to_bytes(4, "little")


@given(records, st.integers(0, 2**63 - 1))
def test_a_record_reads_back_as_it_was_written(record: Record, position: int) -> None:
    back = decode(position, encode(position, record))
    assert (type(back), back) == (type(record), record)


@pytest.mark.parametrize("name", RECORDS)
def test_the_bytes_of_a_record_never_change(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"journal_record_{name}.hex").read_text())
    assert encode(41, RECORDS[name]) == golden
    assert decode(41, golden) == RECORDS[name]


def test_every_kind_of_record_is_golden() -> None:
    assert {type(record) for record in RECORDS.values()} == set(KINDS) == set(get_args(Record))


def test_the_body_is_json_of_the_fields_in_their_order() -> None:
    assert encode(41, RECORDS["commit"])[10:-4].decode() == f"[{N},[{N + 1},{N + 2}]]"


@pytest.mark.parametrize("name", RECORDS)
def test_no_flipped_bit_and_no_cut_of_a_record_goes_unnoticed(name: str) -> None:
    data = encode(41, RECORDS[name])
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordDamaged):
            decode(41, bytes(flipped))
    for length in range(len(data)):
        with pytest.raises(RecordDamaged):
            decode(41, data[:length])


def test_a_record_at_the_wrong_position_is_refused() -> None:
    with pytest.raises(RecordDamaged, match="position 42 says that it is at 41"):
        decode(42, encode(41, Abort(N)))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: b"\x02" + body[1:],
        lambda body: body[:1] + b"\x00" + body[2:],
        lambda body: body[:1] + b"\x05" + body[2:],
        lambda body: body[:1] + b"\x01" + body[2:],
        lambda body: body + b"]",
        lambda body: body[:-1],
        lambda body: body[:10],
        lambda body: body[:10] + b"\xff",
        lambda body: body[:9],
        lambda body: b"",
    ],
)
def test_a_record_of_another_layout_is_refused_although_its_checksum_holds(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(RecordDamaged):
        decode(41, with_checksum(change(encode(41, Enlist(N, ORDERS))[:-4])))


def every_change(value: Any) -> list[Any]:
    """The value with one place in it changed to another type or left out, in every way."""
    changed: list[Any] = [True, 1.5, {"a": 1}, [None]]
    if isinstance(value, list):
        changed.append([*value, None])
        for place, inner in enumerate(value):
            changed += [[*value[:place], other, *value[place + 1 :]] for other in every_change(inner)]
    return changed


@pytest.mark.parametrize("name", RECORDS)
def test_no_field_of_another_type_is_taken(name: str) -> None:
    data = encode(41, RECORDS[name])
    for body in every_change(json.loads(data[10:-4])):
        with pytest.raises(RecordDamaged):
            decode(41, with_checksum(data[:10] + json.dumps(body).encode()))
