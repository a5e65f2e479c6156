"""Looks now and then whether the store answers: one small read, on a thread of its own, which finds no other before it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from oncelog_service.clock import Clock
from oncelog_service.storage.port import Store, StoreError
from oncelog_service.workers import Workers

_EVERY_SECONDS = 5.0


class Looking:
    """It outlives the openings of a store: of one that hangs, nobody can tell the thread to come back."""

    def __init__(self, workers: Workers, clock: Clock) -> None:
        self.thread = workers.pool(1, "oncelog-looking")
        self._clock = clock
        self._since: float | None = None
        """When the look began that is under way. Set on the thread."""

    @property
    def seconds(self) -> float:
        """Returns for how long a look has been under way; 0: none is."""
        since = self._since
        return 0.0 if since is None else self._clock.elapsed() - since

    async def keep(self, store: Store) -> None:
        """Looks again and again, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            await asyncio.get_running_loop().run_in_executor(self.thread, self._look, store)

    def _look(self, store: Store) -> None:
        self._since = self._clock.elapsed()
        try:
            with suppress(StoreError):  # that it fails is an answer too, which whoever reads is told
                store.look()
                store.check_written()
        finally:
            self._since = None
