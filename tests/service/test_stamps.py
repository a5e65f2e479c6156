"""Ids and offsets strictly rise for the whole life of a topic, whatever the clock does."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from oncelog.wire.requests import PublishRequest
from oncelog_service.log.stamps import Stamps
from oncelog_service.storage.keys import row_id, split_row_id
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from tests.service.house import BEGIN, opened
from tests.world.clock import ManualClock


def test_a_restart_goes_on_behind_the_last_id_and_a_new_generation_at_its_floor() -> None:
    assert Stamps(0, 5, row_id(1000, 4)).take(1, 999) == ([row_id(1000, 5)], 5)
    assert Stamps(0, 5, row_id(1000, 4)).take(1, 1001) == ([row_id(1001, 0)], 5)
    assert Stamps(0, 9, row_id(1000, 65_535)).take(1, 1000) == ([row_id(1001, 0)], 9)
    assert Stamps(5000).take(1, 1000) == ([row_id(5000, 0)], 0)
    assert Stamps(5000, 1, row_id(4000, 7)).take(1, 1000) == ([row_id(5000, 0)], 1)
    assert Stamps(5000).last_timestamp == 5000


@given(
    st.lists(
        st.tuples(
            st.sampled_from([65_535, 65_536, 65_537, 140_000]) | st.integers(1, 3),
            st.integers(-2, 3) | st.integers(-3_600_000, 10),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
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


async def test_a_topic_loses_nothing_to_a_clock_that_goes_back_between_restarts() -> None:
    disk, clock = Disk(), ManualClock()
    for number, step in enumerate((0, -1, 1, -3_600_000, 0)):
        clock.ms += step
        async with opened(disk, clock, clean=number % 2 == 0) as house:
            for _ in range(2):
                await house.log.publish(PublishRequest([b"%d" % number]))
    assert len(disk.tables[Table.MESSAGE]) == 10
    async with opened(disk, clock) as house:
        assert house.log.position.upcoming_offset == 10
