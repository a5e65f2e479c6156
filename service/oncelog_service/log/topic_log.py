"""One topic's log while it is open: the main path.

``publish``: judge → stamp → write → persist → answer. From the verdict to the hand-over to the writer nothing awaits and nothing
raises: ids and offsets are assigned, and sequence ids pushed, in one step per request; the writer keeps that order, and so do the
answers. Whether anything can be written is asked once, by ``Writer.check``, before anything moves.

Everything here is what recovery.py folded from disk plus what was persisted since. After a failed write the object is closed and
a new one is recovered; it is never repaired in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice

from oncelog.wire.requests import PublishRequest, PublishResponse
from oncelog_dedup import LastEntry, Position, Run
from oncelog_service.clock import SteadyClock
from oncelog_service.log.append.addition import Addition
from oncelog_service.log.append.appearances import Appearances
from oncelog_service.log.append.atomic import AtomicOnTopic
from oncelog_service.log.append.expectations import Expectations
from oncelog_service.log.append.judge import Judge, Known
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.append.receipts import response, rows_of, stored_runs
from oncelog_service.log.append.transactional import Transactional, columns_of
from oncelog_service.log.append.unnamed import Unnamed
from oncelog_service.log.checks import check_publish, check_store
from oncelog_service.log.keep.expiry import Expiry
from oncelog_service.log.keep.removal import Removal
from oncelog_service.log.keep.snapshots import Snapshots
from oncelog_service.log.keep.trimming import Trimming
from oncelog_service.log.key_index import KeyEntries, key_entries
from oncelog_service.log.memory import Memory
from oncelog_service.log.open_topic import OpenTopic, Recovered
from oncelog_service.log.read.inspection import Inspection
from oncelog_service.log.read.polls import Polls
from oncelog_service.log.read.ranges import Ranges
from oncelog_service.log.read.subscriptions import Subscriptions
from oncelog_service.log.settling import Settling
from oncelog_service.properties import check_mode, expired_before
from oncelog_service.reading import Scans
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import ROW_ID_SIZE
from oncelog_service.storage.records import TopicRow
from oncelog_service.storage.rows import chain_of, encode_messages, message_id_of
from oncelog_service.storage.runs import Bodies


def _nothing() -> None:
    pass


_ENDED_AT_ONCE = 1_000
"""Names of producers that are looked at in one turn of the event loop, 1 ms, and what of them has ended in one write."""


class TopicLog:
    """An open topic. All methods run on the event loop that owns it."""

    # A service may have thousands open, and beyond 30 attributes an object without slots has a dict of 1.6 kB.
    __slots__ = (
        "_clock",
        "_expectations",
        "_judge",
        "_keys",
        "_limits",
        "_memory",
        "_pointers",
        "_queued",
        "_stamps",
        "_steady",
        "_transactional",
        "_unnamed",
        "_writer",
        "atomic",
        "dedup",
        "expire_stored",
        "expiry",
        "inspection",
        "participant",
        "poll",
        "prefix",
        "producers",
        "ranges",
        "removal",
        "replayed",
        "roll_back",
        "settle",
        "settling",
        "snapshots",
        "subscriptions",
        "topic",
        "trimming",
    )

    def __init__(self, topic: OpenTopic, recovered: Recovered, scans: Scans) -> None:
        """Build the topic's parts, each from what it needs; what is asked of one of them goes straight to it."""
        self.topic = topic
        """What the parts share."""
        self.prefix = topic.prefix
        self.participant = topic.participant
        self.replayed = recovered.replayed
        self.snapshots = Snapshots(topic, recovered)
        memory = self._memory = Memory(topic, self.snapshots)
        self.settling = Settling(topic, memory, self.snapshots)

        self.producers = Producers(topic, self.settling)
        self._judge = Judge(topic, self.producers, self.settling)
        self._expectations = Expectations(topic, self.settling)
        self._unnamed = Unnamed(topic)
        append = (topic, memory, self.producers, self._judge, self._expectations, Appearances(topic))
        self._transactional = Transactional(*append)
        self.atomic = AtomicOnTopic(*append)

        self.expiry = Expiry(topic, recovered.judgements)
        polls = Polls(topic, self.expiry)
        self.ranges = Ranges(topic, self.expiry, scans)
        self.subscriptions = Subscriptions(topic, recovered.subscriptions, self.ranges, polls, self.settling)
        self.inspection = Inspection(topic, polls)
        self.removal = Removal(topic, self.snapshots, self.settling.settle_ended, scans)
        self.trimming = Trimming(topic, self.removal)
        topic.grown = self.trimming.begin_if_due

        self.poll = polls.poll
        self.settle = self.settling.settle
        self.roll_back = self.settling.roll_back
        self.expire_stored = self._transactional.expire_stored

        self._clock = topic.clock
        self._steady = SteadyClock(topic.clock)
        self._limits = topic.limits
        self._writer = topic.writer
        self.dedup = topic.dedup
        """The maps of its producers, pushed and persisted."""
        self._keys = topic.keys
        self._stamps = topic.stamps
        self._pointers = topic.pointers
        self._queued: Addition | None = None
        """The newest that was handed over without a write pointer; the writer may have taken it."""

    # --- what is known of it

    @property
    def row(self) -> TopicRow:
        """The topic's row, with the properties that hold now."""
        return self.topic.row

    @property
    def earliest_offset(self) -> int:
        """Where the log's rows begin, since retention has deleted what was before."""
        return self.topic.earliest_offset

    @property
    def begin_offset(self) -> int:
        """Where the log begins for readers."""
        return self.topic.begin_offset

    @property
    def is_valid(self) -> bool:
        """Whether it is known that nobody else serves the topic."""
        return self._writer.is_valid

    @property
    def waits_for_an_end(self) -> bool:
        """Whether transactions that have something to do with this topic may still have to be settled here."""
        return self._pointers.any_known or bool(self.dedup.fold.unsettled)

    @property
    def position(self) -> Position:
        """Just behind the last persisted message."""
        return self.dedup.fold.position

    # --- publish --------------------------------------------------------------------------------------------------------

    async def publish(
        self, request: PublishRequest, by: str | None = None, still: Callable[[], None] = _nothing
    ) -> PublishResponse:
        """Store the messages that are new, once; answer when they, and whatever the answer depends on, are synced.

        With a write pointer they belong to its transaction, and without messages what is stored under it appears. ``by``: whose
        transaction that must be; None: whoever's. ``still``: raises once who asks may not any more; it is asked last.

        Raises:
            NotAllowed,
            InvalidRequest, RequestTooLarge, TransactionalMismatch, UnknownWritePointer, TransactionNotInProgress, ProducerFenced,
            SequenceGap, SequenceReused, ProducerInTransaction, StoredGroupPublished, ExpectationsNotChecked, OffsetMismatch,
            KeyInTransaction: definite; nothing is stored.
            StorageUnavailable, DiskFull, QuotaExceeded: definite, nothing is stored. StorageFailed: not definite.
        """
        check_publish(request, self._limits.most_messages(request))
        pointer = request.write_pointer
        check_mode(self.topic.row.properties, pointer is not None)
        if request.conditional:
            self._expectations.check_on()
        if pointer is None:
            return await self._publish(request, still)
        async with self._pointers.entered(pointer, by):
            if not request.payloads:
                return await self._transactional.publish_stored(request, pointer, still)
            return await self._publish(request, still)

    async def _publish(self, request: PublishRequest, still: Callable[[], None]) -> PublishResponse:
        pointer = request.write_pointer
        while True:
            known = await self._known(request)
            if known.messages == len(request.payloads):
                self.topic.counts.repeated(known.messages)
                return response(known.receipts, self._rows_again(known, pointer), pointer)
            self.topic.check_open()
            self._writer.check()  # what is stamped and pushed below must be submitted
            if pointer is not None:
                self._pointers.check(pointer)
            if not request.conditional or (found := self._expectations.found(request, known)) is None:
                break
            await self._expectations.refuse(found, pointer)
        still()
        # Behind the verdicts: what is stored already, or is refused, takes no room and counts for no quota.
        new = len(request.payloads) - known.messages
        self.topic.check_producers([request.producer] if request.producer else [])
        if self.topic.quota.is_limited:
            self.topic.check_quota(new, request.size)  # what comes too fast is not even encoded
        # Nothing awaits from the last verdict to the hand-over: another request would take these sequence ids, or these offsets.
        columns = columns_of(request, known.messages, self._newest_row(request.producer), pointer)
        with self._stamps.given_back():
            row_ids, first_offset = self._stamps.take(len(columns.payloads), self._clock.now_ms())
            messages = encode_messages(columns, row_ids, first_offset)
            self.topic.check_size(messages.total)
            self.topic.admit(new, request.size)
        self.topic.counts.repeated(known.messages)
        with self._writer.moving():
            done = self._hand_over(columns, row_ids, messages, first_offset)
        await done
        receipts = known.receipts + stored_runs(columns.sequence_ids, row_ids, first_offset)
        return response(receipts, [*self._rows_again(known, pointer), *row_ids], pointer)

    async def _known(self, request: PublishRequest) -> Known:
        """What of the request is stored; when this returns, its other messages are new at this very moment."""
        if request.producer is None and request.write_pointer is not None:
            return await self._unnamed.known(request, request.write_pointer)
        return await self._judge.known(request)

    def _hand_over(self, columns: Columns, row_ids: list[bytes], messages: Bodies, first_offset: int) -> asyncio.Future[None]:
        """Push and submit, in one step. A plain request joins those before it that are still queued."""
        pointer, previous = columns.write_pointer, chain_of(columns)
        last_entries: tuple[tuple[str, LastEntry], ...] = ()
        if columns.producer is not None and columns.sequence_ids is not None:
            last_entry = LastEntry(columns.sequence_ids[-1], message_id_of(row_ids[-1]), first_offset + len(row_ids) - 1)
            last_entries = ((columns.producer, last_entry),)
            self.dedup.push(columns.producer, last_entry)
        elif pointer is not None and columns.sequence_ids is not None:
            self._unnamed.push(pointer, columns.sequence_ids, row_ids[0])
        keys: KeyEntries = ()
        if self._keys is not None:
            keys = key_entries(columns.keys, row_ids, first_offset)
            self._keys.push(Run(first_offset, len(row_ids), message_id_of(row_ids[0]), message_id_of(row_ids[-1]), keys, pointer))
        queued = self._queued
        if pointer is None and queued is not None:
            done = self._writer.join(queued.batch, partial(queued.add, row_ids, messages, previous, last_entries, keys))
            if done is not None:
                self.topic.size.handed_over = queued.laying.upto_bytes
                return done
        if pointer is not None:
            self.topic.size.undecided(row_ids[0], first_offset, self.topic.size.handed_over)
        addition = Addition(self.prefix, first_offset, pointer, self.topic.size.handed_over)
        addition.add(row_ids, messages, previous, last_entries, keys)
        self.topic.size.handed_over = addition.laying.upto_bytes
        self._queued = addition if pointer is None else None
        return self._writer.submit(addition.batch, partial(self._written, addition))

    def _written(self, addition: Addition) -> None:
        if self._queued is addition:
            self._queued = None
        keyed = None if self._keys is None else addition.keyed
        self._memory.written(addition.run, keyed, addition.laying)

    def check_staged(self, request: PublishRequest) -> None:
        """What an atomic commit brings must satisfy what a publish does. Raises as that does."""
        check_publish(request, self._limits.max_messages)
        check_mode(self.topic.row.properties, transactional=False)

    async def store(
        self, request: PublishRequest, by: str | None = None, still: Callable[[], None] = _nothing
    ) -> PublishResponse:
        """Put messages under a write pointer, unseen until the pointer is published. Retries of a named producer store nothing.

        Raises as publish does.
        """
        check_store(request, self._limits.most_messages(request))
        check_mode(self.topic.row.properties, transactional=True)
        assert request.write_pointer is not None  # checked
        async with self._pointers.entered(request.write_pointer, by):
            return await self._transactional.store(request, request.write_pointer, still)

    def _rows_again(self, known: Known, pointer: int | None) -> list[bytes]:
        """What of this request its transaction has stored already: a retry must learn all the same what it could roll back."""
        return [] if pointer is None else self.settling.whole_requests(pointer, rows_of(known.originals, pointer))

    def _newest_row(self, producer: str | None) -> bytes | None:
        newest = None if producer is None else self.dedup.last_pushed(producer)
        return None if newest is None else newest.message_id[:ROW_ID_SIZE]

    # --- keeping house --------------------------------------------------------------------------------------------------

    async def end_idle_producers(self) -> None:
        """End assigned names that were not used for long, some at a time; what an open transaction holds is in use.

        A clock that is set forward makes nobody idle.
        """
        self.topic.check_open()
        before_ms = self._steady.now_ms() - self._limits.assigned_producer_ms
        names = iter(self.producers.names_of_rows())
        while some := list(islice(names, _ENDED_AT_ONCE)):
            idle = [name for name in self.producers.idle(some, before_ms) if not self.topic.transactions_of(name)]
            if idle:
                await self.producers.end_all(idle)
            else:
                await asyncio.sleep(0)
            self.topic.check_open()

    async def close(self, snapshot: bool = True) -> None:
        """Take nothing more; wait for what is in flight and, at a clean stop, leave a snapshot so that nothing is replayed."""
        self.topic.close()
        await self.trimming.stop()
        await self._writer.drained()
        if snapshot and self._writer.is_valid:
            await self.expiry.hide(self.expiry.living())
        if snapshot and self.snapshots.behind:
            await self.snapshots.take()
        await self.snapshots.stop()
        self.topic.cache.clear()

    def release(self) -> None:
        """Take nothing more, and tell all who wait to try again: before a stop, and after the store has failed."""
        self.topic.close()
        self.topic.cache.clear()

    @property
    def last_timestamp(self) -> int:
        """The highest publish timestamp handed out."""
        return self._stamps.last_timestamp

    def change(self, row: TopicRow) -> None:
        """The topic's properties are others from now on."""
        self.topic.row = row
        self._stamps.rise(row.expired_before)
        self.trimming.begin_if_due()

    @property
    def generation(self) -> int:
        """The generation as clients are told it."""
        return self.topic.generation

    @property
    def expired_before(self) -> int:
        """What must be remembered of expiry when the topic's ttl is changed now."""
        living, last = self.expiry.living(), self._stamps.last_timestamp
        return expired_before(self.topic.row, max(living.now_ms, *(each.ms for each in living.judgements)), last)

    @property
    def highest_epoch(self) -> int:
        """The highest epoch handed out in this generation, to a producer or to a consumer; 0 for none."""
        return max(self.producers.highest_epoch, self.subscriptions.highest_epoch)
