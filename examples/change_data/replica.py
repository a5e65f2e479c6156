"""A table that follows a topic of changes, to be read by SQL.

    oncelog topic create customers
    echo '{"id": 7, "name": "Ada", "city": "Graz"}' | oncelog publish customers --key 7
    python -m examples.change_data customers sqlite:///replica.db --column city
    python -m examples.change_data customers sqlite:///replica.db --sql 'SELECT city, count(*) FROM customers GROUP BY city'

A message with a key and a payload of JSON is the record as it is from now on, one with an empty payload says that it is gone:
what Debezium and Kafka call change data and tombstones.

Changes and the position in the topic go into the database in one transaction. So a run that is killed leaves the table at one
place of the topic, and the next one goes on there; two at once do not harm, since the one that is late finds that the position
has moved, and its changes are rolled back. Whoever reads the table reads a state that there was: the changes of one batch become
visible together.

Where producers write in transactions (docs/transactions.md), what is applied is what they have committed.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from oncelog import Checkpoint, Message, Reader

BATCH = 1_000


class Replica:
    """One table, with a row for each key: the record, and where it comes from."""

    def __init__(self, engine: sa.Engine, topic: str, columns: list[str]) -> None:
        """``columns``: members of the records that become columns, as text. Other members are in ``record``, as JSON."""
        self.engine = engine
        self.topic = topic
        self.table = sa.Table(
            topic.replace("-", "_"),
            sa.MetaData(),
            sa.Column("key", sa.String(255), primary_key=True),
            *(sa.Column(name, sa.Text) for name in columns),
            sa.Column("record", sa.JSON, nullable=False),
            sa.Column("changed_at", sa.BigInteger, nullable=False),
        )
        self._columns = columns
        self._position = Checkpoint(f"replica-{topic}", topic)
        self.table.create(engine, checkfirst=True)

    def follow(self, timeout: float | None = 0) -> int:
        """Applies what there is, and what comes within ``timeout`` seconds of it (None: for ever); how many changes those were.

        Raises CheckpointConflict: another process follows into the same table.
        """
        applied = 0
        with self.engine.begin() as connection:
            start = self._position.load(connection)
        with Reader(self.topic, start=start or "earliest") as reader:
            while messages := reader.read(BATCH, timeout=timeout):
                with self.engine.begin() as connection:
                    for message in messages:
                        self._apply(connection, message)
                    self._position.save(connection, messages[-1])
                applied += len(messages)
        return applied

    def _apply(self, connection: sa.Connection, message: Message[bytes]) -> None:
        if message.key is None:
            raise ValueError(f"offset {message.offset} of {self.topic} has no key: it is no change of a record")
        key = message.key.decode()
        connection.execute(sa.delete(self.table).where(self.table.c.key == key))
        if not message.payload:
            return
        record: dict[str, Any] = json.loads(message.payload)
        columns = {name: None if record.get(name) is None else str(record[name]) for name in self._columns}
        connection.execute(sa.insert(self.table).values(key=key, record=record, changed_at=message.offset, **columns))
