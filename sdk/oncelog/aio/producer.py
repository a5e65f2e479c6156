# threads:
# """A named producer, as users see it: it numbers its messages, sends them in order, and never stores one twice."""
# asyncio:
"""A named producer for asyncio. The twin for threads, :mod:`oncelog.producing.producer`, is made from this one."""
# both:

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self, overload

from oncelog.aio.sending import AsyncSender
from oncelog.api.topics import AsyncApi
from oncelog.codecs import Text, Typed, Untyped, V, codec_for
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process import exits
from oncelog.process.exits import EXIT_SECONDS
from oncelog.process.frames import shorten
from oncelog.process.tracing import switch
from oncelog.process.turns import Loop
from oncelog.producing.batching import LINGER_SECONDS, MAX_BYTES, MAX_MESSAGES
from oncelog.producing.core import DELIVERY_SECONDS, MAX_PENDING, MAX_PENDING_BYTES, Policy
from oncelog.producing.cutting import Bounds
from oncelog.producing.shell import Address
from oncelog.producing.twins import ProducerTwin
from oncelog.values.arguments import check_flag
from oncelog.values.expectation import UNCHECKED, Unchecked
from oncelog.values.numbers import check_count, check_long, check_seconds, check_timeout
from oncelog.values.outgoing import outgoing
from oncelog.values.receipt import Receipt
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Gaps

# threads:
# from concurrent.futures import Future
# from oncelog.process.procedures import drive


