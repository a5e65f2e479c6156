"""An archive of backups: a directory with one note for each backup, and the files of all of them under their checksums.

::

    oncelog-backups.json     whose backups these are; it makes the directory an archive
    lock                     held by whoever writes: a backup is taken, older ones are deleted
    files/<SHA-256>          what a backup holds, each content once
    backups/<number>.json    a backup: its position, and the name, size and SHA-256 of each file

What an archive says is input, as it may be somebody else's: only names that a store's files have become paths, digests are
digests, and nothing that leads elsewhere is followed (`_backup_of`, `_own_file`).

A backup is there once its note is, which appears whole and last, when all that it names is synced. So whatever a process that is
killed leaves behind is no backup: at most files that no note names, which go when older backups are deleted, or serve the
next one. What is taken twice is written once.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from oncelog.wire import models
from oncelog_service.storage.files.directory import check_room, locked, make_directory, sync, sync_directory, unlock
from oncelog_service.storage.port import StoreError

_VERSION = 1
_MARK = "oncelog-backups.json"
_PART = ".part"
_BEFORE_THE_MARK = frozenset({"lost+found", "lock", _PART})
"""What a directory may hold that is to become an archive."""
_PIECE = 2**20
_NOTE_BYTES = 2**28
"""Of a note: a million files have no more."""
_DIGEST = re.compile("[0-9a-f]{64}")
_ID = re.compile("[0-9a-f]{32}")
_NAMES = {"leveldb": re.compile(r"[0-9]{6,20}\.(ldb|sst|log)|MANIFEST-[0-9]{6,20}"), "sqlite": re.compile("database")}
"""How the files of a backup of each kind are called, as storage/files/leveldb_staged.py and storage/sql/sqlite.py give them."""
_FIXED = (".ldb", ".sst")
"""End the names of those that never change, which alone are links where a backup is looked at."""


class BackupError(Exception):
    """It cannot be done, and says why. No backup that was there has been changed."""


class BackupHasNoRoom(BackupError):
    """There is too little room on a disk for it."""


class BackupDamaged(BackupError):
    """Something in an archive is not what was written there, or is gone."""


class BackedUp(NamedTuple):
    """A file of a backup."""

    name: str
    bytes: int
    sha256: str
    modified_ns: int = 0
    inode: int = 0
    """Of the store's file, where that never changes; both 0 for others."""


@dataclass(frozen=True)
class Backup:
    """A backup, as its note says."""

    number: int
    """Counts the backups of an archive; the newest has the highest."""
    store_id: str
    kind: str
    position: int
    """The number of the newest write that is in it."""
    taken_ms: int
    bytes: int
    new_bytes: int
    """Those of its files that no backup before it had brought."""
    files: tuple[BackedUp, ...]

    def told(self, directory: str) -> models.Backup:
        """Returns it as it is answered."""
        return models.Backup(
            number=self.number,
            directory=directory,
            store_id=self.store_id,
            position=self.position,
            taken_ms=self.taken_ms,
            files=len(self.files),
            bytes=self.bytes,
            new_bytes=self.new_bytes,
        )


