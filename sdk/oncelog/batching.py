"""Which messages travel together, and which numbers were taken. Pure: no thread, no clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oncelog.wire.requests import PublishRequest

_ROW_OVERHEAD = 16
"""Bytes beside payload, key and properties that a message costs on the wire, roughly."""


MAX_MESSAGES = 5_000
MAX_BYTES = 1 << 20
LINGER_SECONDS = 0.005
"""A synced write takes 1 to 4 ms: waiting about as long for company costs little and saves most requests."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """A batch is full when it reaches either; ``linger`` bounds how long it may wait to become full."""

    max_messages: int
    max_bytes: int
    linger: float
    """Seconds."""


@dataclass(slots=True)
class Batch:
    """Messages of one producer that will be one request. Sequence ids strictly rise."""

    payloads: list[bytes] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    properties: list[Mapping[str, str] | None] = field(default_factory=list)
    ttls: list[int | None] = field(default_factory=list)
    waiters: list[Any] = field(default_factory=list)
    """Whoever is to be told about message i."""
    size: int = 0
    done: bool = False
    """Whether every message has its outcome and its callbacks have run."""
    extras: bool = False
    """Whether any message has a key, properties or a ttl."""

    def add(
        self,
        sequence_id: int,
        payload: bytes,
        waiter: Any,
        key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
    ) -> None:
        """Append one message; its sequence id is above the last one's."""
        self.payloads.append(payload)
        self.sequence_ids.append(sequence_id)
        self.waiters.append(waiter)
        self.size += len(payload) + _ROW_OVERHEAD
        if key is not None or properties is not None or ttl is not None:
            self.extras = True
            self.size += len(key or b"") + sum(len(name) + len(value) for name, value in (properties or {}).items())
        self.keys.append(key)
        self.properties.append(properties)
        self.ttls.append(ttl)

    def accepts(self, sequence_id: int) -> bool:
        """Whether a message with this id may follow in the same request."""
        return not self.sequence_ids or sequence_id > self.sequence_ids[-1]

    def halves(self) -> tuple[Batch, Batch]:
        """The first half of the messages and the rest, in order. One faulty message of 5,000 is alone after 13 of these."""
        middle = len(self.payloads) // 2
        return self._slice(0, middle), self._slice(middle, len(self.payloads))

    def _slice(self, begin: int, end: int) -> Batch:
        part = Batch()
        for at in range(begin, end):
            part.add(
                self.sequence_ids[at],
                self.payloads[at],
                self.waiters[at],
                self.keys[at],
                self.properties[at],
                self.ttls[at],
            )
        return part

    def mend(self) -> None:
        """Drop the last message if :meth:`add` was interrupted half-way."""
        whole = len(self.ttls)
        for column in (self.payloads, self.sequence_ids, self.waiters, self.keys, self.properties):
            del column[whole:]

    def request(self, producer: str, epoch: int) -> PublishRequest:
        """What travels."""
        return PublishRequest(
            self.payloads,
            producer=producer,
            epoch=epoch,
            sequence_ids=self.sequence_ids,
            keys=self.keys if self.extras else None,
            properties=self.properties if self.extras else None,
            ttls=self.ttls if self.extras else None,
        )


class TakenIds:
    """The sequence ids that were sent, as ranges.

    An id that was sent before may be sent again (a retry). One that was *passed over* may not: the service would take it for a
    duplicate and the message would be lost - as happened when two threads took ids in one order and queued them in the
    other (Pulsar #17836).
    """

    __slots__ = ("_firsts", "_lasts")

    MAX_RANGES = 10_000
    """Where ids leave gaps each range costs memory; the oldest are forgotten beyond so many."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    @property
    def highest(self) -> int | None:
        """The highest id taken so far."""
        return self._lasts[-1] if self._lasts else None

    def take(self, sequence_id: int) -> bool:
        """Note the id. False if it lies below the highest one and was passed over."""
        lasts = self._lasts
        if not lasts or sequence_id > lasts[-1] + 1:
            self._firsts.append(sequence_id)
            lasts.append(sequence_id)
            if len(lasts) > self.MAX_RANGES:
                del self._firsts[0], lasts[0]
            return True
        if sequence_id == lasts[-1] + 1:
            lasts[-1] = sequence_id
            return True
        at = bisect_right(self._firsts, sequence_id) - 1
        if at < 0:
            return sequence_id < self._firsts[0] and len(lasts) == self.MAX_RANGES
        return bisect_left(lasts, sequence_id) == at
