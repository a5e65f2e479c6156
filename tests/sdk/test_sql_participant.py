"""A SQL database and topics change together or not at all, whoever dies when."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from oncelog import Client, Reader, SqlParticipant, TransactionContext
from oncelog.errors import (
    InternalError,
    TransactionClosed,
    TransactionFailed,
    TransactionInDoubt,
    TransactionNotInProgress,
    TransactionsUnavailable,
)
from oncelog.sql import participant as sql_participant
from tests.patience import PATIENCE, until
from tests.sdk.recording import RecordedClient
from tests.support import ManualClock, RunningService, running_service


def open_engine(path: Path, busy_seconds: float = 0.2) -> Engine:
    return create_engine(f"sqlite:///{path}", connect_args={"timeout": busy_seconds})


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = open_engine(tmp_path / "data.db")
    else:
        engine = create_engine(request.getfixturevalue("postgres").fresh_schema())
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
    yield engine
    engine.dispose()


@pytest.fixture
def recorded(house: RunningService) -> Iterator[RecordedClient]:
    with RecordedClient(house.url, retry=0.3) as client:
        yield client


@pytest.fixture
def resource(topic: str) -> str:
    """Its own for each test, as the service is shared."""
    return f"shop-{topic}"


def effects(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return [row.n for row in connection.execute(text("SELECT n FROM effects ORDER BY n"))]


def markers(engine: Engine) -> dict[int, str]:
    with engine.connect() as connection:
        return {row.write_pointer: row.state for row in connection.execute(text("SELECT * FROM oncelog_transactions"))}


def visible(client: Client, topic: str) -> list[int]:
    tx = client.start_transaction()
    try:
        with Reader(topic, client=client, transaction=tx, timeout=0) as reader:
            return [int(message.payload) for message in reader]
    finally:
        client.abort_transaction(tx.transaction_id)


def change(connection: Connection | Session | scoped_session[Session], number: int) -> None:
    connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})


def both(tx: TransactionContext, topic: str, database: SqlParticipant, number: int) -> None:
    """A change in the database and one in the topic."""
    change(database.connection, number)
    tx.send(topic, b"%d" % number)


def run(client: Client, topic: str, database: SqlParticipant, number: int, cause: BaseException | None = None) -> int:
    with client.transaction(database) as tx:
        both(tx, topic, database, number)
        if cause is not None:
            raise cause
    return tx.transaction_id


def prepared(client: Client, topic: str, database: SqlParticipant, number: int) -> TransactionContext:
    """A transaction whose process stands still before it writes the marker."""
    context = client.transaction(database)
    context.start()
    both(context, topic, database, number)
    database.prepared_tx(client, client.can_commit(context.transaction_id, (), database.resource))
    return context


# --- both or neither ----------------------------------------------------------------------------------------------------


def test_table_and_topic_change_together(client: Client, topic: str, engine: Engine, resource: str) -> None:
    database = SqlParticipant(engine, resource)
    for number in range(3):
        run(client, topic, database, number)
        assert effects(engine) == visible(client, topic) == list(range(number + 1))


@pytest.mark.parametrize("cause", [ZeroDivisionError("mine"), KeyboardInterrupt()])
def test_what_fails_changes_neither(client: Client, topic: str, engine: Engine, resource: str, cause: BaseException) -> None:
    database = SqlParticipant(engine, resource)
    with pytest.raises(type(cause)) as caught:
        run(client, topic, database, 1, cause)
    assert caught.value is cause
    run(client, topic, database, 2)
    assert effects(engine) == visible(client, topic) == [2]


def test_a_session_is_flushed_and_committed(client: Client, topic: str, engine: Engine, resource: str) -> None:
    factory = sessionmaker(engine)
    for number, session in enumerate((Session(engine), factory(), scoped_session(factory))):
        database = SqlParticipant(session, resource)
        with client.transaction(database) as tx:
            change(session, number)
            tx.send(topic, b"%d" % number)
        assert effects(engine) == visible(client, topic) == list(range(number + 1))
        with pytest.raises(ZeroDivisionError):
            run(client, topic, database, 100, ZeroDivisionError())
        session.close()
    assert effects(engine) == visible(client, topic) == [0, 1, 2]


def test_a_connection_is_committed_with_what_was_done_in_it_before(
    client: Client, topic: str, engine: Engine, resource: str
) -> None:
    with engine.connect() as connection:
        database = SqlParticipant(connection, resource)
        change(connection, 1)
        with client.transaction(database) as tx:
            tx.send(topic, b"1")
        assert not connection.in_transaction()
        run(client, topic, database, 2)
    with engine.begin() as connection:
        run(client, topic, SqlParticipant(connection, resource), 3)
    assert effects(engine) == visible(client, topic) == [1, 2, 3]


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
def test_a_database_in_memory_keeps_what_was_done_before(client: Client, topic: str, resource: str, pool: type[Pool]) -> None:
    """Its engine has one connection only; looking for something to recover must not roll that back."""
    engine = create_engine("sqlite://", poolclass=pool)
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
        for number in range(3):
            change(connection, number)
            with client.transaction(SqlParticipant(connection, resource)) as tx:
                tx.send(topic, b"%d" % number)
    assert effects(engine) == visible(client, topic) == [0, 1, 2]
    run(client, topic, SqlParticipant(engine, resource), 3)
    with pytest.raises(ZeroDivisionError):
        run(client, topic, SqlParticipant(engine, resource), 4, ZeroDivisionError())
    assert effects(engine) == visible(client, topic) == [0, 1, 2, 3]
    engine.dispose()


def test_outside_of_a_transaction_there_is_no_connection(client: Client, engine: Engine, resource: str) -> None:
    database = SqlParticipant(engine, resource)
    with pytest.raises(TransactionClosed):
        _ = database.connection
    with client.transaction(database), pytest.raises(TransactionClosed):
        client.transaction(database).start()
    with pytest.raises(TransactionClosed):
        database.commit_tx()


@pytest.mark.parametrize("resource", ["", "x" * 250])
def test_a_resource_has_a_name(engine: Engine, resource: str) -> None:
    with pytest.raises(ValueError, match="249"):
        SqlParticipant(engine, resource)


def test_where_nothing_could_be_committed_together_no_transaction_begins(client: Client, engine: Engine, resource: str) -> None:
    def start(database: Any) -> None:
        client.transaction(SqlParticipant(database, resource)).start()

    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection, pytest.raises(ValueError, match="AUTOCOMMIT"):
        start(connection)
    with pytest.raises(ValueError, match="AUTOCOMMIT"):
        start(autocommit)
    savepoint = pytest.raises(ValueError, match="savepoint")
    with engine.connect() as connection, connection.begin(), connection.begin_nested(), savepoint:
        start(connection)
    bound = pytest.raises(ValueError, match="give the connection")
    with engine.connect() as connection, Session(connection) as session, bound:
        start(session)
    with pytest.raises(TypeError):
        start("sqlite://")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_who_ends_the_databases_transaction_himself_is_told(
    client: Client, topic: str, engine: Engine, resource: str, end: str
) -> None:
    database = SqlParticipant(engine, resource)
    context = client.transaction(database)
    context.start()
    both(context, topic, database, 1)
    getattr(database.connection, end)()
    change(database.connection, 2)
    with pytest.raises(TransactionFailed, match="inside the transaction"):
        context.finish()
    assert effects(engine) == ([1] if end == "commit" else [])
    assert visible(client, topic) == []


# --- the commit of the database -----------------------------------------------------------------------------------------


def test_a_database_that_refuses_to_commit_refuses_for_all(client: Client, topic: str, engine: Engine, resource: str) -> None:
    """A constraint that is checked at the commit: the database's own COMMIT fails."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parents (n INTEGER PRIMARY KEY)"))
        parent = "INTEGER REFERENCES parents (n) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE children (n {parent})"))
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")
        connection.commit()
        database = SqlParticipant(connection, resource)
        context = client.transaction(database)
        context.start()
        connection.execute(text("INSERT INTO children VALUES (5)"))
        both(context, topic, database, 1)
        with pytest.raises(IntegrityError):
            context.finish()
    assert effects(engine) == visible(client, topic) == []
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


