"""One topic's two maps, and the verdict on each message. The topic is a log, or the stored group of one write pointer.

PIP-6 keeps, per producer, *last pushed* (set before the write) and *last persisted* (set after its sync). The difference
between them is what is in flight. Two holes of Pulsar's are closed here:

* each message is judged alone, also inside a batch (Pulsar #6273 judged a batch by one number);
* when a write fails, nothing here is believed any more: the topic's maps are folded anew from the log (Pulsar #5218 left *pushed*
  ahead and called the retry a duplicate).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from oncelog_dedup.fold import Fold, Run
from oncelog_dedup.sequence_map import LastEntry


class Verdict(NamedTuple):
    """Says how a request divides. Its sequence ids rise, so each kind is one contiguous stretch, in this order."""

    persisted: int
    """How many are at or below *last persisted*: already there."""
    in_flight: int
    """How many are above it and at or below *last pushed*: being written; wait for them, then judge again."""
    new: int
    """How many are above *last pushed*."""


class Deduplicator:
    """The maps of one topic. Not thread-safe: one owner moves it, in log order."""

    __slots__ = ("_pushed", "fold")

    def __init__(self, fold: Fold | None = None) -> None:
        self.fold = Fold() if fold is None else fold
        """What is persisted. *Last persisted* is its live entry: it steps back when a transaction is rolled back."""
        # Only producers with something in flight stand here; for every other one, last pushed *is* last persisted. That
        # keeps 100,000 idle producers at one entry each.
        self._pushed: dict[str, LastEntry] = {}

    def judge(self, producer: str, sequence_ids: Sequence[int]) -> Verdict:
        """Divide strictly rising ``sequence_ids`` into already persisted, in flight, and new. Changes nothing."""
        last_entry = self.fold.get(producer)
        persisted = 0 if last_entry is None else bisect_right(sequence_ids, last_entry.sequence_id)
        pushed = self._pushed.get(producer)
        known = persisted if pushed is None else bisect_right(sequence_ids, pushed.sequence_id)
        return Verdict(persisted, known - persisted, len(sequence_ids) - known)

    def push(self, producer: str, last_entry: LastEntry) -> None:
        """Note that everything of this producer up to ``last_entry`` is about to be written.

        An entry at or below the last pushed one changes nothing: with deduplication off a topic takes ids that do not rise.
        """
        present = self.last_pushed(producer)
        if present is None or last_entry.sequence_id > present.sequence_id:
            self._pushed[producer] = last_entry

    def persist(self, run: Run) -> None:
        """Note that the next run of the log is synced to disk. Raises ReplayError if it is not the next one."""
        self.fold.add(run)
        for producer, last_entry in run.last_entries:
            pushed = self._pushed.get(producer)
            if pushed is not None and pushed.sequence_id <= last_entry.sequence_id:
                del self._pushed[producer]

    def forget(self, producer: str) -> None:
        """Drop all knowledge of a producer, at an operator's word."""
        self.fold.forget(producer)
        self._pushed.pop(producer, None)

    def producers(self) -> set[str]:
        """Everybody of whom something is known, persisted or in flight."""
        return {name for name, _ in self.fold.items()} | self._pushed.keys()

    @property
    def producers_at_most(self) -> int:
        """As many as :meth:`producers`, or more: those that have something in flight may be counted twice."""
        return len(self.fold) + len(self._pushed)

    def last_pushed(self, producer: str) -> LastEntry | None:
        """The newest message handed to the writer, synced or not yet, or None if there never was one."""
        return self._pushed.get(producer) or self.fold.get(producer)

    def last_persisted(self, producer: str) -> LastEntry | None:
        """The newest message of the producer that is synced to disk, or None."""
        return self.fold.get(producer)

    def in_flight(self, producer: str) -> bool:
        """Whether something of this producer is being written."""
        return producer in self._pushed
