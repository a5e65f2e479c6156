"""What must hold of an outbox: its topics have what was committed, once each, in the order that is promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Committed(NamedTuple):
    """A transaction that has committed."""

    began: float
    """Before its first statement."""
    committed: float
    """After its commit was acknowledged."""
    messages: Sequence[tuple[str, bytes]]
    """Topic and payload, each payload once, in the order in which they were added."""


def check(committed: Sequence[Committed], topic: str, log: Sequence[tuple[int | None, bytes]]) -> None:
    """``log``: sequence ids and payloads as they lie in the topic."""
    expected = Counter(payload for each in committed for name, payload in each.messages if name == topic)
    found = Counter(payload for _, payload in log)
    lost, more = list((expected - found).elements()), list((found - expected).elements())
    assert not lost, f"{len(lost)} committed messages are not in {topic}: {lost[:5]}"
    assert not more, f"{len(more)} messages in {topic} are there twice, or were never committed: {more[:5]}"
    numbers = [number for number, _ in log]
    assert numbers == sorted(set(numbers)), f"the sequence ids in {topic} do not rise"
    places = {payload: place for place, (_, payload) in enumerate(log)}
    spans = []
    for each in committed:
        mine = [places[payload] for name, payload in each.messages if name == topic]
        assert mine == sorted(mine), f"a transaction's messages changed places: {each.messages}"
        if mine:
            spans.append((each.began, each.committed, mine[0], mine[-1]))
    # Of two transactions, one of which began when the other had committed, that one comes behind the other.
    by_commit = sorted(spans, key=lambda span: span[1])
    at, highest = 0, -1
    for began, _, first, _ in sorted(spans):
        while at < len(by_commit) and by_commit[at][1] < began:
            highest = max(highest, by_commit[at][3])
            at += 1
        assert first > highest, "a transaction came before one that had committed before it began"
