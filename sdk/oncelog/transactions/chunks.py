"""The messages of an atomic commit, cut into requests, topic by topic, in the order of sending. Pure.

One request has one producer and one set of expectations, which are of its first message; so a message that does not go with those
before it begins a *chunk* of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from oncelog.values.expectation import Expectation
from oncelog.wire.requests import Part, PublishRequest

MAX_BYTES = 4 << 20
MAX_MESSAGES = 5_000
"""Of one request: half of what a service takes by default (8 MiB, 10,000 messages)."""
_ROW_BYTES = 128
"""What a message costs in memory beside payload, key and properties, roughly. On the wire it is less."""


class Row(NamedTuple):
    """One message."""

    payload: bytes
    key: bytes | None = None
    properties: Mapping[str, str] | None = None
    ttl: int | None = None
    producer: str | None = None
    epoch: int | None = None
    sequence_id: int | None = None
    """Where there is a producer."""
    expected: Expectation | None = None

    @property
    def size(self) -> int:
        """What it counts for, in bytes."""
        properties = sum(len(name) + len(value) for name, value in (self.properties or {}).items())
        return _ROW_BYTES + len(self.payload) + len(self.key or b"") + properties


@dataclass(slots=True)
class Chunk:
    """Messages of one topic that are one request."""

    rows: list[Row] = field(default_factory=list)
    size: int = 0
    offset: int | None = None
    """Expected of the first message."""
    last_message_id: bytes | None = None
    key_offsets: dict[str, int | None] = field(default_factory=dict)
    keys: set[bytes] = field(default_factory=set)

    def accepts(self, row: Row) -> bool:
        """Whether the message can be judged as part of this request just as in one of its own behind it."""
        if not self.rows:
            return True
        first, last = self.rows[0], self.rows[-1]
        if self.size + row.size > MAX_BYTES or len(self.rows) >= MAX_MESSAGES:
            return False
        if (row.producer, row.epoch) != (first.producer, first.epoch):
            return False
        if row.sequence_id is not None and last.sequence_id is not None and row.sequence_id <= last.sequence_id:
            return False
        return row.expected is None or self._can_expect(row.expected, row.key)

    def _can_expect(self, expected: Expectation, key: bytes | None) -> bool:
        if expected.last_message_id is not None:
            return False
        if expected.offset is not None and (self.offset is None or expected.offset != self.offset + len(self.rows)):
            return False
        return expected.key is None or key not in self.keys  # else it expects to follow a message of this request

    def add(self, row: Row) -> None:
        """Append a message that the chunk accepts."""
        if row.expected is not None:
            if not self.rows:
                self.offset, self.last_message_id = row.expected.offset, row.expected.last_message_id
            self.key_offsets |= row.expected.key_offsets or {}
        if row.key is not None:
            self.keys.add(row.key)
        self.rows.append(row)
        self.size += row.size

    def request(self) -> PublishRequest:
        """What travels."""
        # Lists: a tuple where a union may be would be (branch, value) to fastavro.
        payloads, keys, properties, ttls, _, _, ids, _ = (list(column) for column in zip(*self.rows, strict=True))
        first = self.rows[0]
        return PublishRequest(
            payloads,
            producer=first.producer,
            epoch=first.epoch,
            sequence_ids=None if first.producer is None else ids,
            keys=keys if self.keys else None,
            properties=properties if any(properties) else None,
            ttls=ttls if any(ttls) else None,
            expected_offset=self.offset,
            expected_last_message_id=self.last_message_id,
            expected_key_offsets=self.key_offsets or None,
        )


class TopicChunks:
    """The chunks for one topic that have not left yet."""

    def __init__(self, namespace: str, topic: str) -> None:
        self.namespace = namespace
        self.topic = topic
        self.size = 0
        """In bytes."""
        self.messages = 0
        self._chunks: list[Chunk] = []
        self._taken = 0

    def add(self, row: Row) -> None:
        """Append a message."""
        if not self._chunks or not self._chunks[-1].accepts(row):
            self._chunks.append(Chunk())
        self._chunks[-1].add(row)
        self.size += row.size
        self.messages += 1

    def take(self, but_last: bool = False) -> Iterator[tuple[int, PublishRequest]]:
        """(number, request) of each chunk to be staged, numbered on from what was taken before; each leaves once it was used."""
        while len(self._chunks) > int(but_last):
            chunk = self._chunks[0]
            yield self._taken, chunk.request()
            del self._chunks[0]
            self._taken += 1
            self.size -= chunk.size
            self.messages -= len(chunk.rows)

    def rest(self) -> Part | None:
        """The last chunk, as a commit carries it; None where everything is staged."""
        return Part(self.namespace, self.topic, self._chunks[-1].request()) if self._chunks else None
