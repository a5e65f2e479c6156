"""Whether a value that was encoded is read back as it was, and where not. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
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

    What a field holds that its model does not show (``repr=False``) is not told either.
    """
    if given is read or given == read or _alike(given, read):
        return None
    parts: Iterable[_Part] | None = None
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        for key in given:
            if key not in read:
                return f"{at} has the key {_short(key)}, which would be lost"
        if not fills_in and len(read) != len(given):
            return f"{at} would be read back with more keys than it has"
        parts = _items(at, given, read)
    elif type(given) is type(read) and not (_is_row(given) and len(given) != len(read)):
        parts = _parts(at, given, read)
    if parts is None:
        return f"{at} is {_short(given)}, and would be read back as {_short(read)}"
    for where, a, b, shown in parts:
        if found := difference(a, b, fills_in=fills_in, at=where):
            return found if shown else f"{where} would not be read back as it is"
    return None


def _alike(given: Any, read: Any) -> bool:
    """Whether they are equal though ``==`` says that they are not."""
    if isinstance(given, datetime) and isinstance(read, datetime):
        return given.tzinfo is not None and read.tzinfo is not None and given.astimezone(UTC) == read.astimezone(UTC)
    if isinstance(given, Set) and isinstance(read, Set):
        return len(given) == len(read) and {each for each in given if each == each} == {each for each in read if each == each}
    return isinstance(given, Number) and isinstance(read, Number) and bool(given != given and read != read)


_Part = tuple[str, Any, Any, bool]
"""Where a part of two values lies, what it is in each, and whether errors may show it."""


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple | deque)


def _items(at: str, given: Mapping[Any, Any], read: Mapping[Any, Any]) -> Iterator[_Part]:
    return ((f"{at}[{_short(key)}]", given[key], read[key], True) for key in given)


def _parts(at: str, given: Any, read: Any) -> Iterable[_Part] | None:
    """The parts of two values of one type and length; None for values that have none."""
    if _is_row(given):
        return ((f"{at}[{index}]", a, b, True) for index, (a, b) in enumerate(zip(given, read, strict=True)))
    if isinstance(given, BaseModel):
        extra = (f"{at}.model_extra", given.model_extra or {}, read.model_extra or {}, True)
        return [*_attributes(at, ((name, each.repr) for name, each in type(given).model_fields.items()), given, read), extra]
    if is_dataclass(given):
        return _attributes(at, ((each.name, each.repr) for each in fields(given) if each.compare), given, read)
    return None


def _attributes(at: str, names: Iterable[tuple[str, bool]], given: Any, read: Any) -> Iterator[_Part]:
    return ((f"{at}.{name}", getattr(given, name), getattr(read, name), shown) for name, shown in names)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 75 else text[:72] + "..."
