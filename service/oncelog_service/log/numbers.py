"""The sequence ids under one write pointer of messages that no producer sent. Pure.

Such ids are the transaction's own, and count within it alone. They need not rise from one request to the next, since several
processes may publish under one pointer, each with numbers of its own. So what is remembered is which ones are taken, as ranges;
a highest one, as of a producer, would take the lower range of another process for a repetition, and lose it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from oncelog.errors import InvalidRequest, SequenceReused


class Taken(NamedTuple):
    """Sequence ids that rise by one, of messages that lie side by side."""

    first: int
    end: int
    """Behind the last one."""
    row_id: bytes = b""
    """Of the row that the first one lies in; empty where nobody asks."""

    def holds(self, sequence_ids: Sequence[int]) -> bool:
        """Whether all of these, which rise by one, are among them."""
        return self.first <= sequence_ids[0] and sequence_ids[-1] < self.end


class Numbers:
    """Which sequence ids are taken. No two entries overlap."""

    def __init__(self) -> None:
        self._taken: list[Taken] = []

    def add(self, taken: Taken) -> None:
        """Note ids of which :meth:`overlapping` found none. What follows on joins the entry before it, unless they name rows."""
        at = bisect_left(self._taken, taken)
        before = self._taken[at - 1] if at else None
        if before is not None and before.end == taken.first and not before.row_id and not taken.row_id:
            self._taken[at - 1] = Taken(before.first, taken.end)
        else:
            self._taken.insert(at, taken)

    def drop(self, taken: Taken) -> None:
        """These may be used again; what is not there is passed over."""
        at = bisect_left(self._taken, taken)
        if self._taken[at : at + 1] == [taken]:
            del self._taken[at]

    def overlapping(self, sequence_ids: Sequence[int]) -> list[Taken]:
        """The entries, rising, that hold any of these ids, which rise by one. One that holds all of them is the only one."""
        begin = bisect_right(self._taken, sequence_ids[0], key=lambda taken: taken.end)
        end = bisect_right(self._taken, sequence_ids[-1], key=lambda taken: taken.first)
        return self._taken[begin:end]


def partly_taken(pointer: int, sequence_ids: Sequence[int], taken: Taken) -> InvalidRequest:
    """The refusal of a request that is neither new nor a repetition."""
    return InvalidRequest(
        f"sequence ids {sequence_ids[0]} to {sequence_ids[-1]} without a producer: under write pointer {pointer}, "
        f"{taken.first} to {taken.end - 1} are taken; a request is repeated as it was, or has ids that are all new"
    )


def reused(pointer: int, sequence_id: int, message_id: str | None = None, offset: int | None = None) -> SequenceReused:
    """The refusal of another message under an id that is taken, by the one with this message id (hex) and offset."""
    return SequenceReused(
        f"sequence id {sequence_id} without a producer is taken under write pointer {pointer} by a message with another payload",
        sequence_id=sequence_id,
        message_id=message_id,
        offset=offset,
    )
