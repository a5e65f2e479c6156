"""Whether a LevelDB directory is whole, found out without changing anything in it.

LevelDB's own open is no look: where CURRENT is gone it makes a new database over the old one, where a log is gone or torn it goes
on without, and in both cases it deletes the files that it thinks nobody needs. So before it is let in:

1. A directory is new only if it is empty. One that holds anything, and no CURRENT that names a manifest, was a store.
2. LevelDB opens a directory elsewhere that holds a copy of the manifest and links to the tables, and no log: it checks the
   manifest, that no table is gone, and tells the number of the newest write that is in a table. Elsewhere is where temporary
   files go; where none can be written, a directory within that is gone again at the end.
3. The logs' records are read here. Every write begins with its number, so those that are in no table must follow on it, one by
   one.
4. The number of the last one is held against the file beside (end_file.py).

The records' own checksums are LevelDB's to check when it opens (in Python that takes a second for a full log): a record that is
damaged is an error there, and then nothing has been changed but its journal of messages to people.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import plyvel

from oncelog_service.storage.directory import sync_directory
from oncelog_service.storage.end_file import ROW_KEY, check_number, decode_number, encode_number, read_end
from oncelog_service.storage.port import StoreDamaged

END_NAME = "oncelog.end"
CREATING_NAME = "oncelog.creating"
"""Stands in a directory whose store is being made: until it is gone nothing in it was ever acknowledged."""
_NOTHING = frozenset({"lost+found"})
"""What a new directory may hold: the root of a file system has it."""

_COPY_PREFIX = "oncelog-look-"

_BLOCK = 32_768
_RECORD = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BATCH_HEAD = 12
_FIRST_ENTRY = b"\x01" + bytes([len(ROW_KEY)]) + ROW_KEY + bytes([len(encode_number(0))])
_NUMBER_AT = _BATCH_HEAD + len(_FIRST_ENTRY)
_NUMBER_END = _NUMBER_AT + len(encode_number(0))


def is_new(path: Path) -> bool:
    """Whether nothing was ever stored in the directory. Raises OSError."""
    names = {each.name for each in path.iterdir()} - _NOTHING
    if CREATING_NAME in names:
        return not _is_made(path)
    return not names


def _is_made(path: Path) -> bool:
    """Whether the file beside, which is written last, says that there is a whole store: the making was broken off behind its last
    step, or a backup was put where one was broken off. Raises OSError."""
    try:
        return read_end(path / END_NAME) > 0
    except StoreDamaged:
        return False


def begin_creating(path: Path) -> None:
    """Mark a new directory, durably; what a making that was broken off has left is taken away. Raises OSError."""
    handle = os.open(path / CREATING_NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.fsync(handle)
    os.close(handle)
    sync_directory(path)
    sync_directory(path.parent)
    if not (path / END_NAME).exists():  # nothing was ever acknowledged, and a power cut may have left half of it
        for each in [*_logs(path), *path.glob("MANIFEST-*"), path / "CURRENT"]:
            each.unlink(missing_ok=True)


def end_creating(path: Path) -> None:
    """The store is made. Raises OSError."""
    (path / CREATING_NAME).unlink(missing_ok=True)
    sync_directory(path)


def check_directory(path: Path) -> None:
    """Raises StoreDamaged unless everything that was ever acknowledged can be there; changes nothing. OSError, plyvel.Error."""
    _check_current(path)
    number = number_in_tables(path)
    for log in _logs(path):
        for found in numbers_in_log(log.read_bytes()):
            if found is None or found > number + 1:
                raise StoreDamaged(f"{log}: behind write {number} writes are missing")
            number = max(number, found)
    check_number(number, read_end(path / END_NAME), path, END_NAME)


def _logs(path: Path) -> list[Path]:
    """LevelDB's logs, in their order. What somebody else has put there, a service.log, is none."""
    logs = [each for each in path.glob("*.log") if each.stem.isascii() and each.stem.isdigit()]
    return sorted(logs, key=lambda log: int(log.stem))


def number_in_tables(path: Path) -> int:
    """The number of the newest write that is in a table; 0: none is. Raises StoreDamaged, OSError, plyvel.Error."""
    for left in path.glob(_COPY_PREFIX + "*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        return _number_in_tables(path, None)
    except (plyvel.Error, OSError):
        # The temporary directory is full, read-only or can hold no links: that says nothing of the store.
        return _number_in_tables(path, path)


def _number_in_tables(path: Path, place: Path | None) -> int:
    """The same, with the copy in this directory; None: wherever temporary files go."""
    with tempfile.TemporaryDirectory(prefix=_COPY_PREFIX, dir=place) as name:
        copy = Path(name)
        for each in path.resolve().iterdir():
            if each.suffix in (".ldb", ".sst"):
                (copy / each.name).symlink_to(each)
            elif each.name == "CURRENT" or each.name.startswith("MANIFEST-"):
                shutil.copyfile(each, copy / each.name)
        try:
            with closing(plyvel.DB(str(copy), paranoid_checks=True)) as tables:
                data = tables.get(ROW_KEY, verify_checksums=True)
        except plyvel.CorruptionError as error:
            raise StoreDamaged(f"{path}: {str(error).replace(name, str(path))}") from error
    number = 0 if data is None else decode_number(data)
    if number is None:
        raise StoreDamaged(f"{path}: the row that says how far the store has come is damaged")
    return number


def numbers_in_log(data: bytes) -> Iterator[int | None]:
    """The number of every whole write in a log, in order; None: it has none. Ends where LevelDB would stop reading."""
    begun: bytes | None = None
    for kind, fragment in _fragments(data):
        if kind in (_FULL, _FIRST):
            begun = fragment
        elif begun is not None and len(begun) < _NUMBER_END:
            begun += fragment
        if kind in (_FULL, _LAST) and begun is not None:
            yield _number_of(begun)
            begun = None


def _number_of(batch: bytes) -> int | None:
    if batch[_BATCH_HEAD:_NUMBER_AT] != _FIRST_ENTRY:
        return None
    return decode_number(batch[_NUMBER_AT:_NUMBER_END])


def _fragments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(kind, the beginning of what it holds) of LevelDB's physical records, up to the first that cannot be one."""
    at = 0
    while at + _RECORD.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _RECORD.size:
            at += left
            continue
        _, length, kind = _RECORD.unpack_from(data, at)
        if kind == 0 and length == 0:
            at += left  # as LevelDB does: nothing was written in the rest of the block
            continue
        begin = at + _RECORD.size
        at = begin + length
        if not _FULL <= kind <= _LAST or length > left - _RECORD.size or at > len(data):
            return
        yield kind, data[begin : begin + min(length, _NUMBER_END)]


def _check_current(path: Path) -> None:
    """Raises StoreDamaged: CURRENT does not name a manifest that is there."""
    current = path / "CURRENT"
    try:
        manifest = current.read_bytes()
    except FileNotFoundError as error:
        raise StoreDamaged(
            f"{path} holds files and no CURRENT: it was a store, or is something else; a new store needs an empty directory"
        ) from error
    name = manifest.removesuffix(b"\n")
    if b"/" in name or not name.startswith(b"MANIFEST-") or not (path / name.decode("ascii", "replace")).is_file():
        raise StoreDamaged(f"{current} does not name a manifest that is there: {manifest[:100]!r}")
