"""The fold alone, over many short histories, against a look through the whole list: faster than the machine, so it sees more."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest

from oncelog_dedup import Fold, LastEntry, Position, Run, SequenceMap, Snapshot
from tests.dedup.last_entries import message_id

OPEN, SETTLED, GONE = "open", "settled", "gone"
POINTERS = (1, 2, 3)


class History:
    """Everything that was added, and what has become of it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fold = Fold()
        self.log: list[tuple[Run, str]] = []
        self.forgotten: dict[str, int] = {}
        self.moments: list[tuple[tuple[int, int], set[str]]] = []
        """And who was in the fold then."""

    def runs(self, state: str, pointers: Collection[int | None] = (None, *POINTERS)) -> list[Run]:
        return [run for run, each in self.log if each == state and run.write_pointer in pointers]

    def newest(self, runs: list[Run]) -> SequenceMap:
        last_entries = SequenceMap()
        for run in sorted(runs, key=lambda run: run.first_id):
            for producer, last_entry in run.last_entries:
                if last_entry.offset >= self.forgotten.get(producer, 0):
                    last_entries.raise_to(producer, last_entry)
        return last_entries

    def step(self) -> None:
        """Something happens; mostly something is added."""
        self.random.choices([self.add, self.commit, self.roll_back, self.forget], [12, 3, 4, 1])[0]()

    def add(self) -> None:
        random, offset, at = self.random, self.fold.position.upcoming_offset, message_id(len(self.log))
        pointer = random.choice([None, None, *POINTERS])
        count = random.randint(0 if pointer else 1, 3)
        names = random.sample("abc", random.randint(0, min(count, 2)))
        run = Run(offset, count, at, at, tuple((name, LastEntry(random.randint(0, 9), at, offset)) for name in names), pointer)
        gone = pointer is not None and random.random() < 0.1
        (self.fold.skip if gone else self.fold.add)(run)
        self.log.append((run, GONE if gone else OPEN if pointer else SETTLED))

    def settle(self, runs: list[Run], state: str) -> None:
        ids = {run.first_id for run in runs}
        self.log = [(run, state if run.first_id in ids else each) for run, each in self.log]

    def commit(self) -> None:
        pointer = self.random.choice(POINTERS)
        self.fold.commit(pointer)
        self.settle(self.runs(OPEN, [pointer]), SETTLED)

    def roll_back(self) -> None:
        pointer = self.random.choice(POINTERS)
        runs = self.runs(OPEN, [pointer])
        if part := self.random.random() < 0.5:
            runs = [run for run in runs if self.random.random() < 0.5]
        affected = self.fold.roll_back(pointer, runs if part else None)
        assert affected == set(self.newest(runs).producers())
        self.settle(runs, GONE)

    def forget(self) -> None:
        producer = self.random.choice("abc")
        self.fold.forget(producer)
        self.forgotten[producer] = self.fold.position.upcoming_offset

    def check(self) -> None:
        fold = self.fold
        live = self.newest(self.runs(SETTLED) + self.runs(OPEN))
        assert (fold.copy(), len(fold)) == (live, len(live))
        present = set(live.producers())
        self.moments.append((fold.moment, present))
        for moment, before in self.moments:
            came = fold.came_since(moment)
            assert came is None or present - before <= set(came)
        assert all((fold.get(name), name in fold) == (live.get(name), name in live) for name in "abc")
        for besides in [(), (1,), (1, 2), POINTERS]:
            visible = self.newest(self.runs(SETTLED) + self.runs(OPEN, besides))
            assert all(fold.settled_entry(name, besides) == visible.get(name) for name in "abc")
            assert all(list(fold.undecided_ranges(name, besides)) == self.undecided(name, besides) for name in "abc")
        self.check_snapshot()
        self.check_unsettled()

    def undecided(self, name: str, besides: Collection[int]) -> list[tuple[int | None, int, int]]:
        found, floor = [], -1
        for run, state in self.log:
            entry = None if state == GONE else self.newest([run]).get(name)
            if entry is None:
                continue
            if state == SETTLED or run.write_pointer in besides:
                floor = max(floor, entry.sequence_id)
            else:
                found.append((run.write_pointer, floor, entry.sequence_id))
        return found

    def check_snapshot(self) -> None:
        states = [state for _, state in self.log]
        until = states.index(OPEN) if OPEN in states else len(states)
        before = [run for run, _ in self.log[:until]]
        settled = self.newest([run for run, state in self.log[:until] if state == SETTLED])
        position = Position(before[-1].first_offset + before[-1].count, before[-1].last_id) if before else Position(0, None)
        assert self.fold.stable == Snapshot(settled, position)

    def check_unsettled(self) -> None:
        for pointer in POINTERS:
            runs = self.runs(OPEN, [pointer])
            assert [run.first_id for run in self.fold.unsettled.get(pointer, ())] == [run.first_id for run in runs]
            for name in "abc":
                assert (pointer in self.fold.pointers_of(name)) == (name in self.newest(runs))


@pytest.mark.parametrize("begin", range(0, 300, 100))
def test_after_any_history_the_fold_is_what_the_log_says(begin: int) -> None:
    for seed in range(begin, begin + 100):
        history = History(Random(seed))
        for step in range(30):
            try:
                history.step()
                history.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {history.log}") from error
