"""The one checksum of everything on disk: the CRC-32 of the bytes before it, behind them, little-endian.

Over all of it, checksum included, the CRC-32 is one constant: so nothing has to be cut off, or compared, to check it. That holds
too where the checksum covers a place besides (``of``: the key under which the bytes lie), which is not stored with them.
"""

from __future__ import annotations

from zlib import crc32

SIZE = 4
_RESIDUE = 0x2144DF1C
"""The CRC-32 of any bytes followed by their own CRC-32, little-endian."""


def with_checksum(body: bytes, of: bytes = b"") -> bytes:
    """Appends the checksum."""
    return body + crc32(body, crc32(of)).to_bytes(SIZE, "little")


def matches(data: bytes, of: bytes = b"") -> bool:
    """Tells whether the last four bytes are the checksum of those before them."""
    return len(data) >= SIZE and crc32(data, crc32(of)) == _RESIDUE
