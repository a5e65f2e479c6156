"""The messages of a transaction or an atomic commit, cut into requests, topic by topic, in the order of sending. Pure.

One request has one producer and one set of expectations, which are of its first message; so a message that does not go with those
before it begins a *chunk* of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oncelog.producing.cutting import REQUEST, Messages
from oncelog.values.expectation import Expectation
from oncelog.values.outgoing import Outgoing
from oncelog.wire.requests import Part, PublishRequest


class Origin(NamedTuple):
    """The producer of a message."""

    producer: str | None = None
    epoch: int | None = None


NO_PRODUCER = Origin()


class Chunk(Messages):
    """Messages of one topic and one producer that are one request."""

    __slots__ = ("key_offsets", "last_message_id", "named_keys", "offset", "origin")

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin
        self.offset: int | None = None
        """Expected of the first message."""
        self.last_message_id: bytes | None = None
        self.key_offsets: dict[str, int | None] = {}
        self.named_keys: set[bytes] = set()

    def accepts(self, origin: Origin, message: Outgoing) -> bool:
        """Tell whether the message can be judged as part of this request just as in one of its own behind it."""
        last = self.sequence_ids[-1]
        if origin != self.origin or not self.takes(message.size, REQUEST):
            return False
        if message.sequence_id is not None and last is not None and message.sequence_id <= last:
            return False
        return message.expected is None or self._can_expect(message.expected, message.key)

    def _can_expect(self, expected: Expectation, key: bytes | None) -> bool:
        if expected.last_message_id is not None:
            return False
        if expected.offset is not None and (self.offset is None or expected.offset != self.offset + len(self)):
            return False
        return expected.key is None or key not in self.named_keys  # else it expects to follow a message of this request

    def add(self, message: Outgoing) -> None:
        """Append a message that the chunk accepts."""
        payload, number, key, properties, ttl, expected, _ = message
        if expected is not None:
            if not self.payloads:
                self.offset, self.last_message_id = expected.offset, expected.last_message_id
            self.key_offsets |= expected.key_offsets or {}
        if key is not None:
            self.named_keys.add(key)
        self.extend([payload], [number], [key], [properties], [ttl])

    def request(self, producer: str | None = None, epoch: int | None = None) -> PublishRequest:
        """Make the request that carries them, and what they expect."""
        request = super().request(*self.origin)
        request.expected_offset = self.offset
        request.expected_last_message_id = self.last_message_id
        request.expected_key_offsets = self.key_offsets or None
        return request


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

    def add(self, message: Outgoing, origin: Origin = NO_PRODUCER) -> None:
        """Append a message."""
        if not self._chunks or not self._chunks[-1].accepts(origin, message):
            self._chunks.append(Chunk(origin))
        self._chunks[-1].add(message)
        self.size += message.size
        self.messages += 1

    def take(self, but_last: bool = False) -> Iterator[tuple[int, PublishRequest]]:
        """Yield (number, request) of each chunk, numbered on from what was taken before; each leaves once it was used."""
        while len(self._chunks) > int(but_last):
            chunk = self._chunks[0]
            yield self._taken, chunk.request()
            del self._chunks[0]
            self._taken += 1
            self.size -= chunk.size
            self.messages -= len(chunk)

    def rest(self) -> Part | None:
        """Return the last chunk, as a commit carries it; None where everything is staged."""
        return Part(self.namespace, self.topic, self._chunks[-1].request()) if self._chunks else None
