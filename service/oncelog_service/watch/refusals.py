"""Remembers what was refused lately that an operator would want to know: fences, gaps, damage, load. Pure, and bounded.

Refusals of one thing that follow on each other within minutes are one entry, which counts them. When the memory is full, the
entry that was quiet for longest goes: what is refused now is never what is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from oncelog.errors import (
    ConsumerFenced,
    OncelogError,
    ProducerFenced,
    QuotaExceeded,
    SequenceGap,
    TopicDamaged,
)
from oncelog_service.watch.facts import Refused
from oncelog_service.watch.rules import LATELY_MS

MOST = 200
"""Entries: more things than that are not told apart by anybody."""
_DETAIL = 300
"""Characters of a refusal that are kept."""

_Key = tuple[str, str, str, str, str]

_NAMED: Mapping[type[OncelogError], tuple[str, str, str]] = {
    ProducerFenced: ("producer", "epoch", "current_epoch"),
    ConsumerFenced: ("subscription", "epoch", "current_epoch"),
    SequenceGap: ("producer", "received", "expected"),
    QuotaExceeded: ("quota", "", ""),
    TopicDamaged: ("", "", ""),
}
"""What is remembered, and which of its values name the thing, what was refused, and what would have been taken."""


class Refusals:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._found: OrderedDict[_Key, Refused] = OrderedDict()
        """The one that was refused last is the last."""

    def note(self, error: BaseException, at_ms: int, names: Mapping[str, str], who: str) -> None:
        """Remember a refusal, if it is of a kind that matters. ``names``: of the address; ``who``: was refused."""
        if not isinstance(error, OncelogError) or type(error) not in _NAMED:
            return
        kind = type(error)
        name, refused, newest = (_text(getattr(error, each, None)) if each else "" for each in _NAMED[kind])
        if isinstance(error, ProducerFenced) and error.incarnation is not None:
            refused, newest = _text(error.incarnation), _text(error.current_incarnation)
        namespace, topic = names.get("namespace", ""), names.get("topic", "")
        key = (error.code, namespace, topic, name, refused if kind is not SequenceGap else "")
        before = self._found.pop(key, None)
        if before is not None and kind is not TopicDamaged and at_ms - before.last_ms >= LATELY_MS:
            before = None
        self._found[key] = Refused(
            code=error.code,
            first_ms=at_ms if before is None else before.first_ms,
            last_ms=at_ms,
            times=1 if before is None else before.times + 1,
            namespace=namespace,
            topic=topic,
            name=name,
            refused=refused,
            newest=newest,
            detail=error.detail[:_DETAIL],
            who=who,
        )
        while len(self._found) > MOST:
            self._found.popitem(last=False)

    def lately(self, now_ms: int) -> tuple[Refused, ...]:
        """All that were refused within the last minutes, and the topics that are damaged; what is older is forgotten."""
        for key, each in list(self._found.items()):
            if each.code != TopicDamaged.code and now_ms - each.last_ms >= LATELY_MS:
                del self._found[key]
        return tuple(self._found.values())

    @property
    def damaged(self) -> list[tuple[str, str]]:
        """(namespace, topic) of those that were met damaged."""
        return [(each.namespace, each.topic) for each in self._found.values() if each.code == TopicDamaged.code and each.topic]

    def mended(self, topics: Collection[tuple[str, str]]) -> None:
        """These topics are gone, or whole again."""
        for key, each in list(self._found.items()):
            if each.code == TopicDamaged.code and (each.namespace, each.topic) in topics:
                del self._found[key]


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:249]
