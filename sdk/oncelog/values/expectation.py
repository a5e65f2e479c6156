"""What a message expects of its topic (KIP-27), as the caller says it. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from oncelog.errors import InvalidRequest, OffsetMismatch
from oncelog.message_id import MessageId
from oncelog.values.numbers import check_long


class Unchecked(Enum):
    """The type of :data:`UNCHECKED`."""

    UNCHECKED = "unchecked"

    def __repr__(self) -> str:
        return self.name


UNCHECKED: Final = Unchecked.UNCHECKED
"""Nothing is expected of the message's key; None would expect that no message has it yet."""


class Expectation(NamedTuple):
    """A condition that must hold where a message gets its offset; at least one of them is set."""

    offset: int | None
    """That it gets."""
    last_message_id: bytes | None
    """Of the newest message of the topic; 20 zero bytes: none was ever published."""
    key: str | None
    """Its own key, each byte one character, if ``key_offset`` counts."""
    key_offset: int | None
    """Of the newest message with that key; None: there is none yet."""

    @property
    def offset_alone(self) -> bool:
        """Whether nothing else is expected."""
        return self.last_message_id is None and self.key is None

    @property
    def key_offsets(self) -> dict[str, int | None] | None:
        """The expected offset of the key, as a request carries it."""
        return None if self.key is None else {self.key: self.key_offset}

    def moved(self, by: int) -> Expectation:
        """The condition of a message ``by`` places behind, where only the offset counts."""
        assert self.offset is not None
        return self._replace(offset=self.offset + by)


def expectation(
    offset: int | None, last_id: MessageId | None, key_offset: int | Unchecked | None, key: bytes | None
) -> Expectation | None:
    """The condition of a message with this key.

    None: nothing. Raises InvalidRequest; TypeError for an id that is no MessageId.
    """
    if offset is None and last_id is None and key_offset is UNCHECKED:
        return None
    if offset is not None:
        check_long("expected_offset", offset)
    if last_id is not None and not isinstance(last_id, MessageId):
        raise TypeError(f"expected_last_id is a MessageId, not {type(last_id).__name__}")
    raw_id = None if last_id is None else bytes(last_id)
    if key_offset is UNCHECKED:
        return Expectation(offset, raw_id, None, None)
    if key is None:
        raise InvalidRequest("expected_key_offset is of the message's key; give it a key")
    if key_offset is not None:
        check_long("expected_key_offset", key_offset)
    return Expectation(offset, raw_id, key.decode("latin-1"), key_offset)


def is_past(mismatch: OffsetMismatch) -> bool:
    """Whether the topic has gone past what was expected, so that it will never hold again.

    Offsets and message ids only rise. What lies *ahead* of the topic may hold later: where an earlier try of the same request may
    still be under way, its refusal now says nothing about that one.
    """
    expected, actual = mismatch.expected, mismatch.actual
    if actual is None:
        return False
    return expected is None or (type(actual) is type(expected) and actual > expected)  # type: ignore[operator]  # the same type
