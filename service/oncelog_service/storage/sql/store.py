"""The store on a SQL database, through SQLAlchemy Core: SQLite for one process, PostgreSQL for more than one machine.

What both have in common. All rows lie in one table, sorted by key (tables.py); a group of batches becomes one set of changes,
the last change of a key counting; a scan is read page by page. What differs is in sqlite.py and postgresql.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, Protocol

from sqlalchemy import Engine, bindparam, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from oncelog.sql.table import create_missing
from oncelog_service.storage.port import (
    Batch,
    Fence,
    LeaseTable,
    Rows,
    Staged,
    StoreBehind,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFenced,
    Table,
)
from oncelog_service.storage.reads import RunningReads
from oncelog_service.storage.sql.ends import decode_end, encode_end, end_key, ends_between, log_of, log_of_range, newest_of
from oncelog_service.storage.sql.leases import SqlLeaseTable
from oncelog_service.storage.sql.tables import METADATA, ROW
from oncelog_service.storage.sql.written import Written

PAGES = ((32, 2**16), (512, 2**19), (8_192, 2**22))
"""Pages of a scan: so many rows, but none behind the one that reaches so many bytes. The last repeats, most want few."""

_VALUE = select(ROW.c.value).where(ROW.c.key == bindparam("key"))


_NONE: Mapping[bytes, bytes] = MappingProxyType({})


class Changes(NamedTuple):
    """Holds the changes that a group of batches comes to. No key is in two of them."""

    runs: dict[bytes, bytes]
    """Rows of runs: messages, as a rule, whose keys are new."""
    puts: dict[bytes, bytes]
    deletes: set[bytes]
    fences: frozenset[Fence]
    ends: Mapping[bytes, bytes] = _NONE
    """Rows that say where logs end (ends.py). They only rise: of a greater value that is there already, it stays."""


class Database(Protocol):
    """Does what differs between databases. Its methods raise what SQLAlchemy and the driver raise."""

    where: str
    """For people; without a password."""
    engine: Engine
    """Every connection of it is in autocommit."""
    shared: bool
    """Whether several processes may use it at the same time."""
    number: int
    """Of the newest write, where writes are counted; 0: they are not."""
    written: Written
    """By this process."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The errors that the driver raises, where SQLAlchemy does not stand between."""
        ...

    def check(self, writer: Connection) -> None:
        """Refuses a database that would lose what it has confirmed, or cannot be written. Raises StoreError, StoreDamaged."""
        ...

    def ready(self, writer: Connection) -> None:
        """Checks that the rows are there, once the tables are. Raises StoreDamaged."""
        ...

    def write(self, writer: Connection, changes: Changes) -> frozenset[Fence]:
        """Makes the changes in one synced transaction, unless some fences are not valid: then it returns those."""
        ...

    def pages(self, start: bytes, stop: bytes, reverse: bool) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """Yields the rows with start <= key < stop as of the first step, in pages as PAGES says.

        Lets go of its connection when the last page is read, and on close().
        """
        ...

    def scrub(self) -> None:
        """Takes away what is left of earlier values of rows. Raises StoreError: it could not."""
        ...

    def staged(self, least_free: int = 0) -> AbstractContextManager[Staged] | None:
        """Does what Store.staged does; None: the database has tools of its own."""

    def look(self) -> None:
        """Does what Store.look does."""
        ...

    def free_bytes(self) -> int | None:
        """Returns how many bytes can still be written, as far as the disk goes; None: that cannot be seen from here."""
        ...

    def size_bytes(self) -> int:
        """Returns how many bytes the store takes on the disk of the database."""
        ...

    def damaged(self, error: BaseException) -> bool:
        """Tells whether the driver's error says that what is stored is damaged."""
        ...

    def close(self) -> None:
        """Closes all connections, and releases the lock if there is one."""
        ...


