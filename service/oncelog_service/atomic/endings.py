"""Ends the transactions of atomic commits: each is judged and committed on all its topics, or aborted.

From the verdict to the hand-over nothing awaits, and all of a commit is one write: the rows that make its messages appear on
every topic, the record of the journal, the outcome. So a crash leaves all of a commit, or nothing of it, and two commits appear
in the same order on every topic that they share.

What a commit brings itself is held in memory alone: whatever becomes of the transaction meanwhile, these messages appear with
this very commit or never, and nothing of them is on disk before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

from oncelog.errors import (
    BranchGone,
    DiskFull,
    KeyInTransaction,
    NotAllowed,
    OncelogError,
    ProducerInTransaction,
    QuotaExceeded,
    StorageUnavailable,
    TopicDamaged,
    TopicNotFound,
    TransactionNotInProgress,
    Unauthorized,
    from_problem,
)
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest, PublishRequest
from oncelog_service.access.owners import check_owner, may_touch
from oncelog_service.atomic.group_producers import GroupProducers
from oncelog_service.atomic.ledger import Ledger, not_in_progress, outcome, what
from oncelog_service.atomic.outcomes import Ended, fingerprint
from oncelog_service.atomic.plan import Transaction
from oncelog_service.atomic.records import Abort, Commit, TopicRef
from oncelog_service.atomic.repeats import Newest, gone
from oncelog_service.group_commit import Writer
from oncelog_service.log.admission import Admission
from oncelog_service.log.append.atomic import Copied, Ready, Staged
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.storage.port import Batch
from oncelog_service.topics.topics import Topics

_log = logging.getLogger(__name__)

_NOT_ENDING = (
    ProducerInTransaction,
    KeyInTransaction,
    StorageUnavailable,
    DiskFull,
    QuotaExceeded,
    TopicDamaged,
    BranchGone,
    NotAllowed,
    Unauthorized,
    TransactionNotInProgress,
)
"""Refusals that change nothing: they may pass, or are about another request than the first."""

_AT_ONCE = 50
"""Branches of topics that are looked at in one step of making a commit ready, 2 ms; those of one topic are, together."""
TIMED_OUT, ASKED = "timed_out", "asked"
_BROUGHT = 0
"""Stands where a transaction's number does, for what a commit brings itself; no transaction has it."""


MayAppear = Callable[[str, str, Iterable[str | None]], None]
"""Raises NotAllowed, Unauthorized unless who commits may, at this moment, have messages of these producers appear on the topic of
a namespace; None among them: of no producer. That was so when they were staged; a grant may have been revoked since."""


def anything(namespace: str, topic: str, producers: Iterable[str | None]) -> None:
    """Lets everything appear: it is no client that asks."""


class Brought(NamedTuple):
    """Messages that a commit itself brings to one topic."""

    topic: TopicRef
    log: TopicLog
    request: PublishRequest


class Asked(NamedTuple):
    """A commit, as it is asked for."""

    request: CommitRequest
    brought: Sequence[Brought]
    by: str | None
    """Whose the branches must be that it names, and the producer; None: whoever's."""
    may: MayAppear
    """Asked before anything is said of a topic, and in the step that commits."""


class _Work(NamedTuple):
    """The part of a commit that one topic has in it."""

    log: TopicLog
    ready: Ready
    holders: Sequence[int]
    """Numbers under which something is staged here, in order."""
    staged: Sequence[Staged]
    """What that is."""
    chunks: int
    """How many these were when they were looked at."""

    def is_all_of(self, holders: Sequence[int]) -> bool:
        """Returns whether it is still everything that these have staged."""
        return list(self.holders) == list(holders) and self.chunks == _chunks(self.staged)


