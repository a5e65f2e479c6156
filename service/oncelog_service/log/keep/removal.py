"""Takes messages out of a log: rows that have expired or were trimmed, and what one message says.

What is *trimmed* is gone for every reader when that is answered: the place where the log begins now is in TRIM, and nothing
before it lives (expiry.py). Its rows go as those do that have expired. No offset changes, and no map of the producers: rows are
deleted only once both snapshots cover them, and an erased message keeps all that the folds are made of.

*Erasing* lays one row anew, which nobody else writes meanwhile: a message of a transaction that was not settled before its row
was read is refused, so no roll-back of it is under way or comes; and rows are deleted under the same lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from oncelog.errors import (
    InvalidMessageId,
    InvalidRequest,
    MessageInTransaction,
    MessagesExpired,
    OffsetOutOfRange,
    StorageFailed,
    StorageUnavailable,
    TopicDamaged,
)
from oncelog.message_id import MessageId
from oncelog.wire.models import ErasedMessage, EraseMessage, Trimmed, TrimTopic
from oncelog_service.bounds.size import MaxBytes
from oncelog_service.log.keep.snapshots import Snapshots
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import (
    Expired,
    bytes_before,
    expired_rows,
    find_offset,
    following,
    last_before,
    offset_behind,
    offset_from,
    read_back,
    run_from,
    stored_in,
)
from oncelog_service.reading import Scans, read
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, ROW_ID_SIZE, SNAPSHOT_SLOTS, pointer_key, timestamp_prefix
from oncelog_service.storage.payload_rows import erased_payloads
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import TrimRow, encode_record
from oncelog_service.storage.rows import erased_run, payloads_under
from oncelog_service.storage.runs import GROUP

_SPARE = 16
"""This part of what a topic may take is free after a trim of its own."""
_SLICE = 1_000
"""Rows deleted in one write, at most."""
_IDLE_MS = 24 * 3_600_000
"""Without a message for so long a topic is idle: its schedule writes no snapshots, so retention does, whatever they cost."""


SettleEnded = Callable[[Collection[int]], Awaitable[Container[int]]]
"""Settles those of the write pointers whose transactions have ended, and returns the others."""


class _Erased(NamedTuple):
    """A row as it is to be written, with one message of it erased."""

    table: Table
    key: bytes
    data: bytes
    message_id: bytes
    pointer: int | None
    """Under which the message is in the log; negative: it was rolled back."""
    since_ms: int
    end: int
    """The offset behind the run of the log that it is in, or that stands for it."""
    gone: int
    """Bytes that the row has less than before."""


class Removal:
    """Takes messages out of one open topic's log. Works on the event loop that owns the topic."""

    __slots__ = ("_clock", "_fold", "_lock", "_prefix", "_scans", "_settle_ended", "_snapshots", "_store", "_topic", "_writer")

    def __init__(self, topic: OpenTopic, snapshots: Snapshots, settle_ended: SettleEnded, scans: Scans) -> None:
        self._topic = topic
        self._prefix = topic.prefix
        self._store = topic.store
        self._writer = topic.writer
        self._clock = topic.clock
        self._fold = topic.dedup.fold
        self._snapshots = snapshots
        self._settle_ended = settle_ended
        self._scans = scans
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Nothing else is taken out within. What a caller who has gone had handed over is written, and noted in memory."""
        async with self._lock:
            await self._writer.drained()
            yield

    # --- rows

    async def delete(self, rows: Sequence[Expired]) -> int:
        """Delete the oldest rows, these; returns how many. What is not settled stays, and so does for now what the two snapshots
        do not cover where it would cost too much that they do; of what was trimmed it never does."""
        async with self._alone():
            return await self._delete(rows)

    async def _delete(self, rows: Sequence[Expired]) -> int:
        topic = self._topic
        topic.check_open()
        stable = self._fold.stable.position.upcoming_offset  # the index of keys has the same runs, and is as far
        rows = [row for row in rows if row.end <= stable]
        if not rows or rows[0].last_id <= topic.trimmed_id:
            return 0  # another round of retention was here first
        idle = self._clock.now_ms() - topic.stamps.last_timestamp >= _IDLE_MS
        asked = rows[0].end <= topic.hidden_below
        covered = await self._snapshots.cover(topic.earliest_offset, rows[-1].end, idle or asked)
        topic.check_open()
        rows = [row for row in rows if row.end <= covered]
        if not rows:
            return 0  # until the schedule's next snapshots cover them, or the topic is idle
        upto = rows[-1].end
        batch = Batch()
        for row in rows:
            batch.delete(Table.MESSAGE, self._prefix + row.row_id)
        if topic.keys is None:
            for slot in SNAPSHOT_SLOTS:  # from when expectations were checked: from now on they would miss messages
                batch.delete(Table.KEY_SNAPSHOT, self._prefix + slot)
        trim = replace(self._trim_row(), earliest_offset=upto, last_id=rows[-1].last_id.hex())
        if upto > topic.hidden_below:  # else they are counted no more since they were trimmed
            trim = self._counted_from(trim, upto, rows[-1].upto_bytes)
        await self._put_trim(batch, trim)
        return len(rows)

    def _trim_row(self) -> TrimRow:
        topic = self._topic
        return TrimRow(
            *(topic.earliest_offset, topic.trimmed_id.hex() or None, topic.hidden_below, topic.hidden_before.hex() or None),
            bytes_below=topic.size.below,
            missing=topic.size.missing_from(0),
        )

    def _counted_from(self, row: TrimRow, end: int, upto_bytes: int) -> TrimRow:
        """The log's bytes are those behind the run that ends at this offset and says so much."""
        return replace(row, bytes_below=upto_bytes, missing=self._topic.size.missing_from(end))

    async def _put_trim(self, batch: Batch, row: TrimRow, *, erased: bool = False) -> None:
        """Write where the log begins, and note it. Nothing else writes it meanwhile: all of it happens alone."""
        batch.put(Table.TRIM, self._prefix, encode_record(row))
        await self._writer.submit(batch, partial(self._noted, row, erased))

    def _noted(self, row: TrimRow, erased: bool) -> None:
        topic = self._topic
        if erased:
            topic.cache.clear()
        topic.earliest_offset, topic.trimmed_id = row.earliest_offset, bytes.fromhex(row.last_id or "")
        topic.hidden_below, topic.hidden_before = row.hidden_below, bytes.fromhex(row.hidden_before or "")
        topic.size.noted(row.bytes_below, row.missing)
        if erased:
            topic.grown()  # what says that a message is erased may be longer than what it said

    # --- trim

    async def trim(self, asked: TrimTopic) -> Trimmed:
        """Everything before an offset or a time is gone for readers, from now on and for good, and deleted by and by. Idempotent.

        Not beyond what is stable: an offset there is refused, a time reaches as far as that.

        Raises InvalidRequest; OffsetOutOfRange; StaleMessageId: the topic was made anew. TopicDamaged.
        """
        if (asked.before_offset is None) == (asked.before_time is None):
            raise InvalidRequest("what is trimmed ends before one of beforeOffset and beforeTime")
        async with self._alone():
            self._topic.check_open()
            self._topic.check_generation(asked.generation)
            position = self._fold.position
            offset = await self._first_kept(asked)
            if offset > self._topic.begin_offset:
                place = None
                if offset < position.upcoming_offset:
                    place = await read(find_offset, self._store, self._prefix, offset)
                elif position.last_message_id is not None:
                    place = following(position.last_message_id[:ROW_ID_SIZE])
                if place is None:
                    raise TopicDamaged(f"offset {offset} is missing: nothing is there, nor behind it")
                await self._hide(offset, place)
            return Trimmed(generation=self._topic.generation, earliest_offset=self._topic.begin_offset)

    async def trim_to(self, limit: MaxBytes) -> int:
        """Trim as many of the oldest messages as it takes for the others to be within the limit, and a part of it more, so that
        this is not done with each message; returns how many. In whole runs: what was written last stays, and what is undecided.

        Raises TopicDamaged, StorageUnavailable, StorageFailed.
        """
        async with self._alone():
            topic, size = self._topic, self._topic.size
            topic.check_open()
            if size.present <= limit.bytes:
                return 0
            keep = min(limit.bytes, max(limit.bytes - limit.bytes // _SPARE, size.newest))
            stable, begin = self._fold.stable.position.upcoming_offset, topic.begin_offset
            behind = size.left_behind()
            run = await read(
                last_before, self._store, self._prefix, stable, lambda each: behind(each.end, each.upto_bytes) <= keep
            )
            if run is None or run.end <= begin:
                return 0
            await self._hide(run.end, following(run.id))
            return run.end - begin

    async def delete_trimmed(self) -> None:
        """Delete the rows of what was trimmed, slice by slice. Raises as :meth:`trim_to`."""
        while rows := await self._scans.read(expired_rows, self._store, self._prefix, 0, 0, _SLICE):
            if await self.delete(rows) < len(rows):
                return

    async def _first_kept(self, asked: TrimTopic) -> int:
        stable = self._fold.stable.position.upcoming_offset
        if asked.before_time is not None:
            found = await read(offset_from, self._store, self._prefix, timestamp_prefix(min(asked.before_time, 2**63 - 1)))
            return stable if found is None else min(found, stable)
        assert asked.before_offset is not None
        if asked.before_offset > stable:
            upcoming = self._fold.position.upcoming_offset
            raise OffsetOutOfRange(
                f"offset {asked.before_offset} lies beyond {stable}, up to where the topic is stable: what is undecided is not "
                f"trimmed; its upcoming offset is {upcoming}",
                upcoming=upcoming,
                earliest=self._topic.begin_offset,
                stable=stable,
            )
        return asked.before_offset

    async def _hide(self, offset: int, place: bytes) -> None:
        before = await read(bytes_before, self._store, self._prefix, place)
        self._topic.check_open()
        row = replace(self._trim_row(), hidden_below=offset, hidden_before=place.hex())
        await self._put_trim(Batch(), row if before is None else self._counted_from(row, *before))

    # --- erase

    async def erase(self, asked: EraseMessage) -> ErasedMessage:
        """What one message says – payload and properties – is gone, from the store's files too as far as they are in our hands.
        Its place stays, and so do its key, its producer and its sequence id. Idempotent.

        Raises:
            InvalidRequest, InvalidMessageId, StaleMessageId, OffsetOutOfRange, TopicDamaged; MessagesExpired: it is gone already.
            MessageInTransaction, TransactionsUnavailable: what is undecided is not erased.
            StorageFailed: not definite; for readers it may be erased, and in files earlier bytes may be left. Repeat it.
        """
        if (asked.offset is None) == (asked.message_id is None):
            raise InvalidRequest("what is erased is named by its offset or by its messageId, one of them")
        async with self._alone():
            self._topic.check_open()
            self._topic.check_generation(asked.generation)
            offset = await self._offset_of(asked)
            row = await self._settled(offset)
            await self._scans.read(self._store.scrub, row.table, row.key, written=False)
            self._topic.check_open()
            batch = Batch()
            batch.put(row.table, row.key, row.data)
            missing = self._topic.size.missing_from(0)
            if row.end > self._topic.hidden_below:  # else it is counted no more since it was trimmed
                missing = self._topic.size.missing_with(row.end, row.gone)
            self._topic.size.shrinks(row.end)
            await self._put_trim(batch, replace(self._trim_row(), missing=missing), erased=True)
            await self._scrub(row)
        return ErasedMessage(
            generation=self._topic.generation,
            offset=offset,
            message_id=MessageId.from_bytes(row.message_id),
            erased_ms=row.since_ms,
        )

    async def _settled(self, offset: int) -> _Erased:
        """The row with the message at this offset, once its transaction is settled; what has ended is settled on the way.

        Raises MessageInTransaction, TopicDamaged, TransactionsUnavailable.
        """
        while True:
            undecided = frozenset(self._fold.unsettled)  # before the row is read: a roll-back may be under way
            row = await read(_erased, self._store, self._prefix, offset, self._clock.now_ms())
            if row.pointer not in undecided:
                return row
            if row.pointer in await self._settle_ended([row.pointer]):
                raise MessageInTransaction(
                    f"the message at offset {offset} belongs to the transaction {row.pointer}, which is not settled: abort that",
                    offset=offset,
                    write_pointer=row.pointer,
                )

    async def _scrub(self, row: _Erased) -> None:
        try:
            await self._scans.read(self._store.scrub, row.table, row.key, written=True)
        except (StorageUnavailable, TopicDamaged) as error:
            raise StorageFailed(
                f"the message is erased for every reader, but in the store's files earlier bytes may be left; repeat it: {error}"
            ) from error

    async def _offset_of(self, asked: EraseMessage) -> int:
        position, earliest = self._fold.position, self._topic.earliest_offset
        if asked.message_id is None:
            assert asked.offset is not None
            offset = asked.offset
        else:
            self._topic.check_message_id(bytes(asked.message_id))
            behind, there = await read(offset_behind, self._store, self._prefix, bytes(asked.message_id))
            if not there and behind > earliest:
                raise InvalidMessageId(f"the topic has no message {asked.message_id}")
            offset = behind - 1
        if offset >= position.upcoming_offset:
            upcoming = position.upcoming_offset
            raise OffsetOutOfRange(f"offset {offset} lies beyond the upcoming offset {upcoming}", upcoming=upcoming)
        if offset < earliest:
            raise MessagesExpired(
                f"the message is deleted already: the topic's rows begin at offset {earliest}",
                first=None if asked.offset is None else asked.offset,
                earliest=earliest,
                upcoming=position.upcoming_offset,
            )
        return offset


def _erased(store: Store, prefix: bytes, offset: int, now_ms: int) -> _Erased:
    """Lays the row with the message at this offset anew, with it erased. Raises TopicDamaged."""
    place = find_offset(store, prefix, offset)
    run = None if place is None else run_from(store, prefix, place[:ROW_ID_SIZE])
    if place is None or run is None or not run.first <= offset < run.end:
        raise TopicDamaged(f"offset {offset} is missing")
    index = offset - run.first
    if not run.flags & GROUP:
        made, since_ms = read_back(erased_run, prefix, run, index, now_ms)
        message_id = run.id_at(index) + FIRST_PAYLOAD_ID
        gone = run.size - made.size
        return _Erased(Table.MESSAGE, prefix + run.id, made.data, message_id, run.write_pointer, since_ms, run.end, gone)
    base = pointer_key(prefix, payloads_under(run))
    for each in stored_in(store, prefix, run, place[ROW_ID_SIZE:]):
        if each.first <= index < each.end:
            made, since_ms = read_back(erased_payloads, base, each, index - each.first, now_ms)
            message_id = run.id + each.id_at(index - each.first)
            gone = each.size - made.size
            return _Erased(Table.PAYLOAD, base + each.id, made.data, message_id, run.write_pointer, since_ms, run.end, gone)
    raise TopicDamaged(f"payload {index} of the group at {run.id.hex()} is missing")
