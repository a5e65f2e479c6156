"""A durable consumer: its position lies on the service, and it goes on there whatever was killed."""

from __future__ import annotations

import threading
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Unpack, overload

from oncelog.api.api import Api
from oncelog.api.options import ConsumerOptions
from oncelog.api.retry import may_retry
from oncelog.codecs import Text, Typed, Untyped, V
from oncelog.errors import (
    OncelogError,
)
from oncelog.message_id import MessageId
from oncelog.process import exits, forks
from oncelog.process.deprecated import deprecated
from oncelog.process.exits import EXIT_SECONDS
from oncelog.process.procedures import drive
from oncelog.process.tending import Tender
from oncelog.reading.stream import Stream
from oncelog.reading.twins import ConsumerTwin
from oncelog.values.message import Message
from oncelog.values.numbers import check_timeout
from oncelog.values.start import Start
from oncelog.wire.models import Subscription


class Consumer(ConsumerTwin[Api, V], Stream[V]):
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
    :class:`~oncelog.errors.ConsumerFenced`. Messages it had polled ahead may be delivered until it hears of that.

    Of transactions it delivers what is committed; behind a message that is undecided it waits.

    Read and seek in one thread; acknowledge and close in any, also in a signal handler.

    In a forked child it raises :class:`~oncelog.errors.Forked`: its subscription stays its parent's. What :meth:`ack_async` has
    not sent when the interpreter exits is sent then.
    """

    _hurries = False
    """The interpreter exits: what waits is not to wait for company any more."""

    if TYPE_CHECKING:  # how it is made stands in both's base; which values a codec brings, only type checkers ask

        @overload
        def __init__(
            self, topic: str, subscription: str, *, codec: Typed[V] = None, **options: Unpack[ConsumerOptions]
        ) -> None: ...

        @overload
        def __init__(
            self: Consumer[str], topic: str, subscription: str, *, codec: Text, **options: Unpack[ConsumerOptions]
        ) -> None: ...

        @overload
        def __init__(
            self: Consumer[Any], topic: str, subscription: str, *, codec: Untyped, **options: Unpack[ConsumerOptions]
        ) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def _made(self) -> None:
        try:
            drive(self._open_subscription())
        except BaseException:
            drive(self._let_go())
            raise
        self._sending = threading.RLock()
        """Held while an acknowledgement or a seek is under way: one after the other."""
        self._guard = threading.RLock()
        self._thread: Tender | None = None
        self._due: float | None = None
        """When what waits has waited for company long enough."""
        forks.register(self)
        exits.register(self)

    @property
    def lag(self) -> int:
        """Offsets between what is acknowledged and the end of the log, as the service says now; see :meth:`status`.

        Messages that are rolled back or undecided have offsets too.
        """
        return self.status().lag

    def status(self) -> Subscription:
        """The subscription as it is on disk now: cursor, lag, what was lost to expiry, epoch. Raises SubscriptionNotFound."""
        return self._client.subscription(self._topic, self.subscription, self._namespace)

    # --- reading

    def read(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[V]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever).

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound: for ever. Any other OncelogError: nothing was delivered, and
                reading again goes on where it stood.
        """
        return self._deliver(limit, timeout)

    @deprecated("Consumer.receive is called Consumer.read now, as a Reader's is")
    def receive(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[V]]:
        """Deprecated: the former name of :meth:`read`."""
        return self.read(limit, timeout)

    def seek(self, start: Start, *, inclusive: bool = False) -> None:
        """Go on from somewhere else, also from before what is acknowledged: this moves the cursor on the service, at once.

        ``start`` as when the subscription is made. What was polled ahead is dropped; what :meth:`ack_async` has not sent too.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound, OffsetOutOfRange, InvalidMessageId, StaleMessageId: nothing has
                moved. Where an error is not definite, open a new consumer.
        """
        with self._sending:
            drive(self._seek(start, inclusive))

    # --- acknowledging

    def ack(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge a message and everything before it; on disk when this returns. What is acknowledged already stays so.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound; OffsetOutOfRange, InvalidMessageId, StaleMessageId: it is no
                message that a consumer was given. That a message is of another topic or generation is seen; of a bare id not.
                ConnectionFailed: perhaps done; acknowledge again.
        """
        with self._sending:
            self._check()
            drive(self._acknowledge(self._upto(upto)))

    def ack_async(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge later: in ``ack_interval`` seconds, or at the next :meth:`flush` or :meth:`close`; many become one request.

        Until then a crash has the messages delivered again. While the service does not answer, the acknowledgement waits.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound, or whatever else one acknowledged before met.
        """
        self._check()
        wanted = self._upto(upto)
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
                thread = self._thread = Tender(self, Consumer._tend, f"oncelog-consumer-{self.subscription}")
                with suppress(RuntimeError):  # none can be started any more: it is sent at the exit
                    thread.begin()
            elif before is None:
                thread.ring()
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
        check_timeout(timeout)
        with self._guard:
            self._closed = self._interrupted = True
            self._errands.stop()
            self._ring()
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
            drive(self._let_go())

    def _after_fork(self) -> None:
        self._errands.after_fork()
        forks.renew(self._sending)
        forks.renew(self._guard)
        self._pending, self._thread, self._interrupted = None, None, True

    def _begin_exit(self) -> None:
        with self._guard:
            self._hurries = True
            self._ring()

    def _end_exit(self, passed: float) -> str | None:
        if self._pending is None or forks.here() != self._home:
            return None
        try:
            self._send_pending(max(0.0, EXIT_SECONDS - passed))
        except (OncelogError, TimeoutError) as error:
            return f"consumer of {self._namespace}/{self._topic} at the exit: {error}"
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with exits.leaving(kind) as timeout:
            self.close(timeout)

    def _send_pending(self, timeout: float | None = None) -> None:
        """Acknowledge what waits. It waits on if that fails, unless it never could succeed. Raises TimeoutError: ``timeout``
        seconds were not enough."""
        end = None if timeout is None else self._clock.monotonic() + timeout
        if not self._sending.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(self._unacknowledged())
        try:
            left = None if end is None else end - self._clock.monotonic()
            if self._pending is not None and left is not None and left <= 0:
                raise TimeoutError(self._unacknowledged())
            drive(self._acknowledge_pending(None if left is None else max(0.0, left)))
        except OncelogError as error:
            if end is not None and may_retry(error, idempotent=True):
                raise TimeoutError(f"{self._unacknowledged()}: {error}") from error
            raise
        finally:
            self._sending.release()

    def _tend(self) -> float | None:
        """Send what has waited long enough, in the thread for that, which is told as :class:`Tender` says."""
        with self._guard:
            is_mine = self._thread is threading.current_thread()
            if self._closed or not is_mine or self._has_ended:
                self._thread = None if is_mine else self._thread
                return None
            if self._pending is None:
                return inf
            now = self._clock.monotonic()
            if self._due is None:
                self._due = now + self._ack_interval
            if now < self._due and not self._hurries:
                return self._due - now
            self._due, self._hurries = None, False
        with self._sending:  # until the failure is noted: who waits for it, to flush or to close, must hear of that
            try:
                self._send_pending()
            except OncelogError as error:
                self._note_in_background(error)
        return 0.0

    def _ring(self) -> None:
        if (thread := self._thread) is not None:
            thread.ring()

    def _rest(self) -> None:
        self._ring()
        self._errands.rest()

    def _check_here(self) -> None:
        if forks.here() != self._home:
            raise forks.forked(f"the consumer of subscription {self.subscription!r}")
