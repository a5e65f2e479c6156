"""The service's life: open the store, serve, and after a failed write close, reopen and read everything back.

After **any** storage error nothing in memory is believed. LevelDB acknowledged 348 of 420 later writes that were gone after a
restart when it was used on after a full disk; closing, reopening and reading back lost none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from oncelog.errors import StorageFailed, StorageUnavailable
from oncelog.http.sockets import Network
from oncelog_service.clock import Clock
from oncelog_service.config import Settings
from oncelog_service.failures import Failures
from oncelog_service.lasting import Lasting
from oncelog_service.opening import Opening, store_opened
from oncelog_service.storage.port import Store, StoreDamaged, StoreError
from oncelog_service.workers import Workers

_log = logging.getLogger(__name__)


class Service(Lasting):
    """Serves one store. Everything runs on the event loop that :meth:`start` was called on."""

    def __init__(
        self,
        settings: Settings,
        open_store: Callable[[], Store],
        clock: Clock,
        workers: Workers,
        url: str | None = None,
        network: Network | None = None,
    ) -> None:
        super().__init__(settings, clock, workers, url, network)
        self.failures = Failures()
        """Of the store."""
        self.draining = False
        """It is about to stop: clients are to go elsewhere."""
        self.present: Opening | None = None
        """None: the store is not open."""
        self._open_store = open_store
        self._running: list[asyncio.Task[None]] = []
        self._reopening: asyncio.Task[None] | None = None
        self._reason = "the store is not open yet"

    @property
    def opening(self) -> Opening:
        """Returns the present opening of the store. Raises StorageUnavailable while it is not open."""
        if self.present is None:
            raise StorageUnavailable(self._reason)
        return self.present

    @property
    def reason(self) -> str:
        """Returns why the store is not open; empty while it is."""
        return self._reason if self.present is None else ""

    async def start(self) -> None:
        """Opens the store. Raises StoreError if that does not work; then nothing is left open."""
        self.begin_threads()
        opening = Opening(self, await store_opened(self._open_store), self._on_failure)
        try:
            await opening.begin()
        except BaseException as error:
            opening.abandon()
            await opening.let_go()
            if isinstance(error, (StorageUnavailable, StorageFailed)):
                raise StoreError(error.detail) from error
            raise
        # Last: from here on requests are answered, and every part of what is opened must be there.
        self.present = opening
        self.failures.opened(self.clock.monotonic())
        self._running = [asyncio.ensure_future(self.background.keep(what, run)) for what, run in opening.tasks().items()]

    def drain(self) -> None:
        """Says from now on that it is not ready, and has readers that wait answer with what there is; all else goes on.

        Again: readers that have begun to wait meanwhile.
        """
        self.draining = True
        if self.present is not None:
            self.present.topics.logs.dismiss()

    def release(self) -> None:
        """Tells callers that wait, before a stop, to try again at once; else the stop would wait for every one of them."""
        self.turns.release()
        if self.present is not None:
            self.present.release()

    async def stop(self) -> None:
        """Finishes what is in hand, leaves a snapshot of every open topic, closes the store."""
        self._reason = "the service is stopping"
        for task in (self._reopening, *self._running):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        opening, self.present = self.present, None
        if opening is not None:
            await opening.close()
        self.end()

    async def abandon(self) -> None:
        """Lets go of the store as the end of the process would: what is queued is not written, and nothing is left for the next
        opening. Whoever waits hears nothing more, so every connection is cut before this."""
        self._reason = "the service has ended"
        opening, self.present = self.present, None
        try:
            if opening is not None:
                await opening.writer.abandon()
        finally:
            for task in (self._reopening, *self._running):
                if task is not None:
                    task.cancel()
            if opening is not None:
                opening.abandon()
                await asyncio.to_thread(opening.store.close)
            self.end()

    def _on_failure(self, error: Exception) -> None:
        """Stops answering from memory, since a write failed, or others may have taken everything over."""
        _log.error("the store failed and is closed until it has been read back: %s", error)
        self._reason = f"the store failed and is being reopened: {error}"
        self.failures.failed(error, self.clock.monotonic())
        if isinstance(error, StoreDamaged):
            pause = self.failures.pause(0, self.clock.monotonic())
            self._reason = f"the store is damaged, writes to it fail, and it is reopened in {pause:g} s: {error}"
            _log.error(
                "writes will fail again as long as that is so: stop the service and run `oncelog salvage`; %s", self._reason
            )
        for task in self._running:
            task.cancel()
        opening, self.present = self.present, None
        if opening is not None:
            # Now, and not in the task: a caller that waits must hear of the failure before anything is read back.
            opening.abandon()
            self._reopening = asyncio.ensure_future(self._reopen(opening))

    async def _reopen(self, failed: Opening) -> None:
        try:
            await failed.let_go()
        except Exception:
            _log.exception("what was left of the store that failed could not be closed")
        attempt = 0
        while True:
            await asyncio.sleep(self.failures.pause(attempt, self.clock.monotonic()))
            attempt += 1
            try:
                await self.start()
            except Exception as error:  # whatever it is: a service that gave up would be closed for good, and run on
                self._reason = f"the store failed and cannot be reopened yet: {error}"
                _log.error("%s", self._reason, exc_info=not isinstance(error, StoreError))
            else:
                _log.warning("the store is open again after %d attempts", attempt)
                return
