"""The whole core against a naive model: publishes, transactions, partial duplicates, failed writes, snapshots and crashes.

The model is a plain list of everything that is on disk. It knows nothing of maps: whatever the core says must follow from that
list by looking through all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, pairwise, takewhile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncelog_dedup import Deduplicator, Entry, LastEntry, Position, Run, SequenceMap, Snapshot, SnapshotDamaged, Verdict, replay
from tests.dedup.last_entries import message_id

PRODUCERS = ("a", "b", "c")
producers = st.sampled_from(PRODUCERS)
# Small numbers, so that most requests repeat, overlap, or leave something out.
requests = st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True).map(sorted)
places = st.integers(0, 2)
"""Which of the three transactions that are always open; when one has ended the next takes its place."""

Request = list[Entry]
"""The rows that one request stored."""


@dataclass
class Disk:
    """What a crash leaves."""

    log: list[Request] = field(default_factory=list)
    slots: list[bytes | None] = field(default_factory=lambda: [None, None])
    forgotten: dict[str, int] = field(default_factory=dict)

    committed: set[int] = field(default_factory=set)

    def counts_from(self, name: str) -> int:
        return self.forgotten.get(name, 0)

    def unsettled(self, request: Request) -> bool:
        pointer = request[0].write_pointer
        return pointer is not None and pointer > 0 and pointer not in self.committed

    def marks_in(self, requests: Iterable[Request]) -> list[tuple[str, LastEntry]]:
        """Every named message that was neither rolled back nor forgotten."""
        rows = [row for row in chain.from_iterable(requests) if (row.write_pointer or 0) >= 0]
        last_entries = [last_entry for row in rows for last_entry in row.last_entries]
        last_entries += [
            (row.producer, LastEntry(row.sequence_id, row.message_id, row.offset))
            for row in rows
            if row.producer and row.sequence_id is not None
        ]
        return [(name, last_entry) for name, last_entry in last_entries if last_entry.offset >= self.forgotten.get(name, 0)]

    def newest(self, requests: Iterable[Request]) -> dict[str, LastEntry]:
        found = self.marks_in(requests)
        return {
            producer: min(
                (last_entry for name, last_entry in found if name == producer),
                key=lambda last_entry: (-last_entry.sequence_id, last_entry.offset),
            )
            for producer in {name for name, _ in found}
        }

    def run_of(self, request: Request) -> Run:
        first, last = request[0], request[-1]
        count, last_entries = sum(row.count for row in request), self.newest([request])
        pointer = first.write_pointer
        return Run(first.offset, count, first.message_id, last.last_id or last.message_id, tuple(last_entries.items()), pointer)

    def position(self, requests: list[Request]) -> Position:
        if not requests:
            return Position(0, None)
        run = self.run_of(requests[-1])
        return Position(run.first_offset + run.count, run.last_id)


def comparable(run: Run) -> Run:
    """Without the order of its producers, which nothing depends on."""
    return run._replace(last_entries=tuple(sorted(run.last_entries)))


class Core(RuleBasedStateMachine):
    """One topic of which the core keeps the maps."""

    @initialize(always_judged=st.booleans())
    def start(self, always_judged: bool) -> None:
        self.disk = Disk()
        self.in_flight: list[Request] = []
        self.dedup = Deduplicator()
        self.moments: list[tuple[tuple[int, int], set[str]]] = []
        """And who was in this fold then."""
        self.always_judged = always_judged
        self.open = [1, 2, 3]

    # --- the model: look through everything

    def everything(self) -> list[Request]:
        return self.disk.log + self.in_flight

    def flying(self, producer: str) -> bool:
        return any(name == producer for name, _ in self.disk.marks_in(self.in_flight))

    def end(self) -> tuple[int, int]:
        """Offset and number of the next row."""
        rows = list(chain.from_iterable(self.everything()))
        return sum(row.count for row in rows), len(rows)

    # --- publishing

    @rule(producer=producers, sequence_ids=requests, place=st.none() | places)
    def publish(self, producer: str, sequence_ids: list[int], place: int | None) -> None:
        persisted, pushed = (self.disk.newest(each).get(producer) for each in (self.disk.log, self.everything()))
        kinds = [
            "persisted"
            if persisted is not None and each <= persisted.sequence_id
            else "in flight"
            if pushed is not None and each <= pushed.sequence_id
            else "new"
            for each in sequence_ids
        ]
        verdict = self.dedup.judge(producer, sequence_ids)
        assert verdict == Verdict(kinds.count("persisted"), kinds.count("in flight"), kinds.count("new"))
        assert kinds == ["persisted"] * verdict.persisted + ["in flight"] * verdict.in_flight + ["new"] * verdict.new
        self.write(producer, sequence_ids[verdict.persisted + verdict.in_flight :], place)

    @precondition(lambda self: not self.always_judged)
    @rule(producer=producers, sequence_ids=requests, place=st.none() | places)
    def publish_with_deduplication_off(self, producer: str, sequence_ids: list[int], place: int | None) -> None:
        """Everything is stored; the maps must be right all the same, for the moment when it is switched on again."""
        self.write(producer, sequence_ids, place)

    @rule(messages=st.integers(1, 3), place=st.none() | places)
    def publish_without_a_name(self, messages: int, place: int | None) -> None:
        self.write(None, [None] * messages, place)

    def write(self, producer: str | None, sequence_ids: list[int] | list[None], place: int | None) -> None:
        offset, number = self.end()
        pointer = None if place is None else self.open[place]
        rows = [
            Entry(offset + at, message_id(number + at), producer, each, pointer, begins=at == 0)
            for at, each in enumerate(sequence_ids)
        ]
        if rows:
            self.send(rows)

    @rule(place=places, highest=st.dictionaries(producers, st.integers(0, 15)), unnamed=st.integers(0, 2))
    def publish_a_stored_group(self, place: int, highest: dict[str, int], unnamed: int) -> None:
        offset, number = self.end()
        row_id = message_id(number)
        ids = [row_id[:10] + bytes([at + 1]) * 10 for at in range(len(highest) + unnamed)]
        last_entries = tuple(
            (name, LastEntry(sequence_id, ids[at], offset + at))
            for at, (name, sequence_id) in enumerate(highest.items())
            if self.dedup.judge(name, [sequence_id]).new or not self.always_judged
        )
        self.send([Entry(offset, row_id, None, None, self.open[place], len(ids), last_entries, ids[-1] if ids else None)])

    def send(self, request: Request) -> None:
        for producer, last_entry in self.disk.newest([request]).items():
            self.dedup.push(producer, last_entry)
        self.in_flight.append(request)

    @precondition(lambda self: self.in_flight)
    @rule()
    def the_oldest_write_is_synced(self) -> None:
        request = self.in_flight.pop(0)
        self.disk.log.append(request)
        self.dedup.persist(self.disk.run_of(request))

    @precondition(lambda self: self.in_flight)
    @rule()
    def the_write_fails(self) -> None:
        self.in_flight.clear()
        self.dedup.put_back()

    # --- transactions end

    def may_end(self, pointer: int) -> bool:
        """Nothing of it is being written. With deduplication off nothing else is either: ids that do not rise are not pushed."""
        return not any(request[0].write_pointer == pointer or not self.always_judged for request in self.in_flight)

    @rule(place=places)
    def a_transaction_is_committed(self, place: int) -> None:
        pointer = self.open[place]
        if self.may_end(pointer):
            self.disk.committed.add(pointer)
            self.dedup.fold.commit(pointer)
            self.open[place] = max(self.open) + 1

    @rule(place=places)
    def a_transaction_is_rolled_back(self, place: int) -> None:
        pointer = self.open[place]
        if self.may_end(pointer):
            requests = [each for each in self.disk.log if each[0].write_pointer == pointer]
            self.roll_back(requests, lambda: self.dedup.fold.roll_back(pointer))
            self.open[place] = max(self.open) + 1

    @rule(place=places, data=st.data())
    def a_part_of_a_transaction_is_rolled_back(self, place: int, data: st.DataObject) -> None:
        pointer = self.open[place]
        requests = [each for each in self.disk.log if each[0].write_pointer == pointer]
        if requests and self.may_end(pointer):
            some = [each for each in requests if data.draw(st.booleans())]
            runs = [self.disk.run_of(each) for each in some]
            self.roll_back(some, lambda: self.dedup.fold.roll_back(pointer, runs))

    def roll_back(self, requests: list[Request], tell: object) -> None:
        affected = frozenset(name for name, _ in self.disk.marks_in(requests))
        assert tell() == affected  # type: ignore[operator]
        for request in requests:
            request[:] = [row._replace(write_pointer=-(row.write_pointer or 0)) for row in request]

    # --- keeping house

    @rule(producer=producers)
    def an_operator_has_a_producer_forgotten(self, producer: str) -> None:
        if not self.flying(producer):
            self.dedup.forget(producer)
            self.disk.forgotten[producer] = self.dedup.fold.position.upcoming_offset

    @rule(slot=st.integers(0, 1))
    def a_snapshot_is_written(self, slot: int) -> None:
        self.disk.slots[slot] = self.dedup.fold.stable.to_bytes()

    @rule(slot=st.integers(0, 1), bit=st.integers(0, 10_000))
    def a_snapshot_is_damaged(self, slot: int, bit: int) -> None:
        data = self.disk.slots[slot]
        if data is not None:
            damaged = bytearray(data)
            damaged[bit // 8 % len(data)] ^= 1 << bit % 8
            self.disk.slots[slot] = bytes(damaged)

    @rule(data=st.data())
    def crash_and_restart(self, data: st.DataObject) -> None:
        """Of the writes in flight a disk may hold the first few."""
        survive = data.draw(st.integers(0, len(self.in_flight)))
        self.disk.log += self.in_flight[:survive]
        self.in_flight.clear()
        newest = max(filter(None, map(self.read, self.disk.slots)), key=lambda each: each.position.upcoming_offset, default=None)
        begin = Position(0, None) if newest is None else newest.position
        rows = [row for row in chain.from_iterable(self.disk.log) if row.message_id > (begin.last_message_id or b"")]
        replayed = replay(newest, iter(rows), self.disk.counts_from)
        assert replayed.entries == self.end()[0] - begin.upcoming_offset
        for pointer in set(replayed.fold.unsettled) & self.disk.committed:
            replayed.fold.commit(pointer)
        self.dedup = Deduplicator(replayed.fold)
        self.moments.clear()

    def read(self, data: bytes | None) -> Snapshot | None:
        try:
            return None if data is None else Snapshot.from_bytes(data)
        except SnapshotDamaged:
            return None

    # --- what must hold at every moment

    @invariant()
    def the_maps_say_what_is_on_disk_and_in_flight(self) -> None:
        persisted, pushed = self.disk.newest(self.disk.log), self.disk.newest(self.everything())
        for producer in PRODUCERS:
            assert self.dedup.last_persisted(producer) == persisted.get(producer)
            assert self.dedup.last_pushed(producer) == pushed.get(producer)
            assert self.dedup.in_flight(producer) == (persisted.get(producer) != pushed.get(producer))
            assert self.dedup.in_flight(producer) == self.flying(producer) or not self.always_judged
            assert (producer in self.dedup.fold) == (producer in persisted)
        assert (self.dedup.fold.copy(), len(self.dedup.fold)) == (SequenceMap(persisted), len(persisted))
        assert self.dedup.fold.position == self.disk.position(self.disk.log)
        assert self.dedup.fold.upcoming_offset == self.dedup.fold.position.upcoming_offset

    @invariant()
    def whoever_comes_is_among_those_that_it_says_have_come(self) -> None:
        present = set(self.disk.newest(self.disk.log))
        self.moments.append((self.dedup.fold.moment, present))
        for moment, before in self.moments:
            came = self.dedup.fold.came_since(moment)
            assert came is None or present - before <= set(came)

    @invariant()
    def the_live_map_is_the_fold_of_the_log(self) -> None:
        folded = replay(None, chain.from_iterable(self.disk.log), self.disk.counts_from).fold
        assert (self.dedup.fold.copy(), self.dedup.fold.position) == (folded.copy(), folded.position)

    @invariant()
    def a_snapshot_holds_exactly_what_lies_before_the_first_unsettled_message(self) -> None:
        before = list(takewhile(lambda each: not self.disk.unsettled(each), self.disk.log))
        assert self.dedup.fold.stable == Snapshot(SequenceMap(self.disk.newest(before)), self.disk.position(before))

    @invariant()
    def each_unsettled_run_is_known_with_its_producers(self) -> None:
        expected: dict[int, list[Run]] = {}
        for request in filter(self.disk.unsettled, self.disk.log):
            expected.setdefault(request[0].write_pointer or 0, []).append(comparable(self.disk.run_of(request)))
        assert {pointer: list(map(comparable, runs)) for pointer, runs in self.dedup.fold.unsettled.items()} == expected
        assert len(self.dedup.fold.unsettled) == len(expected)
        assert [pointer in self.dedup.fold.unsettled for pointer in self.open] == [pointer in expected for pointer in self.open]
        oldest = min(chain.from_iterable(expected.values()), key=lambda each: each.first_id, default=None)
        found = self.dedup.fold.oldest_unsettled
        assert (None if found is None else comparable(found)) == oldest
        for producer in PRODUCERS:
            pointers = {pointer for pointer, runs in expected.items() if any(producer in dict(run.last_entries) for run in runs)}
            assert set(self.dedup.fold.pointers_of(producer)) == pointers

    @invariant()
    def a_transaction_may_leave_the_others_out(self) -> None:
        for besides in [(), self.open[:1], self.open[1:]]:
            visible = [each for each in self.disk.log if not self.disk.unsettled(each) or each[0].write_pointer in besides]
            last_entries = self.disk.newest(visible)
            for producer in PRODUCERS:
                assert self.dedup.fold.settled_entry(producer, besides) == last_entries.get(producer)

    @precondition(lambda self: self.always_judged)
    @invariant()
    def no_sequence_id_is_stored_twice_and_they_rise(self) -> None:
        last_entries = sorted(self.disk.marks_in(self.everything()), key=lambda each: each[1].offset)
        for producer in PRODUCERS:
            stored = [last_entry.sequence_id for name, last_entry in last_entries if name == producer]
            assert all(before < behind for before, behind in pairwise(stored))


TestCore = Core.TestCase
TestCore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
