"""Which messages travel together, and which numbers were taken. Pure: no thread, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oncelog.errors import OffsetMismatch
from oncelog.values.expectation import Expectation
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
    queued_at: float = 0.0
    """Monotonic seconds at which it was complete."""
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
        size = size_of(payload, key, properties)
        # From here to the end nothing is called: to a signal handler, which may send through the same producer, this is one step
        # (see Producer._put), and an interruption leaves no half of a message.
        if not self.payloads:
            self.expected = expected
        if key is not None or properties is not None or ttl is not None:
            self.extras = True
        self.size += size
        self.payloads += (payload,)
        self.sequence_ids += (sequence_id,)
        self.waiters += (waiter,)
        self.keys += (key,)
        self.properties += (properties,)
        self.ttls += (ttl,)

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
            queued_at=self.queued_at,
        )
        part.size = sum(map(size_of, part.payloads, part.keys, part.properties))
        return part

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


def size_of(payload: bytes, key: bytes | None, properties: Mapping[str, str] | None) -> int:
    """Bytes that a message counts for."""
    size = len(payload) + _ROW_OVERHEAD
    if key is not None or properties is not None:
        size += len(key or b"") + sum(len(name) + len(value) for name, value in (properties or {}).items())
    return size


class TakenIds:
    """The sequence ids that are used, or may be, as ranges: those that were sent and not definitely refused.

    A used id may be sent again (a retry). An unused one below the highest, one that was *passed over*, may not: the service would
    take it for a duplicate and the message would be lost - as happened when two threads took ids in one order and queued them in
    the other (Pulsar #17836).
    """

    __slots__ = ("_forgotten", "highest", "ranges")

    MAX_RANGES = 10_000
    """Where ids leave gaps each range costs memory; the oldest are forgotten beyond so many."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        """(first, last) of each, rising."""
        self.highest: int | None = None
        """Ids up to here may not be taken anew."""
        self._forgotten = -1

    def copy(self) -> TakenIds:
        """As they are now."""
        copied = type(self)()
        copied.ranges, copied.highest, copied._forgotten = self.ranges.copy(), self.highest, self._forgotten
        return copied

    def take(self, sequence_id: int) -> bool:
        """Note the id. False if it lies at or below the highest one and is unused."""
        newest = self.newest_with(sequence_id)
        if newest is None:
            return self.may_repeat(sequence_id)
        self.highest = sequence_id
        if newest[0] == sequence_id:
            self.ranges.append(newest)
            self.forget()
        else:
            self.ranges[-1] = newest
        return True

    def newest_with(self, sequence_id: int) -> tuple[int, int] | None:
        """What the newest range is once this id, above the highest one, is taken; a range of its own begins with it. None: it
        is not above."""
        if self.highest is not None and sequence_id <= self.highest:
            return None
        if self.ranges and sequence_id == self.ranges[-1][1] + 1:
            return self.ranges[-1][0], sequence_id
        return sequence_id, sequence_id

    def may_repeat(self, sequence_id: int) -> bool:
        """Whether an id at or below the highest one is used."""
        at = bisect_left(self.ranges, (sequence_id + 1,)) - 1
        return sequence_id <= (self.ranges[at][1] if at >= 0 else self._forgotten)

    def give_back(self, sequence_ids: Sequence[int], newest: bool) -> None:
        """These rising ids were definitely refused. ``newest``: nothing was sent behind them, so that they may be taken anew."""
        for sequence_id in reversed(sequence_ids):
            self._remove(sequence_id)
        if newest:
            self.highest = self.ranges[-1][1] if self.ranges else None if self._forgotten < 0 else self._forgotten

    def _remove(self, sequence_id: int) -> None:
        at = bisect_left(self.ranges, (sequence_id + 1,)) - 1
        if at < 0 or sequence_id > self.ranges[at][1]:
            return
        first, last = self.ranges[at]
        rest = [(begin, end) for begin, end in ((first, sequence_id - 1), (sequence_id + 1, last)) if begin <= end]
        self.ranges[at : at + 1] = rest
        self.forget()

    def forget(self) -> None:
        """Drop the oldest range, if there are too many."""
        if len(self.ranges) > self.MAX_RANGES:
            self._forgotten = self.ranges.pop(0)[1]
