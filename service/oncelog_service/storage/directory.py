"""Directories of stores that lie in files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oncelog_service.storage.port import StoreError


def sync_directory(path: Path) -> None:
    """Make what was created in ``path`` survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """Make the directory and those above it, as far as they are missing. The name of each stands, synced, in the one above: a
    power cut takes away none of them, and nothing of what lies in them. Raises OSError."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def locked_directory(path: Path) -> int:
    """A handle that holds a lock on the directory until it is closed, and at the latest until the process ends.

    Raises as :func:`locked`. OSError.
    """
    return locked(path, path, os.O_RDONLY | os.O_DIRECTORY)


def locked(store: Path, path: Path, flags: int) -> int:
    """A handle, opened with these flags, that holds a lock on a file or directory for a store.

    Raises StoreError: another process has it; or its file system has no locks, or only such as keep nobody out. Those of a
    network that hold on each machine for itself cannot be told from here. OSError: it cannot be opened.
    """
    handle = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        if not _take(store, handle):
            raise StoreError(f"{store} is in use by another process")
        with _opened(path, flags) as other:
            if _take(store, other):
                raise StoreError(f"locks on {store} keep nobody out, so two services could open it: use a local disk")
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, flags | os.O_CLOEXEC)
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
