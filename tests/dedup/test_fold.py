"""What is rolled back never counted; what may yet be rolled back is in no snapshot; who takes no part pays nothing."""

from __future__ import annotations

import tracemalloc
from functools import partial
from itertools import permutations

import pytest

from oncelog_dedup import START, Fold, Position, ReplayError, Run, SequenceMap, Snapshot
from tests.dedup.marks import mark, message_id, position, run


def fold_of(*runs: Run, snapshot: Snapshot | None = None) -> Fold:
    fold = Fold(snapshot)
    for each in runs:
        fold.add(each)
    return fold


def two_transactions() -> Fold:
    """p: 1 settled, 2 in transaction 7, 3 settled, 4 in transaction 8, 5 in 7 again; q is only in 8; r only behind."""
    return fold_of(run(0, p=1), run(1, 7, p=2), run(2, p=3), run(3, 8, p=4, q=0), run(4, 7, p=5), run(5, r=9))


def test_an_empty_fold_knows_nothing() -> None:
    fold = Fold()
    assert (fold.position, fold.settled, fold.copy(), len(fold)) == (START, Snapshot(SequenceMap(), START), SequenceMap(), 0)
    assert (fold.get("p"), fold.settled_mark("p"), "p" in fold) == (None, None, False)


def test_it_goes_on_behind_a_snapshot_and_leaves_it_alone() -> None:
    snapshot = Snapshot(SequenceMap({"p": mark(1, 0)}), position(1))
    fold = fold_of(run(1, p=2), snapshot=snapshot)
    assert fold.settled == Snapshot(SequenceMap({"p": mark(2, 1)}), position(2))
    assert snapshot == Snapshot(SequenceMap({"p": mark(1, 0)}), position(1))


def test_a_row_counts_as_a_run_of_one() -> None:
    by_row, by_run = fold_of(run(0, 7, q=0)), fold_of(run(0, 7, q=0))
    for offset, name, sequence_id in [(1, "p", 4), (2, None, None), (3, "p", 2), (4, "q", None)]:
        by_row.add_row(offset, message_id(offset), name, sequence_id)
        by_run.add(run(offset, **{name: sequence_id} if name and sequence_id is not None else {}))
    by_row.roll_back(7)
    by_run.roll_back(7)
    assert by_row.settled == by_run.settled == Snapshot(SequenceMap({"p": mark(4, 1)}), position(5))


@pytest.mark.parametrize("how", ["add", "skip", "row"])
@pytest.mark.parametrize(
    ("offset", "at", "error"),
    [(3, 3, "offset 2, found offset 3"), (1, 2, "offset 2, found"), (2, 1, "does not rise"), (2, 0, "rise")],
)
def test_what_does_not_continue_the_log_is_refused_and_changes_nothing(how: str, offset: int, at: int, error: str) -> None:
    fold = fold_of(run(0, p=1), run(1, 7, p=2))
    bad = Run(offset, 1, message_id(at), message_id(at), (("p", mark(9, offset)),), 8)
    ways = {"add": partial(fold.add, bad), "skip": partial(fold.skip, bad), "row": partial(fold.add_row, offset, bad.first_id)}
    with pytest.raises(ReplayError, match=error):
        ways[how]()
    assert (fold.position, fold.get("p"), list(fold.unsettled)) == (position(2), mark(2, 1), [7])


def test_a_run_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ReplayError, match="does not rise"):
        Fold().add(Run(0, 2, message_id(1), message_id(0)))


def test_skipped_rows_move_the_position_only() -> None:
    fold = fold_of(run(0, p=1))
    fold.skip(run(1, -7, p=2))
    assert fold.settled == Snapshot(SequenceMap({"p": mark(1, 0)}), position(2))
    assert not fold.unsettled


def test_the_row_of_an_empty_stored_group_has_a_place_but_no_offset() -> None:
    fold = fold_of(run(0, p=1), Run(1, 0, message_id(1), message_id(1), (), 7), Run(1, 0, message_id(2), message_id(2), (), 8))
    assert fold.position == Position(1, message_id(2))
    assert fold.upcoming_offset == 1
    assert fold.settled.position == Position(1, message_id(0))
    fold.commit(7)
    assert fold.settled.position == Position(1, message_id(1))
    fold.add(run(1, p=2)._replace(first_id=message_id(3), last_id=message_id(3)))
    assert fold.position == Position(2, message_id(3))


# --- transactions