class Endings:
    """Ends the transactions in one ledger. Belongs to the event loop that owns the writer and the topics."""

    def __init__(self, ledger: Ledger, producers: GroupProducers, writer: Writer, topics: Topics) -> None:
        self._ledger = ledger
        self._producers = producers
        self._writer = writer
        self._topics = topics
        self._dropping: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits for what is being deleted."""
        if self._dropping:
            await asyncio.wait(self._dropping)

    # --- commit

    async def decide(self, transaction: Transaction, asked: Asked, refusal: OncelogError | None = None) -> AtomicOutcome:
        """Judges a commit; then it is committed on every topic, or nothing of it is on any. Raises the refusal.

        ``refusal``: known before, of what it brings; it still may be a duplicate, or have ended.
        """
        request, brought, by, may = asked
        if self._ledger.is_open(transaction.number) and transaction.expires <= self._ledger.running.now_ms():
            await self.abort(transaction, TIMED_OUT, "it was not committed in time")
            return again(self._ledger.ended[transaction.id](), request)
        work: dict[TopicRef, _Work] = {}
        carried = {each.topic: each for each in brought}
        try:
            while True:
                overtaken = await self._overtaken(transaction, request)
                if overtaken is not None:
                    return overtaken
                original = self._producers.original(transaction.group, request, by)
                if original is not None:
                    return await self._duplicate(transaction, request, original, brought)
                if refusal is not None:
                    raise refusal
                branches = self._branches(transaction, request, by)
                holders = _holders(transaction, carried, branches)
                whole = holders.keys() == work.keys() and all(work[topic].is_all_of(each) for topic, each in holders.items())
                for topic in holders:
                    may(topic.namespace, topic.topic, work[topic].ready.senders if whole else ())
                self._writer.check()
                # From here to the hand-over in `_commit` nothing awaits: an await would let another publish take the offsets, or
                # another commit the branches, that this verdict is about.
                if whole and all(each.log.atomic.judged(each.ready) for each in work.values()):
                    self._producers.check_name(transaction.group, request.producer, transaction.owner)
                    self._admit(work)
                    break
                work = await self._work(holders, work, carried)
        except OncelogError as error:
            # Another commit may have named it while `_work` waited. Then it has ended, and must not be ended again by a refusal.
            overtaken = await self._overtaken(transaction, request)
            return await self._refuse(transaction, error, brought) if overtaken is None else overtaken
        return await self._commit(lambda _: transaction, request, branches, work)

    async def at_once(self, id: str, group: str, owner: str | None, asked: Asked) -> AtomicOutcome | None:  # noqa: A002
        """Begins a transaction and commits it in one write, if it brings all of its messages and nothing stands in its way; None:
        that cannot be said without waiting, and nothing was done."""
        request, brought, by, may = asked
        if request.branches:
            return None
        work: dict[TopicRef, _Work] = {}
        try:
            if self._producers.original(group, request, by) is not None:
                return None
            self._writer.check()
            for each in brought:
                staged = each.log.atomic.brought(each.request)
                ready = each.log.atomic.judged_at_once(staged)
                if ready is None:
                    return None
                work[each.topic] = _Work(each.log, ready, [_BROUGHT], [staged], 1)
        except OncelogError:
            return None  # it is to begin, for its refusal to be known
        self._producers.check_name(group, request.producer, owner)
        for at, of in work.items():
            may(at.namespace, at.topic, of.ready.senders)
        self._admit(work)
        return await self._commit(partial(self._ledger.begin, id=id, group=group, owner=owner), request, (), work)

    def _admit(self, work: Mapping[TopicRef, _Work]) -> None:
        """Takes in what a commit writes. Raises QuotaExceeded, of its topics, or DiskFull; then nothing is counted."""
        Admission.together([of.log.atomic.admission(of.ready) for of in work.values()], self._writer)

    async def _overtaken(self, transaction: Transaction, request: CommitRequest) -> AtomicOutcome | None:
        """Answers a commit whose transaction another one has named as a branch meanwhile; None: none has, at this very moment.

        Raises TransactionNotInProgress: it carries what the other one did not.
        """
        if self._ledger.is_open(transaction.number):
            return None
        ended = await self._ledger.find(transaction.id)
        assert isinstance(ended, Ended)  # nobody frees the id meanwhile: this call has its lock
        return again(ended, request)

    def _branches(self, transaction: Transaction, request: CommitRequest, by: str | None) -> list[Transaction]:
        """Returns the branches that it names. Raises BranchGone; NotAllowed: one is not that of ``by``.

        Its topics are those that the owner was allowed to write to when it staged there; what may appear is asked when all that
        is to be committed is known.
        """
        found = []
        for name in request.branches:
            branch = self._ledger.open.get(name)
            if branch is not None and not may_touch(branch.owner, by):
                check_owner(branch.owner, by, what(name))
            if branch is None or branch.group != transaction.group or branch.of not in (None, transaction.id):
                raise BranchGone(
                    f"branch {name!r} cannot become part of {transaction.id!r}: there is none that is in progress in group "
                    f"{transaction.group!r} for it; stage its messages again",
                    transaction=transaction.id,
                    branch=name,
                )
            found.append(branch)
        return found

    async def _work(
        self,
        holders: dict[TopicRef, list[int]],
        before: dict[TopicRef, _Work],
        carried: Mapping[TopicRef, Brought],
    ) -> dict[TopicRef, _Work]:
        """Returns what is to be copied on each topic, having waited for what it depends on.

        ``before``: what was found a moment ago. What is ``carried`` is judged here and not sooner: it may be a duplicate.
        """
        work: dict[TopicRef, _Work] = {}
        looked_at = 0
        for topic, holding in holders.items():
            log = await self._open(topic)
            known = before.get(topic)
            if known is not None and known.log is log and known.is_all_of(holding):
                staged = known.staged
            else:
                staged = [
                    log.atomic.brought(carried[topic].request) if each == _BROUGHT else await self._staged(log, each)
                    for each in holding
                ]
                missing = [number for number, each in zip(holding, staged, strict=True) if not each.chunks]
                if missing and not any(map(self._ledger.is_open, missing)):
                    continue  # they ended while that was read: the next look at them says so
                if missing:
                    raise TopicDamaged(f"what was staged on {topic.namespace}/{topic.topic} is missing; nothing was committed")
            chunks = _chunks(staged)  # before it waits: what is staged meanwhile is to be seen
            work[topic] = _Work(log, await log.atomic.ready(staged), holding, staged, chunks)
            looked_at += len(holding)
            if looked_at >= _AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
        return work

    async def _staged(self, log: TopicLog, number: int) -> Staged:
        staged = await log.atomic.open(number)
        if not self._ledger.is_open(number):
            log.atomic.close(number)  # it ended while that was read
        return staged

    async def _open(self, topic: TopicRef) -> TopicLog:
        """Returns the log of this generation of the topic. Raises TopicNotFound: it was deleted since."""
        with suppress(TopicNotFound):
            log = await self._topics.logs.open(topic.namespace, topic.topic, claim=True)
            if log.row.generation == topic.generation:
                return log
        raise TopicNotFound(
            f"topic {topic.namespace}/{topic.topic} was deleted after messages of this commit were taken for it, and they are "
            "gone with it; nothing was committed: publish them again under another id, and where there is no such topic now, "
            "create it first"
        )

    async def _commit(
        self,
        begin: Callable[[Batch], Transaction],
        request: CommitRequest,
        branches: Sequence[Transaction],
        work: dict[TopicRef, _Work],
    ) -> AtomicOutcome:
        """Commits right behind the verdict: until the one write of all of it is handed over nothing awaits."""
        batch, asked, written = Batch(), fingerprint(request), list[Callable[[], None]]()
        with self._writer.moving():
            transaction = begin(batch)
            copied = {topic: each.log.atomic.copy(batch, each.ready.staged, written) for topic, each in work.items()}
            messages = sum(each.messages for each in copied.values())
            said = {"branches": [each.id for each in branches], "messages": messages, **_numbered(request)}
            ended = cache(lambda: Ended(outcome(transaction, "committed", copied, **said), asked=asked))
            self._ledger.append(batch, Commit(transaction.number, tuple(each.number for each in branches)))
            parts = [(branch, partial(_as_branch, branch, transaction.id)) for branch in branches]
            self._ledger.end(batch, [(transaction, ended), *parts])
            self._producers.note(batch, transaction, request, copied, messages)
            self._let_go((transaction, *branches), work)
            self._writer.counts.atomic_committed += 1
            done = self._writer.submit(batch, partial(_all_written, written))
        await done
        return ended().outcome

    def _let_go(self, ended: Sequence[Transaction], work: dict[TopicRef, _Work]) -> None:
        """Lets go of what was copied, and drops what else they have staged."""
        copied = {(topic, staged.number): None for topic, each in work.items() for staged in each.ready.staged}
        for topic, number in copied:
            work[topic].log.atomic.close(number)
        for transaction in ended:
            self._drop_soon(
                transaction.number, [topic for topic in transaction.topics if (topic, transaction.number) not in copied]
            )

    # --- without

    async def _refuse(self, transaction: Transaction, refusal: OncelogError, brought: Sequence[Brought]) -> AtomicOutcome:
        """Raises the refusal of a commit, once what it depends on is synced."""
        if not isinstance(refusal, _NOT_ENDING) and refusal.definite:
            await self.abort(transaction, refusal.code, refusal.detail, refusal.to_problem(), brought)
        if not isinstance(refusal, StorageUnavailable):
            await self._writer.drained()
        raise refusal

    async def _duplicate(
        self, transaction: Transaction, request: CommitRequest, newest: Newest, brought: Sequence[Brought]
    ) -> AtomicOutcome:
        """Ends a commit whose (producer, sequence id) has been committed before: nothing of it is stored.

        Raises CommitGone: what was committed is gone with a topic that was made anew.
        """
        original = newest.row
        same = original.sequence_id == request.sequence_id
        went = await self._producers.went(newest, itself=same and original.messages > 0)
        concerned, directory = _concerned(transaction, brought), self._topics.directory
        branches = filter(None, map(self._ledger.open.get, request.branches))
        there = [topic for each in branches for topic in each.topics]
        names = dict.fromkeys(topic[:2] for topic in (*there, *concerned))
        lost = await gone(request, transaction.group, original, went, names, directory.generation, directory.incarnation)
        overtaken = await self._overtaken(transaction, request)
        if overtaken is not None:
            return overtaken
        if lost is not None:
            raise lost
        if same and went and original.messages:
            concerned = dict.fromkeys(TopicRef(*each[:3]) for each in went)
        became = outcome(
            transaction,
            "duplicate",
            concerned,
            original=original.transaction if same else None,
            messages=original.messages if same else None,
            **{**_numbered(request), "checksum": original.checksum if same else None},
        )
        await self._end_without(transaction, Ended(became, asked=fingerprint(request)))
        return became

    async def abort(
        self,
        transaction: Transaction,
        reason: str,
        detail: str,
        problem: dict[str, object] | None = None,
        brought: Sequence[Brought] = (),
    ) -> AtomicOutcome:
        """Aborts a transaction; durable when this returns."""
        became = outcome(transaction, "aborted", _concerned(transaction, brought), reason=reason, detail=detail)
        await self._end_without(transaction, Ended(became, problem))
        return became

    async def _end_without(self, transaction: Transaction, ended: Ended) -> None:
        self._writer.check()
        batch = Batch()
        with self._writer.moving():
            self._ledger.append(batch, Abort(transaction.number))
            self._ledger.end(batch, [(transaction, lambda: ended)])
            self._drop_soon(transaction.number, list(transaction.topics))
            self._writer.counts.atomic_aborted += 1
            done = self._writer.submit(batch)
        await done

    # --- what will never be seen

    def drop_left_over(self, staged: Iterable[tuple[TopicRef, int]]) -> None:
        """Deletes what is left of transactions that had ended when the service stopped."""
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
                await self._writer.drained()  # what is being written would not be found
                await (await self._open(topic)).atomic.drop(number)
            except OncelogError as error:
                _log.info("what transaction %d staged on %s will be deleted by retention: %s", number, topic, error)
            except Exception:  # a bug: the other topics are not to wait for retention because of it
                _log.exception("what transaction %d staged on %s will be deleted by retention", number, topic)


def _holders(transaction: Transaction, carried: Iterable[TopicRef], branches: Sequence[Transaction]) -> dict[TopicRef, list[int]]:
    """Returns topic → the numbers under which the commit's messages are staged there, in order."""
    holders: dict[TopicRef, list[int]] = {topic: [transaction.number] for topic in transaction.topics}
    for topic in carried:
        holders.setdefault(topic, []).append(_BROUGHT)
    for branch in branches:
        for topic in branch.topics:
            holders.setdefault(topic, []).append(branch.number)
    return holders


