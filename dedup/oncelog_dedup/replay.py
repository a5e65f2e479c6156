"""A snapshot and the log entries after it give exactly the fold that was lost.

It refuses rather than guesses: an entry out of order or a hole in the offsets ends it with an error, since
with deduplication on a silent hole is permanent - the retry would be answered "duplicate".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from oncelog_dedup.fold import Fold, Run
from oncelog_dedup.sequence_map import LastEntry
from oncelog_dedup.snapshot import Snapshot


class Entry(NamedTuple):
    """One row of the log, as far as the fold needs to know it."""

    offset: int
    message_id: bytes
    producer: str | None
    sequence_id: int | None
    write_pointer: int | None = None
    """None: not transactional. Negative: rolled back; such a row moves the position only."""
    count: int = 1  # type: ignore[assignment]  # nobody counts the fields of an entry
    """Messages that the row stands for; 0 and more for the row of a stored group."""
    last_entries: tuple[tuple[str, LastEntry], ...] = ()
    """Of a stored group: its named producers' newest messages. Other rows have ``producer`` and ``sequence_id`` instead."""
    last_id: bytes | None = None
    """Id of the last message of a stored group, or that of the row if it is empty; None: the row is no group's."""
    begins: bool = True
    """The row is the first of its request; that of a stored group always is. Asked of transactional rows only."""


class Replayed(NamedTuple):
    """The outcome of a replay."""

    fold: Fold
    """Transactional runs in it are unsettled, whatever has become of their transactions: the caller knows."""
    entries: int
    """How many messages were folded in, not counting the snapshot."""


def _all_count(_: str) -> int:
    return 0


def replay(snapshot: Snapshot | None, entries: Iterable[Entry], counts_from: Callable[[str], int] = _all_count) -> Replayed:
    """Fold ``entries`` (all rows from the snapshot's position on, in log order) onto ``snapshot``.

    Args:
        snapshot: where to begin; None folds from the first message of the topic's life.
        entries: consumed once, lazily; at a hole between the rows of a transaction one row further is read.
        counts_from: producer → offset. What lies below it does not count for that producer, however its transactions end: it
            was forgotten when this was the upcoming offset.

    Raises:
        ReplayError: an entry is not the next one (offsets are dense, ids rise).
    """
    fold = _begin(snapshot, counts_from)
    begin = fold.position.upcoming_offset
    request: _Request | None = None
    for entry in entries:
        offset, message_id, producer, sequence_id, write_pointer, _, _, last_id, _ = entry
        if request is not None:
            if request.take(entry, counts_from):
                continue
            request.add_to(fold)
            request = None
        if write_pointer is not None or last_id is not None:
            request = _Request(entry, counts_from)
        elif producer is None or offset >= counts_from(producer):
            fold.add_row(offset, message_id, producer, sequence_id)
        else:
            fold.add_row(offset, message_id)
    if request is not None:
        request.add_to(fold)
    return Replayed(fold, fold.position.upcoming_offset - begin)


def _begin(snapshot: Snapshot | None, counts_from: Callable[[str], int]) -> Fold:
    fold = Fold(snapshot)
    for producer in [name for name, last_entry in fold.items() if last_entry.offset < counts_from(name)]:
        fold.forget(producer)
    return fold


def _last_entries_of(entry: Entry, counts_from: Callable[[str], int]) -> dict[str, LastEntry]:
    last_entries = dict(entry.last_entries)
    if entry.producer is not None and entry.sequence_id is not None:
        last_entries[entry.producer] = LastEntry(entry.sequence_id, entry.message_id, entry.offset)
    return {name: last_entry for name, last_entry in last_entries.items() if last_entry.offset >= counts_from(name)}


class _Request:
    """The rows of one request of a transaction, as far as they were read: one run, as it was when they were stored."""

    __slots__ = ("_end", "_first", "_last_entries", "_last_id")

    def __init__(self, first: Entry, counts_from: Callable[[str], int]) -> None:
        self._first = first
        self._end = first.offset + first.count
        self._last_id = first.message_id if first.last_id is None else first.last_id
        self._last_entries = _last_entries_of(first, counts_from)

    def take(self, entry: Entry, counts_from: Callable[[str], int]) -> bool:
        """Take the next entry if it belongs to the same request. A hole ends the request, and what is behind it is refused."""
        first = self._first
        if entry.begins or entry.write_pointer != first.write_pointer or entry.producer != first.producer:
            return False
        if entry.offset != self._end or entry.message_id <= self._last_id:
            return False
        self._end, self._last_id = entry.offset + 1, entry.message_id
        self._last_entries |= _last_entries_of(entry, counts_from)  # sequence ids rise within a request
        return True

    def add_to(self, fold: Fold) -> None:
        """Add what was taken as one run."""
        first, pointer = self._first, self._first.write_pointer
        last_entries = tuple(self._last_entries.items())
        run = Run(first.offset, self._end - first.offset, first.message_id, self._last_id, last_entries, pointer)
        if pointer is not None and pointer < 0:
            fold.skip(run)
        else:
            fold.add(run)