def test_unsettled_messages_count() -> None:
    fold = two_transactions()
    assert fold.copy() == SequenceMap({"p": mark(5, 4), "q": mark(0, 3), "r": mark(9, 5)})
    assert (len(fold), "p" in fold, "r" in fold, "s" in fold) == (3, True, True, False)
    assert dict(fold.unsettled) == {7: (run(1, 7, p=2), run(4, 7, p=5)), 8: (run(3, 8, p=4, q=0),)}
    assert (len(fold.unsettled), 7 in fold.unsettled, 9 in fold.unsettled) == (2, True, False)


def test_a_snapshot_never_passes_an_unsettled_message() -> None:
    fold = two_transactions()
    first = Snapshot(SequenceMap({"p": mark(1, 0)}), position(1))
    assert fold.settled == first
    fold.commit(8)
    assert fold.settled == first
    fold.roll_back(7, [run(1, 7)])
    assert fold.settled == Snapshot(SequenceMap({"p": mark(4, 3), "q": mark(0, 3)}), position(4))
    fold.commit(7)
    assert fold.settled == Snapshot(fold.copy(), position(6))


def test_an_unsettled_first_message_of_the_log_leaves_the_snapshot_at_its_start() -> None:
    assert fold_of(run(0, 7, p=1), run(1, p=2)).settled == Snapshot(SequenceMap(), START)


def test_a_rolled_back_transaction_never_was() -> None:
    fold = two_transactions()
    assert fold.roll_back(7) == {"p"}
    assert fold.copy() == SequenceMap({"p": mark(4, 3), "q": mark(0, 3), "r": mark(9, 5)})
    assert fold.roll_back(8) == {"p", "q"}
    assert fold.settled == Snapshot(SequenceMap({"p": mark(3, 2), "r": mark(9, 5)}), position(6))
    assert "q" not in fold


def test_a_producer_steps_back_to_what_a_snapshot_says() -> None:
    fold = fold_of(run(1, 7, p=9), run(2, 8, q=0), snapshot=Snapshot(SequenceMap({"p": mark(1, 0)}), position(1)))
    fold.roll_back(7)
    assert (fold.get("p"), fold.settled_mark("p")) == (mark(1, 0), mark(1, 0))


def test_a_part_of_a_transaction_is_rolled_back_alone() -> None:
    fold = two_transactions()
    assert fold.roll_back(7, [run(4, 7), run(4, 7)]) == {"p"}
    assert fold.unsettled[7] == (run(1, 7, p=2),)
    fold.commit(7)
    assert fold.get("p") == mark(4, 3)


@pytest.mark.parametrize("end", ["commit", "roll_back"])
def test_ending_a_transaction_twice_is_as_once(end: str) -> None:
    fold, again = two_transactions(), two_transactions()
    for each in (fold, again, again):
        getattr(each, end)(7)
    again.commit(7)
    assert again.roll_back(7) == frozenset()
    assert (again.copy(), again.settled, dict(again.unsettled)) == (fold.copy(), fold.settled, dict(fold.unsettled))


def test_runs_of_another_transaction_are_not_rolled_back() -> None:
    fold = two_transactions()
    assert fold.roll_back(7, [run(3, 8), run(2, 7), run(99, 7)]) == frozenset()
    assert fold.roll_back(6, [run(1, 7)]) == frozenset()
    assert dict(fold.unsettled) == dict(two_transactions().unsettled)


@pytest.mark.parametrize("order", list(permutations([1, 2, 3, 4])))
def test_transactions_may_end_in_any_order(order: tuple[int, ...]) -> None:
    fold = fold_of(*(each for at in range(4) for each in (run(2 * at, at + 1, p=2 * at, q=at), run(2 * at + 1, p=2 * at + 1))))
    for pointer in order:
        fold.roll_back(pointer) if pointer == 4 else fold.commit(pointer)
    assert fold.settled == Snapshot(SequenceMap({"p": mark(7, 7), "q": mark(2, 4)}), position(8))


def test_a_transaction_sees_its_own_messages_and_the_settled_ones() -> None:
    fold = two_transactions()
    assert [fold.settled_mark("p", besides) for besides in [(), (7,), (8,), (7, 8), (6,)]] == [
        mark(3, 2),
        mark(5, 4),
        mark(4, 3),
        mark(5, 4),
        mark(3, 2),
    ]
    assert (fold.settled_mark("q"), fold.settled_mark("q", {8}), fold.settled_mark("r", {7})) == (None, mark(0, 3), mark(9, 5))


