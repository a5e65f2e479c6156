"""Whether a value that was encoded is read back as it was, and where not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from numbers import Number
from typing import Any

from pydantic import BaseModel


def difference(given: Any, read: Any, *, fills_in: bool = False, at: str = "value") -> str | None:
    """Say where what was read is not equal to what was given; None where it is.

    Equal is what ``==`` says, with four exceptions. NaN equals NaN. Times with a zone are equal if they are the same instant: to
    Python one that the clock shows twice equals none in another zone. A model's private attributes are no part of it. With
    ``fills_in`` a mapping may be read with more keys than were given: the defaults of a schema.
    """
    if given is read or given == read or _alike(given, read):
        return None
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        for key in given:
            if key not in read:
                return f"{at} has the key {key!r}, which would be lost"
        if not fills_in and len(read) != len(given):
            return f"{at} would be read back with more keys than it has"
    elif type(given) is not type(read) or (_sized(given) and len(given) != len(read)):
        return _differs(at, given, read)
    parts = _parts(at, given, read)
    if parts is None:
        return _differs(at, given, read)
    found = (difference(a, b, fills_in=fills_in, at=where) for where, a, b in parts)
    return next((each for each in found if each is not None), None)


def _alike(given: Any, read: Any) -> bool:
    """Whether they are equal though ``==`` says that they are not."""
    if isinstance(given, datetime) and isinstance(read, datetime):
        return given.tzinfo is not None and read.tzinfo is not None and given.astimezone(UTC) == read.astimezone(UTC)
    return isinstance(given, Number) and isinstance(read, Number) and bool(given != given and read != read)


def _sized(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _parts(at: str, given: Any, read: Any) -> Iterator[tuple[str, Any, Any]] | None:
    """The parts of two values of one shape, with where each lies; None for values that have none."""
    if isinstance(given, Mapping):
        return ((f"{at}[{key!r}]", given[key], read[key]) for key in given)
    if _sized(given):
        return ((f"{at}[{index}]", a, b) for index, (a, b) in enumerate(zip(given, read, strict=True)))
    if isinstance(given, BaseModel):
        extra = (f"{at}.model_extra", given.model_extra or {}, read.model_extra or {})
        return iter([*_attributes(at, type(given).model_fields, given, read), extra])
    if is_dataclass(given):
        return _attributes(at, [each.name for each in fields(given) if each.compare], given, read)
    return None


def _attributes(at: str, names: Any, given: Any, read: Any) -> Iterator[tuple[str, Any, Any]]:
    return ((f"{at}.{name}", getattr(given, name), getattr(read, name)) for name in names)


def _differs(at: str, given: Any, read: Any) -> str:
    return f"{at} is {_shown(given)}, and would be read back as {_shown(read)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
