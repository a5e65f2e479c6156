"""A SQL database as the participant that decides: tables and topics change together or not at all.

The database's own commit is what decides about the transaction (the "logging last resource" of transaction monitors), because it
cannot be undone and takes no part in two-phase commits. In the same commit a *marker* is written, a row that names it.
When the process dies around that commit, the marker says what to do: a process that recovers tries to write the marker
``aborted`` itself. If it can, the database has not committed and never will, as the primary key is taken; the transaction is
aborted. If ``committed`` is there already, the transaction is committed. Nothing but a marker that was read, or written and
committed, says what became of it; whatever else happens, an interruption too, leaves it in doubt and undoes nothing.

It needs SQLAlchemy (the extra ``sql``); ``import oncelog`` does not load it.
"""

from __future__ import annotations

import logging
import math
import random
from contextlib import suppress
from typing import Literal, cast

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from oncelog.api.api import Api, clock_of
from oncelog.api.retry import Tries
from oncelog.errors import (
    NotAllowed,
    TransactionClosed,
    TransactionFailed,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.process import forks
from oncelog.process.frames import Face
from oncelog.sql.markers import Decision, Key, Markers
from oncelog.sql.table import UnfitEngine, Working, check_name, now_ms
from oncelog.transactions.participants import NotCommitted
from oncelog.values.numbers import MILLISECOND, check_seconds
from oncelog.wire.models import TransactionState, TransactionStatus
from oncelog.wire.transaction import Transaction

Recovery = Literal["committed", "aborted", "in_doubt"]
"""What became of a transaction that a process had left undecided. ``in_doubt``: the database does not say just now."""

DECISION_SECONDS = 10.0
"""How long a commit whose outcome the database did not tell is looked for before the transaction is left in doubt."""
LOCK_SECONDS = 2.0
"""How long a marker is waited for that another process has written and not committed."""
KEPT_MS = 30 * 24 * 3_600_000
"""How long a marker ``aborted`` stays: until no process is alive any more that could still try to commit that transaction."""
AGAIN_SECONDS = 30.0
"""After the database did not say what became of a transaction, each new one does not ask anew."""
_MARKERS = 1_000
"""Old markers looked at in one go."""

logger = logging.getLogger("oncelog.sql")


class SqlParticipant(Face):
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
    process that is just about to commit under the same name is aborted by that, cleanly: it cannot be told apart from one whose
    process died.

    Works where a primary key is enforced: SQLite (a file; a database in memory has nothing to recover), PostgreSQL and those
    that speak like it. Over more than memory the pool has to have a second connection, for recovery, else ValueError is raised.
    One object for one transaction at a time; not for several threads at once.
    """

    def __init__(
        self,
        database: Engine | Working,
        resource: str,
        table: str = "oncelog_transactions",
        *,
        lock_timeout: float = LOCK_SECONDS,
    ) -> None:
        """
        Args:
            database: where the effects are made.
            resource: what this use of the database is called at the transaction service, 1 to 249 characters.
            table: the table of markers, created on demand; may be shared. On a database whose DDL commits (MySQL), create it
                beforehand (:attr:`table`).
            lock_timeout: seconds that recovery waits for one transaction whose process has written its marker and hangs; then
                that one is left for the next time. On PostgreSQL; SQLite waits as long as its connections are set to
                (``connect_args={"timeout": …}``).
        """
        if not isinstance(database, Engine | Session | scoped_session | Connection):
            raise TypeError(f"a database is an Engine, Session or Connection, not {type(database).__name__}")
        check_name("a resource's name", resource)
        check_seconds("lock_timeout", lock_timeout, MILLISECOND)
        self.resource = resource
        self._database = database
        self._session = database if isinstance(database, Session | scoped_session) else None
        self._markers = Markers(table, resource, lock_timeout)
        self._tx: Transaction | None = None
        self._client: Api | None = None
        self._store_id: str | None = None
        self._connection: Connection | None = None
        self._transaction: object = None
        self._served: set[Key] = set()
        """Markers that the next transaction removes."""
        self._cleaned_for: str | None = None
        """The store whose old markers have been looked for."""
        self._committed = False
        self._recover_at = 0.0
        """When, by the clock of its client, it is looked again for what earlier processes have left."""
        self._interruption: BaseException | None = None
        self._home = forks.here()

    @property
    def table(self) -> Table:
        """The table of markers, to create it beforehand."""
        return self._markers.table

    @property
    def connection(self) -> Connection:
        """The connection of the running transaction. Raises TransactionClosed outside of one; Forked: it is the parent's."""
        forks.check_made_here(self._home, repr(self))  # the transaction, and its connection, are the parent's
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
        if self._session is not None and isinstance(self._session.get_bind(clause=self.table), Connection):
            raise ValueError("committing a session that is bound to a connection may commit nothing; give the connection instead")
        working = self._database.connect() if isinstance(self._database, Engine) else self._database
        try:
            connection = self._markers.connection(working)
            _check_recoverable(connection)
            if connection.in_nested_transaction():
                raise ValueError("inside a savepoint there is no transaction that could be committed")
            if not connection.in_transaction():
                connection.begin()
        except BaseException:
            if isinstance(self._database, Engine):
                cast(Connection, working).close()
            raise
        self._tx, self._connection, self._interruption = tx, connection, None
        self._store_id, self._committed = None, False
        self._transaction = connection.get_transaction()

    def get_tx_changes(self) -> tuple[bytes, ...]:
        """None: the database sees to conflicts itself."""
        return ()

    def prepared_tx(self, client: Api, store_id: str) -> None:
        """The transaction is prepared: from here on the database decides."""
        self._client, self._store_id = client, store_id

    def commit_tx(self) -> None:
        """Writes what is pending, and the marker; the commit itself is :meth:`decide`.

        Raises:
            TransactionFailed: the database was committed or rolled back meanwhile.
            TransactionNotInProgress: it was recovered, and so aborted, by another process of this resource.
        """
        connection, key = self.connection, self._key
        if self._session is not None:
            self._session.flush()
        if connection.closed or connection.get_transaction() is not self._transaction:
            raise TransactionFailed("the database was committed or rolled back inside the transaction; leave that to its end")
        if self._cleaned_for != key.store_id:
            self._served |= self._old_markers(key.store_id)
            self._cleaned_for = key.store_id
        self._markers.delete(connection, self._served)
        # In the transaction of the effects, and nowhere else: a marker of its own commit would decide without them.
        try:
            self._markers.write(connection, key, "committed")
        except IntegrityError as error:
            raise TransactionNotInProgress(
                f"transaction {key.write_pointer} was ended by another process that uses resource {self.resource!r}",
                write_pointer=key.write_pointer,
                state="aborted",
            ) from error

    def decide(self) -> None:
        """Commits the database. Returns when that is certain.

        Raises:
            NotCommitted: it failed, and the database says that it has not committed and never will.
            TransactionInDoubt: it failed, and the database cannot be asked what became of it. So it is after any other exception.
        """
        forks.check_made_here(self._home, repr(self))
        try:
            self._commit()
        except BaseException as error:
            if self._decision(error) == "aborted":
                raise NotCommitted(error) from error
            if not isinstance(error, SQLAlchemyError):
                # Raised where it does not look as if the transaction had failed.
                self._interruption = error
        self._committed = True

    def post_tx_commit(self) -> None:
        """The marker has served; the next transaction removes it."""
        self._served = {self._key}
        self._end()
        if self._interruption is not None:
            raise self._interruption

    def rollback_tx(self) -> None:
        """Rolls the database back."""
        forks.check_made_here(self._home, repr(self))
        try:
            self._working.rollback()
        finally:
            self._end()

    def in_doubt_tx(self, _: BaseException) -> None:
        """Lets go; :meth:`recover` finds out. A COMMIT that was not sent yet never will be."""
        self._recover_at = 0.0
        try:
            if not self._committed:
                self._free_connection()
        finally:
            self._end()

    @property
    def _key(self) -> Key:
        if self._tx is None or self._store_id is None:
            raise TransactionClosed("the transaction is not prepared")
        return Key(self._store_id, self._tx.transaction_id)

    @property
    def _working(self) -> Working:
        return self.connection if self._session is None else self._session

    def _commit(self) -> None:
        self._working.commit()

    def _end(self) -> None:
        connection = self._connection
        self._tx = self._connection = self._transaction = None
        if isinstance(self._database, Engine) and connection is not None:
            connection.close()

    def _free_connection(self) -> None:
        """Frees whatever the failed commit holds, so that its outcome can be looked for."""
        connection = self._connection
        try:
            if self._session is not None:
                self._session.rollback()
            elif connection is not None:
                # The driver's own: to SQLAlchemy a transaction whose commit failed is over; to SQLite it may still hold its lock.
                connection.connection.rollback()
        except Exception:
            if connection is not None:
                with suppress(SQLAlchemyError):
                    connection.invalidate()

    def _decision(self, error: BaseException) -> Decision:
        """Finds out what became of a commit that failed. Raises TransactionInDoubt where the database does not say."""
        self._free_connection()
        assert self._client is not None
        clock = clock_of(self._client)
        tries = Tries(clock.monotonic() + DECISION_SECONDS)
        while True:
            why: object = "there is no marker"
            try:
                decision = self._markers.decided(self._engine(), self._key)
                if decision is not None:
                    return decision
            except SQLAlchemyError as unanswered:
                why = unanswered
            wait = tries.wait(clock.monotonic(), random.random())
            if wait is None:
                pointer = self._key.write_pointer
                raise TransactionInDoubt(
                    f"the database did not say whether it has committed transaction {pointer} ({error}), and cannot be asked: "
                    f"{why}; recover() finds out when it is back",
                    write_pointer=pointer,
                ) from error
            clock.sleep(wait)

    # --- recovery

    def recover_once(self, client: Api) -> None:
        """Recovers before this participant's first transaction, and after each that was left in doubt."""
        now = clock_of(client).monotonic
        if now() >= self._recover_at:
            in_doubt = "in_doubt" in self.recover(client).values()
            self._recover_at = now() + AGAIN_SECONDS if in_doubt else math.inf

    def recover(self, client: Api) -> dict[int, Recovery]:
        """Ends the transactions under this resource's name that a process left undecided, as the database has decided.

        Answers what became of each, by write pointer. ``"in_doubt"``: the database does not say now: it is down or busy, or a
        process that hangs has written its marker and not committed it (``lock_timeout``). It is left for the next time, and
        logged.

        Raises:
            OncelogError: the transaction service does not answer.
        """
        forks.check_made_here(self._home, repr(self))
        if isinstance(self._engine().pool, SingletonThreadPool | StaticPool):
            return {}  # a database in memory: nothing is left of a process, and a second connection would be the first one
        own = None if self._tx is None else self._tx.transaction_id
        statuses = [each for each in client.transactions("in_progress") if each.resource == self.resource]
        found = {each.write_pointer: self._recover_one(client, each) for each in statuses if each.write_pointer != own}
        return {pointer: recovery for pointer, recovery in found.items() if recovery is not None}

    def _recover_one(self, client: Api, status: TransactionStatus) -> Recovery | None:
        """Recovers one transaction; None where it has ended otherwise meanwhile."""
        # The database first: what the service is asked to do follows from its answer, and from nothing else.
        pointer = status.write_pointer
        why: object = "there is no marker"
        try:
            decision = self._markers.decided(self._engine(), Key(status.store_id or "", pointer))
        except SQLAlchemyError as error:
            decision, why = None, error
        if decision is None:
            logger.warning("transaction %d of resource %r stays in doubt: %s", pointer, self.resource, why)
            return "in_doubt"
        try:
            return decision if _end_transaction(client, pointer, decision) else None
        except NotAllowed as refusal:  # shown to one who may operate; what the database has decided stands until its owner asks
            logger.warning("transaction %d of resource %r is %s and not ended: %s", pointer, self.resource, decision, refusal)
            return "in_doubt"

    def _engine(self) -> Engine:
        if self._session is not None:
            return self._session.get_bind(clause=self.table).engine
        return cast(Engine | Connection, self._database).engine

    def _old_markers(self, store_id: str) -> set[Key]:
        """The markers that no process will ask for again: committed there as here, or older than any transaction lives."""
        markers = [each for each in self._markers.oldest(self.connection, store_id, _MARKERS) if each.key != self._key]
        states: dict[int, TransactionState] = {}
        if markers and self._client is not None:
            states = self._client.transaction_states([each.key.write_pointer for each in markers])
        served = set()
        for marker in markers:
            state = states.get(marker.key.write_pointer)
            is_old = marker.ended_ms < now_ms() - KEPT_MS and state != "in_progress"  # whatever the clock says, that is undecided
            if is_old or marker.state == state == "committed":
                served.add(marker.key)
        return served


def _check_recoverable(connection: Connection) -> None:
    """Raises UnfitEngine where something may be left of a process, and there is no second connection that would look for it."""
    if not isinstance(connection.engine.pool, SingletonThreadPool | StaticPool):
        return
    in_memory = "SELECT file = '' FROM pragma_database_list WHERE name = 'main'"
    if connection.dialect.name != "sqlite" or not connection.exec_driver_sql(in_memory).scalar():
        pool = type(connection.engine.pool).__name__
        raise UnfitEngine(
            f"this engine's {pool} has one connection for a thread: while that is in a transaction, nothing could look for what "
            "an earlier process left undecided. Leave the pool as SQLAlchemy chooses it"
        )


def _end_transaction(client: Api, pointer: int, decision: Decision) -> bool:
    """Ends a transaction; whether it has ended so. Another process may have been faster, with the same decision."""
    end = client.commit_transaction if decision == "committed" else client.abort_transaction
    try:
        return end(pointer).state == decision
    except TransactionNotInProgress as error:
        return error.state == decision
    except TransactionNotFound:
        return False
