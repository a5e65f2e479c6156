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

from oncelog_dedup.sequence_map import LastEntry, SequenceMap, merged, newest
from oncelog_dedup.snapshot import Position, Snapshot


class ReplayError(ValueError):
    """What is added does not continue the log: a message is missing, doubled or out of order."""


class Run(NamedTuple):
    """Rows that lie next to each other in the log and were stored by one request, or by plain ones that were written together."""

    first_offset: int
    count: int  # type: ignore[assignment]  # nobody counts the fields of a run
    """Messages, each with an offset of its own; 0 for the row of an empty stored group."""
    first_id: bytes
    """20-byte message id of its first row. It names the run: no other one of the log has it."""
    last_id: bytes
    """20-byte message id of its last message."""
    last_entries: tuple[tuple[str, LastEntry], ...] = ()
    """The newest message of each named producer in it, each producer once."""
    write_pointer: int | None = None
    """None: not transactional, or settled already."""


class _Segment:
    """An unsettled run and what was settled between it and the next one. The first segment, the head, has no run."""

    __slots__ = ("before", "following", "last_entries", "previous", "run")

    def __init__(self, run: Run | None, before: bytes, last_entries: SequenceMap, previous: _Segment | None) -> None:
        self.run = run
        self.before = before
        """Id of the last message before the run; empty when there is none."""
        self.last_entries = last_entries
        self.previous = previous
        self.following: _Segment | None = None


