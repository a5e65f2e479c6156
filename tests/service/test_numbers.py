"""Which sequence ids a transaction's messages without a producer have taken: as a set of them says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.log.numbers import Numbers, Taken

requests = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.booleans()), max_size=30)


@given(requests, st.booleans())
def test_what_is_taken_is_found_and_nothing_else(requests: list[tuple[int, int, bool]], named: bool) -> None:
    """``named``: each entry names its row, so that it stays by itself and can be dropped."""
    numbers, taken = Numbers(), dict[int, Taken]()
    for number, (first, count, drops) in enumerate(requests):
        ids = range(first, first + count)
        found = numbers.overlapping(ids)
        assert sorted(each for entry in found for each in range(entry.first, entry.end) if each in ids) == sorted(
            taken.keys() & set(ids)
        )
        assert any(entry.holds(ids) for entry in found) or named or not taken.keys() >= set(ids) or len(found) > 1
        assert all(entry.holds(ids) == ({*ids} <= {*range(entry.first, entry.end)}) for entry in found)
        if named:
            assert found == sorted({taken[each] for each in ids if each in taken})
        if not found:
            entry = Taken(first, first + count, b"%d" % number if named else b"")
            numbers.add(entry)
            taken |= dict.fromkeys(ids, entry)
        elif named and drops:
            numbers.drop(found[0])
            numbers.drop(found[0])
            taken = {each: entry for each, entry in taken.items() if entry != found[0]}


def test_a_request_that_was_added_is_held_by_one_entry_whatever_came_between() -> None:
    numbers = Numbers()
    for first in (5, 0, 15, 10):  # two processes, each with numbers of its own
        numbers.add(Taken(first, first + 5))
    for first in (0, 5, 10, 15):
        (entry,) = numbers.overlapping(range(first, first + 5))
        assert entry.holds(range(first, first + 5))
