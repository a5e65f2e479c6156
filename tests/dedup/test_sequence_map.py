"""The map only rises, and 0 is a sequence id like any other."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog_dedup import MAX_SEQUENCE_ID, LastEntry, SequenceMap
from tests.dedup.last_entries import last_entry


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20) | st.just(MAX_SEQUENCE_ID)), max_size=40))
@example([("a", 0)])
@example([("a", MAX_SEQUENCE_ID - 1), ("a", MAX_SEQUENCE_ID)])
@example([("a", 5), ("a", 5), ("a", 4)])
def test_the_map_holds_the_first_mark_of_the_highest_id(raises: list[tuple[str, int]]) -> None:
    last_entries = SequenceMap()
    for offset, (producer, sequence_id) in enumerate(raises):
        last_entries.raise_to(producer, last_entry(sequence_id, offset))
    expected: dict[str, LastEntry] = {}
    for producer in {name for name, _ in raises}:
        highest = max(each for name, each in raises if name == producer)
        expected[producer] = last_entry(highest, raises.index((producer, highest)))
    assert last_entries == expected


def test_a_map_is_a_value_of_its_own() -> None:
    given_marks = {"p": last_entry(5), "q": last_entry(6)}
    last_entries = SequenceMap(given_marks)
    copy = last_entries.copy()
    given_marks["p"] = last_entry(0)
    last_entries.raise_to("p", last_entry(6))
    assert (last_entries.get("p"), copy) == (last_entry(6), SequenceMap({"p": last_entry(5), "q": last_entry(6)}))
    copy.forget("p")
    copy.forget("never seen")
    assert copy == SequenceMap({"q": last_entry(6)}) != SequenceMap({"q": last_entry(6, 1)})
    assert "q" in repr(copy)
    with pytest.raises(TypeError):
        hash(copy)
