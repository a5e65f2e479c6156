"""The subscriptions of one open topic: how far each is acknowledged, and which consumer may move it.

A subscription's cursor is an offset: every message below it is acknowledged. Its consumer moves it forward by acknowledging;
a seek puts it anywhere; nothing else moves it, and retention does not wait for it. It is a row of the topic's own, written
as messages are.

Consumers are told apart by epochs, as producers are. An open, a seek and a delete each begin a new one: what was sent under an
older one, however late it arrives, moves nothing.

They are given what is stable: of messages in transactions those that are committed, and nothing beyond the first undecided one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import islice

from oncelog.errors import (
    ConsumerFenced,
    InvalidMessageId,
    InvalidRequest,
    OffsetOutOfRange,
    OncelogError,
    SubscriptionNotFound,
)
from oncelog.message_id import MessageId
from oncelog.wire.models import (
    Acknowledge,
    Acknowledged,
    OpenSubscription,
    ReceiveMessages,
    SeekSubscription,
    StartPosition,
    Subscription,
    TopicAsked,
)
from oncelog.wire.transaction import SETTLED
from oncelog_service.bounds.holding import check_names, knows_too_many
from oncelog_service.bounds.slices import slices
from oncelog_service.log.arrivals import Arrivals
from oncelog_service.log.checks import check_acknowledge, check_start
from oncelog_service.log.names.epochs import begun_by, remembering
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.read.pages import Encoding, Page
from oncelog_service.log.read.polls import Polls
from oncelog_service.log.read.ranges import Ranges
from oncelog_service.log.scan import after, find_offset, offset_behind
from oncelog_service.log.settling import Settling
from oncelog_service.reading import Place, read
from oncelog_service.storage.keys import split_row_id
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import SubscriptionRow, encode_record

_FOUND_AT_ONCE = 100
_SHOWN_AT_ONCE = 50
"""Offsets by bisection, about 30 seeks each, before others have a turn on the thread."""
_GIVEN_BACK = ".."
"""No name, so nobody has it: the epoch of its row is the highest of all deleted names that are known no more."""
_GIVEN_BACK_AT_ONCE = 1_000


class Subscriptions:
    """Works on the event loop that owns the topic. Rows in memory are those on disk or on their way there, and
    those that were deleted last stand last."""

    __slots__ = (
        "_changes",
        "_clock",
        "_fold",
        "_generations",
        "_heard",
        "_limits",
        "_live",
        "_polls",
        "_prefix",
        "_ranges",
        "_rows",
        "_settling",
        "_store",
        "_topic",
        "_writer",
    )

    def __init__(
        self, topic: OpenTopic, rows: dict[str, SubscriptionRow], ranges: Ranges, polls: Polls, settling: Settling
    ) -> None:
        self._topic = topic
        self._prefix = topic.prefix
        self._generations = topic.generations
        self._store = topic.store
        self._writer = topic.writer
        self._clock = topic.clock
        self._fold = topic.dedup.fold
        self._limits = topic.limits
        self._rows = rows
        self._live = sum(row.cursor is not None for row in rows.values())
        self._ranges = ranges
        self._polls = polls
        self._settling = settling
        self._heard: dict[str, int] = {}
        """When the newest consumer of each last asked for something, ms; of those that did."""
        self._changes = Arrivals()
        """Woken when a consumer is fenced: one that waits is to hear of it."""

    # --- who may move it

    async def open(self, asked: OpenSubscription) -> Subscription:
        """Begin a new epoch, which fences the consumer before, or answer again for a nonce that did so before.

        Raises:
            InvalidRequest, InvalidMessageId, StaleMessageId, OffsetOutOfRange: a subscription that is not there yet cannot begin
                at that place. QuotaExceeded: there are as many as there may be. ConsumerFenced: the subscription was deleted, or
                the topic was and made anew, since this was asked first.
        """
        check_start(asked.start)
        if await self._generations.opened_before(SubscriptionRow, asked.name, asked.nonce):
            raise self._generations.consumer_fenced(asked.name, None, None)
        self._topic.check_open()
        start: int | None = None
        while True:
            row = self._rows.get(asked.name, SubscriptionRow(0))
            epoch = begun_by(row.opens, asked.nonce)
            if epoch is not None:
                if row.cursor is None:
                    await self._current(asked.name, epoch)
                break
            cursor = start if row.cursor is None else row.cursor
            if cursor is None:
                start = await self._offset_at(asked.start)
                self._topic.check_open()
                continue  # somebody else may have opened it meanwhile
            if row.cursor is None:
                check_names("subscriptions", self._live, 1, self._limits.max_subscriptions, "the topic")
            if asked.name not in self._rows:
                self._writer.room.admit()
            epoch = await self._begin(asked.name, asked.nonce, cursor)
            break
        self._hear(asked.name, epoch)
        return await self._shown(asked.name, epoch)

    async def seek(self, name: str, asked: SeekSubscription) -> Subscription:
        """Put the cursor somewhere else, and begin a new epoch: the caller's, if that is the consumer. Repeated, it does nothing.

        Raises:
            ConsumerFenced, SubscriptionNotFound, StaleMessageId; what :meth:`open` raises for a place.
        """
        check_start(asked.to)
        row = await self._held(name, asked)
        if begun_by(row.opens, asked.nonce) is None:
            cursor = await self._offset_at(asked.to)
            self._topic.check_open()
            row = await self._held(name, asked)  # not another's by now
        epoch = begun_by(row.opens, asked.nonce)
        if epoch is None:
            epoch = await self._begin(name, asked.nonce, cursor)
        if asked.epoch is not None:
            self._hear(name, epoch)
        return await self._shown(name, epoch)

    async def delete(self, name: str, generation: int | None = None) -> None:
        """Forget the cursor and fence the consumer. Raises SubscriptionNotFound; StaleMessageId: the topic is of another
        ``generation``."""
        self._topic.check_open()
        self._topic.check_generation(generation)
        row = await self._existing(name)
        self._heard.pop(name, None)
        await self._write(name, SubscriptionRow(row.epoch + 1, row.opens))

    async def _held(self, name: str, asked: SeekSubscription) -> SubscriptionRow:
        """The row, if who seeks may. A consumer whose answer was lost seeks again under the epoch before."""
        row = self._rows.get(name)
        repeated = row is not None and begun_by(row.opens, asked.nonce) == row.epoch
        if asked.epoch is not None and not repeated:
            await self._current(name, asked.epoch)
        self._topic.check_generation(asked.generation)
        return await self._existing(name)

    async def _begin(self, name: str, nonce: str, cursor: int) -> int:
        """A new epoch with the cursor there. It counts from the call on; on disk when this returns."""
        batch = Batch()
        if name not in self._rows and knows_too_many(len(self._rows) + 1, self._limits.max_subscriptions):
            self._give_back(batch)
        row = self._rows.get(name) or SubscriptionRow(self._rows.get(_GIVEN_BACK, SubscriptionRow(0)).epoch)
        epoch = self._generations.next_epoch(row.epoch)
        self._heard.pop(name, None)  # the consumer that was heard is fenced
        await self._write(name, SubscriptionRow(epoch, remembering(row.opens, nonce, epoch), cursor), batch)
        return epoch

    def _give_back(self, batch: Batch) -> None:
        """Forgets names that were deleted, the oldest first. What they kept out stays out: a name that is not known begins above
        every epoch that one of them had, and the one row that says so is written with their deletion."""
        deleted = (name for name, row in self._rows.items() if row.cursor is None and name != _GIVEN_BACK)
        gone = [*islice(deleted, _GIVEN_BACK_AT_ONCE)]
        for name in gone:
            batch.delete(Table.SUBSCRIPTION, self._prefix + name.encode())
        epochs = [self._rows.pop(name).epoch for name in (_GIVEN_BACK, *gone) if name in self._rows]
        self._rows[_GIVEN_BACK] = given_back = SubscriptionRow(max(epochs, default=0))
        batch.put(Table.SUBSCRIPTION, self._prefix + _GIVEN_BACK.encode(), encode_record(given_back))

    def _hear(self, name: str, epoch: int) -> None:
        """Notes that the consumer of this epoch has asked for something, if it is the newest."""
        row = self._rows.get(name)
        if row is not None and row.epoch == epoch and row.cursor is not None:
            self._heard[name] = self._clock.now_ms()

    async def _existing(self, name: str) -> SubscriptionRow:
        """The row; where there is one nothing was awaited. Raises SubscriptionNotFound."""
        row = self._rows.get(name)
        if row is None or row.cursor is None:
            await self._writer.drained()  # that it was deleted may still be on its way to disk
            raise SubscriptionNotFound(f"the topic has no subscription {name[:249]!r}")
        return row

    async def _current(self, name: str, epoch: int) -> SubscriptionRow:
        """The row, whose newest consumer is of this epoch: then nothing was awaited. Raises ConsumerFenced, SubscriptionNotFound,
        InvalidRequest."""
        refusal = self._refusal(name, epoch)
        if refusal is None:
            self._heard[name] = self._clock.now_ms()
            return self._rows[name]
        await self._writer.drained()  # the newer epoch may still be on its way to disk
        raise refusal

    def _refusal(self, name: str, epoch: int) -> OncelogError | None:
        row = self._rows.get(name)
        if self._generations.older(epoch):
            return self._generations.consumer_fenced(name, epoch, None if row is None else row.epoch)
        if row is None:
            return SubscriptionNotFound(f"the topic has no subscription {name[:249]!r}")
        if row.cursor is not None and epoch == row.epoch:
            return None
        if not 0 < epoch < row.epoch:
            return InvalidRequest(f"epoch {epoch} of subscription {name!r} was never handed out; open the subscription")
        what = "was deleted" if row.cursor is None else "was opened or moved by somebody else"
        return ConsumerFenced(
            f"subscription {name!r} {what}: this is epoch {epoch}, the current one is {row.epoch}",
            subscription=name,
            epoch=epoch,
            current_epoch=row.epoch,
        )

    # --- what its consumer does

    async def receive(self, name: str, asked: ReceiveMessages, encoding: Encoding, place: Place | None = None) -> Page:
        """Stable messages behind the cursor, or behind what the consumer was given; an empty page after its wait at the latest.

        It waits for what is undecided, and says so, as a poll of what is committed. A large page has the ``place``, until the
        caller leaves it.

        Raises:
            InvalidRequest, ConsumerFenced, SubscriptionNotFound, StaleMessageId: definite. TopicDamaged.
        """
        self._topic.check_open()
        row = await self._current(name, asked.epoch)
        self._topic.check_generation(asked.generation)
        if asked.after is not None:
            start = self._polls.start_at_id(bytes(asked.after), False)
        else:
            start = await self._polls.start_at_offset(row.cursor or 0)
        end = self._clock.monotonic() + min(asked.wait, self._limits.max_wait_ms) / 1000
        looked_at, told_by = None, self._polls.told_by(end)
        while True:
            seen = self._ranges.last_stable_id
            page = await self._polls.page(start, asked.limit, encoding, SETTLED, place, stable=True)
            self._topic.check_open()
            await self._current(name, asked.epoch)
            if page.last_id is not None:
                start, looked_at = after(page.last_id), page.last_id
            if page.messages:
                return page._replace(last_id=looked_at)
            if end <= self._clock.monotonic():
                if not await self._polls.told(seen, told_by):
                    return page._replace(last_id=looked_at, held=self._polls.held())
                continue
            if not await self._polls.decision(
                seen, end, self._changes, is_over=lambda: self._refusal(name, asked.epoch) is not None
            ):
                end = 0.0
            self._topic.check_open()

    async def acknowledge(self, name: str, asked: Acknowledge) -> Acknowledged:
        """Move the cursor behind a message, if that is forward; answered when it is on disk.

        Raises:
            InvalidRequest, ConsumerFenced, SubscriptionNotFound, StaleMessageId, InvalidMessageId: definite.
            OffsetOutOfRange: no consumer was given that message, as the log is not stable up to it. TopicDamaged.
            TransactionsUnavailable: it cannot be said how far the log is stable.
        """
        check_acknowledge(asked)
        self._topic.check_open()
        await self._current(name, asked.epoch)
        self._topic.check_generation(asked.generation)
        if asked.message_id is not None:
            cursor = await self._behind(asked.message_id)
        else:
            cursor = (asked.offset or 0) + 1
        if self._ranges.stable < cursor <= self._fold.position.upcoming_offset:
            # After a restart it may not be known yet how transactions ended whose messages were given out before.
            await self._settling.settle_all_ended()
        self._topic.check_open()
        if cursor > self._ranges.stable:
            raise self._out_of_range(f"offset {cursor - 1} was not given to any consumer")
        row = await self._current(name, asked.epoch)
        if cursor > (row.cursor or 0):
            await self._write(name, replace(row, cursor=cursor))
        else:
            cursor = row.cursor or 0
            await self._writer.drained()  # what it was judged against may still be on its way to disk
        return Acknowledged(cursor=cursor)

    # --- what is known of them

    def names(self, after_name: str, limit: int) -> list[str]:
        """The first ``limit`` names behind ``after_name``, sorted."""
        return nsmallest(limit, (name for name, row in self._rows.items() if row.cursor is not None and name > after_name))

    def __len__(self) -> int:
        """How many there are."""
        return self._live

    @property
    def highest_epoch(self) -> int:
        """The highest epoch of all subscriptions, deleted ones too; 0 for none."""
        return max((row.epoch for row in self._rows.values()), default=0)

    @property
    def largest_lag(self) -> int:
        """The lag of the subscription that is farthest behind."""
        return max((lag for _, lag in self.lags()), default=0)

    def lags(self) -> Iterator[tuple[str, int]]:
        """Each subscription and its lag; messages that have expired count until they are deleted."""
        upcoming, earliest = self._fold.position.upcoming_offset, self._topic.begin_offset
        for name, row in self._rows.items():
            if row.cursor is not None:
                yield name, upcoming - max(row.cursor, earliest)

    def lagging(self, least: int) -> list[tuple[str, int, int]]:
        """(name, lag, offset) of those that could be given at least so many messages, which begin at that offset."""
        stable, earliest = self._ranges.stable, self._topic.begin_offset
        at = ((name, max(row.cursor, earliest)) for name, row in self._rows.items() if row.cursor is not None)
        return [(name, stable - offset, offset) for name, offset in at if stable - offset >= least]

    async def show(self, name: str) -> Subscription:
        """A subscription as it is on disk. Raises SubscriptionNotFound, TopicDamaged."""
        self._topic.check_open()
        return await self._shown(name, (await self._existing(name)).epoch)

    async def show_all(self, names: Sequence[str]) -> list[Subscription]:
        """Show many subscriptions as they are on disk; those that are deleted are left out."""
        self._topic.check_open()
        rows = [(name, row.epoch, row.cursor) for name in names if (row := self._rows.get(name)) and row.cursor is not None]
        return await self._as_shown(rows)

    async def _shown(self, name: str, epoch: int) -> Subscription:
        return (await self._as_shown([(name, epoch, (await self._existing(name)).cursor or 0)]))[0]

    async def _as_shown(self, rows: Sequence[tuple[str, int, int]]) -> list[Subscription]:
        """Names, epochs and cursors, with what is before them, once all of it is on disk."""
        await self._writer.drained()
        offsets, upcoming = await self._ranges.offsets(TopicAsked()), self._fold.position.upcoming_offset
        held, heard = self._ranges.held_from, dict(self._heard)
        first = {max(cursor, offsets.earliest) for _, _, cursor in rows}
        published: dict[int, int] = {}
        behind = sorted(offset for offset in first if offset < upcoming)
        for at in range(0, len(behind), _FOUND_AT_ONCE):
            published |= await read(_published, self._store, self._prefix, behind[at : at + _FOUND_AT_ONCE])
        shown: list[Subscription] = []
        for at, part in enumerate(slices(rows, _SHOWN_AT_ONCE)):
            if at:
                await asyncio.sleep(0)
            shown += [
                Subscription(
                    name=name,
                    generation=offsets.generation,
                    epoch=epoch,
                    cursor=cursor,
                    lag=upcoming - max(cursor, offsets.earliest),
                    lost=max(0, offsets.earliest - cursor),
                    upcoming_offset=upcoming,
                    stable_offset=offsets.stable,
                    held_by=None if held is None else held.write_pointer,
                    held_since_ms=None if held is None else split_row_id(held.first_id)[0],
                    oldest_ms=published.get(max(cursor, offsets.earliest)),
                    heard_ms=heard.get(name),
                )
                for name, epoch, cursor in part
            ]
        return shown

    # --- places

    async def _offset_at(self, place: StartPosition) -> int:
        """The offset of the message that is next there. Raises as :meth:`open` does."""
        if place.offset is not None:
            if place.offset > self._fold.position.upcoming_offset:
                raise self._out_of_range(f"offset {place.offset} lies beyond the end")
            return place.offset
        if place.message_id is not None:
            behind, there = await self._found(place.message_id)
            return behind - 1 if place.inclusive and there else behind
        if place.at == "latest":
            return self._ranges.stable
        offsets = await self._ranges.offsets(TopicAsked(timestamp=place.timestamp))
        return offsets.earliest if offsets.at_timestamp is None else offsets.at_timestamp

    async def _behind(self, message_id: MessageId) -> int:
        """The offset behind a message that is acknowledged; 0 if retention has deleted it.

        Raises InvalidMessageId, StaleMessageId.
        """
        behind, there = await self._found(message_id)
        if there:
            return behind
        if behind > self._topic.earliest_offset:
            raise InvalidMessageId(f"the topic has no message {message_id}")
        return 0

    async def _found(self, message_id: MessageId) -> tuple[int, bool]:
        """As :func:`offset_behind`, for an id that may be one of this topic. Raises InvalidMessageId, StaleMessageId."""
        key = self._polls.start_at_id(bytes(message_id), True)
        last_id = self._fold.position.last_message_id
        if last_id is None or key > last_id:
            raise InvalidMessageId(f"message id {message_id} lies beyond the end of the topic")
        return await read(offset_behind, self._store, self._prefix, key)

    def _out_of_range(self, what: str) -> OffsetOutOfRange:
        upcoming, stable = self._fold.position.upcoming_offset, self._ranges.stable
        return OffsetOutOfRange(
            f"{what}: the topic is stable up to {stable}, and its upcoming offset is {upcoming}",
            upcoming=upcoming,
            earliest=self._topic.earliest_offset,
            stable=stable,
        )

    async def _write(self, name: str, row: SubscriptionRow, batch: Batch | None = None) -> None:
        """Counts from the call on; on disk when this returns. ``batch``: what is written with it."""
        batch = batch or Batch()
        batch.put(Table.SUBSCRIPTION, self._prefix + name.encode(), encode_record(row))
        before = self._rows.get(name) if row.cursor is not None else self._rows.pop(name, None)
        written = self._writer.submit(batch)
        self._rows[name] = row
        self._live += (row.cursor is not None) - (before is not None and before.cursor is not None)
        if before is not None and before.epoch != row.epoch:
            self._changes.wake()
        await written


def _published(store: Store, prefix: bytes, offsets: Sequence[int]) -> dict[int, int]:
    """When the first message at or behind each of these offsets was published, ms; those with none behind them are left out."""
    found = ((offset, find_offset(store, prefix, offset)) for offset in offsets)
    return {offset: split_row_id(key)[0] for offset, key in found if key is not None}
