"""Answers polls of one topic: bound by what lives → rows → payloads joined in → up to the first undecided one → encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

from oncelog.errors import MessagesExpired, OffsetOutOfRange, TransactionsUnavailable
from oncelog.wire.isolation import COMMITTED, Held
from oncelog.wire.requests import ConsumeRequest
from oncelog.wire.transaction import SETTLED, Transaction, is_own
from oncelog_service.log.arrivals import Arrivals
from oncelog_service.log.checks import MAX_TIMESTAMP, check_consume
from oncelog_service.log.keep.expiry import Expiry, Living
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.read.pages import Bounds, Encoding, Lives, Page, collect, read_page, through
from oncelog_service.log.scan import after, find_offset
from oncelog_service.properties import ttl_ms
from oncelog_service.reading import Place, read
from oncelog_service.storage.keys import FIRST_ROW_ID, ROW_ID_SIZE, is_beyond, split_row_id, timestamp_prefix

_REMEMBERED_BYTES = 2**20
"""Of a reader's transaction that is kept decoded: one with 130,000 invalid pointers."""
_DECODED_AT_ONCE = 128 * 2**10
"""Of a reader's transaction: 16,000 pointers, 2 ms."""
_CACHED_ROWS = 2_000
"""Looked at in one turn of the event loop: 2 ms."""
_SLICE_ROWS = 20_000
"""Read from the store in one go."""
_SMALL_PAGE = 500
"""A page of so few messages is put together without a place, …"""
_SMALL_BYTES = 2**20
"""… unless it has more bytes than this. JSON never has (AS_JSON): what it notes of a message must not be noted twice."""
_SLICES = 100
"""Of one page that holds something: as many cached messages as a page may have twice."""
HELD_SECONDS = 5.0
"""How long a poll of what is committed waits, at most, once something undecided holds it up: then it is answered, and says so."""
_TOLD_SECONDS = 1.0
"""How long one waits, whatever it asks for, where what holds it up has ended and the topic is about to be told: who has committed
reads that. It takes 0.02 s (settlement.py), unless much ends at once, or there is no room for a roll-back."""


