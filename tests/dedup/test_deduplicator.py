"""Each message is judged alone; what is in flight is neither there nor gone; a failed write never happened."""

from __future__ import annotations

import pytest

from oncelog_dedup import MAX_SEQUENCE_ID, Deduplicator, SequenceMap, Verdict
from tests.dedup.marks import mark


def at(persisted: int | None = None, pushed: int | None = None) -> Deduplicator:
    dedup = Deduplicator()
    if persisted is not None:
        dedup.push("p", mark(persisted))
        dedup.persist("p", mark(persisted))
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
    dedup.persist("p", mark(8, 1))
    assert dedup.judge("p", [8, 9, 10, 11]) == Verdict(1, 2, 1)
    dedup.persist("p", mark(10, 2))
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
    dedup.persist("p", mark(3))
    assert dedup.judge("p", [3, 4]) == Verdict(1, 0, 1)


def test_a_forgotten_producer_may_use_any_sequence_id() -> None:
    dedup = at(4, 8)
    dedup.forget("p")
    assert dedup.judge("p", [0, 4, 8]) == Verdict(0, 0, 3)
    assert dedup.last_pushed("p") is None
    assert dedup.last_persisted("p") is None


def test_the_persisted_map_is_the_one_that_was_recovered() -> None:
    recovered = SequenceMap({"p": mark(4)})
    dedup = Deduplicator(recovered)
    dedup.persist("p", mark(5, 1))
    assert dedup.persisted is recovered
    assert recovered.get("p") == mark(5, 1)
