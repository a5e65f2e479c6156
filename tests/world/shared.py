"""A database in memory that several instances share: rows and leases, by a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, LeaseTable, StoreError
from tests.world.leases import LeasesInMemory


class SharedDatabase:
    """Is there as long as the test; instances open it, each by its name, and may be cut off from it."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.disk = Disk()
        self.leases = LeasesInMemory(now_ms)
        self.cut: set[str] = set()
        """Instances that do not reach it."""
        self.lock = threading.RLock()
        self.ordered = MemoryStore(self.disk).ordered

    def open(self, instance: str = "") -> SharedStore:
        """Opens it for one instance. Raises StoreError: it does not reach it."""
        store = SharedStore(self, instance)
        store.look()
        return store


class SharedStore(MemoryStore):
    """One instance's opening. What it writes is checked against the leases in the same step."""

    def __init__(self, database: SharedDatabase, instance: str) -> None:
        super().__init__(database.disk)
        self._database, self._instance = database, instance
        self._lock, self.ordered = database.lock, database.ordered

    def write(self, batches: Sequence[Batch]) -> None:
        with self._lock:
            self.disk.epochs = self._database.leases.epochs
            super().write(batches)

    def lease_table(self) -> LeaseTable:  # type: ignore[override]
        return cast(LeaseTable, _Reached(self._database.leases, self))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While nobody else changes anything. Raises StoreError: it is closed, or cannot be reached."""
        with self._lock:
            self._check()
            yield

    def _check(self) -> None:
        super()._check()
        if self._instance in self._database.cut:
            raise StoreError("the database cannot be reached")


class _Reached:
    """The lease table, as one instance reaches it."""

    def __init__(self, table: LeasesInMemory, store: SharedStore) -> None:
        self._table, self._store = table, store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._table, name)

        def reached(*args: object) -> object:
            with self._store.locked():
                return call(*args)

        return reached
