"""A backup becomes a store again: beside the place where it is to lie, and only when it is proved, moved there.

No service opens what is not finished. A LevelDB directory holds files and no CURRENT until the last step, and a SQLite database
is known by the file beside it, but not there: both are refused as what they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from oncelog_service.storage.backup.archive import Archive, Backup, BackupDamaged, BackupError
from oncelog_service.storage.backup.layout import DATABASE, LEVELDB, lay_out
from oncelog_service.storage.files.directory import make_directory, sync_directory
from oncelog_service.storage.files.end_file import EndFile, beside
from oncelog_service.storage.open import raw_opener, store_opener
from oncelog_service.storage.port import Store

_NOT_MOVED = ("CURRENT", "LOCK", "LOG", "LOG.old")


class Restoring:
    """A store that is being restored, as a context: what is not finished at its end is taken away again."""

    def __init__(self, kind: str, path: Path) -> None:
        """``path``: where the store is to lie. Raises BackupError: something is there already."""
        self._path, self._is_leveldb = path, kind == LEVELDB
        self._work = path / "oncelog-restoring" if self._is_leveldb else path.with_name(path.name + ".restoring")
        self._made = self._is_leveldb and not path.exists()
        self._finished = False
        there = path.exists() and (not path.is_dir() or {each.name for each in path.iterdir()} - {"lost+found"})
        beside_it = [beside(path), path.with_name(path.name + "-wal"), self._work]
        if there or (not self._is_leveldb and (path.exists() or any(each.exists() for each in beside_it))):
            raise BackupError(f"{path} is not empty; a backup is restored into an empty place")

    def __enter__(self) -> Restoring:
        """Raises OSError."""
        if self._is_leveldb:
            make_directory(self._path)
            if self._made:
                self._path.chmod(0o700)
        else:
            make_directory(self._path.parent)
            EndFile(beside(self._path), 1).close()
        self._work.mkdir(0o700)
        sync_directory(self._work.parent)
        return self

    def __exit__(self, *_: object) -> None:
        if self._finished:
            return
        shutil.rmtree(self._work, ignore_errors=True)
        with suppress(OSError):
            if self._made:
                self._path.rmdir()
            elif not self._is_leveldb:
                beside(self._path).unlink()

    def lay(self, archive: Archive, backup: Backup, begin: Callable[[Store], None], tell: Callable[[int], None]) -> str:
        """Puts the files together, opens them, and has a new incarnation ``begin``; returns the URL of the store for now.

        Raises BackupDamaged: a file is, or together they are not the store of that position; StoreError, OSError.
        """
        url = lay_out(archive, backup, self._work, tell=tell)
        check_position(url, backup)
        with closing(store_opener(url)()) as store:
            begin(store)
        return url

    def finish(self) -> None:
        """Moves the store, which is closed, to its place, the file without which it is none last. Raises OSError."""
        for each in self._work.iterdir():
            each.chmod(0o600)
        if self._is_leveldb:
            for each in sorted(self._work.iterdir()):
                if each.name not in _NOT_MOVED:
                    each.rename(self._path / each.name)
            sync_directory(self._path)
            (self._work / "CURRENT").rename(self._path / "CURRENT")
        else:
            database = self._work / DATABASE
            os.replace(beside(database), beside(self._path))
            sync_directory(self._path.parent)
            database.rename(self._path)
        self._finished = True
        sync_directory(self._work)
        shutil.rmtree(self._work, ignore_errors=True)
        sync_directory(self._path if self._is_leveldb else self._path.parent)


def check_position(url: str, backup: Backup) -> None:
    """Opens a backup that was laid out. Raises BackupDamaged: its newest write is another one than its note says; StoreError."""
    store: Store = raw_opener(url)()
    with closing(store):
        number = getattr(store, "number", 0)
    if number != backup.position:
        raise BackupDamaged(f"backup {backup.number} ends at write {number}, and its note says {backup.position}")