LOST = OperationalError("COMMIT", None, Exception("the connection is lost"))


@pytest.mark.parametrize("through", ["engine", "session", "connection"])
def test_a_commit_that_failed_though_it_was_done_counts(
    client: Client, topic: str, engine: Engine, resource: str, through: str
) -> None:
    working = {"engine": lambda: engine, "session": lambda: Session(engine), "connection": engine.connect}[through]()
    database = Faulty(working, resource, fault=LOST, done=True)
    run(client, topic, database, 1)
    run(client, topic, database, 2)
    if not isinstance(working, Engine):
        working.close()
    assert effects(engine) == visible(client, topic) == [1, 2]


def test_a_commit_that_failed_and_was_not_done_undoes_everything(
    client: Client, topic: str, engine: Engine, resource: str
) -> None:
    database = Faulty(engine, resource, fault=LOST, done=False)
    with pytest.raises(OperationalError):
        run(client, topic, database, 1)
    run(client, topic, database, 2)
    assert effects(engine) == visible(client, topic) == [2]


@pytest.mark.parametrize("done", [True, False])
def test_ctrl_c_in_the_databases_commit_is_raised_and_nothing_is_half(
    client: Client, topic: str, engine: Engine, resource: str, done: bool
) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        run(client, topic, Faulty(engine, resource, fault=KeyboardInterrupt(), done=done), 1)
    assert effects(engine) == visible(client, topic) == ([1] if done else [])
    assert bool(getattr(caught.value, "__notes__", ())) is done  # "committed all the same"


