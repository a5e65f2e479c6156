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
from typing import Any, Generic, NamedTuple, TypeVar

from oncelog.batching import LINGER_SECONDS, MAX_BYTES, MAX_MESSAGES, Batch, BatchLimits, TakenIds
from oncelog.client import Client
from oncelog.codecs import Codec, codec_for
from oncelog.errors import (
    InitialSequenceIdTaken,
    InvalidRequest,
    MixedSequenceIds,
    OffsetMismatch,
    OncelogError,
    ProducerClosed,
    ProducerInTransaction,
    ProducerStopped,
    RequestTooLarge,
    SequenceIdNotRising,
    SequenceReused,
)
from oncelog.expectation import UNCHECKED, Expectation, Unchecked, expectation
from oncelog.message_id import MessageId
from oncelog.outcome import Outcome, settle, settle_failed
from oncelog.plausible import check_names_all
from oncelog.receipt import Receipt
from oncelog.retry import is_one_messages_fault, may_retry, rules_out_earlier_tries, wait_before_retry
from oncelog.trust import Certificate, Verify
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Gaps
from oncelog.wire.requests import ReceiptRun

MAX_SEQUENCE_ID = 2**63 - 1
MAX_PENDING = 50_000
"""Messages that may wait to be sent; send_async waits beyond that, so that memory is bounded when the service is slow."""
DELIVERY_SECONDS = 120.0
"""How long a message is tried again (Kafka's delivery.timeout.ms)."""

