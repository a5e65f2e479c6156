"""A backup's files laid out as the store that they were, to be looked at or to become one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from oncelog_service.storage.backup.archive import Archive, BackedUp, Backup, BackupDamaged
from oncelog_service.storage.files.directory import sync_directory, sync_file
from oncelog_service.storage.files.end_file import EndFile, beside
from oncelog_service.storage.port import StoreDamaged, driver

LEVELDB = "leveldb"
DATABASE = "database"


def lay_out(
    archive: Archive,
    backup: Backup,
    place: Path,
    *,
    linked: bool = False,
    tell: Callable[[int], None] = lambda size: None,
) -> str:
    """Puts a backup's files into an empty directory and returns the URL of the store that they are.

    Args:
        linked: files that no open writes to are links into the archive, and are not read.
        tell: is told of the bytes of each file.

    Raises BackupDamaged: a file is damaged, or gone; OSError.
    """
    for file in backup.files:
        if linked and _never_changes(file):
            (place / file.name).symlink_to(archive.path_of(file).resolve())
        else:
            archive.copy_out(file, place / file.name)
        tell(file.bytes)
    if backup.kind == LEVELDB:
        _complete_leveldb(backup, place)
    EndFile(beside(place if backup.kind == LEVELDB else place / DATABASE), backup.position).close()
    for each in place.glob("*.end"):
        each.chmod(0o600)
    sync_directory(place)
    return f"{backup.kind}://{place.resolve()}{'' if backup.kind == LEVELDB else '/' + DATABASE}"


def check_whole(archive: Archive, backup: Backup) -> None:
    """Looks whether a backup's files are the whole store, up to its position. Tables are looked for, and not read.

    Raises BackupDamaged, OSError.
    """
    if backup.kind != LEVELDB:
        return  # SQLite itself has copied it, in one transaction
    with driver("leveldb"):
        import plyvel

        from oncelog_service.storage.files.leveldb_look import check_directory

    with tempfile.TemporaryDirectory(prefix="oncelog-backup-") as name:
        lay_out(archive, backup, Path(name), linked=True)
        try:
            torn = check_directory(Path(name))
        except (StoreDamaged, plyvel.Error) as damage:
            raise BackupDamaged(str(damage)) from damage
        if torn:
            raise BackupDamaged(f"{torn[0].path.name} ends within a record")


def _never_changes(file: BackedUp) -> bool:
    return file.inode != 0


def _complete_leveldb(backup: Backup, place: Path) -> None:
    (manifest,) = (each.name for each in backup.files if each.name.startswith("MANIFEST-"))
    current = place / "CURRENT"
    current.touch(0o600)
    current.write_text(f"{manifest}\n")
    sync_file(current, 0)
