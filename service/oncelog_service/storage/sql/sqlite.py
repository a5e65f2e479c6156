"""SQLite under the SQL store: one file, one process.

WAL and ``synchronous=FULL``: through SQLAlchemy's defaults the last acknowledged commit was lost at a power cut, with both
none was. A lock on a file beside the database keeps a second process out: SQLite would let it in, and both would serve the
same topics.

Beside it lies a third file, which knows how far the database has come (files/end_file.py): one that is behind it, whose
write-ahead log was lost or damaged, is not opened. It is looked at through a connection that only reads, before any that may
write. The number of writes counts on from what this process knows, or nothing is written: so of two that write, since the lock
file was deleted, never both go on.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from glob import escape
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, bindparam, create_engine, event, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from oncelog.process.clock import REAL
from oncelog_service.storage.files.directory import (
    check_room,
    check_same,
    free_bytes,
    locked,
    look,
    make_directory,
    make_file,
    size_bytes,
    sync_file,
    sync_with_name,
    unlock,
)
from oncelog_service.storage.files.end_file import (
    ROW_KEY,
    EndFile,
    Making,
    beside,
    check_may_be_new,
    check_number,
    check_there,
    decode_number,
    encode_number,
    read_end,
)
from oncelog_service.storage.port import Fence, Staged, StagedFile, StoreDamaged, StoreError
from oncelog_service.storage.sql.sqlite_keys import KEYS_KEY, Keys, counted, counted_ranges
from oncelog_service.storage.sql.store import PAGES, Changes, no_bytes
from oncelog_service.storage.sql.tables import LEASE, ROW
from oncelog_service.storage.sql.written import Written

_RAISE = "INSERT INTO oncelog_row (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)"
_GET = "SELECT value FROM oncelog_row WHERE key = ?"
_KEYS = "SELECT key FROM oncelog_row WHERE key >= ? AND key < ? ORDER BY key"
_PRESENT = "SELECT key FROM oncelog_row WHERE key IN ({})"
_AT_ONCE = 500
"""Keys in one question."""
_KEYS_AT_ONCE = 10_000
"""Keys that are looked at together when a database is opened."""
_KNOWN = 20_000
"""Keys that are remembered as present: those that every write puts anew."""
_PUT = "INSERT INTO oncelog_row (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_COUNT_ON = "UPDATE oncelog_row SET value = ? WHERE key = ? AND value = ?"
_DELETE = "DELETE FROM oncelog_row WHERE key = ?"
_STANDING = select(LEASE.c.resource, LEASE.c.epoch).where(LEASE.c.instance.is_not(None))
_RANGE = select(ROW.c.key, ROW.c.value).where(ROW.c.key >= bindparam("start"), ROW.c.key < bindparam("stop"))
_ROWS = {False: _RANGE.order_by(ROW.c.key), True: _RANGE.order_by(ROW.c.key.desc())}
_BUSY_SECONDS = 30
"""How long a write waits for a tool that copies the file."""
_HELD_UP_MS = 200
"""How long writers are held up at once while the write-ahead log is to be emptied."""
SQLITE_NAME = "database"
"""Of the one file of a backup."""
_COPY = ".oncelog-backup-"
"""Begins, behind the database's name, the name of a directory beside it, which holds a copy while a backup is taken."""
_MAGIC = b"SQLite format 3\x00"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteDatabase:
    """Is a file of SQLite. See :class:`~oncelog_service.storage.sql.store.Database`."""

    errors = (sqlite3.Error, OSError)  # the file beside the database is written without SQLite
    shared = False

    def __init__(self, path: Path, reached: int = 0) -> None:
        """Locks ``path``, and makes its directory if missing, unless this process has had a store there that came to ``reached``.

        Raises StoreError: in use, gone, or no file can be there; StoreDamaged.
        """
        self.where = str(path)
        self._path = Path(os.path.realpath(path))  # SQLite follows a link, and keeps the write-ahead log where it leads to
        self._making = Making(self._path)
        self.number, self._keys, self._known = 0, Keys(), set[bytes]()
        self.written = Written()  # its own number does
        self._end: EndFile | None = None
        self._lock: int | None = None
        try:
            self._lock = _lock(self._path, reached)
            for left in self._path.parent.glob(escape(self._path.name + _COPY) + "*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            self._new = self._is_new()
            if self._new:
                check_may_be_new(self._path, reached)
                self._making.begin()
                make_file(self._path)  # SQLite's own would be as the umask says; what it makes beside it is as this is
            else:
                _look(self._path, reached)
        except OSError as error:
            self.close()
            raise StoreError(f"{path} cannot be opened: {error}") from error
        except BaseException:
            self.close()
            raise
        self.engine = create_engine(
            URL.create("sqlite", database=f"file:{quote(str(self._path))}", query={"uri": "true", "mode": "rw"}),  # makes none
            isolation_level="AUTOCOMMIT",
            max_overflow=-1,
            hide_parameters=True,
            connect_args={"timeout": _BUSY_SECONDS},
        )
        event.listen(self.engine, "connect", _set_up)

    def _is_new(self) -> bool:
        if self._making.has_begun:
            return self._making.is_broken_off
        return not any(each.exists() for each in (self._path, _wal(self._path), beside(self._path)))

    def check(self, writer: Connection) -> None:
        mode = writer.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
        synchronous = writer.exec_driver_sql("PRAGMA synchronous").scalar_one()
        if mode != "wal" or synchronous != 2:
            raise StoreError(
                f"{self.where}: SQLite keeps no write-ahead log there (journal_mode {mode}, synchronous {synchronous})"
            )
        sync_with_name(self._path.parent)

    def ready(self, writer: Connection) -> None:
        row = writer.exec_driver_sql(_GET, (ROW_KEY,)).scalar()
        if self._new and row is None:
            writer.exec_driver_sql("BEGIN IMMEDIATE")
            self.number = 1
            writer.exec_driver_sql(_PUT, [(ROW_KEY, encode_number(1)), (KEYS_KEY, Keys().to_bytes())])
            writer.exec_driver_sql("COMMIT")
        else:
            self.number = _number(row, self.where)
        self._check_keys(writer)
        self._sync_log(writer)
        self._end = EndFile(beside(self._path), self.number)
        self._file = os.stat(self._path)
        self._making.end()
        self._new = False

    def _sync_log(self, writer: Connection) -> None:
        """Makes durable what a process that was killed has left in the write-ahead log, or could not sync there.

        What was not synced when it should have been may count as clean since then (Linux), so it is written anew, into the
        database. That takes room; where there is none it must do that the log is synced.

        It waits for no reader: a tool may read for hours. It keeps back only what is newer than what it sees; and while it reads,
        SQLite's index of the log lives on, into which a commit comes once it is synced.
        """
        log = _wal(self._path)
        if log.exists():
            sync_file(log, os.O_RDONLY)
        writer.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            writer.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").all()
        except OperationalError as error:
            if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_FULL:
                raise
        writer.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1_000}")

    def _check_keys(self, writer: Connection) -> None:
        row = writer.exec_driver_sql(_GET, (KEYS_KEY,)).scalar()
        kept = Keys.from_bytes(row) if isinstance(row, bytes) else None
        found, before = Keys(), b""
        for range_ in counted_ranges():
            for some in writer.exec_driver_sql(_KEYS, range_).partitions(_KEYS_AT_ONCE):  # outcomes alone may be millions
                keys = [key for (key,) in some if counted(key)]
                if any(one >= other for one, other in pairwise([before, *keys])):
                    raise StoreDamaged(f"{self.where}: rows are not in the order of their keys")
                found, before = found.changed(keys), keys[-1] if keys else before
        if kept is None or found != kept:
            known = "that row is damaged" if kept is None else f"{kept.rows} there should be"
            raise StoreDamaged(f"{self.where}: {found.rows} rows that are of no log are found, {known}, or their keys differ")
        self._keys = kept

    def write(self, writer: Connection, changes: Changes) -> frozenset[Fence]:
        writer.exec_driver_sql("BEGIN IMMEDIATE")
        number = self.number + 1
        # In the transaction of the rows: a look before it would let a second writer in between.
        ours = (encode_number(number), ROW_KEY, encode_number(self.number))
        if writer.exec_driver_sql(_COUNT_ON, ours).rowcount != 1:
            writer.exec_driver_sql("ROLLBACK")
            raise StoreError(f"{self.where}: another process has written to it")
        if changes.fences:
            standing = {Fence(*row) for row in writer.execute(_STANDING)}
            if lost := changes.fences - standing:
                writer.exec_driver_sql("ROLLBACK")
                return lost
        keys = self._keys_after(writer, changes)
        if changes.deletes:
            writer.exec_driver_sql(_DELETE, [(key,) for key in changes.deletes])
        for rows in (changes.runs, changes.puts):
            if rows:
                writer.exec_driver_sql(_PUT, list(rows.items()))
        if changes.ends:
            writer.exec_driver_sql(_RAISE, list(changes.ends.items()))
        if keys != self._keys:
            writer.exec_driver_sql(_PUT, (KEYS_KEY, keys.to_bytes()))
        writer.exec_driver_sql("COMMIT")
        assert self._end is not None
        self.number, self._keys = number, keys
        self._end.note(number)
        check_same(self._path, self._file)
        return frozenset()

    def _keys_after(self, writer: Connection, changes: Changes) -> Keys:
        """Computes what is to be known of the keys once the changes are made, which they are not yet."""
        put = [key for key in chain(changes.runs, changes.puts, changes.ends) if counted(key) and key not in self._known]
        gone = [key for key in changes.deletes if counted(key)]
        if not put and not gone:
            return self._keys
        present = set[bytes]()
        both = put + gone
        for at in range(0, len(both), _AT_ONCE):
            some = both[at : at + _AT_ONCE]
            present.update(key for (key,) in writer.exec_driver_sql(_PRESENT.format(",".join("?" * len(some))), tuple(some)))
        keys = self._keys.changed(set(put) - present, present.intersection(gone))
        if len(self._known) > _KNOWN:
            self._known.clear()
        self._known.update(put)
        self._known.difference_update(gone)
        return keys

    def pages(self, start: bytes, stop: bytes, reverse: bool) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        # One SELECT sees one state of the database for as long as it runs.
        page: list[tuple[bytes, bytes]] = []
        size, limits = 0, chain(PAGES, repeat(PAGES[-1]))
        most, largest = next(limits)
        with self.engine.connect() as connection:
            result = connection.execute(_ROWS[reverse], {"start": start, "stop": stop})
            with closing(result.cursor) as cursor:
                for row in cursor:  # type: ignore[attr-defined]
                    if type(row[1]) is not bytes:
                        raise no_bytes(self.where, row[0])
                    page.append(row)
                    size += len(row[1])
                    if len(page) == most or size >= largest:
                        yield page
                        page, size = [], 0
                        most, largest = next(limits)
        yield page

    def scrub(self) -> None:
        """Empties the write-ahead log into the database, where SQLite puts zeros over what is replaced or deleted (_set_up).

        It waits for readers with the writers held up, so only for a moment, again and again.
        """
        end = REAL.monotonic() + _BUSY_SECONDS
        with self.engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {_HELD_UP_MS}")
            try:
                while connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]:
                    if REAL.monotonic() > end:
                        raise StoreError(f"{self.where}: a long read keeps the write-ahead log as it is; try again later")
                    time.sleep(_HELD_UP_MS / 1000)
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1_000}")

    @contextmanager
    def staged(self, least_free: int = 0) -> Iterator[Staged]:
        # One step of SQLite's own backup is one state of the database; the writer goes on, into the write-ahead log.
        log = _wal(self._path)  # the newest of the database lies in it alone
        size = self._path.stat().st_size + (log.stat().st_size if log.exists() else 0)
        check_room(self._path.parent, size, least_free)
        with tempfile.TemporaryDirectory(prefix=self._path.name + _COPY, dir=self._path.parent) as name:
            copy = Path(name) / SQLITE_NAME
            try:
                with (
                    closing(sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro", uri=True)) as source,
                    closing(sqlite3.connect(copy, isolation_level=None)) as target,
                ):
                    source.backup(target)
                    row = target.execute(_GET, (ROW_KEY,)).fetchone()
                    target.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.DatabaseError as error:
                raise StoreError(f"{self.where} cannot be copied: {error}") from error
            number = _number(None if row is None else row[0], self.where)
            yield Staged("sqlite", number, [StagedFile(SQLITE_NAME, copy, copy.stat().st_size, False)])

    def look(self) -> None:
        look(beside(self._path))  # to close the database's own file would end the locks that SQLite has on it

    def free_bytes(self) -> int:
        check_same(self._path, self._file)
        with self.engine.connect() as connection:
            unused, size = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("freelist_count", "page_size"))
        # Pages that rows have left are written to again; the file does not shrink.
        return free_bytes(self._path.parent) + int(unused) * int(size)

    def size_bytes(self) -> int:
        return size_bytes(self._path.with_name(self._path.name + end) for end in ("", "-wal", "-shm"))

    def damaged(self, error: BaseException) -> bool:
        # The low byte is the primary code.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED

    def close(self) -> None:
        engine = getattr(self, "engine", None)
        if engine is not None:
            engine.dispose()
        if self._end is not None:
            self._end.close()
        if self._lock is not None:
            unlock(self._lock)
            self._lock = None


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _look(path: Path, reached: int) -> None:
    """Checks, changing nothing, that all of what was acknowledged can be there. Raises StoreDamaged, StoreError, OSError."""
    try:
        known = max(reached, read_end(beside(path)))
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
        if head != _MAGIC:  # of an empty file SQLite would delete the write-ahead log
            raise StoreDamaged(f"{path} does not begin as a database of SQLite does")
        # Without a write-ahead log there SQLite would make an empty one.
        only = "mode=ro" if _wal(path).exists() else "mode=ro&immutable=1"
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{only}", uri=True, timeout=_BUSY_SECONDS)) as reader:
            row = reader.execute(_GET, (ROW_KEY,)).fetchone()
    except FileNotFoundError as error:
        raise StoreDamaged(f"{path} is gone, and what lies beside it says that there was a database") from error
    except sqlite3.OperationalError as error:
        if "no such table" in str(error) or "malformed" in str(error):
            raise StoreDamaged(f"{path}: {error}") from error
        raise StoreError(f"{path} cannot be opened: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(f"{path}: {error}") from error
    check_number(_number(None if row is None else row[0], str(path)), known, path, beside(path).name)


def _number(data: object, where: str) -> int:
    number = decode_number(data) if isinstance(data, bytes) else None
    if number is None:
        raise StoreDamaged(f"{where}: the row that says how far the store has come is gone or damaged")
    return number


def _set_up(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # of macOS, where a sync is none without it; so is that of a checkpoint
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute("PRAGMA cell_size_check = ON")
    # What is replaced or deleted is overwritten with zeros, also where it lay before it was moved to another page. Without it 365
    # of 400 rows that had been overwritten were found in the file. It costs appends nothing, and a delete of 30 kB 0.08 ms.
    connection.execute("PRAGMA secure_delete = ON")


def _lock(path: Path, reached: int) -> int:
    """Locks the database until the handle is closed, at the latest until the process ends. Raises StoreError, OSError."""
    check_there(path, reached)
    if not reached:
        make_directory(path.parent)
    return locked(path, path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT)
