"""PostgreSQL under the SQL store: many processes on many machines, each writing what it holds the leases of.

A write is one statement in autocommit, so one round trip: leases checked and locked, rows put, rows deleted. What in it only
PostgreSQL and what speaks its protocol understands is named in docs/decisions/0020-store-on-sql.md.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, repeat
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
from sqlalchemy import Integer, bindparam, create_engine, event, func, make_url, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from oncelog_service.storage.port import Fence, StoreBehind, StoreError
from oncelog_service.storage.sql.store import PAGES, Changes
from oncelog_service.storage.sql.tables import ROW
from oncelog_service.storage.sql.written import Written

_log = logging.getLogger(__name__)

_STATEMENT_BYTES = 32 * 2**20
"""More than this goes in several statements of one transaction: the server holds each whole, more than once."""
_NETWORK = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "oncelog",
    "target_session_attrs": "read-write",
}
"""What of libpq's settings is not in the URL. A server that vanished is noticed after 20 to 25 s. Of several hosts the one is
taken that can be written."""
_POOL = 8
_SYNCHRONOUS = "syncrep.c"
"""Where in PostgreSQL a warning comes from that a commit was not waited for to be where it should be."""

# Read committed: a fence must see what was committed while it waited for the lease. Rows are always wanted in the order of the
# key, and plans made while the table was small are kept, so that no plan may read the whole of it.
_SET_UP = """
SELECT pg_is_in_recovery(), set_config(name, wanted, false) FROM (VALUES
  ('synchronous_commit', CASE WHEN current_setting('synchronous_commit') = 'remote_apply' THEN 'remote_apply' ELSE 'on' END),
  ('default_transaction_isolation', 'read committed'),
  ('statement_timeout', coalesce(nullif(current_setting('statement_timeout'), '0'), '60s')),
  ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('jit', 'off'), ('plan_cache_mode', 'force_generic_plan')
) AS setting (name, wanted) WHERE current_setting(name, true) IS NOT NULL
"""
_SERVER = (
    "SELECT current_setting('fsync', true), current_setting('full_page_writes', true), current_setting('transaction_read_only')"
)
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def _page(reverse: bool) -> Any:
    """Selects a page of a range: so many rows, and none behind the one that reaches so many bytes."""
    order = ROW.c.key.desc() if reverse else ROW.c.key
    before = func.sum(func.length(ROW.c.value)).over(order_by=order, rows=(None, -1))
    rows = (
        select(ROW.c.key, ROW.c.value, before.label("before"))
        .where(ROW.c.key >= bindparam("start"), ROW.c.key < bindparam("stop"))
        .order_by(order)
        .limit(bindparam("most", type_=Integer))
        .subquery("page")
    )
    enough = func.coalesce(rows.c.before, 0) < bindparam("largest", type_=Integer)
    return select(rows.c.key, rows.c.value).where(enough).order_by(rows.c.key.desc() if reverse else rows.c.key)


_ANY = select(ROW.c.key).limit(1)
_PAGE = {reverse: _page(reverse) for reverse in (False, True)}


class PostgresqlDatabase:
    """Is a database of a PostgreSQL server. See :class:`~oncelog_service.storage.sql.store.Database`."""

    errors = (psycopg.Error,)
    shared = True
    number = 0

    def __init__(self, url: str, where: str, written: Written) -> None:
        """``written``: to this database, by this process, over all openings of it."""
        parsed = make_url(url).set(drivername="postgresql+psycopg")
        self.where = where
        self.written = written
        self._warnings: list[str] = []
        self.engine = create_engine(
            parsed,
            isolation_level="AUTOCOMMIT",
            pool_size=_POOL,
            max_overflow=-1,
            hide_parameters=True,
            use_native_hstore=False,
            connect_args={name: value for name, value in _NETWORK.items() if name not in parsed.query},
        )
        event.listen(self.engine, "connect", _set_up)
        event.listen(self.engine, "do_execute", _in_snapshot)

    def check(self, writer: Connection) -> None:
        fsync, full_page_writes, read_only = writer.exec_driver_sql(_SERVER).one()
        for name, setting in (("fsync", fsync), ("full_page_writes", full_page_writes)):
            if setting == "off":
                raise StoreError(
                    f"{self.where} cannot be opened: its server runs with {name} = off and may lose what it has confirmed; "
                    f"set it on there: ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"
                )
        if read_only == "on":
            raise StoreError(f"{self.where} cannot be opened: it is read-only, as a standby is")
        driver: Any = writer.connection.driver_connection
        driver.add_notice_handler(self._noticed)
        # A statement that is prepared is one message. Of one that is not, the server has read the first of three before the
        # values come, and does not call that idle any more: who is stopped then would keep the leases locked for as long.
        driver.prepare_threshold = 0

    def ready(self, writer: Connection) -> None:
        """Its pages have checksums of their own, if its server was set up with them."""

    def write(self, writer: Connection, changes: Changes) -> frozenset[Fence]:
        self._warnings.clear()
        changes = changes._replace(ends={**changes.ends, **self.written.next()})
        newest = self.written.newest
        if _size(changes) > _STATEMENT_BYTES:
            lost = _in_pieces(writer, changes, newest)
        else:
            try:
                lost = _execute(writer, changes, newest)
            except IntegrityError as error:
                if not isinstance(error.orig, psycopg.errors.UniqueViolation):
                    raise
                # A row of a run was there already; all of the statement was undone.
                lost = _execute(writer, _as_puts(changes), newest)
        if lost:
            return lost
        if self._warnings:  # "canceling wait for synchronous replication": committed, but not where it should be by now
            raise StoreError(f"{self.where}: what was written may not be safe: {'; '.join(self._warnings)}")
        self.written.made()
        return frozenset()

    def pages(self, start: bytes, stop: bytes, reverse: bool) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        with self.engine.connect() as connection:
            for most, largest in chain(PAGES, repeat(PAGES[-1])):
                found = connection.execute(
                    _PAGE[reverse],
                    {"start": start, "stop": stop, "most": most, "largest": largest},
                    execution_options={"oncelog_snapshot": (most, largest) == PAGES[0]},
                )
                page = found.cursor.fetchall()
                found.close()
                if len(page) < most and sum(len(value) for _, value in page) < largest:
                    break
                yield page
                if reverse:
                    stop = page[-1][0]
                else:
                    start = page[-1][0] + b"\x00"
        yield page

    def scrub(self) -> None:
        """Has the server take dead rows out of the table, at once. What else it keeps is its own (docs/operating.md)."""
        with self.engine.connect() as connection:
            try:
                connection.exec_driver_sql("SET statement_timeout = 0")
                connection.exec_driver_sql("VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF) oncelog_row")
            finally:
                connection.invalidate()  # its settings are no other's

    def look(self) -> None:
        with self.engine.connect() as connection:
            connection.execute(_ANY).all()

    def staged(self, least_free: int = 0) -> None:
        return None

    def free_bytes(self) -> None:
        return None  # its disk is another machine's

    def size_bytes(self) -> int:
        """Of rows and their index; what else the database keeps, its log above all, is its own."""
        with self.engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT pg_total_relation_size('oncelog_row')").scalar_one())

    def damaged(self, error: BaseException) -> bool:
        # data_corrupted, index_corrupted
        return getattr(error, "sqlstate", None) in ("XX001", "XX002")

    def close(self) -> None:
        self.engine.dispose()

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized != "WARNING":
            return
        if notice.source_file in (_SYNCHRONOUS, None):
            self._warnings.append(notice.message_primary or "")
        else:  # such as that the database wants to be vacuumed, which comes with every write and harms none
            _log.warning("%s: %s", self.where, notice.message_primary)


def _size(changes: Changes) -> int:
    return sum(map(len, changes.runs.values())) + sum(map(len, changes.puts.values()))


def _as_puts(changes: Changes) -> Changes:
    return changes._replace(runs={}, puts={**changes.puts, **changes.runs})


def _in_pieces(writer: Connection, changes: Changes, newest: tuple[bytes, bytes] | None) -> frozenset[Fence]:
    """Makes the changes in one transaction of several statements, as :func:`_execute` does in one."""
    writer.exec_driver_sql("BEGIN")
    # A process that is stopped in between would keep the leases locked, and nobody could take over.
    writer.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '2s'")
    for piece in _pieces(_as_puts(changes)):
        try:
            lost = _execute(writer, piece, newest)
        except StoreBehind:
            writer.exec_driver_sql("ROLLBACK")
            raise
        if lost:
            writer.exec_driver_sql("ROLLBACK")
            return lost
    writer.exec_driver_sql("COMMIT")
    return frozenset()


def _pieces(changes: Changes) -> Iterator[Changes]:
    """Cuts the changes into pieces of a size for one statement; the fences are in the first."""
    rest, puts, size = changes, dict[bytes, bytes](), 0
    for key, value in changes.puts.items():
        puts[key] = value
        size += len(value)
        if size > _STATEMENT_BYTES:
            yield rest._replace(puts=puts)
            rest, puts, size = Changes({}, {}, set(), frozenset()), {}, 0
    if puts:
        yield rest._replace(puts=puts)


def _execute(writer: Connection, changes: Changes, newest: tuple[bytes, bytes] | None) -> frozenset[Fence]:
    """Makes the changes in one statement; returns the fences that are not valid. Raises StoreBehind: the row ``newest``, or a
    later one in its place, is not there, and nothing was written."""
    runs, puts, deletes, fences, ends = changes
    parameters: dict[str, object] = {}
    if fences:
        parameters["resources"] = _Bytes([fence.resource for fence in fences])
        parameters["epochs"] = [fence.epoch for fence in fences]
    if runs:
        parameters["run_keys"], parameters["run_values"] = _Bytes(runs), _Bytes(runs.values())
    if puts:
        parameters["put_keys"], parameters["put_values"] = _Bytes(puts), _Bytes(puts.values())
    if ends:
        parameters["end_keys"], parameters["end_values"] = _Bytes(ends), _Bytes(ends.values())
    if deletes:
        parameters["deletes"] = _Bytes(sorted(deletes))
    if newest is not None:
        parameters["newest_key"], parameters["newest_value"] = newest
    statement = _statement(bool(fences), bool(runs), bool(puts), bool(ends), bool(deletes), newest is not None)
    result = writer.exec_driver_sql(statement, parameters).all()
    if result and not result[0][0]:
        raise StoreBehind("what was written last is not there any more")
    return fences - {Fence(*row[1:]) for row in result} if fences else fences


@cache
def _statement(fences: bool, runs: bool, puts: bool, ends: bool, deletes: bool, newest: bool) -> str:
    """Builds the statement of a write. All parts see one state; the lease rows are locked to the end against a change of hands,
    and one that happened while this waited for a row is seen."""
    there = "EXISTS (SELECT FROM oncelog_row WHERE key = %(newest_key)s AND value >= %(newest_value)s)" if newest else "true"
    standing = f"(SELECT count(*) FROM fence) = cardinality(%(resources)s::bytea[]) AND {there}" if fences else there
    parts = []
    if fences:
        parts.append(
            "fence AS (SELECT lease.resource, lease.epoch FROM oncelog_lease AS lease"
            " JOIN unnest(%(resources)s::bytea[], %(epochs)s::bigint[]) AS wanted (resource, epoch)"
            " ON lease.resource = wanted.resource AND lease.epoch = wanted.epoch"
            " WHERE lease.instance IS NOT NULL ORDER BY lease.resource FOR SHARE OF lease)"
        )
    insert = (
        "{0}_ AS (INSERT INTO oncelog_row (key, value)"
        " SELECT key, value FROM unnest(%({0}_keys)s::bytea[], %({0}_values)s::bytea[]) AS changed (key, value)"
        f" WHERE {standing}"
    )
    if runs:
        # Twice as fast without a word on conflicts; where there is one, the statement is repeated with all rows as puts.
        parts.append(insert.format("run") + ")")
    if puts:
        parts.append(insert.format("put") + " ON CONFLICT (key) DO UPDATE SET value = excluded.value)")
    if ends:
        rising = " ON CONFLICT (key) DO UPDATE SET value = greatest(oncelog_row.value, excluded.value))"
        parts.append(insert.format("end") + rising)
    if deletes:
        parts.append(f"deleted AS (DELETE FROM oncelog_row WHERE key = ANY (%(deletes)s::bytea[]) AND {standing})")
    return f"WITH {', '.join(parts)} SELECT {there}{', resource, epoch FROM fence' if fences else ''}"


class _Bytes:
    """Hands a bytea[] to a statement."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[bytes]) -> None:
        self.items = list(items)


