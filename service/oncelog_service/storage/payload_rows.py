"""Rows of the Payload Table.

A row of the Payload Table, version 1, big-endian::

    offset  size  field
    0       1     version = 1
    1       1     flags: 4 TTL
    2       4     payload_at u32: from the beginning of the row to the payload
    6       10    payload id: write timestamp i64 · payload seq_id u16, as in the key
    16      4     index u32: 0, 1, 2, … within the write pointer
    20      ...   the fields of `oncelog.v1.Message` behind its offset
    end-4   4     CRC-32 of everything before it, little-endian
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from oncelog.wire.avro_parts import decode_long, encode_length, encode_long
from oncelog_service.storage.checksum import with_checksum
from oncelog_service.storage.fields import (
    ID_LENGTH,
    TTL,
    VERSION,
    Columns,
    decode_key,
    decode_named,
    decode_ttl,
    encode_named,
    encode_rest,
    intact,
    skip_named,
)
from oncelog_service.storage.port import RowDamaged

_HEAD = struct.Struct(">BBI10sI")


class Payload(NamedTuple):
    """A decoded row of the Payload Table."""

    payload_id: bytes
    group_index: int
    """0, 1, 2, … within the write pointer."""
    producer: str | None
    sequence_id: int | None
    ttl: int | None
    payload: bytes
    key: bytes | None = None


def encode_payload_rows(columns: Columns, payload_ids: Sequence[bytes], first_index: int) -> list[bytes]:
    """Encodes a row of the Payload Table for each message, in the same order."""
    named, sequence_ids = encode_named(columns)
    tails, flags = encode_rest(columns)
    rows: list[bytes] = []
    for index, (payload_id, sequence_id, tail, flag, payload) in enumerate(
        zip(payload_ids, sequence_ids, tails, flags, columns.payloads, strict=False), first_index
    ):
        fields = named + sequence_id + tail
        head = _HEAD.pack(VERSION, flag, _HEAD.size + len(fields), payload_id, index)
        rows.append(with_checksum(b"".join((head, fields, encode_length(len(payload)), payload))))
    return rows


def decode_payload_row(payload_id: bytes, row: bytes) -> Payload:
    """Decodes a row of the Payload Table. Raises RowDamaged."""
    if not intact(row) or payload_id_of(row) != payload_id:
        raise RowDamaged(f"the payload at {payload_id.hex()} does not match its checksum, its index or is of an unknown version")
    producer, sequence_id, at = decode_named(row, _HEAD.size)
    ttl = decode_ttl(row, at) if row[1] & TTL else None
    _, payload_begin = decode_long(row, int.from_bytes(row[2:6], "big"))
    return Payload(payload_id, payload_index_of(row), producer, sequence_id, ttl, row[payload_begin:-4], decode_key(row, at))


def payload_tail_of(row: bytes) -> bytes:
    """Cuts out key, properties and ttl as they are encoded."""
    return row[skip_named(row, _HEAD.size) : int.from_bytes(row[2:6], "big")]


def payload_id_of(row: bytes) -> bytes:
    """Reads the payload id that a row itself says it has."""
    return row[6:16]


def payload_index_of(row: bytes) -> int:
    """Reads the payload's index within its write pointer."""
    return int.from_bytes(row[16:20], "big")


def payload_ttl_of(row: bytes) -> int:
    """Reads the message's own ttl in seconds, of a payload row with the flag TTL."""
    return decode_ttl(row, skip_named(row, _HEAD.size))


def stored_message_of(row_id: bytes, offset: int, row: bytes) -> bytes:
    """Joins the Avro bytes, as `oncelog.v1.Message`, of a message whose payload lies in the Payload Table."""
    return b"".join((ID_LENGTH, row_id, row[6:16], encode_long(offset), row[_HEAD.size : -4]))


def tms_stored_message_of(row_id: bytes, offset: int, row: bytes) -> bytes:
    """Joins the Avro bytes, as the TMS page's `Message`, of a message whose payload lies in the Payload Table."""
    return b"".join((ID_LENGTH, row_id, row[6:16], row[int.from_bytes(row[2:6], "big") : -4]))
