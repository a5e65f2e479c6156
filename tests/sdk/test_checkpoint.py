"""Position and effects commit together or not at all, and two processes never both move one position."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from oncelog.errors import CheckpointConflict
from oncelog.message_id import MessageId
from oncelog.sql.checkpoint import Checkpoint
from oncelog.values.message import Message
from tests.patience import PATIENCE
from tests.postgres import PostgresServer


def at(number: int) -> MessageId:
    """The id of the message with this number, for a log that gets one a millisecond."""
    return MessageId(1_790_000_000_000 + number, 0)


def message(number: int) -> Message:
    return Message({"id": bytes(at(number)), "payload": b""})


def open_database(path: Path, wal: bool = False) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": PATIENCE})
    with engine.connect() as connection:
        connection.execute(text("PRAGMA journal_mode=" + ("WAL" if wal else "DELETE")))
        connection.execute(text("CREATE TABLE IF NOT EXISTS effects (n INTEGER)"))
        connection.commit()
    return engine


@pytest.fixture(params=[False, True], ids=["rollback journal", "WAL"])
def wal(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def database(tmp_path: Path, wal: bool) -> Iterator[Callable[[], Engine]]:
    """Opens the same database file again and again, as separate processes would."""
    engines: list[Engine] = []

    def another() -> Engine:
        engines.append(open_database(tmp_path / "data.db", wal))
        return engines[-1]

    yield another
    for engine in engines:
        engine.dispose()


def stored(engine: Engine, checkpoint: Checkpoint) -> MessageId | None:
    """What a new process would begin with."""
    fresh = Checkpoint(checkpoint.name, checkpoint.topic, checkpoint.namespace, checkpoint.table.name)
    with engine.begin() as connection:
        return fresh.load(connection)


@contextmanager
def rolled_back(engine: Engine) -> Iterator[Connection]:
    """A transaction that the caller gives up."""
    with engine.connect() as connection:
        yield connection
        connection.rollback()


def effects(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT n FROM effects ORDER BY rowid")).scalars())


# --- the plain use ------------------------------------------------------------------------------------------------------


def test_a_new_reader_has_no_position(database: Callable[[], Engine]) -> None:
    with database().begin() as connection:
        assert Checkpoint("r", "t").load(connection) is None


def test_a_saved_position_is_found_by_the_next_process(database: Callable[[], Engine]) -> None:
    checkpoint = Checkpoint("r", "t")
    with database().begin() as connection:
        checkpoint.save(connection, at(1))
        checkpoint.save(connection, at(2))
    assert stored(database(), checkpoint) == at(2)


def test_a_message_may_be_saved_as_the_position(database: Callable[[], Engine]) -> None:
    with database().begin() as connection:
        Checkpoint("r", "t").save(connection, message(7))
        assert Checkpoint("r", "t").load(connection) == at(7)


def test_the_position_is_stored_as_its_text_form(database: Callable[[], Engine]) -> None:
    with database().begin() as connection:
        Checkpoint("r", "t", "ns").save(connection, at(7))
        row = connection.execute(text("SELECT name, namespace, topic, position, version FROM oncelog_checkpoints")).one()
    assert tuple(row) == ("r", "ns", "t", str(at(7)), 1)


def test_session_scoped_session_and_connection_do_the_same(database: Callable[[], Engine]) -> None:
    engine = database()
    checkpoint = Checkpoint("r", "t")
    with Session(engine) as session, session.begin():
        checkpoint.save(session, at(1))
    with engine.begin() as connection:
        assert checkpoint.load(connection) == at(1)
        checkpoint.save(connection, at(2))
    scoped = scoped_session(sessionmaker(engine))
    assert checkpoint.load(scoped) == at(2)
    checkpoint.save(scoped, at(3))
    scoped.commit()
    scoped.remove()
    assert stored(engine, checkpoint) == at(3)


def test_nothing_is_committed_for_the_caller(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    with Session(engine) as session:
        checkpoint.load(session)
        checkpoint.save(session, at(1))
        session.rollback()
    assert stored(engine, checkpoint) is None


def test_readers_topics_and_namespaces_share_a_table_without_touching_each_other(database: Callable[[], Engine]) -> None:
    keys = [(name, topic, namespace) for name in ("r", "s") for topic in ("t", "u") for namespace in ("default", "other")]
    checkpoints = [Checkpoint(*key) for key in keys]
    engine = database()
    with engine.begin() as connection:
        for number, checkpoint in enumerate(checkpoints):
            checkpoint.save(connection, at(number))
    checkpoints[3].load(connection := engine.connect())
    checkpoints[3].save(connection, at(100))
    connection.commit()
    connection.close()
    expected = [at(number) for number in range(len(keys))]
    expected[3] = at(100)
    assert [stored(engine, checkpoint) for checkpoint in checkpoints] == expected


def test_another_table_is_another_checkpoint(database: Callable[[], Engine]) -> None:
    engine = database()
    here, there = Checkpoint("r", "t"), Checkpoint("r", "t", table="progress")
    with engine.begin() as connection:
        here.save(connection, at(1))
        there.save(connection, at(2))
    assert (stored(engine, here), stored(engine, there)) == (at(1), at(2))


# --- forwards, unless told otherwise ------------------------------------------------------------------------------------


def test_a_position_never_goes_back(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    with engine.begin() as connection:
        checkpoint.save(connection, at(5))
        with pytest.raises(ValueError, match="reset"):
            checkpoint.save(connection, at(4))
    assert stored(engine, checkpoint) == at(5)


def test_saving_the_same_position_again_is_allowed(database: Callable[[], Engine]) -> None:
    with database().begin() as connection:
        checkpoint = Checkpoint("r", "t")
        checkpoint.save(connection, at(5))
        checkpoint.save(connection, at(5))
        assert checkpoint.load(connection) == at(5)


def test_reset_moves_anywhere_without_having_loaded(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    with engine.begin() as connection:
        checkpoint.save(connection, at(5))
    for position in (at(2), message(1), None, at(9)):
        with engine.begin() as connection:
            Checkpoint("r", "t").reset(connection, position)
        assert stored(engine, checkpoint) == (position.message_id if isinstance(position, Message) else position)


def test_a_reader_goes_on_after_its_own_reset(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    with engine.begin() as connection:
        checkpoint.reset(connection, None)
        checkpoint.save(connection, at(5))
        checkpoint.reset(connection, at(1))
        checkpoint.save(connection, at(2))
    assert stored(engine, checkpoint) == at(2)


def test_a_reset_stops_the_reader_that_runs_meanwhile(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    with engine.begin() as connection:
        checkpoint.save(connection, at(5))
    with engine.begin() as connection:
        Checkpoint("r", "t").reset(connection, at(5))  # the same position: still a move
    with pytest.raises(CheckpointConflict), engine.begin() as connection:
        checkpoint.save(connection, at(6))
    assert stored(engine, checkpoint) == at(5)


# --- two processes ------------------------------------------------------------------------------------------------------


def test_the_second_of_two_processes_is_refused_and_its_effects_are_undone(database: Callable[[], Engine]) -> None:
    mine, other, checkpoint, rival = database(), database(), Checkpoint("r", "t"), Checkpoint("r", "t")
    with mine.begin() as connection:
        checkpoint.save(connection, at(1))
    with other.begin() as connection:
        assert rival.load(connection) == at(1)
        connection.execute(text("INSERT INTO effects VALUES (2)"))
        rival.save(connection, at(2))
    with rolled_back(mine) as connection:
        connection.execute(text("INSERT INTO effects VALUES (2)"))
        with pytest.raises(CheckpointConflict) as caught:
            checkpoint.save(connection, at(2))
    assert (caught.value.name, caught.value.expected, caught.value.actual) == ("r", str(at(1)), str(at(2)))
    assert caught.value.definite
    assert effects(mine) == [2]
    with mine.begin() as connection:
        assert checkpoint.load(connection) == at(2)
        checkpoint.save(connection, at(3))
    assert stored(other, rival) == at(3)


def test_of_two_first_saves_one_is_refused(database: Callable[[], Engine]) -> None:
    mine, other, checkpoint, rival = database(), database(), Checkpoint("r", "t"), Checkpoint("r", "t")
    for engine, each in ((mine, checkpoint), (other, rival)):
        with engine.begin() as connection:
            assert each.load(connection) is None
    with other.begin() as connection:
        rival.save(connection, at(1))
    with rolled_back(mine) as connection:
        connection.execute(text("INSERT INTO effects VALUES (1)"))
        with pytest.raises(CheckpointConflict) as caught:
            checkpoint.save(connection, at(1))
    assert (caught.value.expected, caught.value.actual) == (None, str(at(1)))
    assert effects(mine) == []


def test_a_position_that_was_never_loaded_is_not_overwritten(database: Callable[[], Engine]) -> None:
    engine = database()
    with engine.begin() as connection:
        Checkpoint("r", "t").save(connection, at(5))
    with pytest.raises(CheckpointConflict, match="load"), engine.begin() as connection:
        Checkpoint("r", "t").save(connection, at(9))
    assert stored(engine, Checkpoint("r", "t")) == at(5)


def test_a_deleted_row_is_a_conflict_too(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    with engine.begin() as connection:
        checkpoint.save(connection, at(1))
        connection.execute(text("DELETE FROM oncelog_checkpoints"))
        with pytest.raises(CheckpointConflict) as caught:
            checkpoint.save(connection, at(2))
    assert (caught.value.expected, caught.value.actual) == (str(at(1)), None)


def test_a_position_moved_away_and_back_is_noticed(database: Callable[[], Engine]) -> None:
    mine, other, checkpoint = database(), database(), Checkpoint("r", "t")
    with mine.begin() as connection:
        checkpoint.save(connection, at(1))
    rival = Checkpoint("r", "t")
    for position in (at(2), at(1)):
        with other.begin() as connection:
            rival.reset(connection, position)
    with pytest.raises(CheckpointConflict), mine.begin() as connection:
        checkpoint.save(connection, at(2))


# --- rollback -----------------------------------------------------------------------------------------------------------


def failed_batch(engine: Engine, checkpoint: Checkpoint, number: int) -> None:
    with rolled_back(engine) as connection:
        connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})
        checkpoint.save(connection, at(number))


@pytest.mark.parametrize("before", [None, 1], ids=["the first save", "a later save"])
def test_after_a_rollback_load_answers_what_is_stored_and_saving_goes_on(
    database: Callable[[], Engine], before: int | None
) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    if before is not None:
        with engine.begin() as connection:
            checkpoint.save(connection, at(before))
    failed_batch(engine, checkpoint, 5)
    with engine.begin() as connection:
        assert checkpoint.load(connection) == (None if before is None else at(before))
        checkpoint.save(connection, at(3))
    assert stored(engine, checkpoint) == at(3)
    assert effects(engine) == []


@pytest.mark.parametrize("before", [None, 1], ids=["the first save", "a later save"])
@pytest.mark.parametrize("after", [3, 5, 7], ids=["less", "the same", "more"])
def test_a_reader_that_goes_on_after_a_rollback_without_loading_is_refused(
    database: Callable[[], Engine], before: int | None, after: int
) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    if before is not None:
        with engine.begin() as connection:
            checkpoint.save(connection, at(before))
    failed_batch(engine, checkpoint, 5)
    with pytest.raises(CheckpointConflict, match="load"), engine.begin() as connection:
        checkpoint.save(connection, at(after))
    assert stored(engine, checkpoint) == (None if before is None else at(before))


def test_a_rolled_back_save_does_not_hide_what_another_process_did(database: Callable[[], Engine]) -> None:
    mine, other, checkpoint = database(), database(), Checkpoint("r", "t")
    failed_batch(mine, checkpoint, 5)
    with other.begin() as connection:
        Checkpoint("r", "t").save(connection, at(6))
    with pytest.raises(CheckpointConflict), mine.begin() as connection:
        checkpoint.save(connection, at(7))
    with mine.begin() as connection:
        assert checkpoint.load(connection) == at(6)


def test_after_a_conflict_the_next_load_recovers(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    with engine.begin() as connection:
        Checkpoint("r", "t").save(connection, at(5))
    with Session(engine) as session:
        with pytest.raises(CheckpointConflict):
            checkpoint.save(session, at(1))
        session.rollback()
        assert checkpoint.load(session) == at(5)
        checkpoint.save(session, at(6))
        session.commit()
    assert stored(engine, checkpoint) == at(6)


# --- the table ----------------------------------------------------------------------------------------------------------


def test_a_table_whose_creation_was_rolled_back_is_created_again(database: Callable[[], Engine]) -> None:
    engine = database()
    first, second = Checkpoint("r", "t"), Checkpoint("s", "t")
    for _ in range(2):
        with rolled_back(engine) as connection:
            connection.execute(text("INSERT INTO effects VALUES (1)"))  # begins the transaction that the table is created in
            for checkpoint in (first, second, first, second):
                checkpoint.load(connection)
        assert not inspect(engine).has_table("oncelog_checkpoints")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO effects VALUES (1)"))
        first.load(connection)
        second.load(connection)
        first.save(connection, at(1))
        second.save(connection, at(2))
    assert (stored(engine, first), stored(engine, second)) == (at(1), at(2))


def test_once_the_table_is_known_no_call_asks_for_it(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t")
    for number in range(2):
        with engine.begin() as connection:
            checkpoint.load(connection)
            checkpoint.save(connection, at(number))
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *about: statements.append(about[2].split()[0]))
    with engine.begin() as connection:
        checkpoint.load(connection)
        checkpoint.save(connection, at(3))
    assert statements == ["SELECT", "UPDATE"]


def test_the_table_is_created_in_a_memory_database_without_committing_the_caller() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
    with rolled_back(engine) as connection:
        connection.execute(text("INSERT INTO effects VALUES (1)"))
        Checkpoint("r", "t").save(connection, at(1))
    assert effects(engine) == []


def test_the_table_may_have_been_made_by_a_migration(database: Callable[[], Engine]) -> None:
    engine, checkpoint = database(), Checkpoint("r", "t", table="made_before")
    checkpoint.table.metadata.create_all(engine)
    with engine.begin() as connection:
        checkpoint.save(connection, at(1))
    assert stored(engine, checkpoint) == at(1)


def test_ten_processes_may_create_the_table_at_once(database: Callable[[], Engine]) -> None:
    engines = [database() for _ in range(10)]
    barrier = threading.Barrier(len(engines))
    failures: list[BaseException] = []

    def first_use(number: int, engine: Engine) -> None:
        try:
            barrier.wait(PATIENCE)
            checkpoint = Checkpoint(f"r{number}", "t")
            with engine.begin() as connection:
                checkpoint.load(connection)
                checkpoint.save(connection, at(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=first_use, args=each) for each in enumerate(engines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    assert [stored(engines[0], Checkpoint(f"r{number}", "t")) for number in range(10)] == [at(number) for number in range(10)]


# --- a transaction of one's own choice ----------------------------------------------------------------------------------


def test_a_savepoint_that_is_rolled_back_takes_the_position_with_it(tmp_path: Path) -> None:
    engine = open_database(tmp_path / "data.db")
    # Savepoints need a real BEGIN, which Python's driver by default leaves out before anything that is no DML.
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    engine.dispose()
    checkpoint = Checkpoint("r", "t")
    with Session(engine) as session, session.begin():
        checkpoint.save(session, at(1))
        savepoint = session.begin_nested()
        checkpoint.save(session, at(2))
        savepoint.rollback()
        with pytest.raises(CheckpointConflict):
            checkpoint.save(session, at(3))
        assert checkpoint.load(session) == at(1)
        checkpoint.save(session, at(4))
    assert stored(engine, checkpoint) == at(4)
    engine.dispose()


def test_an_engine_is_refused_because_it_has_no_transaction_to_share(database: Callable[[], Engine]) -> None:
    with pytest.raises(TypeError, match="Engine"):
        Checkpoint("r", "t").load(database())  # type: ignore[arg-type]


def test_autocommit_is_refused_because_nothing_could_be_rolled_back(database: Callable[[], Engine]) -> None:
    engine = database().execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(ValueError, match="AUTOCOMMIT"):
        Checkpoint("r", "t").load(connection)


def test_autocommit_of_the_whole_engine_is_refused_too(postgres: PostgresServer) -> None:
    engine = create_engine(postgres.fresh_schema(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(ValueError, match="AUTOCOMMIT"):
        Checkpoint("r", "t").load(connection)
    engine.dispose()


@pytest.mark.parametrize("position", [None, str(at(1)), bytes(at(1)), 1])
def test_a_position_is_a_message_id_or_a_message(database: Callable[[], Engine], position: object) -> None:
    with database().begin() as connection, pytest.raises(TypeError, match="MessageId"):
        Checkpoint("r", "t").save(connection, position)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [("", "t"), ("r", ""), ("r", "t", ""), ("r" * 250, "t")])
def test_a_name_that_a_database_could_not_hold_is_refused(key: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="1 to 249"):
        Checkpoint(*key)


def test_importing_oncelog_loads_no_sqlalchemy() -> None:
    code = "import sys, oncelog; assert 'sqlalchemy' not in sys.modules; oncelog.Checkpoint; assert 'sqlalchemy' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


# --- real processes -----------------------------------------------------------------------------------------------------

CONSUMER = textwrap.dedent(
    """
    import sys
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import OperationalError
    from oncelog.sql.checkpoint import Checkpoint
    from oncelog.errors import CheckpointConflict
    from oncelog.message_id import MessageId

    path, last = sys.argv[1], int(sys.argv[2])
    engine = create_engine("sqlite:///" + path, connect_args={"timeout": 180})
    checkpoint = Checkpoint("r", "t")
    conflicts = 0
    while True:
        try:
            with engine.begin() as connection:
                position = checkpoint.load(connection)
                number = 0 if position is None else position.publish_timestamp - 1_790_000_000_000 + 1
                if number > last:
                    break
                print(number, flush=True)
                connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})
                if number % 3 == 0:
                    print("inside", flush=True)  # a good moment to be killed
                checkpoint.save(connection, MessageId(1_790_000_000_000 + number, 0))
        except CheckpointConflict:
            conflicts += 1
    print("done", conflicts, flush=True)
    """
)


def consumer(path: Path, last: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CONSUMER, str(path), str(last)], stdout=subprocess.PIPE, text=True)


def test_two_processes_that_fight_over_one_position_do_everything_once(tmp_path: Path, wal: bool) -> None:
    path, last = tmp_path / "data.db", 300
    engine = open_database(path, wal)
    rivals = [consumer(path, last) for _ in range(2)]
    answers = [rival.communicate(timeout=PATIENCE)[0].splitlines()[-1].split() for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0, 0]
    assert [answer[0] for answer in answers] == ["done", "done"]
    assert effects(engine) == list(range(last + 1))
    assert stored(engine, Checkpoint("r", "t")) == at(last)
    engine.dispose()


def test_a_consumer_killed_inside_its_transaction_leaves_effects_and_position_agreeing(tmp_path: Path, wal: bool) -> None:
    path, last = tmp_path / "data.db", 60
    engine = open_database(path, wal)
    for kill in range(5):
        victim = consumer(path, last)
        assert victim.stdout is not None
        inside = (line for line in victim.stdout if line == "inside\n")
        for _ in range(kill % 2 + 1):
            assert next(inside, None), "the consumer was done before it could be killed"
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(PATIENCE)
        victim.stdout.close()
        position = stored(engine, Checkpoint("r", "t"))
        done = [] if position is None else list(range(position.publish_timestamp - at(0).publish_timestamp + 1))
        assert effects(engine) == done
    survivor = consumer(path, last)
    assert survivor.communicate(timeout=PATIENCE)[0].endswith("done 0\n")
    assert effects(engine) == list(range(last + 1))
    engine.dispose()


def test_a_consumer_killed_between_its_effect_and_its_position_has_had_no_effect(tmp_path: Path, wal: bool) -> None:
    """The window between effect and position, held open for certain: the process waits there for input that never comes."""
    path = tmp_path / "data.db"
    engine = open_database(path, wal)
    code = CONSUMER.replace('print("inside", flush=True)', 'print("inside", flush=True); sys.stdin.read()')
    victim = subprocess.Popen(
        [sys.executable, "-c", code, str(path), "60"], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    assert [next(victim.stdout), next(victim.stdout)] == ["0\n", "inside\n"]
    victim.kill()
    victim.communicate(timeout=PATIENCE)
    assert effects(engine) == []
    assert stored(engine, Checkpoint("r", "t")) is None
    engine.dispose()
