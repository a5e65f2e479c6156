"""A SQL database and topics change together or not at all, whoever dies when."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from oncelog import Client, SqlParticipant, TransactionContext
from oncelog.api.api import surrounded
from oncelog.errors import (
    InternalError,
    OncelogError,
    TransactionClosed,
    TransactionFailed,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionsUnavailable,
)
from oncelog.process.clock import Clock
from oncelog.sql import participant as sql_participant
from oncelog.sql.markers import Decision, Key, Markers
from tests.postgres import PostgresServer
from tests.sdk.conftest import IN_BOTH
from tests.sdk.databases import change, effects, opened, with_effects
from tests.sdk.memory_service import MemoryClient
from tests.world.clock import passing

LOST = OperationalError("COMMIT", None, Exception("the connection is lost"))


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return with_effects(engine)


@pytest.fixture
def client() -> MemoryClient:
    return MemoryClient()


def markers(engine: Engine) -> dict[int, str]:
    with engine.connect() as connection:
        return {row.write_pointer: row.state for row in connection.execute(text("SELECT * FROM oncelog_transactions"))}


def visible(client: MemoryClient) -> list[int]:
    return sorted(int(payload) for payload in client.service.visible("t"))


def begun(client: Client, database: SqlParticipant, number: int) -> TransactionContext:
    """A transaction with a change in the database and one in the topic."""
    context = client.transaction(database)
    context.start()
    change(database.connection, number)
    context.send("t", b"%d" % number)
    return context


def prepared(client: MemoryClient, database: SqlParticipant, number: int) -> TransactionContext:
    """One whose process stands still before it writes the marker."""
    context = begun(client, database, number)
    database.prepared_tx(client, client.can_commit(context.transaction_id, (), database.resource))
    return context


def run(client: Client, database: SqlParticipant, number: int) -> int:
    context = begun(client, database, number)
    context.finish()
    return context.transaction_id


def unheard(client: MemoryClient, engine: Engine, fault: OncelogError, number: int) -> SqlParticipant:
    """The database of a transaction that has committed there, and whose service was not to be reached."""
    database = SqlParticipant(engine, "shop")
    client.faults = {"commit": [fault] * 20, "status": [fault] * 20}
    with pytest.raises(TransactionInDoubt):
        run(client, database, number)
    client.faults.clear()
    return database


# --- both or neither ----------------------------------------------------------------------------------------------------


@IN_BOTH
@pytest.mark.parametrize("through", ["engine", "session", "scoped session", "connection", "one connection", "one a thread"])
def test_table_and_topic_change_together_or_not_at_all(client: MemoryClient, engine: Engine, through: str) -> None:
    if through.startswith("one"):  # a database in memory: looking for something to recover must not roll back what was done
        pool = StaticPool if through == "one connection" else SingletonThreadPool
        engine = with_effects(create_engine("sqlite://", poolclass=pool))
    working: Any = {
        "engine": lambda: engine,
        "session": lambda: Session(engine),
        "scoped session": lambda: scoped_session(sessionmaker(engine)),
    }.get(through, engine.connect)()
    database = SqlParticipant(working, "shop")
    done = list(range(2))
    for number in done:
        run(client, database, number)
        assert effects(engine) == visible(client) == done[: number + 1]
    for cause in (ZeroDivisionError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(cause)) as caught, client.transaction(database) as tx:  # noqa: PT012
            change(database.connection, 100)
            tx.send("t", b"100")
            raise cause
        assert caught.value is cause
    if through != "engine":
        change(working, 2)  # done before, in the same transaction
        run(client, database, 3)
        assert isinstance(working, scoped_session) or not working.in_transaction()
        done += [2]
        working.close()
    assert effects(engine) == (done if through == "engine" else [*done, 3])
    assert visible(client) == (done if through == "engine" else [0, 1, 3])
    engine.dispose()


def test_where_nothing_could_be_committed_together_no_transaction_begins(client: MemoryClient, engine: Engine) -> None:
    def start(database: Any) -> None:
        client.transaction(SqlParticipant(database, "shop")).start()

    savepoint = pytest.raises(ValueError, match="savepoint")
    with engine.connect() as connection, connection.begin(), connection.begin_nested(), savepoint:
        start(connection)
    bound = pytest.raises(ValueError, match="give the connection")
    with engine.connect() as connection, Session(connection) as session, bound:
        start(session)
    for pool in (StaticPool, SingletonThreadPool):  # of a file: what a process left there would never be looked for
        one = create_engine(engine.url, poolclass=pool)
        with pytest.raises(ValueError, match=pool.__name__):
            start(one)
        one.dispose()
    with pytest.raises(TypeError):
        start("sqlite://")
    for resource in ("", "x" * 250):
        with pytest.raises(ValueError, match="249"):
            SqlParticipant(engine, resource)
    with pytest.raises(ValueError, match="lock_timeout"):
        SqlParticipant(engine, "shop", lock_timeout=0)
    database = SqlParticipant(engine, "shop")
    for outside in (lambda: database.connection, database.commit_tx):
        with pytest.raises(TransactionClosed):
            outside()
    with client.transaction(database), pytest.raises(TransactionClosed):
        client.transaction(database).start()


@IN_BOTH
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_who_ends_the_databases_transaction_himself_is_told(client: MemoryClient, engine: Engine, end: str) -> None:
    database = SqlParticipant(engine, "shop")
    context = begun(client, database, 1)
    getattr(database.connection, end)()
    change(database.connection, 2)
    with pytest.raises(TransactionFailed, match="inside the transaction"):
        context.finish()
    assert (effects(engine), visible(client)) == ([1] if end == "commit" else [], [])


# --- the commit of the database -----------------------------------------------------------------------------------------


@IN_BOTH
def test_a_database_that_refuses_to_commit_refuses_for_all(client: MemoryClient, engine: Engine) -> None:
    """A constraint that is checked at the commit: the database's own COMMIT fails."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parents (n INTEGER PRIMARY KEY)"))
        parent = "INTEGER REFERENCES parents (n) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE children (n {parent})"))
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")
        connection.commit()
        context = begun(client, SqlParticipant(connection, "shop"), 1)
        connection.execute(text("INSERT INTO children VALUES (5)"))
        with pytest.raises(IntegrityError):
            context.finish()
    assert effects(engine) == visible(client) == []
    assert context.state == client.transaction_status(context.transaction_id).state == "aborted"
    assert markers(engine) == {context.transaction_id: "aborted"}