class _BytesDumper(Dumper):
    """Joins PostgreSQL's binary form in one go: psycopg's own looks at each item more than once."""

    format = Format.BINARY
    oid = 1001
    _head = struct.Struct(">iiIii").pack
    _length = struct.Struct(">i").pack

    def dump(self, obj: _Bytes) -> bytes:
        items = obj.items
        lengths = map(self._length, map(len, items))
        return self._head(1, 0, 17, len(items), 1) + b"".join(chain.from_iterable(zip(lengths, items, strict=True)))


def _set_up(connection: Any, _: object) -> None:
    """Sets a new connection up: safe, in autocommit, answering in binary, and not to a standby.

    What a standby says of rows and of leases was true a while ago. Which host of several a name or a URL leads to may change with
    every connection, and after a fail-over does, so each new one is asked.
    """
    connection.autocommit = True
    connection.cursor_factory = _BinaryCursor
    connection.adapters.register_dumper(_Bytes, _BytesDumper)
    if any(is_standby for is_standby, _ in connection.execute(_SET_UP).fetchall()):
        host, port = connection.info.host, connection.info.port
        connection.close()
        raise psycopg.OperationalError(f"the server at {host}:{port} is a standby, which lags behind: nothing is read there")


class _BinaryCursor(psycopg.Cursor[Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.format = Format.BINARY


def _in_snapshot(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    """Begins the transaction of a scan in the same round trip as its first page."""
    if not context.execution_options.get("oncelog_snapshot"):
        return False
    with cursor.connection.pipeline():
        cursor.connection.execute(_BEGIN)
        cursor.execute(statement, parameters)
    return True
