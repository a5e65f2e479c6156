"""Ids and offsets strictly rise for the whole life of a topic, whatever the clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.log.stamps import Stamps
from oncelog_service.storage.keys import row_id, split_row_id
from tests.service.house import BEGIN


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
            st.none() | st.integers(0, 5),
            st.sampled_from([65_535, 65_537, 131_073]) | st.integers(1, 5),
            st.integers(-2, 3) | st.integers(-3_600_000, 10),
            st.booleans(),
        ),
        max_size=6,
    ),
    st.integers(65_530, 65_536),
)
def test_ids_rise_and_offsets_are_dense_through_any_clock_and_any_restart(
    history: list[tuple[int | None, int, int, bool]], used: int
) -> None:
    """Also where rows that stand for so many messages of a stored group, or none, lie between the others."""
    now, offset, last = BEGIN, used, row_id(BEGIN, used - 1)
    stamps = Stamps(0, used, last)
    for stored, count, step, restart in history:
        now += step
        if stored is None:
            taken, first = stamps.take(count, now)
            assert len(taken) == count
        else:
            count = stored
            one, first = stamps.take_row(stored, now)
            taken = [one]
        assert first == offset
        assert last < taken[0]
        assert split_row_id(taken[0])[0] >= now
        assert taken == sorted(set(taken))
        offset, last = offset + count, taken[-1]
        assert (stamps.upcoming_offset, stamps.last_timestamp) == (offset, split_row_id(last)[0])
        if restart:
            stamps = Stamps(0, offset, last)
