"""Ids and offsets strictly rise for the whole life of a topic, whatever the clock does."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.wire.requests import PublishRequest
from oncelog_service.log.stamps import SEQ_IDS_PER_MS, Stamps
from oncelog_service.storage.keys import row_id, split_row_id
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from tests.service.house import BEGIN, opened
from tests.support import ManualClock


def test_a_clock_that_goes_1000_999_1000_overwrites_nothing() -> None:
    stamps = Stamps(0)
    taken = [stamps.take(1, now)[0][0] for now in (1000, 999, 1000)]
    assert [split_row_id(each) for each in taken] == [(1000, 0), (1000, 1), (1000, 2)]


def test_a_frozen_clock_goes_on_in_the_next_millisecond() -> None:
    stamps = Stamps(0)
    taken = [stamps.take(1, 1000)[0][0] for _ in range(65_540)]
    assert len(set(taken)) == 65_540
    assert taken == sorted(taken)
    assert [split_row_id(each) for each in taken[65_534:65_538]] == [(1000, 65_534), (1000, 65_535), (1001, 0), (1001, 1)]


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 200_000])
def test_one_request_may_take_more_than_a_millisecond_holds(count: int) -> None:
    stamps = Stamps(0)
    stamps.take(1, 1000)
    taken, first_offset = stamps.take(count, 1000)
    assert len(taken) == count
    assert all(before < behind for before, behind in pairwise(taken))
    assert (first_offset, stamps.upcoming_offset) == (1, 1 + count)
    assert split_row_id(taken[-1]) == (1000 + count // SEQ_IDS_PER_MS, count % SEQ_IDS_PER_MS)


def test_a_clock_that_steps_back_an_hour_keeps_the_order() -> None:
    stamps = Stamps(0)
    before = stamps.take(3, BEGIN)[0]
    behind = stamps.take(3, BEGIN - 3_600_000)[0]
    later = stamps.take(1, BEGIN + 1)[0]
    assert before + behind + later == sorted({*before, *behind, *later})


def test_a_restart_within_the_same_millisecond_goes_on_behind_the_last_one() -> None:
    last = Stamps(0).take(5, 1000)[0][-1]
    restarted = Stamps(0, 5, last)
    assert restarted.take(1, 1000) == ([row_id(1000, 5)], 5)
    assert Stamps(0, 5, last).take(1, 999) == ([row_id(1000, 5)], 5)
    assert Stamps(0, 5, last).take(1, 1001) == ([row_id(1001, 0)], 5)


def test_a_restart_at_the_end_of_a_millisecond_goes_on_in_the_next() -> None:
    assert Stamps(0, 9, row_id(1000, 65_535)).take(1, 1000) == ([row_id(1001, 0)], 9)


def test_a_new_generation_begins_at_its_floor() -> None:
    assert Stamps(5000).take(1, 1000) == ([row_id(5000, 0)], 0)
    assert Stamps(5000, 1, row_id(4000, 7)).take(1, 1000) == ([row_id(5000, 0)], 1)
    assert Stamps(5000).last_timestamp == 5000


@given(
    st.lists(
        st.tuples(st.integers(1, 70_000) | st.integers(1, 3), st.integers(-2, 3) | st.integers(-3_600_000, 10), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_ids_and_offsets_rise_through_any_clock_and_any_restart(history: list[tuple[int, int, bool]]) -> None:
    stamps, now, offset, last = Stamps(0), BEGIN, 0, b""
    for count, step, restart in history:
        now += step
        taken, first_offset = stamps.take(count, now)
        assert first_offset == offset
        assert len(taken) == count
        assert last < taken[0]
        assert split_row_id(taken[0])[0] >= now
        assert all(before < behind for before, behind in pairwise(taken))
        offset, last = offset + count, taken[-1]
        assert stamps.last_timestamp == split_row_id(last)[0]
        if restart:
            stamps = Stamps(0, offset, last)


@pytest.mark.parametrize("messages", [0, 1, 5, 200_000])
def test_a_row_that_stands_for_many_messages_takes_one_id_and_all_their_offsets(messages: int) -> None:
    stamps = Stamps(0)
    stamps.take(3, 1000)
    assert stamps.take_row(messages, 1000) == (row_id(1000, 3), 3)
    assert stamps.upcoming_offset == 3 + messages
    assert stamps.take(1, 1000) == ([row_id(1000, 4)], 3 + messages)
    assert stamps.take_row(messages, 999) == (row_id(1000, 5), 4 + messages)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(-2, 2)), max_size=20), st.integers(65_530, 65_536))
def test_ids_rise_and_offsets_are_dense_over_rows_of_both_kinds(history: list[tuple[bool, int, int]], used: int) -> None:
    now, offset, last = BEGIN, used, row_id(BEGIN, used - 1)
    stamps = Stamps(0, used, last)
    for as_row, count, step in history:
        now += step
        if as_row:
            taken, first = stamps.take_row(count, now)
            row_ids = [taken]
        else:
            row_ids, first = stamps.take(count + 1, now)
        assert (first, last < row_ids[0]) == (offset, True)
        offset, last = first + (count if as_row else count + 1), row_ids[-1]
        assert stamps.upcoming_offset == offset


def test_a_topic_loses_nothing_to_a_clock_that_goes_back_between_restarts() -> None:
    async def scenario() -> None:
        disk, clock = Disk(), ManualClock()
        for number, step in enumerate((0, -1, 1, -3_600_000, 0)):
            clock.ms += step
            async with opened(disk, clock, clean=number % 2 == 0) as house:
                for _ in range(2):
                    await house.log.publish(PublishRequest([b"%d" % number]))
        assert len(disk.tables[Table.MESSAGE]) == 10
        async with opened(disk, clock) as house:
            assert house.log.position.upcoming_offset == 10

    asyncio.run(scenario())
