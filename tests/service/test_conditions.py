"""CONTRACT §6.1: what a publish expects, held against the topic that its first message would meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.wire.requests import PublishRequest
from oncelog_service.log.conditions import (
    KEY_OFFSET,
    LAST_MESSAGE_ID,
    NO_MESSAGE,
    OFFSET,
    Held,
    Mismatch,
    Repeated,
    TopicState,
    mismatch,
)

LAST, EARLIER = bytes([7] * 20), bytes([6] * 20)
KEYS: Mapping[str, int | None] = {"k": 3, "new": None}


def state(upcoming: int = 5, last: bytes | None = LAST, held: Mapping[str, int] | None = None) -> TopicState:
    return TopicState(upcoming, last, KEYS.get, (held or {}).get)


def expecting(
    offset: int | None = None, last: bytes | None = None, keys: Mapping[str, int | None] | None = None
) -> PublishRequest:
    return PublishRequest([b"x"], expected_offset=offset, expected_last_message_id=last, expected_key_offsets=keys)


@pytest.mark.parametrize(
    "request_",
    [
        expecting(),
        expecting(offset=5),
        expecting(last=LAST),
        expecting(keys={}),
        expecting(keys={"k": 3}),
        expecting(keys={"new": None}),
        expecting(5, LAST, {"k": 3, "new": None}),
    ],
)
def test_expectations_that_hold_let_it_pass(request_: PublishRequest) -> None:
    assert mismatch(request_, state()) is None


@pytest.mark.parametrize("offset", [0, 4, 6, 2**62])
def test_another_upcoming_offset_is_told_with_the_actual_one(offset: int) -> None:
    assert mismatch(expecting(offset=offset), state()) == Mismatch(OFFSET, offset, 5)


def test_zero_is_an_offset_like_any_other() -> None:
    assert mismatch(expecting(offset=0), state(upcoming=0)) is None
    assert mismatch(expecting(offset=0), state()) == Mismatch(OFFSET, 0, 5)
    none = TopicState(5, LAST, {"k": 0}.get)
    assert mismatch(expecting(keys={"k": 0}), none) is None
    assert mismatch(expecting(keys={"k": None}), none) == Mismatch(KEY_OFFSET, None, 0, "k")


def test_another_last_message_is_told_as_hex_and_no_message_as_none() -> None:
    assert mismatch(expecting(last=EARLIER), state()) == Mismatch(LAST_MESSAGE_ID, EARLIER.hex(), LAST.hex())
    assert mismatch(expecting(last=NO_MESSAGE), state()) == Mismatch(LAST_MESSAGE_ID, None, LAST.hex())
    assert mismatch(expecting(last=EARLIER), state(last=None)) == Mismatch(LAST_MESSAGE_ID, EARLIER.hex(), None)
    assert mismatch(expecting(last=NO_MESSAGE), state(last=None)) is None


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"k": 4}, Mismatch(KEY_OFFSET, 4, 3, "k")),
        ({"k": None}, Mismatch(KEY_OFFSET, None, 3, "k")),
        ({"new": 3}, Mismatch(KEY_OFFSET, 3, None, "new")),
        ({"k": 3, "new": 0, "other": 1}, Mismatch(KEY_OFFSET, 0, None, "new")),
    ],
)
def test_the_first_key_that_does_not_hold_is_named(keys: Mapping[str, int | None], found: Mismatch) -> None:
    assert mismatch(expecting(keys=keys), state()) == found


def test_the_first_that_fails_of_offset_last_message_and_keys_is_told() -> None:
    conditions = [(4, EARLIER, {"k": 4}), (5, EARLIER, {"k": 4}), (5, LAST, {"k": 4})]
    found = [mismatch(expecting(*each), state()) for each in conditions]
    assert [each and each[0] for each in found] == [OFFSET, LAST_MESSAGE_ID, KEY_OFFSET]


def test_a_key_whose_newest_message_is_undecided_is_no_mismatch() -> None:
    held = state(held={"k": 77})
    for offset in (2, 3, None):
        assert mismatch(expecting(keys={"k": offset}), held) == Held("k", 77)
    assert mismatch(expecting(offset=4, keys={"k": 3}), held) == Mismatch(OFFSET, 4, 5), "offsets never step back"


# --- when the first messages of the request are there already


def repeated(messages: int = 2, last: bytes | None = LAST, keys: Mapping[str, int | None] | None = None) -> Repeated:
    return Repeated(messages, last, keys or {})


def test_what_is_left_of_a_request_must_follow_on_what_is_there_of_it() -> None:
    assert mismatch(expecting(3), state(), repeated()) is None
    assert mismatch(expecting(5), state(), repeated()) == Mismatch(OFFSET, 7, 5)


def test_the_last_of_the_repeated_messages_takes_the_place_of_the_expected_last_one() -> None:
    assert mismatch(expecting(last=EARLIER), state(), repeated()) is None
    other = bytes([5] * 20)
    assert mismatch(expecting(last=EARLIER), state(), repeated(last=other)) == Mismatch(LAST_MESSAGE_ID, other.hex(), LAST.hex())
    unknown = repeated(last=None)
    assert mismatch(expecting(last=EARLIER), state(), unknown) == Mismatch(LAST_MESSAGE_ID, EARLIER.hex(), LAST.hex())
    assert mismatch(expecting(last=LAST), state(), unknown) == Mismatch(LAST_MESSAGE_ID, LAST.hex(), LAST.hex())


def test_the_repeated_messages_of_a_key_take_the_place_of_its_expected_newest_one() -> None:
    assert mismatch(expecting(keys={"k": None}), state(), repeated(keys={"k": 3})) is None
    assert mismatch(expecting(keys={"k": None}), state(), repeated(keys={"k": 2})) == Mismatch(KEY_OFFSET, 2, 3, "k")
    assert mismatch(expecting(keys={"k": 3}), state(), repeated(keys={"other": 4})) is None
    assert mismatch(expecting(keys={"k": 3}), state(), repeated(keys={"k": None})) == Mismatch(KEY_OFFSET, 3, 3, "k")


# --- against a plain reading of the contract

offsets = st.none() | st.integers(0, 3)
ids = st.sampled_from([LAST, EARLIER])
some_keys = st.dictionaries(st.sampled_from("abc"), offsets)


@given(
    st.none() | st.integers(0, 6),
    st.none() | ids | st.just(NO_MESSAGE),
    st.none() | some_keys,
    st.integers(0, 6),
    st.none() | ids,
    some_keys,
)
def test_it_passes_exactly_when_all_holds(
    offset: int | None, last: bytes | None, keys: Any, upcoming: int, last_id: bytes | None, newest: dict[str, int | None]
) -> None:
    holds = (
        offset in (None, upcoming)
        and (last is None or last == (last_id or NO_MESSAGE))
        and all(newest.get(key) == each for key, each in (keys or {}).items())
    )
    found = mismatch(expecting(offset, last, keys), TopicState(upcoming, last_id, newest.get))
    assert (found is None) == holds
    if isinstance(found, Mismatch):
        assert found.expected != found.actual
