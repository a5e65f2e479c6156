"""What must hold of transactions, as a client knows its own: each is wholly there or wholly not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

_ROLLED_BACK = ("aborted", "invalid")


@dataclass
class Attempt:
    """One transaction and what its client knows of it."""

    pointer: int
    topic: str
    producer: str
    payloads: list[str] = field(default_factory=list)
    """What it publishes and does not roll back by itself."""
    answered: Literal["committed", "aborted"] | None = None
    complete: bool = False
    """Every publish was acknowledged."""


def check_whole(attempts: Iterable[Attempt], seen: Sequence[str], states: Mapping[int, str]) -> None:
    """Each transaction is wholly there or wholly not, as its status says; nothing is there twice, nothing but what committed."""
    times, expected = Counter(seen), 0
    assert not times or max(times.values()) == 1, f"twice there: {times.most_common(3)}"
    for attempt in attempts:
        state = states[attempt.pointer]
        assert attempt.answered in (None, state), f"{attempt.pointer} was answered {attempt.answered} and is {state}"
        assert state in ("committed", *_ROLLED_BACK), state
        assert state != "committed" or attempt.complete, f"{attempt.pointer} is committed before its client asked for that"
        present = sum(payload in times for payload in attempt.payloads)
        wanted = len(attempt.payloads) if state == "committed" else 0
        assert present == wanted, f"{attempt.pointer} is {state}: {present} of {len(attempt.payloads)} messages are there"
        expected += wanted
    assert len(times) == expected, "there is something that no transaction committed"


def check_nothing_undecided(attempts: Iterable[Attempt], seen: Sequence[str], states: Mapping[int, str]) -> None:
    """Before anybody has cleaned up: a reader is given nothing of what has not committed."""
    given = set(seen)
    for attempt in attempts:
        if attempt.answered != "committed" and states[attempt.pointer] != "committed":
            shown = [payload for payload in attempt.payloads if payload in given]
            assert not shown, f"{attempt.pointer} has not committed, and is read: {shown[:3]}"
