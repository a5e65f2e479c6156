"""Kinds of load in short turns, one after the other, again and again: what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

TURN_SECONDS = 0.4
"""Long against a request and the 50 ms for which a snapshot may be put off, short against what else runs on the machine."""

Turn = Callable[[float], int]
"""Load for so many seconds; how many calls that were."""


class Reached(NamedTuple):
    """In one turn."""

    rate: float
    """Calls a second."""
    processor_ms: float
    """That the server took for each."""


class Turns:
    """Of each kind, what every turn reached. Turns of the same number ran one after the other."""

    def __init__(self, reached: Mapping[str, list[Reached]]) -> None:
        self._reached = reached

    def rate(self, kind: str) -> float:
        """The median, in calls a second."""
        return statistics.median(each.rate for each in self._reached[kind])

    def processor_ms(self, kind: str) -> float:
        """The median for one call. Steadier than the rate where others use the machine."""
        return statistics.median(each.processor_ms for each in self._reached[kind])

    def share(self, kind: str, base: str) -> float:
        """The median of the rates of ``kind``, each as a part of that of ``base`` in the same round."""
        pairs = zip(self._reached[kind], self._reached[base], strict=True)
        return statistics.median(one.rate / other.rate for one, other in pairs)


def in_turns(turns: Mapping[str, Turn], processor_seconds: Mapping[str, Callable[[], float]], seconds: float) -> Turns:
    """Run each kind for about ``seconds`` altogether. A first round is not counted.

    ``processor_seconds``: of each kind, what its server has used until now.
    """
    reached: dict[str, list[Reached]] = {kind: [] for kind in turns}
    kinds = list(turns)
    for turn in turns.values():
        turn(TURN_SECONDS)
    for _ in range(max(1, round(seconds / TURN_SECONDS))):
        for kind in kinds:
            used, began = processor_seconds[kind](), time.perf_counter()
            calls = turns[kind](TURN_SECONDS)
            span, used = time.perf_counter() - began, processor_seconds[kind]() - used
            reached[kind].append(Reached(calls / span, used / calls * 1000))
        kinds.append(kinds.pop(0))  # nobody always follows on the same one
    return Turns(reached)


def repeat(call: Callable[[], None], seconds: float) -> int:
    """One call after the other; how many."""
    calls, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()
        calls += 1
    return calls
