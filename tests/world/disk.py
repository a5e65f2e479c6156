"""A disk that is crashed, damaged, held up and made to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from oncelog_service.storage.memory import Disk, MemoryStore, changes
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Rows, Table
from tests.patience import PATIENCE

Fault: TypeAlias = Literal["fails", "fails but is on disk", "crash before", "crash behind"]
FAULTS: tuple[Fault, ...] = ("fails", "fails but is on disk", "crash before", "crash behind")
_ANY = b"\xff" * 64
Change: TypeAlias = tuple[Table, bytes, bytes | None]
Database: TypeAlias = Callable[[], str]
"""The URL of an empty database, another one each time."""


def crashed(disk: Disk) -> Disk:
    """The disk as a crash at this moment leaves it: only what is synced, whatever is stopped cleanly later."""
    copy = Disk()
    copy.tables = {table: dict(rows) for table, rows in disk.tables.items()}
    return copy


class LateDisk(Disk):
    """A disk on which a write is there some time after it was begun, so that events come in between as they do beside a thread.

    It remembers all writes, and can come back as it was before some of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: list[list[Change]] = []
        self._under_way: list[tuple[MemoryStore, list[Change]]] = []

    def begin(self, store: MemoryStore, changes: list[Change]) -> None:
        """Begin a write. One is under way at a time."""
        self.complete()
        self._under_way.append((store, changes))

    def complete(self) -> None:
        """What is under way is there."""
        while self._under_way:
            store, changes = self._under_way.pop()
            self._written.append(changes)
            for change in changes:
                store.set(*change)

    def cut(self, there: bool) -> LateDisk:
        """The disk after the power was cut at this moment: of what is under way all is ``there``, or nothing."""
        return self._with([*self._written, *(changes for _, changes in self._under_way if there)])

    def older(self, writes: int) -> LateDisk:
        """The disk as it was before so many writes."""
        return self._with(self._written[: max(0, len(self._written) - writes)])

    def _with(self, written: Sequence[list[Change]]) -> LateDisk:
        disk = LateDisk()
        store = MemoryStore(disk)
        for written_at_once in written:
            disk.begin(store, written_at_once)
        disk.complete()
        return disk


class LateStore(MemoryStore):
    """An opening of one. Reads see what is there; whoever reports a write has to complete it before."""

    disk: LateDisk

    def __init__(self, disk: LateDisk) -> None:
        disk.complete()
        super().__init__(disk)

    def _apply(self, batches: Sequence[Batch]) -> None:
        self.disk.begin(self, list(changes(batches)))


def flip(disk: Disk, table: Table, key: bytes, at: int = -10) -> None:
    """Turn one bit of a stored value."""
    value = bytearray(disk.tables[table][key])
    value[at] ^= 0x10
    disk.tables[table][key] = bytes(value)


def no_space() -> OSError:
    """The error of a full disk."""
    return OSError(28, "No space left on device")


class Gate:
    """Holds the writer in the middle of a write until it is opened; then the write succeeds, or fails with ``error``.

    It is a disk's ``before_sync``.
    """

    def __init__(self, error: Exception | None = None, opened: bool = False) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self._error = error
        if opened:
            self.opened.set()

    def __call__(self, _: object) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        if self._error is not None:
            raise self._error


def arm(disk: Disk, fault: Fault, write: int) -> None:
    """Let a write from now on fail, 0 is the next one; after a crash all further ones fail."""
    left = write

    def strike(_: Sequence[Batch]) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            disk.fail_after_apply = fault in ("fails but is on disk", "crash behind")
            raise OSError(f"this write {fault}")
        if left < -1:
            disk.fail_after_apply = False
            if fault.startswith("crash"):
                raise OSError("it has crashed")

    disk.before_sync = strike


def disarm(disk: Disk) -> None:
    """Every write works again."""
    disk.before_sync = None
    disk.fail_after_apply = False


def opened(disk: Disk, database: Database | None = None) -> MemoryStore:
    """An opening of the disk, with a database beside it if there is one."""
    return MemoryStore(disk) if database is None else Twin(disk, database())


class Twin(MemoryStore):
    """A store in memory that keeps a database beside it, and asks both: what SQL answers is what memory does.

    A disk that is opened again has an empty database first: what a crash leaves is copied into it.
    """

    def __init__(self, disk: Disk, url: str) -> None:
        super().__init__(disk)
        self._sql = store_opener(url)()
        batch = Batch()
        for table, rows in disk.tables.items():
            for key, value in rows.items():
                batch.put(table, key, value)
        self._sql.write([batch])

    def get(self, table: Table, key: bytes) -> bytes | None:
        with self._lock:
            found = super().get(table, key)
            assert self._sql.get(table, key) == found
            return found

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        with self._lock:
            rows = list(super().scan(table, start, stop, reverse=reverse))
            assert list(self._sql.scan(table, start, stop, reverse=reverse)) == rows
        for row in rows:
            yield row
            self._check()

    def close(self) -> None:
        with self._lock:
            if self._open:
                stored = {table: dict(self._sql.scan(table, b"", _ANY)) for table in Table}
                assert stored == self.disk.tables, "the database does not hold what was written"
            super().close()
            self._sql.close()

    def _apply(self, batches: Sequence[Batch]) -> None:
        super()._apply(batches)
        self._sql.write(batches)


class HeldStore(MemoryStore):
    """Writes when it may."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.may, self.asked = threading.Event(), threading.Event()
        self.may.set()

    def write(self, batches: Sequence[Batch]) -> None:
        self.asked.set()
        assert self.may.wait(PATIENCE)
        super().write(batches)
