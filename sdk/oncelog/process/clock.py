"""The time that a client lives by: its deadlines, pauses and ages ask its clock, and no module of their own ``time``.

Chance is the standard library's, ``random`` and ``os.urandom`` (which ``uuid4`` draws from): whoever repeats a run seeds those.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Clock(NamedTuple):
    """Three functions, as those of :mod:`time`. On an event loop they are of the loop's time: timers there run by that."""

    monotonic: Callable[[], float]
    time: Callable[[], float]
    """Seconds since 1970."""
    sleep: Callable[[float], None]


REAL = Clock(time.monotonic, time.time, time.sleep)
