"""LevelDB's log format (its doc/log_format.md), as far as one must read it to tell a torn tail from damage. Pure.

A log is a row of blocks of 32 KiB. A record lies in one of them (FULL) or in several (FIRST, MIDDLE …, LAST); each part has a
head of seven bytes: checksum (CRC-32C, masked) · length u16 · kind. Less than seven bytes at the end of a block stay empty.

What a power cut leaves of a write that was not synced is anything: each of its sectors is there or is not, the file ends
anywhere within. What it does not do:

* touch what was synced before: a sector that holds both is there in its old or in its new state, and these bytes are in both;
* leave anything of a later write, since one write begins when the one before it is synced.

So the last write of a log, and no other, may be torn. LevelDB's own reader (db/log_reader.cc) passes over some of these states
without a word – a record that goes on behind the end of the file, room that was never written – and takes all others for
damage, which `paranoid_checks` refuses. It cannot tell: its records do not say that they follow on each other. Ours do, since
each begins with its number, and with a token that is of this store and that no client knows (end_file.py): what a message holds
is never taken for a write.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from oncelog_service.storage.files.end_file import END_ROW_SIZE, ROW_KEY, EndRow
from oncelog_service.storage.port import StoreDamaged

_BLOCK = 32_768
_HEAD = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BATCH_HEAD = 12
"""Sequence number and count, before the first entry of a write."""
_FIRST_ENTRY = b"\x01" + bytes([len(ROW_KEY)]) + ROW_KEY + bytes([END_ROW_SIZE])
_END_ROW_AT = _BATCH_HEAD + len(_FIRST_ENTRY)
_BEHIND_END_ROW = _END_ROW_AT + END_ROW_SIZE
_SMALLEST = _HEAD.size + _BEHIND_END_ROW
"""A write of ours has at least so many bytes."""
_MASK = 0xA282EAD8


class Record(NamedTuple):
    """Lies in a log; it is whole, going by the heads of its parts."""

    start: int
    end: int
    """Where it begins in the log, and where it ends."""
    parts: tuple[tuple[int, int], ...]
    """Where each part's head begins, and where the part ends."""
    begin: bytes
    """The first bytes of what it holds, enough for the row that a write begins with."""


def end_of_log(data: bytes, before: EndRow, known: int) -> tuple[EndRow, int]:
    """Finds (the newest write in the tables or in this log, where the last whole one ends); what is behind that was torn.

    ``before``: the newest one in the tables and in the logs before. ``known``: up to which one they are known to have been
    synced. A last one beyond that is torn if a checksum does not match; one up to it is damaged, which LevelDB says itself.

    Raises StoreDamaged: a write is missing that must have been synced, since a later one is there.
    """
    number, token = before
    here, ends, last = 0, (0, 0), None
    for record in records(data):
        row = _end_row_of(record.begin)
        if row is None or token not in (b"", row.token):
            if intact(data, record):
                raise StoreDamaged(f"at byte {record.start}: a write that is not of this store")
            break
        found, token = row
        if found > max(here, number) + 1:
            raise StoreDamaged(f"behind write {max(here, number)} writes are missing")
        if here and found != here + 1:  # of a file that lay there before
            break
        here, ends, last = found, (ends[1], record.end), record
    end = ends[1]
    if last is not None and here > max(known, number) and not intact(data, last):
        here, end = here - 1, ends[0]
    newest = max(here, number)
    for later in _numbers_behind(data, end, token):
        if newest + 1 < later <= newest + 1 + (len(data) - end) // _SMALLEST:
            raise StoreDamaged(f"write {newest + 1} is damaged, and write {later} is there, which was begun behind it")
    return EndRow(newest, token), end


def end_of_records(data: bytes) -> int:
    """Finds the end of the last record that is whole and whose checksum matches, of a log that holds no writes: a manifest."""
    ends, last = (0, 0), None
    for record in records(data):
        ends, last = (ends[1], record.end), record
    return ends[1] if last is None or intact(data, last) else ends[0]


def records(data: bytes) -> Iterator[Record]:
    """Yields the records of a log, up to the first place where none is. Checksums are left to :func:`intact`."""
    start, begin, parts, at = 0, b"", list[tuple[int, int]](), 0
    while at + _HEAD.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD.size:
            at += left
            continue
        _, length, kind = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        begins = kind in (_FULL, _FIRST)
        if not _FULL <= kind <= _LAST or begins == bool(parts) or length > left - _HEAD.size or end > len(data):
            return
        if begins:
            start, begin = at, b""
        parts.append((at, end))
        if len(begin) < _BEHIND_END_ROW:
            begin += data[at + _HEAD.size : min(end, at + _HEAD.size + _BEHIND_END_ROW)]
        if kind in (_FULL, _LAST):
            yield Record(start, end, tuple(parts), begin[:_BEHIND_END_ROW])
            parts.clear()
        at = end


def intact(data: bytes, record: Record) -> bool:
    """Tells whether the checksums of all its parts match. Takes a second for ten megabytes."""
    for begin, end in record.parts:
        expected, _, _ = _HEAD.unpack_from(data, begin)
        if masked_crc32c(data[begin + _HEAD.size - 1 : end]) != expected:
            return False
    return True


def masked_crc32c(data: bytes) -> int:
    """Computes a checksum as LevelDB keeps it (util/crc32c.h)."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + _MASK) & 0xFFFFFFFF


def _table_of(polynomial: int) -> list[int]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (polynomial if entry & 1 else 0)
        table.append(entry)
    return table


_TABLE = _table_of(0x82F63B78)
"""Castagnoli's polynomial; the one of :mod:`zlib` is another."""


def _end_row_of(begin: bytes) -> EndRow | None:
    """Reads the end row that a write begins with; None: it has none, or a damaged one."""
    return EndRow.from_bytes(begin[_END_ROW_AT:_BEHIND_END_ROW]) if begin[_BATCH_HEAD:_END_ROW_AT] == _FIRST_ENTRY else None


def _numbers_behind(data: bytes, at: int, token: bytes) -> Iterator[int]:
    """Yields the numbers of writes behind a place from which on heads cannot be followed: it looks for them byte by byte."""
    yield from _numbers_in(data, at, token)
    for block in range(at // _BLOCK * _BLOCK + _BLOCK, len(data), _BLOCK):  # those that go on in the next one, behind its head
        before, behind = max(at, block - _BEHIND_END_ROW), block + _HEAD.size
        yield from _numbers_in(data[before:block] + data[behind : behind + _BEHIND_END_ROW], 0, token)


def _numbers_in(data: bytes, at: int, token: bytes) -> Iterator[int]:
    while (at := data.find(_FIRST_ENTRY, at)) >= 0:
        row = EndRow.from_bytes(data[at + len(_FIRST_ENTRY) : at + len(_FIRST_ENTRY) + END_ROW_SIZE])
        if row is not None and token in (b"", row.token):
            yield row.number
        at += 1
