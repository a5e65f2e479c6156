"""The twin of :mod:`oncelog.reading.consumer` for asyncio."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Unpack, overload

from oncelog.aio.stream import AsyncStream
from oncelog.api.options import AsyncConsumerOptions
from oncelog.api.topics import AsyncApi
from oncelog.codecs import Text, Typed, Untyped, V
from oncelog.errors import OncelogError
from oncelog.message_id import MessageId
from oncelog.process import exits
from oncelog.process.deprecated import deprecated
from oncelog.reading.twins import ConsumerTwin
from oncelog.values.message import Message
from oncelog.values.numbers import check_timeout
from oncelog.values.start import Start
from oncelog.wire.models import Subscription


class AsyncConsumer(ConsumerTwin[AsyncApi, V], AsyncStream[V]):
    """The twin of :class:`oncelog.Consumer` for asyncio: the same subscription, promises and errors. An asynchronous context
    manager, which opens the subscription; one task at a time reads, any may acknowledge or seek.

        async with AsyncConsumer("flights", "billing") as consumer:
            async for message in consumer:
                await charge(message)
                consumer.ack_async(message)

    Cancelled at an await, reading has delivered nothing, and :meth:`ack`, :meth:`flush` and :meth:`close` can be repeated.
    After a cancelled :meth:`seek` open a new consumer. It belongs to its event loop: on another one it raises RuntimeError, in a
    forked child :class:`~oncelog.errors.Forked`.
    """

    if TYPE_CHECKING:  # how it is made stands in both's base; which values a codec brings, only type checkers ask

        @overload
        def __init__(
            self, topic: str, subscription: str, *, codec: Typed[V] = None, **options: Unpack[AsyncConsumerOptions]
        ) -> None: ...

        @overload
        def __init__(
            self: AsyncConsumer[str], topic: str, subscription: str, *, codec: Text, **options: Unpack[AsyncConsumerOptions]
        ) -> None: ...

        @overload
        def __init__(
            self: AsyncConsumer[Any], topic: str, subscription: str, *, codec: Untyped, **options: Unpack[AsyncConsumerOptions]
        ) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def _made(self) -> None:
        self._guard = nullcontext()
        self._sending = asyncio.Lock()
        """Held while an acknowledgement or a seek is under way: one after the other."""
        self._task: asyncio.Task[None] | None = None

    async def _open(self) -> None:
        await self._open_subscription()
        exits.register(self)

    async def lag(self) -> int:
        """Offsets between what is acknowledged and the end of the log, as the service says now; see :meth:`status`."""
        return (await self.status()).lag

    async def status(self) -> Subscription:
        """The subscription as it is on disk now: cursor, lag, what was lost to expiry, epoch. Raises SubscriptionNotFound."""
        return await self._client.subscription(self._topic, self._subscription, self._namespace)

    # --- reading

    async def read(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[V]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever).

        As :meth:`oncelog.Consumer.read`.
        """
        return await self._deliver(limit, timeout)

    @deprecated("AsyncConsumer.receive is called AsyncConsumer.read now, as an AsyncReader's is")
    async def receive(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[V]]:
        """Deprecated: the former name of :meth:`read`."""
        return await self.read(limit, timeout)

    async def seek(self, start: Start, *, inclusive: bool = False) -> None:
        """Go on from somewhere else, also from before what is acknowledged: as :meth:`oncelog.Consumer.seek`."""
        async with self._sending:
            await self._seek(start, inclusive)

    async def _sought(self) -> None:
        async with self._sending:
            pass

    # --- acknowledging

    async def ack(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge a message and everything before it; on disk when this returns: as :meth:`oncelog.Consumer.ack`."""
        self._check()
        async with self._sending:
            self._check()
            await self._acknowledge(self._upto(upto))

    def ack_async(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge later: in ``ack_interval`` seconds, or at the next :meth:`flush` or :meth:`close`; many become one request.

        Nothing is awaited. As :meth:`oncelog.Consumer.ack_async`.
        """
        self._check()
        wanted = self._upto(upto)
        if self._pending is None or self._pending.message_id < wanted.message_id:
            self._pending = wanted
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"oncelog-consumer-{self._subscription}")
            self._task.add_done_callback(self._ended)

    async def flush(self) -> None:
        """Return when all that is acknowledged is on disk. Raises as :meth:`ack` does."""
        self._check()
        await self._send_pending()
        if self._untold:  # the task was at it, and it was refused
            self._raise_failure()

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Idempotent; where it is cancelled it can be repeated. Raises as :meth:`flush`
        does, closed all the same.

        ``timeout``: seconds; else as long as the client tries. What is not acknowledged by then is given up, and delivered again
        to the next consumer; TimeoutError says so.
        """
        check_timeout(timeout)
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

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with exits.leaving(kind) as timeout:
            await self.close(timeout)

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
