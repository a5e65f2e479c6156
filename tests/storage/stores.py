"""What tests of stores share: a place of any kind that is opened again and again, rows to write, and the files of a store."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Fence, Store, StoreDamaged, StoreError, Table
from tests.postgres import postgres_server

M, S = Table.MESSAGE, Table.SNAPSHOT
END = b"\xff" * 64
KINDS = ("memory", "leveldb", "sqlite", "postgresql")
IN_FILES = ("leveldb", "sqlite")
NOT_ITS_OWN = ("LOG", "LOG.old", "LOCK", "data.lock", "data-shm")
"""Files that hold nothing of a store: messages to people, locks, the index that SQLite makes anew at each open."""


class Place:
    """Where a store of one kind lies; it may be opened again and again."""

    def __init__(self, kind: str, path: Path, url: str | None = None) -> None:
        """``path``: a directory of the test's own; ``url``: in place of a fresh schema of PostgreSQL."""
        self.kind, self.disk = kind, Disk()
        self.url = url or (postgres_server().fresh_schema() if kind == "postgresql" else f"{kind}://{path}/data")
        self._file = path / "data"
        self._opener: Callable[[], Store] = (lambda: MemoryStore(self.disk)) if kind == "memory" else store_opener(self.url)
        self._opened: list[Store] = []

    def open(self) -> Store:
        self._opened.append(self._opener())
        return self._opened[-1]

    def reopen(self) -> Store:
        """Open it once more; the openings before this one are closed first, as a service does."""
        self.close()
        return self.open()

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def fail_write(self, store: Store, batch: Batch) -> None:
        """Try to write ``batch`` and fail."""
        behind = Batch()
        if self.kind == "memory":
            self.disk.before_sync = refuse
        elif self.kind == "postgresql":
            behind.put(M, os.urandom(10_000), b"longer than an index takes")
        else:
            behind.put(M, b"no bytes", None)  # type: ignore[arg-type]
        with pytest.raises(StoreError):
            store.write([batch, behind])
        self.disk.before_sync = None

    # --- beside the store, on SQL

    def connect(self) -> psycopg.Connection:
        """A session of PostgreSQL that sees the same tables."""
        connection = postgres_server().connect()
        connection.execute(f"SET search_path = {self.url.rpartition('%3D')[2]}")
        return connection

    def execute(self, statement: str, *values: tuple[object, ...]) -> int:
        """Run a statement for each of the values; how many rows it changed. Its parameters are question marks."""
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self._file)) as file, file:
                file.execute("PRAGMA writable_schema = ON")
                return file.executemany(statement, values).rowcount
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), values)
            return cursor.rowcount

    def lease(self, *fences: Fence, instance: str | None = "me") -> None:
        """Make valid leases; without an instance, leases that nobody has."""
        rows = [(fence.resource, fence.epoch, instance) for fence in fences]
        self.execute("INSERT INTO oncelog_lease VALUES (?, ?, ?)", *rows)

    def hide(self, table: Table, key: bytes) -> None:
        """Have the database's index lose a row."""
        assert self.execute("DELETE FROM oncelog_row WHERE key = ?", (table.value + key,)) == 1


def refuse(_: object) -> None:
    """For :attr:`Disk.before_sync`."""
    raise OSError("no space left on device")


@contextmanager
def place_of(kind: str, path: Path) -> Iterator[Place]:
    with closing(Place(kind, path)) as place:
        yield place


# --- rows


def put(*rows: tuple[Table, bytes, bytes], fence: Fence | None = None) -> Batch:
    batch = Batch(fence)
    for row in rows:
        batch.put(*row)
    return batch


def run(*rows: tuple[bytes, bytes], fence: Fence | None = None) -> Batch:
    """Rows of messages, which are new as a rule."""
    batch = put(fence=fence)
    batch.put_rows(M, b"", rows)
    return batch


def write(store: Store, table: Table, *keys: bytes, value: bytes = b"value") -> None:
    store.write([put(*((table, key, value) for key in keys))])


def delete(store: Store, table: Table, *keys: bytes) -> None:
    batch = Batch()
    for key in keys:
        batch.delete(table, key)
    store.write([batch])


def keys_of(store: Store, table: Table = M) -> list[bytes]:
    return [key for key, _ in store.scan(table, b"", END)]


def everything(store: Store) -> list[tuple[Table, bytes, bytes]]:
    return [(table, key, value) for table in Table for key, value in store.scan(table, b"", END)]


# --- files


def opened(kind: str, path: Path) -> Store:
    """A store in files in this directory: LevelDB's is the directory itself, SQLite's a file in it."""
    return store_opener(f"{kind}://{path}" if kind == "leveldb" else f"{kind}://{path}/data")()


def files_of(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name not in NOT_ITS_OWN}


def log_of(path: Path) -> Path:
    """LevelDB's newest log."""
    return max(path.glob("*.log"))


def check_refused(kind: str, path: Path, match: str | None = None) -> None:
    """The store there is damaged, and an attempt to open it changes nothing."""
    before = files_of(path)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=match):
            opened(kind, path)
        assert files_of(path) == before


class Hasty:
    """LevelDB which looks where tables are just before it has laid down any: that once it merges none of them."""

    def __init__(self, db: Any) -> None:
        self._db, self._looked = db, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def compact_range(self, start: bytes, stop: bytes) -> None:
        if not self._looked:
            start, stop = END, END
        self._looked = True
        self._db.compact_range(start=start, stop=stop)
