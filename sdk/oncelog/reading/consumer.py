"""A durable consumer: its position lies on the service, and it goes on there whatever was killed."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Unpack, overload

from oncelog.api.api import Api
from oncelog.api.options import ConsumerOptions, Untyped
from oncelog.api.retry import may_retry
from oncelog.codecs import Codec
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
from oncelog.process.exits import EXIT_SECONDS
from oncelog.reading.position import ConsumerPosition, Found, Upto
from oncelog.reading.stream import PAGE, Model, Stream, T
from oncelog.values.message import Message
from oncelog.values.outgoing import check_seconds
from oncelog.values.start import Start
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Subscription

ACK_SECONDS = 1.0
"""How long what :meth:`Consumer.ack_async` took may wait: so much is delivered again at most after a crash, besides what was
under way. (Kafka's auto.commit.interval.ms is 5 s.)"""

FOR_EVER = (ConsumerFenced, SubscriptionNotFound, StaleMessageId, TopicNotFound)
"""After these this consumer will never move the subscription again."""


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
        if ack_interval <= 0:
            raise ValueError(f"ack_interval is greater than 0, not {ack_interval}")
        check_seconds(ack_interval=ack_interval)
        self._at: ConsumerPosition
        super().__init__(
            ConsumerPosition(),
            topic,
            timeout=timeout,
            namespace=namespace,
            url=url,
            client=client,
            verify=verify,
            cert=cert,
            proxy=proxy,
            codec=codec,
            page_size=page_size,
        )
        self._ack_interval = ack_interval
        try:
            self._opened = self._client.open_subscription(
                topic, subscription, start=start, inclusive=inclusive, namespace=namespace
            )
        except BaseException:
            if self._owns_client:
                self._client.close()
            raise
        self._acknowledged = self._opened.cursor
        self._sending = threading.RLock()
        """Held while an acknowledgement or a seek is under way: one after the other."""
        self._guard = threading.RLock()  # taken as itself: Ctrl-C in Condition's own __exit__ would leave it held for ever
        self._changed = threading.Condition(self._guard)
        self._pending: Upto | None = None
        self._failure: OncelogError | None = None
        self._untold = False  # whether the failure was met in the background, and was not raised yet
        self._thread: threading.Thread | None = None
        self._home = forks.here()
        forks.register(self)
        exits.register(self)

    @property
    def topic(self) -> str:
        """Name of the topic that it reads."""
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

    def seek(self, start: Start, *, inclusive: bool = False) -> None:
        """Go on from somewhere else, also from before what is acknowledged: this moves the cursor on the service, at once.

        ``start`` as when the subscription is made. What was fetched ahead is dropped; what :meth:`ack_async` has not sent too.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound, OffsetOutOfRange, InvalidMessageId, StaleMessageId: nothing has
                moved. Where an error is not definite, open a new consumer.
        """
        with self._sending:
            self._check()
            sought = self._client.seek_subscription(
                self._topic, self.subscription, start, inclusive=inclusive, epoch=self.epoch, namespace=self._namespace
            )
            with self._guard:
                self._pending = None
            self._at.begin()
            # Also where a signal handler has acknowledged in between, under the epoch that the seek has fenced.
            self._failure, self._interrupted = None, False
            # At the end: interrupted before it, the consumer is fenced, and leaves nothing out.
            self._opened, self._acknowledged = sought, sought.cursor

    def _fetch(self, wait_ms: int) -> Found:
        self._interrupted = False  # before what it says is looked at: an interruption behind that counts
        try:
            self._check()
            self._at.pass_over()
        except BaseException:
            self._interrupted = True  # it is not all looked at yet
            raise
        if self._at.records:
            return Found.MORE
        asked = self._at.asks(self.epoch, self._opened.generation, self._page_size, wait_ms)
        receive = partial(self._client.receive, self._topic, self.subscription, asked, self._namespace)
        try:
            polled = self._errands.run(receive)
        except OncelogError as error:
            self._note(error)
            raise
        return self._at.answered(polled, time.monotonic())

    # --- acknowledging

    def ack(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge a message and everything before it; on disk when this returns. What is acknowledged already stays so.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound; OffsetOutOfRange, InvalidMessageId, StaleMessageId: it is no
                message that a consumer was given. ConnectionFailed: perhaps done; acknowledge again.
        """
        with self._sending:
            self._check()
            self._acknowledge(self._at.upto(upto))

    def ack_async(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge later: in ``ack_interval`` seconds, or at the next :meth:`flush` or :meth:`close`; many become one request.

        Until then a crash has the messages delivered again. While the service does not answer, the acknowledgement waits.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound, or whatever else one acknowledged before met.
        """
        self._check()
        wanted = self._at.upto(upto)
        with self._guard:
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
        if self._untold:  # the thread was at it, and it was refused
            self._raise_failure()

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Idempotent. Raises as :meth:`flush` does, closed all the same.

        ``timeout``: seconds; else as long as the client tries. What is not acknowledged by then is given up, and delivered again
        to the next consumer; TimeoutError says so.
        """
        with self._guard:
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
                self._pending = None  # raised once; a second close has nothing left to say
                raise
            if self._untold:
                self._raise_failure()
        finally:
            if self._owns_client:
                self._client.close()

    def _after_fork(self) -> None:
        self._errands.after_fork()
        forks.renew(self._sending)
        forks.renew(self._guard)
        self._pending, self._thread, self._interrupted = None, None, True

    def _begin_exit(self) -> None:
        with self._guard:
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

    def _acknowledge(self, upto: Upto, within: float | None = None) -> None:
        asked = upto.asks(self.epoch, self._opened.generation)
        try:
            cursor = self._client.acknowledge(self._topic, self.subscription, asked, self._namespace, within=within)
        except OncelogError as error:
            self._note(error)
            raise
        self._acknowledged = max(self._acknowledged, cursor)
        if self._at.acknowledged(upto):
            self._interrupted = True
        with self._guard:
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
                    with self._guard:
                        # What was acknowledged behind it meanwhile may be none the worse.
                        if self._pending is pending or isinstance(error, FOR_EVER):
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
            with self._guard:
                self._changed.wait_for(lambda: self._closed or self._thread is not me or self._pending is not None)
                self._changed.wait_for(lambda: self._closed or self._hurries, self._ack_interval)
                self._hurries = False
                if self._closed or self._thread is not me:
                    return
            with self._sending:  # until the failure is noted: who waits for it, to flush or to close, must hear of that
                try:
                    self._send_pending()
                except OncelogError as error:
                    if not may_retry(error, idempotent=True):
                        self._failure, self._untold, self._interrupted = error, True, True

    def _note(self, error: OncelogError) -> None:
        """This consumer has ended, if it has."""
        if isinstance(error, FOR_EVER):
            self._failure, self._interrupted = error, True

    def _check(self) -> None:
        """Raise what ended this consumer; once, what one acknowledged in the background met."""
        if self._closed:
            raise ConsumerClosed
        if forks.here() != self._home:
            raise forks.forked(f"the consumer of subscription {self.subscription!r}")
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            self._untold = False
            if not isinstance(failure, FOR_EVER):
                self._failure = None
            raise failure
