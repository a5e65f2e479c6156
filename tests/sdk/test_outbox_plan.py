"""Which number each row has, what a relay has in hand, and when another one may follow it: all pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import RequestTooLarge, TopicNotFound
from oncelog.sql.outbox import plan as module
from oncelog.sql.outbox.plan import Backlog, Name, Planned, Watch, decode, encode, taken

TOPIC, OTHER = Name("default", "t"), Name("default", "u")
REFUSED = TopicNotFound()


def rows(*numbers: int) -> list[Planned]:
    return [Planned(each, each + 10, 0) for each in numbers]


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)), max_size=20))
def test_a_plan_comes_back_as_it_was_written(entries: list[tuple[int, int, int]]) -> None:
    plan = sorted(Planned(*entry) for entry in entries)
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize("damaged", ["", "nonsense", "[[1,2]]", "[[1,2,3,4]]", '{"a":1}', "[1]", '[["x",1,2]]'])
def test_a_plan_that_cannot_be_read_is_refused(damaged: str) -> None:
    with pytest.raises(ValueError, match="not the plan"):
        decode(damaged)


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(0, 300))
def test_as_many_rows_are_taken_as_fit_and_at_least_one(sizes: list[int], limit: int) -> None:
    count = taken(sizes, limit)
    assert count >= min(1, len(sizes))
    assert count <= 1 or sum(sizes[:count]) <= limit
    assert count == len(sizes) or sum(sizes[: count + 1]) > limit


# --- the backlog


def test_a_topic_that_refuses_holds_up_its_own_rows_only_and_is_tried_again_with_growing_pauses() -> None:
    backlog, now, waits = Backlog(rows(0, 1, 2)), 100.0, []
    assert backlog.due(now) == rows(0, 1, 2)
    for times in range(9):
        assert backlog.block(TOPIC, REFUSED, rows(1, 2), now, progress=False) is (times == 0), "news once"
        backlog.drop(rows(0))
        backlog.add(rows(3 + times))
        assert backlog.due(now) == rows(3 + times), "others go on"
        backlog.drop(rows(3 + times))
        waits.append(backlog.blocked[TOPIC].due - now)
        now = backlog.blocked[TOPIC].due
        assert backlog.due(now - 0.01) == []
        assert backlog.due(now) == rows(1, 2)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert backlog.block(TOPIC, RequestTooLarge(), rows(2), now, progress=True), "another reason, behind a row that was taken"
    assert backlog.blocked[TOPIC].due == now + 0.5
    backlog.drop(rows(2))
    assert (backlog.blocked, backlog.due(now), backlog.has_room()) == ({}, [], True)


def test_with_too_much_that_is_refused_nothing_more_is_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKED_TOPICS", 1)
    monkeypatch.setattr(module, "BLOCKED_ROWS", 3)
    for blocked, room in (
        ({}, True),
        ({TOPIC: 3}, True),
        ({TOPIC: 4}, False),
        ({TOPIC: 1, OTHER: 1}, False),
    ):
        backlog = Backlog()
        for name, many in blocked.items():
            backlog.block(name, REFUSED, rows(*range(many)), 0.0, progress=False)
        assert backlog.has_room() is room
    assert not Backlog(rows(0)).has_room(), "first what is numbered"


# --- who holds it


@pytest.mark.parametrize(
    ("seen", "silent"),
    [
        ([("a", 1, 0)], [False]),
        ([("a", 1, 0), ("a", 1, 9.9), ("a", 1, 10)], [False, False, True]),
        ([("a", 1, 0), ("a", 2, 9), ("a", 2, 18), ("a", 3, 19)], [False, False, False, False]),
        ([("a", 1, 0), ("b", 1, 10), ("b", 1, 19)], [False, False, False]),
    ],
)
def test_a_holder_is_silent_when_its_version_has_not_risen_for_long_enough(
    seen: list[tuple[str, int, float]], silent: list[bool]
) -> None:
    watch = Watch(10.0)
    assert [watch.is_silent(*each) for each in seen] == silent
