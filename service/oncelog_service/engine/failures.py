"""Why a store cannot be opened in this process, as the SDK's errors say it: with what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from oncelog.errors import OncelogError, StoreInUse, StoreNotOpened, TopicDamaged
from oncelog_service.engine.address import Address
from oncelog_service.storage import port
from oncelog_service.storage.files.directory import holder_of
from oncelog_service.storage.format import UnknownFormat

_SHOWN = 200
"""Characters of a command line."""
_HINTS = {
    errno.EACCES: "this user may not; choose another path, or have it opened to this user",
    errno.EPERM: "this user may not; choose another path, or have it opened to this user",
    errno.EROFS: "the disk is mounted for reading only; choose another path",
    errno.ENOENT: "it cannot be made there; choose another path",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EEXIST: "a file is there; choose another path",
    errno.EMFILE: "close some, or raise the limit (ulimit -n)",
    errno.ENOSPC: "the disk is full; make room",
}


def failure_of(error: Exception, address: Address) -> OncelogError:
    """Makes the SDK's error of what came of opening a store."""
    if isinstance(error, OncelogError) and not isinstance(error, TopicDamaged):
        return error
    said = str(error)
    if isinstance(error, port.StoreInUse) or "/LOCK: " in said:
        return _in_use(address)
    if isinstance(error, port.StoreDamaged | port.RowDamaged | TopicDamaged):
        return StoreNotOpened(
            f"{address} is damaged: {said}. Nothing was changed; keep a copy of everything, and restore a backup, or run "
            "`oncelog salvage`"
        )
    if isinstance(error, UnknownFormat):
        return StoreNotOpened(f"{address}: {said}")
    if isinstance(error, RuntimeError) and "thread" in said:
        late = "shutdown" in said
        out = "the process ends: open it before, by a first call" if late else "end some threads, or raise the limit (ulimit -u)"
        return StoreNotOpened(f"{address} cannot be opened: {said}; {out}")
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno):
        cause = cause.__cause__
    hint = _HINTS.get(cause.errno or 0) if isinstance(cause, OSError) else None
    said = said.removeprefix(f"{address.name} cannot be opened: ")
    return StoreNotOpened(f"{address} cannot be opened: {said}" + (f"; {hint}" if hint else ""))


def _in_use(address: Address) -> OncelogError:
    pid = os.getpid() if address.scheme == "memory" else holder_of(Path(address.name)) or None
    if pid == os.getpid():
        return StoreInUse(
            f"{address} is open in this process already, by a service or an engine of its own", pid=pid, holder=None
        )
    holder = None if pid is None else _command(pid)
    who = "another process" if pid is None else f"process {pid}" + (f" ({holder})" if holder else "")
    return StoreInUse(
        f"{address} is in use by {who}, and one process owns a store: end that one, or have a service own it (oncelog serve), "
        "and name that one by its address, http://…",
        pid=pid,
        holder=holder,
    )


def _command(pid: int) -> str | None:
    """Returns what a process is, as far as the system tells."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return " ".join(word.decode(errors="replace") for word in words if word)[:_SHOWN] or None
