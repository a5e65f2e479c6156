"""What is counted: nothing falls, everything is counted once, and a histogram has each value in its bucket."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.counting.histogram import Histogram
from oncelog_service.counting.topics import REVIEW_SECONDS, Tally, TopicCounts, TopicName, TopicsCounted

BOUNDS = (0.5, 1.0, 2.0)


@given(st.lists(st.sampled_from([0.0, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 2.1, 900.0])))
def test_each_value_is_in_every_bucket_that_is_not_below_it(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    expected = [(str(bound), sum(value <= bound for value in values)) for bound in BOUNDS]
    assert histogram.buckets() == [*expected, ("+Inf", len(values))]
    assert (histogram.count, histogram.sum) == (len(values), pytest.approx(sum(values)))


def names(count: int) -> list[TopicName]:
    return [("n", f"t{number}") for number in range(count)]


def series(topics: TopicsCounted, now: float, in_use: list[TopicName]) -> dict[TopicName, int]:
    return {name: tally.messages for name, tally in topics.series(now, in_use)}


def test_as_long_as_there_is_place_a_topic_has_a_series_with_all_that_happened_on_it() -> None:
    topics, (a, b, c) = TopicsCounted(2), names(3)
    held = [topics.of(name) for name in (a, b, c)]
    for number, counts in enumerate(held, 1):
        counts.stored(number)
        counts.taken_in(10 * number)
        counts.repeated(100 * number)
        counts.fenced()
        for _ in range(2):
            counts.fenced_consumer()
        for _ in range(3):
            counts.left_out()
        counts.handed_out(4, 5)
    found = dict(topics.series(0, [a, b, c]))
    assert found[a] == Tally(1, 10, 100, 1, 2, 3, 4, 5)
    assert found[b] == Tally(2, 20, 200, 1, 2, 3, 4, 5)
    assert topics.all == Tally(6, 60, 600, 3, 6, 9, 12, 15)
    assert topics.others == Tally(3, 30, 300, 1, 2, 3, 4, 5)


def test_a_topic_that_is_used_again_goes_on_where_its_series_was() -> None:
    topics, (a, *_) = TopicsCounted(1), names(1)
    topics.of(a).stored(3)
    assert series(topics, 0, []) == {a: 3}
    topics.of(a).stored(4)
    assert series(topics, 0, [a]) == {a: 7}


def test_a_busier_topic_takes_the_place_of_an_idle_one_which_says_its_last() -> None:
    topics, (a, b, c) = TopicsCounted(2), names(3)
    busy, idle, late = (topics.of(name) for name in (a, b, c))
    busy.stored(5)
    idle.stored(2)
    late.stored(9)
    in_use = [a, b, c]
    assert series(topics, 0, in_use) == {a: 5, b: 2, c: 0}, "what went before it had a series is the others'"
    assert topics.others.messages == 9
    late.stored(30)
    busy.stored(20)
    assert series(topics, REVIEW_SECONDS - 1, in_use) == {a: 25, c: 30}
    assert series(topics, 2 * REVIEW_SECONDS, in_use) == {a: 25, c: 30}
    idle.stored(41)
    busy.stored(20)
    late.stored(30)
    assert series(topics, 4 * REVIEW_SECONDS, in_use) == {a: 45, b: 0, c: 60}, "more than twice as much as the idlest"
    assert topics.others.messages == 9 + 41


def test_one_that_has_no_more_than_twice_the_traffic_stays_among_the_others() -> None:
    topics, (a, b) = TopicsCounted(1), names(2)
    shown, other = topics.of(a), topics.of(b)
    shown.stored(10)
    other.stored(15)
    other.repeated(5)
    assert series(topics, 0, [a, b]) == {a: 10}
    shown.repeated(10)
    other.handed_out(21, 1)
    assert series(topics, REVIEW_SECONDS, [a, b]) == {a: 10, b: 0}


def test_a_topic_that_is_not_open_any_more_makes_place_for_any_that_has_traffic_and_for_none_without() -> None:
    topics, (a, b) = TopicsCounted(1), names(2)
    gone, come = topics.of(a), topics.of(b)
    assert series(topics, 0, [b]) == {a: 0}
    gone.stored(1_000)
    come.stored(1)
    assert series(topics, REVIEW_SECONDS, [b]) == {a: 1_000, b: 0}
    assert series(topics, 2 * REVIEW_SECONDS, [b]) == {b: 0}


@pytest.mark.parametrize("seed", range(8))
def test_no_series_falls_and_the_increases_of_all_series_are_what_happened(seed: int) -> None:
    """As a reader sees it that reads again and again: whatever gets a series or loses it, opens or closes."""
    chance = random.Random(seed)
    most, every = chance.choice([0, 1, 3, 5]), names(9)
    topics = TopicsCounted(most)
    held: dict[TopicName, TopicCounts] = {}
    before: dict[TopicName, int] = {}
    others = happened = increased = 0
    now = 0.0
    for _ in range(400):
        name = chance.choice(every)
        if chance.random() < 0.1:
            held.pop(name, None)
        else:
            messages = chance.choice([0, 1, 50])
            held.setdefault(name, topics.of(name)).stored(messages)
            happened += messages
        if chance.random() < 0.2:
            now += chance.choice([1, REVIEW_SECONDS])
            shown = series(topics, now, [*held])
            assert topics.others.messages >= others, seed
            increased += topics.others.messages - others
            others = topics.others.messages
            for each, value in shown.items():
                assert value >= before.get(each, 0), seed
                increased += value - before.get(each, 0)
            assert increased == happened, seed
            before = dict(
                series(topics, now, [*held])
            )  # one that has ended is not there any more; should it come, it begins anew
            assert len(before) <= most, seed
    assert topics.all.messages == happened
