"""Which part of a topic a filter asks for. Pure.

Offsets and times of publishing rise together along a topic, so bounds on either cut a range of offsets out, exactly. What is
taken here, Spark does not look at again; everything else stays with Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_NEVER_NULL = frozenset({"value", "topic", "partition", "offset", "timestamp", "message_id"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Window:
    """What is asked for of each topic; None: no bound."""

    topics: frozenset[str] | None = None
    first: int | None = None
    upto: int | None = None
    """Offsets from ``first`` to below ``upto``."""
    since: int | None = None
    before: int | None = None
    """Published in [since, before), in ms."""

    def narrowed(self, topics: frozenset[str] | None, first: int | None, upto: int | None) -> Window:
        """What is in this window and has these topics and offsets."""
        chosen = topics if self.topics is None else self.topics if topics is None else self.topics & topics
        return replace(self, topics=chosen, first=_later(self.first, first), upto=_earlier(self.upto, upto))

    def within(self, since: int | None, before: int | None) -> Window:
        """What is in this window and was published then."""
        return replace(self, since=_later(self.since, since), before=_earlier(self.before, before))


def push(filters: Iterable[Filter]) -> tuple[Window, list[Filter]]:
    """The window of all filters together, and those that Spark has to look at itself."""
    window, left = Window(), []
    for each in filters:
        narrower = _narrowed(window, each)
        if narrower is None:
            left.append(each)
        else:
            window = narrower
    return window, left


def _narrowed(window: Window, asked: Filter) -> Window | None:
    """None: not what a window can say."""
    match asked:
        case IsNotNull((column,)) if column in _NEVER_NULL:
            return window
        case EqualTo(("topic",), str(topic)):
            return window.narrowed(frozenset({topic}), None, None)
        case In(("topic",), topics) if all(isinstance(topic, str) for topic in topics):
            return window.narrowed(frozenset(topics), None, None)
        case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            return _bounded(window, asked)
    return None


def _bounded(window: Window, asked: EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual) -> Window | None:
    value = asked.value
    if asked.attribute == ("offset",) and isinstance(value, int) and not isinstance(value, bool):
        return window.narrowed(None, *_bounds(asked, value, value + 1))
    if asked.attribute == ("timestamp",) and isinstance(value, datetime) and value.tzinfo is not None:
        # A message's time is a whole millisecond, the filter's may lie between two.
        behind = (value - _EPOCH) // timedelta(milliseconds=1) + 1
        return window.within(*_bounds(asked, -((_EPOCH - value) // timedelta(milliseconds=1)), behind))
    return None


def _bounds(asked: Filter, at: int, behind: int) -> tuple[int | None, int | None]:
    """``at``: the first that is equal or greater; ``behind``: the first that is greater."""
    match asked:
        case GreaterThan():
            return behind, None
        case GreaterThanOrEqual():
            return at, None
        case LessThan():
            return None, at
        case LessThanOrEqual():
            return None, behind
    return at, behind


def _later(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
