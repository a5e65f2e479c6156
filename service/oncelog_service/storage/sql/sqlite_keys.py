"""How many rows a SQLite file holds that are of no log, and the sum of their keys: one that is hidden is noticed.

A page of SQLite has no checksum. One flipped bit in an index and a row is not found any more: a producer's epochs would begin
anew, a commit that is repeated would be taken for a new one. Where logs end is known (ends.py); of all other keys the
count and the sum of their CRC-32s are kept in one row, written with whatever changes them, and held against the keys that are
found at each open.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.files.end_file import ROW_KEY
from oncelog_service.storage.sql.ends import TAIL

KEYS_KEY = b"\x00keys"
"""The row."""
_LAYOUT = struct.Struct(">QQ")
_OURS = frozenset((ROW_KEY, KEYS_KEY))


class Keys(NamedTuple):
    """Counts rows, and sums their keys."""

    rows: int = 0
    total: int = 0
    """Of their checksums, modulo 2^64."""

    def changed(self, added: Iterable[bytes], gone: Iterable[bytes] = ()) -> Keys:
        """Adds keys, which were not there, and takes others away, which were."""
        more, less = ([crc32(key) for key in keys] for keys in (added, gone))
        return Keys(self.rows + len(more) - len(less), (self.total + sum(more) - sum(less)) % 2**64)

    def to_bytes(self) -> bytes:
        return with_checksum(_LAYOUT.pack(self.rows, self.total))

    @classmethod
    def from_bytes(cls, data: bytes) -> Keys | None:
        """Reads the row back; None: it is damaged."""
        return cls(*_LAYOUT.unpack_from(data)) if len(data) == _LAYOUT.size + SIZE and matches(data) else None


def counted(key: bytes) -> bool:
    """Tells whether a row is counted."""
    return key[:1] not in TAIL and key not in _OURS


def counted_ranges() -> Iterator[tuple[bytes, bytes]]:
    """Yields the ranges of keys that hold all counted rows: between the tables that hold logs."""
    start = b""
    for table in sorted(TAIL):
        yield start, table
        start = bytes([table[0] + 1])
    yield start, b"\xff" * 2
