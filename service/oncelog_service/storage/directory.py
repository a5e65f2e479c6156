"""Directories of stores that lie in files."""

from __future__ import annotations

import fcntl
import os
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

    Raises StoreError: another store has it. OSError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StoreError(f"{path} is in use by another process") from error
    except BaseException:
        os.close(handle)
        raise
    return handle