def _concerned(transaction: Transaction, brought: Sequence[Brought]) -> dict[TopicRef, Copied | None]:
    """Returns the topics that it would have put messages on."""
    return dict.fromkeys((*transaction.topics, *(each.topic for each in brought)))


def _numbered(request: CommitRequest) -> dict[str, object]:
    """Returns what its outcome repeats of a commit; not the commit, which has its messages."""
    return {name: getattr(request, name) for name in ("producer", "sequence_id", "incarnation", "checksum")}


def _as_branch(transaction: Transaction, of: str) -> Ended:
    """Returns what became of a branch that another one's commit named."""
    return Ended(outcome(transaction, "committed", of=of))


def _chunks(staged: Iterable[Staged]) -> int:
    return sum(len(each.chunks) for each in staged)


def _all_written(written: Iterable[Callable[[], None]]) -> None:
    for each in written:
        each()


def again(ended: Ended, request: CommitRequest) -> AtomicOutcome:
    """Answers a commit whose transaction has ended: with its outcome, if that is an answer to this very request.

    Raises the refusal that ended it. TransactionNotInProgress: the request carries what did not end with it.
    """
    became = ended.outcome
    if became.state == "aborted":
        if ended.problem is not None:
            raise from_problem(ended.problem, int(str(ended.problem["status"])))
        raise not_in_progress(became.id, became.state, became.detail or "it was aborted", became.reason)
    asked = fingerprint(request)
    if asked is not None and asked != ended.asked:
        how = "by another commit" if ended.asked is None else "with other messages, branches or numbers"
        raise not_in_progress(became.id, became.state, f"{how}; nothing that this request carries was stored")
    return became
