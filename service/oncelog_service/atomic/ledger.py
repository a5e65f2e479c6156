"""Keeps in memory what is known of the transactions of atomic commits; it moves here alone, by one record at a time.

What every call asks first is asked once, by :meth:`Ledger.find`: what is known under an id, and whether it is that of who asks::

    None ── begin ─▶ Transaction ─┬─ commit, of it or of one that names it ─▶ Ended ── free, forget ─▶ None
                                  └─ abort, by a call or out of time ───────▶ Ended

==================  ====================================================================================================
nothing (None)      nothing on disk; whoever begins it next has it
a ``Transaction``   its id with its number (ATOMIC_ID), its records (JOURNAL), what it has staged (CHUNK, PAYLOAD)
``Ended``           its id with its number, its outcome (ATOMIC_OUTCOME): as long as messages of it may live, or until it is freed
==================  ====================================================================================================

An id belongs to who began it until nothing is known of it. A number is that of one transaction for ever, and rises with time. The
plans are the fold of the journal. Each record moves its plan when it is handed to the writer, not when it is synced; so every
answer waits for the writer, and after a failed write all of this is read back from disk.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary
from zlib import crc32

from oncelog.errors import (
    InvalidRequest,
    OncelogError,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.message_id import MessageId
from oncelog.wire.models import AtomicOutcome, AtomicState, AtomicTopic
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.access.grants import Right
from oncelog_service.access.owners import check_owner, may_touch
from oncelog_service.atomic.limits import AtomicLimits
from oncelog_service.atomic.outcomes import Ended, number_of, put_id, put_outcomes, read_ended
from oncelog_service.atomic.plan import GiveUp, Transaction
from oncelog_service.atomic.records import RECORDS, Begin, Record, TopicRef
from oncelog_service.atomic.recovery import META_KEY, Found
from oncelog_service.bounds.holding import Held
from oncelog_service.clock import Clock, RunningClock
from oncelog_service.group_commit import Writer
from oncelog_service.log.append.atomic import Copied
from oncelog_service.reading import read, read_at_once
from oncelog_service.storage.keys import journal_key
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import JournalMetaRow, encode_record

BLOCK = 10_000 * POINTERS_PER_MS
"""Numbers are reserved by so many, ten seconds of them: one write for all that begin in that time."""
_TRIM_EVERY = 1_000
"""Records of a partition after which those of ended transactions are deleted."""
_TRIMMED_AT_ONCE = 10
"""Times as many are deleted at the most: one transaction that is open for a day keeps millions behind it."""
_REMEMBERED = 10_000
"""Outcomes kept in memory; older ones are read."""


class Ledger:
    """Knows every transaction in progress and the newest outcomes. Belongs to one opening of the store and one event loop."""

    def __init__(self, store: Store, writer: Writer, clock: Clock, limits: AtomicLimits, found: Found) -> None:
        """``found``: what is on disk."""
        self._store = store
        self._writer = writer
        self._clock = clock
        self._limits = limits
        self._first_ms = found.first_ms
        self.running = RunningClock(clock)
        """What time-outs are measured by: nobody sets it. Every transaction that is found has its whole time anew."""
        self.plans = found.plans
        """One per partition."""
        self._partitions = found.row.partitions
        self._begins = list(found.row.begins)
        self._reserved = self._last = found.row.numbers
        self._partition_of: dict[int, int] = {}
        """Number of a transaction in progress → its partition."""
        self.open: dict[str, Transaction] = {}
        """The transactions in progress, by id."""
        self.in_progress = Held()
        """Whose these are."""
        for partition, plan in enumerate(self.plans):
            for transaction in plan.transactions.values():
                self._opened(transaction, partition)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # gone with its last user
        self.ended: OrderedDict[str, Callable[[], Ended]] = OrderedDict()
        """The latest ones, by id: each is made when somebody asks for it."""
        found.stale.put(Table.JOURNAL_META, META_KEY, encode_record(self._row()))
        self._writer.submit(found.stale)

    def is_open(self, number: int) -> bool:
        """Returns whether the transaction of this number is in progress."""
        return number in self._partition_of

    def _opened(self, transaction: Transaction, partition: int) -> None:
        transaction.expires = self.running.now_ms() + transaction.expires - transaction.began
        self._partition_of[transaction.number], self.open[transaction.id] = partition, transaction
        self.in_progress.add(transaction.owner, 1)

    def begin(
        self,
        batch: Batch,
        id: str | None,  # noqa: A002
        group: str,
        timeout_ms: int | None = None,
        of: str | None = None,
        owner: str | None = None,
    ) -> Transaction:
        """Adds to ``batch`` that a transaction begins.

        The id is one that :func:`check_assignable` lets pass.
        """
        number, partition, now = self._next_number(), crc32(group.encode()) % self._partitions, self._clock.now_ms()
        id = str(number) if id is None else id  # noqa: A001
        expires = now + (timeout_ms or self._limits.default_timeout_ms)
        self._append(batch, partition, Begin(number, id, group, now, expires, of, owner))
        put_id(batch, id, number)
        begun = self.plans[partition].transactions[number]
        self._opened(begun, partition)
        return begun

    def append(self, batch: Batch, record: Record) -> None:
        """Moves the plan by a record of a transaction in progress, and adds that to ``batch``."""
        self._append(batch, self._partition_of[record.number], record)

    def _append(self, batch: Batch, partition: int, record: Record) -> None:
        plan = self.plans[partition]
        if plan.position % _TRIM_EVERY == 0:
            self._trim(partition)  # before this record, whose batch the writer has not got yet
        RECORDS.put(batch, journal_key(partition, plan.position), record)
        plan.apply(record)

    def _trim(self, partition: int) -> None:
        """Deletes records that no restart needs."""
        begin = self._begins[partition]
        end = min(self.plans[partition].keep_from(), begin + _TRIMMED_AT_ONCE * _TRIM_EVERY)
        if end <= begin:
            return
        batch = Batch()
        for position in range(begin, end):
            batch.delete(Table.JOURNAL, journal_key(partition, position))
        self._begins[partition] = end
        batch.put(Table.JOURNAL_META, META_KEY, encode_record(self._row()))
        self._writer.submit_lazily(batch)

    def _row(self) -> JournalMetaRow:
        return JournalMetaRow(self._partitions, self._reserved, list(self._begins))

    def _next_number(self) -> int:
        """Returns a number that no other transaction ever has, above all numbers handed out before."""
        self._last = max(self._last + 1, max(self._clock.now_ms(), self._first_ms) * POINTERS_PER_MS)
        if self._last > self._reserved:
            self._reserved = self._last + BLOCK
            batch = Batch()
            batch.put(Table.JOURNAL_META, META_KEY, encode_record(self._row()))
            # The block is on disk before any record under a number of it, since batches become durable in this order. Else a
            # restart with a clock that was set back would hand the same numbers out again.
            self._writer.submit(batch)  # at once: a trim may write this row anew before anything else is handed over
        return self._last

    def end(self, batch: Batch, ended: Sequence[tuple[Transaction, Callable[[], Ended]]]) -> None:
        """Adds the outcomes of transactions to ``batch``, which holds the record that ends them; the plan does not know them any
        more. An outcome is made when somebody asks for it."""
        put_outcomes(batch, [(transaction.number, each) for transaction, each in ended])
        for transaction, each in ended:
            self.ended[transaction.id] = each
            del self._partition_of[transaction.number], self.open[transaction.id]
            self.in_progress.add(transaction.owner, -1)
        while len(self.ended) > _REMEMBERED:
            self.ended.popitem(last=False)

    def forget(self, batch: Batch, id: str, number: bytes | None) -> None:  # noqa: A002
        """Forgets what became of a transaction, and adds that to ``batch``; ``number``: the key of its outcome, if it has one."""
        batch.delete(Table.ATOMIC_ID, id.encode("ascii"))
        if number is not None:
            batch.delete(Table.ATOMIC_OUTCOME, number)
        self.ended.pop(id, None)

    def changing(self, id: str) -> asyncio.Lock:  # noqa: A002
        """Returns the lock that is held by the call which changes what is known under an id."""
        return self._locks.setdefault(id, asyncio.Lock())

    async def find(self, id: str, by: str | None = None, right: Right = Right.ADMIN) -> Transaction | Ended | None:  # noqa: A002
        """Returns what is known under an id: a transaction in progress, which may still be on its way to disk; or what became of
        it, which is on disk; None: it was never begun, or is forgotten.

        Raises NotAllowed: it belongs to another principal than ``by``; ``right`` would let it. That is on disk, too.
        """
        found = self.open.get(id) or await self._ended(id) or self.open.get(id)  # it may have begun while that was read
        if found is not None and not may_touch(found.owner, by):
            await self._writer.drained()
            check_owner(found.owner, by, what(id), right)
        return found

    async def _ended(self, id: str) -> Ended | None:  # noqa: A002
        ended = self.ended.get(id)
        if ended is not None:
            await self._writer.drained()
            return ended()
        if not id.isascii():
            return None
        shared = self._writer.shared
        number = await read(number_of, self._store, id) if shared else read_at_once(number_of, self._store, id)
        return None if number is None else await read(read_ended, self._store, id)

    def due(self) -> list[tuple[Transaction, GiveUp]]:
        """Returns everything that is to be given up now; that may lead to more."""
        now = self.running.now_ms()
        return [(plan.transactions[step.number], step) for plan in self.plans for step in plan.due(now)]


def told(found: Transaction | Ended) -> AtomicOutcome:
    """Returns what a client is told of a transaction."""
    return found.outcome if isinstance(found, Ended) else outcome(found, "in_progress")


def refused(id: str, found: Transaction | Ended | None) -> OncelogError:  # noqa: A002
    """Returns the reason why nothing can be done with a transaction that is not in progress, given what is known under its id."""
    if not isinstance(found, Ended):
        return TransactionNotFound(f"no transaction {id[:249]!r} was begun here, or it is forgotten", transaction=id[:249])
    became = found.outcome
    return not_in_progress(id, became.state, became.detail or "nothing was done", became.reason)


def outcome(
    transaction: Transaction, state: AtomicState, topics: Mapping[TopicRef, Copied | None] | None = None, **values: object
) -> AtomicOutcome:
    """Returns the outcome of a transaction in this state.

    ``topics``: what it has put on each, else those that hold something of it; ``values`` take the place of its own fields."""
    placed = dict.fromkeys(transaction.topics) if topics is None else topics
    fields: dict[str, object] = {
        "id": transaction.id,
        "group": transaction.group,
        "state": state,
        "began_ms": transaction.began,
        "expires_ms": transaction.expires if state == "in_progress" else None,
        "of": transaction.of,
        "owner": transaction.owner,
        "branches": [],
        "topics": [_topic(topic, copied) for topic, copied in placed.items()],
    }
    return AtomicOutcome.model_construct(**{**fields, **values})  # type: ignore[arg-type]


def _topic(topic: TopicRef, copied: Copied | None) -> AtomicTopic:
    first_id = None if copied is None else copied.first_id
    return AtomicTopic.model_construct(
        namespace=topic.namespace,
        topic=topic.topic,
        generation=topic.generation,
        messages=0 if copied is None else copied.messages,
        first_offset=None if copied is None else copied.first_offset,
        first_message_id=None if first_id is None else MessageId.from_bytes(first_id),
    )


def check_assignable(id: str | None) -> None:  # noqa: A002
    """Raises InvalidRequest for an id that only we assign."""
    if id is not None and id.isdigit():
        raise InvalidRequest(f"ids of digits only are the ones that the service assigns; {id} is none of them")


def what(id: str) -> str:  # noqa: A002
    """Returns what a refusal calls an atomic commit."""
    return f"transaction {id!r}"


def not_in_progress(id: str, state: str, detail: str, reason: str | None = None) -> TransactionNotInProgress:  # noqa: A002
    """Returns the refusal of any call on a transaction that has ended."""
    return TransactionNotInProgress(f"transaction {id!r} is {state}: {detail}", transaction=id, state=state, reason=reason)
