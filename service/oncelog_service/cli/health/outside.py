"""What is wrong as seen from outside of the service: its disk, its settings, its answers. Nothing is opened, and nothing changed.

Not even a lock is tried: a service that begins at this moment would find the store in use. Who holds one is read from the
system's list of them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from oncelog.wire.overview import Alarm, Severity
from oncelog_service.cli.configuration import checked
from oncelog_service.config import Settings
from oncelog_service.storage.files.directory import free_bytes, holder_of, open_to_others
from oncelog_service.storage.files.end_file import is_new
from oncelog_service.storage.port import DriverMissing, driver
from oncelog_service.watch.facts import Facts, Thresholds
from oncelog_service.watch.rules import disk, size

_NETWORK = ("nfs", "cifs", "smb", "9p", "ceph", "glusterfs", "lustre", "gpfs", "afs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph")
"""File systems that another machine may have mounted, too, by how their names begin."""
_GOES_AWAY: Mapping[str, str] = {
    "tmpfs": "in memory: it is gone with the next start of the machine",
    "ramfs": "in memory: it is gone with the next start of the machine",
    "overlay": "in the layer of a container: it is gone with the container",
}
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
"""How the system writes a blank and whatever else would end a field, a byte; of what is beyond ASCII nothing."""
_FEW_INODES = 1_000
"""LevelDB makes a file for each 2 MiB, and some more at once while it merges."""
_PART_OF_MEMORY = 0.5
"""Of the machine: what caches and bodies may take together, before Python and LevelDB have had any."""


class Mount(NamedTuple):
    """Where a path lies."""

    point: str
    kind: str
    """Of file system; empty where the system does not say."""


def of_store(path: Path, floor: int, *, answers: bool) -> Iterator[Alarm]:
    """What is wrong with a store in files. ``floor``: ``min_free_bytes``; ``answers``: the service does, and watches its disk."""
    if not path.exists():
        yield _alarm(
            "store_missing", "info", f"the store {path}", f"there is no store at {path}",
            "If there should be one, this is another path, or its disk is not mounted: a service that starts makes an empty one.",
            ["oncelog config show"],
        )  # fmt: skip
        return
    yield from _open_to_others(path)
    mount = mount_of(path)
    yield from _of_mount(path, mount)
    try:
        yield from _of_space(path, floor, answers)
        holder = holder_of(path)
        if not answers and holder is None:
            yield from _of_files(path)
    except PermissionError:
        yield _alarm(
            "store_unreadable", "info", f"the store {path}", f"this user may not look into {path}",
            "Run this as the user of the service.", [f"sudo -u $(stat -c %U {shlex.quote(str(path))}) oncelog doctor"],
        )  # fmt: skip


def _open_to_others(path: Path) -> Iterator[Alarm]:
    with suppress(PermissionError):
        found = open_to_others(path)
        if found is not None:
            mend = f"chmod -R go= {shlex.quote(str(found))}" if found.is_dir() else f"chmod go= {shlex.quote(str(path))}*"
            yield _alarm(
                "store_open_to_others", "warning", f"the store {path}",
                f"others on this machine may look into {found}, where the messages lie", "Close it.", [mend],
            )  # fmt: skip


def _of_mount(path: Path, mount: Mount) -> Iterator[Alarm]:
    if mount.kind.startswith(_NETWORK):
        yield _alarm(
            "network_file_system", "critical", f"the store {path}",
            f"{path} lies on {mount.kind}, mounted at {mount.point}: its locks may hold on each machine for itself, and two "
            "services that open one store destroy it",
            "Put the store on a disk of this machine; use PostgreSQL where several machines are to serve it.", [],
            docs="operating.md#a-store-on-a-network-file-system",
        )  # fmt: skip
    if mount.kind in _GOES_AWAY:
        yield _alarm(
            "store_goes_away", "warning", f"the store {path}", f"{path} lies {_GOES_AWAY[mount.kind]}",
            "Put the store on a disk, in a container on a volume.", [f"findmnt --target {shlex.quote(str(path))}"],
        )  # fmt: skip


def _of_space(path: Path, floor: int, answers: bool) -> Iterator[Alarm]:
    directory = path if path.is_dir() else path.parent
    found = os.statvfs(directory)
    if found.f_files and found.f_favail < _FEW_INODES:
        yield _alarm(
            "few_inodes", "critical" if found.f_favail < _FEW_INODES / 10 else "warning", f"the disk of {path}",
            f"{found.f_favail} more files can be made on the file system of {path}, whatever its free bytes",
            "Delete files there that are not the store's, or give the store a file system of its own.",
            [f"df -i {shlex.quote(str(directory))}"],
        )  # fmt: skip
    if not answers and floor:  # else the service says it
        free = free_bytes(directory)
        state = "full" if free < floor else "low" if free < 2 * floor else "ok"
        yield from disk(Facts(now_ms=0, disk_state=state, disk_free=free, disk_floor=floor), Thresholds())


def _of_files(path: Path) -> Iterator[Alarm]:
    """Of a LevelDB store that nobody has open: whether all of it is there."""
    if not path.is_dir() or is_new(path):
        return
    try:
        with driver("leveldb"):
            from oncelog_service.storage.files.leveldb_look import check_directory
        torn = check_directory(path)
    except PermissionError:
        raise
    except DriverMissing as error:
        yield _alarm(
            "store_unreadable", "info", f"the store {path}", f"this Python cannot look into {path}: {error}",
            "Run this with the Python of the service.", ['pip install "oncelog[leveldb]"'],
        )  # fmt: skip
    except Exception as error:  # also LevelDB's own, which only the storage knows
        yield _alarm(
            "store_not_whole", "critical", f"the store {path}", f"the store {path} would not open: {error}",
            "Keep a copy of everything, and restore a backup; without one, salvage.",
            [f"oncelog salvage leveldb://{shlex.quote(str(path))} NEW"], docs="operating.md#a-damaged-store",
        )  # fmt: skip
    else:
        for each in torn:
            yield _alarm(
                "torn_tail", "info", f"the store {path}",
                f"{each.path.name} ends in a write that a power cut has torn; it was not acknowledged",
                "Nothing is to be done: the next start cuts it off.", [], docs="operating.md#a-damaged-store",
            )  # fmt: skip


def of_settings(settings: Settings | None) -> Iterator[Alarm]:
    """What is wrong with the settings of a service that is started here, or is dangerous. None: they are none."""
    for what, outcome, detail in checked({}):
        if outcome == "failed" or (outcome == "warning" and what not in ("port", "host")):  # of these the service itself tells
            yield _alarm(
                "settings_wrong" if outcome == "failed" else "settings_risky",
                "critical" if outcome == "failed" else "warning", f"the setting {what}", detail,
                "Set it otherwise, in the environment or in the config file.", ["oncelog config check", "oncelog config show"],
                docs="settings.md",
            )  # fmt: skip
    if settings is None:
        return
    if settings.store.startswith("memory:"):
        yield _risky(
            "store", "the store is in memory: everything is gone when the service ends", "Name one in files, or PostgreSQL."
        )
    elif not settings.min_free_bytes:
        yield _risky(
            "min_free_bytes", "min_free_bytes is 0: nothing is kept free on the disk, and a full disk stops the store altogether",
            "Leave it at its default, 256 MiB.",
        )  # fmt: skip
    promised = settings.cache_bytes + settings.max_inflight_bytes + settings.max_unread_bytes
    memory = memory_bytes()
    if memory is not None and promised > _PART_OF_MEMORY * memory:
        yield _risky(
            "cache_bytes",
            f"cache_bytes, max_inflight_bytes and max_unread_bytes come to {size(promised)}; the machine has {size(memory)}",
            "Lower them: under load the system would end the service.",
        )  # fmt: skip


def _risky(name: str, what: str, mend: str) -> Alarm:
    return _alarm("settings_risky", "warning", f"the setting {name}", what, mend, ["oncelog config show"], docs="settings.md")


def _alarm(
    code: str, severity: Severity, subject: str, what: str, mend: str, commands: list[str], docs: str = "operating.md#alarms"
) -> Alarm:
    return Alarm(code=code, severity=severity, subject=subject, what=what, mend=mend, commands=commands, docs=docs)


# --- what the system says


def mount_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> Mount:
    """Which file system a path lies on."""
    real, found = os.path.realpath(path), Mount("/", "")
    with suppress(OSError):
        for line in mounts.read_bytes().split(b"\n"):
            fields = line.split(b" ")
            if len(fields) < 3:
                continue
            point = os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), fields[1]))
            if len(point) >= len(found.point) and (real == point or real.startswith(point.rstrip("/") + "/")):
                found = Mount(point, os.fsdecode(fields[2]))
    return found


def memory_bytes() -> int | None:
    """That the machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
