"""A relay in a thread of its own is in nobody else's transaction, and sees what the others add; else it does not begin."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, Pool, QueuePool, SingletonThreadPool, StaticPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import AssertionPool, ConnectionPoolEntry

from oncelog import Outbox, OutboxRelay
from tests.patience import until
from tests.sdk.databases import change, effects, with_effects
from tests.sdk.memory_topics import MemoryTopics

Made = Callable[[Path], Engine]


class Relay(OutboxRelay):
    """Counts its turns."""

    turns = 0

    def _turn(self) -> float:
        try:
            return super()._turn()
        finally:
            self.turns += 1


class Mine(StaticPool):
    """Somebody's own of that kind."""


class One(Pool):
    """One connection, by a pool that is of no kind that SQLAlchemy has."""

    _one: ConnectionPoolEntry | None = None

    def _do_get(self) -> ConnectionPoolEntry:
        if self._one is None:
            self._one = self._create_connection()
        return self._one

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        pass

    def recreate(self) -> Pool:
        return One(self._creator)

    def dispose(self) -> None:
        if self._one is not None:
            self._one.close()

    def status(self) -> str:
        return "One"


def _in_memory(pool: type[Pool] | None = None, **options: Any) -> Made:
    loosely = {} if pool is SingletonThreadPool or pool is None else {"connect_args": {"check_same_thread": False}}
    return lambda _: create_engine("sqlite://", poolclass=pool, **loosely, **options)


def _in_a_file(pool: type[Pool] | None = None, **options: Any) -> Made:
    return lambda path: create_engine(f"sqlite:///{path}/shop.db", poolclass=pool, **options)


def _one_for_all(path: Path) -> Engine:
    one = sqlite3.connect(path / "shop.db", check_same_thread=False)
    return create_engine(f"sqlite:///{path}/shop.db", creator=lambda: one)


SHARED: dict[str, Made] = {
    "StaticPool": _in_memory(StaticPool),
    "StaticPool over a file": _in_a_file(StaticPool, connect_args={"check_same_thread": False}),
    "a StaticPool of one's own": _in_memory(Mine),
    "a pool of one's own": _in_a_file(One, connect_args={"check_same_thread": False}),
    "a creator that makes one": _one_for_all,
}
"""All threads have one connection."""
APART: dict[str, Made] = {
    "the default for a file": _in_a_file(),
    "NullPool": _in_a_file(NullPool),
    "one connection, for one at a time": _in_a_file(QueuePool, pool_size=1, max_overflow=0),
    "one connection, or an error": _in_a_file(AssertionPool, connect_args={"check_same_thread": False}),
    "one for each thread": _in_a_file(SingletonThreadPool),
    "one in memory, for one at a time": _in_memory(QueuePool, pool_size=1, max_overflow=0),
    "a memory that all share": lambda path: create_engine(
        f"sqlite:///file:{path.name}?mode=memory&cache=shared&uri=true", poolclass=SingletonThreadPool
    ),
    "a memory that has a name": lambda path: create_engine(
        f"sqlite:///file:/{path.name}?vfs=memdb&uri=true", poolclass=QueuePool
    ),
}


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = request.param(tmp_path)
    yield engine
    engine.dispose()


def _relay(engine: Engine, outbox: Outbox, topics: MemoryTopics | None = None) -> Relay:
    return Relay(outbox, engine, client=topics or MemoryTopics("t"), poll_seconds=0.001)


def _of(engines: dict[str, Made]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", engines.values(), ids=engines.keys(), indirect=True)


@pytest.mark.real
@_of(SHARED)
def test_no_relay_undoes_a_transaction_that_is_under_way_beside_it(engine: Engine) -> None:
    with_effects(engine)
    outbox = Outbox("orders")
    outbox.create_tables(engine)
    relay = _relay(engine, outbox)
    with suppress(ValueError):  # it is refused, so that it undoes nothing
        relay.start()
    begins = relay._thread is not None
    with engine.begin() as connection:
        change(connection, 1)
        outbox.add(connection, "t", b"1")
        until(lambda: relay.turns > 3 or not begins, "the relay has looked")
    relay.stop()
    assert effects(engine) == [1]
    with pytest.raises(ValueError, match=r"run_once\(\)"):
        relay.run()
    assert _relay(engine, outbox).run_once() == 1


@pytest.mark.real
@_of({"SQLite in memory": _in_memory(), "each connection its own": _in_memory(QueuePool)})
def test_a_relay_that_would_never_see_a_row_is_refused(engine: Engine) -> None:
    for begin in (OutboxRelay.start, OutboxRelay.run, OutboxRelay.__enter__):
        relay = _relay(engine, Outbox("orders"))
        with pytest.raises(ValueError, match="of its own for each thread"):
            begin(relay)
        assert relay.turns == 0
        assert relay.status.state == "stopped"


@_of(APART)
def test_where_a_thread_has_a_connection_of_its_own_the_relay_publishes_what_others_add(engine: Engine) -> None:
    outbox, topics = Outbox("orders"), MemoryTopics("t")
    outbox.create_tables(engine)
    relay = _relay(engine, outbox, topics)
    relay._check_apart()
    with engine.begin() as connection:
        outbox.add(connection, "t", b"1")
    with relay:
        until(lambda: topics.payloads("t", "default") == [b"1"], "it is published")


@_of({"one connection": _in_memory(StaticPool), "one a thread": _in_memory()})
def test_in_the_thread_that_works_with_the_engine_a_relay_runs_over_any(engine: Engine) -> None:
    outbox, topics = Outbox("orders"), MemoryTopics("t")
    for number in range(2):
        with engine.begin() as connection:
            outbox.add(connection, "t", b"%d" % number)
        assert _relay(engine, outbox, topics).run_once() == 1
    assert topics.payloads("t", "default") == [b"0", b"1"]


def test_a_database_that_is_down_is_waited_for_as_ever(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/later/shop.db")
    with _relay(engine, Outbox("orders")) as relay:
        until(lambda: relay.status.state == "waiting", "it waits for the database")
        (tmp_path / "later").mkdir()
        until(lambda: relay.status.state == "relaying", "it goes on")
    engine.dispose()


def test_an_engine_of_asyncio_is_refused() -> None:
    engine = create_async_engine("postgresql+psycopg://127.0.0.1:1/shop")
    for given in (engine, engine.sync_engine):
        with pytest.raises(TypeError, match="asyncio"):
            OutboxRelay(Outbox("orders"), given)  # type: ignore[arg-type]
