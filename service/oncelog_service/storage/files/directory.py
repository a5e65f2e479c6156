"""Directories of stores that lie in files.

What is made here is its user's alone: directories 0700, files 0600, whatever the umask. So is what SQLite makes beside a database
that was made here, whose mode it takes over. LevelDB makes files of its own whenever it likes, on threads of its own, as the
umask says. So a service, or a tool, keeps :func:`private` around that; in a process that is somebody's (engine/) they lie in a
directory that is closed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oncelog_service.storage.port import StoreError, StoreInUse

DIRECTORY = 0o700
FILE = 0o600
_LOOKED_AT = 4_096
"""Bytes: a block."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


@contextmanager
def private() -> Iterator[None]:
    """Whatever this process makes meanwhile, on any thread, is its user's alone."""
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(store: Path) -> Path | None:
    """Finds what of a store others than its user may look into: its directory, or of a file that or one beside it."""
    store = Path(os.path.realpath(store))
    if store.is_dir():
        files = [store]
    else:
        files = [store.with_name(store.name + end) for end in ("", "-wal", "-shm", ".end", ".lock")]
        if _closed(store.parent):
            return None
    return next((each for each in files if each.exists() and not _closed(each)), None)


def _closed(path: Path) -> bool:
    return not path.stat().st_mode & _OTHERS


def sync(handle: int) -> None:
    """Makes what is in an open file survive a power cut. The only place that syncs files of ours. Raises OSError.

    On macOS fsync leaves it in the drive's cache, which F_FULLFSYNC empties; file systems that have none have fsync.
    """
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(handle, _FULL_SYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise  # a sync that failed is not made good by another one
        else:
            return
    os.fsync(handle)


def sync_file(path: Path, flags: int) -> None:
    """Makes what is in a file, opened with these flags, survive a power cut."""
    with _opened(path, flags) as handle:
        sync(handle)


def sync_directory(path: Path) -> None:
    """Makes what was created in ``path`` survive a power cut."""
    sync_file(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_with_name(path: Path) -> None:
    """Makes what was created in ``path`` survive a power cut, and the name of that directory."""
    sync_directory(path)
    # A parent that may not be read is somebody else's, as /var/lib/private of systemd is, and so is the name in it.
    with suppress(PermissionError):
        sync_directory(path.parent)


def look(path: Path) -> None:
    """Reads the beginning of a file from the disk it lies on, where the system can be told to forget what it has of it.

    Raises OSError.
    """
    with _opened(path, os.O_RDONLY) as handle:
        if sys.platform != "darwin":
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.read(handle, _LOOKED_AT)


def check_same(path: Path, opened: os.stat_result) -> None:
    """Raises OSError where ``path`` no longer leads to what was ``opened`` there: it was moved, deleted or replaced, and whoever
    holds it open would go on writing to it."""
    if not os.path.samestat(os.stat(path), opened):
        raise FileNotFoundError(errno.ENOENT, "the store that was opened there is not there any more", str(path))


def free_bytes(path: Path) -> int:
    """Returns how many bytes its file system has for whoever is not its administrator. Raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def check_room(path: Path, size: int, least_free: int) -> None:
    """Raises OSError, of a full disk, where so many bytes more would leave less free than what is to stay; 0: as many as go."""
    if least_free and (free := free_bytes(path)) - size < least_free:
        what = f"it has {free} bytes left, of which {least_free} are kept (min_free_bytes), and {size} are needed"
        raise OSError(errno.ENOSPC, what, str(path))


def size_bytes(paths: Iterable[Path]) -> int:
    """Returns how many bytes these files take on disk; one that has gone meanwhile takes none. Raises OSError."""
    size = 0
    for path in paths:
        with suppress(FileNotFoundError):
            size += path.stat().st_blocks * 512  # POSIX's unit, whatever the file system's is
    return size


def make_directory(path: Path) -> None:
    """Makes the directory and those above it, as far as they are missing, each synced in the one above. Raises OSError."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):  # with `parents` those above would be made for everybody
        each.mkdir(DIRECTORY, exist_ok=True)
    path.mkdir(exist_ok=True)  # raises where a file is
    for each in missing:
        sync_directory(each.parent)


def make_file(path: Path) -> None:
    """Makes an empty file, unless one is there. Raises OSError."""
    with _opened(path, os.O_WRONLY | os.O_CREAT):
        pass


def locked_directory(path: Path) -> int:
    """Locks a directory until the handle is closed, at the latest until the process ends.

    Raises as :func:`locked`. OSError.
    """
    return locked(path, path, os.O_RDONLY | os.O_DIRECTORY)


def locked(store: Path, path: Path, flags: int) -> int:
    """Locks a file or directory for a store until the handle, opened with these flags, is closed.

    A forked child has none: the lock is its parent's, and ends with that.

    Raises StoreInUse: another process has it. StoreError: its file system has no locks, or only such as keep nobody out. Those of
    a network that hold on each machine for itself cannot be told from here. OSError: it cannot be opened.
    """
    handle = os.open(path, flags | os.O_CLOEXEC, FILE)
    _locked.add(handle)
    try:
        if not _take(store, handle):
            raise StoreInUse(f"{store} is in use by another process")
        with _opened(path, flags) as other:
            if _take(store, other):
                raise StoreError(f"locks on {store} keep nobody out, so two services could open it: use a local disk")
    except BaseException:
        unlock(handle)
        raise
    return handle


def unlock(handle: int) -> None:
    """Lets go of what :func:`locked` has locked."""
    _locked.discard(handle)
    os.close(handle)


_locked: set[int] = set()
"""Handles of this process's locks. A child that is forked shares the very lock: it would keep everybody out when this process is
gone."""


def _let_go() -> None:
    for handle in _locked:
        with suppress(OSError):
            os.close(handle)
    _locked.clear()


os.register_at_fork(after_in_child=_let_go)


def holder_of(store: Path, locks: Path = Path("/proc/locks")) -> int | None:
    """Finds the process that has a store open, as far as the system tells; 0: one that cannot be seen from here; None: none."""
    at = store if store.is_dir() else store.with_name(store.name + ".lock")
    try:
        status = os.stat(at)
        held = locks.read_text()
    except FileNotFoundError:
        return None
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in held.splitlines():
        fields = line.split()
        if "FLOCK" in fields and file in fields:
            return max(0, int(fields[fields.index(file) - 1]))
    return None


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, flags | os.O_CLOEXEC, FILE)
    try:
        yield handle
    finally:
        os.close(handle)


def _take(store: Path, handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a network's file system may take none, or none on a directory
        raise StoreError(
            f"{store} cannot be locked ({error.strerror}), so two services could open it: use a local disk"
        ) from error
    return True
