"""SQLite under the SQL store: one file, one process.

WAL and ``synchronous=FULL``: through SQLAlchemy's defaults the last acknowledged commit was lost at a power cut, with both
none was. A lock on a file beside the database keeps a second process out: SQLite would let it in, and both would serve the same
topics.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from sqlalchemy import URL, bindparam, create_engine, event, select
from sqlalchemy.engine import Connection

from oncelog_service.storage.directory import sync_directory
from oncelog_service.storage.port import Fence, StoreError
from oncelog_service.storage.sql import PAGES, Changes
from oncelog_service.storage.sql_tables import LEASE, ROW

_PUT = "INSERT INTO oncelog_row (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DELETE = "DELETE FROM oncelog_row WHERE key = ?"
_STANDING = select(LEASE.c.resource, LEASE.c.epoch).where(LEASE.c.instance.is_not(None))
_RANGE = select(ROW.c.key, ROW.c.value).where(ROW.c.key >= bindparam("start"), ROW.c.key < bindparam("stop"))
_ROWS = {False: _RANGE.order_by(ROW.c.key), True: _RANGE.order_by(ROW.c.key.desc())}
_BUSY_SECONDS = 30
"""How long a write waits for a tool that copies the file."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteDatabase:
    """A file. See :class:`~oncelog_service.storage.sql.Database`."""

    errors = (sqlite3.Error,)
    shared = False

    def __init__(self, path: Path) -> None:
        """Lock ``path``; its directory is created if missing. Raises StoreError: in use, or no file can be there."""
        self.where = str(path)
        self._path = path.absolute()
        self._lock = _lock(self._path)
        self.engine = create_engine(
            URL.create("sqlite", database=str(self._path)),
            isolation_level="AUTOCOMMIT",
            max_overflow=-1,
            hide_parameters=True,
            connect_args={"timeout": _BUSY_SECONDS},
        )
        event.listen(self.engine, "connect", _set_up)

    def check(self, writer: Connection) -> None:
        mode = writer.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
        synchronous = writer.exec_driver_sql("PRAGMA synchronous").scalar_one()
        if mode != "wal" or synchronous != 2:
            raise StoreError(
                f"{self.where}: SQLite keeps no write-ahead log there (journal_mode {mode}, synchronous {synchronous})"
            )
        sync_directory(self._path.parent)
        sync_directory(self._path.parent.parent)

    def write(self, writer: Connection, changes: Changes) -> frozenset[Fence]:
        writer.exec_driver_sql("BEGIN IMMEDIATE")
        if changes.fences:
            standing = {Fence(*row) for row in writer.execute(_STANDING)}
            if lost := changes.fences - standing:
                writer.exec_driver_sql("ROLLBACK")
                return lost
        if changes.deletes:
            writer.exec_driver_sql(_DELETE, [(key,) for key in changes.deletes])
        for rows in (changes.runs, changes.puts):
            if rows:
                writer.exec_driver_sql(_PUT, list(rows.items()))
        writer.exec_driver_sql("COMMIT")
        return frozenset()

    def pages(self, start: bytes, stop: bytes, reverse: bool) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        # One SELECT sees one state of the database for as long as it runs.
        page: list[tuple[bytes, bytes]] = []
        size, limits = 0, chain(PAGES, repeat(PAGES[-1]))
        most, largest = next(limits)
        with self.engine.connect() as connection:
            result = connection.execute(_ROWS[reverse], {"start": start, "stop": stop})
            with closing(result.cursor) as cursor:
                for row in cursor:  # type: ignore[attr-defined]
                    page.append(row)
                    size += len(row[1])
                    if len(page) == most or size >= largest:
                        yield page
                        page, size = [], 0
                        most, largest = next(limits)
        yield page

    def damaged(self, error: BaseException) -> bool:
        # The low byte is the primary code.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED

    def close(self) -> None:
        self.engine.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _set_up(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cell_size_check = ON")


def _lock(path: Path) -> int | None:
    """A handle that holds the lock until it is closed, and at the latest until the process ends."""
    handle = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if handle is not None:
            os.close(handle)
        if isinstance(error, BlockingIOError):
            raise StoreError(f"{path} is in use by another process") from error
        raise StoreError(f"{path} cannot be opened: {error}") from error
    return handle