class SqlStore:
    """Keeps its rows in a SQL database. See :class:`~oncelog_service.storage.port.Store`."""

    def __init__(self, database: Database) -> None:
        """Opens it, and creates tables that are missing. Raises StoreError (in use, out of reach, unsafe) or StoreDamaged."""
        self._database = database
        self._failed = False
        self._reads = RunningReads()
        self._writer: Connection | None = None
        try:
            with self._telling("cannot be opened"):
                self._writer = database.engine.connect()
                database.check(self._writer)
                create_missing(METADATA, database.engine)
                database.ready(self._writer)
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int:
        """The number of the newest write to a database that counts them."""
        return self._database.number

    def get(self, table: Table, key: bytes) -> bytes | None:
        with self._reading():
            return self._value(table.value + key)

    def _value(self, key: bytes) -> bytes | None:
        with self._database.engine.connect() as connection:
            row = connection.execute(_VALUE, {"key": key}).one_or_none()
        if row is None:
            return None
        value = row[0]
        if type(value) is not bytes:  # a NULL is a row that is there
            raise no_bytes(self._database.where, key)
        return value

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        start, stop = table.value + start, table.value + stop
        with self._reading():
            ends = self._ends(start, stop)
            last = max(ends, default=b"") if reverse else b""
            with closing(self._database.pages(start, stop, reverse)) as pages:  # type: ignore[type-var]
                for page in pages:
                    for key, value in page:
                        if key < last:
                            self._check_end(last)
                        last = b""
                        if ends:
                            ends.discard(key)
                        yield key[1:], value
                        if self._failed:  # else a scan that goes on would hold up the closing of the store, which waits for it
                            raise StoreClosed(f"{self._database.where} is closed")
            for end in ends:
                self._check_end(end)

    def _ends(self, start: bytes, stop: bytes) -> set[bytes]:
        """Returns the last keys of logs that lie in this range: a scan of it comes by them."""
        log, range_ = log_of_range(start, stop), ends_between(start, stop)
        if range_ is None or start >= stop:
            return set()
        if log is not None:
            end = self._end_of(log)
            ends = set() if end is None else {end}
        else:
            ends = {decode_end(*row) for page in self._database.pages(*range_, False) for row in page}
        return {end for end in ends if start <= end < stop}

    def _end_of(self, log: bytes) -> bytes | None:
        key = end_key(log)
        data = self._value(key)
        return None if data is None else decode_end(key, data)

    def _check_end(self, end: bytes) -> None:
        """Looks again where a scan has not come by the last row of a log. Raises StoreDamaged if it still is the last one."""
        log = log_of(end)
        assert log is not None
        if self._end_of(log) == end:
            raise StoreDamaged(f"{self._database.where}: the rows from {log!r} on end before the last one, {end!r}")

    def write(self, batches: Sequence[Batch]) -> None:
        if self._failed or self._writer is None:
            raise StoreClosed(f"{self._database.where} is closed")
        try:
            changes = changes_of(batches)
            lost = frozenset[Fence]()
            if any(changes):
                with self._telling("could not be written"):
                    changes = self._with_ends(changes)
                    lost = self._database.write(self._writer, changes)
        except StoreError:
            self._failed = True
            raise
        except Exception as error:
            self._failed = True
            raise StoreError(f"{self._database.where} could not be written: {error}") from error
        if lost:
            raise StoreFenced(lost)

    def _with_ends(self, changes: Changes) -> Changes:
        """Adds to the changes where logs end then. A log whose last row is deleted has no end but one yet to come."""
        newest = newest_of(chain(changes.runs, changes.puts))
        deletes = set(changes.deletes)
        for log in newest_of(changes.deletes):
            end = self._end_of(log)
            if end is not None and end in changes.deletes and newest.get(log, b"") < end:
                newest.pop(log, None)
                deletes.add(end_key(log))
        ends = {end_key(log): encode_end(log, key) for log, key in newest.items()}
        return changes._replace(deletes=deletes, ends=ends)

    def write_at_once(self, batches: Sequence[Batch]) -> bool:
        return False

    def behind(self) -> float:
        return 0.0

    def scrub(self, table: Table, key: bytes, *, written: bool) -> None:
        with self._reading():
            if written:
                self._database.scrub()

    def staged(self, least_free: int = 0) -> AbstractContextManager[Staged] | None:
        return self._database.staged(least_free)

    def look(self) -> None:
        with self._reading():
            self._database.look()

    def size_bytes(self) -> int:
        with self._reading():
            return self._database.size_bytes()

    def free_bytes(self) -> int | None:
        with self._reading():
            return self._database.free_bytes()

    def reclaim(self, thorough: bool, only_much: bool = False) -> None:
        pass  # what deleted rows took is written to again, and counted as free

    def lease_table(self) -> LeaseTable | None:
        return self._leases() if self._database.shared else None

    def _leases(self) -> SqlLeaseTable:
        # Its transactions are of several statements, and see what was committed while they waited for a row.
        engine = self._database.engine.execution_options(isolation_level="READ COMMITTED")
        return SqlLeaseTable(engine, self._database.written)

    def check_written(self) -> None:
        if not self._database.shared:
            return
        try:
            with self._reading():
                self._database.written.check(self._value)
        except StoreBehind:
            # Looked at again as it is written down: the store may have been renewed in between, while this process was stopped.
            self._leases().end_all_if_behind()

    def close(self) -> None:
        self._failed = True
        self._reads.close()
        if self._writer is not None:
            self._writer.invalidate()  # not back into the pool: what it began may never have ended
            self._writer.close()
            self._writer = None
        self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if self._failed:
            raise StoreClosed(f"{self._database.where} is closed")
        with self._reads, self._telling("cannot be read"):
            yield

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Turns errors of SQLAlchemy and the driver into the port's, without their statements and parameters."""
        known: tuple[type[Exception], ...] = (SQLAlchemyError, *self._database.errors)
        try:
            yield
        except known as error:
            cause = getattr(error, "orig", None) or error
            if self._database.damaged(cause):
                raise StoreDamaged(f"{self._database.where}: {cause}") from error
            raise StoreError(f"{self._database.where} {what}: {' '.join(str(cause).split())}") from error


def no_bytes(where: str, key: object) -> StoreDamaged:
    """Makes the error for a row whose value is no bytes: SQLite keeps the type beside each value, where a bit may flip."""
    return StoreDamaged(f"{where}: the row {key!r} is damaged: its value is no bytes")


def changes_of(batches: Sequence[Batch]) -> Changes:
    """Computes what the batches come to, applied in their order: runs, puts and deletes of each."""
    runs: dict[bytes, bytes] = {}
    puts: dict[bytes, bytes] = {}
    deletes: set[bytes] = set()
    fences: set[Fence] = set()
    for batch in batches:
        fences |= batch.fences
        for laid in batch.laid:
            start = laid.table.value + laid.prefix
            rows = {start + end: value for end, value in laid.rows()}
            runs.update(rows)
            deletes.difference_update(rows)
            for key in rows.keys() & puts.keys():
                del puts[key]
        for table, key, value in batch.puts:
            key = table.value + key
            (runs if key in runs else puts)[key] = value
            deletes.discard(key)
        for table, key in batch.deletes:
            key = table.value + key
            runs.pop(key, None)
            puts.pop(key, None)
            deletes.add(key)
    return Changes(runs, puts, deletes, frozenset(fences))
