"""The checksum behind rows and records that carry one of their own: the CRC-32 of what stands before it, little-endian.

Over all of it, checksum included, the CRC-32 is one constant: so nothing has to be cut off, or compared, to check it.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

SIZE = 4
_RESIDUE = 0x2144DF1C
"""The CRC-32 of any bytes followed by their own CRC-32, little-endian."""


def with_checksum(body: bytes) -> bytes:
    """The bytes with their checksum behind them."""
    return body + crc32(body).to_bytes(SIZE, "little")


def matches(data: bytes) -> bool:
    """Whether the last four bytes are the checksum of those before them."""
    return crc32(data) == _RESIDUE


def all_match(each: Iterable[bytes]) -> bool:
    """Whether that is so of all of them."""
    return set(map(crc32, each)) <= {_RESIDUE}
