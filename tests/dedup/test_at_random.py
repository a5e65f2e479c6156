"""The whole core against a naive model: publishes, transactions, partial duplicates, failed writes, snapshots and crashes.

The model is a plain list of everything that is on disk. It knows nothing of overlays or segments: whatever the core says must
follow from that list by looking through all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random

from oncelog_dedup import Deduplicator, Entry, LastEntry, Position, Run, SequenceMap, Snapshot, SnapshotDamaged, Verdict, replay
from tests.dedup.last_entries import message_id

OPEN, SETTLED, GONE = "open", "settled", "gone"
NAMES = "abc"


@dataclass
class Request:
    """What one request stored."""

    rows: list[Entry]
    run: Run
    state: str

    @property
    def pointer(self) -> int | None:
        return self.run.write_pointer


class History:
    """One topic of which the core keeps the maps, and everything that was written."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.dedup = Deduplicator()
        self.log: list[Request] = []
        self.flying: list[Request] = []
        self.open = [1, 2, 3]
        """When one of these transactions has ended the next takes its place."""
        self.slots: list[bytes] = [b"", b""]
        self.forgotten: dict[str, int] = {}
        self.moments: list[tuple[tuple[int, int], set[str]]] = []
        """And who was in the fold then."""
        self.judged = random.random() < 0.5
        """Whether deduplication is on: else everything is stored, and the maps must be right all the same."""

    # --- the model: look through everything

    def newest(self, requests: Iterable[Request], besides: Collection[int] | None = None) -> SequenceMap:
        """Of what was not rolled back; of transactions that are open, only ``besides``, if it is given."""
        last_entries = SequenceMap()
        for each in requests:
            hidden = each.state == OPEN and besides is not None and each.pointer not in besides
            for producer, last_entry in () if hidden or each.state == GONE else each.run.last_entries:
                if last_entry.offset >= self.counts_from(producer):
                    last_entries.raise_to(producer, last_entry)
        return last_entries

    def counts_from(self, producer: str) -> int:
        return self.forgotten.get(producer, 0)

    def of(self, pointer: int) -> list[Request]:
        return [each for each in self.log if (each.pointer, each.state) == (pointer, OPEN)]

    # --- what happens

    def step(self) -> None:
        moves = {self.publish: 8, self.publish_group: 3, self.sync: 10, self.fail: 1, self.commit: 2, self.roll_back: 3}
        moves |= {self.forget: 1, self.take_snapshot: 2, self.crash: 1}
        self.random.choices(list(moves), list(moves.values()))[0]()

    def publish(self) -> None:
        random, producer = self.random, self.random.choice([None, *NAMES])
        ids: list[int] | list[None] = [None] * random.randint(1, 3)
        if producer is not None:
            ids = sorted(random.sample(range(12), random.randint(1, 4)))
            if self.judged:
                ids = ids[self.judge(producer, ids) :]
        offset, number, pointer = *self.end(), random.choice([None, None, *self.open])
        rows = [
            Entry(offset + at, message_id(number + at), producer, each, pointer, begins=at == 0) for at, each in enumerate(ids)
        ]
        if rows:
            self.send(rows, {} if producer is None else {producer: len(rows) - 1})

    def judge(self, producer: str, ids: list[int]) -> int:
        """How many of them are not new."""
        persisted, pushed = (self.newest(each).get(producer) for each in (self.log, self.log + self.flying))
        known = sum(persisted is not None and each <= persisted.sequence_id for each in ids)
        flying = sum(pushed is not None and each <= pushed.sequence_id for each in ids) - known
        assert self.dedup.judge(producer, ids) == Verdict(known, flying, len(ids) - known - flying)
        return known + flying

    def publish_group(self) -> None:
        """One row that stands for messages of several producers, or for none."""
        random, (offset, number) = self.random, self.end()
        row_id, names = message_id(number), random.sample(NAMES, random.randint(0, 2))
        count = len(names) + random.randint(0, 2)
        ids = [row_id[:10] + bytes([at + 1]) * 10 for at in range(count)]
        drawn = [(name, LastEntry(random.randint(0, 12), ids[at], offset + at)) for at, name in enumerate(names)]
        last_entries = tuple(each for each in drawn if not self.judged or not self.judge(each[0], [each[1].sequence_id]))
        pointer = random.choice([None, *self.open])
        self.send([Entry(offset, row_id, None, None, pointer, count, last_entries, ids[-1] if ids else row_id)], {})

    def end(self) -> tuple[int, int]:
        """Offset and number of the next row."""
        rows = [row for each in self.log + self.flying for row in each.rows]
        return sum(row.count for row in rows), len(rows)

    def send(self, rows: list[Entry], named: dict[str, int]) -> None:
        """``named``: producer → which row is its newest."""
        first, last = rows[0], rows[-1]
        entries = dict(first.last_entries)
        for name, at in named.items():
            entries[name] = LastEntry(rows[at].sequence_id or 0, rows[at].message_id, rows[at].offset)
        count, last_id = sum(row.count for row in rows), last.last_id or last.message_id
        run = Run(first.offset, count, first.message_id, last_id, tuple(entries.items()), first.write_pointer)
        for name, last_entry in entries.items():
            self.dedup.push(name, last_entry)
        self.flying.append(Request(rows, run, SETTLED if run.write_pointer is None else OPEN))

    def sync(self) -> None:
        if self.flying:
            self.log.append(self.flying.pop(0))
            self.dedup.persist(self.log[-1].run)

    def fail(self) -> None:
        """A write fails: nothing in memory is believed any more."""
        self.flying.clear()
        self.read_back()

    def ends(self, pointer: int) -> bool:
        """Whether it may: nothing of it is being written; with deduplication off nothing is, since what does not rise is not
        pushed."""
        if any(each.pointer == pointer or not self.judged for each in self.flying):
            return False
        self.open[self.open.index(pointer)] = max(self.open) + 1
        return True

    def commit(self) -> None:
        pointer = self.random.choice(self.open)
        if self.ends(pointer):
            for each in self.of(pointer):
                each.state = SETTLED
            self.dedup.fold.commit(pointer)

    def roll_back(self) -> None:
        pointer, part = self.random.choice(self.open), self.random.random() < 0.5
        if not self.ends(pointer):
            return
        requests = self.of(pointer)
        if part:
            self.open[self.open.index(max(self.open))] = pointer  # it goes on
            requests = [each for each in requests if self.random.random() < 0.5]
        affected = set(self.newest(requests))
        assert self.dedup.fold.roll_back(pointer, [each.run for each in requests] if part else None) == affected
        for each in requests:
            each.state = GONE
            each.rows = [row._replace(write_pointer=-pointer) for row in each.rows]

    def forget(self) -> None:
        producer = self.random.choice(NAMES)
        if not any(producer in dict(each.run.last_entries) for each in self.flying):
            self.dedup.forget(producer)
            self.forgotten[producer] = self.dedup.fold.upcoming_offset

    def take_snapshot(self) -> None:
        """Where a bit flips now and then."""
        data = bytearray(self.dedup.fold.stable.to_bytes())
        data[self.random.randrange(len(data))] ^= self.random.choice([0, 0, 0, 1])
        self.slots[self.random.randint(0, 1)] = bytes(data)

    def crash(self) -> None:
        """Of the writes in flight a disk may hold the first few."""
        self.log += self.flying[: self.random.randint(0, len(self.flying))]
        self.flying.clear()
        self.read_back()

    def read_back(self) -> None:
        found = [each for data in self.slots if (each := _snapshot(data)) is not None]
        newest = max(found, key=lambda each: each.position.upcoming_offset, default=None)
        behind = b"" if newest is None else newest.position.last_message_id or b""
        rows = [row for each in self.log for row in each.rows if row.message_id > behind]
        replayed = replay(newest, iter(rows), self.counts_from)
        assert replayed.entries == sum(row.count for row in rows)
        for pointer in set(replayed.fold.unsettled):
            if not self.of(pointer):
                replayed.fold.commit(pointer)
        self.dedup = Deduplicator(replayed.fold)
        self.moments.clear()

    # --- what must hold at every moment

    def check(self) -> None:
        fold, live, pushed = self.dedup.fold, self.newest(self.log), self.newest(self.log + self.flying)
        assert (fold.copy(), len(fold)) == (live, len(live))
        assert (fold.position, fold.upcoming_offset) == (position := _behind(self.log), position.upcoming_offset)
        for name in NAMES:
            assert fold.get(name) == self.dedup.last_persisted(name) == live.get(name)
            assert (name in fold) == (name in live)
            assert self.dedup.last_pushed(name) == pushed.get(name)
            assert self.dedup.in_flight(name) == (live.get(name) != pushed.get(name))
        for besides in [(), self.open[:1], self.open[1:]]:
            visible = self.newest(self.log, besides)
            assert all(fold.settled_entry(name, besides) == visible.get(name) for name in NAMES)
            assert all(list(fold.undecided_ranges(name, besides)) == self.undecided(name, besides) for name in NAMES)
        self.check_unsettled()
        self.check_who_came(set(live))
        folded = replay(None, (row for each in self.log for row in each.rows), self.counts_from).fold
        assert (folded.copy(), folded.position) == (live, position)

    def undecided(self, name: str, besides: Collection[int]) -> list[tuple[int | None, int, int]]:
        found, floor = [], -1
        for each in self.log:
            entry = self.newest([each]).get(name)
            if entry is None:
                continue
            if each.state == SETTLED or each.pointer in besides:
                floor = max(floor, entry.sequence_id)
            else:
                found.append((each.pointer, floor, entry.sequence_id))
        return found

    def check_unsettled(self) -> None:
        """A snapshot holds exactly what lies before the first of them."""
        fold, states = self.dedup.fold, [each.state for each in self.log]
        before = self.log[: states.index(OPEN)] if OPEN in states else self.log
        assert fold.stable == Snapshot(self.newest(before), _behind(before))
        oldest = fold.oldest_unsettled
        assert (oldest and oldest.first_id) == (self.log[len(before)].run.first_id if OPEN in states else None)
        open_ = {each.pointer: self.of(each.pointer) for each in self.log if each.state == OPEN and each.pointer}
        assert {pointer: [run.first_id for run in runs] for pointer, runs in fold.unsettled.items()} == {
            pointer: [each.run.first_id for each in requests] for pointer, requests in open_.items()
        }
        assert len(fold.unsettled) == len(open_)
        assert all((pointer in fold.unsettled) == (pointer in open_) for pointer in self.open)
        for name in NAMES:
            pointers = {pointer for pointer, requests in open_.items() if name in self.newest(requests)}
            assert set(fold.pointers_of(name)) == pointers

    def check_who_came(self, present: set[str]) -> None:
        self.moments.append((self.dedup.fold.moment, present))
        for moment, before in self.moments:
            came = self.dedup.fold.came_since(moment)
            assert came is None or present - before <= set(came)


def _snapshot(data: bytes) -> Snapshot | None:
    try:
        return Snapshot.from_bytes(data)
    except SnapshotDamaged:
        return None


def _behind(requests: list[Request]) -> Position:
    if not requests:
        return Position(0, None)
    run = requests[-1].run
    return Position(run.first_offset + run.count, run.last_id)


def test_after_any_history_the_core_says_what_the_log_says() -> None:
    for seed in range(80):
        history = History(Random(seed))
        for step in range(40):
            try:
                history.step()
                history.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {history.log}") from error
