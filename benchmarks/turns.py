"""Kinds of load in short turns, one after the other, again and again: what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

TURN_SECONDS = 0.4
"""Long against a request and the 50 ms for which a snapshot may be put off, short against what else runs on the machine."""


class Calls(NamedTuple):
    """What was done in one turn."""

    spans: Sequence[float]
    """Seconds that each call took, from its beginning to its answer."""
    seconds: float
    """From the first beginning to the last answer."""

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.spans) / self.seconds


Turn = Callable[[float], Calls]
"""Load for about so many seconds."""


class Reached(NamedTuple):
    """In one turn."""

    rate: float
    """Calls a second."""
    processor_ms: float
    """That the server took for each."""
    client_ms: float
    """That this process, and what it had do the calls, took for each."""
    p50_ms: float
    """Of a call."""


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

    def client_ms(self, kind: str) -> float:
        """The same of the client."""
        return statistics.median(each.client_ms for each in self._reached[kind])

    def p50_ms(self, kind: str) -> float:
        """The median of the turns' medians of one call."""
        return statistics.median(each.p50_ms for each in self._reached[kind])

    def share(self, kind: str, base: str) -> float:
        """The median of the rates of ``kind``, each as a part of that of ``base`` in the same round."""
        return statistics.median(one.rate / other.rate for one, other in self._pairs(kind, base))

    def times_as_long(self, kind: str, base: str) -> float:
        """The median of the times that a call of ``kind`` takes, each as a part of that of ``base`` in the same round."""
        return statistics.median(one.p50_ms / other.p50_ms for one, other in self._pairs(kind, base))

    def times_as_much(self, kind: str, base: str) -> float:
        """The median of what a call of ``kind`` takes of its server's processor, each as a part of that of ``base``, likewise."""
        return statistics.median(one.processor_ms / other.processor_ms for one, other in self._pairs(kind, base))

    def _pairs(self, kind: str, base: str) -> Iterator[tuple[Reached, Reached]]:
        return zip(self._reached[kind], self._reached[base], strict=True)


def in_turns(
    turns: Mapping[str, Turn],
    processor_seconds: Mapping[str, Callable[[], float]],
    seconds: float,
    *,
    client_seconds: Mapping[str, Callable[[], float]] = MappingProxyType({}),
    first_seconds: float = TURN_SECONDS,
) -> Turns:
    """Run each kind for about ``seconds`` altogether. A first turn of each is not counted.

    ``processor_seconds``: of each kind, what its server has used until now.
    ``client_seconds``: the same of its client, where that is a process that goes on beyond its turn.
    """
    reached: dict[str, list[Reached]] = {kind: [] for kind in turns}
    kinds = list(turns)
    for turn in turns.values():
        turn(first_seconds)
    for _ in range(max(1, round(seconds / TURN_SECONDS))):
        for kind in kinds:
            client = client_seconds.get(kind, _own_processor_seconds)
            used, of_client = processor_seconds[kind](), client()
            calls = turns[kind](TURN_SECONDS)
            of_client = client() - of_client
            used, count = processor_seconds[kind]() - used, len(calls.spans)
            p50_ms = statistics.median(calls.spans) * 1000
            reached[kind].append(Reached(calls.rate, used / count * 1000, of_client / count * 1000, p50_ms))
        kinds.append(kinds.pop(0))  # nobody always follows on the same one
    return Turns(reached)


def _own_processor_seconds() -> float:
    """Of this process and of those it has waited for."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system


def repeat(call: Callable[[], object], seconds: float) -> Calls:
    """One call after the other, one at least."""
    spans = []
    started = began = time.perf_counter()
    while not spans or began < started + seconds:
        call()
        spans.append(time.perf_counter() - began)
        began = time.perf_counter()
    return Calls(spans, began - started)


def at_once(calls: Sequence[Callable[[], object]]) -> Turn:
    """Each again and again on a thread of its own."""

    def turn(seconds: float) -> Calls:
        began = time.perf_counter()
        with ThreadPoolExecutor(len(calls)) as pool:
            done = list(pool.map(lambda call: repeat(call, seconds), calls))
        return Calls([span for each in done for span in each.spans], time.perf_counter() - began)

    return turn
