"""How one journaled transaction ends: judged, prepared, copied to its topics, finished; or aborted.

From the verdict to the last record nothing awaits, and from the first record that prepares it to the last one all are one write:
whoever reads the journal after a crash finds a commit finished or not prepared. (Journals written before this was so may hold one
that is prepared only; it is applied when the journal is read back.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from oncelog.errors import (
    BranchGone,
    ChunkReused,
    KeyInTransaction,
    OncelogError,
    ProducerInTransaction,
    StorageUnavailable,
    TopicDamaged,
    TopicNotFound,
    TransactionNotInProgress,
    from_problem,
)
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest
from oncelog_service.clock import Clock
from oncelog_service.group_commit import Writer
from oncelog_service.journal.ledger import Ledger, not_in_progress
from oncelog_service.journal.outcomes import Ended
from oncelog_service.journal.plan import Transaction
from oncelog_service.journal.records import Abort, Applied, ApplyCommit, Commit, PrepareCommit, TopicPart, TopicRef
from oncelog_service.log.journaled import Ready, Staged
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.storage.keys import group_producer_key
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.rows import GroupProducerRow, encode_record
from oncelog_service.topics import Topics

_log = logging.getLogger(__name__)

_NOT_ENDING = (
    ProducerInTransaction,
    KeyInTransaction,
    StorageUnavailable,
    TopicDamaged,
    BranchGone,
    ChunkReused,
    TransactionNotInProgress,
)
"""Refusals that change nothing: they may pass, or are about another request than the first."""

TIMED_OUT, ASKED, DUPLICATE = "timed_out", "asked", "duplicate"


class _Work(NamedTuple):
    """What a commit is to do on one topic."""

    log: TopicLog
    ready: Ready
    holders: Sequence[int]
    """Numbers of those that have staged here, in order."""
    staged: Sequence[Staged]
    """What they have."""
    chunks: int
    """How many these were when they were looked at."""

    def is_all_of(self, holders: Sequence[int]) -> bool:
        """Whether it is still everything that these have staged."""
        return list(self.holders) == list(holders) and self.chunks == _chunks(self.staged)


class Endings:
    """Of the transactions in one ledger. Works on the event loop that owns the writer and the topics."""

    def __init__(self, ledger: Ledger, writer: Writer, topics: Topics, clock: Clock) -> None:
        self._ledger = ledger
        self._writer = writer
        self._topics = topics
        self._clock = clock
        self._dropping: set[asyncio.Task[None]] = set()
        self.committed = 0
        """Atomic commits since the store was opened, duplicates not counted."""
        self.aborted = 0
        """Transactions aborted since then, duplicates included."""

    async def close(self) -> None:
        """Wait for what is being deleted."""
        if self._dropping:
            await asyncio.wait(self._dropping)

    async def decide(self, number: int, request: CommitRequest) -> AtomicOutcome:
        """Judge it; then either it is prepared and applied, or it is aborted. Raises the refusal."""
        transaction = self._ledger.find(number)
        if transaction.expires <= self._ledger.running.now_ms() and transaction.commit is None:
            await self.abort(number, TIMED_OUT, "it was not committed in time")
            return again(self._ledger.ended[transaction.id])
        with self._ledger.allotting() as allot:
            return await self._decide(transaction, request, allot)

    async def _decide(self, transaction: Transaction, request: CommitRequest, allot: Callable[[], int]) -> AtomicOutcome:
        number = transaction.number
        work: dict[TopicRef, _Work] = {}
        try:
            while True:
                taken = await self.taken(transaction)
                if taken is not None:
                    return taken
                original = self._ledger.original(transaction.group, request)
                if original is not None:
                    return await self._duplicate(number, request, original)
                branches = self._branches(transaction, request)
                holders = self._holders((number, *branches))
                self._ledger.check()
                if self._is_judged(holders, work):
                    break
                work = await self._work(holders, work, allot)
        except OncelogError as refusal:
            taken = await self.taken(transaction)  # then it has ended, and cannot be refused any more
            return await self.refuse(number, refusal) if taken is None else taken
        return await self._prepare(number, request, branches, work)

    async def taken(self, transaction: Transaction) -> AtomicOutcome | None:
        """What a commit is answered if another one has named this transaction as a branch meanwhile; None: none has, at this very
        moment. Raises TransactionNotInProgress: the other one is not finished."""
        if transaction.commit is not None or transaction.in_progress:
            return None
        ended = await self._ledger.find_ended(transaction.id)
        if ended is not None:
            return again(ended)
        await self._writer.settled()
        raise not_in_progress(transaction.id, "prepared", "another transaction names it as a branch")

    def _branches(self, transaction: Transaction, request: CommitRequest) -> tuple[int, ...]:
        """The numbers of the branches that it names. Raises BranchGone."""
        if transaction.commit is not None:
            return transaction.commit.branches
        numbers = []
        for name in request.branches:
            number = self._ledger.numbers.get(name)
            branch = None if number is None else self._ledger.find(number)
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

    def _holders(self, numbers: Sequence[int]) -> dict[TopicRef, list[int]]:
        """Topic → those of them that have staged there, in order. Raises StorageUnavailable."""
        holders: dict[TopicRef, list[int]] = {}
        for number in numbers:
            for topic in self._ledger.find(number).topics:
                holders.setdefault(topic, []).append(number)
        for topic in holders:
            if self._ledger.waits(topic):
                raise StorageUnavailable(
                    f"topic {topic.namespace}/{topic.topic} has not got yet what was committed before; nothing was committed now"
                )
        return holders

    def _is_judged(self, holders: dict[TopicRef, list[int]], work: dict[TopicRef, _Work]) -> bool:
        """Whether ``work`` is everything that they have staged, and can be copied at this very moment. Raises the refusal."""
        whole = holders.keys() == work.keys() and all(work[topic].is_all_of(each) for topic, each in holders.items())
        return whole and all(each.log.journaled.judged(each.ready) for each in work.values())

    async def _work(
        self, holders: dict[TopicRef, list[int]], before: dict[TopicRef, _Work], allot: Callable[[], int]
    ) -> dict[TopicRef, _Work]:
        """What is to be copied on each topic; waits for what it depends on. ``before``: what was found a moment ago."""
        work: dict[TopicRef, _Work] = {}
        for topic, holding in holders.items():
            log = await self.open(topic)
            known = before.get(topic)
            if known is None or known.log is not log or not known.is_all_of(holding):
                staged = [await log.journaled.open(each) for each in holding]
                known = _Work(log, Ready(staged, {}), holding, staged, _chunks(staged))
            work[topic] = known._replace(ready=await log.journaled.ready(known.ready.staged, allot))
        return work

    async def open(self, topic: TopicRef) -> TopicLog:
        """The log of this generation of the topic. Raises TopicNotFound."""
        log = await self._topics.open(topic.namespace, topic.topic, claim=True)
        if log.row.generation != topic.generation:
            raise TopicNotFound(f"topic {topic.namespace}/{topic.topic} was deleted and created again meanwhile")
        return log

    async def _prepare(
        self, number: int, request: CommitRequest, branches: tuple[int, ...], work: dict[TopicRef, _Work]
    ) -> AtomicOutcome:
        """From the verdict, which is right behind us, to the last record nothing awaits."""
        transaction = self._ledger.find(number)
        with self._writer.together():
            self._submit_prepared(transaction, request, branches, work)
            for topic, each in work.items():
                if each.ready.staged:
                    self.copy(number, topic, each.log, each.ready.staged)
            finished = self.finish(number)
        outcome = self._ledger.ended[transaction.id].outcome
        await finished
        return outcome

    def _submit_prepared(
        self, transaction: Transaction, request: CommitRequest, branches: tuple[int, ...], work: dict[TopicRef, _Work]
    ) -> None:
        number = transaction.number
        if transaction.commit is None:
            self._ledger.submit_record(
                Commit(number, branches, request.producer, request.sequence_id, request.incarnation, request.checksum)
            )
        batch = Batch()
        parts = tuple(
            TopicPart(topic, tuple(staged.number for staged in each.ready.staged))
            for topic, each in work.items()
            if each.ready.staged
        )
        self._ledger.append(batch, PrepareCommit(number, self._ledger.plan_of(number).next_order, parts))
        if request.producer is not None and request.sequence_id is not None:
            messages = sum(staged.group.messages for each in work.values() for staged in each.ready.staged)
            row = GroupProducerRow(request.sequence_id, request.incarnation, transaction.id, messages, request.checksum)
            self._ledger.producers[transaction.group, request.producer] = row
            batch.put(Table.GROUP_PRODUCER, group_producer_key(transaction.group, request.producer), encode_record(row))
        self._ledger.submit(batch)

    def copy(self, number: int, topic: TopicRef, log: TopicLog, staged: Iterable[Staged]) -> None:
        """Copy what was prepared for a topic into its log, and note it."""
        batch = Batch()
        copied = log.journaled.copy(batch, staged)
        first_id = "" if copied.first_id is None else copied.first_id.hex()
        self._ledger.append(batch, ApplyCommit(number, topic, copied.messages, copied.first_offset or 0, first_id))
        self._ledger.submit(batch, copied.on_written)

    def finish(self, number: int) -> asyncio.Future[None]:
        """Every topic has its messages: the transaction and its branches have ended."""
        transaction = self._ledger.find(number)
        assert transaction.commit is not None  # the plan sees to it
        assert transaction.prepared is not None
        batch = Batch()
        self._ledger.end(batch, transaction, self._ledger.outcome(transaction, "committed"))
        branches = [self._ledger.find(each) for each in transaction.commit.branches]
        for branch in branches:
            self._ledger.end(batch, branch, self._ledger.outcome(branch, "committed", of=transaction.id, messages=None))
        self._ledger.append(batch, Applied(number))
        copied = {(part.topic, each) for part in transaction.prepared.parts for each in part.branches}
        for each in (transaction, *branches):
            self._ledger.forget(each)
            self._drop_soon(each.number, [topic for topic in each.topics if (topic, each.number) not in copied])
        for topic, each_number in copied:
            self._let_go(topic, each_number)
        self.committed += 1
        return self._ledger.submit(batch)

    async def refuse(self, number: int, refusal: OncelogError) -> AtomicOutcome:
        """The commit cannot be. What the refusal depends on is synced before it is told."""
        if not isinstance(refusal, _NOT_ENDING) and refusal.definite:
            await self.abort(number, refusal.code, refusal.detail, refusal.to_problem())
        if not isinstance(refusal, StorageUnavailable):
            await self._writer.settled()
        raise refusal

    async def _duplicate(self, number: int, request: CommitRequest, original: GroupProducerRow) -> AtomicOutcome:
        """Its (producer, sequence id) has been committed before: nothing of it is stored, and that is its outcome."""
        same = original.sequence_id == request.sequence_id
        outcome = self._ledger.outcome(
            self._ledger.find(number),
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

    async def abort(self, number: int, reason: str, detail: str, problem: dict[str, object] | None = None) -> AtomicOutcome:
        """Nothing of it will be seen; durable when this returns."""
        outcome = self._ledger.outcome(self._ledger.find(number), "aborted", reason=reason, detail=detail)
        await self._end_without(number, reason, detail, problem, outcome)
        return outcome

    async def _end_without(
        self, number: int, reason: str, detail: str, problem: dict[str, object] | None, outcome: AtomicOutcome
    ) -> None:
        transaction = self._ledger.find(number)
        self._ledger.check()
        batch = Batch()
        with self._ledger.moving():
            self._ledger.end(batch, transaction, outcome, problem)
            self._ledger.append(batch, Abort(number, reason, detail, problem))
            self._ledger.forget(transaction)
            self._drop_soon(number, list(transaction.topics))
            self.aborted += 1
            done = self._ledger.submit(batch)
        await done

    def drop_left_over(self, staged: Iterable[tuple[TopicRef, int]]) -> None:
        """Delete what is staged by transactions that had ended when the service stopped, before it was deleted."""
        for topic, number in staged:
            self._drop_soon(number, [topic])

    def _drop_soon(self, number: int, topics: Sequence[TopicRef]) -> None:
        if topics:
            task = asyncio.ensure_future(self._drop(number, topics))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _drop(self, number: int, topics: Sequence[TopicRef]) -> None:
        for topic in topics:
            try:
                await self._writer.settled()  # what is being written would not be found
                await (await self.open(topic)).journaled.drop(number)
            except OncelogError as error:
                _log.info("what transaction %d staged on %s will be deleted by retention: %s", number, topic, error)
            except Exception:  # a bug: the other topics are not to wait for retention because of it
                _log.exception("what transaction %d staged on %s will be deleted by retention", number, topic)

    def _let_go(self, topic: TopicRef, number: int) -> None:
        log = self._topics.opened.get((topic.namespace, topic.topic))
        if log is not None:
            log.journaled.close(number)


def _chunks(staged: Iterable[Staged]) -> int:
    return sum(len(each.chunks) for each in staged)


def again(ended: Ended) -> AtomicOutcome:
    """The answer to a repeated commit. Raises the refusal that ended it."""
    outcome = ended.outcome
    if outcome.state != "aborted":
        return outcome
    if ended.problem is not None:
        raise from_problem(ended.problem, int(str(ended.problem["status"])))
    raise not_in_progress(outcome.id, outcome.state, outcome.detail or "it was aborted", outcome.reason)
