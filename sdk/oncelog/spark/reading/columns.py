"""Messages as Spark's rows: the columns of the source, and an Arrow batch over the bytes that the service sent. Pure.

The schema of a batch must equal what Spark makes of :func:`read_schema` exactly: order, nullability, widths of positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from oncelog.message_id import SIZE
from oncelog.wire.columns import BytesColumn, MessageColumns, int64, timestamps

PARTITION = 0
"""Topics have no partitions; jobs made for Kafka ask for one."""
LOG_APPEND_TIME = 1
"""Kafka's number for a timestamp that the log has given, as each one here."""


def read_schema(include_headers: bool) -> StructType:
    """The columns of the source: Kafka's first, then what a message is known by. All nullable, as Kafka's."""
    columns: list[tuple[str, DataType]] = [
        ("key", BinaryType()),
        ("value", BinaryType()),
        ("topic", StringType()),
        ("partition", IntegerType()),
        ("offset", LongType()),
        ("timestamp", TimestampType()),
        ("timestampType", IntegerType()),
    ]
    if include_headers:
        columns.append(("headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))))
    columns += [("message_id", BinaryType()), ("producer", StringType()), ("sequence_id", LongType())]
    return StructType([StructField(name, kind) for name, kind in columns])


def check_schema(schema: StructType) -> None:
    """Whether a schema that the caller gives has columns of the source only, in any order. Raises ValueError, which names one."""
    there = {field.name: field.dataType for field in read_schema(True).fields}
    for field in schema.fields:
        if field.name not in there:
            raise ValueError(f"the source has no column {field.name}; there are {', '.join(there)}")
        if field.dataType != there[field.name]:
            kinds = (field.dataType.simpleString(), there[field.name].simpleString())
            raise ValueError(f"column {field.name} is not of type {kinds[0]}, but {kinds[1]}: cast it behind the source")


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark expects it of every batch."""
    return to_arrow_schema(schema, timezone="UTC")


def record_batch(topic: str, columns: MessageColumns, schema: pa.Schema) -> pa.RecordBatch:
    """The messages as rows, with those columns that ``schema`` names. Values, keys and ids stay where they lie in ``columns``."""
    return pa.RecordBatch.from_arrays([_column(field, topic, columns) for field in schema], schema=schema)


def _column(field: pa.Field, topic: str, columns: MessageColumns) -> pa.Array:
    count = columns.messages
    match field.name:
        case "key":
            return pa.nulls(count, pa.binary()) if columns.keys is None else _binary(columns.keys, count)
        case "value":
            return _binary(columns.values, count)
        case "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), count)
        case "partition":
            return pa.repeat(pa.scalar(PARTITION, pa.int32()), count)
        case "offset":
            return _rising([run.first for run in columns.offsets], [run.count for run in columns.offsets], count)
        case "timestamp":
            in_ms = _fixed(pa.timestamp("ms", tz="UTC"), count, timestamps(columns.message_ids))
            return in_ms.cast(pa.timestamp("us", tz="UTC"))
        case "timestampType":
            return pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), count)
        case "headers":
            return _headers(columns.properties, count, field.type)
        case "message_id":
            return _fixed(pa.binary(SIZE), count, columns.message_ids).cast(pa.binary())
        case "producer":
            names = pa.array([run.producer for run in columns.producers], pa.string())
            return _repeated(names, [run.count for run in columns.producers], count)
        case "sequence_id":
            return _rising([run.sequence_id for run in columns.producers], [run.count for run in columns.producers], count)
    raise ValueError(f"the source has no column {field.name}")


def _fixed(kind: pa.DataType, count: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _binary(column: BytesColumn, count: int) -> pa.Array:
    present = None
    if column.present is not None:
        present = _fixed(pa.uint8(), count, column.present).cast(pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), count, [present, pa.py_buffer(column.positions), pa.py_buffer(column.data)])


def _rising(firsts: Sequence[int | None], counts: Sequence[int], count: int) -> pa.Array:
    """For each run ``first, first + 1, …``; nothing where it has none."""
    index = _fixed(pa.int64(), count, int64(range(count)))
    begins = accumulate(counts, initial=0)
    shifts = [None if first is None else first - begin for first, begin in zip(firsts, begins, strict=False)]
    return pc.add(index, _repeated(pa.array(shifts, pa.int64()), counts, count))


def _repeated(values: pa.Array, counts: Sequence[int], count: int) -> pa.Array:
    if len(counts) == 1:
        return pa.repeat(values[0], count)
    ends = pa.array(accumulate(counts), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))


def _headers(properties: Sequence[Mapping[str, str] | None] | None, count: int, kind: pa.DataType) -> pa.Array:
    """Properties as Kafka's headers are: null where a message has none."""
    if properties is None:
        return pa.nulls(count, kind)
    rows = [[{"key": key, "value": value.encode()} for key, value in one.items()] if one else None for one in properties]
    return pa.array(rows, kind)
