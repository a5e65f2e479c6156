"""The twin of :mod:`oncelog.producing.producer` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from pydantic import BaseModel

from oncelog.aio.sending import AsyncSender
from oncelog.api.options import AsyncProducerOptions, SendOptions, Untyped, shows
from oncelog.api.topics import AsyncApi
from oncelog.codecs import Codec, codec_for
from oncelog.errors import OncelogError
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process import exits
from oncelog.process.exits import EXIT_SECONDS
from oncelog.process.loops import Loop
from oncelog.producing.batching import LINGER_SECONDS, MAX_BYTES, MAX_MESSAGES, Batch
from oncelog.producing.core import DELIVERY_SECONDS, MAX_PENDING, MAX_PENDING_BYTES, Policy
from oncelog.producing.cutting import Bounds
from oncelog.producing.sending import Address
from oncelog.values.expectation import UNCHECKED, expectation
from oncelog.values.outgoing import check_seconds, check_sequence_id, outgoing, outgoing_columns
from oncelog.values.receipt import Receipt
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Gaps

R = TypeVar("R")
Model = TypeVar("Model", bound=BaseModel)
X = TypeVar("X")


class AsyncProducer(Generic[R]):
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

    @overload
    def __init__(
        self: AsyncProducer[bytes], topic: str, *, codec: Literal["bytes"] | None = None, **options: Unpack[AsyncProducerOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[str], topic: str, *, codec: Literal["str"], **options: Unpack[AsyncProducerOptions]
    ) -> None: ...

    @overload
    def __init__(self: AsyncProducer[R], topic: str, *, codec: Codec[R], **options: Unpack[AsyncProducerOptions]) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[Model], topic: str, *, codec: type[Model], **options: Unpack[AsyncProducerOptions]
    ) -> None: ...

    @overload
    def __init__(self: AsyncProducer[Any], topic: str, *, codec: Untyped, **options: Unpack[AsyncProducerOptions]) -> None: ...

    def __init__(
        self,
        topic: str,
        *,
        name: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None,
        client: AsyncApi | None = None,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        initial_sequence_id: int | None = None,
        gaps: Gaps = "allow",
        codec: Any = None,
        batch_max_messages: int = MAX_MESSAGES,
        batch_max_bytes: int = MAX_BYTES,
        linger: float = LINGER_SECONDS,
        max_pending: int = MAX_PENDING,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        delivery_timeout: float = DELIVERY_SECONDS,
        exit_timeout: float = EXIT_SECONDS,
    ) -> None:
        """The arguments are those of :class:`oncelog.Producer`; ``client``: an :class:`oncelog.AsyncClient`.

        ``exit_timeout``: seconds that what is unsent may take when the task is cancelled in the ``async with`` block.
        """
        if initial_sequence_id is not None:
            check_sequence_id(initial_sequence_id)
        check_seconds(linger=linger, delivery_timeout=delivery_timeout, exit_timeout=exit_timeout)
        self._client = AsyncApi(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._owns_client = client is None
        self._codec = codec_for(codec)
        self._exit_timeout = exit_timeout
        self._address = Address(self._client, topic, namespace, name, gaps, initial_sequence_id)
        bounds = Bounds(batch_max_messages, batch_max_bytes)
        self._policy = Policy(name is None, gaps == "refuse", bounds, linger, max_pending, max_pending_bytes, delivery_timeout)
        self._loop = Loop(f"a producer of {namespace}/{topic}")
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
    def _sender(self) -> AsyncSender:
        if self._opened is None:
            raise RuntimeError("the producer is not open; use it in an async with statement, or await its open()")
        return self._opened

    async def _let_go(self) -> None:
        if self._owns_client:
            await self._client.close()

    @property
    def topic(self) -> str:
        """Where it publishes."""
        return self._address.topic

    @property
    def namespace(self) -> str:
        """The topic's namespace."""
        return self._address.namespace

    @property
    def name(self) -> str:
        """The producer's name, also when the service assigned it."""
        return self._sender.core.name

    @property
    def epoch(self) -> int:
        """The number of this incarnation."""
        return self._sender.core.epoch

    @property
    def last_sequence_id(self) -> int | None:
        """The highest sequence id that is known to be on disk; None if this producer never published."""
        return self._sender.core.last_sequence_id

    @property
    def last_message_id(self) -> MessageId | None:
        """The id of that message, or None."""
        return self._sender.core.last_message_id

    # --- sending

    @shows(SendOptions)
    async def send(self, value: R, **options: Unpack[SendOptions]) -> Receipt:
        """Send one message, and everything before it, and return when it is on disk: as :meth:`oncelog.Producer.send`."""
        future = await self._sender.put(outgoing(value, self._codec, **options), True)
        return await self._sender.receipt(future)

    @shows(SendOptions)
    async def send_async(self, value: R, **options: Unpack[SendOptions]) -> asyncio.Future[Receipt]:
        """Queue one message, when there is room; the future has its receipt when it is on disk, or the OncelogError that it met.

        As :meth:`oncelog.Producer.send_async`. To cancel the future takes nothing back: the message is on its way.
        """
        return await self._sender.put(outgoing(value, self._codec, **options), False)

    async def send_batch(
        self,
        values: Sequence[R],
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
        batch = Batch()
        batch.extend(*outgoing_columns(values, self._codec, sequence_ids, keys, properties))
        batch.expected = expectation(expected_offset, expected_last_id, UNCHECKED, None)
        batch.whole = batch.expected is not None
        if not batch.payloads:
            return []
        return await self._sender.result(await self._sender.put_batch(batch))

    def resume(self, rows: Iterable[X], *, sequence_id: Callable[[X], int]) -> Iterator[X]:
        """Yield those of ``rows`` whose sequence id is above what is already persisted. One-shot iterators are fine."""
        for row in rows:
            if self._sender.core.numbers.opened_at < sequence_id(row):
                yield row

    async def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent so far has its result; raise the first failure since the last flush.

        A failure that a caller of :meth:`send` or :meth:`send_batch` heard of is not raised again.

        Raises:
            OncelogError: that failure. TimeoutError: ``timeout`` seconds were not enough.
        """
        await self._sender.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Idempotent. Raises as :meth:`flush` does, closed all the same.

        ``timeout``: seconds; else as long as ``delivery_timeout`` lets it take. What has no result by then is given up: its
        futures fail, and TimeoutError says how many they are. Where it is cancelled, it takes no more messages, and those that
        are on their way go on; close it again to wait for them.
        """
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
        interrupted = kind is not None and not issubclass(kind, Exception)
        try:
            await self.close(self._exit_timeout if interrupted else None)
        except OncelogError:
            if kind is None:
                raise  # else the error that ends the block says more
        except TimeoutError as error:
            exits.say(str(error))


def async_sender_of(producer: AsyncProducer[Any]) -> AsyncSender:
    """Return what sends for a producer: transactions number and roll back its messages there."""
    return producer._sender


def async_codec_of(producer: AsyncProducer[Any]) -> Codec[Any] | None:
    """Return the codec that makes bytes of a producer's values; None where they are bytes."""
    return producer._codec
