"""Rows of a DataFrame as requests: whatever Arrow brings, every row leaves once, in order, within the bounds of a request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from oncelog.spark.writing import rows as module
from oncelog.spark.writing.rows import Chunks, Columns, Place, check_columns, checksum, checksum_text, split
from oncelog.transactions.chunks import MAX_BYTES


class Row(NamedTuple):
    value: bytes
    key: bytes | None = None
    topic: str = "t"
    headers: dict[str, str] | None = None
    producer: str | None = None
    sequence_id: int | None = None


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch_of(rows: Sequence[Row], text: pa.DataType | None = None) -> pa.RecordBatch:
    headers = [
        None if each.headers is None else [{"key": k, "value": v.encode()} for k, v in each.headers.items()] for each in rows
    ]
    columns = {
        "key": pa.array([each.key for each in rows], pa.binary()),
        "value": pa.array([each.value for each in rows], pa.binary()),
        "topic": pa.array([each.topic for each in rows], text or pa.string()),
        "headers": pa.array(headers, HEADERS),
        "producer": pa.array([each.producer for each in rows], text or pa.string()),
        "sequence_id": pa.array([each.sequence_id for each in rows], pa.int64()),
        "offset": pa.array(range(len(rows)), pa.int64()),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


def written(batches: Sequence[pa.RecordBatch], topic: str | None, keep: bool, most: int) -> tuple[list[tuple[str, Any]], int]:
    chunks, requests, total = Chunks(most), [], 0
    for batch in batches:
        for place, columns in split(batch, topic, keep):
            total += checksum(place, columns)
            requests += list(chunks.add(place, columns))
    return requests + list(chunks.rest()), total


def rows_of(requests: Sequence[tuple[str, Any]]) -> list[Row]:
    found = []
    for topic, request in requests:
        for at, value in enumerate(request.payloads):
            key = None if request.keys is None else request.keys[at]
            headers = None if request.properties is None else request.properties[at]
            number = None if request.sequence_ids is None else request.sequence_ids[at]
            found.append(Row(value, key, topic, headers, request.producer, number))
    return found


def cut(rows: Sequence[Row], at: Sequence[int]) -> list[list[Row]]:
    places = [0, *sorted(min(each, len(rows)) for each in at), len(rows)]
    return [list(rows[begin:end]) for begin, end in pairwise(places)]


names = st.sampled_from(["t", "u", "v"])
headers = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=2)
numbers = st.integers(0, 2**63 - 1)
some_rows = st.lists(
    st.builds(Row, st.binary(max_size=8), st.none() | st.binary(max_size=3), names, headers, st.none(), st.none()), max_size=40
)
named_rows = st.lists(st.builds(Row, st.binary(max_size=8), st.none(), names, st.none(), names, numbers), max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=4)


@settings(max_examples=50)
@given(some_rows, cuts, st.integers(1, 10))
def test_every_row_leaves_once_and_those_of_a_topic_in_order(rows: list[Row], at: list[int], most: int) -> None:
    requests, _ = written([batch_of(part) for part in cut(rows, at)], None, False, most)
    left = rows_of(requests)
    for topic in ("t", "u", "v"):
        assert [each for each in left if each.topic == topic] == [each for each in rows if each.topic == topic]
    assert all(1 <= len(request.payloads) <= most for _, request in requests)


@settings(max_examples=50)
@given(named_rows, cuts, st.integers(1, 10))
def test_those_of_a_producer_keep_their_order_and_numbers(rows: list[Row], at: list[int], most: int) -> None:
    requests, _ = written([batch_of(part) for part in cut(rows, at)], None, True, most)
    left = rows_of(requests)
    assert sorted(map(repr, left)) == sorted(map(repr, rows))
    for place in {(each.topic, each.producer) for each in rows}:
        ours, theirs = ([each for each in side if (each.topic, each.producer) == place] for side in (left, rows))
        assert ours == theirs


@settings(max_examples=50)
@given(some_rows, cuts, st.randoms())
def test_the_sum_is_that_of_the_rows_in_any_order_and_any_cut(rows: list[Row], at: list[int], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    _, total = written([batch_of(rows)] if rows else [], None, False, 10)
    _, again = written([batch_of(part) for part in cut(shuffled, at)], None, False, 3)
    assert total == again


@settings(max_examples=50)
@given(some_rows, some_rows)
@example([Row(b"b", b"a")], [Row(b"ab", b"")])
@example([Row(b"b", b"")], [Row(b"b", None)])
@example([Row(b"b", None, "t")], [Row(b"b", None, "u")])
@example([Row(b"a", headers={"a": "b"})], [Row(b"a")])
@example([Row(b"a")], [Row(b"a"), Row(b"a")])
@example([Row(b"3:abcd")], [Row(b"d", b"abc")])
def test_the_sum_tells_other_rows_apart(rows: list[Row], others: list[Row]) -> None:
    ours, theirs = ([each._replace(headers=each.headers or None) for each in each_side] for each_side in (rows, others))
    sums = [checksum_text(len(side), written([batch_of(side)], None, False, 10)[1]) for side in (ours, theirs)]
    assert (sums[0] == sums[1]) == (sorted(map(repr, ours)) == sorted(map(repr, theirs)))


def test_rows_that_swap_their_values_have_another_sum() -> None:
    """Of 100,000 such pairs the sums of CRC-32s, which are linear, agreed in some."""
    numbers = Random(1)
    for _ in range(100_000):
        keys, payloads = ([numbers.randbytes(4) for _ in range(2)] for _ in range(2))
        swapped = checksum(Place("t"), Columns(payloads[::-1], list(keys)))
        assert swapped != checksum(Place("t"), Columns(payloads, list(keys)))


def test_the_sum_is_kept_with_the_number_of_rows() -> None:
    assert checksum_text(3, 2**128 + 255) == "3:" + "0" * 30 + "ff"


def test_the_sum_stays_what_it_is_from_one_version_to_the_next() -> None:
    """It lies in the service beside the commit: a new version must not take the same rows for others."""
    rows = [Row(b"a", b"k"), Row(b"b", None, "u", {"h": "1"}), Row(b"c", producer="p", sequence_id=2**62)]
    _, plain = written([batch_of(rows)], None, False, 10)
    _, kept = written([batch_of(rows)], None, True, 10)
    assert (checksum_text(3, plain), checksum_text(3, kept)) == (
        "3:9e4f4a60aff7b22f68e9205f45c049ab",
        "3:5d5096796f0cee8b6c2b7a6c68427cbc",
    )


@pytest.mark.parametrize("binary", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("text", [pa.string(), pa.large_string()], ids=str)
def test_strings_and_bytes_are_the_same_in_all_their_forms(binary: pa.DataType, text: pa.DataType) -> None:
    rows = [Row("ä".encode(), b"k"), Row(b"", None, "u"), Row(b"x", b"")]
    batch = _with(batch_of(rows, text), binary)
    assert sorted(map(repr, rows_of(written([batch], None, False, 10)[0]))) == sorted(map(repr, rows))


def _with(batch: pa.RecordBatch, kind: pa.DataType) -> pa.RecordBatch:
    columns = [
        column.cast(pa.string() if pa.types.is_large_string(kind) else pa.binary()).cast(kind)
        if name in ("key", "value")
        else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.record_batch(columns, names=batch.schema.names)


def test_a_slice_of_a_batch_is_its_own_rows() -> None:
    batch = batch_of([Row(b"%d" % number) for number in range(10)]).slice(3, 4)
    assert [each.value for each in rows_of(written([batch], "t", False, 10)[0])] == [b"3", b"4", b"5", b"6"]


def test_the_option_wins_over_the_column() -> None:
    assert {topic for topic, _ in written([batch_of([Row(b"a"), Row(b"b", topic="u")])], "w", False, 10)[0]} == {"w"}


def test_no_request_is_larger_than_it_may_be_but_for_one_row() -> None:
    sizes = [100, MAX_BYTES // 2, MAX_BYTES // 2, MAX_BYTES // 2, 3 * MAX_BYTES, 100, MAX_BYTES]
    rows = [Row(bytes([number]) * size) for number, size in enumerate(sizes)]
    requests, _ = written([batch_of(rows)], None, False, 10)
    assert rows_of(requests) == rows
    assert all(len(request.payloads) == 1 or sum(map(len, request.payloads)) <= MAX_BYTES for _, request in requests)
    assert len(requests) == 5


def test_a_task_holds_a_bounded_number_of_rows_of_many_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MESSAGES", 100)
    chunks, left = Chunks(5_000), 0
    for begin in range(0, 1_000, 50):
        rows = [Row(b"x", producer=f"p{number % 7}", sequence_id=number) for number in range(begin, begin + 50)]
        for place, columns in split(batch_of(rows), "t", True):
            left += sum(len(request.payloads) for _, request in chunks.add(place, columns))
        assert begin + 50 - left <= 100
    assert left + sum(len(request.payloads) for _, request in chunks.rest()) == 1_000


@pytest.mark.parametrize(
    ("names", "columns", "problem"),
    [
        (["value"], [[b"a", None]], "column value is null in 1 rows for topic t"),
        (["value", "topic"], [[b"a", b"b"], ["u", None]], "column topic is None in 1 rows: fill it, or set option topic"),
        (["value", "topic"], [[b"a"], [""]], "column topic is ''"),
    ],
)
def test_a_row_that_cannot_be_written_says_which_column(names: list[str], columns: list[Any], problem: str) -> None:
    kinds = {"value": pa.binary(), "topic": pa.string()}
    batch = pa.record_batch([pa.array(each, kinds[name]) for name, each in zip(names, columns, strict=True)], names=names)
    with pytest.raises(ValueError, match=problem):
        list(split(batch, None if "topic" in names else "t", False))


def test_a_producers_row_needs_its_number() -> None:
    with pytest.raises(ValueError, match="column sequence_id is null in 1 rows of producer 'p'"):
        list(split(batch_of([Row(b"a", producer="p")]), "t", True))


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ([{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], "names 'a' twice"),
        ([{"key": "a", "value": b"\xff"}], "header 'a' is not UTF-8"),
        ([{"key": "a", "value": None}], "holds a null"),
        ([None], "holds a null"),
    ],
)
def test_a_header_that_cannot_be_a_property_is_refused(headers: list[Any], problem: str) -> None:
    batch = pa.record_batch([pa.array([b"a"], pa.binary()), pa.array([headers], HEADERS)], names=["value", "headers"])
    with pytest.raises(ValueError, match=problem):
        list(split(batch, "t", False))


# --- the columns


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


def test_what_the_source_brings_the_sink_takes() -> None:
    pair = StructType().add("key", StringType()).add("value", BinaryType())
    everything = schema(
        key=BinaryType(), value=BinaryType(), topic=StringType(), partition=IntegerType(), offset=LongType(),
        timestamp=TimestampType(), headers=ArrayType(pair), message_id=BinaryType(), producer=StringType(),
        sequence_id=LongType(),
    )  # fmt: skip
    for topic in (None, "t"):
        for keep in (False, True):
            check_columns(everything, topic, keep)


@pytest.mark.parametrize(
    ("columns", "topic", "keep", "problem"),
    [
        (schema(id=LongType()), "t", False, "no column value: .*to_json.*; there are id"),
        (schema(value=LongType()), "t", False, "column value is of type bigint, not binary or string; cast it"),
        (schema(value=StringType()), None, False, "no column topic: set option topic"),
        (schema(value=StringType(), topic=LongType()), None, False, "column topic is of type bigint"),
        (schema(value=StringType(), key=LongType()), "t", False, "column key is of type bigint"),
        (schema(value=StringType(), headers=StringType()), "t", False, "column headers is of type string, not array<struct<"),
        (schema(value=StringType()), "t", True, "no column producer: keepProducers=true"),
        (schema(value=StringType(), producer=StringType()), "t", True, "no column sequence_id: keepProducers=true"),
        (schema(value=StringType(), producer=StringType(), sequence_id=DoubleType()), "t", True, "sequence_id is of type double"),
    ],
)
def test_a_schema_that_cannot_be_written_says_why(columns: StructType, topic: str | None, keep: bool, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_columns(columns, topic, keep)


def test_columns_that_are_not_written_may_be_of_any_type() -> None:
    check_columns(schema(value=StringType(), topic=LongType(), producer=LongType(), offset=StringType()), "t", False)
