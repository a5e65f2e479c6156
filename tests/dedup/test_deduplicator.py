"""Each message is judged alone; what is in flight is neither there nor gone; a failed write never happened."""

from __future__ import annotations

import pytest

from oncelog_dedup import MAX_SEQUENCE_ID, Deduplicator, Verdict
from tests.dedup.last_entries import last_entry, run


def at(persisted: int | None = None, pushed: int | None = None) -> Deduplicator:
    dedup = Deduplicator()
    if persisted is not None:
        dedup.push("p", last_entry(persisted))
        dedup.persist(run(0, p=persisted))
    if pushed is not None:
        dedup.push("p", last_entry(pushed, 1))
    return dedup


@pytest.mark.parametrize(
    ("persisted", "pushed", "sequence_ids", "verdict"),
    [
        (None, None, [0], Verdict(0, 0, 1)),
        (None, None, [7, 9], Verdict(0, 0, 2)),
        (None, 0, [0], Verdict(0, 1, 0)),
        (0, None, [0, 1], Verdict(1, 0, 1)),
        (4, None, [3, 4, 5, 6], Verdict(2, 0, 2)),
        (4, None, [1, 9], Verdict(1, 0, 1)),
        (4, 8, [3, 4, 5, 8, 9], Verdict(2, 2, 1)),
        (4, 8, [6], Verdict(0, 1, 0)),
        (4, 8, [9], Verdict(0, 0, 1)),
        (MAX_SEQUENCE_ID, None, [MAX_SEQUENCE_ID], Verdict(1, 0, 0)),
    ],
)
def test_each_message_of_a_batch_is_judged_alone_and_judging_changes_nothing(
    persisted: int | None, pushed: int | None, sequence_ids: list[int], verdict: Verdict
) -> None:
    dedup = at(persisted, pushed)
    assert dedup.judge("p", sequence_ids) == dedup.judge("p", sequence_ids) == verdict
    assert dedup.judge("q", sequence_ids) == Verdict(0, 0, len(sequence_ids)), "producers do not touch each other"
    assert (dedup.last_pushed("q"), dedup.in_flight("q")) == (None, False)


def test_a_forgotten_producer_has_nothing_in_flight() -> None:
    dedup = at(4, 8)
    dedup.forget("p")
    assert (dedup.last_pushed("p"), dedup.in_flight("p"), dedup.judge("p", [8])) == (None, False, Verdict(0, 0, 1))


def test_producers_are_those_of_whom_something_is_persisted_or_in_flight() -> None:
    dedup = Deduplicator()
    dedup.push("a", last_entry(0))
    assert (dedup.producers(), dedup.producers_at_most) == ({"a"}, 1)
    dedup.persist(run(0, a=0))
    dedup.push("a", last_entry(1))
    dedup.push("b", last_entry(2))
    assert dedup.producers() == {"a", "b"}
    assert dedup.producers_at_most >= 2
    dedup.forget("a")
    assert (dedup.producers(), dedup.producers_at_most) == ({"b"}, 1)
