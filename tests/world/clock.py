"""Clocks that a test sets: a service's, and a client's."""

from __future__ import annotations

import time
from collections.abc import Callable

from oncelog.process.clock import REAL, Clock


def later(seconds: Callable[[], float]) -> Clock:
    """A client's clock that is so far ahead of this machine's."""
    return Clock(lambda: REAL.monotonic() + seconds(), lambda: REAL.time() + seconds(), REAL.sleep)


def passing() -> Clock:
    """A client's clock by which nobody sleeps: it is ahead of this machine's by all that was slept."""
    slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds

    return later(lambda: slept)._replace(sleep=sleep)


class ManualClock:
    """A clock that goes only when told to, backwards too; for whoever sleeps, as the machine's."""

    def __init__(self, now_ms: int = 1_790_000_000_000) -> None:
        self.ms = now_ms
        self.seconds = 0.0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds

    def elapsed(self) -> float:
        """Whoever sleeps sleeps really."""
        return time.perf_counter()

    def behind_ms(self) -> int:
        return 0

    def advance(self, ms: int) -> None:
        self.ms += ms
        self.seconds += ms / 1000
