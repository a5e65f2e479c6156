"""What was done against what there was to do: whatever is planted is told, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.testing.judge import SHOWN, Item, NotExactlyOnce, Words, judge

WORDS = Words("{it} lost", "{it} {times}: {done}", "{it} behind {other}", "{done} unknown")
messages = st.lists(st.sampled_from("abc"), max_size=12)
"""The keys of messages, which are known by their place."""


def items(keys: list[str]) -> list[Item]:
    return [Item(at, f"m{at}", key) for at, key in enumerate(keys)]


def kinds(keys: list[str], done: list[Any], **options: Any) -> list[tuple[str, Any]]:
    return [
        (each.kind, each.identity) for each in judge(items(keys), [Item(each, f"d{each}") for each in done], WORDS, **options)
    ]


@given(messages, st.randoms())
def test_what_was_done_once_and_in_the_order_of_each_key_is_right(keys: list[str], random: Any) -> None:
    """Any interleaving of the keys' own orders."""
    left = {key: [at for at, each in enumerate(keys) if each == key] for key in set(keys)}
    done = []
    while left:
        key = random.choice(sorted(left))
        done.append(left[key].pop(0))
        left = {key: each for key, each in left.items() if each}
    assert kinds(keys, done) == []


@given(messages.filter(bool), st.data())
def test_each_loss_is_told(keys: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(range(len(keys))), min_size=1))
    assert kinds(keys, [at for at in range(len(keys)) if at not in gone]) == [("lost", at) for at in sorted(gone)]


@given(messages.filter(bool), st.data())
def test_each_double_is_told_once_wherever_it_stands_and_is_not_out_of_order(keys: list[str], data: st.DataObject) -> None:
    done = list(range(len(keys)))
    again = data.draw(st.lists(st.sampled_from(done), min_size=1))
    for each in again:
        done.insert(data.draw(st.integers(done.index(each) + 1, len(done))), each)
    assert sorted(kinds(keys, done)) == [("doubled", at) for at in sorted(set(again))]


@given(messages, st.permutations(range(12)))
def test_an_order_is_wrong_where_a_message_follows_on_one_of_its_key_that_is_after_it(keys: list[str], mixed: list[int]) -> None:
    done = [at for at in mixed if at < len(keys)]
    wrong = set()
    for key in set(keys):
        of_key = [at for at in done if keys[at] == key]
        wrong |= {("reordered", late) for late, early in zip(of_key[1:], of_key, strict=False) if late < early}
    assert set(kinds(keys, done)) == wrong
    assert kinds(keys, done, ordered=False) == []


@given(messages, st.lists(st.integers(20, 25), unique=True))
def test_what_is_of_nothing_is_told(keys: list[str], unknown: list[int]) -> None:
    assert kinds(keys, [*range(len(keys)), *unknown]) == [("unknown", each) for each in unknown]


@given(st.lists(st.sampled_from("xy")), st.lists(st.sampled_from("xy")))
def test_of_several_of_the_same_as_many_are_to_be_done(expected: list[str], done: list[str]) -> None:
    found = judge([Item(each, each) for each in expected], [Item(each, each) for each in done], WORDS, ordered=False)
    lost = Counter(each.identity for each in found if each.kind == "lost")
    assert lost == Counter(expected) - Counter(done)
    more = {each for each in "xy" if done.count(each) > expected.count(each)}
    assert {each.identity for each in found if each.kind in ("doubled", "unknown")} == more


def test_what_may_still_come_is_not_lost_and_counts_when_it_has_come() -> None:
    later = [Item(0, "m0"), Item(1, "m1", due=False)]
    assert judge(later, [Item(0, "d0")], WORDS) == []
    assert [each.kind for each in judge(later, [Item(1, "d1"), Item(0, "d0")], WORDS)] == ["reordered"]


def test_each_is_told_in_words_of_both_sides() -> None:
    said = [each.says for each in judge(items(["a"] * 3), [Item(2, "d2"), Item(0, "d0"), Item(0, "d0'"), Item(9, "d9")], WORDS)]
    assert said == ["m1 lost", "m0 behind m2", "m0 2 times: d0 and d0'", "d9 unknown"]


def test_an_error_tells_the_first_of_each_kind_and_counts_the_others() -> None:
    findings = judge(items(["a"] * 15), [Item(14, "d14"), Item(99, "d99")], WORDS)
    with pytest.raises(NotExactlyOnce) as told:
        raise NotExactlyOnce("nothing is right", findings)
    lines = str(told.value).splitlines()
    assert lines[0] == "nothing is right: 14 lost, 1 unknown"
    assert lines[1] == "  lost: m0 lost"
    assert lines[SHOWN + 1 :] == ["  lost: and 4 more", "  unknown: d99 unknown"]
    assert told.value.findings == findings