def test_it_knows_which_transactions_a_producer_takes_part_in() -> None:
    fold = two_transactions()
    assert [set(fold.pointers_of(name)) for name in "pqr"] == [{7, 8}, {8}, set()]
    fold.commit(8)
    assert [set(fold.pointers_of(name)) for name in "pqr"] == [{7}, set(), set()]


def test_at_equal_sequence_ids_the_first_message_is_the_mark_however_they_settle() -> None:
    """Deduplication was off."""
    fold = fold_of(run(0, 7), run(1, p=5), run(2, 8, p=5), run(3, p=5, q=0, r=0), run(4, 9, p=5, s=0))
    for end in (fold.commit, fold.commit, fold.commit):
        assert fold.get("p") == mark(5, 1)
        end(max(fold.unsettled))
    assert fold.get("p") == mark(5, 1)
    fold = fold_of(run(0, 7, p=5), run(1, p=5))
    fold.roll_back(7)
    assert fold.get("p") == mark(5, 1)


# --- forgetting


@pytest.mark.parametrize("end", ["commit", "roll_back"])
def test_a_forgotten_producer_stays_forgotten_however_its_transactions_end(end: str) -> None:
    fold = two_transactions()
    fold.forget("p")
    assert (fold.get("p"), fold.settled_mark("p", {7, 8}), list(fold.pointers_of("p"))) == (None, None, [])
    assert fold.unsettled[8] == (run(3, 8, q=0),)
    fold.add(run(6, 8, p=0))
    getattr(fold, end)(7)
    fold.commit(8)
    assert fold.settled == Snapshot(SequenceMap({"p": mark(0, 6), "q": mark(0, 3), "r": mark(9, 5)}), position(7))


def test_forgetting_a_producer_that_never_was_changes_nothing() -> None:
    fold = two_transactions()
    fold.forget("nobody")
    assert fold.copy() == two_transactions().copy()


# --- cost


def test_a_transaction_copies_no_idle_producer() -> None:
    idle = SequenceMap({f"idle {number}": mark(0) for number in range(10_000)})
    fold = Fold(Snapshot(idle, position(1)))
    base = fold.settled.marks
    tracemalloc.start()
    fold.add(run(1, 7, p=1))
    fold.add(run(2, p=2))
    fold.commit(7)
    fold.add(run(3, 8, p=3))
    fold.roll_back(8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fold.settled.marks is base
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
    assert fold.settled == Snapshot(SequenceMap({"p": mark(4_999, 4_999), "q": mark(4_999, 4_999)}), position(5_000))


def test_many_producers_behind_a_transaction_become_the_snapshot_when_it_ends() -> None:
    """The larger map is kept, whichever of the two it is."""
    names = [f"p{number}" for number in range(50)]
    marks = {name: mark(1, at) for at, name in enumerate(names, 2)}
    behind = Run(2, 50, message_id(2), message_id(51), tuple(marks.items()))
    fold = fold_of(run(0, p0=0, idle=3), run(1, 7, p1=0), behind, run(52, 8, p1=9))
    fold.commit(7)
    assert fold.settled == Snapshot(SequenceMap({**marks, "idle": mark(3, 0)}), position(52))
    assert fold.roll_back(8) == {"p1"}
    assert fold.copy() == SequenceMap({**marks, "idle": mark(3, 0)})


def test_its_membership_is_another_one_whenever_producers_come_or_go() -> None:
    """Also where one comes and another one goes, so that they are as many as before."""
    fold = fold_of(run(0, p=1))
    memberships = {fold.membership}
    fold.add(run(1, 7, q=0))
    memberships.add(fold.membership)
    fold.roll_back(7)
    fold.add(run(2, r=0))
    memberships.add(fold.membership)
    fold.forget("p")
    fold.add(run(3, s=0))
    memberships.add(fold.membership)
    assert len(memberships) == 4
    fold.add(run(4, s=1))
    assert fold.membership in memberships, "nobody came or went"


def test_the_oldest_unsettled_run_is_where_what_is_settled_ends() -> None:
    fold = two_transactions()
    assert fold.oldest_unsettled == run(1, 7, p=2)
    fold.commit(7)
    assert fold.oldest_unsettled == run(3, 8, p=4, q=0)
    fold.roll_back(8)
    assert fold.oldest_unsettled is None
