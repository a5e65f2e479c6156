"""The highest sequence id per producer. It only rises.

"Never published" is the absence of a mark (None), never 0 or -1: 0 is a sequence id like any other (the Pulsar Python client
treated 0 as "unset" and stored record 0 of a file twice).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_SEQUENCE_ID = 2**63 - 1
"""The largest sequence id: what a signed 64-bit integer holds, as on the wire and on disk."""


class Mark(NamedTuple):
    """A producer's newest message: its sequence id, and where the message lies."""

    sequence_id: int
    message_id: bytes
    """20 bytes, sorting as the log does."""
    offset: int


class SequenceMap:
    """producer → :class:`Mark` of its highest sequence id."""

    __slots__ = ("_marks",)

    def __init__(self, marks: dict[str, Mark] | None = None) -> None:
        self._marks: dict[str, Mark] = {} if marks is None else dict(marks)

    def get(self, producer: str) -> Mark | None:
        """The producer's mark, or None if it never published."""
        return self._marks.get(producer)

    def raise_to(self, producer: str, mark: Mark) -> None:
        """Move the producer up to ``mark``; a mark at or below the present one changes nothing."""
        present = self._marks.get(producer)
        if present is None or mark.sequence_id > present.sequence_id:
            self._marks[producer] = mark

    def precede(self, producer: str, mark: Mark) -> None:
        """:meth:`raise_to` with a message that came before the present one: at equal sequence ids it is the first."""
        present = self._marks.get(producer)
        if present is None or mark.sequence_id >= present.sequence_id:
            self._marks[producer] = mark

    def forget(self, producer: str) -> None:
        """Drop the producer. Only an operator asks for this; nothing expires by itself."""
        self._marks.pop(producer, None)

    def copy(self) -> SequenceMap:
        """An independent map with the same marks, for a snapshot that is encoded while this one goes on rising."""
        return SequenceMap(self._marks)

    def items(self) -> Iterator[tuple[str, Mark]]:
        """Every (producer, mark), in no promised order."""
        return iter(self._marks.items())

    def producers(self) -> Iterator[str]:
        """The name of every producer, in no promised order."""
        return iter(self._marks)

    def __len__(self) -> int:
        return len(self._marks)

    def __contains__(self, producer: object) -> bool:
        return producer in self._marks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequenceMap) and self._marks == other._marks

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"SequenceMap({self._marks!r})"


def newest(mark: Mark | None, others: Iterable[Mark]) -> Mark | None:
    """The one with the highest sequence id; at equal ones the one that came first, as if they had been raised in log order."""
    for each in others:
        if mark is None or (each.sequence_id, -each.offset) > (mark.sequence_id, -mark.offset):
            mark = each
    return mark


def merged(earlier: SequenceMap, later: SequenceMap) -> SequenceMap:
    """The highest marks of both, where all of ``earlier`` lies before all of ``later`` in the log.

    It is the larger one of the two, changed: the cost is that of the smaller one. Neither may be used as itself afterwards.
    """
    if len(later) <= len(earlier):
        for producer, mark in later.items():
            earlier.raise_to(producer, mark)
        return earlier
    for producer, mark in earlier.items():
        later.precede(producer, mark)
    return later
