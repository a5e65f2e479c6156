"""The second place that knows how far a store has come: a small file beside it.

Every write of a store carries a number that rises by one. Once the write is synced, and before it is acknowledged, the number is
put into this file too, without a sync of its own: it survives the end of the process, and after a power cut it may lag. So it is
never ahead of the store, and a store that is behind it has lost acknowledged writes. At a clean stop the file is synced.

Two slots are written in turn, 512 bytes apart; of a slot that is damaged the other one tells the number before::

    0       4     magic "OLEN"
    4       8     number u64, big-endian
    12      4     checksum
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.files.directory import FILE, sync, sync_directory, sync_file, sync_with_name
from oncelog_service.storage.port import StoreDamaged, StoreError

_MAGIC = b"OLEN"
_SLOT = struct.Struct(">4sQ")
_SECTOR = 512

TOKEN_SIZE = 8
NUMBER_SIZE = _SLOT.size + SIZE
END_ROW_SIZE = NUMBER_SIZE + TOKEN_SIZE

ROW_KEY = b"\xffend"
"""Where a store keeps the number itself: in no table, and behind all of them, since each write has this row (port.py)."""


def beside(store: Path) -> Path:
    """Finds the file of the store at this path: in a directory, or beside a file; where it really lies, if the path is a link."""
    store = Path(os.path.realpath(store))
    return store / "oncelog.end" if store.is_dir() else store.with_name(store.name + ".end")


def encode_number(number: int) -> bytes:
    """Encodes a number for a slot of the file, or for the store's own row."""
    return with_checksum(_SLOT.pack(_MAGIC, number))


def decode_number(data: bytes) -> int | None:
    """Reads a number back, from a row or a slot; None: it is damaged."""
    if len(data) != NUMBER_SIZE or not matches(data):
        return None
    magic, number = _SLOT.unpack_from(data)
    return int(number) if magic == _MAGIC else None


class EndRow(NamedTuple):
    """The store's own row, which each write in LevelDB's log begins with: the number of that write."""

    number: int = 0
    token: bytes = b""
    """Eight bytes, drawn when the store was made; empty: not known yet. No client knows them: no message can
    hold what looks like a write."""

    def to_bytes(self) -> bytes:
        return encode_number(self.number) + self.token

    @classmethod
    def from_bytes(cls, data: bytes) -> EndRow | None:
        """Reads it back; None: it is damaged."""
        number = decode_number(data[:NUMBER_SIZE]) if len(data) == END_ROW_SIZE else None
        return None if number is None else cls(number, data[NUMBER_SIZE:])


def number_of_row(data: bytes) -> int:
    """Reads the number in a store's row, whichever kind of store it is; 0: it is damaged."""
    return decode_number(data[:NUMBER_SIZE]) or 0


def read_end(path: Path) -> int:
    """Reads the number that a store has reached at least. Raises StoreDamaged: the file is gone, or both slots are damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise StoreDamaged(f"{path} is gone, which says how far the store has come") from error
    numbers = [decode_number(data[at : at + NUMBER_SIZE]) for at in (0, _SECTOR)]
    known = [number for number in numbers if number is not None]
    if not known:
        raise StoreDamaged(f"{path}, which says how far the store has come, is damaged")
    return max(known)


class Making:
    """A store in files that is being made: while its marker lies beside it, nothing in it was ever acknowledged."""

    def __init__(self, store: Path) -> None:
        self._end = beside(store)
        self._marker = self._end.with_suffix(".creating")

    @property
    def has_begun(self) -> bool:
        """Tells whether the marker is there."""
        return self._marker.exists()

    @property
    def is_broken_off(self) -> bool:
        """Tells whether there is no whole store. Else the making was broken off behind its last step, which is to write the file
        beside, or a backup was put where one was broken off. Raises OSError."""
        try:
            return read_end(self._end) == 0
        except StoreDamaged:
            return True

    def begin(self) -> None:
        """Puts the marker there, durably. Raises OSError."""
        sync_file(self._marker, os.O_WRONLY | os.O_CREAT)
        sync_with_name(self._marker.parent)

    def end(self) -> None:
        """Takes the marker away: the store is made. Raises OSError."""
        if self.has_begun:
            self._marker.unlink()
            sync_directory(self._marker.parent)


def check_number(number: int, known: int, store: Path, name: str) -> None:
    """Raises StoreDamaged if a store that has come to ``number`` is behind what the file ``name`` beside it knows of."""
    if number < known:
        raise StoreDamaged(
            f"{store}: the last {known - number} writes are gone: it ends at write {number}, and {name} knows of write {known}"
        )


def check_there(path: Path, reached: int) -> None:
    """Raises StoreError where nothing is at ``path`` and this process has had a store there that came to ``reached``. OSError."""
    check_may_be_new(path, 0 if beside(path).exists() else reached)


def check_may_be_new(path: Path, reached: int) -> None:
    """Raises it where nothing is: the store may have gone since it was looked at last."""
    if reached:
        raise StoreError(f"{path}: the store that was open here is not there any more")


_NOTHING = frozenset({"lost+found"})
"""What a new directory may hold: the root of a file system has it."""


def is_new(directory: Path) -> bool:
    """Tells whether no store was ever in the directory. Raises OSError."""
    making = Making(directory)
    return making.is_broken_off if making.has_begun else {each.name for each in directory.iterdir()} <= _NOTHING


class EndFile:
    """Writes the file."""

    def __init__(self, path: Path, number: int) -> None:
        """Opens or creates it. ``number``: how far the store has come. Durable when this returns. Raises OSError."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
        try:
            for slot in (0, 1):
                os.pwrite(self._handle, encode_number(number), slot * _SECTOR)
            sync(self._handle)
            sync_directory(path.parent)
        except BaseException:  # a store is opened again and again until that works
            os.close(self._handle)
            raise

    def note(self, number: int) -> None:
        """Notes that the store has come to ``number``, synced. Raises OSError, also where the file was deleted."""
        if os.fstat(self._handle).st_nlink == 0:
            raise FileNotFoundError("its files have been deleted")
        os.pwrite(self._handle, encode_number(number), number % 2 * _SECTOR)

    def close(self) -> None:
        """Syncs and closes it. Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with suppress(OSError):  # it lags then, at worst, as after a power cut
                sync(handle)
            os.close(handle)
