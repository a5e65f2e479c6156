"""The markers in a database: rows that say how it has decided about transactions.

A marker is written by the commit that decides, or by a process that recovers: the primary key lets one of them in. It names the
resource, the store of the transaction service that handed the write pointer out, and the pointer. Two services may hand out the
same pointers; their stores have different ids.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, String, Table, and_, delete, insert, select, text, tuple_
from sqlalchemy.exc import IntegrityError

from oncelog.sql.table import NAME_LIMIT, TableOnDemand, now_ms

Decision = Literal["committed", "aborted"]

_STORE_ID_LIMIT = 32


class Key(NamedTuple):
    """Names a transaction among those of one resource."""

    store_id: str
    write_pointer: int


class Marker(NamedTuple):
    """How the database has decided about one transaction."""

    key: Key
    state: str
    ended_ms: int


class Markers:
    """The markers of one resource in one table."""

    def __init__(self, table: str, resource: str, lock_timeout: float) -> None:
        """``lock_timeout``: seconds that :meth:`decided` waits for a marker that is written and not committed."""
        self._resource = resource
        self._lock_timeout_ms = max(1, round(lock_timeout * 1000))
        self.table = Table(
            table,
            MetaData(),
            Column("resource", String(NAME_LIMIT), primary_key=True),
            Column("store_id", String(_STORE_ID_LIMIT), primary_key=True),
            Column("write_pointer", BigInteger, primary_key=True, autoincrement=False),
            Column("state", String(9), nullable=False),
            Column("ended_ms", BigInteger, nullable=False),
        )
        self.connection = TableOnDemand(self.table).connection

    def write(self, connection: Connection, key: Key, state: Decision) -> None:
        """Writes a marker. Raises IntegrityError where there is one already."""
        values = {"resource": self._resource, **key._asdict(), "state": state, "ended_ms": now_ms()}
        connection.execute(insert(self.table).values(values))

    def delete(self, connection: Connection, keys: Collection[Key]) -> None:
        """Removes markers that have served, but for those that another process is removing: it may hang."""
        if not keys:
            return
        columns = self.table.c
        names = tuple_(columns.store_id, columns.write_pointer)
        these = and_(columns.resource == self._resource, names.in_([tuple(key) for key in sorted(keys)]))
        if connection.dialect.name == "postgresql":
            free = select(columns.store_id, columns.write_pointer).where(these).with_for_update(skip_locked=True)
            these = and_(columns.resource == self._resource, names.in_(free))
        connection.execute(delete(self.table).where(these))

    def oldest(self, connection: Connection, store_id: str, limit: int) -> list[Marker]:
        """The first markers of a transaction service, by write pointer."""
        columns = self.table.c
        mine = and_(columns.resource == self._resource, columns.store_id == store_id)
        query = select(columns.write_pointer, columns.state, columns.ended_ms).where(mine)
        rows = connection.execute(query.order_by(columns.write_pointer).limit(limit)).all()
        return [Marker(Key(store_id, row.write_pointer), row.state, row.ended_ms) for row in rows]

    def decided(self, engine: Engine, key: Key) -> Decision | None:
        """Makes the database decide for good: it will not commit, unless it has.

        Answers the decision; None, or any exception: it did not say. SQLAlchemyError: it does not answer, or a process that may
        be about to commit holds the marker for longer than the time-out.
        """
        with engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                # Of this transaction alone. SQLite's own time-out bounds its wait; that is an argument of its connection.
                connection.execute(text(f"SELECT set_config('lock_timeout', '{self._lock_timeout_ms}', true)"))
            on = self.connection(connection)
            # To ask whether there is a marker would not do: one may be written behind the answer. The insert decides.
            try:
                self.write(on, key, "aborted")
            except IntegrityError:  # the primary key: there is one
                connection.rollback()
                this = select(self.table.c.state).filter_by(resource=self._resource, **key._asdict())
                state = connection.scalar(this)
                return state if state in ("committed", "aborted") else None
            on.commit()
            return "aborted"
