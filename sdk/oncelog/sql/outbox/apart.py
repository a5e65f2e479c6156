"""Finds out whether a thread has a connection of its own in an engine, and to the same database as others have.

Else what works beside others commits and rolls back what these have begun, without an error anywhere, or never finds their rows.
"""

from __future__ import annotations

import sqlite3
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, NoReturn

from sqlalchemy import Engine, PoolProxiedConnection, SingletonThreadPool, StaticPool
from sqlalchemy.exc import SQLAlchemyError

from oncelog.sql.table import UnfitEngine

_SECONDS = 3.0
"""For another thread to get a connection while this one holds one, also on a busy machine: a pool that has it wait longer hands
none out twice. Only one whose connections are all in use takes so long."""


class _Seen(NamedTuple):
    """What a connection shows of itself."""

    driver: object
    has_table: bool


def check_apart(engine: Engine, table: str, create: Callable[[Engine], object]) -> None:
    """Raises ValueError where a thread of its own would be in others' transactions, or in another database than they.

    Where the database is not to be reached nothing is found: who needs it meets that. ``create`` makes ``table``, by which it is
    known whether two connections see the same; that is needed in memory only.
    """
    if isinstance(engine.pool, StaticPool):
        _refuse("has one connection for all threads (StaticPool)", "would commit and roll back what others have begun")
    if engine.dialect.name != "sqlite":
        return
    with suppress(SQLAlchemyError, sqlite3.Error):
        with _taken(engine) as mine:
            in_memory = not _first(mine, "SELECT file FROM pragma_database_list WHERE name = 'main'")
            # Not into a transaction of this thread, which may have the same connection.
            must_see = in_memory and (_has(mine, table) or not getattr(mine.driver_connection, "in_transaction", False))
        if must_see:
            create(engine)  # what is missing
        with _taken(engine) as mine:
            found = _seen_by_another_thread(engine, table, mine.driver_connection)
            if found is not None and found.driver is mine.driver_connection:
                _refuse("gives all threads the same connection", "would commit and roll back what others have begun")
            if found is not None and must_see and not (found.has_table and _has(mine, table)):
                _refuse("has a database of its own for each thread (SQLite in memory)", "would never see a row")


def _refuse(what: str, so: str) -> NoReturn:
    raise UnfitEngine(
        f"this engine {what}: a relay in a thread of its own {so}. Take a database that several connections share, as one in a "
        "file, or call run_once() in the thread that works with this engine"
    )


def _seen_by_another_thread(engine: Engine, table: str, mine: object) -> _Seen | None:
    """What another thread is given while this one holds a connection; None: it has to wait, or is refused."""
    found: list[_Seen] = []
    looking = threading.Lock()
    looking.acquire()

    def look() -> None:
        try:
            with suppress(Exception), engine.connect() as connection:
                driver = connection.connection.driver_connection
                found.append(_Seen(driver, True))
                if driver is not mine:
                    found.append(_Seen(driver, _has(connection.connection, table)))
                    if isinstance(engine.pool, SingletonThreadPool):
                        connection.invalidate()  # no other thread could close what this one leaves in the pool
        finally:
            looking.release()

    # A bare one: to start a threading.Thread waits at a condition, which Ctrl-C may leave locked; this is one call of C, and so
    # is the wait.
    start_new_thread(look, ())
    looking.acquire(timeout=_SECONDS)
    return found[-1] if found else None


@contextmanager
def _taken(engine: Engine) -> Iterator[PoolProxiedConnection]:
    """A connection of the pool in which SQLAlchemy begins nothing."""
    with engine.connect() as connection:
        yield connection.connection


def _has(connection: PoolProxiedConnection, table: str) -> bool:
    return _first(connection, "SELECT count(*) FROM sqlite_master WHERE name = ?", table) == 1


def _first(connection: PoolProxiedConnection, query: str, *values: str) -> object:
    cursor = connection.cursor()
    try:
        cursor.execute(query, values)
        return (cursor.fetchone() or (None,))[0]
    finally:
        cursor.close()
