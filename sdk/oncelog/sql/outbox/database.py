"""What a relay does in the database of its outbox: each change is one transaction, and fails unless the relay still holds it.

The relays of an outbox share one row. Each change raises its version, and is made on condition that holder and version are still
those that this relay saw last. So a relay that was paused, cut off or overtaken changes nothing any more, without any clock being
compared; and an older state of the database that has replaced a newer one is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, insert, not_, select, text, update
from sqlalchemy.exc import IntegrityError

from oncelog.sql.outbox.outbox import Outbox
from oncelog.sql.outbox.plan import Name, Planned, decode, encode, taken
from oncelog.sql.table import in_autocommit, no_transaction

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
_IN = 500
"""Values in one list of a statement; Oracle takes 1,000, SQL Server 2,100 parameters in all."""


class LeaseLost(Exception):
    """Another relay holds the outbox, or its database is not in the state that this one left it in."""


class Row(NamedTuple):
    """A row that has its number."""

    planned: Planned
    name: Name
    key: bytes | None
    payload: bytes
    properties: Mapping[str, str] | None
    ttl: int | None


class Lease(NamedTuple):
    """The row of the relays, as it was seen last."""

    holder: str | None
    """None: no relay is at it."""
    version: int
    next_number: int
    plan: tuple[Planned, ...]


class OutboxDatabase:
    """The database of an outbox, as its relay needs it. Errors of the database come through as SQLAlchemy's."""

    def __init__(self, outbox: Outbox, engine: Engine, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """``patience_seconds``: that a relay may be stuck in the middle of a change before PostgreSQL ends that."""
        self._outbox = outbox
        self._engine = engine
        self._rows, self._relays = outbox.table, outbox.relays
        self._mine = self._rows.c.outbox == outbox.name
        self._relay = self._relays.c.outbox == outbox.name
        self._prepared = False
        self._patience_ms = max(1, int(patience_seconds * 1000))
        self._settings: list[str] = []

    # --- the lease

    def lease(self) -> Lease:
        """Reads the lease; makes it where there is none yet."""
        if not self._prepared:
            self._prepare()
        found = self.seen()
        if found is not None:
            return found
        values = {"outbox": self._outbox.name, "holder": None, "version": 0, "next_number": 0, "plan": encode([])}
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(self._relays).values(values))
        except IntegrityError:
            pass  # another relay was faster
        return self.lease()

    def seen(self) -> Lease | None:
        """Reads the lease, if there is one; the tables must be there."""
        columns = self._relays.c
        query = select(columns.holder, columns.version, columns.next_number, columns.plan).where(self._relay)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Lease(row.holder, row.version, row.next_number, tuple(decode(row.plan)))

    def change(self, seen: Lease, **to: Any) -> Lease:
        """Makes the lease another one, or only shows the others that its holder is alive. Raises LeaseLost: it is not as seen."""
        with self._changing() as connection:
            return self._move(connection, seen, **to)

    # --- the rows

    def step(
        self,
        lease: Lease,
        done: Collection[Planned],
        rows: int,
        size: int,
        without: Collection[Name],
        checked: Collection[Name],
    ) -> tuple[Lease, list[Name]]:
        """Deletes what is published and numbers up to ``rows`` further rows, of ``size`` bytes, in one transaction.

        ``without``: topics whose rows are passed over: those of what else is in the plan. ``checked``: only rows of these get a
        number; answers, with the lease, the others that were seen. Every committed row that is there gets its number now or
        later, and none twice; how its id compares with those before it says nothing. Raises LeaseLost.
        """
        with self._changing() as connection:
            # First, so that of two relays one waits here for the other, and reads nothing before it has lost.
            lease = self._move(connection, lease)
            self._delete(connection, done)
            plan = set(lease.plan).difference(done)
            seen = self._unnumbered(connection, plan, rows, without) if rows else []
            found = [row for row in seen if Name(row.namespace, row.topic) in checked]
            unchecked = {Name(row.namespace, row.topic) for row in seen}.difference(checked)
            fitting = found[: taken([row.size for row in found], size)]
            new = [Planned(number, row.id, row.token) for number, row in enumerate(fitting, lease.next_number)]
            if new or done:
                lease = lease._replace(next_number=lease.next_number + len(new), plan=(*sorted(plan), *new))
                values = {"next_number": lease.next_number, "plan": encode(lease.plan)}
                connection.execute(update(self._relays).where(self._relay).values(values))
            return lease, sorted(unchecked)

    def rows_of(self, plan: Collection[Planned]) -> list[Row]:
        """The rows of a plan that are still there, by number."""
        planned = {(each.row, each.token): each for each in plan}
        table = self._rows.c
        query = select(table.id, table.token, table.namespace, table.topic, table.key, table.payload, table.properties, table.ttl)
        found: list[Row] = []
        with self._engine.connect() as connection:
            for ids in _parts(sorted({row for row, _ in planned})):
                for row in connection.execute(query.where(self._mine, table.id.in_(ids))):
                    if (row.id, row.token) in planned:  # else another row: the table was emptied, and its ids began anew
                        properties = None if row.properties is None else json.loads(row.properties)
                        name, key = Name(row.namespace, row.topic), None if row.key is None else bytes(row.key)
                        found.append(Row(planned[row.id, row.token], name, key, bytes(row.payload), properties, row.ttl))
        return sorted(found, key=lambda row: row.planned)

    def is_waiting(self, without: Collection[Name]) -> bool:
        """Whether there is any row, but for those of some topics."""
        query = select(self._rows.c.id).where(self._mine, *self._but(without)).limit(1)
        with self._engine.connect() as connection:
            return connection.scalar(query) is not None

    def topics(self) -> list[Name]:
        """The topics of all rows that are there."""
        query = select(self._rows.c.namespace, self._rows.c.topic).where(self._mine).distinct()
        with self._engine.connect() as connection:
            return sorted(Name(*row) for row in connection.execute(query))

    def first_of(self, name: Name) -> int | None:
        """The id of a topic's first row that is there."""
        columns = self._rows.c
        query = select(columns.id).where(self._mine, columns.topic == name.topic, columns.namespace == name.namespace)
        with self._engine.connect() as connection:
            return connection.scalar(query.order_by(columns.id).limit(1))

    # --- how

    def _prepare(self) -> None:
        with self._engine.connect() as connection:
            if in_autocommit(connection):
                raise no_transaction("the relay's engine")
            if connection.dialect.name == "postgresql":
                # A relay that is paused, or whose machine is gone, would keep its lock, and no other could follow it.
                self._settings = [f"set_config('idle_in_transaction_session_timeout', '{self._patience_ms}', true)"]
                if connection.scalar(text("SHOW synchronous_commit")) == "off":
                    # A number that is given must stay given: what is published under it cannot be taken back.
                    self._settings.append("set_config('synchronous_commit', 'on', true)")
        self._outbox.create_tables(self._engine)
        self._prepared = True

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            if self._settings:
                connection.execute(text("SELECT " + ", ".join(self._settings)))
            yield connection

    def _move(self, connection: Connection, seen: Lease, **to: Any) -> Lease:
        columns = self._relays.c
        holder = columns.holder.is_(None) if seen.holder is None else columns.holder == seen.holder
        as_seen = and_(self._relay, columns.version == seen.version, holder)
        to["version"] = seen.version + 1
        if connection.execute(update(self._relays).where(as_seen).values(to)).rowcount != 1:
            raise LeaseLost
        return seen._replace(**to)

    def _delete(self, connection: Connection, done: Collection[Planned]) -> None:
        columns = self._rows.c
        for part in _parts(sorted(done, key=lambda planned: planned.row)):
            ids, tokens = [planned.row for planned in part], [planned.token for planned in part]
            connection.execute(delete(self._rows).where(self._mine, columns.id.in_(ids), columns.token.in_(tokens)))

    def _unnumbered(self, connection: Connection, plan: Collection[Planned], rows: int, without: Collection[Name]) -> list[Any]:
        """The first rows that are not in the plan: id, token, size, namespace, topic."""
        have = {(planned.row, planned.token) for planned in plan}
        columns = self._rows.c
        query = select(columns.id, columns.token, columns.size, columns.namespace, columns.topic)
        query = query.where(self._mine, *self._but(without)).order_by(columns.id).limit(rows)
        return [row for row in connection.execute(query) if (row.id, row.token) not in have]

    def _but(self, names: Collection[Name]) -> list[ColumnElement[bool]]:
        columns = self._rows.c
        return [not_(and_(columns.topic == name.topic, columns.namespace == name.namespace)) for name in sorted(names)]


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(values), _IN):
        yield values[begin : begin + _IN]
