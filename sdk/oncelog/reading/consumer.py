"""A durable consumer: its position lies on the service, and it goes on there whatever was killed."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Unpack, overload

from oncelog.api.api import Api
from oncelog.api.options import ConsumerOptions, Untyped
from oncelog.api.retry import may_retry
from oncelog.codecs import Codec, codec_for
from oncelog.errors import (
    ConsumerClosed,
    ConsumerFenced,
    OncelogError,
    StaleMessageId,
    SubscriptionNotFound,
    TopicNotFound,
)
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process import exits, forks
from oncelog.process.errands import Stopped
from oncelog.process.exits import EXIT_SECONDS
from oncelog.reading.stream import PAGE, Model, Stream, T
from oncelog.values.message import Message
from oncelog.values.outgoing import check_seconds
from oncelog.values.start import Start
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Acknowledge, ReceiveMessages, Subscription

ACK_SECONDS = 1.0
"""How long what :meth:`Consumer.ack_async` took may wait: so much is delivered again at most after a crash, besides what was
under way. (Kafka's auto.commit.interval.ms is 5 s.)"""

_FOR_EVER = (ConsumerFenced, SubscriptionNotFound, StaleMessageId, TopicNotFound)
"""After these this consumer will never move the subscription again."""


class _Upto(NamedTuple):
    """The last message that is acknowledged."""

    message_id: MessageId
    offset: int | None
    """Where it is certain that it is of this generation; the service looks an id up otherwise."""


class Consumer(Stream[T]):
    """Delivers a topic's messages to one subscription, at least once and in order, from where it was acknowledged. A context
    manager.

        with Consumer("flights", "billing") as consumer:
            for message in consumer:
                charge(message)
                consumer.ack_async(message)

    :meth:`ack` is cumulative: the message and everything before it. What was acknowledged when it returned is never delivered to
    this subscription again, whatever is killed when; what was not, is delivered again to the next consumer. Only :meth:`seek`
    goes back.

    It is exclusive: opening a second consumer of the subscription fences the first, whose every call then raises
    :class:`~oncelog.errors.ConsumerFenced`. Messages it had fetched ahead may be delivered until it hears of that.

    Of transactions it delivers what is committed; behind a message that is undecided it waits.

    Receive and seek in one thread; acknowledge and close in any, also in a signal handler.

    In a forked child it raises :class:`~oncelog.errors.Forked`: its subscription stays its parent's. What :meth:`ack_async` has
    not sent when the interpreter exits is sent then.
    """

    _hurries = False
    """The interpreter exits: what waits is not to wait for company any more."""

    @overload
    def __init__(
        self: Consumer[bytes],
        topic: str,
        subscription: str,
        *,
        codec: Literal["bytes"] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[str], topic: str, subscription: str, *, codec: Literal["str"], **options: Unpack[ConsumerOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[T], topic: str, subscription: str, *, codec: Codec[T], **options: Unpack[ConsumerOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[Model], topic: str, subscription: str, *, codec: type[Model], **options: Unpack[ConsumerOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[Any], topic: str, subscription: str, *, codec: Untyped, **options: Unpack[ConsumerOptions]
    ) -> None: ...

    def __init__(
        self,
        topic: str,
        subscription: str,
        *,
        start: Start = "earliest",
        inclusive: bool = False,
        timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None,
        client: Api | None = None,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        codec: Any = None,
        page_size: int = PAGE,
        ack_interval: float = ACK_SECONDS,
    ) -> None:
        """Open the subscription, and make it if it is not there.

        Args:
            start: where a new subscription begins, as of a :class:`oncelog.Reader`; ``latest`` is behind all that could be
                delivered by now. One that is there goes on behind its last acknowledged message.
            timeout: seconds without a new message after which iteration ends; None never ends, 0 ends at the end of the log.
            verify, cert, proxy: as of a :class:`oncelog.Client`, where none is given.
            codec: what ``Message.value`` decodes with; see :func:`oncelog.codecs.codec_for`.
            ack_interval: seconds that :meth:`ack_async` may wait for company.

        Raises:
            TopicNotFound, InvalidRequest, ConnectionFailed. OffsetOutOfRange, InvalidMessageId, StaleMessageId: there is no such
                ``start``.
        """
        if page_size < 1:
            raise ValueError(f"page_size is at least 1, not {page_size}")
        if ack_interval <= 0:
            raise ValueError(f"ack_interval is greater than 0, not {ack_interval}")
        check_seconds(ack_interval=ack_interval)
        super().__init__(timeout, codec_for(codec))
        self._owns_client = client is None
        self._client = Api(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._topic = topic
        self._namespace = namespace
        self._page_size = page_size
        self._ack_interval = ack_interval
        try:
            self._opened = self._client.open_subscription(
                topic, subscription, start=start, inclusive=inclusive, namespace=namespace
            )
        except BaseException:
            if self._owns_client:
                self._client.close()
            raise
        self._after: MessageId | None = None
        self._first: MessageId | None = None
        """Of the messages that were fetched since it was opened."""
        self._passed: MessageId | None = None
        """Acknowledged before it was delivered: what lies up to there is not to be delivered any more."""
        self._acknowledged = self._opened.cursor
        self._sending = threading.RLock()
        """Held while an acknowledgement or a seek is under way: one after the other."""
        self._changed = threading.Condition()
        self._pending: _Upto | None = None
        self._failure: OncelogError | None = None
        self._untold = False
        """The failure was met in the background, and nobody was told yet."""
        self._thread: threading.Thread | None = None
        self._home = forks.here()
        forks.register(self)
        exits.register(self)

    @property
    def topic(self) -> str:
        """What it reads."""
        return self._topic

    @property
    def namespace(self) -> str:
        """The topic's namespace."""
        return self._namespace

    @property
    def subscription(self) -> str:
        """Name of the subscription."""
        return self._opened.name

    @property
    def epoch(self) -> int:
        """The number of this consumer among those of the subscription; a seek begins a new one."""
        return self._opened.epoch

    @property
    def position(self) -> MessageId | None:
        """Id of the last message delivered by this consumer, or None."""
        return self._position

    @property
    def acknowledged(self) -> int:
        """Every message below this offset is acknowledged, on disk, as far as this consumer knows."""
        return self._acknowledged

    @property
    def lag(self) -> int:
        """Offsets between what is acknowledged and the end of the log, as the service says now; see :meth:`status`.

        Messages that are rolled back or undecided have offsets too.
        """
        return self.status().lag

    def status(self) -> Subscription:
        """The subscription as it is on disk now: cursor, lag, what was lost to expiry, epoch. Raises SubscriptionNotFound."""
        return self._client.subscription(self._topic, self.subscription, self._namespace)

    # --- receiving

    def receive(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[T]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever).

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound: for ever. Any other OncelogError: nothing was delivered, and
                receiving again goes on where it stood.
        """
        return self._deliver(limit, timeout)

    def has_message_available(self) -> bool:
        """Whether :meth:`receive` would deliver something without waiting. Delivers nothing itself."""
        if not self._buffer or self._interrupted:
            with suppress(Stopped):
                self._fetch(0)
        return bool(self._buffer)

    def seek(self, start: Start, *, inclusive: bool = False) -> None:
        """Go on from somewhere else, also from before what is acknowledged: this moves the cursor on the service, at once.

        ``start`` as when the subscription is made. What was fetched ahead is dropped; what :meth:`ack_async` has not sent too.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound, OffsetOutOfRange, InvalidMessageId, StaleMessageId: nothing has
                moved. Where an error is not definite, open a new consumer.
        """
        with self._sending:
            self._check()
            self._opened = self._client.seek_subscription(
                self._topic, self.subscription, start, inclusive=inclusive, epoch=self.epoch, namespace=self._namespace
            )
            with self._changed:
                self._pending = None
            self._buffer.clear()
            self._after = self._first = self._position = self._passed = None
            self._interrupted = False
            self._acknowledged = self._opened.cursor

    def _fetch(self, wait_ms: int) -> bool:
        self._check()
        if self._passed is not None and self._pass_over(self._passed):
            return False
        asked = ReceiveMessages(
            epoch=self.epoch, generation=self._opened.generation, after=self._after, limit=self._page_size, wait=wait_ms
        )
        try:
            polled = self._errands.run(lambda: self._client.receive(self._topic, self.subscription, asked, self._namespace))
        except OncelogError as error:
            self._note(error)
            raise
        after = self._after if polled.position is None else MessageId.from_bytes(polled.position)
        if polled.messages and self._first is None:
            self._first = MessageId.from_bytes(polled.messages[0]["id"])
        self._note_lives(polled)
        buffer, records = self._buffer, polled.messages
        # No call between these two, so that Ctrl-C cannot come between: one without the other would lose a page, or double it.
        self._after = after
        buffer += records
        return False

    def _pass_over(self, upto: MessageId) -> bool:
        """Drop what was fetched up to there; whether something is left."""
        self._passed, self._interrupted = None, self._failure is not None or self._closed
        while self._buffer and self._buffer[0]["id"] <= bytes(upto):
            self._buffer.popleft()
        if self._after is None or self._after < upto:
            self._after = upto
        return bool(self._buffer)

    # --- acknowledging

    def ack(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge a message and everything before it; on disk when this returns. What is acknowledged already stays so.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound; OffsetOutOfRange, InvalidMessageId, StaleMessageId: it is no
                message that a consumer was given. ConnectionFailed: perhaps done; acknowledge again.
        """
        with self._sending:
            self._check()
            self._acknowledge(self._upto(upto))

    def ack_async(self, upto: Message[Any] | MessageId) -> None:
        """The same later: in ``ack_interval`` seconds, or at the next :meth:`flush` or :meth:`close`; many become one request.

        Until then a crash has the messages delivered again. While the service does not answer, the acknowledgement waits.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound, or whatever else one acknowledged before met.
        """
        self._check()
        wanted = self._upto(upto)
        with self._changed:
            while True:
                before = self._pending
                if before is not None and not before.message_id < wanted.message_id:
                    break
                if self._pending is before:  # else a signal handler has acknowledged more in between
                    self._pending = wanted
                    break
            thread = self._thread
            if thread is None or thread.ident is None:  # not started yet: a signal handler has come between these lines
                thread = self._thread = threading.Thread(
                    target=self._run, name=f"oncelog-consumer-{self.subscription}", daemon=True
                )
                with suppress(RuntimeError):  # none can be started any more: it is sent at the exit
                    thread.start()
            self._changed.notify_all()
        exits.late(self)

    def flush(self) -> None:
        """Return when all that is acknowledged is on disk. Raises as :meth:`ack` does."""
        self._check()
        self._send_pending()

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Twice is as once. Raises as :meth:`flush` does, closed all the same.

        ``timeout``: seconds; else as long as the client tries. What is not acknowledged by then is given up, and delivered again
        to the next consumer; TimeoutError says so.
        """
        with self._changed:
            self._closed = self._interrupted = True
            self._errands.stop()
            self._changed.notify_all()
        try:
            if forks.here() != self._home:
                return  # what waits is the parent's
            # Not joined: a signal handler may have interrupted who holds what the thread waits for. It sends nothing any more.
            try:
                self._send_pending(timeout)
            except (OncelogError, TimeoutError):
                self._pending = None  # whoever closes it is told, once
                raise
            if self._untold and self._failure is not None:
                self._untold = False
                raise self._failure
        finally:
            if self._owns_client:
                self._client.close()

    def _after_fork(self) -> None:
        self._errands.after_fork()
        forks.renew(self._sending)
        forks.renew(self._changed._lock)  # type: ignore[attr-defined]
        self._pending, self._thread, self._interrupted = None, None, True

    def _begin_exit(self) -> None:
        with self._changed:
            self._hurries = True
            self._changed.notify_all()

    def _end_exit(self, begun: float) -> str | None:
        if self._pending is None or forks.here() != self._home:
            return None
        try:
            self._send_pending(max(0.0, begun + EXIT_SECONDS - time.monotonic()))
        except (OncelogError, TimeoutError) as error:
            return f"consumer of {self._namespace}/{self._topic} at the exit: {error}"
        return None

    def __enter__(self) -> Consumer[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        try:
            self.close(EXIT_SECONDS if interrupted else None)  # Ctrl-C once is enough
        except OncelogError:
            if kind is None:
                raise  # else the error that ends the block says more
        except TimeoutError as error:
            exits.say(str(error))

    def _upto(self, upto: Message[Any] | MessageId) -> _Upto:
        if isinstance(upto, MessageId):
            return _Upto(upto, None)
        if not isinstance(upto, Message):
            raise TypeError(f"what is acknowledged is a Message or a MessageId, not {type(upto).__name__}")
        message_id, position = upto.message_id, self._position
        given = self._first is not None and position is not None and self._first <= message_id <= position
        return _Upto(message_id, upto.offset if given else None)

    def _acknowledge(self, upto: _Upto, within: float | None = None) -> None:
        message_id = None if upto.offset is not None else upto.message_id
        asked = Acknowledge(epoch=self.epoch, generation=self._opened.generation, offset=upto.offset, message_id=message_id)
        try:
            cursor = self._client.acknowledge(self._topic, self.subscription, asked, self._namespace, within=within)
        except OncelogError as error:
            self._note(error)
            raise
        self._acknowledged = max(self._acknowledged, cursor)
        if self._position is None or self._position < upto.message_id:
            self._passed, self._interrupted = upto.message_id, True
        with self._changed:
            if self._pending is not None and self._pending.message_id <= upto.message_id:
                self._pending = None

    def _send_pending(self, timeout: float | None = None) -> None:
        """Acknowledge what waits. It waits on if that fails, unless it never could succeed. Raises TimeoutError: ``timeout``
        seconds were not enough."""
        end = None if timeout is None else time.monotonic() + timeout
        if not self._sending.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(self._unacknowledged())
        try:
            pending = self._pending
            if pending is None:
                return
            left = None if end is None else end - time.monotonic()
            try:
                if left is not None and left <= 0:
                    raise TimeoutError(self._unacknowledged())
                self._acknowledge(pending, left)
            except OncelogError as error:
                if not may_retry(error, idempotent=True):
                    with self._changed:
                        self._pending = None
                elif end is not None:
                    raise TimeoutError(f"{self._unacknowledged()}: {error}") from error
                raise
        finally:
            self._sending.release()

    def _unacknowledged(self) -> str:
        pending = self._pending
        upto = "" if pending is None else f" up to message {pending.message_id}"
        place = f"{self._namespace}/{self._topic}"
        return f"subscription {self.subscription!r} of {place}: what was acknowledged{upto} may be delivered again"

    def _run(self) -> None:
        """The thread that sends what waits."""
        me = threading.current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._thread is not me or self._pending is not None)
                self._changed.wait_for(lambda: self._closed or self._hurries, self._ack_interval)
                self._hurries = False
                if self._closed or self._thread is not me:
                    return
            try:
                self._send_pending()
            except OncelogError as error:
                if not may_retry(error, idempotent=True):
                    self._failure, self._untold, self._interrupted = error, True, True

    def _note(self, error: OncelogError) -> None:
        """This consumer has ended, if it has."""
        if isinstance(error, _FOR_EVER):
            self._failure, self._interrupted = error, True

    def _check(self) -> None:
        """Raises what ended this consumer; once, what one acknowledged in the background met."""
        if self._closed:
            raise ConsumerClosed
        if forks.here() != self._home:
            raise forks.forked(f"the consumer of subscription {self.subscription!r}")
        failure = self._failure
        if failure is not None:
            self._untold = False
            if not isinstance(failure, _FOR_EVER):
                self._failure, self._interrupted = None, False
            raise failure
