"""Which values an Avro schema reads back equal for certain, as far as a look at them can tell. Pure.

A rule says yes to values of Python's own types that fit the schema and lose nothing in it. What it cannot judge may be equal all
the same: that is read back. So a rule need not know everything (a decimal, a union of several types, a schema that refers to
itself, a logical type of somebody's own), but its yes must be true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from struct import pack, unpack
from typing import Any
from uuid import UUID

Rule = Callable[[Any], bool]


def rule_of(schema: Any) -> Rule:
    """The rule of a schema that fastavro has parsed."""
    return _rule(schema, {}) or _never


def _never(value: Any) -> bool:
    return False


def _rule(schema: Any, named: dict[str, Rule]) -> Rule | None:
    """None: no value of this schema can be judged. ``named``: the rules of the types that it may refer to."""
    if isinstance(schema, str):
        return _PRIMITIVE.get(schema) or named.get(schema)
    if isinstance(schema, list):
        return _nullable(schema, named)
    kind = schema["type"]
    if "logicalType" in schema:
        return _LOGICAL.get(f"{kind}-{schema['logicalType']}")
    make = _MADE.get(kind) if isinstance(kind, str) else None
    rule = _rule(kind, named) if make is None else make(schema, named)
    if rule is not None and "name" in schema:
        named[schema["name"]] = rule
    return rule


def _nullable(schema: list[Any], named: dict[str, Rule]) -> Rule | None:
    """Of several types the writer may take another one than the value's, which rounds."""
    others = [each for each in schema if each != "null"]
    inner = _rule(others[0], named) if len(others) == 1 else None
    return None if inner is None else lambda value: value is None or inner(value)


def _array(schema: Mapping[str, Any], named: dict[str, Rule]) -> Rule | None:
    item = _rule(schema["items"], named)
    return None if item is None else lambda value: type(value) is list and all(map(item, value))


def _map(schema: Mapping[str, Any], named: dict[str, Rule]) -> Rule | None:
    item = _rule(schema["values"], named)
    return item and (lambda value: type(value) is dict and all(map(_text, value)) and all(map(item, value.values())))


def _record(schema: Mapping[str, Any], named: dict[str, Rule]) -> Rule | None:
    fields = [(each["name"], _rule(each["type"], named), "default" in each) for each in schema["fields"]]
    known = [(name, rule, optional) for name, rule, optional in fields if rule is not None]
    if len(known) < len(fields):
        return None

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return False
        found = 0
        for name, rule, optional in known:
            if name in value:
                if not rule(value[name]):
                    return False
                found += 1
            elif not optional:
                return False
        return found == len(value)

    return fits


def _enum(schema: Mapping[str, Any], named: dict[str, Rule]) -> Rule:
    symbols = frozenset(schema["symbols"])
    return lambda value: type(value) is str and value in symbols


def _fixed(schema: Mapping[str, Any], named: dict[str, Rule]) -> Rule:
    size = schema["size"]
    return lambda value: type(value) is bytes and len(value) == size


def _text(value: Any) -> bool:
    return type(value) is str


def _aware(value: Any) -> bool:
    return type(value) is datetime and value.utcoffset() is not None


def _naive(value: Any) -> bool:
    return type(value) is datetime and value.tzinfo is None


_MADE: dict[str, Callable[[Mapping[str, Any], dict[str, Rule]], Rule | None]] = {
    "array": _array,
    "map": _map,
    "record": _record,
    "enum": _enum,
    "fixed": _fixed,
}
_PRIMITIVE: dict[str, Rule] = {
    "null": lambda value: value is None,
    "boolean": lambda value: type(value) is bool,
    "int": lambda value: type(value) is int and -(2**31) <= value < 2**31,
    "long": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "float": lambda value: type(value) is float and (value != value or unpack("f", pack("f", value))[0] == value),
    "double": lambda value: type(value) is float or (type(value) is int and -(2**53) <= value <= 2**53),
    "bytes": lambda value: type(value) is bytes,
    "string": _text,
}
_LOGICAL: dict[str, Rule] = {
    "long-timestamp-millis": lambda value: _aware(value) and not (value.microsecond % 1000 or value.utcoffset().microseconds),
    "long-timestamp-micros": lambda value: _aware(value),
    "long-local-timestamp-millis": lambda value: _naive(value) and not value.microsecond % 1000,
    "long-local-timestamp-micros": lambda value: _naive(value),
    "int-time-millis": lambda value: type(value) is time and value.tzinfo is None and not value.microsecond % 1000,
    "long-time-micros": lambda value: type(value) is time and value.tzinfo is None,
    "int-date": lambda value: type(value) is date,
    "string-uuid": lambda value: type(value) is UUID,
}
