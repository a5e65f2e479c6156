"""What a publish expects of its topic (KIP-27), held against what the topic is. Pure: the state in, the first mismatch out.

A publish judges itself with this where it takes its offsets, and so does an atomic commit for each of its parts: the state is
always the one that the messages in question would meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from oncelog.wire.requests import PublishRequest

OFFSET = "offset"
LAST_MESSAGE_ID = "last_message_id"
KEY_OFFSET = "key_offset"

KEY_SHOWN = 249
"""Characters of a key that its refusal repeats: keys have no limit."""

NO_MESSAGE = bytes(20)
"""Expected as the last message id: nothing was ever published."""


def nobody(_: str) -> int | None:
    """:attr:`TopicState.held_by` where no message is undecided."""
    return None


class TopicState(NamedTuple):
    """A topic as the first message in question meets it: everything before it, in flight included."""

    upcoming_offset: int
    last_message_id: bytes | None
    newest: Callable[[str], int | None]
    """Key → offset of its newest message; None: no message has it."""
    held_by: Callable[[str], int | None] = nobody
    """Key → the transaction of its newest message, if that is undecided and another one than that of the publish."""


class Repeated(NamedTuple):
    """What of a request its topic has already: its first ``messages``, of a named producer."""

    messages: int
    last_message_id: bytes | None
    """Of the last of them; None: not known."""
    key_offsets: Mapping[str, int | None]
    """Key → offset of the newest of them with it; None: not known."""


NOTHING_REPEATED = Repeated(0, None, {})


class Mismatch(NamedTuple):
    """What does not hold: this request can be refused for good."""

    condition: str
    expected: int | str | None
    """An offset or a message id in hex; None: no message."""
    actual: int | str | None
    key: str | None = None


class LockedKey(NamedTuple):
    """Whether a key's expectation holds is up to an undecided transaction."""

    key: str
    write_pointer: int


def mismatch(request: PublishRequest, state: TopicState, repeated: Repeated = NOTHING_REPEATED) -> Mismatch | LockedKey | None:
    """The first expectation that does not hold, in the order offset, last message id, keys; None: all hold.

    The messages behind the ``repeated`` ones must follow on those: an offset is expected to have moved by them, the last message
    to be the last of them, the newest one of each of their keys to be theirs.
    """
    return _offset(request, state, repeated) or _last(request, state, repeated) or _keys(request, state, repeated)


def _offset(request: PublishRequest, state: TopicState, repeated: Repeated) -> Mismatch | None:
    if request.expected_offset is None:
        return None
    expected = request.expected_offset + repeated.messages
    return None if expected == state.upcoming_offset else Mismatch(OFFSET, expected, state.upcoming_offset)


def _last(request: PublishRequest, state: TopicState, repeated: Repeated) -> Mismatch | None:
    if request.expected_last_message_id is None:
        return None
    actual = state.last_message_id or NO_MESSAGE
    expected = repeated.last_message_id if repeated.messages else request.expected_last_message_id
    if expected == actual:
        return None
    return Mismatch(LAST_MESSAGE_ID, _shown(expected or request.expected_last_message_id), _shown(actual))


def _keys(request: PublishRequest, state: TopicState, repeated: Repeated) -> Mismatch | LockedKey | None:
    held_by = state.held_by
    for key, offset in (request.expected_key_offsets or {}).items():
        pointer = None if held_by is nobody else held_by(key)
        if pointer is not None:
            return LockedKey(key[:KEY_SHOWN], pointer)
        actual = state.newest(key)
        expected = repeated.key_offsets.get(key, offset)
        unknown = expected is None and key in repeated.key_offsets
        if actual != expected or unknown:
            return Mismatch(KEY_OFFSET, offset if unknown else expected, actual, key[:KEY_SHOWN])
    return None


def _shown(message_id: bytes) -> str | None:
    return None if message_id == NO_MESSAGE else message_id.hex()
