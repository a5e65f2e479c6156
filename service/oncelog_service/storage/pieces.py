"""A value that may be large – a snapshot of many producers – as rows of bounded size, written in one atomic write.

PostgreSQL and SQLite take no value of more than 1 GB, and nothing likes one of a hundred megabytes. A value of up to
PIECE_BYTES is a row as it is. A larger one is cut::

    key           value of a piece, big-endian
    key           magic "OLPC" · how many pieces u32 · number u32, from 0 · CRC-32 of the whole · bytes · checksum of all that
    key · 1 u32   the same with number 1, and so on

The whole is there only if each piece is, of the same value. What a larger value has left under higher numbers is never read,
and goes with the topic.
"""

from __future__ import annotations

import struct
from zlib import crc32

from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.port import Batch, Store, Table

PIECE_BYTES = 4 * 2**20
_MAGIC = b"OLPC"
_HEAD = struct.Struct(">4sIII")
_NUMBER = struct.Struct(">I")


def put_pieces(batch: Batch, table: Table, key: bytes, value: bytes, size: int | None = None) -> None:
    """Adds a value to a batch, in pieces of at most ``size`` bytes."""
    size = size or PIECE_BYTES
    if len(value) <= size:
        batch.put(table, key, value)
        return
    count, whole = -(-len(value) // size), crc32(value)
    for number in range(count):
        body = _HEAD.pack(_MAGIC, count, number, whole) + value[number * size : (number + 1) * size]
        batch.put(table, _piece_key(key, number), with_checksum(body))


def get_pieces(store: Store, table: Table, key: bytes) -> bytes | None:
    """Reads a value; None: there is none. If a piece is damaged or missing: no bytes, no snapshot. Raises StoreError."""
    first = store.get(table, key)
    if first is None or not is_piece(first):
        return first
    count, _, whole = _head_of(first)
    parts = []
    for number in range(count):
        piece = store.get(table, _piece_key(key, number))
        if piece is None or not intact_piece(piece) or _head_of(piece) != (count, number, whole):
            return b""
        parts.append(piece[_HEAD.size : -SIZE])
    return b"".join(parts)


def is_piece(data: bytes) -> bool:
    """Tells whether a row is a piece of a value, and not the whole of one."""
    return data.startswith(_MAGIC) and len(data) >= _HEAD.size + SIZE


def intact_piece(data: bytes) -> bool:
    """Tells whether the checksum of a piece matches."""
    return is_piece(data) and matches(data)


def _head_of(piece: bytes) -> tuple[int, int, int]:
    _, count, number, whole = _HEAD.unpack_from(piece)
    return count, number, whole


def _piece_key(key: bytes, number: int) -> bytes:
    return key + _NUMBER.pack(number) if number else key
