"""Which messages of a producer travel together, and how a refused request is divided. Pure: no thread, no clock."""

from __future__ import annotations

from typing import Any, Self

from oncelog.errors import OffsetMismatch
from oncelog.producing.cutting import Messages
from oncelog.values.expectation import Expectation
from oncelog.wire.requests import PublishRequest

MAX_MESSAGES = 5_000
MAX_BYTES = 1 << 20
LINGER_SECONDS = 0.005
"""A synced write takes 1 to 4 ms: waiting about as long for company costs little and saves most requests."""


class Batch(Messages):
    """Messages of one producer that will be one request. Sequence ids strictly rise."""

    __slots__ = ("done", "expected", "queued_at", "shared", "waiters", "whole")

    def __init__(self, shared: Any = None, whole: bool = False) -> None:
        super().__init__()
        self.waiters: list[Any] = []
        """What is notified of the result of message i."""
        self.shared = shared
        """Whatever the waiters of a batch have in common."""
        self.whole = whole
        """Whether all of it is stored or nothing: it is never divided."""
        self.expected: Expectation | None = None
        """Of the first message. Where it is of the offset alone, the others expect to follow on; else there are no others, unless
        the batch is ``whole``."""
        self.queued_at = 0.0
        """Seconds on the caller's clock at which it was complete."""
        self.done = False
        """Whether every message has its result and its callbacks have run."""

    def accepts(self, sequence_id: int, expected: Expectation | None) -> bool:
        """Tell whether a message may be refused or stored together with those before it.

        What expects nothing is not refused together with what does. What expects an offset goes with those whose offsets it
        follows on; every other expectation needs a request of its own.
        """
        if not self.sequence_ids:
            return True
        if sequence_id <= self.sequence_ids[-1]:  # type: ignore[operator]  # a producer's messages all have one
            return False
        if self.expected is None or expected is None:
            return self.expected is expected
        return self.expected.offset_alone and expected == self.expected.moved(len(self.payloads))

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
        part.waiters = self.waiters[begin:end]
        part.shared, part.whole, part.queued_at = self.shared, self.whole, self.queued_at
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