class Faulty(SqlParticipant):
    """Its commit fails, before it is done or after."""

    def __init__(self, *given: Any, fault: BaseException, done: bool) -> None:
        super().__init__(*given)
        self.fault: BaseException | None = fault
        self.done = done

    def _commit(self) -> None:
        fault, self.fault = self.fault, None
        if fault is None or self.done:
            super()._commit()
        if fault is not None:
            raise fault


@IN_BOTH
@pytest.mark.parametrize(
    ("through", "done", "interrupted"),
    [
        ("engine", True, False),
        ("engine", False, True),
        ("session", True, True),
        ("session", False, False),
        ("connection", True, True),
        ("connection", False, False),
    ],
)
def test_a_commit_that_failed_counts_if_it_was_done_and_an_interruption_is_raised(
    client: MemoryClient, engine: Engine, through: str, done: bool, interrupted: bool
) -> None:
    working: Any = {"engine": lambda: engine, "session": lambda: Session(engine), "connection": engine.connect}[through]()
    fault = KeyboardInterrupt() if interrupted else LOST
    database = Faulty(working, "shop", fault=fault, done=done)
    context = begun(client, database, 1)
    if done and not interrupted:
        context.finish()
    else:
        with pytest.raises(type(fault)) as caught:
            context.finish()
        assert any("committed all the same" in note for note in getattr(caught.value, "__notes__", ())) is done
    assert effects(engine) == visible(client) == ([1] if done else [])
    run(client, database, 2)
    if through != "engine":
        working.close()
    assert effects(engine) == visible(client) == ([1, 2] if done else [2])


