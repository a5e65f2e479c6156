"""What is checked before a message is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from oncelog.codecs import Codec
from oncelog.errors import InvalidRequest

LONGEST_SECONDS = 365 * 86_400.0
"""A year; sockets and locks take some three hundred."""
MAX_SEQUENCE_ID = 2**63 - 1

X = TypeVar("X")


def encode_value(value: Any, codec: Codec[Any] | None) -> bytes:
    """A value as its payload. Raises CodecError; TypeError where there is no codec for it."""
    if codec is not None:
        return codec.encode(value)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"without a codec a message is bytes, not {type(value).__name__}; give a codec=")
    return bytes(value)


def check_sequence_id(sequence_id: int) -> None:
    """Raises InvalidRequest for what cannot be one."""
    if type(sequence_id) is not int or not 0 <= sequence_id <= MAX_SEQUENCE_ID:
        raise InvalidRequest(f"a sequence id is an int from 0 to {MAX_SEQUENCE_ID}, not {sequence_id!r}")


def checked_extras(key: bytes | str | None, properties: Mapping[str, str] | None, ttl: int | None) -> bytes | None:
    """The key as bytes. Raises for what could not be encoded later, in the midst of other messages' batch."""
    if isinstance(key, str):
        key = key.encode()
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"a key is bytes or str, not {type(key).__name__}")
    for name, value in (properties or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"properties are str to str, not {name!r}: {value!r}")
        (name + value).encode()  # raises UnicodeEncodeError for a lone surrogate
    if ttl is not None and (type(ttl) is not int or not 0 < ttl <= MAX_SEQUENCE_ID):
        raise InvalidRequest(f"ttl is a positive int of seconds, not {ttl!r}")
    return key


def one_each(given: Sequence[X] | None, count: int, what: str) -> Sequence[X | None]:
    """One for each of ``count`` messages; None where there are none. Raises InvalidRequest for another number of them."""
    if given is not None and len(given) != count:
        raise InvalidRequest(f"{len(given)} {what} for {count} messages")
    return [None] * count if given is None else given


def check_seconds(**given: float) -> None:
    """Raises ValueError for what no thread can wait for: it would end there, and whoever waits for it would do so for ever."""
    for name, seconds in given.items():
        if not 0 <= seconds <= LONGEST_SECONDS:
            raise ValueError(f"{name} is 0 to {LONGEST_SECONDS:.0f} s, not {seconds}")