R = TypeVar("R")
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
    """

    def __init__(
        self,
        topic: str,
        *,
        name: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None,
        client: Client | None = None,
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
        delivery_timeout: float = DELIVERY_SECONDS,
    ) -> None:
        """Open the producer on the service.

        Args:
            name: None lets the service assign a unique one; then nothing can be resumed under it after a restart.
            initial_sequence_id: of the first message; above the last persisted one.
            gaps: ``refuse`` has the service refuse a message that leaves a sequence id out.
            verify, cert, proxy: as of a :class:`oncelog.Client`, where none is given.
            codec: None for bytes, or what :func:`oncelog.codecs.codec_for` takes.
            linger: seconds that a message sent by send_async may wait for company.
            delivery_timeout: seconds that a batch is tried again before the producer stops.

        Raises:
            TopicNotFound, InitialSequenceIdTaken, InvalidRequest; ConnectionFailed when no service answers.
        """
        if initial_sequence_id is not None:
            check_sequence_id(initial_sequence_id)
        self._owns_client = client is None
        self._client = Client(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._topic = topic
        self._namespace = namespace
        self._codec = codec_for(codec)
        self._limits = BatchLimits(batch_max_messages, batch_max_bytes, linger)
        self._max_pending = max_pending
        self._delivery_timeout = delivery_timeout
        try:
            opened = self._client.open_producer(topic, name, gaps=gaps, namespace=namespace)
            last = opened.last_sequence_id
            if initial_sequence_id is not None and last is not None and initial_sequence_id <= last:
                raise InitialSequenceIdTaken(
                    f"producer {opened.name!r} has already published sequence id {last}; "
                    f"the initial one must be above it, not {initial_sequence_id}",
                    initial=initial_sequence_id,
                    last_sequence_id=last,
                )
        except BaseException:
            if self._owns_client:
                self._client.close()
            raise
        self._name = opened.name
        self._epoch = opened.epoch
        self._last_sequence_id = last
        self._last_message_id = opened.last_message_id
        self._opened_at = -1 if last is None else last
        self._next = initial_sequence_id if initial_sequence_id is not None else self._opened_at + 1
        self._numbers_itself: bool | None = False if initial_sequence_id is not None else None
        self._taken = TakenIds()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._batch = Batch()
        self._condition = threading.Condition()  # shared by the outcomes of the batch
        self._queue: deque[Batch] = deque()
        self._pending = 0
        self._due: float | None = None
        self._stopped: OncelogError | None = None
        self._failure: OncelogError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._drainer: int | None = None
        self._held: _Held | None = None

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
        value: R | bytes,
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
        self._drain(until=future)
        return future.result()

    def send_async(
        self,
        value: R | bytes,
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
        those whose expected offsets follow on share one. Waits while ``max_pending`` messages are queued. Raises ProducerStopped,
        ProducerClosed, MixedSequenceIds, SequenceIdNotRising, CodecError, InvalidRequest at once.
        """
        return self._enqueue(
            value, sequence_id, key, properties, ttl, False, expected_offset, expected_last_id, expected_key_offset
        )

    def send_batch(
        self,
        values: Sequence[R | bytes],
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
            futures = [
                self._enqueue(value, number, key, each, None, False, None, None, UNCHECKED)
                for value, number, key, each in zip(values, numbers, named, described, strict=True)
            ]
        else:
            futures = self._enqueue_whole(values, numbers, named, described, expected)
        self._close_batch()
        self._drain(until=futures[-1])
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
        last = self._close_batch()
        if last is not None and timeout is None:
            self._drain(until=last.waiters[-1])
        with self._changed:
            if last is not None and not last.done and timeout is not None:
                self._wake_sender()  # it may need longer than the caller has
            if not self._changed.wait_for(lambda: last is None or last.done, timeout):
                raise TimeoutError(f"{self._pending} messages have no outcome yet")
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, then let go of the connection. Twice is as once. Raises as :meth:`flush` does, closed all the same."""
        self._may_wait()
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        try:
            self.flush()
        finally:
            thread = self._thread
            if thread is not None:
                thread.join()
            if self._owns_client:
                self._client.close()

    def __enter__(self) -> Producer[R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except OncelogError:
            if kind is None:
                raise  # else the error that ends the block says more

    # --- in a transaction: for HeldProducers only

    def _hold(self, transaction: int | str) -> None:
        """Flush, then take messages of this transaction only until it ends; :meth:`send` raises ProducerInTransaction meanwhile.

        Raises as :meth:`flush` does, ProducerInTransaction, ProducerStopped, ProducerClosed.
        """
        self._may_wait()
        with self._lock:
            if not self._usable():
                raise self._unusable()
            self._held = self._standing(transaction)
        try:
            self.flush()
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
            if self._stopped is not None or self._closed:
                raise self._unusable()
            return self._number(sequence_id)

    def _release(self, last: Receipt | None) -> None:
        """The transaction is committed; ``last``: of its last message."""
        with self._lock:
            self._held = None
            if last is not None:
                self._advance(last)

    def _roll_back(self) -> None:
        """The transaction is rolled back: its sequence ids were never used."""
        with self._lock:
            if self._held is not None:
                _, self._next, self._numbers_itself, self._taken = self._held
            self._held = None

    def _stop(self, error: BaseException) -> None:
        """Nobody knows which sequence ids are used: nothing may follow."""
        with self._lock:
            self._held = None
            self._stopped = error if isinstance(error, OncelogError) else _interruption(error)

    def _encode(self, value: R | bytes) -> bytes:
        """A value as its payload. Raises CodecError; TypeError where there is no codec for it."""
        return encode_value(value, self._codec)

    # --- the queue

    def _enqueue(
        self,
        value: R | bytes,
        sequence_id: int | None,
        key: bytes | str | None,
        properties: Mapping[str, str] | None,
        ttl: int | None,
        at_once: bool,
        expected_offset: int | None,
        expected_last_id: MessageId | None,
        expected_key_offset: int | Unchecked | None,
    ) -> Outcome:
        payload = value if type(value) is bytes and self._codec is None else self._encode(value)
        if key is not None or properties is not None or ttl is not None:
            key = checked_extras(key, properties, ttl)
        expected = None
        if expected_offset is not None or expected_last_id is not None or expected_key_offset is not UNCHECKED:
            expected = expectation(expected_offset, expected_last_id, expected_key_offset, key)
        with self._lock:
            if self._pending >= self._max_pending:
                self._wait_for_room()
            if not self._usable():
                raise self._unusable()
            number = self._number(sequence_id)
            if not self._batch.accepts(number, expected):
                self._end_batch()
            batch = self._batch
            outcome = Outcome(self._condition)
            try:
                batch.add(number, payload, outcome, key, properties, ttl, expected)
                self._pending += 1
            except BaseException as error:
                self._interrupted(error)
                raise
            if at_once:
                outcome.awaited = True
                self._end_batch()
            elif batch.size >= self._limits.max_bytes or len(batch.payloads) >= self._limits.max_messages:
                self._end_batch()
                self._wake_sender()
            elif self._due is None:
                self._due = time.monotonic() + self._limits.linger
                self._wake_sender()
        return outcome

    def _enqueue_whole(
        self,
        values: Sequence[R | bytes],
        sequence_ids: Sequence[int | None],
        keys: Sequence[bytes | str | None],
        properties: Sequence[Mapping[str, str] | None],
        expected: Expectation,
    ) -> list[Outcome]:
        """Queue messages as one request that is stored as a whole or not at all; so they are numbered, too."""
        payloads = [self._encode(value) for value in values]
        named = [checked_extras(key, each, None) for key, each in zip(keys, properties, strict=True)]
        with self._lock:
            self._wait_for_room()
            if not self._usable():
                raise self._unusable()
            if self._batch.payloads:
                self._end_batch()
            numbers = self._number_all(sequence_ids)
            batch, condition = Batch(whole=True), threading.Condition()
            try:
                for number, payload, key, each in zip(numbers, payloads, named, properties, strict=True):
                    outcome = Outcome(condition)
                    outcome.awaited = True
                    batch.add(number, payload, outcome, key, each, expected=expected)
                self._queue.append(batch)
                self._pending += len(payloads)
            except BaseException as error:
                self._interrupted(error)
                raise
            return list(batch.waiters)

    def _wait_for_room(self) -> None:
        """Return when there is room, or none is needed any more. The thread that makes the room cannot wait for it."""
        if self._drainer != threading.get_ident():
            self._changed.wait_for(lambda: self._pending < self._max_pending or self._stopped or self._closed)

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

    def _interrupted(self, error: BaseException) -> None:
        """Ctrl-C between two statements: whether the message is queued cannot be told, so nothing may follow it."""
        self._stopped = _interruption(error)
        self._batch.mend()
        self._pending = len(self._batch.waiters) + sum(len(batch.waiters) for batch in self._queue)

    def _number(self, given: int | None) -> int:
        """The message's sequence id. Taken under the same lock that queues it: the order of the one is the order of the other."""
        if given is not None:
            check_sequence_id(given)
        numbers_itself = given is not None
        if self._numbers_itself is None:
            self._numbers_itself = numbers_itself
        elif self._numbers_itself is not numbers_itself:
            raise MixedSequenceIds(
                "this producer's messages are numbered by "
                + ("the application: give each a sequence_id" if self._numbers_itself else "the SDK: give none a sequence_id")
            )
        if given is None:
            number, self._next = self._next, self._next + 1
            if number > MAX_SEQUENCE_ID:
                raise InvalidRequest(f"producer {self._name!r} has used up its sequence ids")
            return number
        if given > self._opened_at and not self._taken.take(given):
            raise SequenceIdNotRising(
                f"sequence id {given} was passed over: {self._taken.highest} was sent before it; nothing was sent",
                last=self._taken.highest,
                received=given,
            )
        return given

    def _number_all(self, given: Sequence[int | None]) -> list[int]:
        """The ids of messages that are one request; when one of them cannot be, none is taken."""
        before = self._next, self._numbers_itself, self._taken.copy()
        try:
            numbers = [self._number(each) for each in given]
            for last, received in pairwise(numbers):
                if received <= last:
                    raise SequenceIdNotRising(
                        f"{received} does not follow {last}; nothing was sent", last=last, received=received
                    )
            return numbers
        except OncelogError:
            self._next, self._numbers_itself, self._taken = before
            raise

    def _close_batch(self) -> Batch | None:
        """The last batch that is on its way; every message so far is in it or in one before it."""
        with self._lock:
            if self._batch.payloads:
                self._end_batch()
            return self._queue[-1] if self._queue else None

    def _end_batch(self) -> None:
        self._queue.append(self._batch)
        self._batch = Batch()
        self._condition = threading.Condition()
        self._due = None

    def _wake_sender(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"oncelog-producer-{self._name}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        """The sender's thread: sends what is full or has lingered long enough."""
        while True:
            with self._changed:
                while not self._queue:
                    if self._closed:
                        self._thread = None
                        return
                    left = None if self._due is None else self._due - time.monotonic()
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
                    self._queue.popleft()
                    self._pending -= len(batch.waiters)
                    self._changed.notify_all()
        finally:
            self._drainer = None
            self._sending.release()
            if self._queue and until is not None:
                with self._lock:
                    self._wake_sender()

    def _deliver(self, batch: Batch) -> None:
        """Send a batch, in as many parts as its faulty messages make of it, until each message has its outcome."""
        parts = [batch]
        try:
            while parts:
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
            self._stopped = error
            self._fail(part, error)
        return []

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
            if self._numbers_itself:
                self._taken.give_back(unused, newest)
            elif newest:
                self._next = unused[0]

    def _publish(self, batch: Batch) -> list[ReceiptRun]:
        request = batch.request(self._name, self._epoch)
        end = time.monotonic() + self._delivery_timeout
        attempt = 0
        perhaps_stored = False
        while True:
            try:
                runs = self._client.publish(self._topic, request, self._namespace)
                check_names_all(runs, batch.sequence_ids)
                return runs
            except OncelogError as error:
                wait = wait_before_retry(error, attempt, random.random(), end - time.monotonic())
                # With its name and sequence ids a request can be repeated: what is there already is answered as a duplicate.
                if wait is None or not may_retry(error, idempotent=True):
                    # Refused by a full store or a dead port now; an earlier try may have got through all the same.
                    error.definite = error.definite and (not perhaps_stored or rules_out_earlier_tries(error))
                    raise
                perhaps_stored = perhaps_stored or not error.definite
            time.sleep(wait)
            attempt += 1

    def _settle(self, batch: Batch, runs: list[ReceiptRun]) -> None:
        self._advance(Receipt(runs[-1], runs[-1].count - 1))
        settle(batch.waiters, [Receipt(run, at) for run in runs for at in range(run.count)])

    def _advance(self, last: Receipt) -> None:
        if self._last_sequence_id is None or last.sequence_id > self._last_sequence_id:
            self._last_sequence_id = last.sequence_id
            self._last_message_id = last.message_id

    def _fail(self, batch: Batch, error: OncelogError) -> None:
        if self._failure is None and not all(waiter.awaited for waiter in batch.waiters):
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


def encode_value(value: Any, codec: Codec[Any] | None) -> bytes:
    """A value as its payload. Raises CodecError; TypeError where there is no codec for it."""
    if codec is not None:
        return codec.encode(value)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"without a codec a message is bytes, not {type(value).__name__}; give a codec=")
    return bytes(value)


def check_sequence_id(sequence_id: int) -> None:
    """Raises InvalidRequest for what cannot be one."""
    if type(sequence_id) is not int or not 0 <= sequence_id <= MAX_SEQUENCE_ID:
        raise InvalidRequest(f"a sequence id is an int from 0 to {MAX_SEQUENCE_ID}, not {sequence_id!r}")


def one_each(given: Sequence[X] | None, count: int, what: str) -> Sequence[X | None]:
    """One for each of ``count`` messages; None where there are none. Raises InvalidRequest for another number of them."""
    if given is not None and len(given) != count:
        raise InvalidRequest(f"{len(given)} {what} for {count} messages")
    return [None] * count if given is None else given


def checked_extras(key: bytes | str | None, properties: Mapping[str, str] | None, ttl: int | None) -> bytes | None:
    """The key as bytes. Raises for what could not be encoded later, in the midst of other messages' batch."""
    if isinstance(key, str):
        key = key.encode()
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"a key is bytes or str, not {type(key).__name__}")
    for name, value in (properties or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"properties are str to str, not {name!r}: {value!r}")
        (name + value).encode()  # raises UnicodeEncodeError for a lone surrogate
    if ttl is not None and (type(ttl) is not int or not 0 < ttl <= MAX_SEQUENCE_ID):
        raise InvalidRequest(f"ttl is a positive int of seconds, not {ttl!r}")
    return key


def _interruption(error: BaseException) -> OncelogError:
    stopped = OncelogError(f"sending was interrupted: {error!r}", definite=False)
    stopped.__cause__ = error
    return stopped
