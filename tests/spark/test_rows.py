"""Rows of a DataFrame as requests: whatever Arrow brings, every row leaves once, in order, within the bounds of a request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import DataType, DoubleType, LongType, StringType, StructType

from oncelog.producing.cutting import REQUEST
from oncelog.spark.reading.columns import read_schema
from oncelog.spark.writing import rows as module
from oncelog.spark.writing.rows import Chunks, check_columns, checksum, checksum_text, split
from oncelog.wire.requests import PublishRequest

MAX_BYTES = REQUEST.bytes


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
unnamed = st.builds(Row, st.binary(max_size=8), st.none() | st.binary(max_size=3), names, headers, st.none(), st.none())
named = st.builds(Row, st.binary(max_size=8), st.none() | st.binary(max_size=3), names, headers, names, numbers)
some_rows = st.lists(unnamed | named, max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=4)


@given(some_rows, cuts, st.integers(1, 10), st.sampled_from([None, "w"]), st.booleans())
def test_every_row_leaves_once_and_in_the_order_of_its_place(
    rows: list[Row], at: list[int], most: int, topic: str | None, keep: bool
) -> None:
    requests, _ = written([batch_of(part) for part in cut(rows, at)], topic, keep, most)
    wanted = [each._replace(topic=topic or each.topic) for each in rows]
    wanted = wanted if keep else [each._replace(producer=None, sequence_id=None) for each in wanted]
    left = rows_of(requests)
    assert sorted(map(repr, left)) == sorted(map(repr, wanted))
    for place in {(each.topic, each.producer) for each in wanted}:
        ours, theirs = ([each for each in side if (each.topic, each.producer) == place] for side in (left, wanted))
        assert ours == theirs
    assert all(1 <= len(request.payloads) <= most for _, request in requests)


@given(some_rows, cuts, st.randoms())
def test_the_sum_is_that_of_the_rows_in_any_order_and_any_cut(rows: list[Row], at: list[int], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    _, total = written([batch_of(rows)] if rows else [], None, True, 10)
    _, again = written([batch_of(part) for part in cut(shuffled, at)], None, True, 3)
    assert total == again


@given(st.lists(unnamed, max_size=10), st.lists(unnamed, max_size=10))
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
    """A sum of CRCs, which are linear, is the same for some of a hundred thousand such pairs."""
    a, b, c, d = (checksum("t", PublishRequest([value], keys=[key])) for key in (b"k", b"l") for value in (b"v", b"w"))
    assert a + d != b + c
    assert a ^ b ^ c ^ d, "nor is the sum of one row known from those of three others"


def test_the_sum_stays_what_it_is_from_one_version_to_the_next() -> None:
    """It lies in the service beside the commit: a new version must not take the same rows for others."""
    rows = [Row(b"a", b"k"), Row(b"b", None, "u", {"h": "1"}), Row(b"c", producer="p", sequence_id=2**62)]
    _, plain = written([batch_of(rows)], None, False, 10)
    _, kept = written([batch_of(rows)], None, True, 10)
    assert (checksum_text(3, plain), checksum_text(3, kept)) == (
        "3:9e4f4a60aff7b22f68e9205f45c049ab",
        "3:5d5096796f0cee8b6c2b7a6c68427cbc",
    )
    assert checksum_text(3, 2**128 + 255) == "3:" + "0" * 30 + "ff"


@pytest.mark.parametrize("binary", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("text", [pa.string(), pa.large_string()], ids=str)
def test_strings_and_bytes_are_the_same_in_all_their_forms_and_a_slice_is_its_own_rows(
    binary: pa.DataType, text: pa.DataType
) -> None:
    rows = [Row("ä".encode(), b"k"), Row(b"", None, "u"), Row(b"x", b""), Row(b"y")]
    batch, plain = batch_of(rows, text), pa.string() if pa.types.is_large_string(binary) else pa.binary()
    for index in (0, 1):  # key and value
        batch = batch.set_column(index, batch.schema.names[index], batch.column(index).cast(plain).cast(binary))
    assert sorted(map(repr, rows_of(written([batch], None, False, 10)[0]))) == sorted(map(repr, rows))
    assert rows_of(written([batch.slice(1, 2)], "t", False, 10)[0]) == [rows[1]._replace(topic="t"), rows[2]]


def test_no_request_is_larger_than_it_may_be_but_for_one_row() -> None:
    half = MAX_BYTES // 2 - 128  # what a row costs beside its value
    sizes = [100, half, half, half, 3 * MAX_BYTES, 100, MAX_BYTES]
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


def headed(*headers: tuple[str, bytes | None] | None) -> dict[str, Any]:
    pairs = [None if each is None else {"key": each[0], "value": each[1]} for each in headers]
    return {"value": [b"a"], "headers": [pairs]}


@pytest.mark.parametrize(
    ("columns", "topic", "keep", "problem"),
    [
        ({"value": [b"a", None]}, "t", False, "column value is null in 1 rows for topic t"),
        (
            {"value": [b"a", b"b"], "topic": ["u", None]},
            None,
            False,
            "column topic is None in 1 rows: fill it, or set option topic",
        ),
        ({"value": [b"a"], "topic": [""]}, None, False, "column topic is ''"),
        ({"value": [b"a"], "producer": ["p"], "sequence_id": [None]}, "t", True, "sequence_id is null in 1 rows of producer 'p'"),
        (headed(("a", b"1"), ("a", b"2")), "t", False, "names 'a' twice"),
        (headed(("a", b"\xff")), "t", False, "header 'a' is not UTF-8"),
        (headed(("a", None)), "t", False, "holds a null"),
        (headed(None), "t", False, "holds a null"),
    ],
)
def test_a_row_that_cannot_be_written_says_which_column(
    columns: dict[str, list[Any]], topic: str | None, keep: bool, problem: str
) -> None:
    kinds = {"value": pa.binary(), "headers": HEADERS, "sequence_id": pa.int64()}
    batch = pa.record_batch([pa.array(each, kinds.get(name, pa.string())) for name, each in columns.items()], names=list(columns))
    with pytest.raises(ValueError, match=problem):
        list(split(batch, topic, keep))


# --- the columns


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


def test_what_the_source_brings_the_sink_takes_and_what_is_not_written_may_be_of_any_type() -> None:
    for topic in (None, "t"):
        for keep in (False, True):
            check_columns(read_schema(True), topic, keep)
    check_columns(schema(value=StringType(), topic=LongType(), producer=LongType(), offset=StringType()), "t", False)


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
