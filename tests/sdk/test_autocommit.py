"""Where each statement commits by itself there is no transaction to share, and who needs one refuses before anything is done."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, inspect

from oncelog import Outbox, OutboxRelay, SqlParticipant
from oncelog.message_id import MessageId
from oncelog.sql.checkpoint import Checkpoint
from tests.sdk.databases import change, effects, with_effects
from tests.sdk.memory_service import MemoryClient
from tests.sdk.memory_topics import MemoryTopics

Make = Callable[..., Engine]


class LikeMySQL(sqlite3.Connection):
    """A connection of a driver whose ``autocommit`` is a method, as those of MySQL are."""

    def autocommit(self, value: bool) -> None:  # type: ignore[override,unused-ignore]  # before 3.12 there is none
        raise AssertionError("it is asked, not set")

    def get_autocommit(self) -> bool:
        return self.isolation_level is None


def _by_an_event(make: Make, **options: Any) -> Engine:
    engine = make(**options)

    @event.listens_for(engine, "connect")
    def connected(driver: sqlite3.Connection, _: object) -> None:
        driver.isolation_level = None

    return engine


def _recipe(make: Make) -> Engine:
    """SQLAlchemy's own, for savepoints and serializable transactions: the driver begins nothing, the event does."""
    engine = _by_an_event(make)

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


AUTOCOMMIT: dict[str, Callable[[Make], Engine]] = {
    "of the engine": lambda make: make(isolation_level="AUTOCOMMIT"),
    "of an engine made of it": lambda make: make().execution_options(isolation_level="AUTOCOMMIT"),
    "of the driver": lambda make: make(connect_args={"isolation_level": None}),
    "of the driver, by an event": _by_an_event,
    "of a driver that says so in a method": lambda make: make(connect_args={"factory": LikeMySQL, "isolation_level": None}),
}
TRANSACTIONS: dict[str, Callable[[Make], Engine]] = {
    "as they are": lambda make: make(),
    "of SQLAlchemy's recipe": _recipe,
    "begun at once": lambda make: make(connect_args={"isolation_level": "IMMEDIATE"}),
    "serializable": lambda make: make(isolation_level="SERIALIZABLE"),
    "of a driver that says so in a method": lambda make: make(connect_args={"factory": LikeMySQL}),
}
if sys.version_info >= (3, 12):
    AUTOCOMMIT["of Python 3.12's driver"] = lambda make: make(connect_args={"autocommit": True})
    TRANSACTIONS["of Python 3.12's driver"] = lambda make: make(connect_args={"autocommit": False})


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Engine] = []

    def maker(**options: Any) -> Engine:
        made.append(create_engine(f"sqlite:///{tmp_path}/data.db", **options))
        return made[-1]

    yield maker
    for engine in made:
        engine.dispose()


def _save(engine: Engine) -> None:
    with engine.begin() as connection:
        change(connection)
        Checkpoint("r", "t").save(connection, MessageId(1, 0))
        raise ZeroDivisionError


def _add(engine: Engine) -> None:
    with engine.begin() as connection:
        change(connection)
        Outbox("orders").add(connection, "t", b"1")
        raise ZeroDivisionError


def _commit(engine: Engine) -> None:
    database = SqlParticipant(engine, "shop")
    with MemoryClient().transaction(database):
        change(database.connection)
        raise ZeroDivisionError


TAKERS = {"checkpoint": _save, "outbox": _add, "participant": _commit}


def _covered(engines: Mapping[str, object]) -> list[tuple[str, str]]:
    """Every engine with one of those that take a transaction, and every one of these with two: all ask the same function."""
    return [
        *((engine, "checkpoint") for engine in engines),
        *((engine, taker) for engine in [*engines][:2] for taker in [*TAKERS][1:]),
    ]


@pytest.mark.parametrize(("autocommit", "taker"), _covered(AUTOCOMMIT))
def test_in_autocommit_nothing_is_done_that_would_stay_when_the_rest_fails(make: Make, autocommit: str, taker: str) -> None:
    with_effects(make())
    engine = AUTOCOMMIT[autocommit](make)
    with pytest.raises(ValueError, match="AUTOCOMMIT"):
        TAKERS[taker](engine)
    assert inspect(engine).get_table_names() == ["effects"]


def test_a_relay_in_autocommit_is_refused(make: Make) -> None:
    engine = AUTOCOMMIT["of the driver"](make)
    with pytest.raises(ValueError, match="AUTOCOMMIT"):
        OutboxRelay(Outbox("orders"), engine, client=MemoryTopics("t")).run_once()
    assert inspect(engine).get_table_names() == []


@pytest.mark.parametrize(("transactions", "taker"), _covered(TRANSACTIONS))
def test_wherever_transactions_roll_back_they_are_shared(make: Make, transactions: str, taker: str) -> None:
    with_effects(make())
    engine = TRANSACTIONS[transactions](make)
    with pytest.raises(ZeroDivisionError):
        TAKERS[taker](engine)
    assert effects(engine) == []
    outbox = Outbox("orders")
    with engine.begin() as connection:
        outbox.add(connection, "t", b"1")
    assert OutboxRelay(outbox, engine, client=MemoryTopics("t")).run_once() == 1


def test_what_says_autocommit_is_asked_of_the_connection_and_not_once_for_all(make: Make) -> None:
    engine = with_effects(make())
    checkpoint = Checkpoint("r", "t")
    for _ in range(2):
        with engine.begin() as connection:
            checkpoint.load(connection)
        with (
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
            pytest.raises(ValueError, match="AUTO"),
        ):
            checkpoint.load(connection)