class _Unsettled(Mapping[int, tuple[Run, ...]]):
    """Shows the unsettled runs of a :class:`Fold`: a view, not a copy."""

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
    transactions. At equal sequence ids (deduplication was off) the message that came first is the producer's last entry.
    """

    __slots__ = (
        "_came_behind",
        "_forgotten",
        "_head",
        "_last",
        "_last_id",
        "_live",
        "_segments",
        "_settled",
        "_unsettled",
        "_upcoming",
        "gone",
    )

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        """Begin behind ``snapshot``, of which a copy is kept; None: before the first message of the topic's life."""
        self._upcoming = 0 if snapshot is None else snapshot.position.upcoming_offset
        self._last_id = b"" if snapshot is None else snapshot.position.last_message_id or b""
        self._head = _Segment(None, b"", SequenceMap() if snapshot is None else snapshot.last_entries.copy(), None)
        self._last = self._head
        self._segments: dict[int, dict[bytes, _Segment]] = {}
        """Write pointer → first id of the run → its segment, in log order."""
        self._unsettled: dict[str, dict[int, dict[_Segment, LastEntry]]] = {}
        """Producer → write pointer → its unsettled runs of this producer."""
        # Both say only what differs from the head's map.
        self._live: dict[str, LastEntry] = {}
        self._settled: dict[str, LastEntry] = {}
        self._came_behind = 0
        """How often a producer came behind the head."""
        self._forgotten = 0
        """How often one was taken out of the head."""
        self.gone = 0
        """How often a producer was forgotten, or something rolled back: only then may there be fewer of them."""

    # --- the log grows --------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        """The next run of the log; with a write pointer it is unsettled until its :meth:`commit` or :meth:`roll_back`.

        Raises:
            ReplayError: it does not continue the position (offsets are dense, ids strictly rise). Nothing has changed.
        """
        first_offset, count, first_id, last_id, last_entries, pointer = run
        if first_offset != self._upcoming or first_id <= self._last_id or last_id < first_id:
            self._refuse(first_offset, first_id, last_id)
        if pointer is not None:
            self._open(run, pointer)
        elif self._last is self._head:
            for producer, last_entry in last_entries:
                self._head.last_entries.raise_to(producer, last_entry)
        else:
            for producer, last_entry in last_entries:
                self._add_behind(producer, last_entry)
        self._upcoming = first_offset + count
        self._last_id = last_id

    def add_row(self, offset: int, message_id: bytes, producer: str | None = None, sequence_id: int | None = None) -> None:
        """Add a single row that is not transactional, as a replay sees them. Raises ReplayError."""
        if offset != self._upcoming or message_id <= self._last_id:
            self._refuse(offset, message_id, message_id)
        if producer is not None and sequence_id is not None:
            if self._last is self._head:
                self._head.last_entries.raise_to(producer, LastEntry(sequence_id, message_id, offset))
            else:
                self._add_behind(producer, LastEntry(sequence_id, message_id, offset))
        self._upcoming = offset + 1
        self._last_id = message_id

    def skip(self, run: Run) -> None:
        """The next run of the log was rolled back: it moves the position and nothing else. Raises ReplayError."""
        self.add(run._replace(last_entries=(), write_pointer=None))

    # --- transactions end -----------------------------------------------------------------------------------------------

    def commit(self, pointer: int) -> None:
        """The transaction's runs count for good. A pointer without unsettled runs changes nothing."""
        for segment in self._segments.pop(pointer, {}).values():
            last_entries = SequenceMap(dict(self._close(segment, pointer)))
            for producer, last_entry in last_entries.items():
                self._override(self._settled, producer, last_entry)
            segment.last_entries = merged(last_entries, segment.last_entries)
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
        self.gone += len(segments) > 0
        affected = dict.fromkeys(producer for segment in segments for producer, _ in self._close(segment, pointer))
        for producer in affected:
            self._look_again(producer)
        for segment in segments:
            self._merge_into_previous(segment)
        return frozenset(affected)

    def forget(self, producer: str) -> None:
        """Drop what is known of the producer up to now, however its transactions end. At an operator's word."""
        self.gone += 1
        self._forgotten += producer in self._head.last_entries
        segment: _Segment | None = self._head
        while segment is not None:
            segment.last_entries.forget(producer)
            segment = segment.following
        for segments in self._unsettled.pop(producer, {}).values():
            for each in segments:
                assert each.run is not None  # only the head has none
                each.run = each.run._replace(
                    last_entries=tuple(last_entry for last_entry in each.run.last_entries if last_entry[0] != producer)
                )
        self._live.pop(producer, None)
        self._settled.pop(producer, None)

    # --- what is known --------------------------------------------------------------------------------------------------

    def get(self, producer: str) -> LastEntry | None:
        """The producer's newest live message, or None."""
        return self._live.get(producer) or self._head.last_entries.get(producer)

    def settled_entry(self, producer: str, besides: Collection[int] = ()) -> LastEntry | None:
        """The producer's newest message that is settled or belongs to one of the transactions ``besides``, or None."""
        last_entry = self._settled.get(producer) or self._head.last_entries.get(producer)
        present = self._unsettled.get(producer)
        if present is None:
            return last_entry
        if all(pointer in besides for pointer in present):
            return self.get(producer)
        return newest(last_entry, (each for pointer, runs in present.items() if pointer in besides for each in runs.values()))

    def undecided_ranges(self, producer: str, besides: Collection[int] = ()) -> Iterator[tuple[int, int, int]]:
        """Says of each unsettled run of the producer outside the transactions ``besides`` which sequence ids it may hold.

        Yields (write pointer, floor, top), in log order: the ids are above ``floor``, which a message before the run has that is
        settled or of ``besides``, and at most ``top``. It makes no difference what was settled behind the run.
        """
        present = self._unsettled.get(producer)
        if present is None:
            return
        floor, segment = -1, self._head
        while True:
            settled = segment.last_entries.get(producer)
            floor = floor if settled is None else max(floor, settled.sequence_id)
            if segment.following is None:
                return
            segment = segment.following
            assert segment.run is not None  # only the head has none
            pointer = segment.run.write_pointer
            assert pointer is not None  # it is unsettled
            entry = present.get(pointer, {}).get(segment)
            if entry is not None and pointer in besides:
                floor = max(floor, entry.sequence_id)
            elif entry is not None:
                yield pointer, floor, entry.sequence_id

    def pointers_of(self, producer: str) -> Collection[int]:
        """The transactions with unsettled messages of the producer; as they are at this call."""
        present = self._unsettled.get(producer)
        return () if present is None else tuple(present)

    @property
    def has_unsettled(self) -> bool:
        """Whether anything in the log is of a transaction that is not settled."""
        return bool(self._segments)

    @property
    def unsettled(self) -> Mapping[int, tuple[Run, ...]]:
        """Write pointer → its unsettled runs in log order. A view that follows the fold, not a copy."""
        return _Unsettled(self._segments)

    @property
    def upcoming_offset(self) -> int:
        """The offset of :attr:`position`."""
        return self._upcoming

    @property
    def position(self) -> Position:
        """Just behind the last run."""
        return Position(self._upcoming, self._last_id or None)

    @property
    def oldest_unsettled(self) -> Run | None:
        """The first unsettled run of the log, or None: what is settled ends before it."""
        first = self._head.following
        return None if first is None else first.run

    @property
    def stable(self) -> Snapshot:
        """The fold of exactly the messages before the first unsettled run: what a snapshot may hold.

        Not a copy: a caller that keeps it while the fold moves on copies its entries.
        """
        first = self._head.following
        if first is None or first.run is None:
            return Snapshot(self._head.last_entries, self.position)
        return Snapshot(self._head.last_entries, Position(first.run.first_offset, first.before or None))

    def items(self) -> Iterator[tuple[str, LastEntry]]:
        """Every (producer, newest live message), in no promised order."""
        yield from self._live.items()
        for item in self._head.last_entries.items():
            if item[0] not in self._live:
                yield item

    @property
    def moment(self) -> tuple[int, int]:
        """Now, for :meth:`came_since`."""
        return self._came_behind, len(self._head.last_entries) + self._forgotten

    def came_since(self, moment: tuple[int, int]) -> list[str] | None:
        """Names among which are those of all producers that have come since; None: any may have.

        A producer comes to the end of the head, and nothing else does but what had come behind it before: so they are among the
        last of it, as many as it has gained.
        """
        behind, gained = self.moment
        return self._head.last_entries.latest(gained - moment[1]) if behind == moment[0] else None

    def copy(self) -> SequenceMap:
        """The live map as it is now."""
        return SequenceMap(dict(self.items()))

    def __len__(self) -> int:
        return len(self._head.last_entries) + sum(producer not in self._head.last_entries for producer in self._live)

    def __contains__(self, producer: object) -> bool:
        return producer in self._live or producer in self._head.last_entries

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
        for producer, last_entry in run.last_entries:
            self._unsettled.setdefault(producer, {}).setdefault(pointer, {})[segment] = last_entry
            self._override(self._live, producer, last_entry)

    def _add_behind(self, producer: str, last_entry: LastEntry) -> None:
        """A settled message behind an unsettled run."""
        self._last.last_entries.raise_to(producer, last_entry)
        self._override(self._settled, producer, last_entry)
        self._override(self._live, producer, last_entry)

    def _override(self, overlay: dict[str, LastEntry], producer: str, last_entry: LastEntry) -> None:
        present = overlay.get(producer) or self._head.last_entries.get(producer)
        if newest(present, (last_entry,)) is not present:
            overlay[producer] = last_entry
            self._came_behind += present is None

    def _close(self, segment: _Segment, pointer: int) -> tuple[tuple[str, LastEntry], ...]:
        """The last entries of its run, which is not unsettled any more."""
        assert segment.run is not None  # only the head has none
        for producer, _ in segment.run.last_entries:
            pointers = self._unsettled[producer]
            del pointers[pointer][segment]
            if not pointers[pointer]:
                del pointers[pointer]
            if not pointers:
                del self._unsettled[producer]
        return segment.run.last_entries

    def _look_again(self, producer: str) -> None:
        """Set the producer's live entry after some of its messages ceased to count."""
        base = self._head.last_entries.get(producer)
        unsettled = self._unsettled.get(producer, {}).values()
        last_entry = newest(
            self._settled.get(producer) or base, (last_entry for runs in unsettled for last_entry in runs.values())
        )
        if last_entry is None or last_entry == base:
            self._live.pop(producer, None)
        else:
            self._live[producer] = last_entry

    def _merge_into_previous(self, segment: _Segment) -> None:
        previous = segment.previous
        assert previous is not None  # only the head has none
        previous.following = segment.following
        if segment.following is None:
            self._last = previous
        else:
            segment.following.previous = previous
        previous.last_entries = merged(previous.last_entries, segment.last_entries)
        if previous is self._head:
            self._trim_overlays(segment.last_entries)

    def _trim_overlays(self, merged_in: SequenceMap) -> None:
        """The head has the last entries of these producers now: the overlays need not say any more what it says."""
        if self._last is self._head:
            self._live.clear()
            self._settled.clear()
            return
        for producer in merged_in:
            base = self._head.last_entries.get(producer)
            for overlay in (self._live, self._settled):
                if overlay.get(producer) == base:
                    overlay.pop(producer, None)
