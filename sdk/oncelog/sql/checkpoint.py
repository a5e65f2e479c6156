"""A reader's position, kept in the caller's own database, in the same transaction as what the messages caused there.

Effects and position then commit together or not at all, so that every message takes effect exactly once, whatever is killed when.
It needs SQLAlchemy (the extra ``sql``); ``import oncelog`` does not load it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from oncelog.errors import CheckpointConflict
from oncelog.message_id import SIZE, MessageId
from oncelog.process.frames import Face
from oncelog.reading.position import delivered_by_now
from oncelog.sql.table import NAME_LIMIT, TableOnDemand, Working, check_name
from oncelog.values.message import Message, check_place, reading_of


class _Row(NamedTuple):
    """The stored row as it was seen last. ``version`` rises with each save, so that A → B → A is noticed."""

    position: MessageId | None
    version: int


class Checkpoint(Face):
    """Keeps how far the reader ``name`` has come in a topic, in the database that its effects are in.

    A complete consumer that may be killed at any moment::

        from oncelog import Reader
        from oncelog.sql.checkpoint import Checkpoint
        from sqlalchemy import create_engine, text

        engine = create_engine("sqlite:///totals.db")
        checkpoint = Checkpoint("totals", "flights")
        with engine.begin() as connection:
            start = checkpoint.load(connection) or "earliest"
        with Reader("flights", start=start) as reader:
            while messages := reader.read(1000, timeout=5):
                with engine.begin() as connection:
                    for message in messages:
                        connection.execute(text("UPDATE totals SET n = n + 1 WHERE k = :k"), {"k": message.key})
                    checkpoint.save(connection, messages[-1])

    Every method takes a ``Session``, ``scoped_session`` or ``Connection`` and works inside its current transaction; none of them
    commits. (With asyncio: ``await async_session.run_sync(checkpoint.save, message)``.) Many checkpoints may share a table: each
    is the row (name, namespace, topic).

    **Two processes under one name** cannot both move the position. :meth:`save` is a compare-and-set on what this object last
    saw; when someone else was there it raises :class:`~oncelog.errors.CheckpointConflict` and the transaction must be rolled
    back, effects included. Errors of the database itself (locked, could not serialize) come through unchanged: roll back, load
    and try again.

    **After a rollback call** :meth:`load` and put the reader back to what it answers: the effects since that position are gone,
    so the messages behind it are due again. A :meth:`save` without that raises CheckpointConflict, because a reader
    that simply went on would leave out the messages whose effects were rolled back: where the transaction that was rolled back
    had called :meth:`load`, or had come to its :meth:`save`. Of one that did neither nothing is known here, so begin each with
    :meth:`load` where errors are passed over.

    Not for several threads at once; make one per reader.
    """

    def __init__(self, name: str, topic: str, namespace: str = "default", table: str = "oncelog_checkpoints") -> None:
        """
        Args:
            name: whose position it is, 1 to 249 characters.
            topic: the topic that is read.
            namespace: the topic's namespace.
            table: the table that holds the row; created on demand, may hold any number of checkpoints. On a database whose DDL
                commits (MySQL), create it beforehand (:attr:`table`), lest the first load commits what came before it.
        """
        for what, value in (("name", name), ("topic", topic), ("namespace", namespace)):
            check_name(f"a checkpoint's {what}", value)
        self.name = name
        self.topic = topic
        self.namespace = namespace
        self.table = sa.Table(
            table,
            sa.MetaData(),
            sa.Column("name", sa.String(NAME_LIMIT), primary_key=True),
            sa.Column("namespace", sa.String(NAME_LIMIT), primary_key=True),
            sa.Column("topic", sa.String(NAME_LIMIT), primary_key=True),
            sa.Column("position", sa.String(2 * SIZE), nullable=True),
            sa.Column("version", sa.BigInteger, nullable=False),
        )
        self._key = sa.and_(self.table.c.name == name, self.table.c.namespace == namespace, self.table.c.topic == topic)
        self._seen: _Row | None = None
        self._generation: int | None = None
        """Of the topic, that the message was of which was saved last; None: that is not known of what the row says."""
        self._loaded: _Row | None = None
        """The row as :meth:`load` has found it; a :meth:`save` may be rolled back."""
        self._delivered: dict[int | None, bytes] = {}
        """What readings of this process had delivered of the topic when the row was loaded first as it is."""
        self._on_demand = TableOnDemand(self.table)

    def load(self, session: Working) -> MessageId | None:
        """Reads the stored position, to go on exclusively after it; None where there is none yet: begin with the oldest message.

        What it answers is what the next :meth:`save` expects to find.
        """
        self._seen = self._read(self._on_demand.connection(session))
        self._generation = None  # that a start from there belongs to the topic as it is, the service sees
        stored = None if self._seen is None or self._seen.position is None else bytes(self._seen.position)
        now = delivered_by_now(self.namespace, self.topic)
        if self._seen == self._loaded:  # what had been delivered behind it then has not been saved since
            due = {reading: last for reading, last in self._delivered.items() if reading in now}
            now |= {reading: last for reading, last in due.items() if stored is None or last > stored}
        self._loaded, self._delivered = self._seen, now
        return self._seen.position if self._seen else None

    def save(self, session: Working, position: MessageId | Message[Any]) -> None:
        """Moves to ``position``: the last message whose effects are in this transaction. Saving the same one again is allowed.

        Raises:
            CheckpointConflict: the stored position is not the one this object saw last: another process moved it, or a
                transaction of this one was rolled back, or a position exists and was never loaded. Roll back, then
                :meth:`load`. Or the reader of this message had delivered others when :meth:`load` was called, which are behind
                what that answered: their effects were rolled back. Put the reader back there, with :meth:`oncelog.Reader.seek`.
            InvalidMessageId: the message is of another topic. StaleMessageId: it is of another generation of the topic than what
                this object saved last: the topic was deleted and made anew, or its store restored. Decide what becomes of the
                effects of the former one, then :meth:`reset`: to None to begin anew, or to a message to go on behind it. A bare
                MessageId does not say where it is from: it is taken.
            ValueError: ``position`` lies before the one last seen; :meth:`reset` does that. Or, as of every method here, the
                connection is in AUTOCOMMIT.
        """
        target = self._target(position, self._generation)
        connection = self._on_demand.connection(session)
        seen = self._seen
        self._check_reading(position, seen and seen.position)
        if seen and seen.position and target < seen.position:
            if self._read(connection) != seen:  # most likely rolled back; reset() would be the wrong advice
                raise self._conflict(connection, seen)
            raise ValueError(f"checkpoint {self.name!r} is at {seen.position}; only reset() moves it back to {target}")
        self._move(connection, seen, target)
        self._generation = _generation(position)

    def reset(self, session: Working, position: MessageId | Message[Any] | None) -> None:
        """Moves to any position, backwards too, whatever is stored; None begins the topic anew.

        A reader that runs under this name meanwhile gets CheckpointConflict at its next save. Raises InvalidMessageId for a
        message of another topic; it may be of any generation.
        """
        target = None if position is None else self._target(position, None)
        connection = self._on_demand.connection(session)
        self._move(connection, self._read(connection), target)
        self._generation, self._delivered = _generation(position), {}

    def __repr__(self) -> str:
        return f"Checkpoint({self.name!r}, {self.topic!r}, namespace={self.namespace!r}, table={self.table.name!r})"

    def _target(self, position: MessageId | Message[Any], generation: int | None) -> MessageId:
        if isinstance(position, Message):
            ways = (
                ". Decide what becomes of the effects of the former one, then reset() to None, or to the message to go on behind"
            )
            check_place(position, self.namespace, self.topic, generation, f"the position of checkpoint {self.name!r}", ways)
            return position.message_id
        if not isinstance(position, MessageId):
            raise TypeError(f"a position is a MessageId or a Message, not {type(position).__name__}")
        return position

    def _check_reading(self, position: MessageId | Message[Any], stored: MessageId | None) -> None:
        """Raises CheckpointConflict: what its reader delivered before the load, behind what that answered, would be left out."""
        if not isinstance(position, Message) or (before := self._delivered.get(reading_of(position))) is None:
            return
        if bytes(position.message_id) <= before or (stored is not None and before <= bytes(stored)):
            return
        last, found = MessageId.from_bytes(before), _text(stored)
        raise CheckpointConflict(
            f"checkpoint {self.name!r} on {self.namespace}/{self.topic} is at {found or 'none'}, and its reader had come to "
            f"{last} before load(): those between would be left out. After a rollback put it back to what load() answers, "
            "with seek(); save each batch, also one without effects",
            name=self.name,
            expected=str(last),
            actual=found,
        )

    def _read(self, connection: sa.Connection) -> _Row | None:
        row = connection.execute(sa.select(self.table.c.position, self.table.c.version).where(self._key)).one_or_none()
        if row is None:
            return None
        return _Row(None if row.position is None else MessageId.parse(row.position), row.version)

    def _move(self, connection: sa.Connection, seen: _Row | None, target: MessageId | None) -> None:
        version = seen.version + 1 if seen else 1
        values = {"position": _text(target), "version": version}
        if seen is None:
            names = {"name": self.name, "namespace": self.namespace, "topic": self.topic}
            try:
                connection.execute(sa.insert(self.table).values(**names, **values))
            except IntegrityError:  # the primary key: the row is there
                raise self._conflict(connection, seen) from None
        else:
            as_seen = sa.and_(self._key, self.table.c.version == seen.version, self.table.c.position == _text(seen.position))
            # Judged in the statement that writes: between a look at the row and the write another process may move it.
            if connection.execute(sa.update(self.table).where(as_seen).values(values)).rowcount != 1:
                raise self._conflict(connection, seen)
        self._seen = _Row(target, version)

    def _conflict(self, connection: sa.Connection, seen: _Row | None) -> CheckpointConflict:
        expected = _text(seen.position) if seen else None
        try:
            stored = self._read(connection)
        except DBAPIError:  # PostgreSQL answers nothing more in a transaction whose insert failed
            actual, found = None, "another one"
        else:
            actual = _text(stored.position) if stored else None
            found = actual or "none"
        return CheckpointConflict(
            f"checkpoint {self.name!r} on {self.namespace}/{self.topic}: expected {expected or 'none'}, found {found}. Another "
            "process moved it, or this one rolled back or never loaded it; roll back, then load() and go on from there",
            name=self.name,
            expected=expected,
            actual=actual,
        )


def _generation(position: MessageId | Message[Any] | None) -> int | None:
    return position.generation if isinstance(position, Message) else None


def _text(position: MessageId | None) -> str | None:
    return None if position is None else str(position)
