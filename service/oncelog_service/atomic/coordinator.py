"""Coordinates atomic commits over several topics.

Each call first asks what is known under the id that it names (ledger.py), and goes by the answer. One call at a time changes
that. Each topic keeps what is staged on it (append/atomic.py); endings.py takes the step that ends a transaction, for a call or
for upkeep.py, which ends what nobody ends; group_producers.py knows a repeat of a numbered commit.

What is under way besides – a commit that waits for its verdict – is known to its call alone, and gone with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from operator import attrgetter

from oncelog.errors import (
    InvalidRequest,
    OncelogError,
    StorageFailed,
    TopicNotFound,
    TransactionalMismatch,
    TransactionExists,
    TransactionNotFound,
)
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog_service.access.grants import EVERYBODY, Principal, Right
from oncelog_service.access.owners import may_touch
from oncelog_service.atomic.checks import check_begin, check_commit, check_stage
from oncelog_service.atomic.endings import ASKED, Asked, Brought, Endings, MayAppear, again, anything
from oncelog_service.atomic.group_producers import GroupProducers
from oncelog_service.atomic.ledger import Ledger, check_assignable, not_in_progress, refused, told
from oncelog_service.atomic.limits import AtomicLimits
from oncelog_service.atomic.outcomes import Ended, fingerprint, number_of
from oncelog_service.atomic.plan import Transaction
from oncelog_service.atomic.records import Enlist, TopicRef
from oncelog_service.atomic.recovery import Found, find
from oncelog_service.atomic.upkeep import Upkeep
from oncelog_service.bounds.holding import check_transactions
from oncelog_service.bounds.slices import slices
from oncelog_service.clock import Clock
from oncelog_service.group_commit import Writer
from oncelog_service.log.admission import Admission
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.reading import read
from oncelog_service.storage.port import Batch, Store, StoreError, Table
from oncelog_service.topics.topics import Topics

_DIGESTED_AT_ONCE = 500
"""Messages of a commit, 1 ms; of more the fingerprint is made on a thread."""
_LISTED_AT_ONCE = 50
"""Looked at in one step of a list."""


class AtomicCommits:
    """Begins, commits and aborts the transactions of atomic commits. Belongs to one opening of the store and one event loop."""

    def __init__(self, store: Store, writer: Writer, topics: Topics, clock: Clock, limits: AtomicLimits, found: Found) -> None:
        """``found``: what is on disk; see :meth:`recover`."""
        self._store = store
        self._writer = writer
        self._topics = topics
        self._limits = limits
        self.ledger = Ledger(store, writer, clock, limits, found)
        self.producers = GroupProducers(found.producers, self.ledger, writer, topics, limits.max_names_of_one)
        self.endings = Endings(self.ledger, self.producers, writer, topics)
        self.upkeep = Upkeep(self.ledger, self.endings, store, writer, clock)

    @classmethod
    async def recover(cls, store: Store, writer: Writer, topics: Topics, clock: Clock, limits: AtomicLimits) -> AtomicCommits:
        """Reads the journal, and gives up what cannot be committed any more. Raises StoreError, StoreDamaged."""
        found = await asyncio.to_thread(find, store, limits.partitions)
        atomic = cls(store, writer, topics, clock, limits, found)
        left_over = [each for each in found.staged if not atomic.ledger.is_open(each[1])]
        await atomic.upkeep.once()
        try:
            await writer.drained()
        except StorageFailed as failure:
            raise StoreError(failure.detail) from failure
        atomic.endings.drop_left_over(left_over)
        return atomic

    # --- begin

    async def begin(
        self,
        id: str | None,  # noqa: A002
        group: str,
        timeout_ms: int | None,
        of: str | None,
        principal: Principal = EVERYBODY,
    ) -> AtomicOutcome:
        """Begins a transaction, or a branch ``of`` another one; the same id again begins nothing twice.

        Raises:
            NotAllowed: that, or the one it is for, belongs to another principal.
            InvalidRequest; TransactionExists: it was begun differently; TransactionNotInProgress: the one it is for has ended.
            QuotaExceeded: its principal has as many in progress as one may. DiskFull.
        """
        check_begin(id, timeout_ms, of, self._limits)
        async with nullcontext() if id is None else self.ledger.changing(id):
            found, done = None if id is None else await self.ledger.find(id, principal.whose()), None
            if found is None:
                await self._check_parent(of, group, principal)
                found, done = self._begin_now(id, group, timeout_ms, of, principal.owner)
            outcome = told(found)  # now: while this waits, a commit may name it as a branch, which ends it
            if outcome.group != group or of not in (None, outcome.of):
                raise _exists(outcome.id, outcome.group)
            await (done or self._writer.drained())
            return outcome

    def _begin_now(
        self,
        id: str | None,  # noqa: A002
        group: str,
        timeout_ms: int | None,
        of: str | None,
        owner: str | None,
    ) -> tuple[Transaction, asyncio.Future[None]]:
        check_assignable(id)
        check_transactions(owner, self.ledger.in_progress.of(owner), self._limits.max_of_one, "atomic commits")
        self._writer.check()
        self._writer.room.admit()
        batch = Batch()
        with self._writer.moving():
            return self.ledger.begin(batch, id, group, timeout_ms, of, owner), self._writer.submit(batch)

    async def _check_parent(self, of: str | None, group: str, principal: Principal) -> None:
        """Raises InvalidRequest: its commit cannot name one of another group; NotAllowed, TransactionNotInProgress."""
        found = None if of is None else await self.ledger.find(of, principal.whose())
        if isinstance(found, Ended):
            raise not_in_progress(found.outcome.id, found.outcome.state, "nothing can be staged for it")
        if found is not None and found.group != group:
            raise InvalidRequest(f"transaction {of!r} is of group {found.group!r}: a branch of it must be, too")

    # --- stage

    async def stage(
        self,
        id: str,  # noqa: A002
        namespace: str,
        topic: str,
        chunk: int,
        request: PublishRequest,
        principal: Principal = EVERYBODY,
        may: MayAppear = anything,
    ) -> None:
        """Stages messages on a topic, as this chunk of the transaction. The same chunk again is stored once.

        Raises:
            NotAllowed: the transaction belongs to another principal; or ``may`` raised it, which is asked last.
            InvalidRequest, ExpectationsNotChecked, TransactionalMismatch, ChunkReused, ProducerFenced, SequenceGap,
            TransactionNotFound, TransactionNotInProgress, TopicNotFound: definite, nothing is staged.
            StorageUnavailable, DiskFull, QuotaExceeded: definite. StorageFailed: not definite; send the same chunk again.
        """
        check_stage(chunk, request, self._limits)
        log = await self._topics.logs.open(namespace, topic, claim=True)
        log.check_staged(request)
        found, at = await self.ledger.find(id, principal.whose()), _ref(log, namespace, topic)
        if not isinstance(found, Transaction):
            raise refused(id, found)
        staged = await log.atomic.open(found.number) if at in found.topics else log.atomic.begun(found.number)
        if not self.ledger.is_open(found.number):
            log.atomic.close(found.number)  # it ended while that was read
            raise refused(id, await self.ledger.find(id, principal.whose()))
        try:
            new = log.atomic.is_new(staged, chunk, request)
        except OncelogError:
            await self._writer.drained()  # the refusal may depend on what is being written
            raise
        if not new:
            await self._writer.drained()
            return
        self._writer.check()
        may(namespace, topic, [request.producer])
        batch = Batch()
        producers = [request.producer] if request.producer else []  # it is counted once it is committed
        with Admission(log.topic, len(request.payloads), request.size, producers, stamps=staged.group.stamps) as admission:
            admission.take(log.atomic.bytes_with(staged, request))
            if at not in found.topics:
                self.ledger.append(batch, Enlist(staged.number, at))
            log.atomic.put(batch, staged, chunk, request)
            done = self._writer.submit(batch)
        await done

    # --- commit

    async def commit(
        self,
        id: str,  # noqa: A002
        request: CommitRequest,
        principal: Principal = EVERYBODY,
        may: MayAppear = anything,
    ) -> AtomicOutcome:
        """Commits what was staged under the id, what the request carries, and the branches that it names: all or nothing.

        The answer comes when the messages are there. The same again under the same id answers the same; so does, for a commit
        with a producer and sequence id, the same of those under another id.

        Raises:
            NotAllowed: it, a branch or the newest commit under the producer belongs to another principal; nothing was committed,
                and nobody is told what became of that. Or ``may`` raised it: it is in progress as before, or not begun.
            TransactionNotFound, TransactionExists, InvalidRequest: nothing was committed.
            TransactionNotInProgress: it was aborted, or timed out; or it is committed, and this request carries messages,
                branches or a number that were not. A refusal that ended it is raised again as it was:
            OffsetMismatch, ProducerFenced, SequenceGap, SequenceReused, TopicNotFound, TransactionalMismatch, …
            BranchGone, ProducerInTransaction, KeyInTransaction, TopicDamaged, StorageUnavailable, DiskFull,
                QuotaExceeded: it is in progress as before, or not begun.
            StorageFailed: not definite; ask for the outcome.
        """
        check_commit(id, request, self._limits)
        if sum(len(part.request.payloads) for part in request.parts) > _DIGESTED_AT_ONCE:
            request.fingerprint = await asyncio.to_thread(fingerprint, request)
        async with self.ledger.changing(id):
            found = await self.ledger.find(id, principal.whose())
            group = request.group if found is None or request.group is not None else found.group
            if group is None:
                raise TransactionNotFound(
                    f"no transaction {id!r} was begun; name its group to begin it with the commit", transaction=id
                )
            if found is not None and group != found.group:
                raise _exists(id, found.group)
            if isinstance(found, Ended):
                return again(found, request)
            if found is not None and found.of is not None:
                raise InvalidRequest(f"{id!r} is a branch of {found.of!r}: commit that, and name this one")
            if found is None and request.producer is not None:
                await self.producers.check(group, request.producer, principal.whose())  # before anything is begun
            brought, refusal = await self._brought(request.parts)
            asked = Asked(request, brought, principal.whose(), may)
            if found is None:
                check_assignable(id)
                committed = None if refusal else await self.endings.at_once(id, group, principal.owner, asked)
                if committed is not None:
                    return committed
                found, _ = self._begin_now(id, group, None, None, principal.owner)
            return await self.endings.decide(found, asked, refusal)

    async def _brought(self, parts: Sequence[Part]) -> tuple[list[Brought], OncelogError | None]:
        """Returns what a commit brings; nothing, and the refusal, where it names a topic that does not take it.

        That refuses the commit for good: else a copy of it that comes late, when there is such a topic, would commit what its
        client was told is refused."""
        brought: list[Brought] = []
        for part in parts:
            try:
                log = await self._topics.logs.open(part.namespace, part.topic, claim=True)
                log.check_staged(part.request)
            except (TopicNotFound, TransactionalMismatch) as refusal:
                return [], refusal
            brought.append(Brought(_ref(log, part.namespace, part.topic), log, part.request))
        return brought, None

    # --- abort

    async def abort(self, id: str, principal: Principal = EVERYBODY) -> AtomicOutcome:  # noqa: A002
        """Aborts a transaction; idempotent. Raises TransactionNotInProgress, TransactionNotFound; NotAllowed: it is another's."""
        async with self.ledger.changing(id):
            found = await self.ledger.find(id, principal.whose(Right.OPERATE), Right.OPERATE)
            if isinstance(found, Transaction):
                return await self.endings.abort(found, ASKED, "it was aborted")
            if found is not None and found.outcome.state == "aborted":
                return found.outcome
            raise refused(id, found)

    async def free(self, id: str) -> None:  # noqa: A002
        """Frees an id that somebody has taken: aborts the transaction if it is in progress, and forgets what became of it.

        Raises TransactionNotFound.
        """
        async with self.ledger.changing(id), self.upkeep.forgetting:
            found = await self.ledger.find(id)
            if found is None:
                raise refused(id, None)
            if isinstance(found, Transaction):
                await self.endings.abort(found, ASKED, "it was aborted for its id to be free")
            row = await read(number_of, self._store, id)
            self._writer.check()
            batch = Batch()
            self.ledger.forget(batch, id, row)
            await self._writer.submit(batch)

    # --- ask

    async def show(self, id: str, principal: Principal = EVERYBODY) -> AtomicOutcome:  # noqa: A002
        """Returns what became of a transaction, once that is durable. Raises TransactionNotFound; NotAllowed: it is another's."""
        found = await self.ledger.find(id, principal.whose(Right.OPERATE), Right.OPERATE)
        if found is None:
            raise refused(id, None)
        outcome = told(found)
        if isinstance(found, Transaction):
            await self._writer.drained()
        return outcome

    async def list(
        self, group: str | None, after: str | None, limit: int, principal: Principal = EVERYBODY
    ) -> Sequence[AtomicOutcome]:
        """Lists transactions in progress, by rising number, without those of others; ``after``: behind the one of this id."""
        by, behind, found = principal.whose(Right.OPERATE), 0, list[AtomicOutcome]()
        if after is not None:
            known = self.ledger.open.get(after)
            data = b"" if known else await read(self._store.get, Table.ATOMIC_ID, after.encode("ascii", "replace"))
            behind = known.number if known else int.from_bytes(data or b"", "big")
        listed = sorted((each for each in self.ledger.open.values() if each.number > behind), key=attrgetter("number"))
        for at, part in enumerate(slices(listed, _LISTED_AT_ONCE)):
            if at:
                await asyncio.sleep(0)
            shown = (each for each in part if self.ledger.is_open(each.number))
            found += [told(each) for each in shown if group in (None, each.group) and may_touch(each.owner, by)]
            if len(found) >= limit:
                break
        await self._writer.drained()
        return found[:limit]

    # --- its life

    async def run(self) -> None:
        """Gives up what is out of time or was left out, until cancelled."""
        await self.upkeep.run()

    async def close(self) -> None:
        """Waits for what is being deleted."""
        await self.endings.close()

    def release(self) -> None:
        """Does nothing: no call waits here for long."""


def _ref(log: TopicLog, namespace: str, topic: str) -> TopicRef:
    return TopicRef(namespace, topic, log.row.generation)


def _exists(id: str, group: str) -> TransactionExists:  # noqa: A002
    return TransactionExists(f"transaction {id!r} was begun differently, in group {group!r}", transaction=id, group=group)
