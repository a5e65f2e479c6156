"""Reads all that is committed on a topic, and finds where something was that has gone. It changes nothing there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from oncelog.api.api import Api
from oncelog.codecs import codec_for
from oncelog.message_id import SIZE
from oncelog.values.message import Message, Source
from oncelog.wire.columns import MessageColumns, unpack
from oncelog.wire.models import TopicAsked
from oncelog.wire.requests import ConsumeRequest

_SETTLED_SECONDS = 1.0


def committed(client: Api, topic: str, namespace: str, codec: object = None) -> list[Message[Any]]:
    """Every stable message that the topic holds: those of transactions if they are committed, none that was rolled back.

    What is undecided ends it; it is waited for as long as something is decided within a second, since a topic is told of an end
    a moment after whoever has committed. Raises TopicNotFound, TopicDamaged.
    """
    end = client.stats(topic, namespace).upcoming_offset
    found, before = client.offsets({topic: TopicAsked()}, namespace)[topic], -1
    while before < found.stable < end:
        before = found.stable
        found = client.offsets({topic: TopicAsked(after=before)}, namespace, wait=_SETTLED_SECONDS)[topic]
    messages: list[Message[Any]] = []
    at, source = found.earliest, Source(codec_for(codec), namespace, topic, found.generation)
    while at < found.stable:
        columns = client.read_columns(topic, at, found.stable, namespace, generation=found.generation, properties=True)
        messages += (Message(record, None, source) for record in _records(columns))
        at = columns.next
    return messages


class Gone:
    """The places of a topic where no message is any more, committed or not: it has expired, or was trimmed."""

    def __init__(self, client: Api, topic: str, namespace: str) -> None:
        """Reads the topic as it is."""
        self._end = client.stats(topic, namespace).upcoming_offset
        self._ids: list[bytes] = []
        self._offsets: list[int] = []
        asked = ConsumeRequest()
        while (page := client.poll(topic, asked, namespace)).position is not None:
            self._ids += (record["id"] for record in page.messages)
            self._offsets += (record["offset"] for record in page.messages)
            asked = ConsumeRequest(start_from=page.position, inclusive=False, generation=page.generation)

    def was_at(self, offset: int) -> bool:
        """Tells whether a message has gone that had this offset."""
        at = bisect_left(self._offsets, offset)
        return 0 <= offset < self._end and self._offsets[at : at + 1] != [offset]

    def was_called(self, message_id: bytes) -> bool:
        """Tells whether a message has gone that may have had this id."""
        at = bisect_left(self._ids, message_id)
        before, behind = [-1, *self._offsets[:at]][-1], [*self._offsets[at : at + 1], self._end][0]
        return self._ids[at : at + 1] != [message_id] and behind - before > 1


def _records(columns: MessageColumns) -> Iterator[dict[str, Any]]:
    ids = columns.message_ids
    offsets = (run.first + at for run in columns.offsets for at in range(run.count))
    producers = (
        (run.producer, None if run.sequence_id is None else run.sequence_id + at)
        for run in columns.producers
        for at in range(run.count)
    )
    none = [None] * columns.messages
    keys = none if columns.keys is None else unpack(columns.keys)
    rows = zip(offsets, producers, unpack(columns.values), keys, columns.properties or none, strict=True)
    for at, (offset, (producer, sequence_id), payload, key, properties) in enumerate(rows):
        yield {
            "id": ids[at * SIZE : (at + 1) * SIZE],
            "offset": offset,
            "payload": payload,
            "key": key,
            "properties": properties,
            "producer": producer,
            "sequenceId": sequence_id,
            "ttl": None,
        }
