"""How long a test waits for what must come about: long, since a machine may give it a tenth of a processor for a while.

Nothing here is a test's subject. Where a time is one (a lease that ends, a time-out that is answered), the test names it itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 180.0
"""Seconds for what takes a moment where nothing else runs. One that hangs is ended by this, and says so."""


def until(
    condition: Callable[[], T],
    what: str = "what was waited for",
    seconds: float = PATIENCE,
    every: float = 0.01,
    despite: tuple[type[Exception], ...] = (),
) -> T:
    """What the condition comes to, once that is true. Raises AssertionError when the time is over.

    ``despite``: errors that mean not yet.
    """
    deadline = time.monotonic() + seconds
    while True:
        error = None
        try:
            if found := condition():
                return found
        except despite as failure:
            error = failure
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}") from error
        time.sleep(every)
