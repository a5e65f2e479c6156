"""Acknowledges in the background, in a task for that: the shell of a durable consumer for asyncio."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress

from oncelog.aio.stream import AsyncStream
from oncelog.api.topics import AsyncApi
from oncelog.codecs import V
from oncelog.errors import OncelogError
from oncelog.process import exits
from oncelog.reading.position import Upto
from oncelog.reading.twins import ConsumerTwin


class AsyncAcknowledging(ConsumerTwin[AsyncApi, V], AsyncStream[V]):
    """Sends what is acknowledged, one request at a time; any task may call it."""

    def _made(self) -> None:
        self._guard = nullcontext()
        self._sending = asyncio.Lock()
        """Held while an acknowledgement or a seek is under way: one after the other."""
        self._task: asyncio.Task[None] | None = None

    async def _open(self) -> None:
        await self._open_subscription()
        exits.register(self)

    async def _sought(self) -> None:
        async with self._sending:
            pass

    def _acknowledge_later(self, wanted: Upto) -> None:
        """Have it sent when it has waited for company long enough."""
        if self._pending is None or self._pending.message_id < wanted.message_id:
            self._pending = wanted
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"oncelog-consumer-{self._subscription}")
            self._task.add_done_callback(self._ended)

    async def _end(self, timeout: float | None) -> None:
        """Send what waits, and let go of everything; where it is cancelled it can be repeated."""
        self._loop.check()
        self._interrupted = True
        self._stop()
        if self._task is not None:
            self._task.cancel()
        try:
            try:
                async with asyncio.timeout(timeout):
                    await self._send_pending()
            except TimeoutError:
                raise TimeoutError(self._unacknowledged()) from None
            if self._untold:
                self._raise_failure()
        except asyncio.CancelledError:
            raise  # what waits is sent when it is closed again
        except BaseException:
            self._pending = None  # raised once; a second close has nothing left to say
            await self._let_go()
            raise
        await self._let_go()

    async def _send_pending(self) -> None:
        async with self._sending:
            await self._acknowledge_pending()

    async def _run(self) -> None:
        """The task that sends what waits, until nothing does."""
        while self._pending is not None:
            await asyncio.sleep(self._ack_interval)
            try:
                await self._send_pending()
            except OncelogError as error:
                self._note_in_background(error)
        self._task = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:  # cancelled, as an event loop does with all when it ends
            self._task = None
            with suppress(asyncio.CancelledError):
                task.result()

    def _begin_exit(self) -> None:
        """Nothing: no event loop runs any more."""

    def _end_exit(self, passed: float) -> str | None:
        return None if self._pending is None or self._loop.is_elsewhere else self._unacknowledged()
