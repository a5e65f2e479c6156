"""A named producer, as users see it: it numbers its messages, sends them in order, and never stores one twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack, overload

from oncelog.api.api import Api
from oncelog.api.options import ProducerOptions
from oncelog.codecs import Text, Typed, Untyped, V
from oncelog.message_id import MessageId
from oncelog.process import exits
from oncelog.process.procedures import drive
from oncelog.process.tracing import switch
from oncelog.producing.batching import Batch
from oncelog.producing.sending import Sender
from oncelog.producing.twins import ProducerTwin
from oncelog.values.expectation import UNCHECKED, Unchecked
from oncelog.values.numbers import check_timeout
from oncelog.values.outgoing import Outgoing, outgoing
from oncelog.values.receipt import Receipt


class Producer(ProducerTwin[Api, V]):
    """Publishes to one topic under one name. Thread-safe, and threads that wait share requests; a context manager.

    Opening it fences every older producer of the same name on the topic. Either every message is given a ``sequence_id``, or
    none is: then they are numbered from ``initial_sequence_id``, or from the last persisted one + 1.

        with Producer("flights", name="loader") as producer:
            for row in producer.resume(rows, sequence_id=lambda row: row.line):
                producer.send_async(row.payload, sequence_id=row.line)

    When a message fails without a definite outcome, the producer stops: everything behind that message fails too, later sends
    raise :class:`~oncelog.errors.ProducerStopped`, and nothing is skipped. Open it again and send from
    :attr:`last_sequence_id` on. A message that is definitely refused by itself (``sequence_reused``, too large, an expectation
    that does not hold) fails alone, and what is behind it goes on.

    A sequence id is *used* from the moment its message is sent until that is definitely refused; then it never was, save where
    the refusal says that it is stored already (``sequence_reused``). An unused id can be taken as long as nothing was sent behind
    it: by the next message, where the SDK numbers (so that nothing is left out where the service refuses gaps), or by the same
    message again. Once something was sent behind it, it is passed over for good, since the service would take it for a duplicate.

    A producer that was given no name goes on after every *definite* failure: nobody resumes it, so the application chooses for
    each message that failed whether to drop it or to send it again. Its name is assigned by the service, and ends when it is
    closed; or when it was idle for long: then it goes on under another one.

    **Signals.** Every method may be called in a signal handler, also one that interrupts a method of the same producer. Of
    two messages that are sent so, either may come first, as with two threads. An exception that a handler raises (Ctrl-C) ends a
    waiting :meth:`send`; its message is on its way, and :meth:`flush` and :meth:`close` wait for it.

    **Forks.** In a forked child a producer with a name raises :class:`~oncelog.errors.Forked`: opened there it would fence its
    parent's. One without a name begins there as a new one, under a name of its own, when it is first used. What was queued
    before the fork is sent by the parent alone.

    **The end.** What is unsent when the interpreter exits is sent within ``exit_timeout``; what cannot be is named in the log
    ``oncelog.exit`` and in a ResourceWarning.
    """

    _clients = Api
    _sender: Sender

    if TYPE_CHECKING:  # how it is made stands in both's base; which values a codec takes, only type checkers ask

        @overload
        def __init__(self, topic: str, *, codec: Typed[V] = None, **options: Unpack[ProducerOptions]) -> None: ...

        @overload
        def __init__(self: Producer[str], topic: str, *, codec: Text, **options: Unpack[ProducerOptions]) -> None: ...

        @overload
        def __init__(self: Producer[Any], topic: str, *, codec: Untyped, **options: Unpack[ProducerOptions]) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def _made(self) -> None:
        try:
            self._sender = Sender(self._address, self._policy, self._exit_timeout)
        except BaseException:
            drive(self._let_go())
            raise

    # --- sending

    def send(
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
        self._sender.check_may_wait()
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
            return self._send(message)
        span, message = self._traced(tracing, message)
        with span:
            return self._send(message)

    def _send(self, message: Outgoing) -> Receipt:
        future = self._sender.put(message, True)
        try:
            self._sender.wait(future)
        except BaseException as error:
            self._sender.disregard(future, error)
            raise
        return future.result()

    def send_async(
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
    ) -> Future[Receipt]:
        """Queue one message; the future has its receipt when it is on disk, or the OncelogError that it met.

        What a message expects is judged as if it came in a request of its own; only those whose expected offsets follow on share
        one. Waits while ``max_pending`` messages, or ``max_pending_bytes``, are queued.

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
            return self._sender.put(message, False)
        span, message = self._traced(tracing, message)
        try:
            future = self._sender.put(message, False)
        except BaseException as error:
            span.end(error)
            raise
        span.ends_with(future)
        return future

    def send_batch(
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

        ``sequence_ids``, ``keys``, ``properties``: one for each message. All of them are lists, or arrays of numpy, pandas or
        pyarrow; TypeError for a text, a mapping, a table, which would be other messages than meant.

        With an expectation, which is of the first one, they are one request: side by side in the log, all of them or none. An
        empty one expects nothing.

        Raises:
            OncelogError: as :meth:`send` does. RequestTooLarge: with an expectation, more than the service takes at once.
        """
        self._sender.check_may_wait()
        batch = self._batch(values, sequence_ids, keys, properties, expected_offset, expected_last_id)
        if not batch.payloads:
            return []
        tracing = switch.tracing
        if tracing is None:
            return self._send_batch(batch)
        with self._traced_batch(tracing, batch):
            return self._send_batch(batch)

    def _send_batch(self, batch: Batch) -> Sequence[Receipt]:
        outcomes = self._sender.put_batch(batch)
        try:
            self._sender.wait(outcomes)
        except BaseException as error:
            self._sender.disregard(outcomes, error)
            raise
        return outcomes.receipts()

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent so far has its result; raise the first failure since the last flush.

        A failure that :meth:`send` or :meth:`send_batch` raised is not raised again.

        Raises:
            OncelogError: that failure. TimeoutError: ``timeout`` seconds were not enough.
        """
        check_timeout(timeout)
        self._sender.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Idempotent. Raises as :meth:`flush` does, closed all the same.

        ``timeout``: seconds; else as long as ``delivery_timeout`` lets it take. What has no result by then is given up: its
        futures fail, and TimeoutError says how many they are. In a forked child it lets go of what is there, and sends nothing.
        """
        check_timeout(timeout)
        self._sender.check_may_wait()
        try:
            self._sender.close(timeout)
        finally:
            drive(self._let_go())

    def __enter__(self) -> Producer[V]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with exits.leaving(kind, self._exit_timeout) as timeout:
            self.close(timeout)
