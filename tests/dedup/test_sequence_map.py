"""The map only rises, and 0 is a sequence id like any other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_dedup import MAX_SEQUENCE_ID, Mark, SequenceMap
from tests.dedup.marks import mark


def test_a_producer_that_never_published_has_no_mark() -> None:
    assert SequenceMap().get("p") is None
    assert "p" not in SequenceMap()


def test_sequence_id_zero_is_remembered() -> None:
    marks = SequenceMap()
    marks.raise_to("p", mark(0))
    assert marks.get("p") == mark(0)
    assert "p" in marks


def test_the_largest_sequence_id_is_remembered() -> None:
    marks = SequenceMap()
    marks.raise_to("p", mark(MAX_SEQUENCE_ID - 1))
    marks.raise_to("p", mark(MAX_SEQUENCE_ID, 1))
    assert marks.get("p") == mark(MAX_SEQUENCE_ID, 1)
    assert MAX_SEQUENCE_ID == 9_223_372_036_854_775_807


@pytest.mark.parametrize("lower", [4, 5])
def test_a_mark_at_or_below_the_present_one_changes_nothing(lower: int) -> None:
    marks = SequenceMap({"p": mark(5, 10)})
    marks.raise_to("p", mark(lower, 11))
    assert marks.get("p") == mark(5, 10)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=40))
def test_the_map_holds_the_first_mark_of_the_highest_id(raises: list[tuple[str, int]]) -> None:
    marks = SequenceMap()
    for offset, (producer, sequence_id) in enumerate(raises):
        marks.raise_to(producer, mark(sequence_id, offset))
    expected: dict[str, Mark] = {}
    for producer in {name for name, _ in raises}:
        highest = max(each for name, each in raises if name == producer)
        expected[producer] = mark(highest, raises.index((producer, highest)))
    assert dict(marks.items()) == expected
    assert len(marks) == len(expected)


def test_forgetting_one_producer_leaves_the_others() -> None:
    marks = SequenceMap({"p": mark(5), "q": mark(6)})
    marks.forget("p")
    marks.forget("never seen")
    assert marks == SequenceMap({"q": mark(6)})


def test_a_copy_does_not_follow_its_original() -> None:
    marks = SequenceMap({"p": mark(5)})
    copy = marks.copy()
    marks.raise_to("p", mark(6))
    marks.raise_to("q", mark(0))
    assert copy == SequenceMap({"p": mark(5)})


def test_a_map_does_not_follow_the_dict_it_was_made_of() -> None:
    given_marks = {"p": mark(5)}
    marks = SequenceMap(given_marks)
    given_marks["p"] = mark(0)
    assert marks.get("p") == mark(5)


def test_maps_are_equal_when_their_marks_are() -> None:
    assert SequenceMap({"p": mark(5)}) == SequenceMap({"p": mark(5)})
    assert SequenceMap({"p": mark(5, 0)}) != SequenceMap({"p": mark(5, 1)})
    assert SequenceMap({"p": mark(5)}) != {"p": mark(5)}


def test_a_map_shows_its_marks_and_cannot_be_a_key() -> None:
    assert "p" in repr(SequenceMap({"p": mark(5)}))
    with pytest.raises(TypeError):
        hash(SequenceMap())
