"""The coordinator of atomic commits over several topics: double journaling with a local copy of the data.

The journal says what is to become of a transaction, the data journal of each topic (journaled.py) holds its messages. The plan
(plan.py) folds the journal and says which step comes next; this takes the steps. One commit is, in one step of the event loop:
judge it on every topic, then hand to the writer Commit, PrepareCommit, an ApplyCommit with the copied rows for each topic, and
Applied, each a write of its own. The writer keeps that order. So a crash between any two of them leaves a journal from which
recovery takes the same steps on, before anybody publishes anything else; and two commits appear in the same order on every topic
that they share.

Memory is moved when a record is handed to the writer, not when it is synced. Every answer therefore waits for the writer; after a
failed write all of this is read back from disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple
from weakref import WeakValueDictionary
from zlib import crc32

from oncelog.errors import (
    BranchGone,
    ChunkReused,
    GroupProducerNotFound,
    InvalidRequest,
    KeyInTransaction,
    OncelogError,
    ProducerFenced,
    ProducerInTransaction,
    StorageUnavailable,
    TopicDamaged,
    TopicNotFound,
    TransactionExists,
    TransactionNotFound,
    TransactionNotInProgress,
    from_problem,
)
from oncelog.message_id import MessageId
from oncelog.wire.models import AtomicOutcome, AtomicState, AtomicTopic, GroupProducer
from oncelog.wire.requests import CommitRequest, PublishRequest
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.clock import Clock
from oncelog_service.journal.checks import check_begin, check_commit, check_stage
from oncelog_service.journal.limits import JournalLimits
from oncelog_service.journal.outcomes import Ended, forgettable, put_id, put_outcome, read_ended
from oncelog_service.journal.plan import Apply, Decide, Finish, GiveUp, Plan, Step, Transaction
from oncelog_service.journal.records import (
    Abort,
    Applied,
    ApplyCommit,
    Begin,
    Commit,
    Enlist,
    PrepareCommit,
    Record,
    TopicPart,
    TopicRef,
    encode,
)
from oncelog_service.journal.recovery import META_KEY, Found, find
from oncelog_service.log.journaled import INLINE, Ready, Staged
from oncelog_service.log.reading import read
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.writer import Writer
from oncelog_service.storage.keys import group_producer_key, journal_key, number_key
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.rows import GroupProducerRow, JournalMetaRow, encode_record
from oncelog_service.topics import Topics

_log = logging.getLogger(__name__)

BLOCK = 10_000 * POINTERS_PER_MS
"""Numbers are reserved by so many, ten seconds of them: one write for all that begin in that time."""
_TRIM_EVERY = 1_000
"""Records of a partition after which those of ended transactions are deleted."""
_REMEMBERED = 10_000
"""Outcomes kept in memory; older ones are read."""
_ROUND_SECONDS = 0.2
_FORGOTTEN_AT_ONCE = 1_000
_NOT_ENDING = (ProducerInTransaction, KeyInTransaction, StorageUnavailable, TopicDamaged, BranchGone, ChunkReused)
"""Refusals after which the transaction is in progress as before: they may pass, or are about another request than the first."""

TIMED_OUT, ASKED, DUPLICATE = "timed_out", "asked", "duplicate"


class _Work(NamedTuple):
    """What a commit is to do on one topic."""

    log: TopicLog
    ready: Ready


class Journal:
    """All journaled transactions of one opening of the store. Works on the event loop that owns the writer and the topics."""

    def __init__(self, store: Store, writer: Writer, topics: Topics, clock: Clock, limits: JournalLimits, found: Found) -> None:
        """``found``: what is on disk, with everything that was prepared still to be applied: see :meth:`recover`."""
        self._store = store
        self._writer = writer
        self._topics = topics
        self._clock = clock
        self._limits = limits
        self._plans = found.plans
        self._producers = found.producers
        self._partitions = found.row.partitions
        self._begins = list(found.row.begins)
        self._reserved = found.row.numbers
        self._last = found.row.numbers
        self._partition_of: dict[int, int] = {}
        """Number of a transaction that has not ended → its partition."""
        self._numbers: dict[str, int] = {}
        """Its id → its number."""
        for partition, plan in enumerate(self._plans):
            for number, transaction in plan.transactions.items():
                self._partition_of[number], self._numbers[transaction.id] = partition, number
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # gone with its last user
        self._dropping: set[asyncio.Task[None]] = set()
        self._recovered = False
        self.committed = 0
        """Atomic commits since the store was opened, duplicates not counted."""
        self.aborted = 0
        """Transactions aborted since then, duplicates included."""

    @classmethod
    async def recover(cls, store: Store, writer: Writer, topics: Topics, clock: Clock, limits: JournalLimits) -> Journal:
        """Read the journal and take every step that it asks for: what was prepared is committed when this returns.

        Except on topics that cannot be opened: those are tried again later. Raises StoreDamaged.
        """
        found = await asyncio.to_thread(find, store, limits.partitions)
        journal = cls(store, writer, topics, clock, limits, found)
        found.stale.put(Table.JOURNAL_META, META_KEY, encode_record(journal._row()))
        writer.submit(found.stale, lambda: None)
        await journal.once()
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
            ended = await self._find_ended(id)
            if ended is not None:
                _check_same(ended.outcome, group, of)
                return ended.outcome
            number = self._numbers.get(id)
            if number is None:
                await self._check_parent(of)
                batch = Batch()
                number = self._begin(batch, id, group, timeout_ms, of)
                await self._submit(batch)
            outcome = self._status(number)
            _check_same(outcome, group, of)
            await self._writer.settled()
            return outcome

    async def _begin_unnamed(self, group: str, timeout_ms: int | None, of: str | None) -> AtomicOutcome:
        await self._check_parent(of)
        batch = Batch()
        number = self._begin(batch, None, group, timeout_ms, of)
        outcome = self._status(number)
        await self._submit(batch)
        return outcome

    def _begin(self, batch: Batch, id: str | None, group: str, timeout_ms: int | None, of: str | None) -> int:  # noqa: A002
        if id is not None and id.isdigit():
            raise InvalidRequest(f"ids of digits only are the ones that the service assigns; {id} is none of them")
        number = self._next_number(batch)
        id = str(number) if id is None else id  # noqa: A001
        self._partition_of[number] = crc32(group.encode()) % self._partitions
        self._numbers[id] = number
        now = self._clock.now_ms()
        self._append(batch, Begin(number, id, group, now, now + (timeout_ms or self._limits.default_timeout_ms), of))
        put_id(batch, id, number)
        return number

    async def _check_parent(self, of: str | None) -> None:
        if of is None:
            return
        number = self._numbers.get(of)
        ended = await self._find_ended(of) if number is None else None
        if ended is None and (number is None or self._find(number).in_progress):
            return
        state = "prepared" if ended is None else ended.outcome.state
        await self._writer.settled()
        raise _not_in_progress(of, state, "nothing can be staged for it")

    # --- stage

    async def stage(self, id: str, namespace: str, topic: str, chunk: int, request: PublishRequest) -> None:  # noqa: A002
        """Put messages into the topic's data journal, as this chunk of the transaction. The same chunk again is stored once.

        Raises:
            InvalidRequest, ExpectationsNotChecked, TransactionalMismatch, ChunkReused, ProducerFenced, SequenceGap,
            TransactionNotFound, TransactionNotInProgress, TopicNotFound: definite, nothing is staged.
            StorageUnavailable: definite. StorageFailed: not definite; send the same chunk again.
        """
        check_stage(chunk, request, self._limits)
        log = await self._topics.open(namespace, topic)
        log.check_staged(request)
        number = self._numbers.get(id)
        if number is None:
            raise await self._no_longer(id)
        staged = await self._staged(log, _ref(log, namespace, topic), number)
        if self._numbers.get(id) is None:
            raise await self._no_longer(id)
        transaction = self._find(number)
        if not transaction.in_progress:
            await self._writer.settled()
            raise _not_in_progress(id, self._status(number).state, "nothing can be staged any more")
        try:
            new = log.journaled.is_new(staged, chunk, request)
        except OncelogError:
            await self._writer.settled()  # the refusal may depend on what is being written
            raise
        if not new:
            await self._writer.settled()
            return
        batch = Batch()
        self._put(batch, log, _ref(log, namespace, topic), staged, chunk, request)
        await self._submit(batch)

    def _put(self, batch: Batch, log: TopicLog, topic: TopicRef, staged: Staged, chunk: int, request: PublishRequest) -> None:
        if topic not in self._find(staged.number).topics:
            self._append(batch, Enlist(staged.number, topic))
        log.journaled.put(batch, staged, chunk, request)

    async def _staged(self, log: TopicLog, topic: TopicRef, number: int) -> Staged:
        if topic not in self._find(number).topics:
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
        for part in request.parts:
            (await self._topics.open(part.namespace, part.topic)).check_staged(part.request)
        async with self._changing(id):
            ended = await self._find_ended(id)
            if ended is not None:
                return _again(ended)
            number = self._numbers.get(id)
            if number is not None and self._find(number).commit is not None:
                return await self._go_on(id, number)
            if number is not None:
                self._check_can_commit(number, request)
            elif request.group is None:
                raise TransactionNotFound(
                    f"no transaction {id!r} was begun; name its group to begin it with the commit", transaction=id
                )
            return await self._stage_and_decide(id, number, request)

    def _check_can_commit(self, number: int, request: CommitRequest) -> None:
        transaction = self._find(number)
        if request.group not in (None, transaction.group):
            raise _exists(transaction.id, transaction.group)
        if transaction.of is not None:
            raise InvalidRequest(f"{transaction.id!r} is a branch of {transaction.of!r}: commit that, and name this one")
        if not transaction.in_progress:
            raise _not_in_progress(transaction.id, self._status(number).state, "another transaction names it as a branch")

    async def _go_on(self, id: str, number: int) -> AtomicOutcome:  # noqa: A002
        """Its commit was asked for before a restart, and could not be finished yet."""
        if self._find(number).prepared is None:
            return await self._decide(number, self._asked(number))
        await self.once()
        ended = await self._find_ended(id)
        await self._writer.settled()
        return self._status(number) if ended is None else ended.outcome

    async def _stage_and_decide(self, id: str, number: int | None, request: CommitRequest) -> AtomicOutcome:  # noqa: A002
        parts = []
        for part in request.parts:
            log = await self._topics.open(part.namespace, part.topic)
            topic = _ref(log, part.namespace, part.topic)
            parts.append((log, topic, part.request, None if number is None else await self._staged(log, topic, number)))
        # From here to the hand-over of the last record nothing awaits, unless something that this depends on is under way.
        batch = Batch()
        if number is None:
            assert request.group is not None  # checked
            number = self._begin(batch, id, request.group, None, None)
        try:
            for log, topic, messages, present in parts:
                staged = present or log.journaled.begun(number)
                if log.journaled.is_new(staged, INLINE, messages):
                    self._put(batch, log, topic, staged, INLINE, messages)
        except OncelogError as refusal:
            self._submit(batch)
            return await self._refused(number, refusal)
        self._submit(batch)
        return await self._decide(number, request)

    async def _decide(self, number: int, request: CommitRequest) -> AtomicOutcome:
        """Judge it; then either it is prepared and applied, or it is aborted."""
        if not self._recovered:
            await self.once()
        transaction = self._find(number)
        if transaction.expires <= self._clock.now_ms() and transaction.commit is None:
            await self._abort(number, TIMED_OUT, "it was not committed in time")
            return _again(self._ended[transaction.id])
        work: dict[TopicRef, _Work] = {}
        try:
            while True:
                original = self._original(transaction.group, request)
                if original is not None:
                    return await self._duplicate(number, request, original)
                branches = self._branches(transaction, request)
                if work and all(each.log.journaled.judged(each.ready) for each in work.values()):
                    break
                work = await self._work((number, *branches), work)
                if not work:
                    break
        except OncelogError as refusal:
            return await self._refused(number, refusal)
        return await self._prepare(number, request, branches, work)

    def _branches(self, transaction: Transaction, request: CommitRequest) -> tuple[int, ...]:
        """The numbers of the branches that it names. Raises BranchGone."""
        if transaction.commit is not None:
            return transaction.commit.branches
        numbers = []
        for name in request.branches:
            number = self._numbers.get(name)
            branch = None if number is None else self._find(number)
            usable = branch is not None and branch.in_progress and branch.group == transaction.group
            if branch is None or not usable or branch.of not in (None, transaction.id):
                raise BranchGone(
                    f"branch {name!r} cannot become part of {transaction.id!r}: there is none that is in progress in group "
                    f"{transaction.group!r} for it; stage its messages again",
                    transaction=transaction.id,
                    branch=name,
                )
            numbers.append(branch.number)
        return tuple(numbers)

    async def _work(self, numbers: Sequence[int], before: dict[TopicRef, _Work]) -> dict[TopicRef, _Work]:
        """What is to be copied on each topic; waits for what it depends on. ``before``: what was found a moment ago."""
        work: dict[TopicRef, _Work] = {}
        holders: dict[TopicRef, list[int]] = {}
        for number in numbers:
            for topic in self._find(number).topics:
                holders.setdefault(topic, []).append(number)
        for topic, holding in holders.items():
            log = await self._open(topic)
            if topic in before and before[topic].log is log:
                staged = before[topic].ready.staged
            else:
                staged = [await log.journaled.open(each) for each in holding]
            work[topic] = _Work(log, await log.journaled.ready(staged, self._reserve_number))
        return work

    async def _open(self, topic: TopicRef) -> TopicLog:
        """The log of this generation of the topic. Raises TopicNotFound."""
        log = await self._topics.open(topic.namespace, topic.topic)
        if log.row.generation != topic.generation:
            raise TopicNotFound(f"topic {topic.namespace}/{topic.topic} was deleted and created again meanwhile")
        return log

    async def _prepare(
        self, number: int, request: CommitRequest, branches: tuple[int, ...], work: dict[TopicRef, _Work]
    ) -> AtomicOutcome:
        """From the verdict, which is right behind us, to the last record nothing awaits."""
        transaction = self._find(number)
        if transaction.commit is None:
            self._submit_record(
                Commit(number, branches, request.producer, request.sequence_id, request.incarnation, request.checksum)
            )
        batch = Batch()
        parts = tuple(
            TopicPart(topic, tuple(staged.number for staged in each.ready.staged))
            for topic, each in work.items()
            if each.ready.staged
        )
        self._append(batch, PrepareCommit(number, self._plan(number).next_order, parts))
        if request.producer is not None and request.sequence_id is not None:
            messages = sum(staged.group.messages for each in work.values() for staged in each.ready.staged)
            row = GroupProducerRow(request.sequence_id, request.incarnation, transaction.id, messages, request.checksum)
            self._producers[transaction.group, request.producer] = row
            batch.put(Table.GROUP_PRODUCER, group_producer_key(transaction.group, request.producer), encode_record(row))
        prepared = self._submit(batch)
        for topic, each in work.items():
            if each.ready.staged:
                self._copy(number, topic, each.log, each.ready.staged)
        applied = self._finish(number)
        outcome = self._ended[transaction.id].outcome
        await prepared
        try:
            await applied
        except OncelogError:  # it will be, as soon as the store has been read back
            return outcome.model_copy(update={"state": "prepared", "topics": [], "messages": None})
        return outcome

    # --- the steps behind a commit

    def _copy(self, number: int, topic: TopicRef, log: TopicLog, staged: Iterable[Staged]) -> None:
        batch = Batch()
        copied = log.journaled.copy(batch, staged)
        first_id = "" if copied.first_id is None else copied.first_id.hex()
        self._append(batch, ApplyCommit(number, topic, copied.messages, copied.first_offset or 0, first_id))
        self._submit(batch, copied.on_written)

    def _finish(self, number: int) -> asyncio.Future[None]:
        """Every topic has its messages: the transaction and its branches have ended."""
        transaction = self._find(number)
        assert transaction.commit is not None  # the plan sees to it
        batch = Batch()
        self._end(batch, transaction, self._outcome(transaction, "committed"))
        branches = [self._find(each) for each in transaction.commit.branches]
        for branch in branches:
            self._end(batch, branch, self._outcome(branch, "committed", of=transaction.id, messages=None))
        self._append(batch, Applied(number))
        copied = (
            {(part.topic, each) for part in transaction.prepared.parts for each in part.branches}
            if transaction.prepared
            else set()
        )
        for each in (transaction, *branches):
            self._forget(each)
            self._drop_soon(each.number, [topic for topic in each.topics if (topic, each.number) not in copied])
        for topic, each_number in copied:
            self._let_go(topic, each_number)
        self.committed += 1
        return self._submit(batch)

    async def _refused(self, number: int, refusal: OncelogError) -> AtomicOutcome:
        """The commit cannot be. What the refusal depends on is synced before it is told."""
        if not isinstance(refusal, _NOT_ENDING) and refusal.definite:
            await self._abort(number, refusal.code, refusal.detail, refusal.to_problem())
        await self._writer.settled()
        raise refusal

    async def _duplicate(self, number: int, request: CommitRequest, original: GroupProducerRow) -> AtomicOutcome:
        """Its (producer, sequence id) has been committed before: nothing of it is stored, and that is its outcome."""
        same = original.sequence_id == request.sequence_id
        outcome = self._outcome(
            self._find(number),
            "duplicate",
            producer=request.producer,
            sequence_id=request.sequence_id,
            incarnation=request.incarnation,
            original=original.transaction if same else None,
            messages=original.messages if same else None,
            checksum=original.checksum if same else None,
        )
        await self._end_without(number, DUPLICATE, "its sequence id was committed before", None, outcome)
        return outcome

    def _original(self, group: str, request: CommitRequest) -> GroupProducerRow | None:
        """The producer's newest commit, if its sequence id is that of this one or higher. Raises ProducerFenced."""
        if request.producer is None or request.sequence_id is None:
            return None
        row = self._producers.get((group, request.producer))
        if row is None:
            return None
        if row.incarnation != request.incarnation:
            raise ProducerFenced(
                f"producer {request.producer!r} of group {group!r} belongs to incarnation {row.incarnation!r}, not to "
                f"{request.incarnation!r}; use another name, or have the group forget this one",
                producer=request.producer,
                incarnation=request.incarnation,
                current_incarnation=row.incarnation,
            )
        return row if request.sequence_id <= row.sequence_id else None

    # --- abort

    async def abort(self, id: str) -> AtomicOutcome:  # noqa: A002
        """Nothing of it will be seen. Twice is as once. Raises TransactionNotInProgress, TransactionNotFound."""
        async with self._changing(id):
            ended = await self._find_ended(id)
            number = self._numbers.get(id)
            if ended is None and number is not None and self._find(number).in_progress:
                return await self._abort(number, ASKED, "it was aborted")
            if ended is not None and ended.outcome.state == "aborted":
                return ended.outcome
            raise await self._no_longer(id)

    async def _abort(self, number: int, reason: str, detail: str, problem: dict[str, object] | None = None) -> AtomicOutcome:
        outcome = self._outcome(self._find(number), "aborted", reason=reason, detail=detail)
        await self._end_without(number, reason, detail, problem, outcome)
        return outcome

    async def _end_without(
        self, number: int, reason: str, detail: str, problem: dict[str, object] | None, outcome: AtomicOutcome
    ) -> None:
        transaction = self._find(number)
        batch = Batch()
        self._end(batch, transaction, outcome, problem)
        self._append(batch, Abort(number, reason, detail, problem))
        self._forget(transaction)
        self._drop_soon(number, list(transaction.topics))
        self.aborted += 1
        await self._submit(batch)

    # --- ask

    async def show(self, id: str) -> AtomicOutcome:  # noqa: A002
        """What became of it; durable. Raises TransactionNotFound."""
        ended = await self._find_ended(id)
        number = self._numbers.get(id)
        if ended is None and number is None:
            raise TransactionNotFound(f"no transaction {id[:249]!r} was begun here, or it is forgotten", transaction=id[:249])
        outcome = self._status(number) if ended is None and number is not None else ended.outcome  # type: ignore[union-attr]
        await self._writer.settled()
        return outcome

    async def list(self, state: AtomicState, group: str | None, after: str | None, limit: int) -> Sequence[AtomicOutcome]:
        """Those that have not ended and are in this state, by rising number; ``after``: behind the one of this id."""
        behind = 0
        if after is not None:
            number = self._numbers.get(after)
            if number is None:
                data = await read(self._store.get, Table.ATOMIC_ID, after.encode("ascii", "replace"))
                number = 0 if data is None else int.from_bytes(data, "big")
            behind = number
        found = [self._status(number) for number in sorted(self._partition_of) if number > behind]
        await self._writer.settled()
        return [each for each in found if each.state == state and group in (None, each.group)][:limit]

    async def producer(self, group: str, name: str) -> GroupProducer:
        """The newest commit under this name. Raises GroupProducerNotFound."""
        row = self._producers.get((group, name))
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

    async def forget_producer(self, group: str, name: str) -> None:
        """Its next sequence id may be any, and its incarnation too. At an operator's word. Raises GroupProducerNotFound."""
        await self.producer(group, name)
        self._producers.pop((group, name), None)
        batch = Batch()
        batch.delete(Table.GROUP_PRODUCER, group_producer_key(group, name))
        await self._submit(batch)

    def is_open(self, number: int) -> bool:
        """Whether the transaction of this number has not ended: what it has staged must stay."""
        return number in self._partition_of

    @property
    def open_transactions(self) -> int:
        """How many have not ended."""
        return len(self._partition_of)

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
        complete = True
        for plan in self._plans:
            stuck: set[TopicRef] = set()
            while steps := [each for each in plan.steps(self._clock.now_ms()) if not self._is_held_up(each, stuck)]:
                for step in steps:
                    if not self._is_held_up(step, stuck) and not await self._take(step):
                        complete = False
                        stuck |= {step.part.topic} if isinstance(step, Apply) else set()
                if not complete:
                    break
        self._recovered = complete

    def _is_held_up(self, step: Step, stuck: set[TopicRef]) -> bool:
        """Whether the step waits for somebody: an earlier one on its topic, or a call that is under way."""
        if isinstance(step, Apply):
            return step.part.topic in stuck
        number = self._partition_of.get(step.number)
        if number is None:
            return True
        lock = self._locks.get(self._find(step.number).id)
        return lock is not None and lock.locked()

    async def _take(self, step: Step) -> bool:
        """Take one step; whether that worked."""
        try:
            if isinstance(step, Apply):
                await self._apply(step)
            elif isinstance(step, Finish):
                self._finish(step.number)
            elif isinstance(step, Decide):
                await self._decide_again(step.number)
            elif isinstance(step, GiveUp) and self._find(step.number).in_progress:
                await self._abort(step.number, step.reason, step.detail)
        except OncelogError as error:
            _log.warning("%s cannot be taken now; it will be: %s", step, error)
            return False
        return True

    async def _apply(self, step: Apply) -> None:
        """Copy what was prepared before a restart."""
        topic = step.part.topic
        try:
            log = await self._open(topic)
        except TopicNotFound:
            batch = Batch()
            self._append(batch, ApplyCommit(step.number, topic, 0, 0, ""))
            self._submit(batch)
            return
        self._copy(step.number, topic, log, [await log.journaled.open(number) for number in step.part.branches])

    async def _decide_again(self, number: int) -> None:
        """Its client asked for the commit before a restart, and needs not be there any more."""
        self._recovered = True  # whatever was prepared before it has been applied
        try:
            await self._decide(number, self._asked(number))
        except OncelogError as refusal:
            if number in self._partition_of:
                raise
            _log.info("transaction %s was refused after a restart: %s", number, refusal)

    def _asked(self, number: int) -> CommitRequest:
        commit = self._find(number).commit
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
            self._ended.pop(id_, None)
        if found:
            await self._submit(batch)
        return len(found)

    async def close(self) -> None:
        """Wait for what is being deleted."""
        if self._dropping:
            await asyncio.wait(self._dropping)

    def _drop_soon(self, number: int, topics: Sequence[TopicRef]) -> None:
        if topics:
            task = asyncio.ensure_future(self._drop(number, topics))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _drop(self, number: int, topics: Sequence[TopicRef]) -> None:
        for topic in topics:
            try:
                await (await self._open(topic)).journaled.drop(number)
            except OncelogError as error:
                _log.info("what transaction %d staged on %s will be deleted by retention: %s", number, topic, error)

    def _let_go(self, topic: TopicRef, number: int) -> None:
        log = self._topics.opened.get((topic.namespace, topic.topic))
        if log is not None:
            log.journaled.close(number)

    # --- memory and records

    def _find(self, number: int) -> Transaction:
        return self._plan(number).transactions[number]

    def _plan(self, number: int) -> Plan:
        return self._plans[self._partition_of[number]]

    def _append(self, batch: Batch, record: Record) -> None:
        """Move the plan by a record, and add that to ``batch``."""
        partition = self._partition_of[record.number]
        plan = self._plans[partition]
        position = plan.position
        if position % _TRIM_EVERY == 0:
            self._trim(partition)  # before this record, whose batch the writer has not got yet
        plan.apply(position, record)
        batch.put(Table.JOURNAL, journal_key(partition, position), encode(position, record))

    def _submit_record(self, record: Record) -> None:
        batch = Batch()
        self._append(batch, record)
        self._submit(batch)

    def _submit(self, batch: Batch, on_written: Callable[[], None] = lambda: None) -> asyncio.Future[None]:
        return self._writer.submit(batch, on_written)

    def _trim(self, partition: int) -> None:
        """Delete records that no restart needs."""
        begin, end = self._begins[partition], self._plans[partition].keep_from()
        if end <= begin:
            return
        batch = Batch()
        for position in range(begin, end):
            batch.delete(Table.JOURNAL, journal_key(partition, position))
        self._begins[partition] = end
        batch.put(Table.JOURNAL_META, META_KEY, encode_record(self._row()))
        self._writer.submit_lazily(batch, lambda: None)

    def _row(self) -> JournalMetaRow:
        return JournalMetaRow(self._partitions, self._reserved, list(self._begins))

    def _next_number(self, batch: Batch) -> int:
        """A number that no other transaction ever has; above all numbers handed out before."""
        self._last = max(self._last + 1, self._clock.now_ms() * POINTERS_PER_MS)
        if self._last > self._reserved:
            self._reserved = self._last + BLOCK
            batch.put(Table.JOURNAL_META, META_KEY, encode_record(self._row()))
        return self._last

    def _reserve_number(self) -> int:
        batch = Batch()
        number = self._next_number(batch)
        self._submit(batch)
        return number

    def _end(
        self, batch: Batch, transaction: Transaction, outcome: AtomicOutcome, problem: dict[str, object] | None = None
    ) -> None:
        ended = Ended(outcome, problem)
        put_outcome(batch, transaction.number, ended)
        self._ended[transaction.id] = ended
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def _forget(self, transaction: Transaction) -> None:
        self._partition_of.pop(transaction.number, None)
        self._numbers.pop(transaction.id, None)

    async def _find_ended(self, id: str) -> Ended | None:  # noqa: A002
        """What became of it; on disk when this returns. None: it has not ended, or was never begun."""
        if id in self._numbers:
            return None
        ended = self._ended.get(id)
        if ended is not None:
            await self._writer.settled()
            return ended
        if not id.isascii():
            return None
        return await read(read_ended, self._store, id)

    async def _no_longer(self, id: str) -> OncelogError:  # noqa: A002
        ended = await self._find_ended(id)
        number = self._numbers.get(id)
        if ended is not None:
            return _not_in_progress(id, ended.outcome.state, ended.outcome.detail or "nothing was done", ended.outcome.reason)
        if number is not None:
            await self._writer.settled()
            return _not_in_progress(id, "prepared", "nothing was done")
        return TransactionNotFound(f"no transaction {id[:249]!r} was begun here, or it is forgotten", transaction=id[:249])

    def _status(self, number: int) -> AtomicOutcome:
        transaction = self._find(number)
        adopted = transaction.adopted_by
        if adopted is not None:
            return self._outcome(transaction, "prepared", of=self._find(adopted).id)
        return self._outcome(transaction, "in_progress" if transaction.prepared is None else "prepared")

    def _outcome(self, transaction: Transaction, state: AtomicState, **values: object) -> AtomicOutcome:
        commit = transaction.commit
        messages = sum(each.messages for each in transaction.applied.values()) if state == "committed" else None
        fields: dict[str, object] = {
            "id": transaction.id,
            "group": transaction.group,
            "state": state,
            "began_ms": transaction.began,
            "expires_ms": transaction.expires if state == "in_progress" else None,
            "of": transaction.of,
            "branches": [] if commit is None else [self._find(each).id for each in commit.branches],
            "topics": _topics(transaction),
            "messages": messages,
            "producer": None if commit is None else commit.producer,
            "sequence_id": None if commit is None else commit.sequence_id,
            "incarnation": None if commit is None else commit.incarnation,
            "checksum": None if commit is None else commit.checksum,
        }
        return AtomicOutcome.model_construct(**{**fields, **values})  # type: ignore[arg-type]

    @asynccontextmanager
    async def _changing(self, id: str) -> AsyncIterator[None]:  # noqa: A002
        """One change of a transaction at a time."""
        lock = self._locks.get(id)
        if lock is None:
            lock = self._locks[id] = asyncio.Lock()
        async with lock:
            yield