@pytest.mark.parametrize("exhausted", [True, False])
@pytest.mark.parametrize("done", [True, False])
def test_a_commit_that_nobody_can_ask_for_is_in_doubt_until_the_database_is_back(
    client: Client, topic: str, engine: Engine, resource: str, done: bool, exhausted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_participant, "RESOLVE_SECONDS", 0.1)
    database = Faulty(engine, resource, fault=LOST, done=done)
    with monkeypatch.context() as gone:
        fault = PoolTimeout("QueuePool limit reached") if exhausted else None
        gone.setattr(database._markers, "decided", Mock(return_value=None, side_effect=fault))
        with pytest.raises(TransactionInDoubt) as caught:
            run(client, topic, database, 1)
    assert visible(client, topic) == []
    assert client.transaction_status(caught.value.write_pointer).state == "in_progress"
    run(client, topic, database, 2)
    assert effects(engine) == visible(client, topic) == ([1, 2] if done else [2])


# --- recovery -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [TransactionsUnavailable("planted"), InternalError("planted")])
def test_a_commit_that_could_not_be_told_to_the_service_is_told_before_the_next_one(
    recorded: RecordedClient, topic: str, engine: Engine, resource: str, fault: Exception
) -> None:
    database = SqlParticipant(engine, resource)
    recorded.faults = {"commit": [fault] * 20, "status": [fault] * 20}
    with pytest.raises(TransactionInDoubt):
        run(recorded, topic, database, 1)
    recorded.faults.clear()
    assert (effects(engine), visible(recorded, topic)) == ([1], [])
    run(recorded, topic, database, 2)
    assert effects(engine) == visible(recorded, topic) == [1, 2]


def test_a_transaction_is_recovered_by_hand_once(recorded: RecordedClient, topic: str, engine: Engine, resource: str) -> None:
    recorded.faults = {"commit": [TransactionsUnavailable()] * 20}
    with pytest.raises(TransactionInDoubt) as caught:
        run(recorded, topic, SqlParticipant(engine, resource), 1)
    recorded.faults.clear()
    again = SqlParticipant(engine, resource)
    assert again.recover(recorded) == {caught.value.write_pointer: "committed"}
    assert again.recover(recorded) == {}
    assert visible(recorded, topic) == [1]


def test_only_transactions_of_the_own_resource_are_recovered(client: Client, topic: str, engine: Engine, resource: str) -> None:
    context = prepared(client, topic, SqlParticipant(engine, resource), 1)
    assert SqlParticipant(engine, resource + "-other").recover(client) == {}
    context.finish()
    assert effects(engine) == visible(client, topic) == [1]


