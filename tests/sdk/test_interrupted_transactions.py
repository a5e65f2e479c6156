"""An interruption is no decision: wherever a transaction with a database is interrupted, both change or neither does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, cycle
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

import oncelog
from oncelog import AtomicBatch, Client, Producer, Reader, SqlParticipant, TransactionContext
from oncelog.errors import ProducerStopped, TransactionClosed, TransactionInDoubt

PACKAGE = str(Path(oncelog.__file__).parent)
TRACED = ("/transaction.py", "/sql_participant.py", "/sql_markers.py")
LOST = OperationalError("COMMIT", None, Exception("the connection is lost"))


class OutOfTime(Exception):
    """What a worker raises in a task that takes too long."""


INTERRUPTIONS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, OutOfTime, PoolTimeout)


class World:
    """A database and a topic, and one process after the other."""

    def __init__(self, url: str, client: Client, topic: str) -> None:
        self.client, self.topic = client, topic
        self.resource = f"shop-{topic}"
        self.engine = create_engine(url, poolclass=NullPool)
        self._opened: list[Any] = []
        event.listen(self.engine, "connect", lambda connection, _: self._opened.append(connection))
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (n INTEGER)"))
        # On PostgreSQL whoever makes it makes it within its transaction, and the first one is interrupted at once.
        SqlParticipant(self.engine, self.resource).table.create(self.engine)

    def process_is_gone(self) -> None:
        """With it its connections."""
        while self._opened:
            self._opened.pop().close()

    def recover(self) -> None:
        """What the next process does; and what the service does at last with what is not prepared."""
        SqlParticipant(self.engine, self.resource).recover(self.client)
        for status in self.client.transactions("in_progress"):
            self.client.abort_transaction(status.write_pointer, unless_prepared=True)
        with self.engine.begin() as connection:
            connection.execute(text("DELETE FROM oncelog_transactions"))  # else each process looks through more of them

    def effects(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(row.n for row in connection.execute(text("SELECT n FROM effects")))

    def visible(self) -> list[int]:
        tx = self.client.start_transaction()
        with Reader(self.topic, client=self.client, transaction=tx, timeout=0) as reader:
            found = sorted(int(message.payload) for message in reader)
        self.client.abort_transaction(tx.transaction_id)
        return found


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest, client: Client, topic: str, tmp_path: Path) -> Iterator[World]:
    sqlite = request.param == "sqlite"
    world = World(
        f"sqlite:///{tmp_path}/data.db" if sqlite else request.getfixturevalue("postgres").fresh_schema(), client, topic
    )
    yield world
    world.process_is_gone()


class Faulty(SqlParticipant):
    """The answer of its commit is lost, before it is done or after."""

    done = True

    def _commit(self) -> None:
        if self.done:
            super()._commit()
        raise LOST


def interrupted(at: int, kind: type[BaseException], run: Callable[[], object], traced: tuple[str, ...] = TRACED) -> str | None:
    """Run it with an interruption at its so-manieth line or return of the SDK; where that was. None: it has not as many."""
    left, where = at, None

    def on_line(frame: FrameType, what: str, _: object) -> Any:
        nonlocal left, where
        # Not on the way out of a with statement: there no signal comes in before what it holds is let go. Nor at the word try,
        # which does nothing and belongs to no block.
        statement = getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if what == "return" or (what == "line" and not statement.startswith(("with ", "try:"))):
            left -= 1
            if left == 0:
                sys.settrace(None)
                where = f"{kind.__name__} at the {what} {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise kind
        return on_line

    def on_call(frame: FrameType, _: str, __: object) -> Any:
        path = frame.f_code.co_filename
        return on_line if path.startswith(PACKAGE) and path.endswith(traced) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        run()
    except (*INTERRUPTIONS, OperationalError, TransactionInDoubt):
        pass
    finally:
        sys.settrace(before)
    return where


def begin(world: World, database: SqlParticipant, number: int) -> TransactionContext:
    context = world.client.transaction(database)
    context.start()
    database.connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})
    context.send(world.topic, b"%d" % number)
    return context


@pytest.mark.parametrize("done", [True, False])
def test_wherever_the_end_is_interrupted_both_change_or_neither(world: World, done: bool) -> None:
    """The answer of the COMMIT is lost, too, so that what became of it has to be found out."""
    where = {}
    kinds = cycle(INTERRUPTIONS)
    for at in count(1):
        database = Faulty(world.engine, world.resource)
        database.done = done
        context = begin(world, database, at)
        place = interrupted(at, next(kinds), context.finish)
        world.process_is_gone()
        world.recover()
        if place is None:
            break
        where[at] = place
    assert at > 50, "there are that many places"
    effects, visible = world.effects(), world.visible()
    torn = {where[number] for number in set(effects) ^ set(visible)}
    assert not torn, f"one of both changed, interrupted {torn}"
    assert (at in effects) is done, "the last one was not interrupted"


# --- atomic commits


@pytest.mark.parametrize("leave", [AtomicBatch.abort, lambda batch: batch.__exit__(OutOfTime, OutOfTime(), None)])
def test_wherever_an_atomic_commit_is_interrupted_it_is_not_aborted_if_it_is_committed(
    client: Client, topic: str, leave: Callable[[AtomicBatch], None]
) -> None:
    """Else the producer gets numbers back that are used, and what follows under them is taken for duplicates."""
    lost = []
    kinds = cycle(INTERRUPTIONS)
    for at in count(1):
        with Producer[bytes](topic, name=f"p{at}", client=client) as producer:
            batch = client.atomic(group="orders")
            batch.send(topic, b"%d" % at, producer=producer)
            place = interrupted(at, next(kinds), batch.commit, ("/atomic.py", "/held_producers.py"))
            with suppress(TransactionClosed):
                leave(batch)
            with suppress(ProducerStopped):  # whatever became of it, the batch has let the producer go
                if producer.send(b"%d" % at).status == "duplicate":
                    lost.append(place)
        if place is None:
            break
    assert at > 30, "there are that many places"
    assert not lost, "what followed was taken for a duplicate"
    with Reader(topic, client=client, timeout=0) as reader:
        found = Counter(message.payload for message in reader)
    assert found[b"%d" % at] == 2, "the last one was not interrupted"
