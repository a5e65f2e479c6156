"""The files of a running LevelDB as they were between two writes, held by links while they are copied elsewhere.

A table never changes once it is there, and a log or manifest is only appended to. So a store between two writes is: the manifest
up to a length, the tables that it names, and the logs that are in no table yet, up to their lengths. Links keep LevelDB's own
clean-up, which deletes what a newer manifest does not name, from taking any of them away.

No write may be under way while the lengths are read. LevelDB's own thread goes on meanwhile: it makes tables out of logs and of
other tables, notes them in the manifest and then deletes what they replace. Therefore the order is logs, manifest, tables:

* a log that is gone when it is to be linked is in a table that the manifest, read later, names;
* a table that the manifest names and that is gone when it is to be linked was replaced in between. That is seen, by the table
  that is missing, and all is done again. Most tables are linked before the writer is held up, so that it seldom happens and
  the writer is held up for as long as it takes to list a directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from oncelog_service.storage.files.leveldb_look import logs_of, manifest_of
from oncelog_service.storage.files.leveldb_manifest import version_of
from oncelog_service.storage.port import Staged, StagedFile, StoreError

STAGING_PREFIX = "oncelog-backup-"
"""Begins the names of directories of links within a store's; those of a process that was killed go at the next open."""
_TRIES = 20
_TABLES = (".ldb", ".sst")


@contextmanager
def staged_leveldb(store: Path, paused: Callable[[], AbstractContextManager[int]]) -> Iterator[Staged]:
    """Holds the files of a store as they are at one moment.

    Args:
        paused: within it no write is under way; it gives the number of the newest one.

    Raises:
        StoreError, OSError.
    """
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(prefix=STAGING_PREFIX, dir=store) as name:
            found = _staged(store, Path(name), paused)
            if found is not None:
                yield found
                return
    raise StoreError(f"{store}: its tables were replaced {_TRIES} times while they were linked; try again")


def _staged(store: Path, place: Path, paused: Callable[[], AbstractContextManager[int]]) -> Staged | None:
    """Links the files; None: a table was replaced meanwhile."""
    _link_tables(store, place)
    with paused() as number:
        logs = [StagedFile(each.name, place / each.name, each.stat().st_size, False) for each in _linked_logs(store, place)]
        manifest = manifest_of(store)
        (place / manifest.name).hardlink_to(manifest)
        length = manifest.stat().st_size
        _link_tables(store, place)
    with (place / manifest.name).open("rb") as file:
        version = version_of(file.read(length))
    tables = [_table(place, number_, size) for number_, size in sorted(version.tables.items())]
    if None in tables:
        return None
    needed = [each for each in logs if version.needs_log(int(Path(each.name).stem))]
    files = [*(each for each in tables if each is not None), *needed]
    return Staged("leveldb", number, [*files, StagedFile(manifest.name, place / manifest.name, version.end, False)])


def _linked_logs(store: Path, place: Path) -> Iterator[Path]:
    for each in logs_of(store):
        with suppress(FileNotFoundError):
            (place / each.name).hardlink_to(each)
            yield place / each.name


def _link_tables(store: Path, place: Path) -> None:
    there = {each.name for each in place.iterdir()}
    for each in store.iterdir():
        if each.suffix in _TABLES and each.name not in there:
            with suppress(FileNotFoundError):
                (place / each.name).hardlink_to(each)


def _table(place: Path, number: int, size: int) -> StagedFile | None:
    for suffix in _TABLES:
        path = place / f"{number:06}{suffix}"
        with suppress(FileNotFoundError):
            if path.stat().st_size == size:
                return StagedFile(path.name, path, size, True)
    return None
