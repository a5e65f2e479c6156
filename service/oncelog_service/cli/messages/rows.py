"""What one row of a file is as a message: its payload, key, properties and number. Pure.

Invariant: all of it is a function of the row alone. It does not depend on how often the file is published, on what the topic has
already, or on rows behind it. So a row that is sent again under its sequence id has the bytes that it had before.
"""

from __future__ import annotations

import base64
import json
from binascii import Error
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from oncelog.errors import InvalidRequest

_LARGEST = 2**63 - 1
OFFSET = "offset"
"""The column that numbers the messages of a topic. They are counted from 0 again when it is made anew."""
MESSAGE_ID = "message_id"
"""The column that shows that a file of any columns is one of messages."""


class Row(NamedTuple):
    """A message to be."""

    payload: bytes
    number: int | None = None
    """Its sequence id, where the row says it itself."""
    key: bytes | None = None
    properties: Mapping[str, str] | None = None
    ttl: int | None = None
    """Seconds that it lives, where the row says it itself."""


class Columns(NamedTuple):
    """Which of a row's columns is what."""

    payload: str | None = None
    """None: the whole row, as a JSON object."""
    key: str | None = None
    number: str | None = None
    properties: tuple[str, ...] = ()
    uncommitted: bool = False
    """Whether messages are taken that `oncelog read` shows as undecided or rolled back, too."""
    generation: int | None = None
    """Of the topic that messages were read from; None: where offsets number them, and they say one, it is the first."""

    @property
    def named(self) -> list[str]:
        """All that are named."""
        return [name for name in (self.payload, self.key, self.number, *self.properties) if name is not None]


def by_columns(members: Mapping[str, Any], columns: Columns, whole: bytes | None = None) -> Row:
    """A row whose columns have any names. ``whole``: the row as it stands in the file, if that can be a payload.

    Raises InvalidRequest.
    """
    if MESSAGE_ID in members and columns.payload is not None:  # else a column of that name is the file's own
        check_committed(members, columns)
    if MESSAGE_ID in members or columns.generation is not None:  # likewise
        check_generation(members, columns)
    if columns.payload is not None:
        payload = _bytes(columns.payload, _member(members, columns.payload))
    else:
        payload = as_json(members) if whole is None else whole
    key = None if columns.key is None else _member(members, columns.key)
    properties = {name: _text(name, value) for name in columns.properties if (value := _member(members, name)) is not None}
    number = None if columns.number is None else as_number(columns.number, _member(members, columns.number))
    return Row(payload, number, None if key is None else _bytes(str(columns.key), key), properties or None)


def check_committed(members: Mapping[str, Any], columns: Columns) -> None:
    """Raises InvalidRequest for a message that `oncelog read` shows as undecided or rolled back: it would become a fact."""
    if (state := members.get("state") or None) not in (None, "committed") and not columns.uncommitted:
        raise InvalidRequest(f"is a message whose state is {str(state)[:50]!r}: it is published with --uncommitted only")


def check_generation(members: Mapping[str, Any], columns: Columns) -> None:
    """Raises InvalidRequest for a message of another generation of its topic: under its number another one may be there."""
    wanted, found = columns.generation, members.get("generation")
    if found in (None, ""):
        if wanted is not None:
            raise InvalidRequest("does not say of which generation of its topic it is")
    elif (columns.number == OFFSET or wanted is not None) and str(found) != str(wanted or 1):
        raise InvalidRequest(
            f"is of generation {str(found)[:50]} of its topic, not {wanted or 1}: its number may be that of another message; "
            f"publish it under a --producer that has published no other, with --source-generation {str(found)[:50]}"
        )


def as_message(members: Mapping[str, Any], columns: Columns) -> Row:
    """A row with the members that `oncelog read` gives a message. Raises InvalidRequest."""
    check_committed(members, columns)
    check_generation(members, columns)
    number = columns.number
    payload = _text_or_base64(members, "payload")
    if payload is None:
        raise InvalidRequest("has neither payload nor payload_base64")
    properties = members.get("properties") or None
    if properties is not None and not (
        isinstance(properties, dict) and all(isinstance(each, str) for each in properties.values())
    ):
        raise InvalidRequest("its properties are no object of texts")
    id_ = None if number is None else as_number(number, _member(members, number))
    return Row(payload, id_, _text_or_base64(members, "key"), properties, _seconds(members.get("ttl")))


def as_object(line: bytes) -> dict[str, Any]:
    """A line that is a JSON object. Raises InvalidRequest."""
    try:
        value = json.loads(line.decode())  # of bytes it would guess the encoding
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("is no JSON object")
    return value


def as_json(members: Mapping[str, Any]) -> bytes:
    """A row as JSON. Numbers and texts stay what they are, times are ISO, decimals texts, bytes base64. Raises InvalidRequest."""
    try:
        return json.dumps(members, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain).encode()
    except ValueError as error:  # not a number, or half a surrogate pair
        raise InvalidRequest(f"cannot be JSON: {error}") from None


def as_number(name: str, value: Any) -> int:
    """A sequence id. Raises InvalidRequest."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise InvalidRequest(f"{name} is no sequence id: {str(value)[:100]!r}")
    return value


def _seconds(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:  # as CSV has it
        value = int(value)
    if value is not None and (type(value) is not int or not 0 < value <= _LARGEST):
        raise InvalidRequest(f"its ttl is no number of seconds above 0: {str(value)[:100]!r}")
    return value


def _member(members: Mapping[str, Any], name: str) -> Any:
    if name not in members:
        raise InvalidRequest(f"has no {name}")
    return members[name]


def _bytes(name: str, value: Any) -> bytes:
    match value:
        case bytes():
            return value
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise InvalidRequest(f"{name} is no text that UTF-8 can say") from None
        case int() if not isinstance(value, bool):
            return str(value).encode()
    raise InvalidRequest(f"{name} is neither text nor bytes nor a whole number: {str(value)[:100]!r}")


def _text(name: str, value: Any) -> str:
    try:
        return _bytes(name, value).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is no UTF-8, as a property must be") from None


def _text_or_base64(members: Mapping[str, Any], name: str) -> bytes | None:
    text, coded = members.get(name), members.get(f"{name}_base64")
    if text is not None:
        if not isinstance(text, str):
            raise InvalidRequest(f"its {name} is no text")
        return _bytes(name, text)
    if coded is None:
        return None
    try:
        return base64.b64decode(coded, validate=True)
    except (Error, TypeError, ValueError):
        raise InvalidRequest(f"its {name}_base64 is no base64") from None


def _plain(value: Any) -> Any:
    match value:
        case date() | time():  # datetime is a date
            return value.isoformat()
        case Decimal() | timedelta():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)