class Polls:
    """Finds where polls begin, and puts their pages together. Works on the event loop that owns the topic."""

    __slots__ = (
        "_cache",
        "_clock",
        "_counts",
        "_expiry",
        "_fold",
        "_limits",
        "_prefix",
        "_store",
        "_took",
        "_topic",
        "_transaction",
    )

    def __init__(self, topic: OpenTopic, expiry: Expiry) -> None:
        self._topic = topic
        self._prefix = topic.prefix
        self._store = topic.store
        self._clock = topic.clock
        self._limits = topic.limits
        self._fold = topic.dedup.fold
        self._cache = topic.cache
        self._took = topic.writer.counts.page
        self._counts = topic.counts
        self._expiry = expiry
        self._transaction: tuple[bytes, Transaction] | None = None

    async def poll(
        self,
        request: ConsumeRequest,
        encoding: Encoding,
        by: str | None = None,
        place: Place | None = None,
        upto: bytes | None = None,
    ) -> Page:
        """The messages from where the request says, at most its limit; an empty page after its wait at the latest.

        With a transaction: what it sees, up to the first message that is undecided for it. Without one: everything, or what is
        committed, up to where the log is stable. A large page has the ``place``, until the caller leaves it. ``upto``: no further
        than to the message with this id, where a page of the same isolation has been cut before (:attr:`Page.cut_before`).

        Raises:
            NotAllowed: the transaction is not that of ``by``.
            InvalidRequest, InvalidTransaction, StaleMessageId, OffsetOutOfRange, MessagesExpired: definite.
            TopicDamaged: a message is damaged or missing.
        """
        check_consume(request)
        self._topic.check_open()
        self._topic.check_generation(request.generation)
        transaction = None if request.transaction is None else await self._decoded(request.transaction)
        committed = request.isolation == COMMITTED
        if committed:
            transaction = SETTLED
        elif transaction is not None:
            with suppress(TransactionsUnavailable):  # who may read the topic sees no more with it than without
                await self._topic.pointers.check_owner(transaction.write_pointer, by)
        start = await self._start(request)
        offset = None if request.start_offset is None else request.start_offset + (not request.inclusive)
        end = self._clock.monotonic() + min(request.wait or 0, self._limits.max_wait_ms) / 1000
        looked_at, told_by = None, self.told_by(end)
        while True:
            seen = self._last_id(committed)
            page = await self.page(start, request.limit, encoding, await self._as_known(transaction), place, committed, upto)
            if request.refuse_expired:  # behind it: what has expired, or was deleted, while it was read is left out of it too
                await self._check_nothing_lost(start, offset, transaction is not None, committed)
            if page.last_id is not None:
                start, offset, looked_at = after(page.last_id), None, page.last_id
            left = end - self._clock.monotonic()
            if page.messages or page.undecided or left <= 0:
                if not committed or page.messages or upto is not None:
                    return page._replace(last_id=looked_at)
                if not await self.told(seen, told_by):
                    return page._replace(last_id=looked_at, held=self.held())
                continue
            if (data := request.transaction) is not None and len(data) > _REMEMBERED_BYTES:
                transaction = None  # decoded it is ten times as much
            if not await (self.decision(seen, end) if committed else self._arrival(seen, left)):
                end = 0.0
            self._topic.check_open()
            if transaction is None and data is not None:
                transaction = await self._decoded(data)

    async def _check_nothing_lost(self, start: bytes, offset: int | None, rolled_back: bool, stable: bool) -> None:
        """Raises MessagesExpired where messages behind the start have expired by the topic's ttl. ``offset``: the start's, if it
        is known; ``rolled_back``: rows that were rolled back are no loss; ``stable``: only what lies there is one."""
        behind = await self._expiry.behind(start, self._expiry.living(), rolled_back)
        upcoming = self._fold.position.upcoming_offset
        earliest = upcoming if behind.earliest is None else behind.earliest
        if stable:  # of what is not decided nobody knows yet that it is a loss
            earliest = min(earliest, self._fold.stable.position.upcoming_offset)
        if not behind.lost or any(each is not None and each >= earliest for each in (offset, behind.first)):
            return
        first = behind.first if offset is None else offset
        what = f"up to offset {earliest - 1}" if first is None else f"at offsets {first} to {earliest - 1}"
        raise MessagesExpired(
            f"messages {what} have expired before they were asked for; the first one that lives has offset {earliest}, "
            f"the next one will have {upcoming}",
            first=first,
            earliest=earliest,
            upcoming=upcoming,
        )

    async def _decoded(self, data: bytes) -> Transaction:
        """Decode a transaction, or answer the latest one again: a client that pages sends the same with each poll."""
        if self._transaction is not None and self._transaction[0] == data:
            return self._transaction[1]
        if len(data) <= _DECODED_AT_ONCE:
            transaction = Transaction.from_bytes(data)
        else:
            transaction = await asyncio.to_thread(_decode_whole, data)
            self._topic.check_open()
        if len(data) <= _REMEMBERED_BYTES:
            self._transaction = data, transaction
        return transaction

    async def _as_known(self, transaction: Transaction | None) -> Transaction | None:
        """The same; but what our transaction service lost, since it was put back to an earlier time, or does not speak of now, is
        undecided for it too, and what was aborted is passed over that somebody had acknowledged for this topic before it was
        rolled back.

        That lies below its read pointer and in none of its lists, as what has committed and is not settled yet does.
        """
        if transaction is None or transaction is SETTLED:
            return transaction
        told = transaction.undecided, transaction.excluded, transaction.own
        below = (each for each in self._fold.unsettled if is_own(each) and each <= transaction.read_pointer)
        asked, states = [each for each in below if not any(each in some for some in told)], dict[int, str]()
        try:
            states |= await self._topic.transactions.states(asked) if asked else {}
            unknown = [each for each in asked if each not in states]
            lost = [each for each in unknown if self._topic.is_before(each) or not await self._topic.transactions.forgotten(each)]
        except TransactionsUnavailable:
            lost = asked  # nobody says that they have not been undone
        undone = [each for each, state in states.items() if state in ("aborted", "invalid")]
        if not (lost or undone):
            return transaction
        return replace(transaction, in_progress=[*transaction.in_progress, *lost], invalids=[*transaction.invalids, *undone])

    async def page(
        self,
        start: bytes,
        asked: int | None,
        encoding: Encoding,
        transaction: Transaction | None,
        place: Place | None = None,
        stable: bool = False,
        upto: bytes | None = None,
    ) -> Page:
        """``asked``: at most so many messages; ``stable``: only of that part of the log; ``upto``: of which it has this message,
        and nothing behind it is looked at. It is measured how long it takes; nothing in it waits for messages.

        It is put together from slices of a bounded number of rows, and others have a turn in between: a hundred thousand expired
        rows before one that lives hold up nobody. Where something was found it may end before its limit; an empty one is the end,
        and has no ``place``.
        """
        began = self._clock.elapsed()
        limit = min(asked or self._limits.default_poll_messages, self._limits.max_poll_messages)
        limit = min(limit, encoding.max_messages or limit)
        room = min(self._limits.max_poll_bytes, encoding.max_bytes or self._limits.max_poll_bytes)
        messages: list[bytes] = []
        delivered = 0
        last_id: bytes | None = None
        place = place or Place(asyncio.Semaphore())
        if limit > _SMALL_PAGE:
            await place.take()
        for number in count(1):
            bound = room if place.taken else min(room, _SMALL_BYTES)
            page = await self._slice(start, limit - delivered, bound, encoding, transaction, stable, upto)
            if bound < room and page.delivered and page.room <= 0 and page.delivered < limit:
                del page  # it is large after all: what was read is not held while it waits for its place, but read again
                await place.take()
                self._topic.check_open()
                continue
            messages += page.messages
            delivered += page.delivered
            last_id = page.last_id or last_id
            if not messages:  # it passes over what has expired, or waits: that holds nothing, and holds up nobody
                place.leave()
            if not page.more or last_id is None or (messages and number >= _SLICES):
                break
            start, room = after(last_id), room - bound + page.room
            if messages:
                await place.take()
            await asyncio.sleep(0)
            self._topic.check_open()
        self._took.observe(self._clock.elapsed() - began)
        if delivered:
            self._counts.handed_out(delivered, sum(map(len, messages)))
        cut_before = None
        if delivered != asked and last_id is not None and (delivered >= limit or page.room <= 0 or page.more):
            upto = upto or self._last_id(stable)
            cut_before = upto if upto is not None and last_id < upto else None
        return page._replace(messages=messages, delivered=delivered, last_id=last_id, more=False, room=0, cut_before=cut_before)

    async def _slice(
        self,
        start: bytes,
        limit: int,
        room: int,
        encoding: Encoding,
        transaction: Transaction | None,
        stable: bool,
        upto: bytes | None,
    ) -> Page:
        living = self._expiry.living()
        if start < living.begin:
            await self._expiry.hide(living)
            start = living.begin
        position = self._fold.stable.position if stable else self._fold.position
        last_id = upto or position.last_message_id
        if last_id is None or last_id < start:
            return Page([], 0, None, upcoming=position.upcoming_offset)
        last_row = last_id[:ROW_ID_SIZE] if stable or upto else None
        page = await self._living_slice(start, limit, room, encoding, transaction, last_row, living)
        if page.expired_at:
            await self._expiry.passed_over(page.expired_at, page.last_id)
        return page._replace(lives=Lives(living.now_ms, ttl_ms(self._topic.row.properties)))

    async def _living_slice(
        self,
        start: bytes,
        limit: int,
        room: int,
        encoding: Encoding,
        transaction: Transaction | None,
        last_row: bytes | None,
        living: Living,
    ) -> Page:
        bounds = Bounds(limit, room, living.now_ms, _SLICE_ROWS, living.judgements)
        row_id = start[:ROW_ID_SIZE]
        # The cache reaches up to the end of the log: with as many messages as there are, it has the first one too.
        cached_from = self._fold.position.upcoming_offset - self._cache.messages
        if self._cache.covers(row_id) or cached_from <= self._topic.earliest_offset:
            bounds = bounds._replace(rows=_CACHED_ROWS)
            return collect(through(self._cache.runs(row_id), last_row), start, bounds, encoding, transaction)
        return await read(read_page, self._store, self._prefix, start, bounds, encoding, transaction, last_row)

    async def _start(self, request: ConsumeRequest) -> bytes:
        """The key at which the scan begins."""
        if request.start_offset is not None:
            return await self.start_at_offset(request.start_offset + (not request.inclusive))
        if request.start_from is None:
            return FIRST_ROW_ID
        if isinstance(request.start_from, int):
            return timestamp_prefix(min(request.start_from + (not request.inclusive), MAX_TIMESTAMP))
        if is_beyond(request.start_from):
            last_id = self._last_id(request.isolation == COMMITTED)
            return FIRST_ROW_ID if last_id is None else after(last_id)
        return self.start_at_id(request.start_from, request.inclusive)

    async def start_at_offset(self, offset: int) -> bytes:
        upcoming = self._fold.position.upcoming_offset
        if offset > upcoming:
            raise OffsetOutOfRange(f"offset {offset} lies beyond the upcoming offset {upcoming}", upcoming=upcoming)
        last_id = self._fold.position.last_message_id
        if offset < upcoming and offset > self._topic.earliest_offset:
            found = await read(find_offset, self._store, self._prefix, offset)
            if found is not None:
                return found
        return after(last_id) if last_id is not None and offset == upcoming else FIRST_ROW_ID

    def start_at_id(self, message_id: bytes, inclusive: bool) -> bytes:
        self._topic.check_message_id(message_id)
        return message_id if inclusive else after(message_id)

    async def _arrival(self, seen: bytes | None, seconds: float) -> bool:
        """Return when there is more than the page was looked for in, which ended with the message ``seen``, or the time is over;
        False where nobody may wait any longer.

        Where the page began says nothing: what lies behind that may have expired, and a poll that looked again would not end.
        """
        return self._last_id(False) != seen or await Arrivals.wait([self._topic.arrivals], seconds)

    def _last_id(self, stable: bool) -> bytes | None:
        return (self._fold.stable.position if stable else self._fold.position).last_message_id

    def held(self) -> Held | None:
        """The first message that is not decided."""
        run = self._fold.oldest_unsettled
        if run is None or run.write_pointer is None:
            return None
        return Held(run.first_offset, run.write_pointer, split_row_id(run.first_id)[0], self._clock.now_ms())

    def told_by(self, end: float) -> float:
        """By when, at the latest, who waits till ``end`` reads what has ended before it asked."""
        return max(end, self._clock.monotonic() + _TOLD_SECONDS)

    async def told(self, seen: bytes | None, end: float) -> bool:
        """Whether more is decided than up to the message ``seen``, by then: what comes behind it has ended, and the topic is told
        a moment later."""
        while (left := end - self._clock.monotonic()) > 0:
            if self._last_id(True) != seen:
                return True
            run = self._fold.oldest_unsettled
            if run is None or run.write_pointer is None or not self._topic.transactions.ended(run.write_pointer):
                return False
            if not await Arrivals.wait([self._topic.stable_arrivals], left):
                return False
            self._topic.check_open()
        return False

    async def decision(
        self, seen: bytes | None, end: float, *also: Arrivals, is_over: Callable[[], bool] = lambda: False
    ) -> bool:
        """Return when more is decided than up to the message ``seen``, or the wait ``is_over``, which is asked whenever one of
        ``also`` wakes; False where nobody may wait any longer, or it is time to say what holds it up.

        Whatever is published meanwhile ends no wait: behind what is not decided it cannot be read.
        """
        held = False
        while self._last_id(True) == seen and not is_over():
            if not held and self._fold.oldest_unsettled is not None:
                held, end = True, min(end, self._clock.monotonic() + HELD_SECONDS)
            left = end - self._clock.monotonic()
            if left <= 0 or not await Arrivals.wait([self._topic.stable_arrivals, *also], left):
                return False
            self._topic.check_open()
        return True


def _decode_whole(data: bytes) -> Transaction:
    """Decode a transaction and what a page asks of it first, which is kept with it."""
    transaction = Transaction.from_bytes(data)
    _ = transaction.undecided, transaction.excluded
    return transaction
