"""What the twins of readers and consumers share, of threads and of asyncio: their arguments, what they note, how they wait.

What awaits is a procedure (:mod:`oncelog.process.procedures`): its hands are the twin's own ``_fetch``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Any, Generic, Literal, TypeVar

from oncelog.api.api import AnyApi
from oncelog.api.options import BegunTransaction
from oncelog.codecs import codec_for
from oncelog.errors import ConsumerFenced, MessagesExpired, OncelogError, StaleMessageId, SubscriptionNotFound, TopicNotFound
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process.errands import Stopped
from oncelog.process.procedures import got
from oncelog.reading.position import ConsumerPosition, FetchedAhead, Found, ReaderPosition, Upto
from oncelog.values.outgoing import check_seconds
from oncelog.values.start import Start
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Subscription
from oncelog.wire.transaction import Transaction

T = TypeVar("T")
C = TypeVar("C", bound=AnyApi)

PAGE = 5_000
"""Messages fetched at once; the service ends a page by bytes too."""
WAIT_SECONDS = 20.0
"""How long one request is held on the service when there is nothing yet."""
ACK_SECONDS = 1.0
"""How long what :meth:`oncelog.Consumer.ack_async` took may wait: so much is delivered again at most after a crash, besides what
was under way. (Kafka's auto.commit.interval.ms is 5 s.)"""

FOR_EVER = (ConsumerFenced, SubscriptionNotFound, StaleMessageId, TopicNotFound)
"""After these a consumer will never move the subscription again."""


class StreamTwin(Generic[T, C]):
    """A position, the topic that it lies in, and the client that is asked."""

    _clients: type[C]

    def __init__(
        self,
        at: FetchedAhead,
        topic: str,
        *,
        timeout: float | None,
        namespace: str,
        url: str | None,
        client: C | None,
        verify: Verify,
        cert: Certificate,
        proxy: str | None,
        codec: object,
        page_size: int,
    ) -> None:
        """The arguments are those of a :class:`oncelog.Reader`."""
        if page_size < 1:
            raise ValueError(f"page_size is at least 1, not {page_size}")
        self._at = at
        self._timeout = timeout
        self._codec = codec_for(codec)
        self._owns_client = client is None
        self._client: C = self._clients(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._topic = topic
        self._namespace = namespace
        self._page_size = page_size
        self._closed = False
        self._interrupted = False
        """What is fetched ahead is not to be delivered any more; why, the next :meth:`_fetch` says."""
        self._prepare()

    def _prepare(self) -> None:
        """Make what the twin waits with."""
        raise NotImplementedError

    @property
    def position(self) -> MessageId | None:
        """Id of the last message delivered, or of the one that reading started after; None if there is neither."""
        delivered = self._at.delivered
        return None if delivered is None else MessageId.from_bytes(delivered)

    def _fetch(self, wait_ms: int) -> Found | Awaitable[Found]:
        """Ask once for more. Raises Stopped."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raise what ended it for good: that it is closed, at least."""
        raise NotImplementedError

    async def _has_message(self) -> bool:
        self._check()
        at = self._at
        at.drop_expired(time.monotonic())
        while not at.records or self._interrupted:
            try:
                found = await got(self._fetch(0))
            except Stopped:
                return False
            if found is not Found.MORE and not at.records:
                return False
        return True

    async def _hold(self, limit: int, timeout: float | None) -> bool:
        """Wait until there is a message to deliver; False: there is none after ``timeout`` seconds (None waits for ever)."""
        if limit < 1:
            raise ValueError(f"limit is at least 1, not {limit}")
        self._check()
        at = self._at
        now = time.monotonic()
        end = None if timeout is None else now + timeout
        at.drop_expired(now)
        while not at.records or self._interrupted:
            left = WAIT_SECONDS if end is None else min(WAIT_SECONDS, max(0.0, end - time.monotonic()))
            try:
                found = await got(self._fetch(int(left * 1000)))
            except Stopped:
                return False
            if not at.records and (found is Found.UNDECIDED or (end is not None and time.monotonic() >= end)):
                return False
        return True


class ReaderTwin(StreamTwin[T, C]):
    """What both readers are made of."""

    _at: ReaderPosition

    def __init__(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        inclusive: bool = False,
        timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None,
        client: C | None = None,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        codec: Any = None,
        page_size: int = PAGE,
        transaction: BegunTransaction | Transaction | bytes | None = None,
        generation: int | None = None,
        on_expired: Literal["raise", "skip"] = "raise",
    ) -> None:
        """
        Args:
            start: ``earliest``; ``latest`` (what is published from now on); a message id: after it, or with ``inclusive`` at
                it; an offset or an aware datetime: the first message at or after it.
            timeout: seconds without a new message after which iteration ends; None never ends, 0 ends at the end of the log.
            client: a :class:`oncelog.Client`, or for asyncio an :class:`oncelog.AsyncClient`; else it makes one of its own.
            verify, cert, proxy: as of a :class:`oncelog.Client`, where none is given.
            codec: what ``Message.value`` decodes with; see :func:`oncelog.codecs.codec_for`.
            transaction: to read in: what :meth:`oncelog.Client.transaction` begins, a Transaction, or its Thrift bytes. Its own
                messages are seen once they are published, which a checkpoint brings about.
            generation: of the topic, that an offset was noted in (:attr:`generation`): another one is refused.
            on_expired: ``raise``: MessagesExpired where retention was faster than this reader, so that messages behind its
                position are gone (Kafka's ``auto.offset.reset=none``); ``skip``: go on with the first one that lives, and count
                them in :attr:`lost`. ``earliest`` and a datetime as ``start`` say themselves that what is gone is not asked for.

        Raises:
            TopicNotFound, OffsetOutOfRange, StaleMessageId, MessagesExpired at the first read (at once for ``latest``).
        """
        if on_expired not in ("raise", "skip"):
            raise ValueError(f"on_expired is 'raise' or 'skip', not {on_expired!r}")
        super().__init__(
            ReaderPosition(page_size, on_expired == "skip"),
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
        self._transaction = transaction.to_bytes() if isinstance(transaction, Transaction) else transaction
        self._made(start, inclusive, generation)

    def _made(self, start: Start, inclusive: bool, generation: int | None) -> None:
        """Begin, or prepare for it."""
        raise NotImplementedError

    @property
    def generation(self) -> int | None:
        """Generation of the topic, as soon as it has answered: what an offset that is noted belongs to."""
        return self._at.generation

    @property
    def lost(self) -> int:
        """How many messages were skipped because they expired before they were read; with ``on_expired="skip"`` only. Where
        retention has deleted them and it is not known which was the first, all before the first one that lives are counted."""
        return self._at.lost

    async def _begin(self, start: Start, inclusive: bool, generation: int | None) -> None:
        if start == "latest":
            stats = await got(self._client.stats(self._topic, self._namespace))
            start, generation = stats.upcoming_offset, stats.generation
        self._at.begin(start, inclusive, generation)

    def _skip(self, error: MessagesExpired) -> None:
        """Go on past the messages that are lost. Raises ``error`` where that was not asked for."""
        lost = self._at.expired(error)
        place = f"{self._namespace}/{self._topic}"
        log = logging.getLogger(type(self).__module__)
        log.warning("%s: %d messages expired before they were read: %s", place, lost, error.detail)

    def _transaction_bytes(self) -> bytes | None:
        transaction = self._transaction
        if transaction is None or isinstance(transaction, bytes):
            return transaction
        return transaction.transaction.to_bytes()  # each time, as a checkpoint changes it


class ConsumerTwin(StreamTwin[T, C]):
    """What both durable consumers are made of."""

    _at: ConsumerPosition
    _opened: Subscription
    _acknowledged = 0

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
        client: C | None = None,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        codec: Any = None,
        page_size: int = PAGE,
        ack_interval: float = ACK_SECONDS,
    ) -> None:
        """Open the subscription, and make it if it is not there; the twin of asyncio does so when it is opened.

        Args:
            start: where a new subscription begins, as of a :class:`oncelog.Reader`; ``latest`` is behind all that could be
                delivered by now. One that is there goes on behind its last acknowledged message.
            timeout: seconds without a new message after which iteration ends; None never ends, 0 ends at the end of the log.
            client: a :class:`oncelog.Client`, or for asyncio an :class:`oncelog.AsyncClient`; else it makes one of its own.
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
        self._subscription = subscription
        self._start: tuple[Start, bool] = start, inclusive
        self._pending: Upto | None = None
        self._failure: OncelogError | None = None
        self._untold = False  # whether the failure was met in the background, and was not raised yet
        self._made()

    def _made(self) -> None:
        """Open the subscription, or prepare for it."""
        raise NotImplementedError

    async def _open_subscription(self) -> None:
        start, inclusive = self._start
        self._opened = await got(
            self._client.open_subscription(
                self._topic, self._subscription, start=start, inclusive=inclusive, namespace=self._namespace
            )
        )
        self._acknowledged = self._opened.cursor

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
        return self._subscription

    @property
    def epoch(self) -> int:
        """The number of this consumer among those of the subscription; a seek begins a new one."""
        return self._opened.epoch

    @property
    def acknowledged(self) -> int:
        """Every message below this offset is acknowledged, on disk, as far as this consumer knows."""
        return self._acknowledged

    def _note_acknowledged(self, upto: Upto, cursor: int) -> None:
        """The service has acknowledged it."""
        self._acknowledged = max(self._acknowledged, cursor)
        if self._at.acknowledged(upto):
            self._interrupted = True
        if self._pending is not None and self._pending.message_id <= upto.message_id:
            self._pending = None

    def _unacknowledged(self) -> str:
        pending = self._pending
        upto = "" if pending is None else f" up to message {pending.message_id}"
        place = f"{self._namespace}/{self._topic}"
        return f"subscription {self._subscription!r} of {place}: what was acknowledged{upto} may be delivered again"

    def _note(self, error: OncelogError) -> None:
        """This consumer has ended, if it has."""
        if isinstance(error, FOR_EVER):
            self._failure, self._interrupted = error, True

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            self._untold = False
            if not isinstance(failure, FOR_EVER):
                self._failure = None
            raise failure
