# Made from sdk/oncelog/aio/consumer.py by `make faces`: change that one.
"""A durable consumer: its position lies on the service, and it goes on there whatever was killed."""

from __future__ import annotations

from typing import Any, overload

from oncelog.api.api import Api
from oncelog.codecs import Text, Typed, Untyped, V
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process import exits, forks
from oncelog.process.deprecated import deprecated
from oncelog.process.frames import shorten
from oncelog.process.procedures import drive
from oncelog.reading.acknowledging import Acknowledging
from oncelog.reading.position import ConsumerPosition
from oncelog.reading.twins import ACK_SECONDS, PAGE
from oncelog.values.message import Message
from oncelog.values.numbers import MILLISECOND, check_seconds, check_timeout
from oncelog.values.start import Start, start_position
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Subscription
from oncelog.wire.names import check_subscription


class Consumer(Acknowledging[V]):
    """Delivers a topic's messages to one subscription, at least once and in order, from where it was acknowledged. A context
    manager.

        with Consumer("flights", "billing") as consumer:
            for message in consumer:
                charge(message)
                consumer.ack_async(message)

    :meth:`ack` is cumulative: the message and everything before it. What was acknowledged when it returned is never delivered
    to this subscription again, whatever is killed when; what was not, is delivered again to the next consumer. Only
    :meth:`seek` goes back.

    It is exclusive: opening a second consumer of the subscription fences the first, whose every call then raises
    :class:`~oncelog.errors.ConsumerFenced`. Messages it had polled ahead may be delivered until it hears of that.

    Of transactions it delivers what is committed; behind a message that is undecided it waits.

    Read and seek in one thread; acknowledge and close in any, also in a signal handler.

    In a forked child it raises :class:`~oncelog.errors.Forked`: its subscription stays its parent's. What :meth:`ack_async` has
    not sent when the interpreter exits is sent then.
    """

    # overloads, made by `make faces`
    # fmt: off
    @overload
    def __init__(
        self, topic: str, subscription: str, *, start: Start = 'earliest', inclusive: bool = False,
        timeout: float | None = None, namespace: str = DEFAULT_NAMESPACE, url: str | None = None,
        client: Api | None = None, verify: Verify = None, cert: Certificate = None, proxy: str | None = None,
        codec: Typed[V] = None, page_size: int = PAGE, ack_interval: float = ACK_SECONDS
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[str], topic: str, subscription: str, *, start: Start = 'earliest', inclusive: bool = False,
        timeout: float | None = None, namespace: str = DEFAULT_NAMESPACE, url: str | None = None,
        client: Api | None = None, verify: Verify = None, cert: Certificate = None, proxy: str | None = None,
        codec: Text, page_size: int = PAGE, ack_interval: float = ACK_SECONDS
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[Any], topic: str, subscription: str, *, start: Start = 'earliest', inclusive: bool = False,
        timeout: float | None = None, namespace: str = DEFAULT_NAMESPACE, url: str | None = None,
        client: Api | None = None, verify: Verify = None, cert: Certificate = None, proxy: str | None = None,
        codec: Untyped, page_size: int = PAGE, ack_interval: float = ACK_SECONDS
    ) -> None: ...
    # fmt: on
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
        codec: Typed[V] | Text | Untyped = None,
        page_size: int = PAGE,
        ack_interval: float = ACK_SECONDS,
    ) -> None:
        """Open the subscription, and make it if it is not there; for asyncio at the beginning of the block, or by ``open()``.

        Args:
            topic: what it reads.
            subscription: the name under which the service knows how far it is.
            start: where a new subscription begins, as of a :class:`oncelog.Reader`; ``latest`` is behind all that could be
                delivered by now. One that is there goes on behind its last acknowledged message.
            inclusive: whether the message whose id ``start`` is comes, too.
            timeout: seconds without a new message after which iteration ends, and ``read`` returns none; None never ends, 0
                ends at the end of the log.
            namespace: the topic's.
            url: the service's, for a client of its own; else as :class:`oncelog.Client` says.
            client: a :class:`oncelog.Client`, or for asyncio an :class:`oncelog.AsyncClient`; else it makes one of its own.
            verify, cert, proxy: for a client of its own, as :class:`oncelog.Client` takes them.
            codec: what ``Message.value`` decodes with: None for bytes, or what :func:`oncelog.codecs.codec_for` takes.
            page_size: messages of a page at most; the first page is about what is asked for.
            ack_interval: seconds that :meth:`ack_async` may wait for company.

        Raises:
            TopicNotFound, InvalidRequest, ConnectionFailed. OffsetOutOfRange, InvalidMessageId, StaleMessageId: there is no such
                ``start``.
        """
        check_seconds("ack_interval", ack_interval, MILLISECOND)
        start_position(start, inclusive)
        check_subscription(subscription)
        super().__init__(ConsumerPosition(), timeout, codec, page_size)
        self._connect(topic, namespace, client, url, verify, cert, proxy)
        self._prepare()
        self._ack_interval = ack_interval
        self._subscription = subscription
        self._start = start, inclusive
        self._home = forks.here()
        self._made()

    @property
    def lag(self) -> int:
        """Offsets between what is acknowledged and the end of the log, as the service says now; see :meth:`status`.

        Messages that are rolled back or undecided have offsets too.
        """
        return self.status().lag

    def status(self) -> Subscription:
        """The subscription as it is on disk now: cursor, lag, what was lost to expiry, epoch. Raises SubscriptionNotFound."""
        return self._client.subscription(self._topic, self._subscription, self._namespace)

    # --- reading

    receive = deprecated("Consumer.receive is called Consumer.read now")(Acknowledging[V].read)

    def seek(self, start: Start, *, inclusive: bool = False) -> None:
        """Go on from somewhere else, also from before what is acknowledged: this moves the cursor on the service, at once.

        What was polled ahead is dropped; what :meth:`ack_async` has not sent too.

        Args:
            start: as when the subscription is made.
            inclusive: whether the message whose id ``start`` is comes, too.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound, OffsetOutOfRange, InvalidMessageId, StaleMessageId: nothing has
                moved. Where an error is not definite, open a new consumer.
        """
        with self._sending:
            drive(self._seek(start, inclusive))

    # --- acknowledging

    def ack(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge a message and everything before it; on disk when this returns. What is acknowledged already stays so.

        Args:
            upto: the message, or its id.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound; OffsetOutOfRange, InvalidMessageId, StaleMessageId: it is no
                message that a consumer was given. That a message is of another topic or generation is seen; of a bare id not.
                ConnectionFailed: perhaps done; acknowledge again.
        """
        self._check()
        with self._sending:
            self._check()
            drive(self._acknowledge(self._upto(upto)))

    def ack_async(self, upto: Message[Any] | MessageId) -> None:
        """Acknowledge later: in ``ack_interval`` seconds, or at the next :meth:`flush` or :meth:`close`; many become one request.

        Until then a crash has the messages delivered again. While the service does not answer, the acknowledgement waits.

        Args:
            upto: the message, or its id. Everything before it is acknowledged, too.

        Raises:
            ConsumerFenced, ConsumerClosed, SubscriptionNotFound, or whatever else one acknowledged before met.
        """
        try:
            self._check()
            wanted = self._upto(upto)
        except Exception as error:
            shorten(error)
            raise
        self._acknowledge_later(wanted)

    def flush(self) -> None:
        """Return when all that is acknowledged is on disk. Raises as :meth:`ack` does."""
        self._check()
        self._send_pending()
        if self._untold:  # what works in the background was at it, and it was refused
            self._raise_failure()

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Idempotent. Raises as :meth:`flush` does, closed all the same.

        Args:
            timeout: seconds; None: as long as the client tries. What is not acknowledged by then is given up, and delivered
                again to the next consumer; TimeoutError says so.
        """
        check_timeout(timeout)
        self._end(timeout)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with exits.leaving(kind) as timeout:
            self.close(timeout)
