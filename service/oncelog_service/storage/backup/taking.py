"""Takes a backup of a store, served or not, into an archive: one moment of it, and only what no backup before it has.

1. The store holds its files as they are between two writes (``Store.staged``). Everything acknowledged before that is in
   them.
2. What never changes and was brought by an earlier backup, by name, size, time and inode, is not read again. All else is
   read, and written where its content is not there yet.
3. The files are laid out as a store, by links, and looked at as at an open: the manifest, that no table is missing, that the
   writes follow on each other up to the position.
4. The note is written.

What goes wrong before the last step leaves no backup, and takes away what was brought.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterable
from typing import NamedTuple

from oncelog_service.storage.backup.archive import Archive, BackedUp, Backup, BackupDamaged, BackupError, BackupHasNoRoom
from oncelog_service.storage.backup.layout import check_whole
from oncelog_service.storage.port import StagedFile, Store, StoreError


class Progress(NamedTuple):
    """How far a backup is."""

    bytes: int
    of: int


def take(archive: Archive, store: Store, store_id: str, taken_ms: int) -> Generator[Progress | Backup]:
    """Takes a backup: yields its progress, and at last the backup. To be closed where it is left early: then there is none.

    Raises BackupError: definite; BackupHasNoRoom: the archive's disk, or the store's for a copy beside it, would have less left
    than :attr:`Archive.least_free`.
    """
    try:
        staged = store.staged(archive.least_free)
        if staged is None:
            raise BackupError("this store does not lie in files; its database has tools for backups")
        with archive.begun_by(store_id), staged as now:
            taking = _Taking(archive, max(archive.numbers(), default=0) + 1)
            try:
                of, done = sum(file.size for file in now.files), 0
                archive.check_room(taking.needed(now.files))
                files = []
                for file in now.files:
                    files.append(taking.brought(file))
                    done += file.size
                    yield Progress(done, of)
                backup = Backup(taking.number, store_id, now.kind, now.number, taken_ms, of, taking.new_bytes, tuple(files))
                check_whole(archive, backup)
                archive.add(backup)
            except BaseException:
                taking.undo()
                raise
        yield backup
    except (StoreError, OSError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        raise (BackupHasNoRoom if full else BackupError)(f"no backup was made: {error}") from error


class _Taking:
    """What one backup brings."""

    def __init__(self, archive: Archive, number: int) -> None:
        self.number = number
        self._archive = archive
        self._known = _known(archive)
        self._new: list[str] = []
        self.new_bytes = 0

    def needed(self, files: Iterable[StagedFile]) -> int:
        """Counts the bytes that will be written, at the most. Raises OSError."""
        return sum(file.size for file in files if self._there(file, file.path.stat()) is None)

    def _there(self, file: StagedFile, found: os.stat_result) -> str | None:
        """Finds the checksum of a file that never changes and that an earlier backup has brought."""
        if not file.is_fixed:
            return None
        digest = self._known.get((file.name, file.size, found.st_mtime_ns, found.st_ino))
        return digest if digest is not None and self._archive.has(digest, file.size) else None

    def brought(self, file: StagedFile) -> BackedUp:
        """Has a file in the archive. Raises BackupError, OSError."""
        found = file.path.stat()
        digest = self._there(file, found)
        if digest is None:
            digest, new = self._archive.bring(file.path, file.size)
            if new:
                self._new.append(digest)
                self.new_bytes += file.size
        modified, inode = (found.st_mtime_ns, found.st_ino) if file.is_fixed else (0, 0)
        return BackedUp(file.name, file.size, digest, modified, inode)

    def undo(self) -> None:
        # It may have been noted: a sync can fail behind that, or somebody end it. What a note names is not taken away.
        if not self._archive.withdraw(self.number):
            return
        for digest in self._new:
            self._archive.forget(digest)


def _known(archive: Archive) -> dict[tuple[str, int, int, int], str]:
    """What earlier backups brought of files that never change. A number of LevelDB's can come again after a crash or in a store
    that was restored, and an inode too; with the same nanosecond they do not."""
    known = {}
    for number in archive.numbers():
        try:
            files = archive.read(number).files
        except BackupDamaged:
            continue
        known.update({(each.name, each.bytes, each.modified_ns, each.inode): each.sha256 for each in files if each.inode})
    return known
