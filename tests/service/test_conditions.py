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
    NOTHING_REPEATED,
    OFFSET,
    LockedKey,
    Mismatch,
    Repeated,
    TopicState,
    mismatch,
)

LAST, EARLIER, OTHER = bytes([7] * 20), bytes([6] * 20), bytes([5] * 20)
KEYS: Mapping[str, int | None] = {"k": 3, "new": None, "zero": 0}
TOPIC = TopicState(5, LAST, KEYS.get)
UNDECIDED = TOPIC._replace(held_by={"k": 77}.get)


def expecting(
    offset: int | None = None, last: bytes | None = None, keys: Mapping[str, int | None] | None = None
) -> PublishRequest:
    return PublishRequest([b"x"], expected_offset=offset, expected_last_message_id=last, expected_key_offsets=keys)


def offset(expected: int, actual: int = 5) -> Mismatch:
    return Mismatch(OFFSET, expected, actual)


def last(expected: bytes | None, actual: bytes | None = LAST) -> Mismatch:
    return Mismatch(LAST_MESSAGE_ID, expected and expected.hex(), actual and actual.hex())


def key(expected: int | None, actual: int | None = 3, name: str = "k") -> Mismatch:
    return Mismatch(KEY_OFFSET, expected, actual, name)


def two(last_id: bytes | None = LAST, **keys: int | None) -> Repeated:
    """The first two messages of the request are there already."""
    return Repeated(2, last_id, keys)


CASES = [
    # The first that fails of offset, last message and keys is told, and of keys the first.
    (expecting(5, LAST, {"k": 3, "new": None}), TOPIC, None),
    (expecting(0), TopicState(0, None, KEYS.get), None),
    (expecting(0), TOPIC, offset(0)),
    (expecting(4, EARLIER, {"k": 4}), TOPIC, offset(4)),
    (expecting(5, EARLIER, {"k": 4}), TOPIC, last(EARLIER)),
    (expecting(last=NO_MESSAGE), TOPIC, last(None)),
    (expecting(last=NO_MESSAGE), TopicState(5, None, KEYS.get), None),
    (expecting(last=EARLIER), TopicState(5, None, KEYS.get), last(EARLIER, None)),
    (expecting(keys={"k": 4}), TOPIC, key(4)),
    (expecting(keys={"k": None}), TOPIC, key(None)),
    (expecting(keys={"zero": None}), TOPIC, key(None, 0, "zero")),
    (expecting(keys={"k": 3, "new": 0, "other": 1}), TOPIC, key(0, None, "new")),
    # A key whose newest message is undecided is no mismatch; offsets never step back.
    (expecting(keys={"k": 2}), UNDECIDED, LockedKey("k", 77)),
    (expecting(keys={"k": 3}), UNDECIDED, LockedKey("k", 77)),
    (expecting(4, keys={"k": 3}), UNDECIDED, offset(4)),
    # What is left of a request must follow on what is there of it.
    (expecting(3), TOPIC, None, two()),
    (expecting(5), TOPIC, offset(7), two()),
    (expecting(last=EARLIER), TOPIC, None, two()),
    (expecting(last=EARLIER), TOPIC, last(OTHER), two(OTHER)),
    (expecting(last=EARLIER), TOPIC, last(EARLIER), two(None)),
    (expecting(last=LAST), TOPIC, last(LAST), two(None)),
    (expecting(keys={"k": None}), TOPIC, None, two(k=3)),
    (expecting(keys={"k": None}), TOPIC, key(2), two(k=2)),
    (expecting(keys={"k": 3}), TOPIC, None, two(other=4)),
    (expecting(keys={"k": 3}), TOPIC, key(3), two(k=None)),
    (expecting(keys={"new": None}), TOPIC, key(None, None, "new"), two(new=None)),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_what_does_not_hold_is_told_with_what_is(case: Any) -> None:
    request, state, found, *repeated = case
    assert mismatch(request, state, *repeated or [NOTHING_REPEATED]) == found


offsets = st.none() | st.integers(0, 3)
ids = st.sampled_from([LAST, EARLIER])
some_keys = st.dictionaries(st.sampled_from("abc"), offsets)


@given(st.none() | st.integers(0, 6), st.none() | ids | st.just(NO_MESSAGE), st.none() | some_keys, st.integers(0, 6),
       st.none() | ids, some_keys)  # fmt: skip
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
