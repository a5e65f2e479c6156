"""Avro's JSON encoding, for the fixed schemas of this package: strict on input, tagged on output.

Bytes are strings of the characters U+0000 to U+00FF. A union value is ``null`` or ``{"branch": value}``; on input the tag may be
left out where the value says which branch is meant. ``true`` is no number, ``1.0`` and ``"5"`` are no long.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from typing import Any

_MIN, _MAX = -(2**63), 2**63 - 1
_MIN_INT, _MAX_INT = -(2**31), 2**31 - 1


class JsonMismatch(ValueError):
    """The JSON value does not fit the schema."""


def _name(schema: Any) -> str:
    return schema if isinstance(schema, str) else schema.get("name") or schema["type"]


def _kind(schema: Any) -> str:
    return schema if isinstance(schema, str) else schema["type"]


def from_json(value: Any, schema: Any, path: str = "$") -> Any:
    """The Python value that fastavro would have decoded. Raises JsonMismatch naming the place."""
    if isinstance(schema, list):
        return _union_from_json(value, schema, path)
    return _READERS[_kind(schema)](value, schema, path)


def _union_from_json(value: Any, branches: list[Any], path: str) -> Any:
    if value is None:
        if "null" in branches:
            return None
        raise JsonMismatch(f"{path} must not be null")
    tag, inner = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (None, None)
    readings = [(inner, branch, f"{path}.{tag}") for branch in branches if _name(branch) == tag]
    readings += [(value, branch, path) for branch in branches if branch != "null"]  # {"map": "b"} may be a map without its tag
    failures = []
    for reading in readings:
        try:
            return from_json(*reading)
        except JsonMismatch as mismatch:
            failures.append(str(mismatch))
    raise JsonMismatch("; ".join(failures))


def _integer(value: Any, low: int, high: int, path: str) -> int:
    if type(value) is not int:  # bool is an int to isinstance; a sequence id of true was taken elsewhere
        raise JsonMismatch(f"{path} must be an integer, not {_show(value)}")
    if not low <= value <= high:
        raise JsonMismatch(f"{path} must be between {low} and {high}, not {_show(value)}")
    return value


def _bytes(value: Any, path: str) -> bytes:
    if not isinstance(value, str):
        raise JsonMismatch(f"{path} must be a string, not {_show(value)}")
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError as error:
        raise JsonMismatch(f"{path} is bytes: characters U+0000 to U+00FF only, not {_show(value[error.start])}") from error


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise JsonMismatch(f"{path} must be a string, not {_show(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise JsonMismatch(f"{path} holds half of a surrogate pair") from error
    return value


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise JsonMismatch(f"{path} must be true or false, not {_show(value)}")
    return value


def _null(value: Any, path: str) -> None:
    if value is not None:
        raise JsonMismatch(f"{path} must be null, not {_show(value)}")


def _record(value: Any, schema: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise JsonMismatch(f"{path} must be an object, not {_show(value)}")
    fields = {field["name"]: field for field in schema["fields"]}
    unknown = value.keys() - fields.keys()
    if unknown:
        raise JsonMismatch(f"{path} has no field {_show(min(unknown))}; it has {', '.join(fields)}")
    record = {}
    for name, field in fields.items():
        if name in value:
            record[name] = from_json(value[name], field["type"], f"{path}.{name}")
        elif "default" in field:
            record[name] = copy(field["default"])  # else filling the empty list of one body would fill the schema's
        elif isinstance(field["type"], list) and "null" in field["type"]:
            record[name] = None
        else:
            raise JsonMismatch(f"{path} lacks the field {name!r}")
    return record


def _enum(value: Any, schema: Any, path: str) -> str:
    if value not in schema["symbols"]:
        raise JsonMismatch(f"{path} must be one of {', '.join(schema['symbols'])}, not {_show(value)}")
    symbol: str = value
    return symbol


def _array(value: Any, schema: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise JsonMismatch(f"{path} must be an array, not {_show(value)}")
    return [from_json(item, schema["items"], f"{path}[{index}]") for index, item in enumerate(value)]


def _map(value: Any, schema: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise JsonMismatch(f"{path} must be an object, not {_show(value)}")
    return {_string(key, path): from_json(item, schema["values"], f"{path}.{_show(key)}") for key, item in value.items()}


_READERS: dict[str, Callable[[Any, Any, str], Any]] = {
    "long": lambda value, _, path: _integer(value, _MIN, _MAX, path),
    "int": lambda value, _, path: _integer(value, _MIN_INT, _MAX_INT, path),
    "bytes": lambda value, _, path: _bytes(value, path),
    "string": lambda value, _, path: _string(value, path),
    "boolean": lambda value, _, path: _boolean(value, path),
    "null": lambda value, _, path: _null(value, path),
    "record": _record,
    "enum": _enum,
    "array": _array,
    "map": _map,
}


def holds_more_values(text: bytes, most: int) -> bool:
    """Whether a JSON text has more values than this, by its commas and brackets, without parsing it.

    Those within strings do not count. Strings are only looked for where all that there are would be too many, and the first one
    too many ends it.
    """
    parts = range(0, len(text), AT_ONCE_BYTES)
    if sum(text.count(each, at, at + AT_ONCE_BYTES) for at in parts for each in _BEGINS_A_VALUE) < most:
        return False
    values, at = 1, 0
    for string in _STRING.finditer(text):
        values += sum(text.count(each, at, string.start()) for each in _BEGINS_A_VALUE)
        if values > most:
            return True
        at = string.end()
    return values + sum(text.count(each, at) for each in _BEGINS_A_VALUE) > most


AT_ONCE_BYTES = 256 * 2**10
"""Of a text that is looked at in one call of a function in C: another thread can have the interpreter between two."""
_BEGINS_A_VALUE = (b",", b"[", b"{")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""One that is not closed goes on to the end."""


def _show(value: Any) -> str:
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    text = ascii(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def to_json(value: Any, schema: Any) -> Any:
    """The JSON value of what fastavro would encode."""
    if isinstance(schema, list):
        if value is None:
            return None
        branch = next(branch for branch in schema if _fits(value, branch))
        return {_name(branch): to_json(value, branch)}
    kind = _kind(schema)
    if kind == "bytes":
        return bytes(value).decode("latin-1")
    if kind == "record":
        return {field["name"]: to_json(value.get(field["name"]), field["type"]) for field in schema["fields"]}
    if kind == "array":
        return [to_json(item, schema["items"]) for item in value]
    if kind == "map":
        return {key: to_json(item, schema["values"]) for key, item in value.items()}
    return value


_FITS: dict[str, type | tuple[type, ...]] = {
    "bytes": (bytes, bytearray, memoryview),
    "string": str,
    "long": int,
    "int": int,
    "array": (list, tuple),
    "map": dict,
}


def _fits(value: Any, branch: Any) -> bool:
    return isinstance(value, _FITS.get(_kind(branch), ()))
