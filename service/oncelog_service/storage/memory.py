"""The store in memory, for tests: it remembers what is not yet synced, so that a test may crash it or make it fail.

``Disk`` stands for the machine and survives; ``MemoryStore`` is one opening of it. A crash keeps what was synced and, as a real
disk may, any number of the batches that were being written.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence

from oncelog_service.storage.port import Batch, Rows, StoreClosed, StoreError, StoreFenced, Table


class Disk:
    """Holds what is on disk. Hand it to a new MemoryStore to open it again."""

    def __init__(self) -> None:
        self.tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        self.epochs: dict[bytes, int] = {}
        """Resource → epoch under which it may be written; a fence with another one is not valid."""
        self.writes = 0
        """How many writes were synced."""
        self.before_sync: Callable[[Sequence[Batch]], None] | None = None
        """Called with the batches of each write before it counts; raise from it to make the write fail."""
        self.fail_after_apply = False
        """A failed write is on disk all the same, as may happen with a real one."""
        self.scrubbed: list[tuple[Table, bytes, bool]] = []
        """What was asked to be scrubbed; there is nothing to do, since no earlier value is kept."""
        self.free: Callable[[], int] | None = None
        """Called for the bytes that are free, where the test says."""


class MemoryStore:
    """Opens a :class:`Disk`. See :class:`~oncelog_service.storage.port.Store`."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = Disk() if disk is None else disk
        self._open = True
        self._lock = threading.RLock()
        self.ordered = {table: sorted(rows) for table, rows in self.disk.tables.items()}
        """Table → its keys, in order. Openings that are there at the same time share them."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        with self._lock:
            self._check()
            return self.disk.tables[table].get(key)

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        with self._lock:
            self._check()
            keys = self.ordered[table]
            found = keys[bisect_left(keys, start) : bisect_left(keys, stop)]
            rows = [(key, self.disk.tables[table][key]) for key in found]
        for row in reversed(rows) if reverse else rows:
            yield row
            self._check()

    def write(self, batches: Sequence[Batch]) -> None:
        with self._lock:
            self._check()
            fences = frozenset().union(*(batch.fences for batch in batches))
            lost = frozenset(fence for fence in fences if self.disk.epochs.get(fence.resource) != fence.epoch)
            if lost:
                raise StoreFenced(lost)
            try:
                if self.disk.before_sync is not None:
                    self.disk.before_sync(batches)
            except Exception as error:
                self._open = False
                if self.disk.fail_after_apply:
                    self._apply(batches)
                raise StoreError(f"the write failed: {error}") from error
            self._apply(batches)
            self.disk.writes += 1

    def write_at_once(self, batches: Sequence[Batch]) -> bool:
        self.write(batches)
        return True

    def behind(self) -> float:
        return 0.0

    def scrub(self, table: Table, key: bytes, *, written: bool) -> None:
        with self._lock:
            self._check()
        self.disk.scrubbed.append((table, key, written))

    def look(self) -> None:
        self._check()

    def size_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int | None:
        return None if self.disk.free is None else self.disk.free()

    def reclaim(self, thorough: bool, only_much: bool = False) -> None:
        pass

    def check_written(self) -> None:
        """No other process has it: what was open is what was written."""

    def lease_table(self) -> None:
        return None

    def staged(self, least_free: int = 0) -> None:
        return None

    def close(self) -> None:
        with self._lock:
            self._open = False

    def _check(self) -> None:
        if not self._open:
            raise StoreClosed("the store is closed")

    def _apply(self, batches: Sequence[Batch]) -> None:
        for change in changes(batches):
            self.set(*change)

    def set(self, table: Table, key: bytes, value: bytes | None) -> None:
        """Sets a row on the disk as it is, or deletes it (None)."""
        rows, keys = self.disk.tables[table], self.ordered[table]
        if value is None:
            if rows.pop(key, None) is not None:
                del keys[bisect_left(keys, key)]
            return
        if key not in rows:
            insort(keys, key)
        rows[key] = value


def changes(batches: Sequence[Batch]) -> Iterator[tuple[Table, bytes, bytes | None]]:
    """Yields what batches set, in order: each row with its value, None where it is deleted."""
    for batch in batches:
        for laid in batch.laid:
            for end, value in laid.rows():
                yield laid.table, laid.prefix + end, value
        yield from batch.puts
        for table, key in batch.deletes:
            yield table, key, None
