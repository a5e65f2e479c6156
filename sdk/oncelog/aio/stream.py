"""Delivers messages that are polled ahead, awaited: what the asyncio twins of readers and consumers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from oncelog.api.topics import AsyncApi
from oncelog.codecs import V
from oncelog.process.errands import Stopped
from oncelog.process.frames import shorten
from oncelog.process.procedures import answer_of
from oncelog.process.turns import Loop
from oncelog.reading.position import ITERATED
from oncelog.reading.twins import StreamTwin
from oncelog.values.message import Message
from oncelog.values.numbers import OWN, Own


class AsyncStream(StreamTwin[AsyncApi, V]):
    """The shell around a position. One task at a time reads; what it awaits is the service alone, and nothing moves before that
    has answered: to be cancelled there loses and doubles nothing."""

    _clients = AsyncApi

    def _prepare(self) -> None:
        self._loop = Loop(f"what reads {self._namespace}/{self._topic}")
        self._opening = asyncio.Lock()
        self._is_open = False
        self._asking: asyncio.Future[Any] | None = None

    async def open(self) -> Self:
        """Begin, once; the ``async with`` statement does it. Raises what its twin of threads raises when it is made."""
        self._loop.check()
        async with self._opening:
            if not self._is_open:
                await self._open()
                self._is_open = True
        return self

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self._let_go()
            raise

    async def has_message_available(self) -> bool:
        """Whether a message would be delivered without waiting. Delivers nothing itself."""
        return await self._has_message()

    async def read(self, limit: int = 1_000, timeout: float | Own | None = OWN) -> list[Message[V]]:
        """Return messages as soon as there is one, or none after the timeout; in a transaction none at once where the next
        message is undecided.

        Args:
            limit: messages at most.
            timeout: seconds; else those that it was made with. None waits for ever, 0 for nothing.

        Raises:
            ReaderClosed, ConsumerClosed, ConsumerFenced, SubscriptionNotFound: for ever. Any other OncelogError: nothing was
                delivered, and reading again goes on where it stood.
        """
        try:
            return await self._deliver(limit, timeout)
        except Exception as error:
            shorten(error)
            raise

    def __aiter__(self) -> Self:
        self._check()
        return self

    async def __anext__(self) -> Message[V]:
        if self._closed:
            raise StopAsyncIteration
        at = self._at
        if at.records and not self._interrupted and self._clock.monotonic() < at.fresh_until:
            self._loop.check()
            return Message(at.take(1)[0], None, at.source)
        try:
            messages = await self._deliver(1, OWN, ITERATED)
        except Exception as error:
            shorten(error)
            raise
        if not messages:
            raise StopAsyncIteration
        return messages[0]

    async def _open(self) -> None:
        raise NotImplementedError

    def _check_here(self) -> None:
        if not self._is_open:
            raise RuntimeError("it is not open; use it in an async with statement, or await its open()")
        self._loop.check()

    async def _deliver(self, limit: int, timeout: float | Own | None, wanted: int | None = None) -> list[Message[V]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever)."""
        if not await self._poll_ahead(limit, timeout, wanted):
            return []
        return [Message(record, None, self._at.source) for record in self._at.take(limit)]

    async def _until_closed(self, call: Callable[[], Any]) -> Any:
        if self._closed:
            raise Stopped

        async def asked() -> Any:
            # Called within the task: cancelled before it begins, it leaves no call that nobody awaits.
            return await answer_of(call)

        self._asking = asking = asyncio.ensure_future(asked())
        try:
            return await asking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise Stopped from None
            raise

    def _stop(self) -> None:
        """End the waiting, now and later."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
