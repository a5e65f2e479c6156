"""Each message is judged alone; what is in flight is neither there nor gone; a failed write never happened."""

from __future__ import annotations

import pytest

from oncelog_dedup import MAX_SEQUENCE_ID, Deduplicator, Fold, ReplayError, SequenceMap, Snapshot, Verdict
from tests.dedup.marks import mark, position, run


def at(persisted: int | None = None, pushed: int | None = None) -> Deduplicator:
    dedup = Deduplicator()
    if persisted is not None:
        dedup.push("p", mark(persisted))
        dedup.persist(run(0, p=persisted))
    if pushed is not None:
        dedup.push("p", mark(pushed, 1))
    return dedup


@pytest.mark.parametrize(
    ("persisted", "pushed", "sequence_ids", "verdict"),
    [
        (None, None, [0], Verdict(0, 0, 1)),
        (None, None, [7, 9], Verdict(0, 0, 2)),
        (None, 0, [0], Verdict(0, 1, 0)),
        (0, None, [0], Verdict(1, 0, 0)),
        (0, None, [0, 1], Verdict(1, 0, 1)),
        (4, None, [3, 4, 5, 6], Verdict(2, 0, 2)),
        (4, None, [1, 9], Verdict(1, 0, 1)),
        (4, 8, [3, 4, 5, 8, 9], Verdict(2, 2, 1)),
        (4, 8, [6], Verdict(0, 1, 0)),
        (4, 8, [9], Verdict(0, 0, 1)),
        (MAX_SEQUENCE_ID, None, [MAX_SEQUENCE_ID], Verdict(1, 0, 0)),
    ],
)
def test_each_message_of_a_batch_is_judged_alone(
    persisted: int | None, pushed: int | None, sequence_ids: list[int], verdict: Verdict
) -> None:
    assert at(persisted, pushed).judge("p", sequence_ids) == verdict


def test_judging_changes_nothing() -> None:
    dedup = at(4, 8)
    assert dedup.judge("p", [3, 6, 9]) == dedup.judge("p", [3, 6, 9])
    assert (dedup.last_persisted("p"), dedup.last_pushed("p")) == (mark(4), mark(8, 1))


def test_producers_do_not_touch_each_other() -> None:
    dedup = at(4, 8)
    assert dedup.judge("q", [0, 4, 8]) == Verdict(0, 0, 3)
    assert dedup.last_pushed("q") is None
    assert not dedup.in_flight("q")


def test_a_failed_write_puts_every_producer_back() -> None:
    dedup = at(4, 8)
    dedup.push("q", mark(0, 2))
    dedup.put_back()
    assert dedup.judge("p", [5, 8]) == Verdict(0, 0, 2), "the retry of a failed write is new, not a duplicate"
    assert dedup.judge("q", [0]) == Verdict(0, 0, 1)
    assert dedup.last_pushed("p") == dedup.last_persisted("p") == mark(4)
    assert dedup.last_pushed("q") is None


def test_persisting_the_first_of_two_writes_leaves_the_second_in_flight() -> None:
    dedup = at(4, 8)
    dedup.push("p", mark(10, 2))
    dedup.persist(run(1, p=8))
    assert dedup.judge("p", [8, 9, 10, 11]) == Verdict(1, 2, 1)
    dedup.persist(run(2, p=10))
    assert not dedup.in_flight("p")


def test_a_push_never_lowers_what_is_in_flight() -> None:
    dedup = at(4, 8)
    dedup.push("p", mark(7, 2))
    assert dedup.last_pushed("p") == mark(8, 1)


@pytest.mark.parametrize("lower", [3, 4])
def test_a_push_never_falls_below_what_is_persisted(lower: int) -> None:
    """A topic with deduplication off stores ids that do not rise; the maps must not go backwards for it."""
    dedup = at(4)
    dedup.push("p", mark(lower, 1))
    assert dedup.last_pushed("p") == mark(4)
    assert dedup.judge("p", [3, 4, 5]) == Verdict(2, 0, 1)


def test_what_is_persisted_without_having_been_pushed_counts() -> None:
    dedup = Deduplicator()
    dedup.persist(run(0, p=3))
    assert dedup.judge("p", [3, 4]) == Verdict(1, 0, 1)


def test_a_forgotten_producer_may_use_any_sequence_id() -> None:
    dedup = at(4, 8)
    dedup.forget("p")
    assert dedup.judge("p", [0, 4, 8]) == Verdict(0, 0, 3)
    assert dedup.last_pushed("p") is None
    assert dedup.last_persisted("p") is None


def test_it_goes_on_where_the_recovered_fold_ends() -> None:
    recovered = Fold(Snapshot(SequenceMap({"p": mark(4)}), position(1)))
    dedup = Deduplicator(recovered)
    dedup.persist(run(1, p=5))
    assert dedup.fold is recovered
    assert recovered.get("p") == mark(5, 1)


def test_what_does_not_continue_the_log_is_not_persisted() -> None:
    dedup = at(4, 8)
    with pytest.raises(ReplayError):
        dedup.persist(run(2, p=8))
    assert dedup.in_flight("p")
    assert dedup.last_persisted("p") == mark(4)


def test_one_request_may_raise_many_producers() -> None:
    dedup = at(4, 8)
    dedup.push("q", mark(2, 1))
    dedup.persist(run(1, 7, p=8, q=2, r=0))
    assert not dedup.in_flight("p")
    assert not dedup.in_flight("q")
    assert dedup.judge("q", [2, 3]) == dedup.judge("r", [0, 1]) == Verdict(1, 0, 1)


def test_the_sequence_ids_of_a_rolled_back_transaction_are_new_again() -> None:
    dedup = at(4, 8)
    dedup.persist(run(1, 7, p=8))
    assert dedup.judge("p", [5, 8]) == Verdict(2, 0, 0)
    dedup.fold.roll_back(7)
    assert dedup.judge("p", [4, 5, 8]) == Verdict(1, 0, 2)
    assert dedup.last_pushed("p") == mark(4)


def test_the_sequence_ids_of_a_committed_transaction_stay_used() -> None:
    dedup = at(4, 8)
    dedup.persist(run(1, 7, p=8))
    dedup.fold.commit(7)
    assert dedup.judge("p", [5, 8, 9]) == Verdict(2, 0, 1)
