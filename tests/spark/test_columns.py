"""Columns of the service as rows of Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from oncelog.message_id import MessageId
from oncelog.spark.reading.columns import arrow_schema, check_schema, read_schema, record_batch
from oncelog.wire.columns import (
    MessageColumns,
    OffsetRun,
    ProducerRun,
    decode_message_columns,
    encode_message_columns,
    pack,
    pack_optional,
)

# offset, key, value, producer and sequence id, properties
Row = tuple[int, bytes | None, bytes, tuple[str, int] | None, dict[str, str] | None]
MS = 1_790_000_000_123

rows = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.none() | st.binary(max_size=3),
        st.binary(max_size=5),
        st.none() | st.tuples(st.sampled_from(["p", "q", "é"]), st.integers(0, 2**40)),
        st.none() | st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
    ),
    max_size=12,
)


def columns_of(given: list[Row]) -> MessageColumns:
    columns = MessageColumns(
        next=2**41,
        offsets=[OffsetRun(offset, 1) for offset, *_ in given],
        message_ids=b"".join(bytes(MessageId(MS + index, 0)) for index in range(len(given))),
        producers=[ProducerRun(*(producer or (None, None)), 1) for *_, producer, _ in given],  # type: ignore[call-arg]
        values=pack([value for _, _, value, _, _ in given]),
        keys=pack_optional([key for _, key, _, _, _ in given]),
        properties=[properties for *_, properties in given],
    )
    return decode_message_columns(encode_message_columns(columns))


@given(rows)
def test_each_message_is_a_row_with_all_that_it_is(given: list[Row]) -> None:
    batch = record_batch("orders", columns_of(given), arrow_schema(read_schema(True)))
    batch.validate(full=True)
    assert batch.to_pylist() == [
        {
            "key": key,
            "value": value,
            "topic": "orders",
            "partition": 0,
            "offset": offset,
            "timestamp": datetime.fromtimestamp((MS + index) // 1000, UTC).replace(microsecond=(MS + index) % 1000 * 1000),
            "timestampType": 1,
            "headers": [{"key": name, "value": text.encode()} for name, text in properties.items()] if properties else None,
            "message_id": bytes(MessageId(MS + index, 0)),
            "producer": None if producer is None else producer[0],
            "sequence_id": None if producer is None else producer[1],
        }
        for index, (offset, key, value, producer, properties) in enumerate(given)
    ]


@pytest.mark.parametrize("include_headers", [False, True])
def test_a_batch_has_exactly_the_schema_that_spark_compares_it_with(include_headers: bool) -> None:
    kafkas = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"] + ["headers"] * include_headers
    assert read_schema(include_headers).fieldNames() == [*kafkas, "message_id", "producer", "sequence_id"]
    for count in (0, 1, 3):
        batch = record_batch("t", columns_of([(7, None, b"v", None, None)] * count), arrow_schema(read_schema(include_headers)))
        assert batch.schema.equals(to_arrow_schema(read_schema(include_headers), timezone="UTC"), check_metadata=True)


def test_runs_count_on_from_their_first() -> None:
    columns = columns_of([(0, b"k", b"v", None, None)] * 6)._replace(
        offsets=[OffsetRun(5, 2), OffsetRun(10, 4)],
        producers=[ProducerRun("p", 100, 3), ProducerRun(None, None, 1), ProducerRun("q", 7, 2)],
    )
    batch = record_batch("t", columns, arrow_schema(read_schema(False)))
    assert batch["offset"].to_pylist() == [5, 6, 10, 11, 12, 13]
    assert batch["producer"].to_pylist() == ["p", "p", "p", None, "q", "q"]
    assert batch["sequence_id"].to_pylist() == [100, 101, 102, None, 7, 8]


def test_values_are_not_copied() -> None:
    columns = columns_of([(index, None, b"x" * 1_000, None, None) for index in range(100)])
    batch = record_batch("t", columns, arrow_schema(read_schema(False)))
    assert batch["value"].buffers()[2].address == pa.py_buffer(columns.values.data).address


def test_a_schema_of_the_callers_own_chooses_and_orders_columns() -> None:
    schema = StructType().add("value", "binary").add("offset", "long")
    check_schema(schema)
    batch = record_batch("t", columns_of([(7, None, b"v", None, None)] * 2), arrow_schema(schema))
    assert batch.to_pylist() == [{"value": b"v", "offset": 7}] * 2
    with pytest.raises(ValueError, match="no column valeu; there are key, value"):
        check_schema(StructType().add("valeu", "binary"))
    with pytest.raises(ValueError, match="column value is not of type string, but binary: cast it"):
        check_schema(StructType().add("value", "string"))
