"""Keeps the tasks of the service going: an unforeseen error ends none of them, and is seen.

A task that ends leaves its work undone until the service is restarted: expired rows fill the disk, transactions that have
ended are told to nobody, an atomic commit that is out of time holds its locks. What a task expects to fail, it deals with itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from oncelog_service.clock import Clock

_log = logging.getLogger(__name__)

PAUSE_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Before a task that failed goes on; the last one repeats while it fails each time."""
RECENT_SECONDS = 60.0
"""A task that has not failed for so long is not called failing any more. More than the longest pause."""


class Background:
    """What becomes of the background tasks of a process, over all openings of its store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.failures = 0
        """How often a task met an unforeseen error."""
        self._failed: dict[str, float] = {}
        """Task → when it failed last."""

    @property
    def failing(self) -> list[str]:
        """The tasks that have failed within the last minute."""
        now = self._clock.monotonic()
        return sorted(what for what, at in self._failed.items() if now - at < RECENT_SECONDS)

    async def keep(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task until it is cancelled or returns; should it raise, run it again after a pause.

        The first failure is logged with its traceback, and each one that differs from the one before it.
        """
        attempt, before = 0, ""
        while True:
            began = self._clock.monotonic()
            try:
                await run()
            except Exception as error:
                now = self._clock.monotonic()
                attempt = 0 if now - began > RECENT_SECONDS else attempt
                pause, said = PAUSE_SECONDS[min(attempt, len(PAUSE_SECONDS) - 1)], repr(error)
                self.failures += 1
                self._failed[what] = now
                _log.error("%s failed and goes on in %g s: %s", what, pause, said, exc_info=error if said != before else None)
                attempt, before = attempt + 1, said
            else:
                return
            await asyncio.sleep(pause)
