"""One topic's log while it is open: the main path.

``publish``: judge → stamp → write → persist → answer. From the verdict to the hand-over to the writer nothing awaits and nothing
raises: ids and offsets are assigned, and sequence ids pushed, in one step per request; the writer keeps that order, and so do the
answers. What may refuse is asked before anything moves (admission.py).

Everything here is what recovery.py folded from disk plus what was persisted since. After a failed write the object is closed and
a new one is recovered; it is never repaired in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice

from oncelog.wire.requests import PublishRequest, PublishResponse
from oncelog_dedup import Position
from oncelog_service.clock import SteadyClock
from oncelog_service.group_commit import Told, complete
from oncelog_service.log.addition import Addition
from oncelog_service.log.admission import Admission
from oncelog_service.log.append.atomic import AtomicOnTopic
from oncelog_service.log.append.expectations import Expectations
from oncelog_service.log.append.judge import Judge
from oncelog_service.log.append.log_end import LogEnd, Placed, columns_of
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.append.receipts import rows_of
from oncelog_service.log.append.step import BEGINNING, Known, Sofar, Stored, Waits
from oncelog_service.log.append.transactional import Transactional
from oncelog_service.log.append.unnamed import Unnamed
from oncelog_service.log.checks import check_publish, check_store
from oncelog_service.log.conditions import LockedKey, Mismatch
from oncelog_service.log.keep.expiry import Expiry
from oncelog_service.log.keep.removal import Removal
from oncelog_service.log.keep.snapshots import Snapshots
from oncelog_service.log.keep.trimming import Trimming
from oncelog_service.log.memory import Memory
from oncelog_service.log.open_topic import OpenTopic, Recovered
from oncelog_service.log.read.inspection import Inspection
from oncelog_service.log.read.polls import Polls
from oncelog_service.log.read.ranges import Ranges
from oncelog_service.log.read.subscriptions import Subscriptions
from oncelog_service.log.settling import Settling
from oncelog_service.properties import check_mode, expired_before
from oncelog_service.reading import Scans
from oncelog_service.storage.records import TopicRow


def _nothing() -> None:
    pass


_ENDED_AT_ONCE = 1_000
"""Names of producers that are looked at in one turn of the event loop, 1 ms, and what of them has ended in one write."""


class TopicLog:
    """An open topic. All methods run on the event loop that owns it."""

    # A service may have thousands open, and beyond 30 attributes an object without slots has a dict of 1.6 kB.
    __slots__ = (
        "_clock",
        "_end",
        "_expectations",
        "_judge",
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
        self._end = LogEnd(topic)
        append = (topic, memory, self.producers, self._judge, self._expectations, self._end)
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
        self.check(request)
        pointer = request.write_pointer
        if pointer is None:
            return await self._publish(request, still)
        async with self._pointers.entered(pointer, by):
            if not request.payloads:
                return await self._transactional.publish_stored(request, pointer, still)
            return await self._publish(request, still)

    def check(self, request: PublishRequest) -> None:
        """What does not depend on what is in the log. Raises InvalidRequest, RequestTooLarge, TransactionalMismatch,
        ExpectationsNotChecked."""
        check_publish(request, self._limits.most_messages(request))
        check_mode(self.topic.row.properties, request.write_pointer is not None)
        if request.conditional:
            self._expectations.check_on()

    async def _publish(self, request: PublishRequest, still: Callable[[], None]) -> PublishResponse:
        """Goes step by step, and waits in between for whatever the next one depends on."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told, sofar = partial(complete, done), BEGINNING
        while not isinstance(found := self.step(request, told, sofar, still), Stored):
            sofar = await found()
        if found.row_ids:
            await done
        return found.response()

    def step(
        self, request: PublishRequest, told: Told, sofar: Sofar = BEGINNING, still: Callable[[], None] = _nothing
    ) -> Stored | Waits:
        """Judge a request that :meth:`check` has let pass, and hand over what is new of it, in one step of the event loop; or
        return what has to be waited for, before it is judged again with what was found out. Nothing has changed then.

        ``told``: of what becomes of what is handed over. Whatever holds a write pointer has *entered* it. Raises as
        :meth:`publish`.
        """
        pointer, producer = request.write_pointer, request.producer
        self.topic.check_open()
        if producer is None and pointer is not None:
            known = self._unnamed.step(request, pointer, sofar)
        else:
            known = self._judge.step(request, sofar)
        if not isinstance(known, Known):
            return known
        if known.messages == len(request.payloads):
            self.topic.counts.repeated(known.messages)
            return Stored(known, self._rows_again(known, pointer), pointer)
        if pointer is not None:
            self._pointers.check(pointer)
        if request.conditional and (found := self._expectations.found(request, known)) is not None:
            return partial(self._refuse, found, pointer)
        still()
        new = len(request.payloads) - known.messages
        newest = self._end.newest_row(producer)
        made_known = () if producer is None or newest is not None else (producer,)
        keys = () if request.keys is None else self._end.key_names(request.keys[known.messages :])
        with Admission(self.topic, new, request.size, made_known, keys) as admission:
            placed = self._end.place(columns_of(request, known.messages, newest, pointer))
            admission.take(placed.bodies.total)
            self._hand_over(placed, pointer, told)
        if known.messages:
            self.topic.counts.repeated(known.messages)
        again = () if pointer is None else self._rows_again(known, pointer)
        return Stored(known, again, pointer, placed.columns.sequence_ids, placed.row_ids, placed.first_offset)

    async def _refuse(self, found: Mismatch | LockedKey, pointer: int | None) -> Sofar:
        await self._expectations.refuse(found, pointer)
        return BEGINNING

    def _hand_over(self, placed: Placed, pointer: int | None, told: Told) -> None:
        """Push and submit, in one step. A plain request joins those before it that are still queued."""
        queued = self._queued
        if pointer is None and queued and self._writer.join(queued.batch, partial(self._end.push, placed, queued), told):
            return
        addition = self._end.push(placed)
        self._queued = addition if pointer is None else None
        self._writer.hand_over(addition.batch, partial(self._written, addition), told)

    def _written(self, addition: Addition) -> None:
        if self._queued is addition:
            self._queued = None
        self._memory.written(addition)

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
        self.topic.follow(row)
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