def _topics(transaction: Transaction) -> Sequence[AtomicTopic]:
    """What it holds, or has put, on each topic."""
    prepared = {} if transaction.prepared is None else {part.topic: None for part in transaction.prepared.parts}
    found = []
    for topic in dict.fromkeys((*transaction.topics, *prepared)):
        applied = transaction.applied.get(topic)
        placed = applied is not None and applied.messages > 0
        found.append(
            AtomicTopic.model_construct(
                namespace=topic.namespace,
                topic=topic.topic,
                generation=topic.generation,
                messages=0 if applied is None else applied.messages,
                first_offset=applied.first_offset if placed and applied is not None else None,
                first_message_id=MessageId.from_bytes(bytes.fromhex(applied.first_id))
                if placed and applied is not None
                else None,
            )
        )
    return found


def _ref(log: TopicLog, namespace: str, topic: str) -> TopicRef:
    return TopicRef(namespace, topic, log.row.generation)


def _check_same(outcome: AtomicOutcome, group: str, of: str | None) -> None:
    if outcome.group != group or (of is not None and outcome.of != of):
        raise _exists(outcome.id, outcome.group)


def _exists(id: str, group: str) -> TransactionExists:  # noqa: A002
    return TransactionExists(f"transaction {id!r} was begun differently, in group {group!r}", transaction=id, group=group)


def _again(ended: Ended) -> AtomicOutcome:
    """The answer to a repeated commit. Raises the refusal that ended it."""
    outcome = ended.outcome
    if outcome.state != "aborted":
        return outcome
    if ended.problem is not None:
        raise from_problem(ended.problem, int(str(ended.problem["status"])))
    raise _not_in_progress(outcome.id, outcome.state, outcome.detail or "it was aborted", outcome.reason)


def _not_in_progress(id: str, state: str, detail: str, reason: str | None = None) -> TransactionNotInProgress:  # noqa: A002
    return TransactionNotInProgress(f"transaction {id!r} is {state}: {detail}", transaction=id, state=state, reason=reason)
