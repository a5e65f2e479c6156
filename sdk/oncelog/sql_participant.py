"""A SQL database as the participant that decides: tables and topics change together or not at all.

The database's own commit is what decides about the transaction (the "logging last resource" of transaction monitors), because it
cannot be undone and takes no part in two-phase commits. In the same commit a *marker* is written, a row with the write pointer.
When the process dies around that commit, the marker tells what to do: whoever recovers tries to write the marker ``aborted``
itself. If it can, the database has not committed and never will, as the primary key is taken; the transaction is aborted. If
``committed`` is there already, the transaction is committed.

It needs SQLAlchemy (the extra ``sql``); ``import oncelog`` does not load it.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Literal, cast

from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, String, Table, delete, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from oncelog import forks
from oncelog.errors import (
    TransactionClosed,
    TransactionFailed,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.retry import pause
from oncelog.sql_table import TableOnDemand
from oncelog.transaction_calls import TransactionCalls
from oncelog.wire.transaction import Transaction

Decision = Literal["committed", "aborted"]

RESOLVE_SECONDS = 10.0
"""How long a commit whose outcome the database did not tell is looked for before the transaction is left in doubt."""
KEPT_MS = 30 * 24 * 3_600_000
"""How long a marker ``aborted`` stays: until no process is alive any more that could still try to commit that transaction."""
_RESOURCE_LIMIT = 249
_MARKERS = 1_000
"""Old markers looked at in one go."""


class SqlParticipant:
    """A database whose commit decides the transaction. The messages of the transaction appear if and only if it commits.

        database = SqlParticipant(engine, resource="shop")
        with client.transaction(database) as tx:
            database.connection.execute(text("UPDATE orders SET paid = true WHERE id = 17"))
            tx.send("payments", b"order 17 is paid")

    With a ``Session``, ``scoped_session`` or ``Connection`` instead of an engine, everything that is done in its current
    transaction is part of it. Do not commit it yourself; the end of the block does.

    **Give each process its own ``resource``**, and make the participant in the process that uses it: in a forked child, one of
    its parent raises :class:`~oncelog.errors.Forked`. Under that name the first transaction of a participant, or
    :meth:`recover`, ends what an earlier process left undecided, in the way the database decided. A transaction of another
    process that is just about to commit under the same name is aborted by that, cleanly: nobody can tell it from one whose
    process died.

    Works where a primary key is enforced: SQLite (a file; a database in memory has nothing to recover), PostgreSQL and those
    that speak like it. One object for one transaction at a time; not for several threads at once.
    """

    def __init__(
        self,
        database: Engine | Session | scoped_session[Session] | Connection,
        resource: str,
        table: str = "oncelog_transactions",
    ) -> None:
        """
        Args:
            database: where the effects are made.
            resource: what this use of the database is called at the transaction service, 1 to 249 characters.
            table: the table of markers, created on demand; may be shared. On a database whose DDL commits (MySQL), create it
                beforehand (:attr:`table`).
        """
        if not isinstance(database, Engine | Session | scoped_session | Connection):
            raise TypeError(f"a database is an Engine, Session or Connection, not {type(database).__name__}")
        if not 1 <= len(resource) <= _RESOURCE_LIMIT:
            raise ValueError(f"a resource's name has 1 to {_RESOURCE_LIMIT} characters, not {len(resource)}")
        self.resource = resource
        self.table = Table(
            table,
            MetaData(),
            Column("write_pointer", BigInteger, primary_key=True, autoincrement=False),
            Column("resource", String(_RESOURCE_LIMIT), nullable=False),
            Column("state", String(9), nullable=False),
            Column("ended_ms", BigInteger, nullable=False),
        )
        self._database = database
        self._on_demand = TableOnDemand(self.table)
        self._tx: Transaction | None = None
        self._connection: Connection | None = None
        self._transaction: object = None
        self._ended: set[int] = set()
        self._recovered = False
        self._interruption: BaseException | None = None
        self._home = forks.here()

    @property
    def connection(self) -> Connection:
        """The connection of the running transaction. Raises TransactionClosed outside of one."""
        if self._connection is None:
            raise TransactionClosed("there is a connection inside a transaction only")
        return self._connection

    def __repr__(self) -> str:
        return f"SqlParticipant({self._database!r}, resource={self.resource!r})"

    # --- the participant

    def start_tx(self, tx: Transaction) -> None:
        """A transaction begins.

        Raises:
            TransactionClosed: another one is running.
            ValueError: what happens in the database is not a transaction that this one could commit.
        """
        forks.check_made_here(self._home, repr(self))
        if self._tx is not None:
            raise TransactionClosed(f"this participant is in transaction {self._tx.transaction_id}; make another one")
        if isinstance(self._database, Session | scoped_session) and isinstance(
            self._database.get_bind(clause=self.table), Connection
        ):
            raise ValueError("committing a session that is bound to a connection may commit nothing; give the connection instead")
        working = self._database.connect() if isinstance(self._database, Engine) else self._database
        try:
            connection = self._on_demand.connection(working)
            if connection.in_nested_transaction():
                raise ValueError("inside a savepoint there is no transaction that could be committed")
            if not connection.in_transaction():
                connection.begin()
        except BaseException:
            if isinstance(self._database, Engine):
                cast(Connection, working).close()
            raise
        self._tx, self._connection, self._interruption = tx, connection, None
        self._transaction = connection.get_transaction()

    def get_tx_changes(self) -> tuple[bytes, ...]:
        """None: the database sees to conflicts itself."""
        return ()

    def commit_tx(self) -> None:
        """Write what is pending, and the marker; the commit itself is :meth:`decide`.

        Raises:
            TransactionFailed: somebody has committed or rolled back meanwhile.
            TransactionNotInProgress: it was recovered, and so aborted, by another process of this resource.
        """
        connection, pointer = self.connection, self._pointer
        if isinstance(self._database, Session | scoped_session):
            self._database.flush()
        if connection.closed or connection.get_transaction() is not self._transaction:
            raise TransactionFailed("the database was committed or rolled back inside the transaction; leave that to its end")
        if self._ended:
            connection.execute(delete(self.table).where(self.table.c.write_pointer.in_(self._ended)))
        try:
            connection.execute(insert(self.table).values(self._marker(pointer, "committed")))
        except IntegrityError as error:
            raise TransactionNotInProgress(
                f"transaction {pointer} was ended by another process that uses resource {self.resource!r}",
                write_pointer=pointer,
                state="aborted",
            ) from error

    def decide(self) -> None:
        """Commit. Returns when it is committed.

        Raises:
            TransactionInDoubt: the commit failed, and the database cannot be asked what became of it.
            SQLAlchemyError: it failed and is not committed.
        """
        try:
            self._commit()
        except BaseException as error:
            self._give_up_connection()
            if not self._was_committed(error):
                raise
            # Raised where it does not look as if the transaction had failed.
            self._interruption = None if isinstance(error, Exception) else error

    def post_tx_commit(self) -> None:
        """The marker has served; the next transaction removes it."""
        self._ended = {self._pointer}
        self._end()
        if self._interruption is not None:
            raise self._interruption

    def rollback_tx(self) -> None:
        """Roll the database back."""
        try:
            if isinstance(self._database, Session | scoped_session):
                self._database.rollback()
            else:
                self.connection.rollback()
        finally:
            self._end()

    def in_doubt_tx(self, _: BaseException) -> None:
        """Let go; :meth:`recover` finds out."""
        self._recovered = False
        self._end()

    @property
    def _pointer(self) -> int:
        if self._tx is None:
            raise TransactionClosed
        return self._tx.transaction_id

    def _commit(self) -> None:
        if isinstance(self._database, Session | scoped_session):
            self._database.commit()
        else:
            self.connection.commit()

    def _end(self) -> None:
        connection = self._connection
        self._tx = self._connection = self._transaction = None
        if isinstance(self._database, Engine) and connection is not None:
            connection.close()

    def _give_up_connection(self) -> None:
        """Whatever the failed commit holds must be free before its outcome can be looked for."""
        try:
            if isinstance(self._database, Session | scoped_session):
                self._database.rollback()
            else:
                # The driver's own: to SQLAlchemy a transaction whose commit failed is over; to SQLite it may still hold its lock.
                self.connection.connection.rollback()
        except Exception:
            with suppress(SQLAlchemyError):
                self.connection.invalidate()

    def _was_committed(self, error: BaseException) -> bool:
        """Raises TransactionInDoubt where that cannot be found out."""
        end = time.monotonic() + RESOLVE_SECONDS
        attempt = 0
        while True:
            decision = self._decision(self._pointer)
            if decision is not None:
                return decision == "committed"
            wait = pause(attempt, random.random())
            if time.monotonic() + wait > end:
                raise TransactionInDoubt(
                    f"the database did not say whether it has committed transaction {self._pointer}, and cannot be asked: "
                    f"{error}; recover() finds out when it is back",
                    write_pointer=self._pointer,
                ) from error
            time.sleep(wait)
            attempt += 1

    # --- recovery

    def recover_once(self, client: TransactionCalls) -> None:
        """:meth:`recover`, before this participant's first transaction and after each that was left in doubt."""
        if not self._recovered:
            self.recover(client)
            self._recovered = True

    def recover(self, client: TransactionCalls) -> dict[int, Decision]:
        """End the transactions under this resource's name that a process left undecided, as the database has decided.

        What it did, by write pointer. A transaction on which the database does not answer just now (it is busy, or down) is left
        for the next time.

        Raises:
            OncelogError: the transaction service does not answer.
        """
        forks.check_made_here(self._home, repr(self))
        done: dict[int, Decision] = {}
        if isinstance(self._engine().pool, SingletonThreadPool | StaticPool):
            return done  # a database in memory: nothing outlives its process, and a second connection would be the first one
        for status in client.transactions("in_progress"):
            pointer = status.write_pointer
            if status.resource != self.resource or (self._tx is not None and pointer == self._tx.transaction_id):
                continue
            decision = self._decision(pointer)
            if decision is not None and _end_transaction(client, pointer, decision):
                done[pointer] = decision
        self._find_old_markers(client)
        return done

    def _decision(self, pointer: int) -> Decision | None:
        """What the database has decided, from now on for good; None when it does not answer."""
        try:
            with self._engine().connect() as connection:
                try:
                    on = self._on_demand.connection(connection)
                    on.execute(insert(self.table).values(self._marker(pointer, "aborted")))
                    on.commit()
                    return "aborted"
                except IntegrityError:  # the primary key: there is one
                    connection.rollback()
                    state = connection.scalar(select(self.table.c.state).where(self.table.c.write_pointer == pointer))
                    return cast("Decision | None", state)
        except DBAPIError:
            return None

    def _engine(self) -> Engine:
        if isinstance(self._database, Session | scoped_session):
            return self._database.get_bind(clause=self.table).engine
        return self._database.engine

    def _marker(self, pointer: int, state: Decision) -> dict[str, object]:
        return {"write_pointer": pointer, "resource": self.resource, "state": state, "ended_ms": _now_ms()}

    def _find_old_markers(self, client: TransactionCalls) -> None:
        """Those that nobody will ask for again: committed there as here, or older than any transaction lives."""
        table = self.table
        query = select(table.c.write_pointer, table.c.state, table.c.ended_ms).where(table.c.resource == self.resource)
        try:
            with self._engine().connect() as connection:
                if not connection.dialect.has_table(connection, table.name):
                    return
                rows = connection.execute(query.order_by(table.c.write_pointer).limit(_MARKERS)).all()
        except DBAPIError:
            return
        states = client.transaction_states([row.write_pointer for row in rows]) if rows else {}
        self._ended |= {
            row.write_pointer
            for row in rows
            if row.ended_ms < _now_ms() - KEPT_MS or row.state == states.get(row.write_pointer) == "committed"
        }


def _end_transaction(client: TransactionCalls, pointer: int, decision: Decision) -> bool:
    """Whether it has ended so. Somebody else may have been faster, with the same decision."""
    end = client.commit_transaction if decision == "committed" else client.abort_transaction
    try:
        return end(pointer).state == decision
    except TransactionNotInProgress as error:
        return error.state == decision
    except TransactionNotFound:
        return False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
