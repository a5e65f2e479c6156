"""Batches and taken numbers, held against models too simple to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.batching import Batch, TakenIds

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
            assert new or number in model or number < min(taken._firsts)
            if new:
                model.add(number)
        else:
            assert number not in model
            assert number < max(model)
        assert len(taken._firsts) == len(taken._lasts) <= 3


def test_a_dense_series_costs_one_range() -> None:
    taken = TakenIds()
    assert all(taken.take(number) for number in range(5, 100_000))
    assert (taken._firsts, taken._lasts) == ([5], [99_999])


@given(MESSAGES)
def test_halves_hold_every_message_once_in_order_and_are_never_as_large(messages: list[tuple[bytes, None, None, None]]) -> None:
    batch = filled(messages)
    first, second = batch.halves()
    assert rows(first) + rows(second) == rows(batch)
    assert first.size + second.size == batch.size
    if len(messages) > 1:
        assert first.payloads
        assert second.payloads


@given(MESSAGES, st.integers(1, 5))
def test_an_addition_that_was_interrupted_is_taken_back(messages: list[tuple[bytes, None, None, None]], got_to: int) -> None:
    batch = filled(messages)
    before = rows(batch)
    for column in (batch.payloads, batch.sequence_ids, batch.waiters, batch.keys, batch.properties)[:got_to]:
        column.append(b"half")  # type: ignore[attr-defined]
    batch.mend()
    assert rows(batch) == before


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
