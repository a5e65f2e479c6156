"""The persisted map and the position it is true at, as checksummed bytes.

Both travel in one value, so that they can only be written together: a snapshot whose position is ahead of its map would lose
messages (seen in Pulsar), and one whose map is ahead of its position would still be right, since replay only raises.

Layout, version 1, big-endian::

    offset  size  field
    0       4     magic "OLSN"
    4       1     version = 1
    5       8     upcoming offset: every message below it is in the map, none at or above it
    13      20    id of the last message below the upcoming offset (zeros when there is none)
    33      4     number of producers, u32
    37      ...   per producer: name length u16, name UTF-8, sequence id i64, message id 20 bytes, offset i64
    end-4   4     CRC-32 of everything before it
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from oncelog_dedup.sequence_map import LastEntry, SequenceMap

_MAGIC = b"OLSN"
_VERSION = 1
_HEAD = struct.Struct(">4sBq20sI")
_NAME = struct.Struct(">H")
_MARK = struct.Struct(">q20sq")
_CRC = struct.Struct(">I")
_NO_ID = bytes(20)


class SnapshotDamaged(ValueError):
    """The bytes are not a snapshot that this version wrote: cut, flipped, or of another layout."""


class Position(NamedTuple):
    """A place between two messages of a log."""

    upcoming_offset: int
    last_message_id: bytes | None
    """The id of the message just before, or None at the beginning of a topic's life."""


START = Position(0, None)
"""The position before the first message of a topic."""


class Snapshot(NamedTuple):
    """``last_entries`` is the fold of exactly the messages below ``position``."""

    last_entries: SequenceMap
    position: Position

    def to_bytes(self) -> bytes:
        """The snapshot in the layout above."""
        position = self.position
        last_id = _NO_ID if position.last_message_id is None else position.last_message_id
        parts = [_HEAD.pack(_MAGIC, _VERSION, position.upcoming_offset, last_id, len(self.last_entries))]
        for producer, last_entry in self.last_entries.items():
            name = producer.encode()
            parts += (_NAME.pack(len(name)), name, _MARK.pack(*last_entry))
        body = b"".join(parts)
        return body + _CRC.pack(crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """Read a snapshot back.

        Raises:
            SnapshotDamaged: whatever is wrong with the bytes. Never half a map.
        """
        if len(data) < _HEAD.size + _CRC.size:
            raise SnapshotDamaged(f"a snapshot has at least {_HEAD.size + _CRC.size} bytes, this one {len(data)}")
        body, checksum = data[: -_CRC.size], data[-_CRC.size :]
        if _CRC.unpack(checksum)[0] != crc32(body):
            raise SnapshotDamaged("the checksum of the snapshot does not match its bytes")
        magic, version, upcoming_offset, last_id, count = _HEAD.unpack_from(body)
        if magic != _MAGIC or version != _VERSION:
            raise SnapshotDamaged(f"not a snapshot of layout version {_VERSION}: {magic!r} version {version}")
        try:
            last_entries = _read_last_entries(body, count)
        except (struct.error, UnicodeDecodeError) as error:
            raise SnapshotDamaged(f"the producers of the snapshot cannot be read: {error}") from error
        return cls(last_entries, Position(upcoming_offset, None if last_id == _NO_ID else last_id))


def _read_last_entries(body: bytes, count: int) -> SequenceMap:
    last_entries: dict[str, LastEntry] = {}
    at = _HEAD.size
    for _ in range(count):
        (length,) = _NAME.unpack_from(body, at)
        at += _NAME.size
        name = body[at : at + length].decode()
        at += length
        last_entries[name] = LastEntry(*_MARK.unpack_from(body, at))
        at += _MARK.size
    if at != len(body) or len(last_entries) != count:
        raise SnapshotDamaged(f"the snapshot says {count} producers in {len(body)} bytes and holds {len(last_entries)} in {at}")
    return SequenceMap(last_entries)