def test_who_wakes_up_after_being_recovered_changes_nothing(client: Client, topic: str, tmp_path: Path, resource: str) -> None:
    engine = open_engine(tmp_path / "zombie.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
    zombie = SqlParticipant(engine, resource)
    context = client.transaction(zombie)
    context.start()
    context.send(topic, b"1")
    client.can_commit(context.transaction_id, (), resource)  # and then it sleeps
    other = SqlParticipant(open_engine(tmp_path / "zombie.db"), resource)
    assert other.recover(client) == {context.transaction_id: "aborted"}
    run(client, topic, other, 2)
    change(zombie.connection, 1)
    with pytest.raises(TransactionNotInProgress) as caught:
        context.finish()
    assert caught.value.state == "aborted"
    assert effects(engine) == visible(client, topic) == [2]
    engine.dispose()


def test_a_database_that_is_busy_is_left_for_the_next_time(client: Client, topic: str, tmp_path: Path, resource: str) -> None:
    """Another process holds its lock, with the marker written and not committed: it goes on, and it counts."""
    engine = open_engine(tmp_path / "busy.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
    busy = SqlParticipant(engine, resource)
    run(client, topic, busy, 0)
    context = prepared(client, topic, busy, 1)
    busy.commit_tx()
    other = SqlParticipant(open_engine(tmp_path / "busy.db"), resource)
    assert other.recover(client) == {context.transaction_id: "in_doubt"}
    busy.commit_tx = lambda: None  # type: ignore[method-assign]  # done already
    context.finish()
    assert effects(engine) == visible(client, topic) == [0, 1]
    assert other.recover(client) == {}
    engine.dispose()


def test_a_marker_goes_when_it_has_served(client: Client, topic: str, engine: Engine, resource: str) -> None:
    first = SqlParticipant(engine, resource)
    run(client, topic, first, 1)
    pointer = run(client, topic, first, 2)
    assert markers(engine) == {pointer: "committed"}
    pointer = run(client, topic, SqlParticipant(engine, resource), 3)  # found in the table by another process
    assert markers(engine) == {pointer: "committed"}


def test_a_marker_of_what_was_recovered_as_aborted_stays_until_nobody_can_be_alive(
    client: Client, topic: str, tmp_path: Path, engine: Engine, resource: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = client.transaction(SqlParticipant(open_engine(tmp_path / "data.db"), resource))
    context.start()
    client.can_commit(context.transaction_id, (), resource)
    database = SqlParticipant(engine, resource)
    database.recover(client)
    pointer = run(client, topic, database, 1)
    assert markers(engine) == {context.transaction_id: "aborted", pointer: "committed"}
    monkeypatch.setattr(sql_participant, "KEPT_MS", -1000)
    database = SqlParticipant(engine, resource)
    last = run(client, topic, database, 2)
    assert markers(engine) == {last: "committed"}


@pytest.mark.parametrize("through", [1, 2])
def test_a_process_that_hangs_in_its_commit_holds_up_nobody_elses_recovery(
    client: Client, topic: str, request: pytest.FixtureRequest, resource: str, through: int
) -> None:
    """It has written its marker and not committed it. PostgreSQL would let whoever writes the same one wait for ever."""
    url = make_url(request.getfixturevalue("postgres").fresh_schema())
    # Who waits for ever is told so, in a minute.
    engine = create_engine(url.update_query_dict({"options": f"{url.query.get('options', '')} -c statement_timeout=60000"}))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
    run(client, topic, SqlParticipant(engine, resource), 0)
    hanging, gone = SqlParticipant(engine, resource), SqlParticipant(engine, resource)
    hangs, died = client.transaction(hanging), client.transaction(gone)
    for context in (hangs, died):
        context.start()
    both(hangs, topic, hanging, 1)
    hanging.prepared_tx(client, client.can_commit(hangs.transaction_id, (), resource))
    client.can_commit(died.transaction_id, (), resource)
    hanging.commit_tx()
    gone.rollback_tx()
    other = SqlParticipant(engine, resource, lock_timeout=0.2)
    if through == 1:
        found = other.recover(client)
        assert found == {hangs.transaction_id: "in_doubt", died.transaction_id: "aborted"}
        assert other.recover(client) == {hangs.transaction_id: "in_doubt"}, "left for the next time"
    else:
        run(client, topic, other, 3)
    hanging.commit_tx = lambda: None  # type: ignore[method-assign]  # done already
    hangs.finish()
    assert effects(engine) == ([0, 1] if through == 1 else [0, 1, 3])
    assert sorted(visible(client, topic)) == effects(engine)
    engine.dispose()


def test_two_services_that_handed_out_the_same_pointer_do_not_take_each_others_decisions(
    topic: str, engine: Engine, resource: str
) -> None:
    """Also under the same resource: what differs are their stores."""
    clock = ManualClock()
    with ExitStack() as stack:
        clients = [Client(stack.enter_context(running_service(clock=clock)).url) for _ in range(2)]
        for each in clients:
            each.create_topic(topic)
        databases = [SqlParticipant(engine, resource) for _ in clients]
        databases[0].table.create(engine)
        contexts = []
        for each, database in zip(clients, databases, strict=True):
            each.abort_transaction(each.start_transaction().write_pointer)
            contexts.append(each.transaction(database))
            contexts[-1].start()
        assert len({context.transaction_id for context in contexts}) == 1, "the same number"
        committed, undecided = contexts
        both(committed, topic, databases[0], 1)
        committed.finish()
        databases[1].rollback_tx()
        clients[1].can_commit(undecided.transaction_id, (), resource)  # and then it dies
        recovered = SqlParticipant(engine, resource).recover(clients[1])
        assert recovered == {undecided.transaction_id: "aborted"}
        assert SqlParticipant(engine, resource).recover(clients[0]) == {}
        assert clients[0].transaction_status(committed.transaction_id).state == "committed"
        run(clients[1], topic, SqlParticipant(engine, resource), 2)
        assert (effects(engine), visible(clients[0], topic), visible(clients[1], topic)) == ([1, 2], [1], [2])


def test_a_table_of_markers_of_another_kind_is_told_as_such(client: Client, engine: Engine, resource: str) -> None:
    with engine.begin() as connection:
        old = "write_pointer BIGINT PRIMARY KEY, resource VARCHAR(249), state VARCHAR(9), ended_ms BIGINT"
        connection.execute(text(f"CREATE TABLE oncelog_transactions ({old})"))
    with pytest.raises(ValueError, match="lacks: store_id"):
        client.transaction(SqlParticipant(engine, resource)).start()


# --- processes that die -------------------------------------------------------------------------------------------------

STEPS = ("changed", "prepared", "marked", "published", "decided", "committed")
DEATHS = textwrap.dedent(
    """
    import json, os, signal, sys
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool
    from oncelog import Client, SqlParticipant, TransactionContext

    url, path, plan = *sys.argv[1:3], json.loads(sys.argv[3])

    class Mortal(Client):
        def after(self, step):
            if step == self.step:
                os.kill(os.getpid(), signal.SIGKILL)

        def can_commit(self, *given):
            store_id = super().can_commit(*given)
            self.after("prepared")
            return store_id

        def publish_transactional(self, *given):
            answer = super().publish_transactional(*given)
            self.after("published")
            return answer

        def commit_transaction(self, pointer, changes=()):
            if pointer == self.own:
                self.after("decided")
            answer = super().commit_transaction(pointer, changes)
            if pointer == self.own:
                self.after("committed")
            return answer

    class Database(SqlParticipant):
        def commit_tx(self):
            super().commit_tx()
            self.client.after("marked")

    for number, (step, resource, topic) in enumerate(plan):
        pid = os.fork()
        if not pid:
            client = Mortal(url)
            client.step, client.own = step, None
            engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
            database = Database(engine, resource)
            database.client = client
            with client.transaction(database, timeout=1) as tx:
                client.own = tx.transaction_id
                database.connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})
                tx.send(topic, b"%d" % number)
                client.after("changed")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL, step
    """
)


@pytest.fixture(scope="module")
def killed(house: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The database after one process died at each step: with a resource and topic of its own each, then with the same for all."""
    path = tmp_path_factory.mktemp("killed") / "data.db"
    plan = [(step, step, f"killed-{step}") for step in STEPS] + [(step, "same", "killed") for step in STEPS]
    with Client(house.url) as client:
        for topic in {topic for _, _, topic in plan}:
            client.create_topic(topic)
    engine = open_engine(path)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
    subprocess.run([sys.executable, "-c", DEATHS, house.url, str(path), json.dumps(plan)], check=True, timeout=PATIENCE)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_is_killed_leaves_what_the_next_one_completes(client: Client, killed: Engine, step: str) -> None:
    number = STEPS.index(step)
    done = step in ("decided", "committed")
    assert (number in effects(killed)) is done
    recovered = SqlParticipant(killed, step).recover(client)
    assert list(recovered.values()) == {"changed": [], "committed": [], "decided": ["committed"]}.get(step, ["aborted"])
    assert visible(client, f"killed-{step}") == ([number] if done else [])


def test_whenever_the_process_is_killed_both_change_or_neither(client: Client, killed: Engine) -> None:
    """Each process found what the one before it had left; what the last one left is recovered here."""
    SqlParticipant(killed, "same").recover(client)
    expected = [len(STEPS) + STEPS.index(step) for step in ("decided", "committed")]
    assert [number for number in effects(killed) if number >= len(STEPS)] == expected
    until(lambda: visible(client, "killed") == expected, "the first one, which was not prepared, times out", every=0.05)
