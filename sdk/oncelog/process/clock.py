"""The time that a client lives by: its deadlines, pauses and ages ask its clock, and no module of their own ``time``.

Chance is the standard library's, ``random`` and ``os.urandom`` (which ``uuid4`` draws from): whoever repeats a run seeds those.

A test that freezes the time (freezegun) puts functions of its own into every module that has those of :mod:`time`. Deadlines that
stood still would never end, so :data:`REAL` holds the machine's own, where nobody puts anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType
from typing import NamedTuple


class Clock(NamedTuple):
    """Three functions, as those of :mod:`time`. On an event loop they are of the loop's time: timers there run by that."""

    monotonic: Callable[[], float]
    time: Callable[[], float]
    """Seconds since 1970."""
    sleep: Callable[[float], None]


def _machines(function: Callable[[], float], clock: int) -> Callable[[], float]:
    """One of :mod:`time`, or what asks the same clock, where this is loaded while a function of Python stands there."""
    return function if isinstance(function, BuiltinFunctionType) else partial(time.clock_gettime, clock)


REAL = Clock(_machines(time.monotonic, time.CLOCK_MONOTONIC), _machines(time.time, time.CLOCK_REALTIME), time.sleep)
