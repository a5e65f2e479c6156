"""Position and effects commit together or not at all, and two processes never both move one position."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from oncelog import Client, Reader
from oncelog.errors import CheckpointConflict, InvalidMessageId, StaleMessageId
from oncelog.message_id import MessageId
from oncelog.sql.checkpoint import Checkpoint
from oncelog.values.message import Message, Source
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE
from tests.sdk.databases import change, opened, with_effects


def at(number: int) -> MessageId:
    """The id of the message with this number, for a log that gets one a millisecond."""
    return MessageId(1_790_000_000_000 + number, 0)


def message(number: int, topic: str | None = None, generation: int = 1, namespace: str = "default") -> Message:
    record = {"id": bytes(at(number)), "offset": number, "payload": b""}
    return Message(record, source=None if topic is None else Source(None, namespace, topic, generation))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with opened(f"sqlite:///{tmp_path}/data.db") as engine:
        yield with_effects(engine)


@pytest.fixture
def checkpoint() -> Checkpoint:
    return Checkpoint("r", "t")


def stored(engine: Engine, checkpoint: Checkpoint) -> MessageId | None:
    """What a new process would begin with."""
    fresh = Checkpoint(checkpoint.name, checkpoint.topic, checkpoint.namespace, checkpoint.table.name)
    with engine.begin() as connection:
        return fresh.load(connection)


@contextmanager
def rolled_back(engine: Engine) -> Iterator[Connection]:
    """A transaction with an effect that the caller gives up."""
    with engine.connect() as connection:
        change(connection)
        yield connection
        connection.rollback()


def save(engine: Engine, checkpoint: Checkpoint, *numbers: int) -> None:
    with engine.begin() as connection:
        for number in numbers:
            checkpoint.save(connection, at(number))


# --- the plain use ------------------------------------------------------------------------------------------------------


def test_the_row_of_a_checkpoint_stays_as_it_is(engine: Engine) -> None:
    checkpoint = Checkpoint("r", "t", "ns")
    with engine.begin() as connection:
        for position in (at(1), message(7), at(7)):
            checkpoint.save(connection, position)
        row = connection.execute(text("SELECT name, namespace, topic, position, version FROM oncelog_checkpoints")).one()
    assert tuple(row) == ("r", "ns", "t", str(at(7)), 3)


def test_session_scoped_session_and_connection_do_the_same_and_nothing_is_committed_for_the_caller(
    engine: Engine, checkpoint: Checkpoint
) -> None:
    made: list[Callable[[], Any]] = [lambda: Session(engine), scoped_session(sessionmaker(engine)), engine.connect]
    for number, make in enumerate(made):
        working = make()
        checkpoint.save(working, at(9))
        working.rollback()
        assert checkpoint.load(working) == (at(number - 1) if number else None)
        checkpoint.save(working, at(number))
        working.commit()
        working.close()
    assert stored(engine, checkpoint) == at(2)


def test_names_topics_namespaces_and_tables_do_not_touch_each_other(engine: Engine) -> None:
    keys = [(name, topic, space, table) for name in "rs" for topic in "tu" for space in "ab" for table in ("x", "y")]
    checkpoints = [Checkpoint(*key) for key in keys]
    for number, checkpoint in enumerate(checkpoints):
        save(engine, checkpoint, number)
    save(engine, checkpoints[3], 100)
    assert [stored(engine, each) for each in checkpoints] == [at(100 if each == 3 else each) for each in range(len(keys))]


# --- whose messages move it ---------------------------------------------------------------------------------------------


def test_a_message_of_another_topic_moves_no_checkpoint(engine: Engine, checkpoint: Checkpoint) -> None:
    save(engine, checkpoint, 5)
    with engine.begin() as connection:
        for foreign in (message(9, "u"), message(9, "t", namespace="n")):
            for move in (checkpoint.save, checkpoint.reset):
                with pytest.raises(InvalidMessageId, match=f"default/t, .* of {foreign.namespace}/{foreign.topic}"):
                    move(connection, foreign)
        checkpoint.save(connection, message(6, "t"))
    assert stored(engine, checkpoint) == at(6), "the messages up to the foreign one's time are not passed over"


def test_a_topic_made_anew_under_a_checkpoint_is_told_until_it_is_reset(engine: Engine, checkpoint: Checkpoint) -> None:
    with engine.begin() as connection:
        checkpoint.save(connection, message(1, "t"))
        for other in (2, 3):
            with pytest.raises(StaleMessageId, match=r"deleted and made anew.* reset\(\)") as refused:
                checkpoint.save(connection, message(2, "t", other))
            assert refused.value.generation == 1
        checkpoint.reset(connection, None)
        checkpoint.save(connection, message(2, "t", 2))
        checkpoint.reset(connection, message(1, "t", 3))
        checkpoint.save(connection, message(3, "t", 3))
    assert stored(engine, checkpoint) == at(3)


def test_what_does_not_say_where_it_is_from_is_taken(engine: Engine, checkpoint: Checkpoint) -> None:
    """A bare id, a message made by hand, one of a service that does not say its generation; and a row is an id alone."""
    unsaid = Message({"id": bytes(at(3)), "offset": 3, "payload": b""}, source=Source(None, "default", "t"))
    with engine.begin() as connection:
        for position in (message(1, "t", 1), at(2), message(2, "t", 2), unsaid, message(3, "t", 3), message(4)):
            checkpoint.save(connection, position)
        checkpoint.save(connection, message(5, "t", 7))
        assert checkpoint.load(connection) == at(5)  # and the service says whether it is a place in the topic as it is now
        checkpoint.save(connection, message(6, "t", 8))
    assert stored(engine, checkpoint) == at(6)


# --- conflicts ----------------------------------------------------------------------------------------------------------


WHO, POSITION = st.integers(0, 1), st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("load"), WHO, POSITION, st.just(False)),
    st.tuples(st.sampled_from(["save", "reset"]), WHO, POSITION | st.just(7), st.booleans()),
    st.tuples(st.sampled_from(["begin anew", "forget"]), WHO, POSITION, st.just(False)),
)
"""What is done, by which of two processes, to which position, and whether it is rolled back."""
Row = tuple[int | None, int] | None
"""Position and version."""


def expected(step: str, to: int, row: Row, seen: Row) -> tuple[type[Exception] | None, Row]:
    """What a step raises, and the row behind it."""
    position = {"save": to, "reset": to, "begin anew": None}.get(step)
    if step == "save" and row != seen:
        return CheckpointConflict, row
    if step == "save" and row is not None and row[0] is not None and to < row[0]:
        return ValueError, row
    return None, row if step == "load" else None if step == "forget" else (position, row[1] + 1 if row else 1)


def act(step: str, connection: Connection, checkpoint: Checkpoint, to: int) -> None:
    if step == "save":
        checkpoint.save(connection, message(to))
    elif step in ("reset", "begin anew"):
        checkpoint.reset(connection, at(to) if step == "reset" else None)
    else:
        checkpoint.load(connection)
    if step == "forget":
        connection.execute(text("DELETE FROM oncelog_checkpoints"))
        checkpoint.load(connection)


@given(st.lists(STEPS, max_size=12))
@example([("save", 0, 1, False), ("save", 0, 3, True), ("save", 0, 2, False), ("load", 0, 0, False), ("save", 0, 2, False)])
@example([("save", 0, 1, False), ("save", 0, 2, True), ("reset", 1, 3, False), ("save", 0, 7, False)])
@example([("reset", 0, 1, False), ("reset", 1, 2, False), ("reset", 1, 1, False), ("save", 0, 3, False)])
def test_who_has_not_seen_the_row_as_it_is_does_not_move_it(steps: list[tuple[str, int, int, bool]]) -> None:
    row: Row = None
    seen: list[Row] = [None, None]
    checkpoints = [Checkpoint("r", "t") for _ in range(2)]
    with opened("sqlite://", poolclass=StaticPool) as engine:
        for step, who, to, gives_up in steps:
            error, then = expected(step, to, row, seen[who])
            with engine.connect() as connection:
                if error is None:
                    act(step, connection, checkpoints[who], to)
                    seen[who] = then
                else:
                    with pytest.raises(error, match=r"load|reset") as caught:
                        act(step, connection, checkpoints[who], to)
                    if isinstance(caught.value, CheckpointConflict):
                        at_row = None if row is None or row[0] is None else str(at(row[0]))
                        assert (caught.value.name, caught.value.actual, caught.value.definite) == ("r", at_row, True)
                if not gives_up and error is None:
                    connection.commit()
                    row = then
            assert stored(engine, checkpoints[who]) == (None if row is None or row[0] is None else at(row[0]))


# --- the table ----------------------------------------------------------------------------------------------------------


def test_a_table_whose_creation_was_rolled_back_is_created_again(engine: Engine) -> None:
    first, second = Checkpoint("r", "t"), Checkpoint("s", "t")
    for _ in range(2):
        with rolled_back(engine) as connection:  # which begins the transaction that the table is created in
            for checkpoint in (first, second, first, second):
                checkpoint.load(connection)
        assert not inspect(engine).has_table("oncelog_checkpoints")
    with engine.begin() as connection:
        first.save(connection, at(1))
        second.save(connection, at(2))
    assert (stored(engine, first), stored(engine, second)) == (at(1), at(2))


def test_once_the_table_is_known_no_call_asks_for_it(engine: Engine, checkpoint: Checkpoint) -> None:
    save(engine, checkpoint, 0)
    save(engine, checkpoint, 1)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *about: statements.append(about[2].split()[0]))
    with engine.begin() as connection:
        checkpoint.load(connection)
        checkpoint.save(connection, at(3))
    assert statements == ["SELECT", "UPDATE"]


def test_many_processes_may_create_the_table_at_once(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)

    def first_use(number: int) -> None:
        with opened(f"sqlite:///{tmp_path}/data.db", PATIENCE) as engine:
            barrier.wait(PATIENCE)
            save(engine, checkpoint := Checkpoint(f"r{number}", "t"), number)
            assert stored(engine, checkpoint) == at(number)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(first_use, range(6)))


# --- what it works in ---------------------------------------------------------------------------------------------------


def test_autocommit_of_the_whole_engine_is_refused_by_postgresqls_driver_too(postgresql: Engine, checkpoint: Checkpoint) -> None:
    always = create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
    with always.connect() as connection, pytest.raises(ValueError, match="AUTOCOMMIT"):
        checkpoint.load(connection)
    always.dispose()


def test_a_table_of_that_name_with_another_key_or_other_columns_is_refused(engine: Engine, checkpoint: Checkpoint) -> None:
    columns = "name TEXT, namespace TEXT, topic TEXT, position TEXT, version BIGINT"
    for other in (
        f"{columns}, PRIMARY KEY (name)",
        "name TEXT, namespace TEXT, topic TEXT, PRIMARY KEY (name, namespace, topic)",
    ):
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE oncelog_checkpoints ({other})"))
            with pytest.raises(ValueError, match="not the one that is needed"):
                checkpoint.load(connection)
            connection.execute(text("DROP TABLE oncelog_checkpoints"))


def test_what_is_no_position_or_name_is_refused(engine: Engine, checkpoint: Checkpoint) -> None:
    for position in (None, str(at(1)), bytes(at(1)), 1):
        with engine.begin() as connection, pytest.raises(TypeError, match="MessageId"):
            checkpoint.save(connection, position)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Engine"):
        checkpoint.load(engine)  # type: ignore[arg-type]
    for key in (("", "t"), ("r", ""), ("r", "t", ""), ("r" * 250, "t")):
        with pytest.raises(ValueError, match="1 to 249"):
            Checkpoint(*key)


# --- the reader goes on ---------------------------------------------------------------------------------------------------


class Crashed(Exception):
    pass


def worked(engine: Engine, checkpoint: Checkpoint, reader: Reader[bytes], crashes: Iterator[str], seeks: bool) -> list[int]:
    """What has taken effect once all is read, where each transaction loads the position, as it may."""
    done: list[int] = []
    while True:
        crash = next(crashes, "")
        try:
            with engine.begin() as connection:
                start = checkpoint.load(connection)
                if seeks:
                    reader.seek(start or "earliest")
                if not (messages := reader.read(3, timeout=0)):
                    return done
                if crash == "before":
                    raise Crashed
                checkpoint.save(connection, messages[-1])
                if crash == "behind":
                    raise Crashed
            done += [message.offset for message in messages]
        except Crashed:
            pass


@pytest.mark.parametrize("crash", ["before", "behind"])
def test_after_a_rollback_load_alone_does_not_let_a_reader_go_on(engine: Engine, client: Client, topic: str, crash: str) -> None:
    client.publish(topic, PublishRequest([b"%d" % number for number in range(9)]))
    for crashes in ([crash], ["", crash], ["", "", crash]):
        checkpoint, whole = Checkpoint(f"{len(crashes)}", topic), list(range(9))
        with Reader(topic, client=client) as reader:
            if len(crashes) < 3:
                with pytest.raises(CheckpointConflict, match="left out"):
                    worked(engine, checkpoint, reader, iter(crashes), seeks=False)
            else:  # nothing comes behind them: they are still due
                assert worked(engine, checkpoint, reader, iter(crashes), seeks=False) == whole[:6]
            with engine.begin() as connection:
                reader.seek(checkpoint.load(connection) or "earliest")
            assert worked(engine, checkpoint, reader, iter([]), seeks=False) == whole[3 * len(crashes) - 3 :]
        with Reader(topic, client=client) as reader:
            assert worked(engine, Checkpoint(f"seeks {len(crashes)}", topic), reader, iter(crashes), seeks=True) == whole


@pytest.mark.parametrize("crash", ["before", "behind"])
@pytest.mark.parametrize("saved", [0, 1, 2])
def test_nor_does_it_where_the_reader_was_read_before_the_load(
    engine: Engine, client: Client, topic: str, crash: str, saved: int
) -> None:
    client.publish(topic, PublishRequest([b"%d" % number for number in range(9)]))
    checkpoint = Checkpoint("r", topic)

    def work(messages: list[Message[bytes]], crash: str = "") -> None:
        with engine.begin() as connection:
            checkpoint.load(connection)
            if crash == "before":
                raise Crashed
            checkpoint.save(connection, messages[-1])
            if crash == "behind":
                raise Crashed

    with Reader(topic, client=client, timeout=0) as reader:
        for _ in range(saved):
            work(reader.read(2))
        lost = reader.read(2)
        for _ in range(2):
            with pytest.raises(Crashed):
                work(lost, crash)
        with pytest.raises(CheckpointConflict, match="left out"):
            work(reader.read(2))
        work(lost)  # they may be worked on again, and it goes on behind them
        reader.seek(lost[-1].message_id)
        while messages := reader.read(2):
            work(messages)
    assert stored(engine, checkpoint) == messages_of(client, topic)[-1].message_id


def messages_of(client: Client, topic: str) -> list[Message[bytes]]:
    with Reader(topic, client=client, timeout=0) as reader:
        return [*reader]


def test_what_was_read_before_the_load_may_be_saved(engine: Engine, client: Client, topic: str) -> None:
    client.publish(topic, PublishRequest([b"%d" % number for number in range(9)]))
    checkpoint = Checkpoint("r", topic)
    with Reader(topic, client=client) as reader, Reader(topic, client=client) as other:
        other.read(9)
        while messages := reader.read(2, timeout=0):
            with engine.begin() as connection:
                checkpoint.load(connection)
                checkpoint.save(connection, messages[-1])
