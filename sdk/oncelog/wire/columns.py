"""Messages column by column: the body that Spark's executors read, laid out so that Arrow takes it as it lies. Pure.

The rows of a poll stay the public way to read one message after the other; this is the same for hundreds of thousands a second.
Strings of bytes lie in one piece with the positions between them; offsets, producers and sequence ids are runs, since neighbours
mostly follow on each other.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from oncelog.errors import InvalidRequest
from oncelog.message_id import SIZE
from oncelog.wire.codec import decode, encode
from oncelog.wire.media import ONCELOG_AVRO

MAX_DATA = 2**31 - 1
"""Bytes in one column: positions are 32 bits."""
_POSITION = 4


class OffsetRun(NamedTuple):
    """``count`` messages with the offsets ``first``, ``first + 1``, …"""

    first: int
    count: int  # type: ignore[assignment]  # tuple.count, which nobody needs here


class ProducerRun(NamedTuple):
    """``count`` messages of one producer, or of none, whose sequence ids rise by one."""

    producer: str | None
    sequence_id: int | None
    """Of the first one."""
    count: int  # type: ignore[assignment]


class BytesColumn(NamedTuple):
    """A string of bytes for each message."""

    positions: bytes
    """n + 1 int32, little-endian: where each begins in ``data``, and where the last one ends."""
    data: bytes
    present: bytes | None = None
    """A byte for each message, 1 or 0; None: each has one."""


class MessageColumns(NamedTuple):
    """Messages of a range of offsets of one topic."""

    next: int
    """The offset to go on at: everything before it was looked at."""
    offsets: Sequence[OffsetRun]
    message_ids: bytes
    """20 of each message."""
    producers: Sequence[ProducerRun]
    values: BytesColumn
    keys: BytesColumn | None = None
    """None: no message has one."""
    properties: Sequence[Mapping[str, str] | None] | None = None
    """None: not asked for, or no message has any."""

    @property
    def messages(self) -> int:
        """How many messages they are of."""
        return len(self.message_ids) // SIZE


def pack(values: Sequence[bytes]) -> BytesColumn:
    """A column in which each message has a value. Raises OverflowError beyond :data:`MAX_DATA` bytes."""
    return BytesColumn(_int32(accumulate(map(len, values), initial=0)), b"".join(values))


def pack_optional(values: Sequence[bytes | None]) -> BytesColumn | None:
    """A column in which some messages may have none; None where no message has one."""
    present = bytes([value is not None for value in values])
    if 1 not in present:
        return None
    packed = pack([value or b"" for value in values])
    return packed if 0 not in present else packed._replace(present=present)


def unpack(column: BytesColumn) -> list[bytes | None]:
    """The values, one by one."""
    positions = _little_endian(array("i", column.positions))
    data = column.data
    values = [data[begin:end] for begin, end in pairwise(positions)]
    if column.present is None:
        return list(values)
    return [value if present else None for value, present in zip(values, column.present, strict=True)]


def timestamps(message_ids: bytes) -> bytes:
    """When each message was published, in ms: int64, little-endian. The first 8 of an id's 20 bytes, turned round."""
    out = bytearray(len(message_ids) // SIZE * 8)
    for place in range(8):
        out[place::8] = message_ids[7 - place :: SIZE]
    return bytes(out)


def int64(values: Iterable[int]) -> bytes:
    """Little-endian."""
    return _little_endian(array("q", values)).tobytes()


def _int32(values: Iterable[int]) -> bytes:
    return _little_endian(array("i", values)).tobytes()


def _little_endian(numbers: array[int]) -> array[int]:
    """From this machine's order of bytes, or to it."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


# --- as bytes -----------------------------------------------------------------------------------------------------------


def encode_message_columns(columns: MessageColumns) -> bytes:
    """The body in :data:`~oncelog.wire.media.ONCELOG_AVRO`."""
    record = {
        "next": columns.next,
        "offsets": [run._asdict() for run in columns.offsets],
        "messageIds": columns.message_ids,
        "producers": [{"producer": run.producer, "sequenceId": run.sequence_id, "count": run.count} for run in columns.producers],
        "values": columns.values._asdict(),
        "keys": None if columns.keys is None else columns.keys._asdict(),
        "properties": columns.properties,
    }
    return encode("MessageColumns", ONCELOG_AVRO, record)


def decode_message_columns(body: bytes) -> MessageColumns:
    """Read one back; its columns agree with each other. Raises InvalidRequest."""
    record = decode("MessageColumns", ONCELOG_AVRO, body)
    columns = MessageColumns(
        record["next"],
        [OffsetRun(*run.values()) for run in record["offsets"]],
        record["messageIds"],
        [ProducerRun(*run.values()) for run in record["producers"]],
        BytesColumn(**record["values"]),
        None if record["keys"] is None else BytesColumn(**record["keys"]),
        record["properties"],
    )
    problem = _problem(columns)
    if problem is not None:
        raise InvalidRequest(f"the columns do not agree: {problem}")
    return columns


def _problem(columns: MessageColumns) -> str | None:
    total = columns.messages
    if len(columns.message_ids) != total * SIZE:
        return f"message ids of {len(columns.message_ids)} bytes"
    for what, runs in (("offsets", columns.offsets), ("producers", columns.producers)):
        if sum(run.count for run in runs) != total or any(run.count < 1 for run in runs):
            return f"{what} of other than {total} messages"
    for what, column in (("values", columns.values), ("keys", columns.keys)):
        if column is not None and (problem := _column_problem(column, total)) is not None:
            return f"{what} {problem}"
    if columns.values.present is not None:
        return "values that are missing"
    if columns.properties is not None and len(columns.properties) != total:
        return f"properties of {len(columns.properties)} messages instead of {total}"
    return None


def _column_problem(column: BytesColumn, total: int) -> str | None:
    if len(column.positions) != (total + 1) * _POSITION:
        return f"with {len(column.positions)} bytes of positions for {total} messages"
    positions = _little_endian(array("i", column.positions)).tolist()
    if (positions[0], positions[-1]) != (0, len(column.data)) or positions != sorted(positions):
        return "whose positions are not those of its data"
    if column.present is not None and len(column.present) != total:
        return f"present for {len(column.present)} of {total} messages"
    return None
