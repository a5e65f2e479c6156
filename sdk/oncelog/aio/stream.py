"""Delivers messages that are fetched ahead, awaited: what the asyncio twins of readers and consumers share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from oncelog.api.topics import AsyncApi
from oncelog.codecs import codec_for
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process.loops import Loop
from oncelog.process.procedures import Procedure
from oncelog.reading.position import FetchedAhead, Found
from oncelog.reading.stream import WAIT_SECONDS
from oncelog.values.message import Message
from oncelog.wire.requests import Polled

T = TypeVar("T")


class Stopped(Exception):
    """The waiting was ended by close."""


class AsyncStream(Generic[T]):
    """The shell around a position. One task at a time reads; what it awaits is the service alone, and nothing moves before that
    has answered: to be cancelled there loses and doubles nothing."""

    def __init__(
        self,
        at: FetchedAhead,
        topic: str,
        *,
        timeout: float | None,
        namespace: str,
        url: str | None,
        client: AsyncApi | None,
        verify: Verify,
        cert: Certificate,
        proxy: str | None,
        codec: object,
        page_size: int,
    ) -> None:
        """The arguments are those of an :class:`oncelog.AsyncReader`."""
        if page_size < 1:
            raise ValueError(f"page_size is at least 1, not {page_size}")
        self._at = at
        self._timeout = timeout
        self._codec = codec_for(codec)
        self._owns_client = client is None
        self._client = AsyncApi(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._topic = topic
        self._namespace = namespace
        self._page_size = page_size
        self._loop = Loop(f"what reads {namespace}/{topic}")
        self._opening = asyncio.Lock()
        self._is_open = False
        self._asking: asyncio.Future[Polled] | None = None
        self._closed = False
        self._interrupted = False
        """What is fetched ahead is not to be delivered any more; why, the next :meth:`_fetch` says."""

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

    @property
    def position(self) -> MessageId | None:
        """Id of the last message delivered, or of the one that reading started after; None if there is neither."""
        delivered = self._at.delivered
        return None if delivered is None else MessageId.from_bytes(delivered)

    async def has_message_available(self) -> bool:
        """Whether a message would be delivered without waiting. Delivers nothing itself."""
        self._check()
        at = self._at
        at.drop_expired(time.monotonic())
        while not at.records or self._interrupted:
            try:
                found = await self._fetch(0)
            except Stopped:
                return False
            if found is not Found.MORE and not at.records:
                return False
        return True

    def __aiter__(self) -> Self:
        self._check()
        return self

    async def __anext__(self) -> Message[T]:
        if self._closed:
            raise StopAsyncIteration
        at = self._at
        if at.records and not self._interrupted and time.monotonic() < at.fresh_until:
            self._loop.check()
            return Message(at.take(1)[0], self._codec)
        messages = await self._deliver(1, self._timeout)
        if not messages:
            raise StopAsyncIteration
        return messages[0]

    async def _open(self) -> None:
        raise NotImplementedError

    async def _fetch(self, wait_ms: int) -> Found:
        """Ask once for more. Raises Stopped."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raise what ended it for good, or that it is used elsewhere."""
        if not self._is_open:
            raise RuntimeError("it is not open; use it in an async with statement, or await its open()")
        self._loop.check()

    async def _deliver(self, limit: int, timeout: float | None) -> list[Message[T]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever)."""
        if limit < 1:
            raise ValueError(f"limit is at least 1, not {limit}")
        self._check()
        at = self._at
        now = time.monotonic()
        end = None if timeout is None else now + timeout
        at.drop_expired(now)
        while not at.records or self._interrupted:
            left = WAIT_SECONDS if end is None else min(WAIT_SECONDS, max(0.0, end - time.monotonic()))
            try:
                found = await self._fetch(int(left * 1000))
            except Stopped:
                return []
            if not at.records and (found is Found.UNDECIDED or (end is not None and time.monotonic() >= end)):
                return []
        return [Message(record, self._codec) for record in at.take(limit)]

    async def _ask(self, call: Callable[[], Procedure[Polled]]) -> Polled:
        """The answer. Raises Stopped once it is closed."""
        if self._closed:
            raise Stopped
        asking = self._asking = asyncio.ensure_future(call())
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

    async def _let_go(self) -> None:
        if self._owns_client:
            await self._client.close()
