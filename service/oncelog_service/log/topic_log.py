"""One topic's log while it is open: the main path.

``publish``: judge → stamp → write → persist → answer. From the verdict to the hand-over to the writer nothing awaits, so that
ids and offsets are assigned, and sequence ids pushed, in one step per request; the writer keeps that order, and so do the
answers. ``poll``: bound by TTL → rows → payloads joined in → stop at the first undecided one → encoded.

Everything here is what recovery.py folded from disk plus what was persisted since. After a failed write the object is closed and
a new one is recovered; it is never repaired in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, islice
from typing import NamedTuple

from oncelog.errors import (
    InvalidRequest,
    MessagesExpired,
    OffsetOutOfRange,
    ProducerInTransaction,
    StaleMessageId,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionPrepared,
    TransactionsUnavailable,
)
from oncelog.wire.models import InspectedGroup, InspectedPayload, InspectedRow, RowState
from oncelog.wire.requests import ConsumeRequest, PublishRequest, PublishResponse, Rollback
from oncelog.wire.transaction import Transaction
from oncelog_dedup import Deduplicator, Mark, Position, Run, SnapshotSchedule
from oncelog_service.clock import Clock, SteadyClock
from oncelog_service.group_commit import Writer
from oncelog_service.log.append.atomic import Journaled
from oncelog_service.log.append.expectations import Expectations
from oncelog_service.log.append.judge import Judge, Known
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.append.receipts import response, rows_of, stored_runs
from oncelog_service.log.append.transactional import Transactional, columns_of
from oncelog_service.log.cache import TopicCache
from oncelog_service.log.checks import check_consume, check_publish, check_store
from oncelog_service.log.generations import Generations
from oncelog_service.log.groups.pointers import WritePointers
from oncelog_service.log.groups.stored import Appearances, Groups
from oncelog_service.log.keep.expiry import Expiry, Living
from oncelog_service.log.keep.recovery import Recovered
from oncelog_service.log.keep.snapshots import Snapshots
from oncelog_service.log.key_index import key_marks
from oncelog_service.log.limits import Limits
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.read.arrivals import Arrivals
from oncelog_service.log.read.inspection import inspected_groups, inspected_payloads, inspected_rows
from oncelog_service.log.read.pages import SETTLED, Bounds, Encoding, Lives, Page, collect, read_page, through
from oncelog_service.log.read.ranges import Ranges
from oncelog_service.log.read.subscriptions import Subscriptions
from oncelog_service.log.scan import Expired, after, find_offset
from oncelog_service.log.stamps import Stamps
from oncelog_service.properties import check_mode, expired_before, ttl_ms
from oncelog_service.reading import Scans, read
from oncelog_service.storage.keys import FIRST_ROW_ID, ROW_ID_SIZE, SNAPSHOT_SLOTS, split_row_id, timestamp_prefix
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.rows import Columns, TopicRow, TrimRow, encode_record, encode_rows, message_id_of
from oncelog_service.transactions.port import Transactions

_REMEMBERED_BYTES = 2**20
"""Of a reader's transaction that is kept decoded: one with 130,000 invalid pointers."""


_DECODED_AT_ONCE = 128 * 2**10
"""Of a reader's transaction: 16,000 pointers, 2 ms."""
_CACHED_ROWS = 2_000
"""Looked at in one turn of the event loop: 2 ms."""
_SLICE_ROWS = 20_000
"""Read from the store in one go."""
_IDLE_MS = 24 * 3_600_000
"""Without a message for so long a topic is idle: its schedule writes no snapshots, so retention does, whatever they cost."""
_ENDED_AT_ONCE = 1_000
"""Names of producers that are looked at in one turn of the event loop, 1 ms, and what of them has ended in one write."""
_SLICES = 100
"""Of one page that holds something: as many cached messages as a page may have twice."""


class Glance(NamedTuple):
    """What is undecided on a topic at one moment."""

    undecided: frozenset[int]
    """Write pointers."""
    upcoming_offset: int