@pytest.mark.parametrize("exhausted", [True, False])
@pytest.mark.parametrize("done", [True, False])
def test_a_commit_that_nobody_can_ask_for_is_in_doubt_until_the_database_is_back(
    engine: Engine, done: bool, exhausted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = surrounded(MemoryClient, clock=passing())()
    database = Faulty(engine, "shop", fault=LOST, done=done)
    with monkeypatch.context() as gone:
        fault = PoolTimeout("QueuePool limit reached") if exhausted else None
        gone.setattr(database._markers, "decided", Mock(return_value=None, side_effect=fault))
        with pytest.raises(TransactionInDoubt) as caught:
            run(client, database, 1)
    assert visible(client) == []
    assert client.transaction_status(caught.value.write_pointer).state == "in_progress"
    run(client, database, 2)
    assert effects(engine) == visible(client) == ([1, 2] if done else [2])


@pytest.mark.parametrize("kind", [Session, Engine.connect])
def test_what_was_interrupted_before_its_commit_was_sent_is_never_committed(
    client: MemoryClient, engine: Engine, kind: Any
) -> None:
    """The caller goes on with the session, and commits what comes then."""
    with kind(engine) as working:
        database = SqlParticipant(working, "shop")
        context = begun(client, database, 1)
        database.decide = Mock(side_effect=KeyboardInterrupt())  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            context.finish()
        assert context.state == "in_doubt"
        working.commit()
    assert SqlParticipant(engine, "shop").recover(client) == {context.transaction_id: "aborted"}
    assert effects(engine) == visible(client) == []


# --- recovery -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [TransactionsUnavailable("planted"), InternalError("planted")])
def test_a_commit_that_could_not_be_told_to_the_service_is_told_before_the_next_one(
    client: MemoryClient, engine: Engine, fault: OncelogError
) -> None:
    database = unheard(client, engine, fault, 1)
    assert (effects(engine), visible(client)) == ([1], [])
    run(client, database, 2)
    assert effects(engine) == visible(client) == [1, 2]


def test_only_transactions_of_the_own_resource_are_recovered(client: MemoryClient, engine: Engine) -> None:
    context = prepared(client, SqlParticipant(engine, "shop"), 1)
    assert SqlParticipant(engine, "other").recover(client) == {}
    context.finish()
    assert effects(engine) == visible(client) == [1]


@pytest.mark.parametrize(("fault", "found"), [(TransactionNotInProgress(write_pointer=1, state="aborted"), {1: "aborted"}),
    (TransactionNotInProgress(write_pointer=1, state="invalid"), {}), (TransactionNotFound(), {})])  # fmt: skip
def test_another_process_may_recover_it_first(
    client: MemoryClient, engine: Engine, fault: OncelogError, found: dict[int, str]
) -> None:
    client.can_commit(client.start_transaction().transaction_id, (), "shop")
    client.faults["abort"] = [fault]
    assert SqlParticipant(engine, "shop").recover(client) == found


def test_who_wakes_up_after_being_recovered_changes_nothing(client: MemoryClient, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'zombie.db'}"
    with opened(url) as engine, opened(url) as others:
        zombie = SqlParticipant(with_effects(engine), "shop")
        context = client.transaction(zombie)
        context.start()
        context.send("t", b"1")
        zombie.prepared_tx(client, client.can_commit(context.transaction_id, (), "shop"))  # and then it sleeps
        other = SqlParticipant(others, "shop")
        assert other.recover(client) == {context.transaction_id: "aborted"}
        run(client, other, 2)
        change(zombie.connection, 1)
        for step in (zombie.commit_tx, context.finish):  # its marker is there, whatever the service says
            with pytest.raises(TransactionNotInProgress) as caught:
                step()
            assert caught.value.state == "aborted"
        assert effects(engine) == visible(client) == [2]


def test_a_database_that_is_busy_is_left_for_the_next_time(client: MemoryClient, tmp_path: Path) -> None:
    """Another process holds its lock, with the marker written and not committed: it goes on, and it counts."""
    url = f"sqlite:///{tmp_path / 'busy.db'}"
    with opened(url, 0.2) as engine, opened(url, 0.2) as others:
        busy = SqlParticipant(with_effects(engine), "shop")
        run(client, busy, 0)
        context = prepared(client, busy, 1)
        busy.commit_tx()
        other = SqlParticipant(others, "shop")
        assert other.recover(client) == {context.transaction_id: "in_doubt"}
        busy.commit_tx = lambda: None  # type: ignore[method-assign]  # done already
        context.finish()
        assert effects(engine) == visible(client) == [0, 1]
        assert other.recover(client) == {}


def test_what_stays_in_doubt_is_asked_for_again_but_not_by_every_transaction(
    engine: Engine,
) -> None:
    database, monotonic = SqlParticipant(engine, "shop"), Mock()
    client = surrounded(MemoryClient, clock=Clock(monotonic, Mock(), Mock()))()
    recover = database.recover = Mock(side_effect=[{1: "in_doubt"}, {}])  # type: ignore[method-assign]
    for now, asked in ((1.0, 1), (30.9, 1), (31.1, 2), (99.0, 2)):
        monotonic.return_value = now
        database.recover_once(client)
        assert recover.call_count == asked


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_process_that_hangs_in_its_commit_holds_up_nobody_elses_recovery(
    client: MemoryClient, postgres: PostgresServer, by_hand: bool
) -> None:
    """It has written its marker and not committed it. PostgreSQL would let whoever writes the same one wait for ever."""
    url = make_url(postgres.fresh_schema())
    # Who waits for ever is told so, in a minute.
    options = f"{url.query.get('options', '')} -c statement_timeout=60000"
    engine = with_effects(create_engine(url.update_query_dict({"options": options})))
    run(client, SqlParticipant(engine, "shop"), 0)
    hanging, gone = SqlParticipant(engine, "shop"), SqlParticipant(engine, "shop")
    died = client.transaction(gone)
    died.start()
    hangs = prepared(client, hanging, 1)
    client.can_commit(died.transaction_id, (), "shop")
    hanging.commit_tx()
    gone.rollback_tx()
    other = SqlParticipant(engine, "shop", lock_timeout=0.2)
    if by_hand:
        assert other.recover(client) == {hangs.transaction_id: "in_doubt", died.transaction_id: "aborted"}
        assert other.recover(client) == {hangs.transaction_id: "in_doubt"}, "left for the next time"
    else:
        run(client, other, 3)
    hanging.commit_tx = lambda: None  # type: ignore[method-assign]  # done already
    hangs.finish()
    assert effects(engine) == visible(client) == ([0, 1] if by_hand else [0, 1, 3])
    engine.dispose()


# --- markers ------------------------------------------------------------------------------------------------------------


def test_what_differs_in_one_of_three_names_is_another_transaction(tmp_path: Path) -> None:
    """Resource, store and pointer: two services may hand out one pointer, and two resources be in one transaction."""
    engine = create_engine(f"sqlite:///{tmp_path}/db", poolclass=NullPool)
    resources = {name: Markers("markers", name, 2.0) for name in ("shop", "bank")}
    resources["shop"].table.create(engine)
    written: dict[tuple[str, Key], Decision] = {}
    for number, (name, store, pointer) in enumerate(product(resources, ("a", "b"), (5, 6))):
        key, state = Key(store, pointer), ("committed", "aborted")[number.bit_count() % 2]
        with engine.begin() as connection:
            resources[name].write(connection, key, state)
        written[name, key] = state

    def told() -> dict[tuple[str, Key], Decision | None]:
        return {(name, key): resources[name].decided(engine, key) for name, key in written}

    assert told() == written
    gone = "shop", Key("a", 5)
    with engine.begin() as connection:
        resources["shop"].delete(connection, [gone[1]])
        left = {(name, each.key) for name in resources for store in "ab" for each in resources[name].oldest(connection, store, 9)}
    assert left == written.keys() - {gone}
    assert told() == {**written, gone: "aborted"}, "whoever recovers has decided now that it will not commit"


@IN_BOTH
def test_a_marker_goes_when_it_has_served_and_one_of_an_abort_when_nobody_can_be_alive(
    client: MemoryClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    undecided = client.start_transaction().transaction_id
    client.can_commit(undecided, (), "shop")
    first = SqlParticipant(engine, "shop")
    for database in (first, first, SqlParticipant(engine, "shop")):  # the last one finds it in the table
        pointer = run(client, database, 1)
        assert markers(engine) == {undecided: "aborted", pointer: "committed"}
    monkeypatch.setattr(sql_participant, "KEPT_MS", -1000)
    last = run(client, SqlParticipant(engine, "shop"), 2)
    assert markers(engine) == {last: "committed"}


@pytest.mark.parametrize("kept_ms", [sql_participant.KEPT_MS, -1000])
def test_a_marker_stays_while_the_service_does_not_know_of_the_commit_whatever_the_clock_says(
    client: MemoryClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, kept_ms: int
) -> None:
    monkeypatch.setattr(sql_participant, "KEPT_MS", kept_ms)
    participant = SqlParticipant(engine, "shop")
    participant.table.create(engine)  # or the other transaction would create it, and everyone else would wait for its end
    other = client.transaction(participant)
    other.start()  # finds nothing to recover
    unheard(client, engine, TransactionsUnavailable("planted"), 1)
    other.finish()
    assert list(SqlParticipant(engine, "shop").recover(client).values()) == ["committed"]
    assert effects(engine) == visible(client) == [1]
