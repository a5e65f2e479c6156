"""The second place that knows how far a store has come: a small file beside it.

Every write of a store carries a number that rises by one. Once the write is synced, and before anybody is told, the number is put
into this file too, without a sync of its own: it survives the end of the process, and after a power cut it may lag. So it is
never ahead of the store, and a store that is behind it has lost acknowledged writes. At a clean stop the file is synced.

Two slots are written in turn, 512 bytes apart; of a slot that is damaged the other one tells the number before::

    0       4     magic "OLEN"
    4       8     number u64, big-endian
    12      4     CRC-32 of everything before it, big-endian
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from oncelog_service.storage.directory import sync_directory
from oncelog_service.storage.port import StoreDamaged, StoreError

_MAGIC = b"OLEN"
_SLOT = struct.Struct(">4sQI")
_HEAD = struct.Struct(">4sQ")
_SECTOR = 512

TOKEN_SIZE = 8
MARK_SIZE = _SLOT.size + TOKEN_SIZE

ROW_KEY = b"\x00end"
"""Where a store keeps the number itself. No table begins with a zero byte."""


def beside(store: Path) -> Path:
    """The file of the store at this path: in a directory, or beside a file; where it really lies, if the path is a link to it."""
    store = Path(os.path.realpath(store))
    return store / "oncelog.end" if store.is_dir() else store.with_name(store.name + ".end")


def encode_number(number: int) -> bytes:
    """The number as it stands in the store's own row."""
    head = _HEAD.pack(_MAGIC, number)
    return head + crc32(head).to_bytes(4, "big")


def decode_number(data: bytes) -> int | None:
    """Read one back, of a row or a slot; None: it is damaged."""
    if len(data) != _SLOT.size:
        return None
    magic, number, checksum = _SLOT.unpack(data)
    return int(number) if magic == _MAGIC and crc32(data[: _HEAD.size]) == checksum else None


class Mark(NamedTuple):
    """What each write to LevelDB begins with, in its log: the row of the store."""

    number: int = 0
    token: bytes = b""
    """Eight bytes, drawn when the store was made; empty: not known yet. Nobody who sends messages knows them: none of these can
    hold what looks like a write."""

    def to_bytes(self) -> bytes:
        """As the row has it."""
        return encode_number(self.number) + self.token

    @classmethod
    def from_bytes(cls, data: bytes) -> Mark | None:
        """Read it back; None: it is damaged."""
        number = decode_number(data[: _SLOT.size]) if len(data) == MARK_SIZE else None
        return None if number is None else cls(number, data[_SLOT.size :])


def number_of_row(data: bytes) -> int:
    """That of a store's row, whichever store it is of; 0: it is damaged."""
    return decode_number(data[: _SLOT.size]) or 0


def read_end(path: Path) -> int:
    """The number that a store has reached at the least. Raises StoreDamaged: the file is gone, or both slots are damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise StoreDamaged(f"{path} is gone, which says how far the store has come") from error
    numbers = [decode_number(data[at : at + _SLOT.size]) for at in (0, _SECTOR)]
    known = [number for number in numbers if number is not None]
    if not known:
        raise StoreDamaged(f"{path}, which says how far the store has come, is damaged")
    return max(known)


def check_number(number: int, known: int, store: Path, name: str) -> None:
    """Raises StoreDamaged if a store that has come to ``number`` is behind what the file ``name`` beside it knows of."""
    if number < known:
        raise StoreDamaged(
            f"{store}: the last {known - number} writes are gone: it ends at write {number}, and {name} knows of write {known}"
        )


def check_there(path: Path, reached: int) -> None:
    """Raises StoreError: this process has had a store at ``path`` that came to ``reached``, and nothing is there now. OSError."""
    check_may_be_new(path, 0 if beside(path).exists() else reached)


def check_may_be_new(path: Path, reached: int) -> None:
    """The same, of a place where nothing is. It may have gone since it was looked at last."""
    if reached:
        raise StoreError(f"{path}: the store that was open here is not there any more")


class EndFile:
    """The file, open for writing."""

    def __init__(self, path: Path, number: int) -> None:
        """Create it where there is none. ``number``: how far the store has come. Durable when this returns. Raises OSError."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            for slot in (0, 1):
                os.pwrite(self._handle, encode_number(number), slot * _SECTOR)
            os.fsync(self._handle)
            sync_directory(path.parent)
        except BaseException:  # a store is opened again and again until that works
            os.close(self._handle)
            raise

    def note(self, number: int) -> None:
        """The store has come to ``number``, and that is synced. Raises OSError, also where somebody has deleted the file."""
        if os.fstat(self._handle).st_nlink == 0:
            raise FileNotFoundError("its files have been deleted")
        os.pwrite(self._handle, encode_number(number), number % 2 * _SECTOR)

    def close(self) -> None:
        """Sync it, and let go. Twice is as once."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with suppress(OSError):  # it lags then, at worst, as after a power cut
                os.fsync(handle)
            os.close(handle)
