"""Filters as windows of offsets: what is taken is exact, everything else is handed back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from oncelog.spark.reading.pushdown import Window, push

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARED = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
compared = st.lists(st.tuples(st.sampled_from(list(COMPARED)), st.integers(-3, 12)), max_size=4)


def is_in(window: Window, offset: int, ms: int) -> bool:
    return window.first <= offset < window.upto and window.since <= ms < window.before


@given(compared, compared)
def test_a_window_holds_what_all_filters_let_through_and_nothing_else(on_offset: list, on_time: list) -> None:  # type: ignore[type-arg]
    filters = [kind(("offset",), value) for kind, value in on_offset]
    filters += [kind(("timestamp",), EPOCH + timedelta(microseconds=500 * value)) for kind, value in on_time]
    window, left = push(filters)
    assert left == []
    for offset in range(-4, 14):
        for ms in range(-4, 10):
            wanted = all(COMPARED[kind](offset, value) for kind, value in on_offset)
            wanted = wanted and all(COMPARED[kind](2 * ms, value) for kind, value in on_time)
            assert is_in(window, offset, ms) == wanted, (offset, ms, window)


def test_topics_are_those_that_every_filter_names() -> None:
    window, left = push([In(("topic",), ("a", "b", "c")), EqualTo(("topic",), "b"), IsNotNull(("topic",))])
    assert (window.topics, left) == (frozenset({"b"}), [])
    assert push([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")])[0].topics == frozenset()


@pytest.mark.parametrize(
    "other",
    [
        EqualTo(("key",), b"k"),
        EqualTo(("headers", "offset"), 1),
        EqualTo(("offset",), None),
        EqualTo(("offset",), True),
        EqualTo(("topic",), 3),
        EqualNullSafe(("offset",), 3),
        GreaterThan(("topic",), "a"),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001  # Spark has times without a zone
        In(("offset",), (1, 2)),
        In(("topic",), ("a", None)),
        IsNotNull(("key",)),
        IsNotNull(("producer",)),
        IsNull(("offset",)),
        Not(EqualTo(("offset",), 3)),
        StringStartsWith(("topic",), "a"),
    ],
)
def test_what_a_window_cannot_say_stays_with_spark(other: Filter) -> None:
    window, left = push([GreaterThanOrEqual(("offset",), 3), other])
    assert left == [other]
    assert left[0] is other
    assert window == Window(first=3)
