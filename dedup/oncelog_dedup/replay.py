"""A snapshot and the log entries after it give exactly the map that was lost.

It refuses rather than guesses: an entry out of order or a hole in the offsets ends it with an error, since
with deduplication on a silent hole is permanent - the retry would be answered "duplicate".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oncelog_dedup.fold import ReplayError
from oncelog_dedup.sequence_map import Mark, SequenceMap
from oncelog_dedup.snapshot import START, Position, Snapshot


class Entry(NamedTuple):
    """What the fold needs to know of one message of the log."""

    offset: int
    message_id: bytes
    producer: str | None
    sequence_id: int | None


class Replayed(NamedTuple):
    """The outcome of a replay."""

    marks: SequenceMap
    position: Position
    entries: int
    """How many entries were folded in, not counting the snapshot."""


def replay(snapshot: Snapshot | None, entries: Iterable[Entry], forgotten: Mapping[str, int] | None = None) -> Replayed:
    """Fold ``entries`` (all messages from the snapshot's position on, in log order) onto ``snapshot``.

    Args:
        snapshot: where to begin; None folds from the first message of the topic's life.
        entries: consumed once, lazily.
        forgotten: producer → offset. An operator had the producer forgotten when this was the upcoming offset: what lies
            below it does not count for that producer.

    Raises:
        ReplayError: an entry is not the next one (offsets are dense, ids rise).
    """
    forgotten = {} if forgotten is None else forgotten
    begin = START if snapshot is None else snapshot.position
    marks = SequenceMap() if snapshot is None else snapshot.marks.copy()
    for producer, below in forgotten.items():
        mark = marks.get(producer)
        if mark is not None and mark.offset < below:
            marks.forget(producer)
    offset, last_id = begin
    for entry in entries:
        if entry.offset != offset:
            raise ReplayError(f"expected the message at offset {offset}, found offset {entry.offset}")
        if last_id is not None and entry.message_id <= last_id:
            raise ReplayError(f"the message id at offset {offset} does not rise: {entry.message_id.hex()} after {last_id.hex()}")
        offset, last_id = offset + 1, entry.message_id
        if entry.producer is not None and entry.sequence_id is not None and entry.offset >= forgotten.get(entry.producer, 0):
            marks.raise_to(entry.producer, Mark(entry.sequence_id, entry.message_id, entry.offset))
    return Replayed(marks, Position(offset, last_id), offset - begin.upcoming_offset)