class AsyncProducer(ProducerTwin[AsyncApi, V]):
    # threads:
    # """Publishes to one topic under one name. Thread-safe, and threads that wait share requests; a context manager.
    #
    # Opening it fences every older producer of the same name on the topic. Either every message is given a ``sequence_id``, or
    # none is: then they are numbered from ``initial_sequence_id``, or from the last persisted one + 1.
    #
    #     with Producer("flights", name="loader") as producer:
    #         for row in producer.resume(rows, sequence_id=lambda row: row.line):
    #             producer.send_async(row.payload, sequence_id=row.line)
    #
    # When a message fails without a definite outcome, the producer stops: everything behind that message fails too, later sends
    # raise :class:`~oncelog.errors.ProducerStopped`, and nothing is skipped. Open it again and send from
    # :attr:`last_sequence_id` on. A message that is definitely refused by itself (``sequence_reused``, too large, an expectation
    # that does not hold) fails alone, and what is behind it goes on.
    #
    # A sequence id is *used* from the moment its message is sent until that is definitely refused; then it never was, save where
    # the refusal says that it is stored already (``sequence_reused``). An unused id can be taken as long as nothing was sent
    # behind it: by the next message, where the SDK numbers (so that nothing is left out where the service refuses gaps), or by
    # the same message again. Once something was sent behind it, it is passed over for good, since the service would take it for
    # a duplicate.
    #
    # A producer that was given no name goes on after every *definite* failure: nobody resumes it, so the application chooses for
    # each message that failed whether to drop it or to send it again. Its name is assigned by the service, and ends when it is
    # closed; or when it was idle for long: then it goes on under another one.
    #
    # **Signals.** Every method may be called in a signal handler, also one that interrupts a method of the same producer. Of
    # two messages that are sent so, either may come first, as with two threads. An exception that a handler raises (Ctrl-C) ends
    # a waiting :meth:`send`; its message is on its way, and :meth:`flush` and :meth:`close` wait for it.
    #
    # **Forks.** In a forked child a producer with a name raises :class:`~oncelog.errors.Forked`: opened there it would fence its
    # parent's. One without a name begins there as a new one, under a name of its own, when it is first used. What was queued
    # before the fork is sent by the parent alone.
    #
    # **The end.** What is unsent when the interpreter exits is sent within ``exit_timeout``; what cannot be is named in the log
    # ``oncelog.exit`` and in a ResourceWarning.
    # """
    # asyncio:
    """The twin of :class:`oncelog.Producer` for asyncio: the same numbers, order, promises and errors. Any number of tasks may
    send through one. An asynchronous context manager, which opens it.

        async with AsyncProducer("flights", name="loader") as producer:
            receipt = await producer.send(b"UA 1545")

    One request is under way at a time, sent by a task of its own; what several tasks send while it is goes together in the next.

    **Cancellation** loses and doubles nothing. A cancelled :meth:`send_async` has sent nothing. So has a cancelled :meth:`send`
    that still waited for room; behind that its message is on its way: :meth:`flush` and :meth:`close` wait for it, and tell of
    its failure. Of a cancelled :meth:`send_batch` the first messages are on their way, those that have a sequence id, and the
    others are not sent. A cancelled :meth:`flush` or :meth:`close` can be repeated; a closed one takes no more messages.

    It belongs to its event loop: on another one it raises RuntimeError, in a forked child :class:`~oncelog.errors.Forked`. What
    is unsent when the loop ends is named in the log ``oncelog.exit`` and in a ResourceWarning.
    """

    # both:

    _clients = AsyncApi
    # threads:
    # _sender: Sender

    # overloads, made by `make faces`
    # fmt: off
    @overload
    def __init__(
        self, topic: str, *, name: str | None = None, namespace: str = DEFAULT_NAMESPACE, url: str | None = None,
        client: AsyncApi | None = None, verify: Verify = None, cert: Certificate = None, proxy: str | None = None,
        initial_sequence_id: int | None = None, gaps: Gaps = 'allow', stop_on_refusal: bool = False, codec: Typed[V] = None,
        batch_max_messages: int = MAX_MESSAGES, batch_max_bytes: int = MAX_BYTES, linger: float = LINGER_SECONDS,
        max_pending: int = MAX_PENDING, max_pending_bytes: int = MAX_PENDING_BYTES,
        delivery_timeout: float = DELIVERY_SECONDS, exit_timeout: float = EXIT_SECONDS
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncProducer[str], topic: str, *, name: str | None = None, namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None, client: AsyncApi | None = None, verify: Verify = None, cert: Certificate = None,
        proxy: str | None = None, initial_sequence_id: int | None = None, gaps: Gaps = 'allow', stop_on_refusal: bool = False,
        codec: Text, batch_max_messages: int = MAX_MESSAGES, batch_max_bytes: int = MAX_BYTES, linger: float = LINGER_SECONDS,
        max_pending: int = MAX_PENDING, max_pending_bytes: int = MAX_PENDING_BYTES,
        delivery_timeout: float = DELIVERY_SECONDS, exit_timeout: float = EXIT_SECONDS
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncProducer[Any], topic: str, *, name: str | None = None, namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None, client: AsyncApi | None = None, verify: Verify = None, cert: Certificate = None,
        proxy: str | None = None, initial_sequence_id: int | None = None, gaps: Gaps = 'allow', stop_on_refusal: bool = False,
        codec: Untyped, batch_max_messages: int = MAX_MESSAGES, batch_max_bytes: int = MAX_BYTES,
        linger: float = LINGER_SECONDS, max_pending: int = MAX_PENDING, max_pending_bytes: int = MAX_PENDING_BYTES,
        delivery_timeout: float = DELIVERY_SECONDS, exit_timeout: float = EXIT_SECONDS
    ) -> None: ...
    # fmt: on
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
        stop_on_refusal: bool = False,
        codec: Typed[V] | Text | Untyped = None,
        batch_max_messages: int = MAX_MESSAGES,
        batch_max_bytes: int = MAX_BYTES,
        linger: float = LINGER_SECONDS,
        max_pending: int = MAX_PENDING,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        delivery_timeout: float = DELIVERY_SECONDS,
        exit_timeout: float = EXIT_SECONDS,
    ) -> None:
        """Open the producer on the service; the one for asyncio is opened at the beginning of its block, or by ``open()``.

        Args:
            topic: where it publishes.
            name: None lets the service assign a unique one, which ends with this producer: nobody can resume under it.
            namespace: the topic's.
            url: the service's, for a client of its own; else as :class:`oncelog.Client` says.
            client: a :class:`oncelog.Client`, or for asyncio an :class:`oncelog.AsyncClient`; else it makes one of its own.
            verify, cert, proxy: for a client of its own, as :class:`oncelog.Client` takes them.
            initial_sequence_id: of the first message; above the last persisted one.
            gaps: ``refuse`` has the service refuse a message that leaves a sequence id out.
            stop_on_refusal: a message that is refused for its own fault, or one of a producer without a name that fails for any
                other reason, stops the producer: nothing that was sent behind it is stored.
            codec: what makes bytes of a value: None where it is bytes, or what :func:`oncelog.codecs.codec_for` takes.
            batch_max_messages, batch_max_bytes: of a request; a single message may be larger.
            linger: seconds that a message sent by send_async may wait for company.
            max_pending, max_pending_bytes: messages, and their bytes, that may wait; send_async waits beyond that. A single
                message may be larger, when nothing else waits.
            delivery_timeout: seconds that a batch is tried again before the producer stops. Without a name they count from when
                the batch was complete, since it does not stop, and others wait behind it.
            exit_timeout: seconds that what is unsent may take when the interpreter exits, or the ``with`` block is interrupted.

        Raises:
            TopicNotFound, InitialSequenceIdTaken, InvalidRequest, ConnectionFailed; ValueError: a number that cannot be.
        """
        if initial_sequence_id is not None:
            check_long("initial_sequence_id", initial_sequence_id)
        check_count("batch_max_messages", batch_max_messages)
        check_count("batch_max_bytes", batch_max_bytes)
        check_seconds("linger", linger)
        check_count("max_pending", max_pending)
        check_count("max_pending_bytes", max_pending_bytes)
        check_seconds("delivery_timeout", delivery_timeout)
        check_seconds("exit_timeout", exit_timeout)
        check_flag("stop_on_refusal", stop_on_refusal)
        self._connect(topic, namespace, client, url, verify, cert, proxy)
        self._codec = codec_for(codec)
        self._exit_timeout = exit_timeout
        self._address = Address(self._client, topic, namespace, name, gaps, initial_sequence_id)
        queued = (Bounds(batch_max_messages, batch_max_bytes), linger, max_pending, max_pending_bytes)
        self._policy = Policy(name is None, gaps == "refuse", *queued, delivery_timeout, stop_on_refusal)
        self._made()

    # threads:
    # def _made(self) -> None:
    #     try:
    #         self._sender = Sender(self._address, self._policy, self._exit_timeout)
    #     except BaseException:
    #         drive(self._let_go())
    #         raise
    # asyncio:
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

    # both:

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
            ttl: seconds that it lives, at most the topic's.
            expected_offset: the offset that it gets.
            expected_last_id: the id of the newest message of the topic; ``MessageId.NONE`` says that none was ever published.
            expected_key_offset: the offset of the newest message with the same key; None says that no message has it yet.

        Raises:
            OffsetMismatch: what it expects does not hold. It is not stored, and the producer goes on.
            ExpectationsNotChecked: the topic does not check any; the same holds.
            OncelogError: as the future of :meth:`send_async` would.
        """
        try:
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
        except Exception as error:
            shorten(error)
            raise

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
            ttl: seconds that it lives, at most the topic's.
            expected_offset: the offset that it gets.
            expected_last_id: the id of the newest message of the topic; ``MessageId.NONE`` says that none was ever published.
            expected_key_offset: the offset of the newest message with the same key; None says that no message has it yet.

        Raises:
            ProducerStopped, ProducerClosed, Forked, MixedSequenceIds, SequenceIdNotRising, CodecError, InvalidRequest: at once.
        """
        try:
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
        except Exception as error:
            shorten(error)
            raise

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
        """Send many messages and return when all are on disk; their receipts in the same order, each made when it is looked at.

        With an expectation, which is of the first one, they are one request: side by side in the log, all of them or none. An
        empty one expects nothing.

        Args:
            values: bytes, or what the codec turns into bytes. This and what follows are lists, or arrays of numpy, pandas or
                pyarrow; TypeError for a text, a mapping, a table, which would be other messages than meant.
            sequence_ids, keys, properties: one for each message, as of :meth:`send`.
            expected_offset: the offset that the first one gets.
            expected_last_id: the id of the newest message of the topic before them.

        Raises:
            OncelogError: as :meth:`send` does. RequestTooLarge: with an expectation, more than the service takes at once.
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

        Args:
            timeout: seconds; None: as long as it takes.

        Raises:
            OncelogError: that failure. TimeoutError: ``timeout`` seconds were not enough.
        """
        check_timeout(timeout)
        await self._sender.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Idempotent. Raises as :meth:`flush` does, closed all the same.

        Args:
            timeout: seconds; None: as long as ``delivery_timeout`` lets it take. What has no result by then is given up: its
                futures fail, and TimeoutError says how many they are. In a forked child nothing is sent.
        """
        check_timeout(timeout)
        # threads:
        # self._sender.check_may_wait()
        # try:
        #     self._sender.close(timeout)
        # finally:
        #     drive(self._let_go())
        # asyncio:
        try:
            if self._opened is not None:
                await self._opened.close(timeout)
        except asyncio.CancelledError:
            raise  # the connection is needed still
        except BaseException:
            await self._let_go()
            raise
        await self._let_go()
        # both:

    # threads:
    # def __enter__(self) -> Self:
    #     return self
    # asyncio:
    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self._let_go()
            raise

    # both:

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with exits.leaving(kind, self._exit_timeout) as timeout:
            await self.close(timeout)
