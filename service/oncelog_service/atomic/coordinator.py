"""Coordinates atomic commits over several topics.

The journal says what became of each transaction, and each topic keeps what is staged on it (append/atomic.py). The plan
(plan.py) folds the journal; endings.py takes the step that ends a transaction. A commit is, in one step of the event loop: judge
it on every topic, then hand to the writer *one* batch with the rows that make its messages appear on all of them, the record and
the outcome. So a crash leaves all of it or nothing, and two commits appear in the same order on every topic that they share.

On disk a transaction is in progress or has ended; so it is in memory, which moves when a batch is handed over. What is under way
besides – a commit that waits for its verdict – is known to the call alone, and gone with it.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from oncelog.errors import (
    GroupProducerNotFound,
    InvalidRequest,
    OncelogError,
    StorageFailed,
    TopicNotFound,
    TransactionalMismatch,
    TransactionExists,
    TransactionNotFound,
)
from oncelog.wire.models import AtomicOutcome, GroupProducer, GroupTopic
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog_service.access.grants import EVERYBODY, Principal, Right
from oncelog_service.access.owners import check_owner, may_touch
from oncelog_service.atomic.checks import check_begin, check_commit, check_stage
from oncelog_service.atomic.endings import ASKED, Brought, Endings, MayAppear, again, anything
from oncelog_service.atomic.ledger import Ledger, check_assignable, fenced, not_in_progress, producer_of, what
from oncelog_service.atomic.limits import AtomicLimits
from oncelog_service.atomic.outcomes import fingerprint, forgettable, number_of
from oncelog_service.atomic.plan import GiveUp, Transaction
from oncelog_service.atomic.records import Enlist, TopicRef
from oncelog_service.atomic.recovery import Found, find
from oncelog_service.atomic.repeats import Written
from oncelog_service.bounds.holding import check_transactions
from oncelog_service.bounds.slices import slices
from oncelog_service.clock import Clock
from oncelog_service.group_commit import Writer
from oncelog_service.log.admission import Admission
from oncelog_service.log.append.atomic import Staged
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.reading import read
from oncelog_service.storage.incarnation import raised
from oncelog_service.storage.keys import group_producer_key, number_key
from oncelog_service.storage.port import Batch, Store, StoreError, Table
from oncelog_service.topics.topics import Topics

_log = logging.getLogger(__name__)

_ROUND_SECONDS = 0.2
_DIGESTED_AT_ONCE = 500
"""Messages of a commit, 1 ms; of more the fingerprint is made on a thread."""
_LISTED_AT_ONCE = 50
"""Looked at in one step of a list."""
_LOOKED_AT = 1_000
"""Outcomes in one step of forgetting them."""


class AtomicCommits:
    """Begins, commits and aborts the transactions of atomic commits. Belongs to one opening of the store and one event loop."""

    def __init__(self, store: Store, writer: Writer, topics: Topics, clock: Clock, limits: AtomicLimits, found: Found) -> None:
        """``found``: what is on disk; see :meth:`recover`."""
        self._store = store
        self._writer = writer
        self._topics = topics
        self._clock = clock
        self._limits = limits
        self.ledger = Ledger(store, writer, clock, limits, found)
        self.endings = Endings(self.ledger, writer, topics)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # gone with its last user
        self._stepping = asyncio.Lock()
        self._forgetting = asyncio.Lock()
        """Held by whoever forgets an outcome with its id: what is found to be old is not to be another one's by then."""
        self._looked = b""
        """Key of the outcome at which forgetting goes on."""

    @classmethod
    async def recover(cls, store: Store, writer: Writer, topics: Topics, clock: Clock, limits: AtomicLimits) -> AtomicCommits:
        """Reads the journal, and gives up what cannot be committed any more. Raises StoreError, StoreDamaged."""
        found = await asyncio.to_thread(find, store, limits.partitions)
        atomic = cls(store, writer, topics, clock, limits, found)
        left_over = [each for each in found.staged if not atomic.ledger.is_open(each[1])]
        await atomic.once()
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
        if id is None:
            await self._check_parent(of, group, principal)
            begun, written = self._begin_now(None, group, timeout_ms, of, principal.owner)
            outcome = self.ledger.status(begun)
            await written
            return outcome
        async with self._changing(id):
            ended = await self.ledger.find_ended(id)
            if ended is not None:
                check_owner(ended.outcome.owner, principal.whose(), what(id))
                _check_same(ended.outcome, group, of)
                return ended.outcome
            number, done = self.ledger.numbers.get(id), None
            if number is None:
                await self._check_parent(of, group, principal)
                number, done = self._begin_now(id, group, timeout_ms, of, principal.owner)
            else:
                await self._check_owner(number, principal)
            outcome = self.ledger.status(number)  # now: while this waits, a commit may name it as a branch, which ends it
            _check_same(outcome, group, of)
            await (self._writer.drained() if done is None else done)
            return outcome

    def _begin_now(
        self,
        id: str | None,  # noqa: A002
        group: str,
        timeout_ms: int | None,
        of: str | None,
        owner: str | None,
    ) -> tuple[int, asyncio.Future[None]]:
        check_assignable(id)
        check_transactions(owner, self.ledger.in_progress.of(owner), self._limits.max_of_one, "atomic commits")
        self._writer.check()
        self._writer.room.admit()
        batch = Batch()
        with self._writer.moving():
            number = self.ledger.begin(batch, id, group, timeout_ms, of, owner).number
            return number, self._writer.submit(batch)

    async def _check_owner(self, number: int, principal: Principal, right: Right = Right.ADMIN) -> None:
        """Raises NotAllowed unless the transaction in progress is the principal's, once it is on disk whose it is."""
        transaction = self.ledger.find(number)
        if not may_touch(transaction.owner, principal.whose(right)):
            await self._writer.drained()
            check_owner(transaction.owner, principal.whose(right), what(transaction.id), right)

    async def _check_parent(self, of: str | None, group: str, principal: Principal) -> None:
        """Raises InvalidRequest: its commit cannot name one of another group; NotAllowed, TransactionNotInProgress."""
        if of is None:
            return
        number = self.ledger.numbers.get(of)
        if number is not None:
            await self._check_owner(number, principal)
            group_of = self.ledger.find(number).group
            if group_of != group:
                raise InvalidRequest(f"transaction {of!r} is of group {group_of!r}: a branch of it must be, too")
            return
        ended = await self.ledger.find_ended(of)
        if ended is not None:
            await self._writer.drained()
            check_owner(ended.outcome.owner, principal.whose(), what(of))
            raise not_in_progress(of, ended.outcome.state, "nothing can be staged for it")

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
        number = self.ledger.numbers.get(id)
        if number is None:
            raise await self.ledger.no_longer(id, principal.whose())
        await self._check_owner(number, principal)
        staged = await self._staged(log, _ref(log, namespace, topic), number)
        if not self.ledger.is_open(number):
            log.atomic.close(number)  # it ended while that was read
            raise await self.ledger.no_longer(id, principal.whose())
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
            self._put(batch, log, _ref(log, namespace, topic), staged, chunk, request)
            done = self._writer.submit(batch)
        await done

    def _put(self, batch: Batch, log: TopicLog, topic: TopicRef, staged: Staged, chunk: int, request: PublishRequest) -> None:
        if topic not in self.ledger.find(staged.number).topics:
            self.ledger.append(batch, Enlist(staged.number, topic))
        log.atomic.put(batch, staged, chunk, request)

    async def _staged(self, log: TopicLog, topic: TopicRef, number: int) -> Staged:
        if topic not in self.ledger.find(number).topics:
            return log.atomic.begun(number)
        return await log.atomic.open(number)

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
        async with self._changing(id):
            ended = await self.ledger.find_ended(id)
            if ended is not None:
                check_owner(ended.outcome.owner, principal.whose(), what(id))
                if request.group not in (None, ended.outcome.group):
                    raise _exists(id, ended.outcome.group)
                return again(ended, request)
            number = self.ledger.numbers.get(id)
            if number is not None:
                await self._check_owner(number, principal)
                self._check_can_commit(self.ledger.find(number), request)
            elif request.group is None:
                raise TransactionNotFound(
                    f"no transaction {id!r} was begun; name its group to begin it with the commit", transaction=id
                )
            return await self._decide(id, number, request, principal, may)

    def _check_can_commit(self, transaction: Transaction, request: CommitRequest) -> None:
        if request.group not in (None, transaction.group):
            raise _exists(transaction.id, transaction.group)
        if transaction.of is not None:
            raise InvalidRequest(f"{transaction.id!r} is a branch of {transaction.of!r}: commit that, and name this one")

    async def _decide(
        self,
        id: str,  # noqa: A002
        number: int | None,
        request: CommitRequest,
        principal: Principal,
        may: MayAppear,
    ) -> AtomicOutcome:
        owner, by = principal.owner, principal.whose()
        transaction = None if number is None else self.ledger.find(number)
        if transaction is None and request.producer is not None:
            await self._check_producer(str(request.group), request.producer, by)  # before anything is begun
        brought, refusal = await self._brought(request.parts)
        if transaction is None:
            group = request.group
            assert group is not None  # checked
            check_assignable(id)
            if refusal is None:
                begin = partial(self.ledger.begin, id=id, group=group, owner=owner)
                committed = await self.endings.at_once(begin, group, request, brought, by, may, owner)
                if committed is not None:
                    return committed
            number, _ = self._begin_now(id, group, None, None, owner)
            transaction = self.ledger.find(number)
        return await self.endings.decide(transaction, request, brought, refusal, by, may)

    async def _check_producer(self, group: str, name: str, by: str | None, right: Right = Right.ADMIN) -> None:
        """Raises NotAllowed: the name is another principal's; that is on disk then."""
        known = self.ledger.producers.get((group, name))
        if known is not None and not may_touch(known.row.owner, by):
            await self._writer.drained()
            check_owner(known.row.owner, by, producer_of(group, name), right)

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
        by = principal.whose(Right.OPERATE)
        async with self._changing(id):
            ended = await self.ledger.find_ended(id)
            number = self.ledger.numbers.get(id)
            if ended is None and number is not None:
                await self._check_owner(number, principal, Right.OPERATE)
                return await self.endings.abort(self.ledger.find(number), ASKED, "it was aborted")
            if ended is not None and ended.outcome.state == "aborted":
                check_owner(ended.outcome.owner, by, what(id), Right.OPERATE)
                return ended.outcome
            raise await self.ledger.no_longer(id, by, Right.OPERATE)

    async def free(self, id: str) -> None:  # noqa: A002
        """Frees an id that somebody has taken: aborts the transaction if it is in progress, and forgets what became of it.

        Raises TransactionNotFound.
        """
        async with self._changing(id), self._forgetting:
            number = self.ledger.numbers.get(id)
            if number is not None:
                await self.endings.abort(self.ledger.find(number), ASKED, "it was aborted for its id to be free")
            elif await self.ledger.find_ended(id) is None:
                raise await self.ledger.no_longer(id)
            row = await read(number_of, self._store, id)
            batch = Batch()
            batch.delete(Table.ATOMIC_ID, id.encode("ascii"))
            if row is not None:
                batch.delete(Table.ATOMIC_OUTCOME, row)
            self._writer.check()
            self.ledger.ended.pop(id, None)
            await self._writer.submit(batch)

    # --- ask

    async def show(self, id: str, principal: Principal = EVERYBODY) -> AtomicOutcome:  # noqa: A002
        """Returns what became of a transaction, once that is durable. Raises TransactionNotFound; NotAllowed: it is another's."""
        by = principal.whose(Right.OPERATE)
        ended = await self.ledger.find_ended(id)
        if ended is not None:
            check_owner(ended.outcome.owner, by, what(id), Right.OPERATE)
            return ended.outcome
        number = self.ledger.numbers.get(id)
        if number is None:
            raise await self.ledger.no_longer(id, by, Right.OPERATE)
        await self._check_owner(number, principal, Right.OPERATE)
        outcome = self.ledger.status(number)
        await self._writer.drained()
        return outcome

    async def list(
        self, group: str | None, after: str | None, limit: int, principal: Principal = EVERYBODY
    ) -> Sequence[AtomicOutcome]:
        """Lists transactions in progress, by rising number, without those of others; ``after``: behind the one of this id."""
        by = principal.whose(Right.OPERATE)
        behind = 0
        if after is not None:
            number = self.ledger.numbers.get(after)
            if number is None:
                data = await read(self._store.get, Table.ATOMIC_ID, after.encode("ascii", "replace"))
                number = 0 if data is None else int.from_bytes(data, "big")
            behind = number
        numbers, found = self.ledger.open_numbers, list[AtomicOutcome]()
        for at, part in enumerate(slices(numbers[bisect_right(numbers, behind) :], _LISTED_AT_ONCE)):
            if at:
                await asyncio.sleep(0)
            shown = (self.ledger.status(number) for number in part if self.ledger.is_open(number))
            found += [each for each in shown if group in (None, each.group) and may_touch(each.owner, by)]
            if len(found) >= limit:
                break
        await self._writer.drained()
        return found[:limit]

    async def producer(self, group: str, name: str, principal: Principal = EVERYBODY) -> GroupProducer:
        """Returns the newest commit under a producer's name. Raises GroupProducerNotFound; NotAllowed: it is another's."""
        known = self.ledger.producers.get((group, name))
        await self._writer.drained()
        if known is None:
            raise GroupProducerNotFound(f"group {group[:249]!r} knows of no producer {name[:249]!r}")
        row = known.row
        check_owner(row.owner, principal.whose(Right.OPERATE), producer_of(group, name), Right.OPERATE)
        return GroupProducer(
            group=group,
            producer=name,
            sequence_id=row.sequence_id,
            incarnation=row.incarnation,
            transaction=row.transaction,
            messages=row.messages,
            checksum=row.checksum,
            owner=row.owner,
            topics=[await self._went(each) for each in await self.ledger.went(known) or ()],
        )

    async def _went(self, to: Written) -> GroupTopic:
        directory = self._topics.directory
        now, incarnation = await directory.generation(to.namespace, to.topic), directory.incarnation
        return GroupTopic(
            namespace=to.namespace,
            topic=to.topic,
            generation=raised(to.generation, incarnation),
            current_generation=None if now is None else raised(now, incarnation),
        )

    async def forget_producer(
        self, group: str, name: str, incarnation: str | None = None, principal: Principal = EVERYBODY
    ) -> None:
        """Forgets a producer: its next sequence id and incarnation may be any.

        ``incarnation``: only if its newest commit is of this one.

        Raises GroupProducerNotFound; ProducerFenced: it is of another; NotAllowed: the name is another principal's.
        Nothing is forgotten then.
        """
        await self._check_producer(group, name, principal.whose(Right.OPERATE), Right.OPERATE)
        known = self.ledger.producers.get((group, name))
        if known is None or incarnation not in (None, known.row.incarnation):
            await self.producer(group, name)  # the refusal waits until what it was judged against is synced
            assert known is not None
            raise fenced(group, name, incarnation, known.row.incarnation)
        self._writer.check()
        self.ledger.forget_producer(group, name)
        batch = Batch()
        for table in (Table.GROUP_PRODUCER, Table.GROUP_NOTE):
            batch.delete(table, group_producer_key(group, name))
        await self._writer.submit(batch)

    # --- in the background

    async def run(self) -> None:
        """Gives up what is out of time or was left out, until cancelled."""
        while True:
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                await self.once()
            except OncelogError as error:
                _log.warning("transactions cannot be given up now; they will be: %s", error)

    async def once(self) -> None:
        """Gives up everything that is due now, but for what a call commits or aborts just now."""
        async with self._stepping:
            left: set[int] = set()
            while steps := [each for each in self.ledger.due() if each.number not in left]:
                for step in steps:
                    if not await self._give_up(step):
                        left.add(step.number)

    async def _give_up(self, step: GiveUp) -> bool:
        """Returns whether it has ended; a call that may end it can be under way."""
        if not self.ledger.is_open(step.number):
            return True
        transaction = self.ledger.find(step.number)
        lock = self._locks.get(transaction.id)
        if lock is not None and lock.locked():
            return False
        try:
            async with self._changing(transaction.id):  # which nobody holds: nothing awaits here
                await self.endings.abort(transaction, step.reason, step.detail)
        except OncelogError as error:
            _log.warning("%s cannot be done now; it will be: %s", step, error)
            return False
        return True

    async def forget_outcomes(self) -> int:
        """Forgets what became of some old transactions, as far as none of their messages lives; returns how many.

        Called again and again, it comes to all of them.
        """
        async with self._forgetting:
            found, self._looked = await read(forgettable, self._store, self._clock.now_ms(), _LOOKED_AT, self._looked)
            batch = Batch()
            for number, id_ in found:
                batch.delete(Table.ATOMIC_OUTCOME, number_key(number))
                batch.delete(Table.ATOMIC_ID, id_.encode("ascii"))
                self.ledger.ended.pop(id_, None)
            if found:
                await self._writer.submit(batch)
        return len(found)

    async def close(self) -> None:
        """Waits for what is being deleted."""
        await self.endings.close()

    def release(self) -> None:
        """Does nothing: no call waits here for long."""

    @asynccontextmanager
    async def _changing(self, id: str) -> AsyncIterator[None]:  # noqa: A002
        """Lets one call at a time change a transaction."""
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
