"""Whether a LevelDB directory is whole, found out without changing anything in it.

LevelDB's own open is no look: where CURRENT is gone it makes a new database over the old one, where a log is gone or torn it goes
on without, and in both cases it deletes the files that it thinks nobody needs. So before it is let in:

1. A directory is new only if it is empty. One that holds anything, and no CURRENT that names a manifest, was a store.
2. LevelDB opens a directory elsewhere that holds a copy of the manifest and links to the tables, and no log: it checks the
   manifest, that no table is gone, and tells the number of the newest write that is in a table. Elsewhere is where temporary
   files go; where none can be written, a directory within that is gone again at the end.
3. The logs' records are read here (leveldb_log.py). Every write begins with its number, so those that are in no table must
   follow on it, one by one.
4. The number of the last one is held against the file beside (end_file.py).

What a power cut has left of the last write of a log, or of the last record of the manifest, is found on the way. LevelDB would
refuse most of it; it is cut off before LevelDB opens the directory. Nobody was told of that write, or the file beside would know
of it. Without its last record a manifest describes the directory as it was before. If that record was synced, and what it
replaced is gone, then tables or numbers are missing.

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

from oncelog_service.storage.directory import sync_directory
from oncelog_service.storage.end_file import ROW_KEY, Mark, check_number, read_end
from oncelog_service.storage.leveldb_log import end_of_log, end_of_records
from oncelog_service.storage.port import StoreDamaged

END_NAME = "oncelog.end"
CREATING_NAME = "oncelog.creating"
"""Stands in a directory whose store is being made: until it is gone nothing in it was ever acknowledged."""
_NOTHING = frozenset({"lost+found"})
"""What a new directory may hold: the root of a file system has it."""

_COPY_PREFIX = "oncelog-look-"

_log = logging.getLogger(__name__)


class Tail(NamedTuple):
    """What a power cut has left of the last record of a file."""

    path: Path
    begin: int


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
    try:
        os.fsync(handle)
    finally:
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


def check_directory(path: Path, reached: int = 0) -> list[Tail]:
    """What was torn and may be cut off. Changes nothing. ``reached``: how far the store has come as this process knows.

    Raises StoreDamaged unless everything that was ever acknowledged can be there; OSError, plyvel.Error.
    """
    manifest = _manifest_of(path)
    size, end = manifest.stat().st_size, end_of_records(manifest.read_bytes())
    mark, known = mark_in_tables(path, manifest, end), max(reached, read_end(path / END_NAME))
    torn: Tail | None = None
    for log in _logs(path):
        data = log.read_bytes()
        try:
            mark, behind = end_of_log(data, mark, known)
        except StoreDamaged as damage:
            raise StoreDamaged(f"{log}: {damage}") from damage
        if data:  # a log is begun when the one before it has been read back, or ends with a synced write
            torn = Tail(log, behind) if behind < len(data) else None
    check_number(mark.number, known, path, END_NAME)
    return [*([Tail(manifest, end)] if end < size else []), *([torn] if torn else [])]


@contextmanager
def cut_off(tails: Sequence[Tail]) -> Iterator[None]:
    """Without them, durably; as before if the store turns out to be damaged. Raises OSError."""
    kept = [_cut(*tail) for tail in tails]
    try:
        yield
    except plyvel.CorruptionError:
        for (path, begin), data in zip(tails, kept, strict=True):
            with suppress(OSError), path.open("r+b") as file:  # at worst it is gone, and nobody was told of it
                file.seek(begin)
                file.write(data)
        raise


def _cut(path: Path, begin: int) -> bytes:
    with path.open("r+b") as file:
        file.seek(begin)
        data = file.read()
        file.truncate(begin)
        os.fsync(file.fileno())
    _log.warning("%s: its last record is torn, which nobody was told of: %d bytes are cut off at byte %d", path, len(data), begin)
    return data


def _logs(path: Path) -> list[Path]:
    """LevelDB's logs, in their order. What somebody else has put there, a service.log, is none."""
    logs = [each for each in path.glob("*.log") if each.stem.isascii() and each.stem.isdigit()]
    return sorted(logs, key=lambda log: int(log.stem))


def mark_in_tables(path: Path, manifest: Path, end: int) -> Mark:
    """That of the newest write that is in a table, by the manifest up to this byte; number 0: none is.

    Only for whoever has locked the store. Raises StoreDamaged, OSError, plyvel.Error.
    """
    for left in _left_over(path):
        shutil.rmtree(left, ignore_errors=True)
    try:
        return _mark_in_tables(path, None, manifest, end)
    except (plyvel.Error, OSError):
        # The temporary directory is full, read-only or can hold no links: that says nothing of the store.
        return _mark_in_tables(path, path, manifest, end)


def _copy_prefix(path: Path) -> str:
    """How the names of copies begin that are made of this store: by its directory, whatever path leads there."""
    found = path.stat()
    return f"{_COPY_PREFIX}{found.st_dev:x}-{found.st_ino:x}-"


def _left_over(path: Path) -> list[Path]:
    """Copies that were made by a process that was killed: nobody else looks at the store, which is locked."""
    left = list(path.glob(_COPY_PREFIX + "*"))
    with suppress(OSError):  # there is no place for temporary files
        left += Path(tempfile.gettempdir()).glob(_copy_prefix(path) + "*")
    return left


def _mark_in_tables(path: Path, place: Path | None, manifest: Path, end: int) -> Mark:
    """The same, with the copy in this directory; None: wherever temporary files go."""
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
                data = tables.get(ROW_KEY, verify_checksums=True)
        except plyvel.CorruptionError as error:
            raise StoreDamaged(f"{path}: {str(error).replace(name, str(path))}") from error
    mark = Mark() if data is None else Mark.from_bytes(data)
    if mark is None:
        raise StoreDamaged(f"{path}: the row that says how far the store has come is damaged")
    return mark


def _manifest_of(path: Path) -> Path:
    """The manifest that CURRENT names. Raises StoreDamaged: it names none that is there."""
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
