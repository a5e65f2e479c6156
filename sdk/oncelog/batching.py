"""Which messages travel together, and which numbers were taken. Pure: no thread, no clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oncelog.errors import OffsetMismatch
from oncelog.expectation import Expectation
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
    expected: Expectation | None = None
    """Of the first message. Where it is of the offset alone, the others expect to follow on; else there are no others, unless
    the batch is ``whole``."""
    whole: bool = False
    """Whether all of it is stored or nothing: it is never divided."""

    def add(
        self,
        sequence_id: int,
        payload: bytes,
        waiter: Any,
        key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
        expected: Expectation | None = None,
    ) -> None:
        """Append one message that the batch accepts."""
        if not self.payloads:
            self.expected = expected
        self.payloads.append(payload)
        self.sequence_ids.append(sequence_id)
        self.waiters.append(waiter)
        self.size += len(payload) + _ROW_OVERHEAD
        if key is not None or properties is not None or ttl is not None:
            self.extras = True
            self.size += _extra_size(key, properties)
        self.keys.append(key)
        self.properties.append(properties)
        self.ttls.append(ttl)

    def accepts(self, sequence_id: int, expected: Expectation | None = None) -> bool:
        """Whether a message with this id and expectation may follow in the same request.

        What expects nothing is not refused together with what does. What expects an offset goes with those whose offsets it
        follows on; every other expectation needs a request of its own.
        """
        if not self.sequence_ids:
            return True
        if sequence_id <= self.sequence_ids[-1]:
            return False
        if self.expected is None or expected is None:
            return self.expected is expected
        return self.expected.offset_alone and expected == self.expected.moved(len(self.payloads))

    def parted(self, mismatch: OffsetMismatch) -> tuple[Batch, Batch, Batch]:
        """The messages that are there already, those that are refused, and those that are still to be judged, in order.

        The refusal of the request judges each message of it, as if each had come in a request of its own in the same moment:
        where the topic is ahead of what was expected, the message that expects just the upcoming offset may still win.
        """
        known, refused = 0, len(self.payloads)
        expected, actual = mismatch.expected, mismatch.actual
        if mismatch.condition == "offset" and isinstance(expected, int) and isinstance(actual, int) and self._divisible:
            assert self.expected is not None
            assert self.expected.offset is not None
            known = min(max(0, expected - self.expected.offset), len(self.payloads) - 1)
            if actual > expected:
                refused = min(known + actual - expected, len(self.payloads))
        return self._slice(0, known), self._slice(known, refused), self._slice(refused, len(self.payloads))

    @property
    def _divisible(self) -> bool:
        return not self.whole and self.expected is not None and self.expected.offset_alone

    def halves(self) -> tuple[Batch, Batch]:
        """The first half of the messages and the rest, in order. One faulty message of 5,000 is alone after 13 of these."""
        middle = len(self.payloads) // 2
        return self._slice(0, middle), self._slice(middle, len(self.payloads))

    def _slice(self, begin: int, end: int) -> Batch:
        place = slice(begin, end)
        part = Batch(
            self.payloads[place],
            self.sequence_ids[place],
            self.keys[place],
            self.properties[place],
            self.ttls[place],
            self.waiters[place],
            extras=self.extras,
            expected=self.expected.moved(begin) if self.expected is not None and 0 < begin < end else self.expected,
            whole=self.whole,
        )
        part.size = sum(map(len, part.payloads)) + _ROW_OVERHEAD * len(part.payloads)
        if self.extras:
            part.size += sum(_extra_size(key, properties) for key, properties in zip(part.keys, part.properties, strict=True))
        return part

    def mend(self) -> None:
        """Drop the last message if :meth:`add` was interrupted half-way."""
        whole = len(self.ttls)
        for column in (self.payloads, self.sequence_ids, self.waiters, self.keys, self.properties):
            del column[whole:]

    def request(self, producer: str, epoch: int) -> PublishRequest:
        """What travels."""
        request = PublishRequest(
            self.payloads,
            producer=producer,
            epoch=epoch,
            sequence_ids=self.sequence_ids,
            keys=self.keys if self.extras else None,
            properties=self.properties if self.extras else None,
            ttls=self.ttls if self.extras else None,
        )
        if self.expected is not None:
            request.expected_offset = self.expected.offset
            request.expected_last_message_id = self.expected.last_message_id
            request.expected_key_offsets = self.expected.key_offsets
        return request


def _extra_size(key: bytes | None, properties: Mapping[str, str] | None) -> int:
    return len(key or b"") + sum(len(name) + len(value) for name, value in (properties or {}).items())


class TakenIds:
    """The sequence ids that are used, or may be, as ranges: those that were sent and not definitely refused.

    A used id may be sent again (a retry). An unused one below the highest, one that was *passed over*, may not: the service would
    take it for a duplicate and the message would be lost - as happened when two threads took ids in one order and queued them in
    the other (Pulsar #17836).
    """

    __slots__ = ("_firsts", "_forgotten", "_highest", "_lasts")

    MAX_RANGES = 10_000
    """Where ids leave gaps each range costs memory; the oldest are forgotten beyond so many."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._highest: int | None = None
        self._forgotten = -1

    @property
    def highest(self) -> int | None:
        """Ids up to here may not be taken anew."""
        return self._highest

    def copy(self) -> TakenIds:
        """As they are now."""
        copied = type(self)()
        copied._firsts, copied._lasts = self._firsts.copy(), self._lasts.copy()
        copied._highest, copied._forgotten = self._highest, self._forgotten
        return copied

    def take(self, sequence_id: int) -> bool:
        """Note the id. False if it lies at or below the highest one and is unused."""
        lasts = self._lasts
        if self._highest is None or sequence_id > self._highest:
            self._highest = sequence_id
            if lasts and sequence_id == lasts[-1] + 1:
                lasts[-1] = sequence_id
            else:
                self._firsts.append(sequence_id)
                lasts.append(sequence_id)
                self._forget()
            return True
        at = bisect_right(self._firsts, sequence_id) - 1
        return sequence_id <= (lasts[at] if at >= 0 else self._forgotten)

    def give_back(self, sequence_ids: Sequence[int], newest: bool) -> None:
        """These rising ids were definitely refused. ``newest``: nothing was sent behind them, so that they may be taken anew."""
        for sequence_id in reversed(sequence_ids):
            self._remove(sequence_id)
        if newest:
            self._highest = self._lasts[-1] if self._lasts else None if self._forgotten < 0 else self._forgotten

    def _remove(self, sequence_id: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, sequence_id) - 1
        if at < 0 or sequence_id > lasts[at]:
            return
        first, last = firsts[at], lasts[at]
        rest = [(begin, end) for begin, end in ((first, sequence_id - 1), (sequence_id + 1, last)) if begin <= end]
        firsts[at : at + 1] = [begin for begin, _ in rest]
        lasts[at : at + 1] = [end for _, end in rest]
        self._forget()

    def _forget(self) -> None:
        if len(self._lasts) > self.MAX_RANGES:
            self._forgotten = self._lasts[0]
            del self._firsts[0], self._lasts[0]
