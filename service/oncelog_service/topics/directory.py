"""Which topics there are, and were, as the store says. Nothing is held in memory, and no topic is opened.

A name that was deleted keeps its row, so that the next generation's ids and timestamps go on rising.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from oncelog.errors import TopicNotFound
from oncelog.wire.models import Topic
from oncelog.wire.names import check_namespace, check_topic
from oncelog_service.log.scan import read_back
from oncelog_service.properties import shown_properties
from oncelog_service.reading import read
from oncelog_service.storage.incarnation import find_incarnation, raised
from oncelog_service.storage.keys import GENERATION_SIZE, generation_of, prefix_end, split_topic_key, topic_key
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.records import TopicRow, decode_record

TopicName = tuple[str, str]
"""(namespace, topic)."""


def check_topic_name(namespace: str, topic: str) -> None:
    """Raises InvalidRequest unless both are names."""
    check_namespace(namespace)
    check_topic(topic)


class Directory:
    """The rows of all topic names of a store."""

    def __init__(self, store: Store) -> None:
        """Reads the store."""
        self._store = store
        self.incarnation = find_incarnation(store)

    async def existing(self, namespace: str, topic: str) -> TopicRow:
        """The row of a topic that there is. Raises InvalidRequest, TopicNotFound."""
        check_topic_name(namespace, topic)
        row = await self.row(namespace, topic)
        if row is None or row.deleted:
            raise TopicNotFound(f"there is no topic {namespace}/{topic}; create it first")
        return row

    async def row(self, namespace: str, topic: str) -> TopicRow | None:
        """The row of a name; None: there never was such a topic."""
        return await read(self.stored, namespace, topic)

    def stored(self, namespace: str, topic: str) -> TopicRow | None:
        """As :meth:`row`. Reads the store; not for the event loop."""
        data = self._store.get(Table.TOPIC, topic_key(namespace, topic))
        return None if data is None else read_back(decode_record, TopicRow, data)

    async def get(self, namespace: str, topic: str, *, counted: bool = False) -> Topic:
        """``counted``: its generation is how often the name was made, whatever was done to the store since.

        Raises InvalidRequest, TopicNotFound.
        """
        row = await self.existing(namespace, topic)
        generation = row.generation if counted else raised(row.generation, self.incarnation)
        return Topic(name=topic, properties=shown_properties(row.properties, generation))

    async def generation(self, namespace: str, topic: str) -> int | None:
        """The generation of a topic, as the store knows it; None: there is no such topic now."""
        row = await self.row(namespace, topic)
        return None if row is None or row.deleted else row.generation

    async def names(self, namespace: str) -> list[str]:
        """The names of the topics in a namespace, sorted. Raises InvalidRequest."""
        check_namespace(namespace)
        return await read(self._names, namespace)

    def _names(self, namespace: str) -> list[str]:
        begin = f"{namespace}:".encode()
        with closing(self.rows(begin, prefix_end(begin))) as rows:
            return sorted(topic for (_, topic), row in rows if not row.deleted)

    def rows(self, start: bytes = b"", stop: bytes = b"\xff") -> Generator[tuple[TopicName, TopicRow]]:
        """Every topic name there ever was between two keys, with its row. Reads the store; not for the event loop."""
        with closing(self._store.scan(Table.TOPIC, start, stop)) as found:
            for key, data in found:
                yield split_topic_key(key), read_back(decode_record, TopicRow, data)

    async def namespaces(self) -> set[str]:
        """Every namespace that has a topic."""
        return await read(self._namespaces)

    def _namespaces(self) -> set[str]:
        found = set[str]()
        with closing(self._store.scan(Table.TOPIC, b"", b"\xff")) as rows:
            for key, data in rows:
                namespace, _ = split_topic_key(key)
                if namespace not in found and not read_back(decode_record, TopicRow, data).deleted:
                    found.add(namespace)
        return found

    async def subscribed(self, behind: TopicName | None, limit: int, *, including: bool = False) -> list[TopicName]:
        """The first ``limit`` topics behind this one, or from it on, that have or had a subscription, as their keys sort."""
        return await read(self._subscribed, behind, limit, including)

    def _subscribed(self, behind: TopicName | None, limit: int, including: bool) -> list[TopicName]:
        found: list[TopicName] = []
        start = b"" if behind is None else topic_key(*behind) if including else prefix_end(topic_key(*behind))
        while len(found) < limit:
            with closing(self._store.scan(Table.SUBSCRIPTION, start, b"\xff")) as rows:
                key = next((key for key, _ in rows), None)
            if key is None:
                break
            topic = generation_of(key)[:-GENERATION_SIZE]
            found.append(split_topic_key(topic))
            start = prefix_end(topic)
        return found
