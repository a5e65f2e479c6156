"""How many rows a SQLite file holds that are of no log, and the sum of their keys: one that is hidden is noticed.

A page of SQLite has no checksum. One flipped bit in an index and a row is not found any more: a producer's epochs would begin
anew, a commit that is repeated would be taken for a new one. Where logs end is known (sql_ends.py); of all other keys the
count and the sum of their CRC-32s are kept in one row, written with whatever changes them, and held against the keys that are
found at each open.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

from oncelog_service.storage.end_file import ROW_KEY
from oncelog_service.storage.sql_ends import TAIL

KEYS_KEY = b"\x00keys"
"""The row."""
_LAYOUT = struct.Struct(">QQ")
_OURS = frozenset((ROW_KEY, KEYS_KEY))


class Keys(NamedTuple):
    """What is known of them."""

    rows: int = 0
    total: int = 0
    """Of their checksums, modulo 2^64."""

    def with_(self, keys: Iterable[bytes]) -> Keys:
        """And these, which were not there."""
        sums = [crc32(key) for key in keys]
        return Keys(self.rows + len(sums), (self.total + sum(sums)) % 2**64)

    def without(self, keys: Iterable[bytes]) -> Keys:
        """But these, which were."""
        sums = [crc32(key) for key in keys]
        return Keys(self.rows - len(sums), (self.total - sum(sums)) % 2**64)

    def to_bytes(self) -> bytes:
        """As the row has it."""
        body = _LAYOUT.pack(self.rows, self.total)
        return body + crc32(body).to_bytes(4, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> Keys | None:
        """Read it back; None: it is damaged."""
        if len(data) != _LAYOUT.size + 4 or crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
            return None
        return cls(*_LAYOUT.unpack_from(data))


def counted(key: bytes) -> bool:
    """Whether the row is among them."""
    return key[:1] not in TAIL and key not in _OURS


def counted_ranges() -> Iterator[tuple[bytes, bytes]]:
    """All of them lie in these ranges of keys: between the tables that hold logs."""
    start = b""
    for table in sorted(TAIL):
        yield start, table
        start = bytes([table[0] + 1])
    yield start, b"\xff" * 2
