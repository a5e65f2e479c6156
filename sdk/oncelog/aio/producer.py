"""The twin of :mod:`oncelog.producing.producer` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from oncelog.aio.sending import AsyncSender
from oncelog.api.options import AsyncProducerOptions
from oncelog.api.topics import AsyncApi
from oncelog.codecs import Text, Typed, Untyped, V
from oncelog.message_id import MessageId
from oncelog.process import exits
from oncelog.process.tracing import switch
from oncelog.process.turns import Loop
from oncelog.producing.twins import ProducerTwin
from oncelog.values.expectation import UNCHECKED, Unchecked
from oncelog.values.numbers import check_timeout
from oncelog.values.outgoing import outgoing
from oncelog.values.receipt import Receipt


class AsyncProducer(ProducerTwin[AsyncApi, V]):
    """The twin of :class:`oncelog.Producer` for asyncio: the same numbers, order, promises and errors. Any number of tasks may
    send through one. An asynchronous context manager, which opens it.

        async with AsyncProducer("flights", name="loader") as producer:
            receipt = await producer.send(b"UA 1545")

    One request is under way at a time, sent by a task of its own; what several tasks send while it is goes together in the next.

    **Cancellation** loses and doubles nothing. A cancelled :meth:`send_async` has sent nothing. So has a cancelled :meth:`send`
    that still waited for room; behind that its message is on its way: :meth:`flush` and :meth:`close` wait for it, and tell of
    its failure. A cancelled :meth:`flush` or :meth:`close` can be repeated.

    It belongs to its event loop: on another one it raises RuntimeError, in a forked child :class:`~oncelog.errors.Forked`. What
    is unsent when the loop ends is named in the log ``oncelog.exit`` and in a ResourceWarning.
    """

    _clients = AsyncApi

    if TYPE_CHECKING:  # how it is made stands in both's base; which values a codec takes, only type checkers ask

        @overload
        def __init__(self, topic: str, *, codec: Typed[V] = None, **options: Unpack[AsyncProducerOptions]) -> None: ...

        @overload
        def __init__(self: AsyncProducer[str], topic: str, *, codec: Text, **options: Unpack[AsyncProducerOptions]) -> None: ...

        @overload
        def __init__(
            self: AsyncProducer[Any], topic: str, *, codec: Untyped, **options: Unpack[AsyncProducerOptions]
        ) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def _made(self) -> None:
        self._loop = Loop(f"a producer of {self.namespace}/{self.topic}")
        self._opening = asyncio.Lock()
        self._opened: AsyncSender | None = None

    async def open(self) -> Self:
        """Open it on the service, once; the ``async with`` statement does it. Returns the producer.

        Raises:
            TopicNotFound, InitialSequenceIdTaken, InvalidRequest, ConnectionFailed.
        """
        self._loop.check()
        async with self._opening:
            if self._opened is None:
                self._opened = AsyncSender(self._address, self._policy, await self._address.open(), self._loop)
        return self

    @property
    def _sender(self) -> AsyncSender:  # type: ignore[override]  # nobody sets it
        if self._opened is None:
            raise RuntimeError("the producer is not open; use it in an async with statement, or await its open()")
        return self._opened

    # --- sending

    async def send(
        self,
        value: V,
        *,
        sequence_id: int | None = None,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
        expected_offset: int | None = None,
        expected_last_id: MessageId | None = None,
        expected_key_offset: int | Unchecked | None = UNCHECKED,
    ) -> Receipt:
        """Send one message, and everything before it, and return when it is on disk.

        What it expects is judged where it gets its offset; the topic must check expectations (``check.expected.offsets``).
        A message that is stored already is answered as a duplicate, whatever it expects.

        Args:
            value: bytes, or what the codec turns into bytes.
            sequence_id: rises from message to message of a producer; without it the SDK numbers.
            key: what the message is about; a str is sent as UTF-8.
            properties: further things to say of it, by name.
            ttl: seconds that it lives; shorter than the topic's.
            expected_offset: the offset that it gets.
            expected_last_id: the id of the newest message of the topic; ``MessageId.NONE`` says that none was ever published.
            expected_key_offset: the offset of the newest message with the same key; None says that no message has it yet.

        Raises:
            OffsetMismatch: what it expects does not hold. It is not stored, and the producer goes on.
            ExpectationsNotChecked: the topic does not check any; the same holds.
            OncelogError: as the future of :meth:`send_async` would.
        """
        message = outgoing(
            value,
            self._codec,
            sequence_id,
            key,
            properties,
            ttl,
            expected_offset=expected_offset,
            expected_last_id=expected_last_id,
            expected_key_offset=expected_key_offset,
        )
        tracing = switch.tracing
        if tracing is None:
            return await self._sender.receipt(await self._sender.put(message, True))
        span, message = self._traced(tracing, message)
        with span:
            return await self._sender.receipt(await self._sender.put(message, True))

    async def send_async(
        self,
        value: V,
        *,
        sequence_id: int | None = None,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
        expected_offset: int | None = None,
        expected_last_id: MessageId | None = None,
        expected_key_offset: int | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[Receipt]:
        """Queue one message; the future has its receipt when it is on disk, or the OncelogError that it met.

        What a message expects is judged as if it came in a request of its own; only those whose expected offsets follow on share
        one. Waits while ``max_pending`` messages, or ``max_pending_bytes``, are queued. To cancel the future takes nothing back:
        the message is on its way.

        Args:
            value: bytes, or what the codec turns into bytes.
            sequence_id: rises from message to message of a producer; without it the SDK numbers.
            key: what the message is about; a str is sent as UTF-8.
            properties: further things to say of it, by name.
            ttl: seconds that it lives; shorter than the topic's.
            expected_offset: the offset that it gets.
            expected_last_id: the id of the newest message of the topic; ``MessageId.NONE`` says that none was ever published.
            expected_key_offset: the offset of the newest message with the same key; None says that no message has it yet.

        Raises:
            ProducerStopped, ProducerClosed, Forked, MixedSequenceIds, SequenceIdNotRising, CodecError, InvalidRequest: at once.
        """
        message = outgoing(
            value,
            self._codec,
            sequence_id,
            key,
            properties,
            ttl,
            expected_offset=expected_offset,
            expected_last_id=expected_last_id,
            expected_key_offset=expected_key_offset,
        )
        tracing = switch.tracing
        if tracing is None:
            return await self._sender.put(message, False)
        span, message = self._traced(tracing, message)
        try:
            future = await self._sender.put(message, False)
        except BaseException as error:
            span.end(error)
            raise
        span.ends_with(future)
        return future

    async def send_batch(
        self,
        values: Sequence[V],
        *,
        sequence_ids: Sequence[int] | None = None,
        keys: Sequence[bytes | str | None] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        expected_offset: int | None = None,
        expected_last_id: MessageId | None = None,
    ) -> Sequence[Receipt]:
        """Send many messages and return when all are on disk: as :meth:`oncelog.Producer.send_batch`.

        Where it is cancelled, those that have a sequence id are on their way, the first ones, and the others are not sent.
        """
        batch = self._batch(values, sequence_ids, keys, properties, expected_offset, expected_last_id)
        if not batch.payloads:
            return []
        tracing = switch.tracing
        if tracing is None:
            return await self._sender.result(await self._sender.put_batch(batch))
        with self._traced_batch(tracing, batch):
            return await self._sender.result(await self._sender.put_batch(batch))

    async def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent so far has its result; raise the first failure since the last flush.

        A failure that a caller of :meth:`send` or :meth:`send_batch` heard of is not raised again.

        Raises:
            OncelogError: that failure. TimeoutError: ``timeout`` seconds were not enough.
        """
        check_timeout(timeout)
        await self._sender.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Idempotent. Raises as :meth:`flush` does, closed all the same.

        ``timeout``: seconds; else as long as ``delivery_timeout`` lets it take. What has no result by then is given up: its
        futures fail, and TimeoutError says how many they are. Where it is cancelled, it takes no more messages, and those that
        are on their way go on; close it again to wait for them.
        """
        check_timeout(timeout)
        try:
            if self._opened is not None:
                await self._opened.close(timeout)
        except asyncio.CancelledError:
            raise  # the connection is needed still
        except BaseException:
            await self._let_go()
            raise
        await self._let_go()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self._let_go()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with exits.leaving(kind, self._exit_timeout) as timeout:
            await self.close(timeout)
