"""The whole core against a naive model: publishes, partial duplicates, failed writes, snapshots and crashes at any moment.

The model is a plain list of everything that is on disk. It knows nothing of maps: whatever the core says must follow from that
list by looking through all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncelog_dedup import Deduplicator, Entry, Mark, Snapshot, SnapshotDamaged, Verdict, replay
from tests.dedup.marks import entry, position

PRODUCERS = ("a", "b", "c")
producers = st.sampled_from(PRODUCERS)
# Small numbers, so that most requests repeat, overlap, or leave something out.
requests = st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True).map(sorted)


@dataclass
class Disk:
    """What a crash leaves."""

    log: list[Entry]
    slots: list[bytes | None]
    forgotten: dict[str, int]


class Core(RuleBasedStateMachine):
    """One topic of which the core keeps the maps."""

    @initialize(always_judged=st.booleans())
    def start(self, always_judged: bool) -> None:
        self.disk = Disk([], [None, None], {})
        self.in_flight: list[list[Entry]] = []
        self.dedup = Deduplicator()
        self.always_judged = always_judged

    # --- the model: look through everything

    def on_disk(self, producer: str) -> list[Entry]:
        below = self.disk.forgotten.get(producer, 0)
        return [each for each in self.disk.log if each.producer == producer and each.offset >= below]

    def flying(self, producer: str) -> list[Entry]:
        return [each for request in self.in_flight for each in request if each.producer == producer]

    def newest(self, entries: list[Entry]) -> Mark | None:
        best = max(entries, key=lambda each: each.sequence_id or 0, default=None)
        return None if best is None or best.sequence_id is None else Mark(best.sequence_id, best.message_id, best.offset)

    def upcoming(self) -> int:
        return len(self.disk.log) + sum(map(len, self.in_flight))

    # --- what happens

    @rule(producer=producers, sequence_ids=requests)
    def publish(self, producer: str, sequence_ids: list[int]) -> None:
        persisted, pushed = self.newest(self.on_disk(producer)), self.newest(self.on_disk(producer) + self.flying(producer))
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
        self.write(producer, sequence_ids[verdict.persisted + verdict.in_flight :])

    @precondition(lambda self: not self.always_judged)
    @rule(producer=producers, sequence_ids=requests)
    def publish_with_deduplication_off(self, producer: str, sequence_ids: list[int]) -> None:
        """Everything is stored; the maps must be right all the same, for the moment when it is switched on again."""
        self.write(producer, sequence_ids)

    def write(self, producer: str, sequence_ids: list[int]) -> None:
        if sequence_ids:
            begin = self.upcoming()
            rows = [entry(begin + number, producer, each) for number, each in enumerate(sequence_ids)]
            self.dedup.push(producer, Mark(sequence_ids[-1], rows[-1].message_id, rows[-1].offset))
            self.in_flight.append(rows)

    @rule(messages=st.integers(1, 3))
    def publish_without_a_name(self, messages: int) -> None:
        begin = self.upcoming()
        self.in_flight.append([entry(begin + number) for number in range(messages)])

    @precondition(lambda self: self.in_flight)
    @rule()
    def the_oldest_write_is_synced(self) -> None:
        rows = self.in_flight.pop(0)
        self.disk.log += rows
        last = rows[-1]
        if last.producer is not None and last.sequence_id is not None:
            self.dedup.persist(last.producer, Mark(last.sequence_id, last.message_id, last.offset))

    @precondition(lambda self: self.in_flight)
    @rule()
    def the_write_fails(self) -> None:
        self.in_flight.clear()
        self.dedup.put_back()

    @rule(slot=st.integers(0, 1))
    def a_snapshot_is_written(self, slot: int) -> None:
        self.disk.slots[slot] = Snapshot(self.dedup.persisted, position(len(self.disk.log))).to_bytes()

    @rule(producer=producers)
    def an_operator_has_a_producer_forgotten(self, producer: str) -> None:
        if not self.flying(producer):
            self.dedup.forget(producer)
            self.disk.forgotten[producer] = len(self.disk.log)

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
        for rows in self.in_flight[:survive]:
            self.disk.log += rows
        self.in_flight.clear()
        newest = max(filter(None, map(self.read, self.disk.slots)), key=lambda each: each.position.upcoming_offset, default=None)
        begin = 0 if newest is None else newest.position.upcoming_offset
        replayed = replay(newest, iter(self.disk.log[begin:]), self.disk.forgotten)
        assert replayed.position == position(len(self.disk.log))
        assert replayed.entries == len(self.disk.log) - begin
        self.dedup = Deduplicator(replayed.marks)

    def read(self, data: bytes | None) -> Snapshot | None:
        try:
            return None if data is None else Snapshot.from_bytes(data)
        except SnapshotDamaged:
            return None

    # --- what must hold at every moment

    @invariant()
    def the_maps_say_what_is_on_disk_and_in_flight(self) -> None:
        for producer in PRODUCERS:
            assert self.dedup.last_persisted(producer) == self.newest(self.on_disk(producer))
            assert self.dedup.last_pushed(producer) == self.newest(self.on_disk(producer) + self.flying(producer))
            assert self.dedup.in_flight(producer) == (self.dedup.last_pushed(producer) != self.dedup.last_persisted(producer))
            assert self.dedup.in_flight(producer) == bool(self.flying(producer)) or not self.always_judged

    @invariant()
    def the_live_map_is_the_fold_of_the_log(self) -> None:
        assert self.dedup.persisted == replay(None, self.disk.log, self.disk.forgotten).marks

    @precondition(lambda self: self.always_judged)
    @invariant()
    def no_sequence_id_is_stored_twice_and_they_rise(self) -> None:
        for producer in PRODUCERS:
            stored = [each.sequence_id or 0 for each in self.on_disk(producer) + self.flying(producer)]
            assert all(before < behind for before, behind in pairwise(stored))


TestCore = Core.TestCase
TestCore.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
