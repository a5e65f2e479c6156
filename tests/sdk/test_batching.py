"""Batches and taken numbers, held against models too simple to be wrong."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Consumer, Producer, Reader
from oncelog.errors import OffsetMismatch
from oncelog.producing.batching import Batch, TakenIds
from oncelog.values.expectation import Expectation

MESSAGES = st.lists(
    st.tuples(
        st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        st.none() | st.integers(1, 10**6),
    ),
    max_size=40,
)


def filled(messages: list[tuple[bytes, bytes | None, dict[str, str] | None, int | None]]) -> Batch:
    batch = Batch()
    for number, (payload, key, properties, ttl) in enumerate(messages):
        batch.add(number * 3, payload, f"waiter {number}", key, properties, ttl)
    return batch


def rows(batch: Batch) -> list[tuple[object, ...]]:
    columns = (batch.sequence_ids, batch.payloads, batch.waiters, batch.keys, batch.properties, batch.ttls)
    return list(zip(*columns, strict=True))


@given(st.lists(st.integers(0, 12), max_size=60))
def test_an_id_may_be_taken_again_but_not_if_it_was_passed_over(ids: list[int]) -> None:
    taken, model = TakenIds(), set[int]()
    for number in ids:
        may = not model or number > max(model) or number in model
        assert taken.take(number) is may
        if may:
            model.add(number)
        assert taken.highest == max(model)


@given(st.lists(st.integers(0, 12) | st.tuples(st.sets(st.integers(0, 12)), st.booleans()), max_size=60))
def test_an_id_that_was_given_back_may_be_taken_anew_only_where_nothing_is_above_it(
    steps: list[int | tuple[set[int], bool]],
) -> None:
    """A step takes an id, or gives some back, as the newest ones or with others behind them."""
    taken, used, highest = TakenIds(), set[int](), -1
    for step in steps:
        if isinstance(step, int):
            may = step > highest or step in used
            assert taken.take(step) is may
            highest = max(highest, step) if may else highest
            used |= {step} if may else set()
        else:
            ids, newest = step
            before = taken.copy()
            taken.give_back(sorted(ids), newest)
            used -= ids
            highest = max(used, default=-1) if newest else highest
            assert all(before.take(each) for each in ids & used)
        assert taken.highest == (None if highest < 0 else highest)


def test_a_copy_of_what_was_taken_stays_as_it_was() -> None:
    taken = TakenIds()
    taken.take(5)
    copied = taken.copy()
    taken.take(9)
    taken.give_back([5], newest=False)
    assert copied.highest == 5
    assert copied.take(5)
    assert not taken.take(5)


def test_nothing_taken_has_no_highest() -> None:
    assert TakenIds().highest is None


@given(st.lists(st.integers(0, 30), max_size=60))
def test_beyond_its_room_it_forgets_the_oldest_and_never_refuses_what_was_taken(ids: list[int]) -> None:
    class Small(TakenIds):
        MAX_RANGES = 3

    taken, model = Small(), set[int]()
    for number in ids:
        new = not model or number > max(model)
        if taken.take(number):
            assert new or number in model or number < taken.ranges[0][0]
            if new:
                model.add(number)
        else:
            assert number not in model
            assert number < max(model)
        assert len(taken.ranges) <= 3


def test_a_dense_series_costs_one_range() -> None:
    taken = TakenIds()
    assert all(taken.take(number) for number in range(5, 100_000))
    assert taken.ranges == [(5, 99_999)]


@given(MESSAGES)
def test_halves_hold_every_message_once_in_order_and_are_never_as_large(messages: list[tuple[bytes, None, None, None]]) -> None:
    batch = filled(messages)
    first, second = batch.halves()
    assert rows(first) + rows(second) == rows(batch)
    assert first.size + second.size == batch.size
    if len(messages) > 1:
        assert first.payloads
        assert second.payloads


@given(MESSAGES)
def test_a_request_carries_every_message_and_the_extras_only_where_there_are_any(
    messages: list[tuple[bytes, bytes | None, dict[str, str] | None, int | None]],
) -> None:
    batch = filled(messages)
    request = batch.request("p", 7)
    assert (request.producer, request.epoch) == ("p", 7)
    assert list(request.payloads) == [message[0] for message in messages]
    assert list(request.sequence_ids or []) == [number * 3 for number in range(len(messages))]
    if any(key is not None or properties is not None or ttl is not None for _, key, properties, ttl in messages):
        columns = (request.keys, request.properties, request.ttls)
        assert list(zip(*[column or [] for column in columns], strict=True)) == [message[1:] for message in messages]
    else:
        assert (request.keys, request.properties, request.ttls) == (None, None, None)


@pytest.mark.parametrize(("number", "accepted"), [(0, False), (9, False), (10, False), (11, True), (100, True)])
def test_a_batch_takes_rising_ids_only(number: int, accepted: bool) -> None:
    batch = Batch()
    assert batch.accepts(number)
    batch.add(10, b"", None)
    assert batch.accepts(number) is accepted


def test_the_size_of_a_batch_covers_what_travels() -> None:
    plain, full = Batch(), Batch()
    plain.add(1, b"x" * 100, None)
    full.add(1, b"x" * 100, None, b"k" * 50, {"n" * 30: "v" * 40}, 5)
    assert plain.size >= 100
    assert full.size >= 220


# --- expectations


def following_on(messages: int, offset: int, whole: bool = False) -> Batch:
    batch = Batch(whole=whole)
    for at in range(messages):
        batch.add(at * 2, b"%d" % at, at, expected=Expectation(offset + at, None, None, None))
    return batch


def refusal(expected: int | str | None, actual: int | str | None, condition: str = "offset") -> OffsetMismatch:
    return OffsetMismatch(condition=condition, expected=expected, actual=actual)


@pytest.mark.parametrize(
    ("before", "after", "accepted"),
    [
        (Expectation(5, None, None, None), Expectation(6, None, None, None), True),
        (Expectation(5, None, None, None), Expectation(7, None, None, None), False),
        (Expectation(5, None, None, None), Expectation(5, None, None, None), False),
        (Expectation(5, None, None, None), None, False),
        (None, Expectation(6, None, None, None), False),
        (None, None, True),
        (Expectation(5, None, "k", None), Expectation(6, None, None, None), False),
        (Expectation(5, None, None, None), Expectation(6, None, "k", None), False),
        (Expectation(5, bytes(20), None, None), Expectation(6, None, None, None), False),
        (Expectation(None, None, "k", 3), Expectation(None, None, "k", 3), False),
    ],
)
def test_a_request_takes_what_follows_on_and_nothing_else_beside_an_expectation(
    before: Expectation | None, after: Expectation | None, accepted: bool
) -> None:
    batch = Batch()
    assert batch.accepts(1, before)
    batch.add(1, b"", None, expected=before)
    assert batch.accepts(2, after) is accepted
    assert not batch.accepts(1, after)


@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 12), st.integers(0, 30))
def test_a_refused_request_is_parted_as_if_each_message_had_come_by_itself(n: int, offset: int, known: int, actual: int) -> None:
    batch, known = following_on(n, offset), min(known, n - 1)
    if actual == offset + known:
        return  # not refused
    there, lost, rest = batch.parted(refusal(offset + known, actual))
    assert [len(there.payloads), rows(there) + rows(lost) + rows(rest)] == [known, rows(batch)]
    assert lost.payloads
    assert all(offset + at != actual for at in lost.waiters)
    for part in (there, rest):
        assert not part.payloads or part.expected == Expectation(offset + part.waiters[0], None, None, None)
    assert not rest.payloads or offset + rest.waiters[0] == actual


@pytest.mark.parametrize(
    "mismatch", [refusal(0, 2, "key_offset"), refusal("00", "ff", "last_message_id"), refusal(None, 3), refusal(3, None)]
)
def test_what_is_no_matter_of_offsets_refuses_the_whole_request(mismatch: OffsetMismatch) -> None:
    there, lost, rest = following_on(3, 0).parted(mismatch)
    assert [len(part.payloads) for part in (there, lost, rest)] == [0, 3, 0]


def test_a_whole_batch_is_refused_whole() -> None:
    assert [len(part.payloads) for part in following_on(5, 0, whole=True).parted(refusal(0, 2))] == [0, 5, 0]


def test_halves_expect_what_their_messages_expected() -> None:
    first, second = following_on(5, 7).halves()
    assert (first.request("p", 1).expected_offset, second.request("p", 1).expected_offset) == (7, 9)


def test_a_request_carries_what_its_first_message_expects() -> None:
    batch = Batch()
    batch.add(0, b"", None, b"\xff", expected=Expectation(5, b"i" * 20, "\xff", None))
    request = batch.request("p", 1)
    assert (request.expected_offset, request.expected_last_message_id, request.expected_key_offsets) == (
        5,
        b"i" * 20,
        {"\xff": None},
    )


def one_step(function: Callable[..., object], begin: str, lines_long: int) -> list[str]:
    """The instructions of so many lines, from that which holds ``begin`` on, without those behind the last change."""
    lines, first = inspect.getsourcelines(function)
    start = first + next(at for at, line in enumerate(lines) if begin in line)
    code = list(dis.get_instructions(function))
    line, found = 0, []
    for instruction in code:
        line = instruction.starts_line or line
        if start <= line < start + lines_long:
            found.append(instruction)
    last = max(at for at, each in enumerate(found) if each.opname.startswith(("STORE_", "BINARY_OP")) or each.argval == "append")
    return [each.opname for each in found[:last]]


@pytest.mark.parametrize(
    ("function", "begin", "lines_long"),
    [
        (Producer._put, "if self._version != version:", 100),
        (Producer._take, "if self._version != version:", 100),
        (Producer._end_batch, "self._due = None", 100),
        (Producer._enqueue_whole, "if self._version == version:", 100),
        (Batch.add, "if not self.payloads:", 100),
        (Reader._fetch, "self._request, self._first = following", 2),
        (Consumer._fetch, "self._after = after", 2),
    ],
)
def test_a_change_of_state_is_one_step_to_a_signal_handler(function: Callable[..., object], begin: str, lines_long: int) -> None:
    """CPython runs handlers behind calls, where functions begin and at the ends of loops: there is none of these in between."""
    names = one_step(function, begin, lines_long)
    assert len(names) > 2
    assert [name for name in names if name.startswith(("CALL", "JUMP_BACKWARD", "FOR_ITER", "SEND", "YIELD"))] == []
