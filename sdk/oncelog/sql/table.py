"""Tables of ours in a database, created when first needed. In the caller's they are found through what the caller works with.

With :mod:`oncelog.sql.checkpoint`, :mod:`oncelog.sql.participant` and the outbox the part of the SDK that needs SQLAlchemy (the
extra ``sql``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, Inspector, MetaData, Table, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.schema import CreateTable

from oncelog.process.clock import REAL
from oncelog.wire.names import no_text

Working = Session | scoped_session[Session] | Connection
"""What the caller works with: its current transaction is what everything here is done in."""
NAME_LIMIT = 249
"""The contract's limit for names of topics and producers; three of them in UTF-8 still fit MySQL's 3072 bytes of key."""

_LEGACY = -1
"""What SQLite's driver calls its way before Python 3.12, in which ``isolation_level`` says who begins."""


def check_name(what: str, name: str) -> None:
    """Raises TypeError for what is no text, ValueError for a name that no column takes."""
    if not isinstance(name, str):
        raise no_text(name, what)
    if not 1 <= len(name) <= NAME_LIMIT:
        raise ValueError(f"{what} has 1 to {NAME_LIMIT} characters, not {len(name)}")


def now_ms() -> int:
    """The time by the wall clock, in ms."""
    return int(REAL.time() * 1000)


def in_autocommit(connection: Connection) -> bool:
    """Whether each statement commits by itself. That is asked of the driver, whoever has set it there, and however."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    driver: Any = connection.connection.dbapi_connection
    setting = getattr(driver, "autocommit", None)
    if callable(setting):  # of MySQL's drivers: this one sets it, and another one tells
        setting = driver.get_autocommit() if hasattr(driver, "get_autocommit") else None
    if setting not in (None, _LEGACY):
        return bool(setting)
    return connection.dialect.name == "sqlite" and not _begins(connection)


def _begins(connection: Connection) -> bool:
    """Whether anybody begins a transaction in SQLite: its driver, before it writes, or, where that is told to leave it to others
    (``isolation_level=None``), one who does so when SQLAlchemy begins, as in its recipe for savepoints."""
    driver: Any = connection.connection.driver_connection
    if getattr(driver, "isolation_level", "") is not None:
        return True
    if not driver.in_transaction:
        connection.execute(text("SELECT 1"))  # with which SQLAlchemy begins, unless it has begun
    return bool(driver.in_transaction)  # SQLite's own word


class UnfitEngine(ValueError):
    """An engine, or a connection of it, that what is asked for cannot be done with."""


def no_transaction(what: str) -> UnfitEngine:
    """Makes the error for ``what`` works in AUTOCOMMIT."""
    return UnfitEngine(
        f"{what} is in AUTOCOMMIT: there is no transaction to share, and what was done would stay when the rest fails; take an "
        "engine that begins transactions, without isolation_level='AUTOCOMMIT' and without its driver's autocommit"
    )


def create_missing(tables: MetaData, engine: Engine) -> None:
    """Creates the tables that are missing; other processes may do the same at the same time. Raises SQLAlchemyError."""
    for table in tables.sorted_tables:
        with _unless_created(table, engine):
            table.create(engine, checkfirst=True)


@contextmanager
def _unless_created(table: Table, where: Engine | Connection) -> Iterator[None]:
    """Lets creating a table fail if it is there then: another process was faster. The error differs; PostgreSQL has two."""
    try:
        yield
    except DBAPIError:
        if not inspect(where).has_table(table.name):
            raise


class TableOnDemand:
    """A table that is created when it is first needed, and the engines that are known to have it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._engines_with_table: WeakSet[Engine] = WeakSet()

    def connection(self, session: Working) -> Connection:
        """The connection whose transaction the effects are in, with the table there. Raises TypeError; ValueError: AUTOCOMMIT, or
        another table of that name."""
        if isinstance(session, Session | scoped_session):
            connection = session.connection(bind_arguments={"clause": self.table})
        elif isinstance(session, Connection):
            connection = session
        else:
            kind = type(session)
            given = f"a {kind.__name__} of {kind.__module__}"
            raise TypeError(f"what is needed is SQLAlchemy's Session or Connection of the effects, not {given}")
        if in_autocommit(connection):
            raise no_transaction("the connection")
        if connection.engine not in self._engines_with_table:
            self._ensure_table(connection)
        return connection

    def _ensure_table(self, connection: Connection) -> None:
        """Creates the table unless it is there; remembers that it is, once that cannot be rolled back any more."""
        created_in = f"oncelog created {self.table.name}"
        inspector = inspect(connection)
        if not inspector.has_table(self.table.name):
            self._create_table(connection)
            # In the connection's info, not in this object: others that share the transaction see the table too and must not
            # take it for granted either.
            connection.info[created_in] = connection.get_transaction()
            return
        self._check_columns(inspector)
        if connection.info.get(created_in) is not connection.get_transaction():
            connection.info.pop(created_in, None)
            self._engines_with_table.add(connection.engine)

    def _check_columns(self, inspector: Inspector) -> None:
        """Raises ValueError for a table of this name that is another one: made by an older version, or by something else."""
        missing = {column.name for column in self.table.columns} - {
            each["name"] for each in inspector.get_columns(self.table.name)
        }
        key = set(inspector.get_pk_constraint(self.table.name)["constrained_columns"])
        expected = {column.name for column in self.table.primary_key.columns}
        if missing or key != expected:
            raise ValueError(
                f"the table {self.table.name} is not the one that is needed here: its primary key is ({', '.join(sorted(key))}), "
                f"not ({', '.join(sorted(expected))}); columns that it lacks: {', '.join(sorted(missing)) or 'none'}. An older "
                "version made it, or something else: use another name, or drop it when nothing needs it any more"
            )

    def _create_table(self, connection: Connection) -> None:
        """Creates the table in the caller's transaction."""
        # A second connection would wait for the first one's locks; with SQLite in memory it would be the first one.
        if connection.dialect.name == "sqlite":
            # No savepoint here: with Python's default transaction handling, releasing an outermost one commits.
            connection.execute(CreateTable(self.table, if_not_exists=True))
            return
        with _unless_created(self.table, connection), connection.begin_nested():
            self.table.create(connection, checkfirst=False)