class TopicLog:
    """An open topic. All methods run on the event loop that owns it."""

    def __init__(
        self,
        prefix: bytes,
        row: TopicRow,
        recovered: Recovered,
        store: Store,
        writer: Writer,
        cache: TopicCache,
        clock: Clock,
        limits: Limits,
        deduplication: Callable[[], bool],
        transactions: Transactions,
        participant: str,
        scans: Scans | None = None,
    ) -> None:
        """``prefix`` begins every key of this generation; ``deduplication`` says what holds for the topic at each request;
        ``participant`` is how the transaction service calls this generation."""
        self.prefix = prefix
        self.replayed = recovered.replayed
        self.deduplication = deduplication
        self.dedup = Deduplicator(recovered.fold)
        keys = self.keys = recovered.keys
        """None where the topic does not check expectations."""
        last_id = self.position.last_message_id
        floor = max(row.created, row.expired_before)
        self._stamps = Stamps(floor, self.position.upcoming_offset, last_id and last_id[:ROW_ID_SIZE])
        pointers = WritePointers(
            transactions, participant, clock, limits.max_transaction_lifetime_ms, limits.foreign_write_pointers
        )
        topic = self._topic = OpenTopic(
            prefix=prefix,
            row=row,
            store=store,
            writer=writer,
            clock=clock,
            limits=limits,
            dedup=self.dedup,
            keys=keys,
            pointers=pointers,
            transactions=transactions,
            stamps=self._stamps,
            earliest_offset=recovered.earliest_offset,
            trimmed_id=recovered.trimmed_id,
        )
        generations = Generations(prefix, row.generation, row.epoch_floor, store)
        self.producers = Producers(topic, generations, recovered.producers, self._end_transactions)
        self.snapshots = Snapshots(
            topic,
            recovered.snapshots,
            SnapshotSchedule(clock.monotonic(), limits.snapshot_messages, limits.snapshot_seconds, recovered.replayed),
            recovered.key_snapshots,
        )
        groups = Groups(prefix, store, keys is not None)
        appearances = Appearances(prefix, clock, self.dedup, self._stamps, keys)
        self.expectations = Expectations(topic, lambda *ended: self.transactional.settle(*ended))
        self.transactional = Transactional(
            topic,
            appearances,
            cache,
            self.producers,
            groups,
            self.expectations,
            self._published_group,
            self._more_settled,
        )
        self.participant = participant
        self._judge = self.transactional.judge = Judge(topic, self.producers, groups, deduplication, self.transactional.settle)
        self.journaled = Journaled(topic, self.producers, self._judge, appearances, self.expectations, self._published_group)
        self.expiry = Expiry(topic, recovered.judgements)
        self.ranges = Ranges(topic, self.expiry, scans or Scans())
        self.subscriptions = Subscriptions(
            topic,
            generations,
            recovered.subscriptions,
            self.ranges,
            lambda start, limit, encoding: self._page(start, limit, encoding, SETTLED, settled=True),
            self._start_at_offset,
            self._start_at_id,
            self.settle_ended,
        )
        self._transactions = transactions
        self._store = store
        self._writer = writer
        self.cache = cache
        self._cached_from_the_first_row = last_id is None
        """Whether the cache held everything once: then it still does while nothing but expired messages has left it."""
        self._clock = clock
        self._steady = SteadyClock(clock)
        self._limits = limits
        self.stored = 0
        """Messages stored since the topic was opened."""
        self.refused = 0
        """Messages answered as duplicates since then."""
        self._transaction: tuple[bytes, Transaction] | None = None
        self._arrivals = Arrivals()
        self._trimming = asyncio.Lock()

    # --- publish --------------------------------------------------------------------------------------------------------

    @property
    def row(self) -> TopicRow:
        """The topic's row, with the properties that hold now."""
        return self._topic.row

    @property
    def earliest_offset(self) -> int:
        """Where the log begins, since retention has deleted what was before."""
        return self._topic.earliest_offset

    @property
    def stands(self) -> bool:
        """Whether it is known that nobody else serves the topic."""
        return self._writer.stands

    @property
    def waits_for_an_end(self) -> bool:
        """Whether transactions that have something to do with this topic may still have to be settled here."""
        return self._topic.pointers.any_known or bool(self.dedup.fold.unsettled)

    @property
    def position(self) -> Position:
        """Just behind the last persisted message."""
        return self.dedup.fold.position

    async def publish(self, request: PublishRequest) -> PublishResponse:
        """Store the messages that are new, once; answer when they, and whatever the answer depends on, are synced.

        With a write pointer they belong to its transaction, and without messages what is stored under it appears.

        Raises:
            InvalidRequest, RequestTooLarge, TransactionalMismatch, UnknownWritePointer, TransactionNotInProgress, ProducerFenced,
            SequenceGap, SequenceReused, ProducerInTransaction, StoredGroupPublished, ExpectationsNotChecked, OffsetMismatch,
            KeyInTransaction: definite; nothing is stored.
            StorageUnavailable: definite, nothing is stored. StorageFailed: not definite.
        """
        check_publish(request, self._limits.max_messages)
        pointer = request.write_pointer
        check_mode(self.row.properties, pointer is not None)
        if request.conditional:
            self.expectations.check_on()
        if pointer is None:
            return await self._publish(request)
        async with self._topic.pointers.entered(pointer):
            if not request.payloads:
                return await self.transactional.publish_stored(request, pointer)
            return await self._publish(request)

    async def _publish(self, request: PublishRequest) -> PublishResponse:
        pointer = request.write_pointer
        while True:
            known = await self._known(request)
            if known.messages == len(request.payloads):
                self.refused += known.messages
                return response(known.receipts, self._rows_again(known, pointer), pointer)
            self._topic.check_open()
            self._writer.check()  # what is stamped and pushed below must be submitted
            if pointer is not None:
                self._topic.pointers.check(pointer)
            if not request.conditional or (found := self.expectations.found(request, known)) is None:
                break
            await self.expectations.refuse(found, pointer)
        self.refused += known.messages
        columns = columns_of(request, known.messages, self._newest_row(request.producer), pointer)
        with self._stamps.given_back():
            row_ids, first_offset = self._stamps.take(len(columns.payloads), self._clock.now_ms())
            rows = encode_rows(columns, row_ids, first_offset)
        with self._writer.moving():
            done = self._hand_over(columns, row_ids, rows, first_offset)
        await done
        receipts = known.receipts + stored_runs(columns.sequence_ids, row_ids, first_offset)
        return response(receipts, [*self._rows_again(known, pointer), *row_ids], pointer)

    async def _known(self, request: PublishRequest) -> Known:
        """What of the request is stored; when this returns, its other messages are new at this very moment."""
        if request.producer is None and request.write_pointer is not None:
            return await self.transactional.unnamed.known(request, request.write_pointer)
        return await self._judge.known(request)

    def _hand_over(self, columns: Columns, row_ids: list[bytes], rows: list[bytes], first_offset: int) -> asyncio.Future[None]:
        """Push and submit, in one step."""
        batch = Batch()
        batch.put_run(Table.MESSAGE, self.prefix, row_ids, rows)
        first_id, last_id = message_id_of(row_ids[0]), message_id_of(row_ids[-1])
        marks: tuple[tuple[str, Mark], ...] = ()
        if columns.producer is not None and columns.sequence_ids is not None:
            mark = Mark(columns.sequence_ids[-1], last_id, first_offset + len(rows) - 1)
            marks = ((columns.producer, mark),)
            self.dedup.push(columns.producer, mark)
        elif columns.write_pointer is not None and columns.sequence_ids is not None:
            self.transactional.unnamed.push(columns.write_pointer, columns.sequence_ids, row_ids[0])
        run = Run(first_offset, len(rows), first_id, last_id, marks, columns.write_pointer)
        keyed = None
        if self.keys is not None:
            keyed = self.keys.push(run._replace(marks=key_marks(columns.keys, row_ids, first_offset)))
        return self._writer.submit(batch, partial(self._persisted, run, keyed, row_ids, rows))

    def check_staged(self, request: PublishRequest) -> None:
        """What an atomic commit brings must satisfy what a publish does. Raises as that does."""
        check_publish(request, self._limits.max_messages)
        check_mode(self.row.properties, transactional=False)

    async def store(self, request: PublishRequest) -> PublishResponse:
        """Put messages under a write pointer, unseen until the pointer is published. Retries of a named producer store nothing.

        Raises as publish does.
        """
        check_store(request, self._limits.max_messages)
        check_mode(self.row.properties, transactional=True)
        assert request.write_pointer is not None  # checked
        async with self._topic.pointers.entered(request.write_pointer):
            return await self.transactional.store(request, request.write_pointer)

    async def roll_back(self, rollback: Rollback) -> None:
        """Mark what a publish stored as rolled back. Raises as :meth:`Transactional.roll_back`."""
        self._topic.check_open()
        await self.transactional.roll_back(rollback)

    def _rows_again(self, known: Known, pointer: int | None) -> list[bytes]:
        """What of this request its transaction has stored already: a retry must learn all the same what it could roll back."""
        return [] if pointer is None else self.transactional.whole_requests(pointer, rows_of(known.originals, pointer))

    def _newest_row(self, producer: str | None) -> bytes | None:
        newest = None if producer is None else self.dedup.last_pushed(producer)
        return None if newest is None else newest.message_id[:ROW_ID_SIZE]

    def _persisted(self, run: Run, keyed: Run | None, row_ids: list[bytes], rows: list[bytes]) -> None:
        self._persist(run, keyed)
        self.cache.append(row_ids, rows)
        self._count(run)

    def _published_group(self, run: Run, keyed: Run | None) -> None:
        self._persist(run, keyed)
        self.cache.clear()  # the group's payloads are not in memory, and what is must reach up to the end of the log
        self._cached_from_the_first_row = False
        self._count(run)

    def _persist(self, run: Run, keyed: Run | None) -> None:
        self.dedup.persist(run)
        self.producers.persisted(run)
        if self.keys is not None and keyed is not None:
            self.keys.persist(keyed)

    def _count(self, run: Run) -> None:
        self.stored += run.count
        self.snapshots.count(run.count)
        self._wake()

    def _more_settled(self) -> None:
        self.snapshots.begin_if_due()
        self.ranges.arrivals.wake()

    # --- transactions ---------------------------------------------------------------------------------------------------

    async def settle(self, pointer: int, committed: bool) -> None:
        """A transaction has ended: its messages count for good, or are marked as rolled back. Twice is as once."""
        self._topic.check_open()
        await self.transactional.settle(pointer, committed)

    async def settle_ended(self) -> None:
        """Settle every transaction with messages here that has ended, as the transaction service says, or has outlived itself.

        Raises TransactionsUnavailable: nobody says; they stay unsettled.
        """
        for pointer, state in (await self._transactions.states(list(self.dedup.fold.unsettled))).items():
            if state != "in_progress":
                await self.settle(pointer, state == "committed")
        await self.settle_outlived()

    async def settle_outlived(self) -> None:
        """Settle what is older than any transaction may become and is not known to have ended otherwise: it counts for good."""
        outlived = self.transactional.outlived()
        states = await self._transactions.states(outlived) if outlived else {}
        for pointer in outlived:
            state = states.get(pointer)
            if state != "in_progress":
                await self.settle(pointer, committed=state in (None, "committed"))

    async def end_foreign(self, pointer: int, committed: bool) -> None:
        """End another service's write pointer on this topic, at an operator's word: nothing more is taken under it while the
        topic is open.

        Raises:
            TransactionNotInProgress: our own transaction service handed it out; what ends it there ends it here.
            TransactionNotFound: nothing is held back under it. TransactionsUnavailable: whose it is cannot be asked.
        """
        state = (await self._transactions.states([pointer])).get(pointer)
        self._topic.check_open()
        if state is not None:
            raise TransactionNotInProgress(
                f"write pointer {pointer} is of our own transaction service: end the transaction there",
                write_pointer=pointer,
                state=state,
            )
        if pointer not in self.dedup.fold.unsettled:
            raise TransactionNotFound(f"the topic holds nothing back under write pointer {pointer}", write_pointer=pointer)
        self._topic.pointers.end_by_hand(pointer)
        await self.settle(pointer, committed)

    # --- inspection

    def glance(self) -> Glance:
        """What is undecided at this very moment: to be taken before rows are read, and held against them by ``row_state``."""
        return Glance(frozenset(self.dedup.fold.unsettled), self.position.upcoming_offset)

    def row_state(self, glance: Glance, pointer: int, offset: int) -> RowState:
        """What became of a row that was read after ``glance``; a negative pointer is that of a row which is marked.

        A row that was undecided at one of the two moments is taken for in progress: what was read of it may be older than
        what is known by now. Nobody is asked.
        """
        if pointer < 0:
            return "rolled_back"
        undecided = pointer in glance.undecided or pointer in self.dedup.fold.unsettled
        return "in_progress" if undecided or offset >= glance.upcoming_offset else "committed"

    async def inspected_rows(self, first: int, limit: int) -> list[InspectedRow]:
        """Rows of the log from the offset ``first`` on, as they lie there. Raises OffsetOutOfRange, TopicDamaged."""
        if first < 0:
            raise InvalidRequest(f"an offset is 0 or more, not {first}")
        self._topic.check_open()
        glance = self.glance()
        found = await read(inspected_rows, self._store, self.prefix, await self._start_at_offset(first), limit)
        states = [
            None if each.write_pointer is None else self.row_state(glance, _signed(each.write_pointer, each.marked), each.offset)
            for each in found
        ]
        asked = {row.write_pointer for row, state in zip(found, states, strict=True) if state in ("in_progress", "rolled_back")}
        said = await self._transactions_say([each for each in asked if each is not None])
        return [
            row.model_copy(update={"state": _told(state, said.get(row.write_pointer or 0))})
            for row, state in zip(found, states, strict=True)
        ]

    async def inspected_groups(self, limit: int) -> list[InspectedGroup]:
        """What is stored apart from the log. Raises TopicDamaged."""
        self._topic.check_open()
        found = await read(inspected_groups, self._store, self.prefix, limit)
        states = await self._transactions_say([each.write_pointer for each in found if each.write_pointer is not None])
        return [each.model_copy(update={"state": states.get(each.write_pointer or 0)}) for each in found]

    async def inspected_payloads(self, pointer: int, limit: int) -> list[InspectedPayload]:
        """What is stored under one write pointer. Raises TopicDamaged."""
        self._topic.check_open()
        return await read(inspected_payloads, self._store, self.prefix, pointer, limit)

    async def _transactions_say(self, pointers: Sequence[int]) -> dict[int, RowState]:
        try:
            states = await self._transactions.states(pointers) if pointers else {}
        except TransactionsUnavailable:
            return {}
        return {pointer: "rolled_back" if state == "aborted" else state for pointer, state in states.items()}

    async def expire_stored(self, pointer: int) -> bool:
        """What is stored under the pointer is older than the topic's ttl; whether it may be deleted now.

        Not while its transaction is in progress: it may still be published, and lives from then on.
        """
        if (await self._transactions.states([pointer])).get(pointer) == "in_progress":
            return False
        return await self.transactional.expire_stored(pointer)

    async def _end_transactions(self, producer: str, abort: bool) -> None:
        """A new incarnation of the producer ends the transactions of the older ones, as Kafka's does; unless ``abort``, it finds
        them ended. Those of another transaction service are not ours to end.

        Raises:
            ProducerInTransaction: one is prepared, so its database decides; or it may not be aborted. Whoever went on from what
                is settled now would give its sequence ids to other messages.
        """
        pointers = self._judge.transactions_of(producer)
        for pointer in (await self._transactions.states(pointers)) if pointers else ():
            if abort:
                await self._abort_unless_prepared(pointer)
            state = (await self._transactions.states([pointer])).get(pointer)
            if state == "in_progress":
                raise ProducerInTransaction(
                    f"producer {producer!r} has messages in the transaction {pointer}, which is not decided; if it is prepared, "
                    "its database decides: recover that first (SqlParticipant.recover)",
                    producer=producer,
                    write_pointer=pointer,
                )
            if state is not None:
                await self.settle(pointer, state == "committed")

    async def _abort_unless_prepared(self, pointer: int) -> None:
        try:
            await self._transactions.abort(pointer, unless_prepared=True)
        except (TransactionNotInProgress, TransactionPrepared):
            return  # it has committed meanwhile, or its database decides

    # --- poll -----------------------------------------------------------------------------------------------------------

    async def poll(self, request: ConsumeRequest, encoding: Encoding) -> Page:
        """The messages from where the request says, at most its limit; an empty page after its wait at the latest.

        With a transaction: what it sees, up to the first message that is undecided for it. Without one: everything.

        Raises:
            InvalidRequest, InvalidTransaction, StaleMessageId, OffsetOutOfRange, MessagesExpired: definite.
            TopicDamaged: a message is damaged or missing.
        """
        check_consume(request)
        self._topic.check_open()
        self._check_generation(request.generation)
        limit = min(request.limit or self._limits.default_poll_messages, self._limits.max_poll_messages)
        transaction = None if request.transaction is None else await self._decoded(request.transaction)
        start = await self._start(request)
        offset = None if request.start_offset is None else request.start_offset + (not request.inclusive)
        end = self._clock.monotonic() + min(request.wait or 0, self._limits.max_wait_ms) / 1000
        while True:
            seen = self.position.last_message_id
            if request.refuse_expired:
                await self._check_nothing_lost(start, offset, request.transaction is not None)
            page = await self._page(start, limit, encoding, transaction)
            if page.last_id is not None:
                start, offset = after(page.last_id), None
            left = end - self._clock.monotonic()
            if page.messages or page.undecided or left <= 0:
                return page
            await self._arrival(seen, left)
            self._topic.check_open()

    def _check_generation(self, asked: int | None) -> None:
        present = self.row.generation
        if asked is not None and asked != present:
            raise StaleMessageId(
                f"the position is one in generation {asked} of the topic, which was deleted; this is generation {present}, whose "
                "messages are others: start from the oldest",
                generation=present,
            )

    async def _check_nothing_lost(self, start: bytes, offset: int | None, rolled_back: bool) -> None:
        """Raises MessagesExpired where messages behind the start have expired by the topic's ttl. ``offset``: the start's, if it
        is known; ``rolled_back``: rows that were rolled back are no loss."""
        behind = await self.expiry.behind(start, self.expiry.living(), rolled_back)
        upcoming = self.position.upcoming_offset
        earliest = upcoming if behind.earliest is None else behind.earliest
        if not behind.lost or (offset is not None and offset >= earliest):
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
        """Whoever pages sends the same transaction with each poll: the latest one is kept, unless it is large."""
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

    async def _page(
        self, start: bytes, limit: int, encoding: Encoding, transaction: Transaction | None, settled: bool = False
    ) -> Page:
        """``settled``: only of that part of the log.

        It is put together from slices of a bounded number of rows, and others have a turn in between: a hundred thousand expired
        rows before one that lives hold up nobody. Where something was found it may end before its limit; an empty one is the end.
        """
        limit = min(limit, encoding.max_messages or limit)
        room = min(self._limits.max_poll_bytes, encoding.max_bytes or self._limits.max_poll_bytes)
        messages: list[bytes] = []
        last_id: bytes | None = None
        for number in count(1):
            page = await self._slice(start, limit - len(messages), room, encoding, transaction, settled)
            messages += page.messages
            last_id = page.last_id or last_id
            if not page.more or last_id is None or (messages and number >= _SLICES):
                break
            start, room = after(last_id), page.room
            await asyncio.sleep(0)
            self._topic.check_open()
        return page._replace(messages=messages, last_id=last_id, more=False, room=0)

    async def _slice(
        self, start: bytes, limit: int, room: int, encoding: Encoding, transaction: Transaction | None, settled: bool
    ) -> Page:
        living = self.expiry.living()
        if start < living.begin:
            await self.expiry.hide(living)
            start = living.begin
        position = self.dedup.fold.settled.position if settled else self.position
        last_id = position.last_message_id
        if last_id is None or last_id < start:
            return Page([], None, upcoming=position.upcoming_offset)
        last_row = last_id[:ROW_ID_SIZE] if settled else None
        page = await self._living_slice(start, limit, room, encoding, transaction, last_row, living)
        if page.expired_at:
            await self.expiry.passed_over(page.expired_at, page.last_id)
        return page._replace(lives=Lives(living.now_ms, ttl_ms(self.row.properties)))

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
        cached_from = self.position.upcoming_offset - self.cache.messages
        if self.cache.covers(row_id) or (self._cached_from_the_first_row and cached_from <= self.earliest_offset):
            bounds = bounds._replace(rows=_CACHED_ROWS)
            return collect(through(self.cache.rows(row_id), last_row), start, bounds, encoding, transaction)
        return await read(read_page, self._store, self.prefix, start, bounds, encoding, transaction, last_row)

    async def _start(self, request: ConsumeRequest) -> bytes:
        """The key at which the scan begins."""
        if request.start_offset is not None:
            return await self._start_at_offset(request.start_offset + (not request.inclusive))
        if request.start_from is None:
            return FIRST_ROW_ID
        if isinstance(request.start_from, int):
            return timestamp_prefix(request.start_from + (not request.inclusive))
        return self._start_at_id(request.start_from, request.inclusive)

    async def _start_at_offset(self, offset: int) -> bytes:
        upcoming = self.position.upcoming_offset
        if offset > upcoming:
            raise OffsetOutOfRange(f"offset {offset} lies beyond the upcoming offset {upcoming}", upcoming=upcoming)
        last_id = self.position.last_message_id
        if offset < upcoming and offset > self.earliest_offset:
            found = await read(find_offset, self._store, self.prefix, offset)
            if found is not None:
                return found
        return after(last_id) if last_id is not None and offset == upcoming else FIRST_ROW_ID

    def _start_at_id(self, message_id: bytes, inclusive: bool) -> bytes:
        timestamp, _ = split_row_id(message_id)
        if self.row.generation > 1 and timestamp < self.row.created:
            raise StaleMessageId(
                f"message id {message_id.hex()} is older than generation {self.row.generation} of the topic; "
                "start from the oldest",
                generation=self.row.generation,
            )
        return message_id if inclusive else after(message_id)

    async def _arrival(self, seen: bytes | None, seconds: float) -> None:
        """Return when there is more than the page was looked for in, which ended with the message ``seen``, or the time is over.

        Where the page began says nothing: what lies behind that may have expired, and whoever looked again would not end.
        """
        if self.position.last_message_id == seen:
            await Arrivals.wait([self._arrivals], seconds)

    def _wake(self) -> None:
        self._arrivals.wake()
        self.ranges.arrivals.wake()

    # --- keeping house --------------------------------------------------------------------------------------------------

    async def trim(self, rows: Sequence[Expired]) -> int:
        """Delete the oldest rows, these; returns how many. What is not settled stays, and so does for now what the two snapshots
        do not cover where it would cost too much that they do."""
        async with self._trimming:
            return await self._trim(rows)

    async def _trim(self, rows: Sequence[Expired]) -> int:
        self._topic.check_open()
        settled = self.dedup.fold.settled.position.upcoming_offset
        if self.keys is not None:
            settled = min(settled, self.keys.snapshot().position.upcoming_offset)
        rows = [row for row in rows if row.end <= settled]
        if not rows or rows[0].last_id <= self._topic.trimmed_id:
            return 0  # another round of retention was here first
        idle = self._clock.now_ms() - self._stamps.last_timestamp >= _IDLE_MS
        covered = await self.snapshots.cover(self.earliest_offset, rows[-1].end, idle)
        self._topic.check_open()
        rows = [row for row in rows if row.end <= covered]
        if not rows:
            return 0  # until the schedule's next snapshots cover them, or the topic is idle
        upto = rows[-1].end
        batch = Batch()
        for row in rows:
            batch.delete(Table.MESSAGE, self.prefix + row.row_id)
        if self.keys is None:
            for slot in SNAPSHOT_SLOTS:  # from when expectations were checked: from now on they would miss messages
                batch.delete(Table.KEY_SNAPSHOT, self.prefix + slot)
        last_id = rows[-1].last_id
        batch.put(Table.TRIM, self.prefix, encode_record(TrimRow(upto, last_id.hex())))
        await self._writer.submit(batch, partial(self._trimmed, upto, last_id))
        return len(rows)

    def _trimmed(self, earliest_offset: int, last_id: bytes) -> None:
        self._topic.earliest_offset = earliest_offset
        self._topic.trimmed_id = last_id

    async def end_idle_producers(self) -> None:
        """End assigned names that were not used for long, some at a time; what an open transaction holds is in use.

        A clock that is set forward makes nobody idle.
        """
        self._topic.check_open()
        before_ms = self._steady.now_ms() - self._limits.assigned_producer_ms
        names = iter(self.producers.names_of_rows())
        while some := list(islice(names, _ENDED_AT_ONCE)):
            idle = [name for name in self.producers.idle(some, before_ms) if not self._judge.transactions_of(name)]
            if idle:
                await self.producers.end_all(idle)
            else:
                await asyncio.sleep(0)
            self._topic.check_open()

    async def close(self, snapshot: bool = True) -> None:
        """Take nothing more; wait for what is in flight and, at a clean stop, leave a snapshot so that nothing is replayed."""
        self._topic.closed = True
        self._wake()
        await self._writer.settled()
        if snapshot and self._writer.stands:
            await self.expiry.hide(self.expiry.living())
        if snapshot and self.snapshots.behind:
            await self.snapshots.take()
        await self.snapshots.stop()
        self.cache.clear()

    def release(self) -> None:
        """Take nothing more, and tell whoever waits to try again: before a stop, and after the store has failed."""
        self._topic.closed = True
        self._wake()
        self.cache.clear()

    @property
    def last_timestamp(self) -> int:
        """The highest publish timestamp handed out."""
        return self._stamps.last_timestamp

    def change(self, row: TopicRow) -> None:
        """The topic's properties are others from now on."""
        self._topic.row = row
        self._stamps.rise(row.expired_before)

    @property
    def expired_before(self) -> int:
        """What must be remembered of expiry when the topic's ttl is changed now."""
        living, last = self.expiry.living(), self._stamps.last_timestamp
        return expired_before(self.row, max(living.now_ms, *(each.ms for each in living.judgements)), last)

    @property
    def highest_epoch(self) -> int:
        """The highest epoch handed out in this generation, to a producer or to a consumer; 0 for none."""
        return max(self.producers.highest_epoch, self.subscriptions.highest_epoch)


def _decode_whole(data: bytes) -> Transaction:
    """With what a page asks of it first, which is kept."""
    transaction = Transaction.from_bytes(data)
    _ = transaction.undecided, transaction.excluded
    return transaction


def _signed(pointer: int, marked: bool) -> int:
    return -pointer if marked else pointer


def _told(state: RowState | None, said: RowState | None) -> RowState | None:
    """What is known here of a row, made precise by what the transaction service says of its transaction."""
    if state == "in_progress":
        return said or "unknown"
    return "invalid" if state == "rolled_back" and said == "invalid" else state
