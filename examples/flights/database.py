"""SQLite as the demo needs it: what is committed is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, MetaData, create_engine, event


def open_database(path: Path, tables: MetaData) -> Engine:
    """The database with its tables. A commit is on disk when it returns."""
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def _durable(connection: Any, _: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    tables.create_all(engine)
    return engine
