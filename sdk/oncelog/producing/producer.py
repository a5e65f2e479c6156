"""A named producer: numbers its messages, sends them in order, and never stores one twice.

One request is under way at a time. A second one beside it could overtake the first; then the service would take the first
one's smaller sequence ids for duplicates, and they would be lost.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from math import inf
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Unpack, overload

from pydantic import BaseModel

from oncelog.api.api import Api
from oncelog.api.options import ProducerOptions, Untyped
from oncelog.api.plausible import check_names_all
from oncelog.api.retry import ends_a_producer, is_one_messages_fault, may_retry, rules_out_earlier_tries, wait_before_retry
from oncelog.codecs import Codec, codec_for
from oncelog.errors import (
    InitialSequenceIdTaken,
    InvalidRequest,
    MixedSequenceIds,
    OffsetMismatch,
    OncelogError,
    ProducerClosed,
    ProducerEnded,
    ProducerInTransaction,
    ProducerStopped,
    RequestTooLarge,
    SequenceIdNotRising,
    SequenceReused,
)
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process import exits, forks
from oncelog.process.exits import EXIT_SECONDS
from oncelog.producing.batching import LINGER_SECONDS, MAX_BYTES, MAX_MESSAGES, Batch, BatchLimits, TakenIds, size_of
from oncelog.producing.outcome import Outcome, disown, is_anybody_to_be_told, settle, settle_failed
from oncelog.values.expectation import UNCHECKED, Expectation, Unchecked, expectation
from oncelog.values.outgoing import MAX_SEQUENCE_ID as MAX_SEQUENCE_ID
from oncelog.values.outgoing import check_seconds, one_each
from oncelog.values.outgoing import check_sequence_id as check_sequence_id
from oncelog.values.outgoing import checked_extras as checked_extras
from oncelog.values.outgoing import encode_value as encode_value
from oncelog.values.receipt import Receipt
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Gaps, OpenedProducer
from oncelog.wire.requests import PublishRequest, ReceiptRun

MAX_PENDING = 50_000
MAX_PENDING_BYTES = 64 << 20
"""Messages, and their bytes, that may wait to be sent; send_async waits beyond that, so that memory is bounded when the service
is slow. (Kafka's buffer.memory is 32 MiB.)"""
DELIVERY_SECONDS = 120.0
"""How long a message is tried again (Kafka's delivery.timeout.ms)."""

END_SECONDS = 5.0
"""Until the service has answered that an assigned name ends. If it does not, the name ends by itself."""
RENEW_SECONDS = 3_600.0
"""A producer without a name that was idle for so long enters a transaction under another name: its own may have ended."""

R = TypeVar("R")
Model = TypeVar("Model", bound=BaseModel)
X = TypeVar("X")
_CAN_BE_ONE_OF_MANY = (SequenceReused, InvalidRequest, RequestTooLarge)
"""The faults that one message brings upon a request of many, so that it has to be found."""


class Producer(Generic[R]):
    """Publishes to one topic under one name. Thread-safe; a context manager.

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

    @overload
    def __init__(
        self: Producer[bytes], topic: str, *, codec: Literal["bytes"] | None = None, **options: Unpack[ProducerOptions]
    ) -> None: ...

    @overload
    def __init__(self: Producer[str], topic: str, *, codec: Literal["str"], **options: Unpack[ProducerOptions]) -> None: ...

    @overload
    def __init__(self: Producer[R], topic: str, *, codec: Codec[R], **options: Unpack[ProducerOptions]) -> None: ...

    @overload
    def __init__(self: Producer[Model], topic: str, *, codec: type[Model], **options: Unpack[ProducerOptions]) -> None: ...

    @overload
    def __init__(self: Producer[Any], topic: str, *, codec: Untyped, **options: Unpack[ProducerOptions]) -> None: ...

    def __init__(
        self,
        topic: str,
        *,
        name: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None,
        client: Api | None = None,
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
        """Open the producer on the service.

        Args:
            name: None lets the service assign a unique one, which ends with this producer: nobody can resume under it.
            initial_sequence_id: of the first message; above the last persisted one.
            gaps: ``refuse`` has the service refuse a message that leaves a sequence id out.
            verify, cert, proxy: as of a :class:`oncelog.Client`, where none is given.
            codec: None for bytes, or what :func:`oncelog.codecs.codec_for` takes.
            linger: seconds that a message sent by send_async may wait for company.
            max_pending, max_pending_bytes: messages, and their bytes, that may wait; send_async waits beyond that. A single
                message may be larger, when nothing else waits.
            delivery_timeout: seconds that a batch is tried again before the producer stops. Without a name they count from when
                the batch was complete, since it does not stop, and others wait behind it.
            exit_timeout: seconds that what is unsent may take when the interpreter exits, or Ctrl-C ends the ``with`` block.

        Raises:
            TopicNotFound, InitialSequenceIdTaken, InvalidRequest, ConnectionFailed; ValueError: no thread can wait so long.
        """
        if initial_sequence_id is not None:
            check_sequence_id(initial_sequence_id)
        check_seconds(linger=linger, delivery_timeout=delivery_timeout, exit_timeout=exit_timeout)
        self._owns_client = client is None
        self._client = Api(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._topic = topic
        self._namespace = namespace
        self._asked_name = name
        self._initial = initial_sequence_id
        self._gaps: Gaps = gaps
        self._codec = codec_for(codec)
        self._limits = BatchLimits(batch_max_messages, batch_max_bytes, linger)
        self._max_pending, self._max_pending_bytes = max_pending, max_pending_bytes
        self._delivery_timeout = delivery_timeout
        self._exit_timeout = exit_timeout
        self._lock = threading.RLock()
        """Reentrant: a signal handler may interrupt whoever holds it. See :meth:`_put`."""
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        """Held by whoever sends. Never by the main thread, which handlers interrupt, as long as there can be another one."""
        self._version = 0
        self._closed = False
        self._clear()
        try:
            self._begin(self._open())
        except BaseException:
            if self._owns_client:
                self._client.close()
            raise
        forks.register(self)
        exits.register(self)

    def _open(self) -> OpenedProducer:
        opened = self._client.open_producer(self._topic, self._asked_name, gaps=self._gaps, namespace=self._namespace)
        initial, last = self._initial, opened.last_sequence_id
        if initial is not None and last is not None and initial <= last:
            raise InitialSequenceIdTaken(
                f"producer {opened.name!r} has already published sequence id {last}; "
                f"the initial one must be above it, not {initial}",
                initial=initial,
                last_sequence_id=last,
            )
        return opened

    def _clear(self) -> None:
        """Nothing is queued."""
        self._batch = Batch()
        self._condition = threading.Condition(self._lock)  # shared by the outcomes of the batch
        self._queue: deque[Batch] = deque()
        self._pending = 0
        self._pending_bytes = 0
        self._due: float | None = None
        self._stopped: OncelogError | None = None
        self._failure: OncelogError | None = None
        self._abandoned = threading.Event()
        self._last_moment = inf
        """When what has no answer is given up at the latest, while the interpreter exits."""
        self._thread: threading.Thread | None = None
        self._drainer: int | None = None
        self._held: _Held | None = None
        self._ended = False

    def _begin(self, opened: OpenedProducer) -> None:
        self._take_name(opened)
        self._last_sequence_id = last = opened.last_sequence_id
        self._last_message_id = opened.last_message_id
        self._opened_at = -1 if last is None else last
        self._next = self._initial if self._initial is not None else self._opened_at + 1
        self._numbers_itself: bool | None = False if self._initial is not None else None
        self._taken = TakenIds()
        self._home = forks.here()

    def _take_name(self, opened: OpenedProducer) -> None:
        self._name = opened.name
        self._epoch = opened.epoch
        self._ended = False
        self._note_use()

    def _note_use(self) -> None:
        self._used_at = time.monotonic(), time.time()

    def _idle_seconds(self) -> float:
        """Since the name was used last. Of two clocks: the one stands still while the machine sleeps, the other may be set."""
        monotonic, wall = self._used_at
        return max(time.monotonic() - monotonic, time.time() - wall)

    @property
    def topic(self) -> str:
        """Where it publishes."""
        return self._topic

    @property
    def namespace(self) -> str:
        """The topic's namespace."""
        return self._namespace

    @property
    def name(self) -> str:
        """The producer's name, also when the service assigned it."""
        return self._name

    @property
    def epoch(self) -> int:
        """The number of this incarnation."""
        return self._epoch

    @property
    def last_sequence_id(self) -> int | None:
        """The highest sequence id that is known to be on disk; None if this producer never published."""
        return self._last_sequence_id

    @property
    def last_message_id(self) -> MessageId | None:
        """The id of that message, or None."""
        return self._last_message_id

    # --- sending

    def send(
        self,
        value: R,
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
            ttl: seconds that it lives; shorter than the topic's.
            expected_offset: that it gets.
            expected_last_id: of the newest message of the topic; ``MessageId.NONE``: nothing was ever published.
            expected_key_offset: of the newest message with the same key; None: no message has it yet.

        Raises:
            OffsetMismatch: what it expects does not hold. It is not stored, and the producer goes on.
            ExpectationsNotChecked: the topic does not check any; the same holds.
            OncelogError: as the future of :meth:`send_async` would.
        """
        self._may_wait()
        future = self._enqueue(
            value, sequence_id, key, properties, ttl, True, expected_offset, expected_last_id, expected_key_offset
        )
        try:
            self._await(future)
        except BaseException:
            future.awaited = False  # whoever sent it was interrupted and does not hear of it here
            raise
        return future.result()

    def send_async(
        self,
        value: R,
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

        The arguments are those of :meth:`send`. What a message expects is judged as if it came in a request of its own; only
        those whose expected offsets follow on share one. Waits while ``max_pending`` messages, or ``max_pending_bytes``, are
        queued. Raises ProducerStopped, ProducerClosed, Forked, MixedSequenceIds, SequenceIdNotRising, CodecError, InvalidRequest
        at once.
        """
        return self._enqueue(
            value, sequence_id, key, properties, ttl, False, expected_offset, expected_last_id, expected_key_offset
        )

    def send_batch(
        self,
        values: Sequence[R],
        *,
        sequence_ids: Sequence[int] | None = None,
        keys: Sequence[bytes | str | None] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        expected_offset: int | None = None,
        expected_last_id: MessageId | None = None,
    ) -> list[Receipt]:
        """Send many messages and return when all are on disk; their receipts in the same order.

        ``sequence_ids``, ``keys``, ``properties``: one for each message.

        With an expectation, which is of the first one, they are one request: side by side in the log, all of them or none. An
        empty one expects nothing.

        Raises:
            OncelogError: as :meth:`send` does. RequestTooLarge: with an expectation, more than the service takes at once.
        """
        self._may_wait()
        numbers = one_each(sequence_ids, len(values), "sequence ids")
        named = one_each(keys, len(values), "keys")
        described = one_each(properties, len(values), "properties")
        expected = expectation(expected_offset, expected_last_id, UNCHECKED, None)
        if not values:
            return []
        if expected is None:
            payloads, names = self._encode_all(values, named, described)
            futures = [
                self._queue_up(payload, number, key, each, None, False, None)
                for payload, number, key, each in zip(payloads, numbers, names, described, strict=True)
            ]
        else:
            futures = self._enqueue_whole(values, numbers, named, described, expected)
        self._close_batch()
        self._await(futures[-1])
        return [future.result() for future in futures]

    def resume(self, rows: Iterable[X], *, sequence_id: Callable[[X], int]) -> Iterator[X]:
        """Those of ``rows`` whose sequence id is above what is already persisted. One-shot iterators are fine."""
        for row in rows:
            number = sequence_id(row)
            if self._opened_at < number:
                yield row

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent so far has its outcome; raise the first failure since the last flush.

        A failure that :meth:`send` raised has been told and is not raised again.

        Raises:
            OncelogError: that failure. TimeoutError: ``timeout`` seconds were not enough.
        """
        self._may_wait()
        if self._is_elsewhere():
            return  # nothing was sent on this side of the fork
        last = self._close_batch()
        if last is not None and timeout is None:
            self._send_up_to(last)
        if last is not None and not last.done and timeout is not None and not self._wakes_sender():
            self._last_moment = time.monotonic() + timeout  # nobody else can: the interpreter exits
            self._drain(until=last.waiters[-1])
        with self._changed:
            if not self._changed.wait_for(lambda: last is None or last.done, timeout):
                raise TimeoutError(f"{self._pending} messages have no outcome yet")
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Twice is as once. Raises as :meth:`flush` does, closed all the same.

        ``timeout``: seconds; else as long as ``delivery_timeout`` lets it take. What has no outcome by then is given up: its
        futures fail, and TimeoutError says how many they are. In a forked child it lets go of what is there, and sends nothing.
        """
        self._may_wait()
        with self._changed:
            self._closed = True
            self._version += 1  # a send that this handler interrupts looks again whether it may
            self._changed.notify_all()
        try:
            self.flush(timeout)
            with self._changed:
                self._changed.wait_for(lambda: self._thread is None, 1.0)  # it has nothing left to do
        except TimeoutError:
            raise TimeoutError(self._give_up()) from None
        finally:
            self._end_name(END_SECONDS if timeout is None else min(timeout, END_SECONDS))
            if self._owns_client:
                self._client.close()

    def _end_name(self, seconds: float) -> None:
        """An assigned name ends with its producer, if all its messages have a definite outcome: nobody will ask what became of
        them, and no late copy of one is stored any more."""
        with self._lock:
            stays = self._asked_name is not None or self._stopped is not None or self._held is not None
            if stays or self._ended or self._queue or self._batch.payloads or self._is_elsewhere():
                return
            self._ended = True
        if seconds > 0:
            with suppress(OncelogError):
                self._client.end_producer(self._topic, self._name, self._epoch, self._namespace, timeout=seconds)

    def _give_up(self) -> str:
        """What has no outcome yet gets none; how much that is, in words."""
        with self._lock:
            self._end_batch()
            left = [batch for batch in self._queue if not batch.done]
            if self._stopped is None:
                self._stopped = OncelogError("the producer was closed before this was answered", definite=False)
            self._abandoned.set()
            self._changed.notify_all()
        ids = [
            number
            for batch in left
            for number, waiter in zip(batch.sequence_ids, batch.waiters, strict=True)
            if not waiter.done()
        ]
        for at, batch in enumerate(left):  # only the first can be under way
            self._fail(batch, self._stopped if at == 0 else ProducerStopped("the producer was closed before this was sent"))
        self._failure = None  # who gave up has been told
        place = f"{self._namespace}/{self._topic}"
        return f"producer {self._name!r} of {place}: {len(ids)} messages have no outcome and are given up" + (
            f", sequence ids {ids[0]} to {ids[-1]}" if ids else ""
        )

    # --- the process around it

    def _is_elsewhere(self) -> bool:
        """Whether it was opened before a fork, and not since."""
        return forks.here() != self._home

    def _come_over(self) -> None:
        """To this side of a fork. Raises Forked where that would fence the other side's."""
        if self._closed:
            raise ProducerClosed
        if self._asked_name is not None:
            raise forks.forked(f"producer {self._name!r}")
        with self._lock:
            opened = self._open()
            if self._is_elsewhere():  # else a signal handler, or who held the lock before, has done it
                self._begin(opened)
        exits.register(self)

    def _after_fork(self) -> None:
        if self._drainer != threading.get_ident():
            forks.renew(self._sending)
        forks.renew(self._lock)
        error = forks.forked(f"the message was queued, and producer {self._name!r}")
        error.definite = False
        for batch in (*self._queue, self._batch):
            disown(batch.waiters, error)
        self._clear()

    def _begin_exit(self) -> None:
        if not self._is_elsewhere() and self._close_batch() is not None:
            self._wakes_sender()

    def _end_exit(self, begun: float) -> str | None:
        if self._is_elsewhere() or self._abandoned.is_set() or self._drainer == threading.get_ident():
            return None
        try:
            self.flush(max(0.0, begun + self._exit_timeout - time.monotonic()))
            self._end_name(min(END_SECONDS, begun + self._exit_timeout - time.monotonic()))
        except TimeoutError:
            return self._give_up() + ": the interpreter exits; flush() or close() the producer before"
        except OncelogError as error:
            return f"producer {self._name!r} of {self._namespace}/{self._topic}: a message failed and nobody has asked: {error}"
        return None

    def __enter__(self) -> Producer[R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        try:
            self.close(self._exit_timeout if interrupted else None)  # Ctrl-C once is enough
        except OncelogError:
            if kind is None:
                raise  # else the error that ends the block says more
        except TimeoutError as error:
            exits.say(str(error))

    # --- in a transaction: for HeldProducers only

    def _hold(self, transaction: int | str) -> None:
        """Flush, then take messages of this transaction only until it ends; :meth:`send` raises ProducerInTransaction meanwhile.

        Raises as :meth:`flush` does, ProducerInTransaction, ProducerStopped, ProducerClosed.
        """
        self._may_wait()
        if self._is_elsewhere():
            self._come_over()
        with self._lock:
            if not self._usable():
                raise self._unusable()
            self._held = self._standing(transaction)
        try:
            self.flush()
            if self._asked_name is None and self._idle_seconds() > RENEW_SECONDS:
                self._take_name(self._open())  # every message has its outcome
        except BaseException:
            self._held = None
            raise
        with self._lock:
            self._held = self._standing(transaction)  # what was refused meanwhile has given its number back

    def _standing(self, transaction: int | str) -> _Held:
        return _Held(transaction, self._next, self._numbers_itself, self._taken.copy())

    def _number_held(self, sequence_id: int | None) -> int:
        """The sequence id of the next message of the transaction. Raises as :meth:`send_async` does."""
        with self._lock:
            while True:
                if self._stopped is not None or self._closed:
                    raise self._unusable()
                version = self._version
                number, newest = self._number(sequence_id)
                if self._take(version, number, newest, sequence_id is not None):
                    return number

    def _has_stored(self, sequence_id: int) -> bool:
        """Whether the topic has this or a higher sequence id of this producer. Raises OncelogError: it cannot be asked."""
        last = self._client.producer(self._topic, self._name, self._namespace).last_persisted
        return last is not None and sequence_id <= last

    def _release(self, last: Receipt | None) -> None:
        """The transaction is committed; ``last``: of its last message."""
        with self._lock:
            self._held = None
            self._note_use()
            if last is not None:
                self._advance(last)

    def _roll_back(self) -> None:
        """The transaction is rolled back: its sequence ids were never used."""
        with self._lock:
            if self._held is not None:
                _, self._next, self._numbers_itself, self._taken = self._held
                self._version += 1
            self._held = None

    def _stop(self, error: BaseException) -> None:
        """Nobody knows which sequence ids are used: nothing may follow."""
        with self._lock:
            self._held = None
            self._stopped = error if isinstance(error, OncelogError) else _interruption(error)

    def _encode(self, value: R) -> bytes:
        """A value as its payload. Raises CodecError; TypeError where there is no codec for it."""
        return encode_value(value, self._codec)

    # --- the queue

    def _enqueue(
        self,
        value: R,
        sequence_id: int | None,
        key: bytes | str | None,
        properties: Mapping[str, str] | None,
        ttl: int | None,
        at_once: bool,
        expected_offset: int | None,
        expected_last_id: MessageId | None,
        expected_key_offset: int | Unchecked | None,
    ) -> Outcome:
        payload: bytes = value if type(value) is bytes and self._codec is None else self._encode(value)  # type: ignore[assignment]
        if key is not None or properties is not None or ttl is not None:
            key = checked_extras(key, properties, ttl)
        expected = None
        if expected_offset is not None or expected_last_id is not None or expected_key_offset is not UNCHECKED:
            expected = expectation(expected_offset, expected_last_id, expected_key_offset, key)
        return self._queue_up(payload, sequence_id, key, properties, ttl, at_once, expected)

    def _encode_all(
        self, values: Sequence[R], keys: Sequence[bytes | str | None], properties: Sequence[Mapping[str, str] | None]
    ) -> tuple[list[bytes], list[bytes | None]]:
        """Payloads and keys of a batch, all of them before the first is queued: where one cannot be sent, none is, and whoever
        sends the rest again doubles nothing."""
        payloads = [self._encode(value) for value in values]
        return payloads, [checked_extras(key, each, None) for key, each in zip(keys, properties, strict=True)]

    def _queue_up(
        self,
        payload: bytes,
        sequence_id: int | None,
        key: bytes | None,
        properties: Mapping[str, str] | None,
        ttl: int | None,
        at_once: bool,
        expected: Expectation | None,
    ) -> Outcome:
        """Number and queue one message that can be sent."""
        size = size_of(payload, key, properties)
        given = sequence_id is not None
        if forks.here() != self._home:
            self._come_over()
        with self._lock:
            while True:
                if self._pending and not self._has_room(size):
                    self._wait_for_room(size)
                if not self._usable():
                    raise self._unusable()
                version, batch = self._version, self._batch
                number, newest = self._number(sequence_id)
                if not batch.accepts(number, expected):
                    self._end_batch()
                    continue
                outcome = Outcome(self._condition)
                outcome.awaited = at_once
                if self._put(version, batch, number, newest, given, payload, outcome, key, properties, ttl, expected, size):
                    break
            if at_once:
                self._end_batch()
            elif batch.size >= self._limits.max_bytes or len(batch.payloads) >= self._limits.max_messages:
                self._end_batch()
                self._wake_sender()
            elif self._due is None:
                self._due = time.monotonic() + self._limits.linger
                self._wake_sender()
        if not at_once:
            exits.late(self)
        return outcome

    def _put(
        self,
        version: int,
        batch: Batch,
        number: int,
        newest: tuple[int, int] | None,
        given: bool,
        payload: bytes,
        outcome: Outcome,
        key: bytes | None,
        properties: Mapping[str, str] | None,
        ttl: int | None,
        expected: Expectation | None,
        size: int,
    ) -> bool:
        """Queue a message, if everything still is as it was at that version.

        The lock keeps other threads out, but not a signal handler, which interrupts the thread that holds it and may send, flush
        and close through the same producer. So all of this is one step to it: CPython runs handlers where a function begins,
        behind calls and at the ends of loops, and there is none of these between the comparison and the end. What was found out
        before is looked at again if a handler came between (or, while that waited, another thread). All that changes what is
        queued or numbered is written like this: compare the version, then change everything without a call, or with one at the
        very end.
        """
        if self._version != version:
            return False
        self._version = version + 1
        self._numbers_itself = given
        if not given:
            self._next = number + 1
        elif newest is not None:
            taken = self._taken
            taken.highest = number
            if newest[0] == number:
                taken.ranges += (newest,)
            else:
                taken.ranges[-1] = newest
        if not batch.payloads:
            batch.expected = expected
        if key is not None or properties is not None or ttl is not None:
            batch.extras = True
        batch.size += size
        self._pending_bytes += size
        self._pending += 1
        batch.payloads += (payload,)
        batch.sequence_ids += (number,)
        batch.waiters += (outcome,)
        batch.keys += (key,)
        batch.properties += (properties,)
        batch.ttls += (ttl,)
        if newest is not None and newest[0] == number:
            self._taken.forget()
        return True

    def _take(self, version: int, number: int, newest: tuple[int, int] | None, given: bool) -> bool:
        """Use a sequence id that is not queued here. One step, as :meth:`_put` is."""
        if self._version != version:
            return False
        self._version = version + 1
        self._numbers_itself = given
        if not given:
            self._next = number + 1
        elif newest is not None:
            taken = self._taken
            taken.highest = number
            if newest[0] == number:
                taken.ranges += (newest,)
            else:
                taken.ranges[-1] = newest
        return True

    def _enqueue_whole(
        self,
        values: Sequence[R],
        sequence_ids: Sequence[int | None],
        keys: Sequence[bytes | str | None],
        properties: Sequence[Mapping[str, str] | None],
        expected: Expectation,
    ) -> list[Outcome]:
        """Queue messages as one request that is stored as a whole or not at all; so they are numbered, too."""
        payloads, named = self._encode_all(values, keys, properties)
        if self._is_elsewhere():
            self._come_over()
        with self._lock:
            while True:
                self._wait_for_room(sum(map(len, payloads)))
                if not self._usable():
                    raise self._unusable()
                self._end_batch()
                version = self._version
                numbers, after, taken = self._number_all(sequence_ids)
                batch, condition = Batch(whole=True, queued_at=time.monotonic()), threading.Condition(self._lock)
                for number, payload, key, each in zip(numbers, payloads, named, properties, strict=True):
                    outcome = Outcome(condition)
                    outcome.awaited = True
                    batch.add(number, payload, outcome, key, each, expected=expected)
                outcomes, count, queue = list(batch.waiters), len(payloads), self._queue
                if self._version == version:  # one step, as _put is
                    self._version = version + 1
                    self._numbers_itself, self._next, self._taken = sequence_ids[0] is not None, after, taken
                    self._pending += count
                    self._pending_bytes += batch.size
                    queue.append(batch)
                    return outcomes

    def _has_room(self, size: int) -> bool:
        return self._pending < self._max_pending and self._pending_bytes + size <= self._max_pending_bytes

    def _wait_for_room(self, size: int) -> None:
        """Return when there is room, or none is needed any more. The thread that makes the room cannot wait for it."""
        if self._drainer != threading.get_ident():
            if self._pending and not self._has_room(size):
                self._end_batch()  # what lingers would take room until its time is up, and has the company it can get
                self._wake_sender()
            self._changed.wait_for(lambda: not self._pending or self._has_room(size) or self._stopped or self._closed)

    def _usable(self) -> bool:
        return self._stopped is None and not self._closed and self._held is None

    def _unusable(self) -> OncelogError:
        if self._stopped is None and self._held is not None and not self._closed:
            held_by = self._held.transaction
            detail = f"producer {self._name!r} is in transaction {held_by}: send with the transaction, or when it has ended"
            pointer = held_by if isinstance(held_by, int) else None
            return ProducerInTransaction(detail, producer=self._name, write_pointer=pointer)
        if self._stopped is None:
            return ProducerClosed()
        error = ProducerStopped(f"producer {self._name!r} stopped: {self._stopped}; open it again")
        error.__cause__ = self._stopped
        return error

    def _number(self, given: int | None) -> tuple[int, tuple[int, int] | None]:
        """The message's sequence id, and what taking it makes of the newest range of those taken. Changes nothing.

        Taken under the same lock that queues it: the order of the one is the order of the other.
        """
        if given is not None:
            check_sequence_id(given)
        self._check_numbering(given is not None)
        if given is None:
            if self._next > MAX_SEQUENCE_ID:
                raise InvalidRequest(f"producer {self._name!r} has used up its sequence ids")
            return self._next, None
        if given <= self._opened_at:
            return given, None
        newest = self._taken.newest_with(given)
        if newest is None and not self._taken.may_repeat(given):
            raise self._passed_over(given, self._taken.highest)
        return given, newest

    def _number_all(self, given: Sequence[int | None]) -> tuple[list[int], int, TakenIds]:
        """The ids of messages that are one request, the next one, and those taken then. Changes nothing."""
        taken, number = self._taken.copy(), self._next
        numbers: list[int] = []
        for each in given:
            if each is None:
                self._check_numbering(False)
                if number > MAX_SEQUENCE_ID:
                    raise InvalidRequest(f"producer {self._name!r} has used up its sequence ids")
                numbers.append(number)
                number += 1
                continue
            check_sequence_id(each)
            self._check_numbering(True)
            if each > self._opened_at and not taken.take(each):
                raise self._passed_over(each, taken.highest)
            numbers.append(each)
        for last, received in pairwise(numbers):
            if received <= last:
                raise SequenceIdNotRising(f"{received} does not follow {last}; nothing was sent", last=last, received=received)
        return numbers, number, taken

    def _check_numbering(self, given: bool) -> None:
        if self._numbers_itself is not None and self._numbers_itself is not given:
            raise MixedSequenceIds(
                "this producer's messages are numbered by "
                + ("the application: give each a sequence_id" if self._numbers_itself else "the SDK: give none a sequence_id")
            )

    def _passed_over(self, given: int, highest: int | None) -> SequenceIdNotRising:
        return SequenceIdNotRising(
            f"sequence id {given} was passed over: {highest} was sent before it; nothing was sent", last=highest, received=given
        )

    def _close_batch(self) -> Batch | None:
        """The last batch that is on its way; every message so far is in it or in one before it."""
        with self._lock:
            self._end_batch()
            with suppress(IndexError):
                return self._queue[-1]
            return None

    def _end_batch(self) -> None:
        """Queue the open batch, if there is anything in it."""
        fresh, condition, queue, now = Batch(), threading.Condition(self._lock), self._queue, time.monotonic()
        batch = self._batch
        # Also where nothing lingers: a handler may have ended the batch before its message was given a time. Whoever sends would
        # end it again and again then, with the lock held. One step with what follows, as _put is.
        self._due = None
        if batch.payloads:
            self._version += 1
            self._batch, self._condition = fresh, condition
            batch.queued_at = now
            queue.append(batch)

    def _wake_sender(self) -> bool:
        """False: no thread can be started any more, since the interpreter exits."""
        thread = self._thread
        if thread is None or thread.ident is None:  # not started yet: a signal handler has come between these lines
            thread = self._thread = threading.Thread(target=self._run, name=f"oncelog-producer-{self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
                return False
        self._changed.notify_all()
        return True

    def _wakes_sender(self) -> bool:
        with self._lock:
            return self._wake_sender()

    def _send_up_to(self, batch: Batch) -> None:
        """Have everything sent up to this batch, by this thread or another one; it may not be done yet.

        Signal handlers interrupt the main thread alone; if that sent by itself, a handler could not send, since the request of
        the frame that it interrupts would be under way until it returns.
        """
        if threading.current_thread() is threading.main_thread():
            with self._lock:
                if self._wake_sender():
                    return
        self._drain(until=batch.waiters[-1])

    def _await(self, outcome: Outcome) -> None:
        """Return when the message has its outcome."""
        if threading.current_thread() is threading.main_thread():
            with self._changed:
                if self._wake_sender():
                    self._changed.wait_for(outcome.done)
                    return
        self._drain(until=outcome)
        outcome.exception()

    def _run(self) -> None:
        """The sender's thread: sends what is full or has lingered long enough."""
        me = threading.current_thread()
        while True:
            with self._changed:
                while not self._queue:
                    if self._thread is not me:
                        return  # another one was started instead
                    if self._closed and not self._batch.payloads:
                        self._thread = None
                        self._changed.notify_all()
                        return
                    left = 0.0 if self._closed else None if self._due is None else self._due - time.monotonic()
                    if left is not None and left <= 0:
                        self._end_batch()
                    else:
                        self._changed.wait(left)
            # What escapes from here has stopped the producer; the thread stays, so that whatever is queued is told so.
            with suppress(BaseException):
                self._drain()

    # --- the wire

    def _may_wait(self) -> None:
        """A callback of a future runs on the thread that sends; waiting there for what is to be sent would never end."""
        if self._drainer == threading.get_ident():
            raise RuntimeError(
                "send, send_batch, flush and close wait and cannot be called by a future's callback; use send_async"
            )

    def _drain(self, until: Outcome | None = None) -> None:
        """Send the queued batches, in order, up to the message ``until`` (None: all).

        With ``until``, returns at once where another thread is sending: that one, or the sender's thread after it, gets there.

        A batch leaves the queue when all its messages have their outcome. If Ctrl-C comes in between, it is delivered again:
        as duplicates, or, once the producer is stopped, as failures. It is never passed over.
        """
        if not self._sending.acquire(blocking=until is None):
            return
        try:
            self._drainer = threading.get_ident()
            while self._queue and not (until is not None and until.done()):
                batch = self._queue[0]
                # What expects something may not be judged again once it was told that it had lost: now it might win.
                if batch.expected is None or not batch.waiters[-1].done():
                    self._deliver(batch)
                with self._changed:
                    batch.done = True
                    if self._queue and self._queue[0] is batch:  # else this was forked in a callback
                        self._queue.popleft()
                        self._pending -= len(batch.waiters)
                        self._pending_bytes -= batch.size
                    self._changed.notify_all()
        finally:
            self._drainer = None
            self._sending.release()
            if self._queue and until is not None:
                with self._lock:
                    self._wake_sender()

    def _deliver(self, batch: Batch) -> None:
        """Send a batch, in as many parts as its faulty messages make of it, until each message has its outcome."""
        parts, here = [batch], forks.here()
        try:
            while parts and forks.here() == here:  # a callback may fork: the rest is the parent's to send
                parts[:1] = self._deliver_part(parts[0])
        except BaseException as error:
            self._stopped = _interruption(error)
            self._fail(batch, self._stopped)
            raise

    def _deliver_part(self, part: Batch) -> list[Batch]:
        """What is still to be sent of it, in order."""
        if self._stopped is not None:
            self._fail(part, ProducerStopped(f"producer {self._name!r} stopped before this was sent: {self._stopped}"))
            return []
        try:
            self._settle(part, self._publish(part))
        except OncelogError as error:
            if is_one_messages_fault(error):
                return self._refuse(part, error)
            if self._goes_on_after(error):
                self._give_back(part)
            elif self._stopped is None:
                self._stopped = error
            self._fail(part, error)
        return []

    def _goes_on_after(self, error: OncelogError) -> bool:
        """Whether only these messages fail: certainly not stored, and nobody relies on none being left out."""
        return self._asked_name is None and self._gaps == "allow" and error.definite and not ends_a_producer(error)

    def _refuse(self, part: Batch, error: OncelogError) -> list[Batch]:
        """Fail the messages whose fault it is; the others are still to be sent."""
        if isinstance(error, OffsetMismatch):
            known, refused, rest = part.parted(error)
            self._give_back(refused)
            self._fail_each(refused, error)
            return [each for each in (known, rest) if each.payloads]
        if len(part.payloads) > 1 and not part.whole and isinstance(error, _CAN_BE_ONE_OF_MANY):
            return list(part.halves())
        self._give_back(part)
        self._fail(part, error)
        return []

    def _give_back(self, refused: Batch) -> None:
        """These messages are refused for good: their sequence ids are unused, unless they were stored before."""
        with self._lock:
            unused = [each for each in refused.sequence_ids if self._last_sequence_id is None or each > self._last_sequence_id]
            newest = (self._batch if self._batch.payloads else self._queue[-1]).waiters[-1] is refused.waiters[-1]
            if not unused:
                return
            self._version += 1
            if self._numbers_itself:
                self._taken.give_back(unused, newest)
            elif newest:
                self._next = unused[0]

    def _publish(self, batch: Batch) -> list[ReceiptRun]:
        request = batch.request(self._name, self._epoch)
        since = time.monotonic() if self._asked_name is not None else batch.queued_at
        end = min(since + self._delivery_timeout, self._last_moment)
        attempt = 0
        perhaps_stored = renewed = False
        while True:
            try:
                runs = self._client.publish(self._topic, request, self._namespace)
                check_names_all(runs, batch.sequence_ids)
                self._note_use()
                return runs
            except OncelogError as error:
                if isinstance(error, ProducerEnded) and self._asked_name is None and not perhaps_stored and not renewed:
                    request, renewed = self._under_another_name(batch), True
                    continue
                wait = wait_before_retry(error, attempt, random.random(), end - time.monotonic())
                # With its name and sequence ids a request can be repeated: what is there already is answered as a duplicate.
                if wait is None or self._abandoned.is_set() or not may_retry(error, idempotent=True):
                    # Refused by a full store or a dead port now; an earlier try may have got through all the same.
                    error.definite = error.definite and (not perhaps_stored or rules_out_earlier_tries(error))
                    raise
                perhaps_stored = perhaps_stored or not error.definite
            self._abandoned.wait(wait)
            attempt += 1

    def _under_another_name(self, batch: Batch) -> PublishRequest:
        """The same request; nothing of it can have been stored. Raises OncelogError: definite."""
        try:
            self._take_name(self._open())
        except OncelogError as error:
            error.definite = True  # of the messages, whatever became of the open
            raise
        return batch.request(self._name, self._epoch)

    def _settle(self, batch: Batch, runs: list[ReceiptRun]) -> None:
        self._advance(Receipt(runs[-1], runs[-1].count - 1))
        settle(batch.waiters, [Receipt(run, at) for run in runs for at in range(run.count)])

    def _advance(self, last: Receipt) -> None:
        if self._last_sequence_id is None or last.sequence_id > self._last_sequence_id:
            self._last_sequence_id = last.sequence_id
            self._last_message_id = last.message_id

    def _fail(self, batch: Batch, error: OncelogError) -> None:
        if self._failure is None and is_anybody_to_be_told(batch.waiters):
            self._failure = error
        settle_failed(batch.waiters, error)

    def _fail_each(self, batch: Batch, error: OffsetMismatch) -> None:
        """As :meth:`_fail`, each with the offset that it expected itself."""
        if batch.whole or len(batch.waiters) == 1:
            self._fail(batch, error)
            return
        for at, waiter in enumerate(batch.waiters):
            assert batch.expected is not None
            offset = batch.expected.moved(at).offset
            detail = f"offset {offset} was expected of {error.topic}, in one request with those before it: {error.detail}"
            own = OffsetMismatch(detail, condition="offset", expected=offset, actual=error.actual, topic=error.topic)
            self._fail(Batch(waiters=[waiter]), own)


class _Held(NamedTuple):
    """The transaction that a producer is in, and how its numbering stood before."""

    transaction: int | str
    """Its write pointer; the id of an atomic commit."""
    next: int
    numbers_itself: bool | None
    taken: TakenIds


def _interruption(error: BaseException) -> OncelogError:
    stopped = OncelogError(f"sending was interrupted: {error!r}", definite=False)
    stopped.__cause__ = error
    return stopped
