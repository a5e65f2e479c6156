"""The highest sequence id per producer. It only rises.

"Never published" is the absence of an entry (None), never 0 or -1: 0 is a sequence id like any other (the Pulsar Python client
treated 0 as "unset" and stored record 0 of a file twice).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

MAX_SEQUENCE_ID = 2**63 - 1
"""The largest sequence id: what a signed 64-bit integer holds, as on the wire and on disk."""


class LastEntry(NamedTuple):
    """A producer's newest message: its sequence id, and where the message lies."""

    sequence_id: int
    message_id: bytes
    """20 bytes, sorting as the log does."""
    offset: int


class SequenceMap(dict[str, LastEntry]):
    """producer → :class:`LastEntry` of its highest sequence id. It is changed by these methods alone."""

    __slots__ = ()

    def raise_to(self, producer: str, last_entry: LastEntry) -> None:
        """Move the producer up to ``last_entry``; an entry at or below the present one changes nothing."""
        present = self.get(producer)
        if present is None or last_entry.sequence_id > present.sequence_id:
            self[producer] = last_entry

    def precede(self, producer: str, last_entry: LastEntry) -> None:
        """:meth:`raise_to` with a message that came before the present one: at equal sequence ids it is the first."""
        present = self.get(producer)
        if present is None or last_entry.sequence_id >= present.sequence_id:
            self[producer] = last_entry

    def forget(self, producer: str) -> None:
        """Drop the producer. Only an operator asks for this; nothing expires by itself."""
        self.pop(producer, None)

    def copy(self) -> SequenceMap:
        """An independent map with the same entries, for a snapshot that is encoded while this one goes on rising."""
        return SequenceMap(self)

    def latest(self, count: int) -> list[str]:
        """The ``count`` producers that came last, or all."""
        return list(islice(reversed(self), count))


def newest(last_entry: LastEntry | None, others: Iterable[LastEntry]) -> LastEntry | None:
    """The one with the highest sequence id; at equal ones the one that came first, as if they had been raised in log order."""
    for each in others:
        if last_entry is None or (each.sequence_id, -each.offset) > (last_entry.sequence_id, -last_entry.offset):
            last_entry = each
    return last_entry


def merged(earlier: SequenceMap, later: SequenceMap) -> SequenceMap:
    """The highest entries of both, where all of ``earlier`` lies before all of ``later`` in the log.

    It is the larger one of the two, changed: the cost is that of the smaller one. Neither may be used as itself afterwards.
    """
    if len(later) <= len(earlier):
        for producer, last_entry in later.items():
            earlier.raise_to(producer, last_entry)
        return earlier
    for producer, last_entry in earlier.items():
        later.precede(producer, last_entry)
    return later