class Archive:
    """A directory of backups."""

    def __init__(self, path: Path, least_free: int = 0) -> None:
        """``least_free``: bytes of its disk that stay free whatever is brought here."""
        self.path = path
        self.least_free = least_free
        self.files = path / "files"
        self.notes = path / "backups"

    @contextmanager
    def begun_by(self, store_id: str) -> Iterator[None]:
        """Writes to it within, and nobody else does; makes it where nothing is.

        Raises BackupError: it is another store's, holds something else, or is in use; OSError.
        """
        if not self.path.exists():
            make_directory(self.path)
            self.path.chmod(0o700)
        if not (self.path / _MARK).exists() and {each.name for each in self.path.iterdir()} - _BEFORE_THE_MARK:
            raise BackupError(f"{self.path} is not empty, and holds no backups; choose an empty directory")
        self._check_folders()
        with self._locked():
            if not (self.path / _MARK).exists():
                self._write_note(self.path / _MARK, {"version": _VERSION, "store_id": store_id})
            of = _read_note(self.path / _MARK).get("store_id")
            if of != store_id:
                raise BackupError(f"{self.path} holds backups of another store, {of}; choose another directory")
            for each in (self.files, self.notes):
                if not each.exists():
                    each.mkdir(0o700)
            sync_directory(self.path)
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Deletes within, and nobody else writes. Raises BackupError, OSError."""
        self.check()
        with self._locked():
            yield

    def check(self) -> None:
        """Raises BackupError: there are no backups."""
        if not (self.path / _MARK).is_file():
            raise BackupError(f"there are no backups in {self.path}")
        _read_note(self.path / _MARK)
        self._check_folders()

    def _check_folders(self) -> None:
        """Raises BackupError: a folder of it lies elsewhere, where anything may be."""
        for each in (self.files, self.notes):
            if each.is_symlink():
                raise BackupError(f"{each} is a link; what it leads to is no part of an archive")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.path / "lock"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        try:
            handle = locked(self.path, path, os.O_RDWR | os.O_NOFOLLOW)
        except StoreError as error:
            raise BackupError(f"{error}; whoever takes a backup or deletes older ones holds its lock") from error
        try:
            (self.path / _PART).unlink(missing_ok=True)
            yield
        finally:
            unlock(handle)

    # --- notes

    def numbers(self) -> list[int]:
        """Lists the numbers of the backups, rising. Raises BackupError: there are none here."""
        self.check()
        found = self.notes.glob("*.json") if self.notes.exists() else ()
        return sorted(int(each.stem) for each in found if each.stem.isascii() and each.stem.isdigit())

    def read(self, number: int) -> Backup:
        """Reads a backup's note. Raises BackupDamaged; BackupError: there is none of this number."""
        path = self._note(number)
        if not path.exists():
            raise BackupError(f"there is no backup {number} in {self.path}")
        try:
            return _backup_of(_read_note(path), number)
        except (TypeError, KeyError, ValueError) as error:
            raise BackupDamaged(f"{path} is damaged: it does not say what a backup is") from error

    def newest(self) -> Backup:
        """Reads the newest one. Raises BackupDamaged; BackupError: there is none."""
        numbers = self.numbers()
        if not numbers:
            raise BackupError(f"there is no backup in {self.path} yet")
        return self.read(numbers[-1])

    def add(self, backup: Backup) -> None:
        """Writes the note of a backup whose files are there: from now on it is one. Raises OSError."""
        sync_directory(self.files)
        self._write_note(self._note(backup.number), {**asdict(backup), "files": [each._asdict() for each in backup.files]})

    def withdraw(self, number: int) -> bool:
        """Takes the note of a backup away, if it is there; whether it certainly is gone, also after a power cut."""
        try:
            self._note(number).unlink(missing_ok=True)
            sync_directory(self.notes)
        except OSError:
            return False
        return True

    def delete(self, keep: int) -> tuple[list[int], int]:
        """Deletes all but the newest backups, and every file that none of these has; returns numbers and bytes that went.

        Only within :meth:`kept`. Raises BackupDamaged, OSError.
        """
        numbers = self.numbers()
        going, staying = numbers[: -keep or None], numbers[-keep:]
        # Before anything goes: a note that is damaged does not say which files are its own.
        wanted = {each.sha256 for number in staying for each in self.read(number).files}
        for number in going:
            self._note(number).unlink()
        sync_directory(self.notes)  # before its files: a backup that lacks some must not come back
        freed = 0
        for path in list(self.files.iterdir()):
            if _DIGEST.fullmatch(path.name) and path.name not in wanted:
                freed += path.lstat().st_size
                path.unlink()
        return going, freed

    def _note(self, number: int) -> Path:
        return self.notes / f"{number:06}.json"

    def _write_note(self, path: Path, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        part = self.path / _PART
        part.unlink(missing_ok=True)
        with _private(part) as handle:
            _write_all(handle, data + b"\n" + sha256(data).hexdigest().encode() + b"\n")
            sync(handle)
        part.rename(path)
        sync_directory(path.parent)

    # --- files

    def has(self, digest: str, size: int) -> bool:
        """Tells whether a content is there, by its name and size."""
        return _own_file(self.files / digest) == size

    def bring(self, source: Path, size: int) -> tuple[str, bool]:
        """Copies the first bytes of a file here, synced, unless they are here; returns their SHA-256 and whether they are new.

        Raises OSError, that of a full disk also where less than :attr:`least_free` would stay; BackupError: the file is shorter.
        """
        part = self.path / _PART
        try:
            with _private(part) as handle:
                digest = copied(source, size, handle, self.check_room)
                sync(handle)
            if self.has(digest, size):
                return digest, False
            part.rename(self.files / digest)
            return digest, True
        finally:
            part.unlink(missing_ok=True)

    def check_room(self, size: int) -> None:
        """Raises OSError, of a full disk: so many bytes more would leave too little of it free."""
        check_room(self.path, size, self.least_free)

    def forget(self, digest: str) -> None:
        """Deletes a file that no backup names. Raises nothing: what stays goes with older backups."""
        try:
            (self.files / digest).unlink(missing_ok=True)
        except OSError:
            return

    def path_of(self, file: BackedUp) -> Path:
        """Finds a backup's file. Raises BackupDamaged: it is gone, or has another size."""
        if not self.has(file.sha256, file.bytes):
            raise BackupDamaged(f"{self.files / file.sha256}, which is {file.name}, is gone or has another size")
        return self.files / file.sha256

    def copy_out(self, file: BackedUp, target: Path | None) -> None:
        """Copies a backup's file to a new one, synced and readable for its owner alone; None: it is only read.

        Raises BackupDamaged: what was read is not what was written; OSError.
        """
        source = self.path_of(file)
        if target is None:
            digest = copied(source, file.bytes, None)
        else:
            with _private(target) as handle:
                digest = copied(source, file.bytes, handle)
                sync(handle)
        if digest != file.sha256:
            raise BackupDamaged(f"{source}, which is {file.name}, is damaged: its checksum does not match")


def copied(source: Path, size: int, target: int | None, check: Callable[[int], None] = lambda size: None) -> str:
    """Copies the first bytes of a file to an open one, and returns their SHA-256. Raises BackupError: there are not so many.

    ``check``: is told of each piece before it is written, and may raise.
    """
    digest, left = sha256(), size
    with source.open("rb", buffering=0) as file:
        while left:
            data = file.read(min(left, _PIECE))
            if not data:
                raise BackupError(f"{source} is shorter than its {size} bytes")
            digest.update(data)
            if target is not None:
                check(len(data))
                _write_all(target, data)
            left -= len(data)
    return digest.hexdigest()


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


@contextmanager
def _private(path: Path) -> Iterator[int]:
    """A new file that its owner alone may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _read_note(path: Path) -> dict[str, Any]:
    """Raises BackupDamaged."""
    try:
        size = _own_file(path)
        if size is None or size > _NOTE_BYTES:
            raise ValueError
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data, digest, end = file.read(_NOTE_BYTES).split(b"\n")
        if end or digest.decode() != sha256(data).hexdigest():
            raise ValueError
        value = json.loads(data)
        if not isinstance(value, dict):
            raise ValueError
    except (ValueError, RecursionError, OSError) as error:
        raise BackupDamaged(f"{path} is damaged or gone") from error
    return value


def _own_file(path: Path) -> int | None:
    """The size of a file that lies there itself; None: there is none, or something that leads elsewhere or has no end."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _backup_of(note: dict[str, Any], number: int) -> Backup:
    """The backup of a note, if it says what :meth:`Archive.add` writes. Raises ValueError, TypeError, KeyError."""
    files = tuple(_file_of(BackedUp(**each), _NAMES[note["kind"]]) for each in note.pop("files"))
    found = Backup(files=files, **note)
    counts = (found.number, found.position, found.taken_ms, found.bytes, found.new_bytes)
    if not all(map(_is_count, counts)) or found.number != number or not _ID.fullmatch(found.store_id):
        raise ValueError
    names = {each.name for each in files}
    if len(names) != len(files) or found.bytes != sum(each.bytes for each in files):
        raise ValueError
    if sum(name.startswith("MANIFEST-") for name in names) != (1 if found.kind == "leveldb" else 0) or not names:
        raise ValueError
    return found


def _file_of(file: BackedUp, names: re.Pattern[str]) -> BackedUp:
    """The file, if it is one. Raises ValueError, TypeError."""
    if not names.fullmatch(file.name) or not _DIGEST.fullmatch(file.sha256):
        raise ValueError
    if not all(map(_is_count, (file.bytes, file.modified_ns, file.inode))) or (file.inode and not file.name.endswith(_FIXED)):
        raise ValueError
    return file


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
