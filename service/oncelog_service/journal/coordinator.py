"""The coordinator of atomic commits over several topics: double journaling with a local copy of the data.

The journal says what is to become of a transaction, the data journal of each topic (journaled.py) holds its messages. The plan
(plan.py) folds the journal and says which step comes next; endings.py takes the steps that end a transaction. One commit is, in
one step of the event loop: judge it on every topic, then hand to the writer Commit, PrepareCommit, an ApplyCommit with the copied
rows for each topic, and Applied, all of them as *one* atomic write. So a crash leaves all of it or nothing, and two commits
appear in the same order on every topic that they share.

So no crash leaves a transaction *prepared*, that is, between these records. The plan still knows that state and takes the steps
on from wherever a journal stops: decision 0016 says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from oncelog.errors import (
    GroupProducerNotFound,
    InvalidRequest,
    OncelogError,
    StorageFailed,
    TopicNotFound,
    TransactionExists,
    TransactionNotFound,
)
from oncelog.wire.models import AtomicOutcome, AtomicState, GroupProducer
from oncelog.wire.requests import CommitRequest, PublishRequest
from oncelog_service.clock import Clock
from oncelog_service.group_commit import Writer
from oncelog_service.journal.checks import check_begin, check_commit, check_stage
from oncelog_service.journal.endings import ASKED, Endings, again
from oncelog_service.journal.ledger import Ledger, check_assignable, fenced, not_in_progress
from oncelog_service.journal.limits import JournalLimits
from oncelog_service.journal.outcomes import forgettable
from oncelog_service.journal.plan import Apply, Decide, Finish, GiveUp, Step
from oncelog_service.journal.records import ApplyCommit, Enlist, TopicRef
from oncelog_service.journal.recovery import Found, find
from oncelog_service.log.journaled import INLINE, Staged
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.reading import read
from oncelog_service.storage.keys import group_producer_key, number_key
from oncelog_service.storage.port import Batch, Store, StoreError, Table
from oncelog_service.topics import Topics

_log = logging.getLogger(__name__)

_ROUND_SECONDS = 0.2
_FORGOTTEN_AT_ONCE = 1_000
_READ_AT_ONCE = 250
"""Branches that a restart reads in one go."""


class Journal:
    """All journaled transactions of one opening of the store. Works on the event loop that owns the writer and the topics."""

    def __init__(self, store: Store, writer: Writer, topics: Topics, clock: Clock, limits: JournalLimits, found: Found) -> None:
        """``found``: what is on disk, with everything that was prepared still to be applied: see :meth:`recover`."""
        self._store = store
        self._writer = writer
        self._topics = topics
        self._clock = clock
        self._limits = limits
        self._ledger = Ledger(store, writer, clock, limits, found)
        self._endings = Endings(self._ledger, writer, topics, clock)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # gone with its last user
        self._stepping = asyncio.Lock()

    @classmethod
    async def recover(cls, store: Store, writer: Writer, topics: Topics, clock: Clock, limits: JournalLimits) -> Journal:
        """Read the journal and take every step that it asks for: what was prepared is committed when this returns.

        Except on topics that cannot be opened: those are tried again later. Raises StoreError, StoreDamaged.
        """
        found = await asyncio.to_thread(find, store, limits.partitions)
        journal = cls(store, writer, topics, clock, limits, found)
        left_over = [each for each in found.staged if not journal._ledger.needs(each[1])]
        await journal.once()
        try:
            await writer.settled()
        except StorageFailed as failure:
            raise StoreError(failure.detail) from failure
        journal._endings.drop_left_over(left_over)
        return journal

    # --- begin

    async def begin(self, id: str | None, group: str, timeout_ms: int | None, of: str | None) -> AtomicOutcome:  # noqa: A002
        """Begin a transaction, or a branch ``of`` another one; the same id again begins nothing twice.

        Raises:
            InvalidRequest; TransactionExists: it was begun differently; TransactionNotInProgress: the one it is for has ended.
        """
        check_begin(id, group, timeout_ms, of, self._limits)
        if id is None:
            return await self._begin_unnamed(group, timeout_ms, of)
        async with self._changing(id):
            ended = await self._ledger.find_ended(id)
            if ended is not None:
                _check_same(ended.outcome, group, of)
                return ended.outcome
            number = self._ledger.numbers.get(id)
            if number is None:
                await self._check_parent(of, group)
                number, done = self._begin_now(id, group, timeout_ms, of)
                await done
            outcome = self._ledger.status(number)
            _check_same(outcome, group, of)
            await self._writer.settled()
            return outcome

    async def _begin_unnamed(self, group: str, timeout_ms: int | None, of: str | None) -> AtomicOutcome:
        await self._check_parent(of, group)
        number, done = self._begin_now(None, group, timeout_ms, of)
        outcome = self._ledger.status(number)
        await done
        return outcome

    def _begin_now(
        self,
        id: str | None,  # noqa: A002
        group: str,
        timeout_ms: int | None,
        of: str | None,
    ) -> tuple[int, asyncio.Future[None]]:
        check_assignable(id)
        self._ledger.check()
        batch = Batch()
        with self._ledger.moving():
            number = self._ledger.begin(batch, id, group, timeout_ms, of)
            return number, self._ledger.submit(batch)

    async def _check_parent(self, of: str | None, group: str) -> None:
        """Raises InvalidRequest: it is of another group, so its commit cannot name this one; TransactionNotInProgress."""
        if of is None:
            return
        number = self._ledger.numbers.get(of)
        ended = await self._ledger.find_ended(of) if number is None else None
        if number is not None and self._ledger.find(number).group != group:
            raise InvalidRequest(
                f"transaction {of!r} is of group {self._ledger.find(number).group!r}: a branch of it must be, too"
            )
        if ended is None and (number is None or self._ledger.find(number).in_progress):
            return
        state = "prepared" if ended is None else ended.outcome.state
        await self._writer.settled()
        raise not_in_progress(of, state, "nothing can be staged for it")

    # --- stage

    async def stage(self, id: str, namespace: str, topic: str, chunk: int, request: PublishRequest) -> None:  # noqa: A002
        """Put messages into the topic's data journal, as this chunk of the transaction. The same chunk again is stored once.

        Raises:
            InvalidRequest, ExpectationsNotChecked, TransactionalMismatch, ChunkReused, ProducerFenced, SequenceGap,
            TransactionNotFound, TransactionNotInProgress, TopicNotFound: definite, nothing is staged.
            StorageUnavailable: definite. StorageFailed: not definite; send the same chunk again.
        """
        check_stage(chunk, request, self._limits)
        log = await self._topics.open(namespace, topic, claim=True)
        log.check_staged(request)
        number = self._ledger.numbers.get(id)
        if number is None:
            raise await self._ledger.no_longer(id)
        staged = await self._staged(log, _ref(log, namespace, topic), number)
        if self._ledger.numbers.get(id) is None:
            raise await self._ledger.no_longer(id)
        transaction = self._ledger.find(number)
        if not transaction.in_progress:
            await self._writer.settled()
            raise not_in_progress(id, self._ledger.status(number).state, "nothing can be staged any more")
        try:
            new = log.journaled.is_new(staged, chunk, request)
        except OncelogError:
            await self._writer.settled()  # the refusal may depend on what is being written
            raise
        if not new:
            await self._writer.settled()
            return
        self._ledger.check()
        batch = Batch()
        with self._ledger.moving():
            self._put(batch, log, _ref(log, namespace, topic), staged, chunk, request)
            done = self._ledger.submit(batch)
        await done

    def _put(self, batch: Batch, log: TopicLog, topic: TopicRef, staged: Staged, chunk: int, request: PublishRequest) -> None:
        if topic not in self._ledger.find(staged.number).topics:
            self._ledger.append(batch, Enlist(staged.number, topic))
        log.journaled.put(batch, staged, chunk, request)

    async def _staged(self, log: TopicLog, topic: TopicRef, number: int) -> Staged:
        if topic not in self._ledger.find(number).topics:
            return log.journaled.begun(number)
        return await log.journaled.open(number)

    # --- commit

    async def commit(self, id: str, request: CommitRequest) -> AtomicOutcome:  # noqa: A002
        """Commit what was staged under the id, what the request carries, and the branches that it names: all or nothing.

        The answer comes when it is certain and, but for topics that cannot be written now, when the messages are there. The same
        id again answers the same; so does, for a commit with a producer and sequence id, the same of those under another id.

        Raises:
            TransactionNotFound, TransactionExists, InvalidRequest: nothing was committed.
            TransactionNotInProgress: it was aborted, or timed out. A refusal that ended it is raised again as it was:
            OffsetMismatch, ProducerFenced, SequenceGap, SequenceReused, TopicNotFound, …
            BranchGone, ProducerInTransaction, KeyInTransaction, TopicDamaged, StorageUnavailable: it is in progress as before.
            StorageFailed: not definite; ask for the outcome.
        """
        check_commit(id, request, self._limits)
        async with self._changing(id):
            ended = await self._ledger.find_ended(id)
            if ended is not None:
                if request.group not in (None, ended.outcome.group):
                    raise _exists(id, ended.outcome.group)
                return again(ended)
            number = self._ledger.numbers.get(id)
            if number is not None and self._ledger.find(number).commit is not None:
                return await self._go_on(id, number)
            if number is not None:
                self._check_can_commit(number, request)
            elif request.group is None:
                raise TransactionNotFound(
                    f"no transaction {id!r} was begun; name its group to begin it with the commit", transaction=id
                )
            return await self._stage_and_decide(id, number, request)

    def _check_can_commit(self, number: int, request: CommitRequest) -> None:
        transaction = self._ledger.find(number)
        if request.group not in (None, transaction.group):
            raise _exists(transaction.id, transaction.group)
        if transaction.of is not None:
            raise InvalidRequest(f"{transaction.id!r} is a branch of {transaction.of!r}: commit that, and name this one")
        if not transaction.in_progress:
            raise not_in_progress(transaction.id, self._ledger.status(number).state, "another transaction names it as a branch")

    async def _go_on(self, id: str, number: int) -> AtomicOutcome:  # noqa: A002
        """Its commit was asked for before a restart, and could not be finished yet."""
        if self._ledger.find(number).prepared is None:
            return await self._endings.decide(number, self._asked(number))
        await self._writer.settled()
        return self._ledger.status(number)

    async def _stage_and_decide(self, id: str, number: int | None, request: CommitRequest) -> AtomicOutcome:  # noqa: A002
        transaction = None if number is None else self._ledger.find(number)
        parts = []
        for part in request.parts:
            log = await self._topics.open(part.namespace, part.topic, claim=True)
            log.check_staged(part.request)
            topic = _ref(log, part.namespace, part.topic)
            taken = None if transaction is None else await self._endings.taken(transaction)
            if taken is not None:
                return taken
            parts.append((log, topic, part.request, None if number is None else await self._staged(log, topic, number)))
        taken = None if transaction is None else await self._endings.taken(transaction)
        if taken is not None:
            return taken
        # From here to the hand-over of the last record nothing awaits, unless something that this depends on is under way.
        check_assignable(id if number is None else None)
        self._ledger.check()
        batch = Batch()
        refusal: OncelogError | None = None
        with self._ledger.moving():
            if number is None:
                assert request.group is not None  # checked
                number = self._ledger.begin(batch, id, request.group, None, None)
            try:
                for log, topic, messages, present in parts:
                    staged = present or log.journaled.begun(number)
                    if log.journaled.is_new(staged, INLINE, messages):
                        self._put(batch, log, topic, staged, INLINE, messages)
            except OncelogError as error:
                refusal = error
            self._ledger.submit(batch)
        if refusal is not None:
            return await self._endings.refuse(number, refusal)
        return await self._endings.decide(number, request)

    # --- abort

    async def abort(self, id: str) -> AtomicOutcome:  # noqa: A002
        """Nothing of it will be seen. Twice is as once. Raises TransactionNotInProgress, TransactionNotFound."""
        async with self._changing(id):
            ended = await self._ledger.find_ended(id)
            number = self._ledger.numbers.get(id)
            if ended is None and number is not None and self._ledger.find(number).in_progress:
                return await self._endings.abort(number, ASKED, "it was aborted")
            if ended is not None and ended.outcome.state == "aborted":
                return ended.outcome
            raise await self._ledger.no_longer(id)

    # --- ask

    async def show(self, id: str) -> AtomicOutcome:  # noqa: A002
        """What became of it; durable. Raises TransactionNotFound."""
        ended = await self._ledger.find_ended(id)
        if ended is not None:
            return ended.outcome
        number = self._ledger.numbers.get(id)
        if number is None:
            raise await self._ledger.no_longer(id)
        outcome = self._ledger.status(number)
        await self._writer.settled()
        return outcome

    async def list(self, state: AtomicState, group: str | None, after: str | None, limit: int) -> Sequence[AtomicOutcome]:
        """Those that have not ended and are in this state, by rising number; ``after``: behind the one of this id."""
        behind = 0
        if after is not None:
            number = self._ledger.numbers.get(after)
            if number is None:
                data = await read(self._store.get, Table.ATOMIC_ID, after.encode("ascii", "replace"))
                number = 0 if data is None else int.from_bytes(data, "big")
            behind = number
        found = [self._ledger.status(number) for number in self._ledger.open_numbers if number > behind]
        await self._writer.settled()
        return [each for each in found if each.state == state and group in (None, each.group)][:limit]

    async def producer(self, group: str, name: str) -> GroupProducer:
        """The newest commit under this name. Raises GroupProducerNotFound."""
        row = self._ledger.producers.get((group, name))
        await self._writer.settled()
        if row is None:
            raise GroupProducerNotFound(f"group {group[:249]!r} knows of no producer {name[:249]!r}")
        return GroupProducer(
            group=group,
            producer=name,
            sequence_id=row.sequence_id,
            incarnation=row.incarnation,
            transaction=row.transaction,
            messages=row.messages,
            checksum=row.checksum,
        )

    async def forget_producer(self, group: str, name: str, incarnation: str | None = None) -> None:
        """Its next sequence id may be any, and its incarnation too. ``incarnation``: only if its newest commit is of this one.

        Raises GroupProducerNotFound; ProducerFenced: it is of another. Nothing is forgotten then.
        """
        row = self._ledger.producers.get((group, name))
        if row is None or incarnation not in (None, row.incarnation):
            await self.producer(group, name)  # the refusal is told when what it was judged against is synced
            assert row is not None
            raise fenced(group, name, incarnation, row.incarnation)
        self._ledger.check()
        del self._ledger.producers[group, name]
        batch = Batch()
        batch.delete(Table.GROUP_PRODUCER, group_producer_key(group, name))
        await self._ledger.submit(batch)

    def needs(self, number: int) -> bool:
        """Whether what is staged under this number must stay."""
        return self._ledger.needs(number)

    @property
    def open_transactions(self) -> int:
        """How many have not ended."""
        return len(self._ledger.numbers)

    @property
    def committed(self) -> int:
        """Atomic commits since the store was opened, duplicates not counted."""
        return self._endings.committed

    @property
    def aborted(self) -> int:
        """Transactions aborted since then, duplicates included."""
        return self._endings.aborted

    # --- in the background

    async def run(self) -> None:
        """Give up what is out of time and try again what could not be done, until cancelled."""
        while True:
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                await self.once()
            except OncelogError as error:
                _log.warning("the journal's steps cannot be taken now; they will be: %s", error)

    async def once(self) -> None:
        """Take every step that is to be taken now; those that cannot be are left for later."""
        async with self._stepping:
            failed: set[Step] = set()
            for plan in self._ledger.plans:
                stuck: set[TopicRef] = set()
                while steps := [
                    each
                    for each in plan.steps(self._ledger.running.now_ms())
                    if each not in failed and not self._is_held_up(each, stuck)
                ]:
                    await self._read_ahead(steps)
                    for step in steps:
                        if not self._is_held_up(step, stuck) and not await self._take(step):
                            failed.add(step)
                            stuck |= {step.part.topic} if isinstance(step, Apply) else set()

    async def _read_ahead(self, steps: Sequence[Step]) -> None:
        """Read what is to be copied, topic by topic; what cannot be read is told where its turn comes."""
        numbers: dict[TopicRef, list[int]] = {}
        for step in steps:
            if isinstance(step, Apply):
                numbers.setdefault(step.part.topic, []).extend(step.part.branches)
        for topic, staged in numbers.items():
            try:
                log = await self._endings.open(topic)
                for begin in range(0, len(staged), _READ_AT_ONCE):
                    await log.journaled.read_ahead(staged[begin : begin + _READ_AT_ONCE])
            except OncelogError:
                continue

    def _is_held_up(self, step: Step, stuck: set[TopicRef]) -> bool:
        """Whether the step waits for somebody: an earlier one on its topic, or a call that is under way."""
        if isinstance(step, Apply):
            return step.part.topic in stuck
        if not self._ledger.is_open(step.number):
            return True
        lock = self._locks.get(self._ledger.find(step.number).id)
        return lock is not None and lock.locked()

    async def _take(self, step: Step) -> bool:
        """Take one step; whether that worked."""
        try:
            if isinstance(step, Apply):
                await self._apply(step)
            elif isinstance(step, Finish):
                self._ledger.check()
                with self._ledger.moving():
                    self._endings.finish(step.number)
            else:
                await self._end(step)
        except OncelogError as error:
            _log.warning("%s cannot be taken now; it will be: %s", step, error)
            return False
        return True

    async def _apply(self, step: Apply) -> None:
        """Copy what was prepared before a restart."""
        topic = step.part.topic
        try:
            log = await self._endings.open(topic)
        except TopicNotFound:
            self._ledger.check()
            with self._ledger.moving():
                self._ledger.submit_record(ApplyCommit(step.number, topic, 0, 0, ""))
            return
        staged = [await log.journaled.prepared(number) for number in step.part.branches]
        log.journaled.check_open()
        self._ledger.check()
        with self._ledger.moving():
            self._endings.copy(step.number, topic, log, staged)

    async def _end(self, step: Decide | GiveUp) -> None:
        """Judge a commit whose client asked for it before a restart and needs not be there any more; or give one up."""
        transaction = self._ledger.find(step.number)
        async with self._changing(transaction.id):  # which nobody holds: nothing awaits here
            if isinstance(step, GiveUp):
                if transaction.in_progress:
                    await self._endings.abort(step.number, step.reason, step.detail)
                return
            try:
                await self._endings.decide(step.number, self._asked(step.number))
            except OncelogError as refusal:
                if self._ledger.is_open(step.number):
                    raise
                _log.info("transaction %s was refused after a restart: %s", transaction.id, refusal)

    def _asked(self, number: int) -> CommitRequest:
        commit = self._ledger.find(number).commit
        assert commit is not None  # whoever asks has seen it
        return CommitRequest(
            producer=commit.producer,
            sequence_id=commit.sequence_id,
            incarnation=commit.incarnation,
            checksum=commit.checksum,
        )

    async def forget_outcomes(self) -> int:
        """Forget what became of the oldest transactions, as far as none of their messages lives; how many."""
        found = await read(forgettable, self._store, self._clock.now_ms(), _FORGOTTEN_AT_ONCE)
        batch = Batch()
        for number, id_ in found:
            batch.delete(Table.ATOMIC_OUTCOME, number_key(number))
            batch.delete(Table.ATOMIC_ID, id_.encode("ascii"))
            self._ledger.ended.pop(id_, None)
        if found:
            await self._ledger.submit(batch)
        return len(found)

    async def close(self) -> None:
        """Wait for what is being deleted."""
        await self._endings.close()

    def release(self) -> None:
        """Nobody waits here for long."""

    @asynccontextmanager
    async def _changing(self, id: str) -> AsyncIterator[None]:  # noqa: A002
        """One change of a transaction at a time."""
        lock = self._locks.get(id)
        if lock is None:
            lock = self._locks[id] = asyncio.Lock()
        async with lock:
            yield


def _ref(log: TopicLog, namespace: str, topic: str) -> TopicRef:
    return TopicRef(namespace, topic, log.row.generation)


def _check_same(outcome: AtomicOutcome, group: str, of: str | None) -> None:
    if outcome.group != group or (of is not None and outcome.of != of):
        raise _exists(outcome.id, outcome.group)


def _exists(id: str, group: str) -> TransactionExists:  # noqa: A002
    return TransactionExists(f"transaction {id!r} was begun differently, in group {group!r}", transaction=id, group=group)
