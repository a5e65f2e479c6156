"""What is rolled back never counted; what may yet be rolled back is in no snapshot; who takes no part pays nothing.

That the fold is what the log says, after any history, is proved by test_at_random; here is what that cannot see.
"""

from __future__ import annotations

import tracemalloc
from functools import partial

import pytest

from oncelog_dedup import Fold, ReplayError, Run, SequenceMap, Snapshot
from tests.dedup.last_entries import last_entry, message_id, position, run


def fold_of(*runs: Run, snapshot: Snapshot | None = None) -> Fold:
    fold = Fold(snapshot)
    for each in runs:
        fold.add(each)
    return fold


def two_transactions() -> Fold:
    """p: 1 settled, 2 in transaction 7, 3 settled, 4 in transaction 8, 5 in 7 again; q is only in 8; r only behind."""
    return fold_of(run(0, p=1), run(1, 7, p=2), run(2, p=3), run(3, 8, p=4, q=0), run(4, 7, p=5), run(5, r=9))


@pytest.mark.parametrize("how", ["add", "skip", "row"])
@pytest.mark.parametrize(
    ("offset", "at", "error"),
    [(3, 3, "offset 2, found offset 3"), (1, 2, "offset 2, found"), (2, 1, "does not rise"), (2, 0, "rise")],
)
def test_what_does_not_continue_the_log_is_refused_and_changes_nothing(how: str, offset: int, at: int, error: str) -> None:
    fold = fold_of(run(0, p=1), run(1, 7, p=2))
    bad = Run(offset, 1, message_id(at), message_id(at), (("p", last_entry(9, offset)),), 8)
    ways = {"add": partial(fold.add, bad), "skip": partial(fold.skip, bad), "row": partial(fold.add_row, offset, bad.first_id)}
    with pytest.raises(ReplayError, match=error):
        ways[how]()
    assert (fold.position, fold.get("p"), list(fold.unsettled)) == (position(2), last_entry(2, 1), [7])


def test_a_run_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ReplayError, match="does not rise"):
        Fold().add(Run(0, 2, message_id(1), message_id(0)))


# --- transactions


def test_what_ids_an_undecided_run_may_hold_is_known_whatever_is_settled_behind_it() -> None:
    fold = two_transactions()
    assert list(fold.undecided_ranges("p")) == [(7, 1, 2), (8, 3, 4), (7, 3, 5)]
    assert list(fold.undecided_ranges("p", {7})) == [(8, 3, 4)]
    assert list(fold.undecided_ranges("p", {8})) == [(7, 1, 2), (7, 4, 5)]
    assert list(fold.undecided_ranges("q")) == [(8, -1, 0)]
    assert list(fold.undecided_ranges("r")) == []


# --- forgetting


def test_of_a_transaction_only_the_runs_that_are_named_are_rolled_back() -> None:
    assert not Fold().has_unsettled
    fold = two_transactions()
    assert fold.has_unsettled
    fold.add(run(6, 7, p=6))
    last = fold.unsettled[7][-1]
    assert fold.roll_back(7, [last]) == {"p"}
    assert (fold.get("p"), [each.first_offset for each in fold.unsettled[7]]) == (last_entry(5, 4), [1, 4])


@pytest.mark.parametrize("end", ["commit", "roll_back"])
def test_a_forgotten_producer_stays_forgotten_however_its_transactions_end(end: str) -> None:
    fold = two_transactions()
    fold.forget("p")
    assert (fold.get("p"), fold.settled_entry("p", {7, 8}), list(fold.pointers_of("p"))) == (None, None, [])
    assert fold.unsettled[8] == (run(3, 8, q=0),)
    fold.add(run(6, 8, p=0))
    getattr(fold, end)(7)
    fold.commit(8)
    assert fold.stable == Snapshot(
        SequenceMap({"p": last_entry(0, 6), "q": last_entry(0, 3), "r": last_entry(9, 5)}), position(7)
    )


# --- cost


def test_a_transaction_copies_no_idle_producer() -> None:
    idle = SequenceMap({f"idle {number}": last_entry(0) for number in range(10_000)})
    fold = Fold(Snapshot(idle, position(1)))
    base = fold.stable.last_entries
    tracemalloc.start()
    fold.add(run(1, 7, p=1))
    fold.add(run(2, p=2))
    fold.commit(7)
    fold.add(run(3, 8, p=3))
    fold.roll_back(8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fold.stable.last_entries is base
    assert peak < 20_000


def test_a_long_transaction_does_not_grow_with_the_messages_behind_it() -> None:
    fold = fold_of(run(0, 7, p=0), *(run(offset, p=offset, q=offset) for offset in range(1, 3_000)))
    tracemalloc.start()  # by now the interpreter's own free lists are full
    for offset in range(3_000, 5_000):
        fold.add(run(offset, p=offset, q=offset))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 10_000
    fold.roll_back(7)
    assert fold.stable == Snapshot(SequenceMap({"p": last_entry(4_999, 4_999), "q": last_entry(4_999, 4_999)}), position(5_000))


def test_many_producers_behind_a_transaction_become_the_snapshot_when_it_ends() -> None:
    """The larger map is kept, whichever of the two it is; of messages with the same id the one that came first."""
    names = [f"p{number}" for number in range(50)]
    last_entries = {name: last_entry(1, at) for at, name in enumerate(names, 2)}
    behind = Run(2, 50, message_id(2), message_id(51), tuple(last_entries.items()))
    fold = fold_of(run(0, p0=1, idle=3), run(1, 7, p1=0), behind, run(52, 8, p1=9))
    fold.commit(7)
    first = SequenceMap({**last_entries, "p0": last_entry(1, 0), "idle": last_entry(3, 0)})
    assert fold.stable == Snapshot(first, position(52))
    assert fold.roll_back(8) == {"p1"}
    assert fold.copy() == first
