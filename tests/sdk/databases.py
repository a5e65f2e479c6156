"""Databases for the tests of what is done in one: a table of effects, and what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, text


@contextmanager
def opened(url: str, seconds: float = 2.0, **options: Any) -> Iterator[Engine]:
    """A database; in SQLite, who finds it locked waits for so many seconds."""
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": seconds}
    engine = create_engine(url, **options)
    yield engine
    engine.dispose()


def with_effects(engine: Engine) -> Engine:
    """The database with an empty table of effects."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
    return engine


def change(working: Any, number: int = 0) -> None:
    """An effect, in the transaction of a connection or session."""
    working.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})


def effects(engine: Engine) -> list[int]:
    """Those that are committed."""
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT n FROM effects ORDER BY n")))
