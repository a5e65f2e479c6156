"""producer → newest message, over everything in the log that counts, and how far of it is settled.

A message of a transaction counts while nobody knows how the transaction ends, and stops counting if it is rolled back: then the
map must step back to what it would be without it. And a snapshot holds nothing that may yet stop counting. Both follow from
keeping apart what was settled *before* each unsettled run::

    head      segment     segment
    ├─────────┼───┬───────┼───┬────────┤ position
    settled   run settled run settled
              ?           ?

The head's map is what a snapshot may hold. Each unsettled run is followed by a map of what was settled behind it; when the run
settles, its segment is merged into the one before it. Idle producers stand in the head alone, so that a transaction costs
nothing for them; two small overlays say what the tail changes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, NoReturn

from oncelog_dedup.sequence_map import Mark, SequenceMap, merged, newest
from oncelog_dedup.snapshot import Position, Snapshot


class ReplayError(ValueError):
    """What is added does not continue the log: a message is missing, doubled or out of order."""


class Run(NamedTuple):
    """Rows that lie next to each other in the log and were stored by one request."""

    first_offset: int
    count: int  # type: ignore[assignment]  # nobody counts the fields of a run
    """Messages, each with an offset of its own; 0 for the row of an empty stored group."""
    first_id: bytes
    """20-byte message id of its first row. It names the run: no other one of the log has it."""
    last_id: bytes
    """20-byte message id of its last message."""
    marks: tuple[tuple[str, Mark], ...] = ()
    """The newest message of each named producer in it, each producer once."""
    write_pointer: int | None = None
    """None: not transactional, or settled already."""


class _Segment:
    """An unsettled run and what was settled between it and the next one. The first segment, the head, has no run."""

    __slots__ = ("before", "following", "marks", "previous", "run")

    def __init__(self, run: Run | None, before: bytes, marks: SequenceMap, previous: _Segment | None) -> None:
        self.run = run
        self.before = before
        """Id of the last message before the run; empty when there is none."""
        self.marks = marks
        self.previous = previous
        self.following: _Segment | None = None


class _Unsettled(Mapping[int, tuple[Run, ...]]):
    """What :attr:`Fold.unsettled` answers: a view, not a copy."""

    __slots__ = ("_segments",)

    def __init__(self, segments: Mapping[int, Mapping[bytes, _Segment]]) -> None:
        self._segments = segments

    def __getitem__(self, pointer: int) -> tuple[Run, ...]:
        return tuple(segment.run for segment in self._segments[pointer].values() if segment.run is not None)

    def __iter__(self) -> Iterator[int]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, pointer: object) -> bool:
        return pointer in self._segments


class Fold:
    """The map of one topic's log. Not thread-safe: one owner moves it, in log order.

    *Live* is every message that was not rolled back, settled or not. *Settled* is every plain message and those of committed
    transactions. At equal sequence ids (deduplication was off) the message that came first is the producer's mark.
    """

    __slots__ = ("_came_or_went", "_head", "_last", "_last_id", "_live", "_segments", "_settled", "_unsettled", "_upcoming")

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        """Begin behind ``snapshot``, of which a copy is kept; None: before the first message of the topic's life."""
        self._upcoming = 0 if snapshot is None else snapshot.position.upcoming_offset
        self._last_id = b"" if snapshot is None else snapshot.position.last_message_id or b""
        self._head = _Segment(None, b"", SequenceMap() if snapshot is None else snapshot.marks.copy(), None)
        self._last = self._head
        self._segments: dict[int, dict[bytes, _Segment]] = {}
        """Write pointer → first id of the run → its segment, in log order."""
        self._unsettled: dict[str, dict[int, dict[_Segment, Mark]]] = {}
        """Producer → write pointer → its unsettled runs of this producer."""
        # Both say only what differs from the head's map.
        self._live: dict[str, Mark] = {}
        self._settled: dict[str, Mark] = {}
        self._came_or_went = 0
        """How often a producer may have come or gone by anything but a new mark of the head."""

    # --- the log grows --------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        """The next run of the log; with a write pointer it is unsettled until its :meth:`commit` or :meth:`roll_back`.

        Raises:
            ReplayError: it does not continue the position (offsets are dense, ids strictly rise). Nothing has changed.
        """
        first_offset, count, first_id, last_id, marks, pointer = run
        if first_offset != self._upcoming or first_id <= self._last_id or last_id < first_id:
            self._refuse(first_offset, first_id, last_id)
        if pointer is not None:
            self._open(run, pointer)
        elif self._last is self._head:
            for producer, mark in marks:
                self._head.marks.raise_to(producer, mark)
        else:
            for producer, mark in marks:
                self._add_behind(producer, mark)
        self._upcoming = first_offset + count
        self._last_id = last_id

    def add_row(self, offset: int, message_id: bytes, producer: str | None = None, sequence_id: int | None = None) -> None:
        """The same for a single row that is not transactional, as a replay sees them. Raises ReplayError."""
        if offset != self._upcoming or message_id <= self._last_id:
            self._refuse(offset, message_id, message_id)
        if producer is not None and sequence_id is not None:
            if self._last is self._head:
                self._head.marks.raise_to(producer, Mark(sequence_id, message_id, offset))
            else:
                self._add_behind(producer, Mark(sequence_id, message_id, offset))
        self._upcoming = offset + 1
        self._last_id = message_id

    def skip(self, run: Run) -> None:
        """The next run of the log was rolled back: it moves the position and nothing else. Raises ReplayError."""
        self.add(run._replace(marks=(), write_pointer=None))

    # --- transactions end -----------------------------------------------------------------------------------------------

    def commit(self, pointer: int) -> None:
        """The transaction's runs count for good. A pointer without unsettled runs changes nothing."""
        for segment in self._segments.pop(pointer, {}).values():
            marks = SequenceMap(dict(self._close(segment, pointer)))
            for producer, mark in marks.items():
                self._override(self._settled, producer, mark)
            segment.marks = merged(marks, segment.marks)
            self._merge_into_previous(segment)

    def roll_back(self, pointer: int, runs: Collection[Run] | None = None) -> frozenset[str]:
        """These runs of the transaction do not count any more; None: all that are unsettled.

        What is not an unsettled run of this very pointer is passed over: a second roll-back, or one after the commit, changes
        nothing. Returns the producers that had messages in these runs.
        """
        present = self._segments.get(pointer, {})
        names = list(present) if runs is None else dict.fromkeys(run.first_id for run in runs)
        segments = [present.pop(name) for name in names if name in present]
        if not present:
            self._segments.pop(pointer, None)
        affected = frozenset(producer for segment in segments for producer, _ in self._close(segment, pointer))
        for producer in affected:
            self._look_again(producer)
        for segment in segments:
            self._merge_into_previous(segment)
        return affected

    def forget(self, producer: str) -> None:
        """What is known of the producer up to now never counts, however its transactions end. At an operator's word."""
        segment: _Segment | None = self._head
        while segment is not None:
            segment.marks.forget(producer)
            segment = segment.following
        for segments in self._unsettled.pop(producer, {}).values():
            for each in segments:
                assert each.run is not None  # only the head has none
                each.run = each.run._replace(marks=tuple(mark for mark in each.run.marks if mark[0] != producer))
        self._live.pop(producer, None)
        self._settled.pop(producer, None)
        self._came_or_went += 1

    # --- what is known --------------------------------------------------------------------------------------------------

    def get(self, producer: str) -> Mark | None:
        """The producer's newest live message, or None."""
        return self._live.get(producer) or self._head.marks.get(producer)

    def settled_mark(self, producer: str, besides: Collection[int] = ()) -> Mark | None:
        """The producer's newest message that is settled or belongs to one of the transactions ``besides``, or None."""
        mark = self._settled.get(producer) or self._head.marks.get(producer)
        present = self._unsettled.get(producer)
        if present is None:
            return mark
        if all(pointer in besides for pointer in present):
            return self.get(producer)
        return newest(mark, (each for pointer, runs in present.items() if pointer in besides for each in runs.values()))

    def pointers_of(self, producer: str) -> Collection[int]:
        """The transactions with unsettled messages of the producer; as they are at this call."""
        present = self._unsettled.get(producer)
        return () if present is None else tuple(present)

    @property
    def unsettled(self) -> Mapping[int, tuple[Run, ...]]:
        """Write pointer → its unsettled runs in log order. A view that follows the fold, not a copy."""
        return _Unsettled(self._segments)

    @property
    def upcoming_offset(self) -> int:
        """That of :attr:`position`."""
        return self._upcoming

    @property
    def position(self) -> Position:
        """Just behind the last run."""
        return Position(self._upcoming, self._last_id or None)

    @property
    def oldest_unsettled(self) -> Run | None:
        """The first run of the log that nobody knows the end of, or None: what is settled ends before it."""
        first = self._head.following
        return None if first is None else first.run

    @property
    def settled(self) -> Snapshot:
        """The fold of exactly the messages before the first unsettled run: what a snapshot may hold.

        Not a copy: whoever keeps it while the fold moves on copies its marks.
        """
        first = self._head.following
        if first is None or first.run is None:
            return Snapshot(self._head.marks, self.position)
        return Snapshot(self._head.marks, Position(first.run.first_offset, first.before or None))

    def items(self) -> Iterator[tuple[str, Mark]]:
        """Every (producer, newest live message), in no promised order."""
        yield from self._live.items()
        for item in self._head.marks.items():
            if item[0] not in self._live:
                yield item

    @property
    def membership(self) -> tuple[int, int]:
        """Says whether other producers have a live mark now than before: another value whenever they are others.

        Seldom it is another one though they are the same. While nobody is forgotten the head only gains producers, so that
        their number says which they are; all else is counted.
        """
        return len(self._head.marks), self._came_or_went

    def copy(self) -> SequenceMap:
        """The live map as it is now."""
        return SequenceMap(dict(self.items()))

    def __len__(self) -> int:
        return len(self._head.marks) + sum(producer not in self._head.marks for producer in self._live)

    def __contains__(self, producer: object) -> bool:
        return producer in self._live or producer in self._head.marks

    # --- segments -------------------------------------------------------------------------------------------------------

    def _refuse(self, offset: int, first_id: bytes, last_id: bytes) -> NoReturn:
        if offset != self._upcoming:
            raise ReplayError(f"expected the message at offset {self._upcoming}, found offset {offset}")
        before, behind = (self._last_id, first_id) if first_id <= self._last_id else (first_id, last_id)
        raise ReplayError(f"the message id at offset {offset} does not rise: {behind.hex()} after {before.hex()}")

    def _open(self, run: Run, pointer: int) -> None:
        segment = _Segment(run, self._last_id, SequenceMap(), self._last)
        self._last.following = segment
        self._last = segment
        self._segments.setdefault(pointer, {})[run.first_id] = segment
        for producer, mark in run.marks:
            self._unsettled.setdefault(producer, {}).setdefault(pointer, {})[segment] = mark
            self._override(self._live, producer, mark)

    def _add_behind(self, producer: str, mark: Mark) -> None:
        """A settled message behind an unsettled run."""
        self._last.marks.raise_to(producer, mark)
        self._override(self._settled, producer, mark)
        self._override(self._live, producer, mark)

    def _override(self, overlay: dict[str, Mark], producer: str, mark: Mark) -> None:
        present = overlay.get(producer) or self._head.marks.get(producer)
        if newest(present, (mark,)) is not present:
            overlay[producer] = mark
            self._came_or_went += present is None

    def _close(self, segment: _Segment, pointer: int) -> tuple[tuple[str, Mark], ...]:
        """The marks of its run, which is not unsettled any more."""
        assert segment.run is not None  # only the head has none
        for producer, _ in segment.run.marks:
            pointers = self._unsettled[producer]
            del pointers[pointer][segment]
            if not pointers[pointer]:
                del pointers[pointer]
            if not pointers:
                del self._unsettled[producer]
        return segment.run.marks

    def _look_again(self, producer: str) -> None:
        """Set the producer's live mark after some of its messages ceased to count."""
        base = self._head.marks.get(producer)
        unsettled = self._unsettled.get(producer, {}).values()
        mark = newest(self._settled.get(producer) or base, (mark for runs in unsettled for mark in runs.values()))
        if mark is None or mark == base:
            self._live.pop(producer, None)
            self._came_or_went += mark is None
        else:
            self._live[producer] = mark

    def _merge_into_previous(self, segment: _Segment) -> None:
        previous = segment.previous
        assert previous is not None  # only the head has none
        previous.following = segment.following
        if segment.following is None:
            self._last = previous
        else:
            segment.following.previous = previous
        previous.marks = merged(previous.marks, segment.marks)
        if previous is self._head:
            self._trim_overlays(segment.marks)

    def _trim_overlays(self, merged_in: SequenceMap) -> None:
        """The head has the marks of these producers now: the overlays need not say any more what it says."""
        if self._last is self._head:
            self._live.clear()
            self._settled.clear()
            return
        for producer in merged_in.producers():
            base = self._head.marks.get(producer)
            for overlay in (self._live, self._settled):
                if overlay.get(producer) == base:
                    overlay.pop(producer, None)
