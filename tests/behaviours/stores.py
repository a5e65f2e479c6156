"""The behaviours once more over SQL: the store in memory, made to keep its rows in SQLite or PostgreSQL.

What is read comes from the database. The disk is kept beside it as always, so that a test may look at it, change it, copy it for
a crash or have it refuse a write; what a test has done to it reaches the database before the next read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Rows, Store, StoreError, Table

KINDS = ("memory", "sqlite", "postgresql")
_METHODS = ("__init__", "get", "scan", "write", "close", "_written", "_follow")
_ANY = b"\xff" * 64

Tables = dict[Table, dict[bytes, bytes]]


class Watched(dict[bytes, bytes]):
    """A table of the disk, which notes what a test does to it behind the store's back."""

    def __init__(self, rows: Mapping[bytes, bytes] = MappingProxyType({})) -> None:
        super().__init__(rows)
        self.touched: set[bytes] = set()

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.touched.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: bytes) -> None:
        self.touched.add(key)
        super().__delitem__(key)

    def pop(self, key: bytes, *default: Any) -> Any:
        self.touched.add(key)
        return super().pop(key, *default)

    def clear(self) -> None:
        self.touched |= self.keys()
        super().clear()


class OnSql(MemoryStore):
    """Its methods take the place of those of MemoryStore."""

    fresh: Callable[[], str]
    """A URL of a database that is empty."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = Disk() if disk is None else disk
        self._lock = threading.RLock()
        url = self.disk.__dict__.setdefault("url", None) or self.fresh()
        self.disk.__dict__["url"] = url
        self._sql: Store = store_opener(url)()
        self._open = True
        for table, rows in self.disk.tables.items():
            self.disk.tables[table] = Watched(rows)
        try:
            _bring(self._sql, self.disk.tables)
        except BaseException:
            self._sql.close()
            raise

    def get(self, table: Table, key: bytes) -> bytes | None:
        self._follow()
        return self._sql.get(table, key)

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        self._follow()
        return self._sql.scan(table, start, stop, reverse=reverse)

    def write(self, batches: Sequence[Batch]) -> None:
        with self._lock:
            if self._open and self.disk.before_sync is not None:
                try:
                    self.disk.before_sync(batches)
                except Exception as error:
                    if self.disk.fail_after_apply:
                        self._written(batches)
                    self._open = False
                    self._sql.close()
                    raise StoreError(f"the write failed: {error}") from error
            self._written(batches)
            self.disk.writes += 1

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._follow()
                self._open = False
                assert _rows(self._sql) == self.disk.tables, "the database does not hold what was written"
            self._sql.close()

    def _written(self, batches: Sequence[Batch]) -> None:
        self._follow()
        self._sql.write(batches)
        for batch in batches:
            for table, prefix, suffixes, values in batch.runs:
                self.disk.tables[table].update(zip([prefix + suffix for suffix in suffixes], values, strict=True))
            for table, key, value in batch.puts:
                dict.__setitem__(self.disk.tables[table], key, value)
            for table, key in batch.deletes:
                dict.pop(self.disk.tables[table], key, None)

    def _follow(self) -> None:
        """Do to the database what was done to the disk."""
        with self._lock:
            batch = Batch()
            for table, rows in self.disk.tables.items():
                if not isinstance(rows, Watched):  # put in the place of what was there
                    rows = self.disk.tables[table] = Watched(rows)
                    rows.touched = {*rows, *(key for key, _ in self._sql.scan(table, b"", _ANY))}
                for key in rows.touched:
                    if key in rows:
                        batch.put(table, key, rows[key])
                    else:
                        batch.delete(table, key)
                rows.touched.clear()
            if self._open and (batch.puts or batch.deletes):
                self._sql.write([batch])


def _rows(store: Store) -> Tables:
    return {table: dict(store.scan(table, b"", _ANY)) for table in Table}


def _bring(store: Store, tables: Tables) -> None:
    """Have the database hold what the disk does."""
    batch = Batch()
    for table, present in _rows(store).items():
        for key, value in tables[table].items():
            if present.pop(key, None) != value:
                batch.put(table, key, value)
        for key in present:
            batch.delete(table, key)
    store.write([batch])


@contextmanager
def rows_in(kind: str, path: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where every MemoryStore keeps its rows meanwhile."""
    if kind == "sqlite":
        numbers = count()
        patch.setattr(OnSql, "fresh", lambda _: f"sqlite://{path}/rows-{next(numbers)}", raising=False)
    elif kind == "postgresql":
        from tests.postgres import postgres_server

        patch.setattr(OnSql, "fresh", lambda _: postgres_server().fresh_schema(), raising=False)
    if kind != "memory":
        patch.setattr(MemoryStore, "fresh", OnSql.fresh, raising=False)
        for name in _METHODS:
            patch.setattr(MemoryStore, name, OnSql.__dict__[name], raising=False)
    yield
