"""What the twins of readers and consumers share, of threads and of asyncio: their arguments, what they note, how they wait.

What awaits is a procedure (:mod:`oncelog.process.procedures`): its hands are the twin's own ``_until_closed``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Generic, Protocol

from oncelog.api.api import C, OfTopic, paused
from oncelog.api.calls import check_generation
from oncelog.api.retry import may_retry, pause
from oncelog.codecs import V, codec_for
from oncelog.errors import (
    ConsumerClosed,
    ConsumerFenced,
    MessagesExpired,
    NotSupported,
    OncelogError,
    ReaderClosed,
    StaleMessageId,
    SubscriptionNotFound,
    TopicNotFound,
)
from oncelog.message_id import MessageId
from oncelog.process import exits
from oncelog.process.errands import Stopped
from oncelog.process.procedures import Procedure, answer_of
from oncelog.process.tracing import Place, switch
from oncelog.reading.older import OlderService, stable_offsets
from oncelog.reading.position import ITERATED, ConsumerPosition, Found, HeldUp, PageSize, PolledAhead, ReaderPosition, Upto
from oncelog.values.message import Message, check_place
from oncelog.values.numbers import Own, check_count, check_timeout
from oncelog.values.start import Start, is_latest
from oncelog.wire.isolation import COMMITTED, Held
from oncelog.wire.models import Subscription
from oncelog.wire.requests import ConsumeRequest, Polled
from oncelog.wire.transaction import Transaction

PAGE = 5_000
"""Messages of a page at most; the service ends a page by bytes too."""
WAIT_SECONDS = 20.0
"""How long one request is held on the service when there is nothing yet."""
ACK_SECONDS = 1.0
"""How long what :meth:`oncelog.Consumer.ack_async` took may wait: so much is delivered again at most after a crash, besides what
was under way. (Kafka's auto.commit.interval.ms is 5 s.)"""

FOR_EVER = (ConsumerFenced, SubscriptionNotFound, StaleMessageId, TopicNotFound)
"""After these a consumer will never move the subscription again."""


class BegunTransaction(Protocol):
    """A transaction that has begun, as a reader sees it: an :class:`oncelog.TransactionContext`."""

    @property
    def transaction(self) -> Transaction:
        """What it sees; a checkpoint changes it."""
        ...


class StreamTwin(OfTopic[C], Generic[C, V]):
    """A position in a topic, and how it waits there for messages."""

    _ended_by: type[OncelogError]
    """What is raised once it is closed."""
    _subscription: str | None = None
    _log: logging.Logger

    def __init__(self, at: PolledAhead, timeout: float | None, codec: object, page_size: int) -> None:
        """The arguments are those of a :class:`oncelog.Reader`."""
        check_timeout(timeout)
        check_count("page_size", page_size)
        self._at = at
        self._timeout = timeout
        at.source = at.source._replace(codec=codec_for(codec))
        self._page_size = PageSize(page_size)
        self._held: Held | None = None
        self._held_up = HeldUp()
        self._closed = False
        self._interrupted = False
        """What is polled ahead is not to be delivered any more; why, the next :meth:`_poll` says."""

    def _connect(self, topic: str, namespace: str, *to: Any) -> None:
        super()._connect(topic, namespace, *to)
        self._at.source = self._at.source._replace(namespace=namespace, topic=topic)

    def __repr__(self) -> str:
        names = () if self._subscription is None else (self._subscription,)
        return self._shown(*names, position=self.position)

    def _prepare(self) -> None:
        """Make what the twin waits with."""
        raise NotImplementedError

    @property
    def position(self) -> MessageId | None:
        """Id of the last message delivered, or of the one that reading started after; None if there is neither."""
        delivered = self._at.delivered
        return None if delivered is None else MessageId.from_bytes(delivered)

    @property
    def held(self) -> Held | None:
        """The undecided message that ended the last look for more, with its offset and write pointer, and since when it is there;
        None: nothing holds this one up."""
        return self._held

    def _note_held(self, held: Held | None, asked: float) -> None:
        self._held = held
        if not self._held_up.is_told(held, asked, self._clock.monotonic()):
            return
        assert held is not None
        self._log.warning(
            "%s%s/%s: nothing is delivered from offset %d on: write pointer %d holds it back, undecided since %s. It goes on "
            "when that has ended. Whoever began it may end it (oncelog tx abort), and so may who has the grant operate (oncelog "
            "tx list --state held says whose; one of another transaction service ends there, or by oncelog topic settle); "
            'a Reader with isolation="uncommitted" reads on without waiting',
            "" if self._subscription is None else f"subscription {self._subscription!r} of ",
            self._namespace,
            self._topic,
            held.offset,
            held.write_pointer,
            datetime.fromtimestamp(held.since_ms / 1000, UTC).isoformat(timespec="seconds"),
        )

    async def _poll(self, wait_ms: int) -> Found:
        """Ask once for more, and hold what it brings. Raises Stopped."""
        raise NotImplementedError

    def _until_closed(self, call: Callable[[], Any]) -> Any:
        """Return what the call does, which may be a procedure. Raises Stopped once it is closed."""
        raise NotImplementedError

    def _place(self) -> Place:
        return Place(self._namespace, self._topic, self._client.url)

    async def _polled(self, call: Callable[[], Polled | Procedure[Polled]]) -> Polled:
        """Return the answer, as :meth:`_until_closed`; traced where this process does."""
        tracing = switch.tracing
        if tracing is None:
            answer: Polled = await answer_of(self._until_closed, call)
            return answer
        with tracing.receive(*place_of(self)) as receiving:
            polled: Polled = await answer_of(self._until_closed, call)
            receiving.brought(polled.messages)
            return polled

    def _check_here(self) -> None:
        """Raise where it may not be used."""

    def _check(self) -> None:
        """Raise what ended it for good, or that it is used elsewhere."""
        if self._closed:
            raise self._ended_by
        self._check_here()

    async def _has_message(self) -> bool:
        self._check()
        at = self._at
        at.drop_expired(self._clock.monotonic())
        while not at.records or self._interrupted:
            self._page_size.want(ITERATED)
            try:
                found = await self._poll(0)
            except Stopped:
                return False
            if found is not Found.MORE and not at.records:
                return False
        return True

    async def _poll_ahead(self, limit: int, timeout: float | Own | None, wanted: int | None = None) -> bool:
        """Poll until there is a message to deliver; False: there is none after ``timeout`` seconds (None waits for ever).

        ``wanted``: messages that the first page is to bring, else ``limit``.
        """
        check_count("limit", limit)
        if isinstance(timeout, Own):
            timeout = self._timeout
        check_timeout(timeout)
        self._check()
        at = self._at
        now = self._clock.monotonic()
        end = None if timeout is None else now + timeout
        at.drop_expired(now)
        empty = 0
        while not at.records or self._interrupted:
            began = self._clock.monotonic()
            self._page_size.want(wanted or limit)
            left = WAIT_SECONDS if end is None else min(WAIT_SECONDS, max(0.0, end - began))
            try:
                found = await self._poll(int(left * 1000))
                now = self._clock.monotonic()
                if not at.records and (found is Found.UNDECIDED or (end is not None and now >= end)):
                    return False
                if not at.records and found is Found.END:
                    # Whoever answers has not waited, or not for long, who knows why: to ask again at once would go on for ever.
                    short = min(pause(empty, 1.0) - (now - began), inf if end is None else end - now)
                    empty = empty + 1 if short > 0 else 0
                    if short > 0:
                        await answer_of(self._until_closed, partial(paused, self._client, short))
            except Stopped:
                return False
        return True


def place_of(stream: StreamTwin[Any, Any]) -> tuple[Place, str | None]:
    """Return where a reader or consumer reads, and its subscription, if it has one."""
    return stream._place(), stream._subscription


class ReaderTwin(StreamTwin[C, V]):
    """What both readers are made of."""

    _at: ReaderPosition
    _ended_by = ReaderClosed
    _log = logging.getLogger("oncelog.reader")

    _is_committed: bool
    """Whether it delivers what is committed, and asks for it."""
    _transaction: BegunTransaction | bytes | None
    _older: OlderService | None = None

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
        check_generation(generation)
        if is_latest(start):
            start, generation = await self._latest()
        self._at.begin(start, inclusive, generation)
        self._page_size.begin()

    async def _latest(self) -> tuple[int, int]:
        """The offset behind the last message that is stable, or of all, and the generation that it is of."""
        if self._is_committed:
            found = await stable_offsets(self._client, self._topic, self._namespace)
            return found.stable, found.generation
        stats = await answer_of(self._client.stats, self._topic, self._namespace)
        return stats.upcoming_offset, stats.generation

    async def _page(self, asked: ConsumeRequest) -> Polled:
        if not self._is_committed:
            return await self._polled(partial(self._client.poll, self._topic, asked, self._namespace))
        if self._older is None or self._older.is_replaced:
            request = replace(asked, isolation=COMMITTED)
            try:
                return await self._polled(partial(self._client.poll, self._topic, request, self._namespace))
            except NotSupported:
                self._told_of_older()
        assert self._older is not None
        return await self._polled(partial(self._older.poll, asked))

    def _told_of_older(self) -> None:
        place = f"{self._namespace}/{self._topic}"
        if self._older is None:
            self._log.warning(
                "%s: the service is of an older version, whose polls do not know what is committed: it is asked in other ways, "
                "which are slower",
                place,
            )
        self._older = OlderService(self._client, self._topic, self._namespace)

    async def _poll(self, wait_ms: int) -> Found:
        while True:
            asked = self._at.asks(self._page_size.count, wait_ms, self._transaction_bytes())
            began = self._clock.monotonic()
            try:
                polled = await self._page(asked)
            except MessagesExpired as error:
                if self._has_moved(asked):
                    return Found.MORE
                lost, place = self._at.expired(error), f"{self._namespace}/{self._topic}"
                self._log.warning("%s: %d messages expired before they were read: %s", place, lost, error.detail)
            else:
                if self._has_moved(asked):
                    return Found.MORE
                self._note_held(polled.held, began)
                if polled.messages:
                    self._page_size.grow()
                return self._at.answered(asked, polled, self._clock.monotonic())

    def _has_moved(self, asked: ConsumeRequest) -> bool:
        """Whether another task has moved it since this was asked: what came lies elsewhere, or is held already."""
        return self._at.asks(asked.limit or 0, asked.wait or 0, asked.transaction) != asked

    def _transaction_bytes(self) -> bytes | None:
        transaction = self._transaction
        if transaction is None or isinstance(transaction, bytes):
            return transaction
        return transaction.transaction.to_bytes()  # each time, as a checkpoint changes it


class ConsumerTwin(StreamTwin[C, V]):
    """What both durable consumers are made of."""

    _at: ConsumerPosition
    _ended_by = ConsumerClosed
    _log = logging.getLogger("oncelog.consumer")
    _guard: AbstractContextManager[Any]
    """Held while what waits is changed."""
    _opened: Subscription
    _subscription: str
    _acknowledged = 0

    _ack_interval: float
    _home: int
    """Where it was made, as a process; a fork is another one."""
    _start: tuple[Start, bool]
    _pending: Upto | None = None
    """What is acknowledged and not sent yet."""
    _failure: OncelogError | None = None
    _has_ended = False
    _untold = False
    """Whether the failure was met in the background, and was not raised yet."""

    def __str__(self) -> str:
        return f"consumer of subscription {self._subscription!r} of {self._namespace}/{self._topic}"

    def __del__(self) -> None:
        if hasattr(self, "_opened") and not self._closed:
            exits.unclosed(self, self._home)

    async def _open_subscription(self) -> None:
        start, inclusive = self._start
        self._opened = await answer_of(
            self._client.open_subscription,
            self._topic,
            self._subscription,
            start=start,
            inclusive=inclusive,
            namespace=self._namespace,
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

    def _check(self) -> None:
        """Raise what ended this consumer; once, what one acknowledged in the background met."""
        super()._check()
        self._raise_failure()

    async def _poll(self, wait_ms: int) -> Found:
        self._interrupted = False  # before what it says is looked at: an interruption behind that counts
        try:
            self._check()
            self._at.pass_over()
        except BaseException:
            self._interrupted = True  # it is not all looked at yet
            raise
        if self._at.records:
            return Found.MORE
        opened, began = self._opened, self._clock.monotonic()
        count = self._page_size.count
        asked = self._at.asks(opened.epoch, opened.generation, count, wait_ms)
        try:
            polled = await self._polled(partial(self._client.receive, self._topic, self._subscription, asked, self._namespace))
        except OncelogError as error:
            if isinstance(error, ConsumerFenced):
                await self._sought()
            if self._opened is not opened:
                return Found.MORE
            self._note(error)
            raise
        if self._opened is not opened or self._at.asks(opened.epoch, opened.generation, count, wait_ms) != asked:
            return Found.MORE  # another task has moved it meanwhile: what came lies elsewhere, or is held already
        self._note_held(polled.held, began)
        if polled.messages:
            self._page_size.grow()
        return self._at.answered(polled, self._clock.monotonic())

    async def _sought(self) -> None:
        """Return when no other task is at a seek: it has perhaps fenced this consumer, and not heard of it yet."""

    async def _seek(self, start: Start, inclusive: bool) -> None:
        self._check()
        sought = await answer_of(
            self._client.seek_subscription,
            self._topic,
            self._subscription,
            start,
            inclusive=inclusive,
            epoch=self.epoch,
            namespace=self._namespace,
        )
        with self._guard:
            self._pending = None
        self._at.begin()
        self._page_size.begin()
        # Also where a signal handler has acknowledged in between, under the epoch that the seek has fenced.
        self._failure, self._interrupted, self._has_ended = None, False, False
        # At the end: interrupted before it, the consumer is fenced, and leaves nothing out.
        self._opened, self._acknowledged = sought, sought.cursor

    async def _acknowledge(self, upto: Upto, within: float | None = None) -> None:
        asked = upto.asks(self.epoch, self._opened.generation)
        try:
            cursor = await answer_of(
                self._client.acknowledge, self._topic, self._subscription, asked, self._namespace, within=within
            )
        except OncelogError as error:
            # Refused for an id that its caller has from elsewhere, this consumer is none the worse: the next page would say so.
            if upto.offset is not None or not isinstance(error, StaleMessageId):
                self._note(error)
            raise
        with self._guard:
            self._acknowledged = max(self._acknowledged, cursor)
            if self._at.acknowledged(upto):
                self._interrupted = True
            if self._pending is not None and self._pending.message_id <= upto.message_id:
                self._pending = None

    async def _acknowledge_pending(self, within: float | None = None) -> None:
        """Acknowledge what waits. It waits on if that fails, unless it never could succeed."""
        pending = self._pending
        if pending is None:
            return
        try:
            await self._acknowledge(pending, within)
        except OncelogError as error:
            if not may_retry(error, idempotent=True):
                with self._guard:
                    # What was acknowledged behind it meanwhile may be none the worse.
                    if self._pending is pending or self._has_ended:
                        self._pending = None
            raise

    def _note_in_background(self, error: OncelogError) -> None:
        """What acknowledges in the background met this: who asks next hears of it, where it does not pass."""
        if not may_retry(error, idempotent=True):
            self._failure, self._untold, self._interrupted = error, True, True

    def _upto(self, message: Message[Any] | MessageId) -> Upto:
        """The acknowledgement of a message. Raises InvalidMessageId, StaleMessageId: it is one of another topic; TypeError."""
        if isinstance(message, Message):
            whose = f"the cursor of subscription {self._subscription!r}"
            check_place(message, self._namespace, self._topic, self._opened.generation, whose)
        return self._at.upto(message)

    def _unacknowledged(self) -> str:
        pending = self._pending
        upto = "" if pending is None else f" up to message {pending.message_id}"
        place = f"{self._namespace}/{self._topic}"
        return f"subscription {self._subscription!r} of {place}: what was acknowledged{upto} may be delivered again"

    def _note(self, error: OncelogError) -> None:
        """This consumer has ended, if it has."""
        if isinstance(error, FOR_EVER):
            self._failure, self._interrupted, self._has_ended = error, True, True
            self._rest()
            self._log.warning("a %s has ended: %s: %s", str(self), error.code, str(error))

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            self._untold = False
            if self._has_ended:
                self._rest()
            else:
                self._failure = None
            raise failure

    def _rest(self) -> None:
        """It has ended: let go of what it would wait with."""
