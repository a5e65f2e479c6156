"""Whether a LevelDB directory is whole, found out without changing anything in it.

LevelDB's own open is no look: where CURRENT is gone it makes a new database over the old one, where a log is gone or torn it goes
on without, and in both cases it deletes the files that it thinks nobody needs. So before it is let in:

1. A directory is new only if it is empty. One that holds anything, and no CURRENT that names a manifest, was a store.
2. LevelDB opens a directory elsewhere that holds a copy of the manifest and links to the tables, and no log: it checks the
   manifest, that no table is gone, that the format can be read, and tells the number of the newest write that is in a table.
   Elsewhere is where temporary files go; where none can be written, a directory within that is gone again at the end.
3. The logs' records are read here (leveldb_log.py). Every write begins with its number, so those that are in no table must
   follow on it, one by one.
4. The number of the last one is held against the file beside (end_file.py).

What a power cut has left of the last write of a log, or of the last record of the manifest, is found on the way. LevelDB would
refuse most of it; it is cut off before LevelDB opens the directory. It was not acknowledged, or the file beside would know of it.
Without its last record a manifest describes the directory as it was before. If that record was synced, and what it replaced is
gone, then tables or numbers are missing.

The records' own checksums are LevelDB's to check when it opens (in Python that takes seconds for a full log): a record that is
damaged is an error there, and then nothing has been changed but its journal of messages to people.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import plyvel

from oncelog_service.storage.files.directory import sync
from oncelog_service.storage.files.end_file import ROW_KEY, EndRow, Making, beside, check_number, read_end
from oncelog_service.storage.files.leveldb_log import end_of_log, end_of_records
from oncelog_service.storage.format import KEY as FORMAT_KEY
from oncelog_service.storage.port import StoreDamaged, Table

_COPY_PREFIX = "oncelog-look-"

_log = logging.getLogger(__name__)


class Tail(NamedTuple):
    """Is left of the last record of a file by a power cut."""

    path: Path
    begin: int


def begin_making(path: Path) -> None:
    """Puts the marker into a new directory, durably, and removes what a making that was broken off has left. Raises OSError."""
    Making(path).begin()
    if not beside(path).exists():  # nothing was ever acknowledged, and a power cut may have left half of it
        for each in [*logs_of(path), *path.glob("MANIFEST-*"), path / "CURRENT"]:
            each.unlink(missing_ok=True)


def check_directory(path: Path, reached: int = 0) -> list[Tail]:
    """Finds the torn ends that may be cut off. Changes nothing. ``reached``: how far the store has come as this process knows.

    Raises StoreDamaged unless everything that was ever acknowledged can be there; OSError, plyvel.Error.
    """
    manifest = manifest_of(path)
    size, end = manifest.stat().st_size, end_of_records(manifest.read_bytes())
    row, known = end_row_in_tables(path, manifest, end), max(reached, read_end(beside(path)))
    torn: Tail | None = None
    for log in logs_of(path):
        data = log.read_bytes()
        try:
            row, behind = end_of_log(data, row, known)
        except StoreDamaged as damage:
            raise StoreDamaged(f"{log}: {damage}") from damage
        if data:  # a log is begun when the one before it has been read back, or ends with a synced write
            torn = Tail(log, behind) if behind < len(data) else None
    check_number(row.number, known, path, beside(path).name)
    return [*([Tail(manifest, end)] if end < size else []), *([torn] if torn else [])]


@contextmanager
def cut_off(tails: Sequence[Tail]) -> Iterator[None]:
    """Cuts torn ends off, durably; puts them back if the store turns out to be damaged. Raises OSError."""
    kept = [_cut(*tail) for tail in tails]
    try:
        yield
    except plyvel.CorruptionError:
        for (path, begin), data in zip(tails, kept, strict=True):
            with suppress(OSError), path.open("r+b") as file:  # at worst it is gone, and it was never acknowledged
                file.seek(begin)
                file.write(data)
        raise


def _cut(path: Path, begin: int) -> bytes:
    with path.open("r+b") as file:
        file.seek(begin)
        data = file.read()
        file.truncate(begin)
        sync(file.fileno())
    _log.warning("%s: its last record is torn and was not acknowledged: %d bytes are cut off at byte %d", path, len(data), begin)
    return data


def logs_of(path: Path) -> list[Path]:
    """Lists LevelDB's logs in their order. A service.log that was put there is none."""
    logs = [each for each in path.glob("*.log") if each.stem.isascii() and each.stem.isdigit()]
    return sorted(logs, key=lambda log: int(log.stem))


def end_row_in_tables(path: Path, manifest: Path, end: int) -> EndRow:
    """Reads the end row of the newest write that is in a table, by the manifest up to this byte; number 0: none is.

    Only to be called while the store is locked. Raises StoreDamaged, OSError, plyvel.Error.
    """
    for left in _left_over(path):
        shutil.rmtree(left, ignore_errors=True)
    try:
        return _end_row_in_tables(path, None, manifest, end)
    except (plyvel.Error, OSError):
        # The temporary directory is full, read-only or can hold no links: that says nothing of the store.
        return _end_row_in_tables(path, path, manifest, end)


def _copy_prefix(path: Path) -> str:
    """Begins the names of copies that are made of this store: by its directory, whatever path leads there."""
    found = path.stat()
    return f"{_COPY_PREFIX}{found.st_dev:x}-{found.st_ino:x}-"


def _left_over(path: Path) -> list[Path]:
    """Finds copies that a killed process has left: the store is locked, so no other one is looking at it."""
    left = list(path.glob(_COPY_PREFIX + "*"))
    with suppress(OSError):  # there is no place for temporary files
        left += Path(tempfile.gettempdir()).glob(_copy_prefix(path) + "*")
    return left


def _end_row_in_tables(path: Path, place: Path | None, manifest: Path, end: int) -> EndRow:
    """Reads it from a copy in this directory; None: where temporary files go."""
    with tempfile.TemporaryDirectory(prefix=_copy_prefix(path), dir=place) as name:
        copy = Path(name)
        for each in path.resolve().iterdir():
            if each.suffix in (".ldb", ".sst"):
                (copy / each.name).symlink_to(each)
            elif each.name in ("CURRENT", manifest.name):
                shutil.copyfile(each, copy / each.name)
        os.truncate(copy / manifest.name, end)
        try:
            with closing(plyvel.DB(str(copy), paranoid_checks=True)) as tables:
                tables.get(Table.STORE_ID.value + FORMAT_KEY, verify_checksums=True)  # whoever opens the store reads it next
                data = tables.get(ROW_KEY, verify_checksums=True)
        except plyvel.CorruptionError as error:
            raise StoreDamaged(f"{path}: {str(error).replace(name, str(path))}") from error
    row = EndRow() if data is None else EndRow.from_bytes(data)
    if row is None:
        raise StoreDamaged(f"{path}: the row that says how far the store has come is damaged")
    return row


def manifest_of(path: Path) -> Path:
    """Finds the manifest that CURRENT names. Raises StoreDamaged: it names none that is there."""
    current = path / "CURRENT"
    try:
        named = current.read_bytes()
    except FileNotFoundError as error:
        raise StoreDamaged(
            f"{path} holds files and no CURRENT: it was a store, or is something else; a new store needs an empty directory"
        ) from error
    name = named.removesuffix(b"\n")
    manifest = path / name.decode("ascii", "replace")
    if b"/" in name or not name.startswith(b"MANIFEST-") or not manifest.is_file():
        raise StoreDamaged(f"{current} does not name a manifest that is there: {named[:100]!r}")
    return manifest
