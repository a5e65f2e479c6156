"""The only place of a service that asks the time. Everything else is handed a clock.

It is the machine's own time, also in a process whose test has frozen that of its modules (see :mod:`oncelog.process.clock`).

What blocks a thread for a disk or a command has no part in that; tests/test_tidy.py lists it.
"""

from __future__ import annotations

import time
from typing import Protocol

from oncelog.process import clock as client

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's CLOCK_MONOTONIC stops while the machine is suspended; a lease does not."""


class Clock(Protocol):
    """Three clocks: one to stamp messages with, one to measure spans with, one that counts as whoever sleeps does."""

    def now_ms(self) -> int:
        """Milliseconds since 1970. Never goes back within one process: an expired message stays expired."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that is not set, and goes on while this process, or the machine, is stopped."""
        ...

    def elapsed(self) -> float:
        """Seconds on the clock by which an event loop and a worker sleep: for pauses, and for how long a call took."""
        ...

    def behind_ms(self) -> int:
        """How far the machine's clock was set back: it is so far behind what :meth:`now_ms` has answered."""
        ...


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._last_ms = 0

    def now_ms(self) -> int:
        now_ms = self._machine_ms()
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        return self._last_ms

    def monotonic(self) -> float:
        return time.clock_gettime(_CLOCK)

    def elapsed(self) -> float:
        return client.REAL.monotonic()

    def behind_ms(self) -> int:
        return max(0, self._last_ms - self._machine_ms())

    def _machine_ms(self) -> int:
        """Milliseconds since 1970, as the machine says: they go back where its clock is set."""
        return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


class RunningClock:
    """The time as it would be had the clock not been set at all since this was made: for what must end neither early nor late."""

    __slots__ = ("_began", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now_ms(), clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since 1970, as the clock said at the beginning, and what has passed since."""
        began_ms, began = self._began
        return began_ms + round((self._clock.monotonic() - began) * 1000)


class SteadyClock(RunningClock):
    """The time as it would be had the clock not been set forward since this was made: for what must not end or age early."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since 1970; behind the clock itself where that was set forward, never ahead of it."""
        return min(self._clock.now_ms(), super().now_ms())


def of_clients(clock: Clock) -> client.Clock:
    """The clock that the SDK goes by where a service is the client of another one."""
    return client.Clock(clock.elapsed, lambda: clock.now_ms() / 1000, time.sleep)
