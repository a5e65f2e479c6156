"""Messages as columns, cut into requests: one rule for producers, transactions, atomic commits, outboxes and Spark. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self, TypeVar

from oncelog.values.outgoing import ROW_BYTES, Carrying, size_of
from oncelog.wire.media import TRACEPARENT
from oncelog.wire.requests import PublishRequest

X = TypeVar("X")


class Bounds(NamedTuple):
    """What one request holds at most; a single message may be larger, and the service judges it."""

    messages: int
    bytes: int


REQUEST = Bounds(5_000, 4 << 20)
"""Half of what a service takes by default (10,000 messages, 8 MiB)."""


class Messages:
    """Messages that have not left yet: entry i of each column belongs to message i."""

    __slots__ = ("keys", "payloads", "properties", "sequence_ids", "size", "ttls")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.sequence_ids: list[int | None] = []
        self.keys: list[bytes | None] = []
        self.properties: list[Mapping[str, str] | None] = []
        self.ttls: list[int | None] = []
        self.size = 0
        """In bytes, as :func:`size_of` counts."""

    def __len__(self) -> int:
        return len(self.payloads)

    def extend(
        self,
        payloads: Sequence[bytes],
        sequence_ids: Sequence[int | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        ttls: Sequence[int | None] | None = None,
    ) -> int:
        """Append messages; a column that is None has nothing for any of them. Return how many bytes they count for."""
        none: list[None] = [None] * len(payloads)
        size = _size(payloads, keys, properties)
        self.payloads += payloads
        self.sequence_ids += none if sequence_ids is None else sequence_ids
        self.keys += none if keys is None else keys
        self.properties += none if properties is None else properties
        self.ttls += none if ttls is None else ttls
        self.size += size
        return size

    def carry(self, context: Mapping[str, str]) -> None:
        """Put the context of a trace into the properties of those that have none from their caller."""
        if context:
            alone = Carrying(None, context)
            self.properties = [
                alone if not each else each if TRACEPARENT in each else Carrying(each, context) for each in self.properties
            ]
            self.size = _size(self.payloads, self.keys, self.properties)

    def bare(self) -> Self | None:
        """Copy the messages without contexts of traces that the SDK put in; None where it put in none."""
        if not any(type(each) is Carrying for each in self.properties):
            return None
        bare = self.part(0, len(self))
        bare.properties = [each.own if isinstance(each, Carrying) else each for each in self.properties]
        bare.size = _size(bare.payloads, used(bare.keys), used(bare.properties))
        return bare

    def takes(self, size: int, bounds: Bounds) -> bool:
        """Tell whether a message of this size may follow in the same request."""
        count = len(self.payloads)
        return not count or (self.size + size <= bounds.bytes and count < bounds.messages)

    def fitting(self, bounds: Bounds) -> int:
        """Return how many of the first messages are one request: at least one, if there is any."""
        return next(self.ends(bounds), 0)

    def ends(self, bounds: Bounds) -> Iterator[int]:
        """Yield where each request ends into which they are cut, as few as can be."""
        begin, count = 0, len(self)
        # Each message's size is looked at only where they might be too large together.
        sizes = [] if self.size <= bounds.bytes else [*accumulate(map(size_of, self.payloads, self.keys, self.properties))]
        while begin < count:
            end = min(begin + bounds.messages, count)
            if sizes:
                before = sizes[begin - 1] if begin else 0
                end = max(begin + 1, bisect_right(sizes, before + bounds.bytes, begin, end))
            yield end
            begin = end

    def part(self, begin: int, end: int) -> Self:
        """Copy some of the messages that stand side by side."""
        part = type(self)()
        part.payloads = self.payloads[begin:end]
        part.sequence_ids = self.sequence_ids[begin:end]
        part.keys = self.keys[begin:end]
        part.properties = self.properties[begin:end]
        part.ttls = self.ttls[begin:end]
        part.size = _size(part.payloads, used(part.keys), used(part.properties))
        return part

    def take(self, count: int) -> Self:
        """Remove the first messages and return them."""
        first = self.part(0, count)
        columns: tuple[list[Any], ...] = (self.payloads, self.sequence_ids, self.keys, self.properties, self.ttls)
        for column in columns:
            del column[:count]
        self.size -= first.size
        return first

    def cut(self, bounds: Bounds) -> Iterator[Self]:
        """Remove all messages and yield them in parts, each of which is one request."""
        yield from self.take(len(self)).parts(bounds)

    def parts(self, bounds: Bounds) -> Iterator[Self]:
        """Yield copies of the parts into which all are cut, each of which is one request."""
        begin = 0
        for end in self.ends(bounds):
            yield self if end - begin == len(self) else self.part(begin, end)
            begin = end

    def request(self, producer: str | None = None, epoch: int | None = None) -> PublishRequest:
        """Make the request that carries them. A column of nothing but None is left out."""
        return PublishRequest(
            self.payloads,
            producer=producer,
            epoch=epoch,
            sequence_ids=used(self.sequence_ids),  # type: ignore[arg-type]  # each message has one, or none has
            keys=used(self.keys),
            properties=used(self.properties),
            ttls=used(self.ttls),
        )


def used(column: list[X]) -> list[X] | None:
    """Return the column; None where no message has anything in it."""
    return None if column.count(None) == len(column) else column  # type: ignore[arg-type]


def _size(
    payloads: Sequence[bytes], keys: Sequence[bytes | None] | None, properties: Sequence[Mapping[str, str] | None] | None
) -> int:
    if keys is None and properties is None:  # a whole column at a time: Spark brings a hundred thousand rows a second
        return ROW_BYTES * len(payloads) + sum(map(len, payloads))
    none: list[None] = [None] * len(payloads)
    return sum(map(size_of, payloads, none if keys is None else keys, none if properties is None else properties))
