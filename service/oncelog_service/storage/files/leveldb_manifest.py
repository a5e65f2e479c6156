"""What a manifest of LevelDB says: which tables are the store, and which logs are not in tables yet. Pure.

A manifest is a log (leveldb_log.py) whose records are changes of a version (db/version_edit.cc): each is a row of fields, a tag
and what belongs to it, numbers as varints. LevelDB appends to it and never changes what stands there, so any prefix that ends
with a record is the manifest of an earlier moment.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog_service.storage.files.leveldb_log import end_of_records, records
from oncelog_service.storage.port import StoreDamaged

_HEAD = 7
"""Bytes before what each part of a record holds."""
_COMPARATOR, _LOG, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT, _DELETED, _NEW, _PREVIOUS_LOG = 1, 2, 3, 4, 5, 6, 7, 9


class Version(NamedTuple):
    """Is the store as a manifest tells it."""

    end: int
    """Behind the last whole record of the manifest."""
    tables: dict[int, int]
    """Number of each table → its size in bytes."""
    log: int
    """Logs below this number are in tables, but for the previous one."""
    previous_log: int

    def needs_log(self, number: int) -> bool:
        """Tells whether what a log holds may be in no table."""
        return number >= self.log or number == self.previous_log


def version_of(data: bytes) -> Version:
    """Reads a manifest, up to its last whole record. Raises StoreDamaged."""
    end = end_of_records(data)
    tables: dict[tuple[int, int], int] = {}
    numbers = {_LOG: 0, _PREVIOUS_LOG: 0}
    for record in records(data[:end]):
        _apply(b"".join(data[begin + _HEAD : stop] for begin, stop in record.parts), tables, numbers)
    sizes = {number: size for (_, number), size in tables.items()}
    return Version(end, sizes, numbers[_LOG], numbers[_PREVIOUS_LOG])


def _apply(edit: bytes, tables: dict[tuple[int, int], int], numbers: dict[int, int]) -> None:
    at = 0
    added: dict[tuple[int, int], int] = {}
    try:
        while at < len(edit):
            tag, at = _varint(edit, at)
            if tag in (_LOG, _PREVIOUS_LOG, _NEXT_FILE, _LAST_SEQUENCE):
                numbers[tag], at = _varint(edit, at)
            elif tag == _COMPARATOR:
                at = _behind_bytes(edit, at)
            elif tag == _COMPACT:
                _, at = _varint(edit, at)
                at = _behind_bytes(edit, at)
            elif tag == _DELETED:
                level, at = _varint(edit, at)
                number, at = _varint(edit, at)
                tables.pop((level, number), None)
            elif tag == _NEW:
                level, at = _varint(edit, at)
                number, at = _varint(edit, at)
                added[level, number], at = _varint(edit, at)
                at = _behind_bytes(edit, _behind_bytes(edit, at))
            else:
                raise StoreDamaged(f"the manifest has a field of kind {tag}, which LevelDB does not write")
    except IndexError as error:
        raise StoreDamaged("a record of the manifest ends within a field") from error
    tables |= added  # behind what it deletes: a table that only changes its level is both


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number and where what follows begins. Raises IndexError: the bytes end before."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _behind_bytes(data: bytes, at: int) -> int:
    length, at = _varint(data, at)
    if at + length > len(data):
        raise IndexError
    return at + length
