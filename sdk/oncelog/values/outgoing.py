"""A message on its way out: what it may be is checked before anything is sent. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from oncelog.codecs import Codec
from oncelog.errors import InvalidRequest
from oncelog.message_id import MessageId
from oncelog.values.arguments import check_mapping
from oncelog.values.expectation import UNCHECKED, Expectation, Unchecked, expectation
from oncelog.values.numbers import MAX_LONG, check_long, check_longs
from oncelog.wire.erasure import check_mark
from oncelog.wire.media import TRACEPARENT

ROW_BYTES = 128
"""What a message costs in memory beside payload, key and properties, roughly. On the wire it is less."""
CARRIES = 256 << 10
"""Bytes of a message in a transaction or an atomic commit that still gets the context of a trace: with it, none becomes too large
for a service that takes their requests, which are of up to 4 MiB."""


X = TypeVar("X")


class Outgoing(NamedTuple):
    """A message that can be sent: whatever the caller could have got wrong is checked."""

    payload: bytes
    sequence_id: int | None = None
    """As the caller gave it."""
    key: bytes | None = None
    properties: Mapping[str, str] | None = None
    ttl: int | None = None
    expected: Expectation | None = None
    size: int = 0
    """What it counts for, in bytes."""


class Carrying(dict[str, str]):
    """Properties into which the SDK has put the context of a trace. It can be left out again: nothing is refused for it."""

    __slots__ = ("own",)

    def __init__(self, own: Mapping[str, str] | None, context: Mapping[str, str]) -> None:
        super().__init__(context)
        if own:
            self.update(own)
        self.own = own
        """What the caller gave."""


def carrying(message: Outgoing, context: Mapping[str, str], most: int = sys.maxsize) -> Outgoing:
    """Return the message with the context of a trace in its properties, unless it has one from its caller, or is larger than
    ``most`` bytes."""
    own = message.properties
    if not context or message.size > most or (own and TRACEPARENT in own):
        return message
    properties = Carrying(own, context)
    return message._replace(properties=properties, size=size_of(message.payload, message.key, properties))


_NEW = tuple.__new__
"""Makes a NamedTuple in half the time of its own constructor; there is one for each message."""


def outgoing(
    value: Any,
    codec: Codec[Any] | None = None,
    sequence_id: int | None = None,
    key: bytes | str | None = None,
    properties: Mapping[str, str] | None = None,
    ttl: int | None = None,
    *,
    expected_offset: int | None = None,
    expected_last_id: MessageId | None = None,
    expected_key_offset: int | Unchecked | None = UNCHECKED,
) -> Outgoing:
    """Make a message of a value and what it is sent with: the arguments of :meth:`oncelog.Producer.send`.

    Raises CodecError, InvalidRequest, TypeError, UnicodeEncodeError.
    """
    payload: bytes = value if codec is None and type(value) is bytes else encode_value(value, codec)
    if sequence_id is not None and not (type(sequence_id) is int and 0 <= sequence_id <= MAX_LONG):  # saves the call
        check_long("sequence_id", sequence_id)
    size, expected = ROW_BYTES + len(payload), None
    if key is not None or properties is not None or ttl is not None:
        key = checked_extras(payload, key, properties, ttl)
        properties = None if properties is None else dict(properties)  # the caller's may change before it is sent
        size = size_of(payload, key, properties)
    if expected_offset is not None or expected_last_id is not None or expected_key_offset is not UNCHECKED:
        expected = expectation(expected_offset, expected_last_id, expected_key_offset, key)
    return _NEW(Outgoing, (payload, sequence_id, key, properties, ttl, expected, size))


def size_of(payload: bytes, key: bytes | None, properties: Mapping[str, str] | None) -> int:
    """Bytes that a message counts for, in memory and against the bounds of a request."""
    size = ROW_BYTES + len(payload)
    if key is not None:
        size += len(key)
    if properties:
        for name, value in properties.items():
            size += len(name) + len(value)
    return size


def encode_value(value: Any, codec: Codec[Any] | None) -> bytes:
    """Encode a value as its payload. Raises CodecError; TypeError where there is no codec for it."""
    if codec is not None:
        return codec.encode(value)
    if not isinstance(value, bytes | bytearray | memoryview):
        kind = type(value).__name__
        raise TypeError(f"without a codec a message is bytes, not {kind}: encode it, or give a codec= where one is taken")
    return bytes(value)


def checked_extras(
    payload: bytes, key: bytes | str | None, properties: Mapping[str, str] | None, ttl: int | None
) -> bytes | None:
    """Return the key as bytes. Raises for what could not be encoded later, in the midst of other messages' batch."""
    if isinstance(key, str):
        key = key.encode()
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"a key is bytes or str, not {type(key).__name__}")
    if properties:
        check_mapping("properties", properties)
    for name, value in (properties or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"properties are str to str, not {name!r}: {value!r}")
        (name + value).encode()  # raises UnicodeEncodeError for a lone surrogate
    if properties:
        check_mark(payload, properties)
    if ttl is not None:
        check_long("ttl in seconds", ttl, 1)
    return key


def outgoing_columns(
    values: Sequence[Any],
    codec: Codec[Any] | None = None,
    sequence_ids: Sequence[int | None] | None = None,
    keys: Sequence[bytes | str | None] | None = None,
    properties: Sequence[Mapping[str, str] | None] | None = None,
) -> tuple[list[bytes], list[int | None] | None, list[bytes | None] | None, list[Mapping[str, str] | None] | None]:
    """Make many messages: payloads, sequence ids, keys and properties. A column that is None has nothing for any of them.

    Raises as :func:`outgoing` does; InvalidRequest for a column of another length; TypeError for what is none.
    """
    values = _entries("values", values)
    count = len(values)
    sequence_ids = None if sequence_ids is None else _entries("sequence_ids", sequence_ids)
    keys = None if keys is None else _entries("keys", keys)
    properties = None if properties is None else _entries("properties", properties)
    for column, what in ((sequence_ids, "sequence ids"), (keys, "keys"), (properties, "properties")):
        if column is not None and len(column) != count:
            raise InvalidRequest(f"{len(column)} {what} for {count} messages")
    are_bytes = codec is None and set(map(type, values)) <= {bytes}
    payloads: list[bytes] = [*values] if are_bytes else [encode_value(value, codec) for value in values]
    check_longs("sequence_id", sequence_ids or ())
    numbers = [*sequence_ids] if sequence_ids else None
    if not keys and not properties:
        return payloads, numbers, None, None
    nothing = [None] * count
    given = zip(payloads, keys or nothing, properties or nothing, strict=True)
    return (
        payloads,
        numbers,
        [checked_extras(payload, key, each, None) for payload, key, each in given],
        [None if each is None else dict(each) for each in properties] if properties else None,
    )


def _entries(name: str, column: Sequence[X]) -> Sequence[X]:
    """Return what has an entry for each message: of an array of numpy, pandas or pyarrow the entries as Python's own.

    Raises TypeError for what would be other messages than meant: of a text its characters, of a table the names of its columns.
    """
    if type(column) is list or type(column) is tuple:
        return column
    if isinstance(column, str | bytes | bytearray | memoryview | Mapping | set | frozenset) or not hasattr(column, "__len__"):
        raise TypeError(f"{name} is a list, one entry for each message, not a {type(column).__name__}")
    if hasattr(column, "columns"):
        raise TypeError(f"{name} is a list, one entry for each message, not a table ({type(column).__name__}); give its rows")
    as_list = getattr(column, "tolist", None)
    return column if as_list is None else cast("list[X]", as_list())
