"""Which messages of a producer travel together, and how a refused request is divided. Pure: no thread, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from operator import le
from typing import Any, Self

from oncelog.errors import OffsetMismatch
from oncelog.producing.cutting import Messages
from oncelog.values.expectation import Expectation
from oncelog.values.outgoing import Outgoing
from oncelog.wire.requests import PublishRequest

MAX_MESSAGES = 5_000
MAX_BYTES = 1 << 20
LINGER_SECONDS = 0.005
"""A synced write takes 1 to 4 ms: waiting about as long for company costs little and saves most requests."""


class Batch(Messages):
    """Messages of one producer that will be one request. Sequence ids strictly rise.

    Messages that come one by one are :attr:`rows` until nothing comes in any more: so each is one step to a signal handler, and
    costs one append. Then :meth:`settled` makes them columns.
    """

    __slots__ = ("begin", "done", "expected", "last", "queued_at", "rows", "shared", "whole")

    def __init__(self, shared: Any = None, whole: bool = False) -> None:
        super().__init__()
        self.rows: list[Outgoing] = []
        self.last = -1
        """Sequence id of the last of the rows."""
        self.shared = shared
        """What the results are given to, of these messages and perhaps of others."""
        self.begin = 0
        """Index there of the first message."""
        self.whole = whole
        """Whether all of it is stored or nothing: it is never divided."""
        self.expected: Expectation | None = None
        """Of the first message. Where it is of the offset alone, the others expect to follow on; else there are no others, unless
        the batch is ``whole``."""
        self.queued_at = 0.0
        """Seconds on the caller's clock at which it was complete."""
        self.done = False
        """Whether every message has its result and its callbacks have run."""

    def __len__(self) -> int:
        return len(self.rows) or len(self.payloads)

    def accepts(self, sequence_id: int, expected: Expectation | None) -> bool:
        """Tell whether a message may be refused or stored together with those before it.

        What expects nothing is not refused together with what does. What expects an offset goes with those whose offsets it
        follows on; every other expectation needs a request of its own.
        """
        if not self.rows:
            return True
        if sequence_id <= self.last:
            return False
        if self.expected is None or expected is None:
            return self.expected is expected
        return self.expected.offset_alone and expected == self.expected.moved(len(self.rows))

    def settled(self) -> Self:
        """Make columns of the rows: nothing comes in any more. Return the batch."""
        if self.rows:
            payloads, numbers, keys, properties, ttls = map(list, islice(zip(*self.rows, strict=True), 5))
            if numbers[0] is None:  # the SDK numbers, and leaves nothing out
                numbers = list(range(self.last - len(payloads) + 1, self.last + 1))
            rows: list[Outgoing] = []
            # One step from here to the end.
            self.payloads, self.sequence_ids, self.keys, self.properties, self.ttls = payloads, numbers, keys, properties, ttls
            self.rows = rows
        return self

    def rising(self) -> Iterator[Self]:
        """Cut the messages where the ids that the caller gave do not rise: a request's do."""
        ids = self.sequence_ids
        if None in ids or not any(map(le, islice(ids, 1, None), ids)):  # type: ignore[arg-type]  # no None among them
            yield self
            return
        ends = [at for at, (one, other) in enumerate(pairwise(ids), 1) if other <= one]  # type: ignore[operator]  # as above
        for begin, end in pairwise((0, *ends, len(ids))):
            yield self.part(begin, end)

    def parted(self, mismatch: OffsetMismatch) -> tuple[Batch, Batch, Batch]:
        """Return the messages that are there already, those that are refused, and those that are still to be judged, in order.

        The refusal of the request judges each message of it, as if each had come in a request of its own in the same moment:
        where the topic is ahead of what was expected, the message that expects just the upcoming offset may still win.
        """
        known, refused = 0, len(self)
        expected, actual = mismatch.expected, mismatch.actual
        if mismatch.condition == "offset" and isinstance(expected, int) and isinstance(actual, int) and self._is_divisible():
            assert self.expected is not None
            assert self.expected.offset is not None
            known = min(max(0, expected - self.expected.offset), len(self) - 1)
            if actual > expected:
                refused = min(known + actual - expected, len(self))
        return self.part(0, known), self.part(known, refused), self.part(refused, len(self))

    def _is_divisible(self) -> bool:
        return not self.whole and self.expected is not None and self.expected.offset_alone

    def halves(self) -> list[Batch]:
        """Return the first half of the messages and the rest. One faulty message of 5,000 is alone after 13 of these."""
        middle = len(self) // 2
        return [self.part(0, middle), self.part(middle, len(self))]

    def part(self, begin: int, end: int) -> Self:
        """Copy some of the messages that stand side by side, with what they expect."""
        part = super().part(begin, end)
        part.shared, part.begin = self.shared, self.begin + begin
        part.whole, part.queued_at = self.whole, self.queued_at
        part.expected = self.expected.moved(begin) if self.expected is not None and 0 < begin < end else self.expected
        return part

    def request(self, producer: str | None = None, epoch: int | None = None) -> PublishRequest:
        """Make the request that carries them, and what the first one expects."""
        request = super().request(producer, epoch)
        if self.expected is not None:
            request.expected_offset = self.expected.offset
            request.expected_last_message_id = self.expected.last_message_id
            request.expected_key_offsets = self.expected.key_offsets
        return request
