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


LEAST, MOST = -(2**63), 2**63
"""Of offsets and of times in ms: bounds that keep nothing out."""


@dataclass(frozen=True)
class Window:
    """What is asked for of each topic."""

    topics: frozenset[str] | None = None
    """None: all."""
    first: int = LEAST
    upto: int = MOST
    """Offsets from ``first`` to below ``upto``."""
    since: int = LEAST
    before: int = MOST
    """Published in [since, before), in ms."""

    def of_topics(self, topics: frozenset[str]) -> Window:
        """What is in this window and in one of these topics."""
        return replace(self, topics=topics if self.topics is None else self.topics & topics)


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
            return window.of_topics(frozenset({topic}))
        case In(("topic",), topics) if all(isinstance(topic, str) for topic in topics):
            return window.of_topics(frozenset(topics))
        case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            return _bounded(window, asked)
    return None


def _bounded(window: Window, asked: EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual) -> Window | None:
    value = asked.value
    if asked.attribute == ("offset",) and isinstance(value, int) and not isinstance(value, bool):
        first, upto = _bounds(asked, value, value + 1)
        return replace(window, first=max(window.first, first), upto=min(window.upto, upto))
    if asked.attribute == ("timestamp",) and isinstance(value, datetime) and value.tzinfo is not None:
        # A message's time is a whole millisecond, the filter's may lie between two.
        at, behind = -((_EPOCH - value) // timedelta(milliseconds=1)), (value - _EPOCH) // timedelta(milliseconds=1) + 1
        since, before = _bounds(asked, at, behind)
        return replace(window, since=max(window.since, since), before=min(window.before, before))
    return None


def _bounds(asked: Filter, at: int, behind: int) -> tuple[int, int]:
    """``at``: the first that is equal or greater; ``behind``: the first that is greater."""
    match asked:
        case GreaterThan():
            return behind, MOST
        case GreaterThanOrEqual():
            return at, MOST
        case LessThan():
            return LEAST, at
        case LessThanOrEqual():
            return LEAST, behind
    return at, behind
