"""Messages kept in the caller's own database, in the same transaction as the business change, until a relay publishes them.

Change and messages then commit together or not at all; :mod:`oncelog.sql.outbox.relay` brings each of them to its topic once.
What it costs and how it is done: docs/outbox.md. It needs SQLAlchemy (the extra ``sql``); ``import oncelog`` does not load it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from oncelog.codecs import codec_for
from oncelog.process.frames import Face
from oncelog.process.tracing import switch
from oncelog.sql.table import NAME_LIMIT, TableOnDemand, Working, check_name, create_missing, now_ms
from oncelog.values.outgoing import CARRIES, Outgoing, carrying, checked_extras, encode_value, size_of
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.names import NAMESPACE_PATTERN, PRODUCER_PATTERN, TOPIC_PATTERN

_LARGE = 1 << 24
"""From this length on MySQL's BLOB and TEXT hold more than 64 KiB; others have one type for all lengths."""
_TEXT = sa.Text().with_variant(sa.Text(_LARGE), "mysql", "mariadb")
_TOKENS = 2**31


class Waiting(NamedTuple):
    """The rows of an outbox that are not known to be published."""

    rows: int
    oldest_seconds: float | None
    """Age of the oldest, by the clock of the process that added it; None where there is none."""


class Outbox(Face):
    """Messages that are published if and only if the transaction they are added in commits::

        outbox = Outbox("orders")
        with Session(engine) as session, session.begin():
            session.add(Order(id=17, paid=True))
            outbox.add(session, "paid", b"17", key="17")

    A relay publishes them, as :class:`oncelog.OutboxRelay` in a process or as ``oncelog outbox relay``, under the producer
    ``name``, each of them once, whatever is killed when. Per topic, the messages of one transaction keep their order, and those
    of a transaction come behind those of every transaction that had committed before it began.

    The name belongs to one database: the same outbox in two of them would number its messages twice, which the relay refuses.
    Several outboxes may share a table. Thread-safe; there is nothing to close.
    """

    def __init__(self, name: str, table: str = "oncelog_outbox", *, codec: Any = None) -> None:
        """
        Args:
            name: under which the messages are published, 1 to 249 of the characters A-Z a-z 0-9 _ . : @ = -, but not ``.``
                or ``..``.
            table: the table of the rows. The relays' own is called the same with ``_relays`` behind it.
            codec: None for bytes, or what :func:`oncelog.codecs.codec_for` takes.
        """
        check_name("an outbox's name", name)
        if not PRODUCER_PATTERN.fullmatch(name):
            raise ValueError(
                f"an outbox's name is 1 to 249 of the characters A-Z a-z 0-9 _ . : @ = -, but not . or .., not {name[:100]!r}"
            )
        self.name = name
        self.metadata = sa.MetaData()
        """Both tables."""
        self.table = sa.Table(
            table,
            self.metadata,
            sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
            sa.Column("outbox", sa.String(NAME_LIMIT), nullable=False),
            # With the id it says which row this is, also when the table was emptied and its ids began anew.
            sa.Column("token", sa.Integer, nullable=False),
            sa.Column("namespace", sa.String(NAME_LIMIT), nullable=False),
            sa.Column("topic", sa.String(NAME_LIMIT), nullable=False),
            sa.Column("key", sa.LargeBinary(_LARGE), nullable=True),
            sa.Column("payload", sa.LargeBinary(_LARGE), nullable=False),
            sa.Column("properties", _TEXT, nullable=True),
            sa.Column("ttl", sa.BigInteger, nullable=True),
            sa.Column("size", sa.BigInteger, nullable=False),
            sa.Column("added_ms", sa.BigInteger, nullable=False),
            sqlite_autoincrement=True,  # else the id of a deleted row would be given to another one
        )
        self.relays = sa.Table(
            f"{table}_relays",
            self.metadata,
            sa.Column("outbox", sa.String(NAME_LIMIT), primary_key=True),
            sa.Column("holder", sa.String(NAME_LIMIT), nullable=True),
            sa.Column("version", sa.BigInteger, nullable=False),
            sa.Column("next_number", sa.BigInteger, nullable=False),
            sa.Column("plan", _TEXT, nullable=False),
        )
        self._insert = sa.insert(self.table).inline()  # without asking for its id
        self._codec = codec_for(codec)
        self._on_demand = TableOnDemand(self.table)

    def create_tables(self, engine: sa.Engine) -> None:
        """Creates what is missing of the two tables. :meth:`add` and the relay do so themselves when they need them.

        Others may do the same at the same time. Raises SQLAlchemyError.
        """
        create_missing(self.metadata, engine)

    def add(
        self,
        session: Working,
        topic: str,
        payload: Any,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Adds one message to the current transaction of ``session``; it does not commit. It has no message id yet.

        (With asyncio: ``await async_session.run_sync(outbox.add, topic, payload)``.) Whether the topic exists, and takes a
        message so large, shows when it is published.

        Args:
            session: a session or connection of SQLAlchemy, in whose transaction the row is written.
            topic: where the message is to be published.
            payload: bytes, or what the outbox's codec turns into bytes.
            key: what the message is about; a str is sent as UTF-8.
            properties: further things to say of it, by name.
            ttl: seconds that it lives, from when it is published, at most the topic's.
            namespace: the topic's.

        Raises:
            ValueError: no topic or namespace can be called so; the connection is in AUTOCOMMIT. CodecError; TypeError;
            InvalidRequest: a ttl that is none, or the mark of an erased message on one that says something.
        """
        row = self.row(topic, payload, key=key, properties=properties, ttl=ttl, namespace=namespace)
        self._on_demand.connection(session).execute(self._insert, row)

    def row(
        self,
        topic: str,
        payload: Any,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> dict[str, Any]:
        """The values of the row that :meth:`add` would add, by column, for a transaction that is not SQLAlchemy's.

        Insert it into :attr:`table` as it is, once; the database chooses its id. :meth:`create_tables` makes the table. Raises as
        :meth:`add` for what the message is.
        """
        if not TOPIC_PATTERN.fullmatch(topic):
            raise ValueError(f"not the name of a topic: {topic[:100]!r}")
        if not NAMESPACE_PATTERN.fullmatch(namespace):
            raise ValueError(f"not the name of a namespace: {namespace[:100]!r}")
        data = encode_value(payload, self._codec)
        key = checked_extras(data, key, properties, ttl)
        tracing = switch.tracing
        if tracing is not None:
            message = Outgoing(data, key=key, properties=properties, size=size_of(data, key, properties))
            properties = carrying(message, tracing.headers(), CARRIES).properties
        written = json.dumps(dict(properties)) if properties else None
        return {
            "outbox": self.name,
            "token": random.randrange(_TOKENS),
            "namespace": namespace,
            "topic": topic,
            "key": key,
            "payload": data,
            "properties": written,
            "ttl": ttl,
            "size": len(data) + len(key or b"") + len(written or ""),
            "added_ms": now_ms(),
        }

    def waiting(self, session: Working) -> Waiting:
        """Counts the rows, and tells how old the oldest one is. It looks at all of them: not for every second."""
        mine = self.table.c.outbox == self.name
        connection = self._on_demand.connection(session)
        count = connection.scalar(sa.select(sa.func.count()).select_from(self.table).where(mine)) or 0
        oldest = connection.scalar(sa.select(self.table.c.added_ms).where(mine).order_by(self.table.c.id).limit(1))
        return Waiting(count, None if oldest is None else max(0, now_ms() - oldest) / 1000)

    def __repr__(self) -> str:
        return f"Outbox({self.name!r}, table={self.table.name!r})"
