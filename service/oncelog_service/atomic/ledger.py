"""Keeps in memory what is known of the transactions of atomic commits; it moves here alone, by one record at a time.

No number is used twice, nor an id while its outcome is kept. The plans are the fold of the journal. Each record moves its plan
when it is handed to the writer, not when it is synced; so every answer waits for the writer, and after a failed write all of this
is read back from disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from oncelog.errors import (
    InvalidRequest,
    OncelogError,
    ProducerFenced,
    SequenceGap,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.message_id import MessageId
from oncelog.wire.models import AtomicOutcome, AtomicState, AtomicTopic
from oncelog.wire.requests import CommitRequest
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.access.grants import Right
from oncelog_service.access.owners import check_owner
from oncelog_service.atomic.limits import AtomicLimits
from oncelog_service.atomic.outcomes import Ended, number_of, put_id, put_outcomes, read_ended
from oncelog_service.atomic.plan import GiveUp, Transaction
from oncelog_service.atomic.records import RECORDS, Begin, Record, TopicRef
from oncelog_service.atomic.recovery import META_KEY, Found
from oncelog_service.atomic.repeats import Newest, Written, written_by
from oncelog_service.bounds.holding import Held, check_held
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
        self.producers = found.producers
        """(group, name) → its newest atomic commit."""
        self.names = Held()
        """Of producers in groups: each takes memory until it is forgotten."""
        for known in self.producers.values():
            self.names.add(known.row.owner, 1)
        self._partitions = found.row.partitions
        self._begins = list(found.row.begins)
        self._reserved = self._last = found.row.numbers
        self._partition_of: dict[int, int] = {}
        """Number of a transaction that has not ended → its partition."""
        self.in_progress = Held()
        """Those that have not ended."""
        self.numbers: dict[str, int] = {}
        """Id of a transaction that has not ended → its number."""
        for partition, plan in enumerate(self.plans):
            for number, transaction in plan.transactions.items():
                transaction.expires = self.running.now_ms() + transaction.expires - transaction.began
                self._partition_of[number], self.numbers[transaction.id] = partition, number
                self.in_progress.add(transaction.owner, 1)
        self.ended: OrderedDict[str, Callable[[], Ended]] = OrderedDict()
        """The latest ones, by id: each is made when somebody asks for it."""
        found.stale.put(Table.JOURNAL_META, META_KEY, encode_record(self._row()))
        self._writer.submit(found.stale)

    def is_open(self, number: int) -> bool:
        """Returns whether the transaction of this number is in progress."""
        return number in self._partition_of

    @property
    def open_numbers(self) -> Sequence[int]:
        """The numbers of all transactions in progress, rising."""
        return sorted(self._partition_of)

    def check_name(self, group: str, producer: str | None, owner: str | None) -> None:
        """Raises QuotaExceeded unless the owner commits under a name that is known, or may have one more."""
        if producer is not None and (group, producer) not in self.producers:
            what, way_out = "names of producers in groups", "have those forgotten that are not needed"
            held, limit = self.names.of(owner), self._limits.max_names_of_one
            check_held(owner, held, 1, limit, "group_producers", what, way_out, soon=False)

    def note(self, group: str, producer: str, known: Newest) -> None:
        """Notes the newest commit under a name."""
        before = self.producers.get((group, producer))
        if before is not None:
            self.names.add(before.row.owner, -1)
        self.names.add(known.row.owner, 1)
        self.producers[group, producer] = known

    def forget_producer(self, group: str, producer: str) -> None:
        """Frees a name."""
        self.names.add(self.producers.pop((group, producer)).row.owner, -1)

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
        number = self._next_number()
        id = str(number) if id is None else id  # noqa: A001
        self._partition_of[number] = crc32(group.encode()) % self._partitions
        self.numbers[id] = number
        now = self._clock.now_ms()
        self.append(batch, Begin(number, id, group, now, now + (timeout_ms or self._limits.default_timeout_ms), of, owner))
        self.in_progress.add(owner, 1)
        put_id(batch, id, number)
        begun = self.find(number)
        begun.expires = self.running.now_ms() + begun.expires - begun.began
        return begun

    def find(self, number: int) -> Transaction:
        """Returns the transaction of this number, which is in progress."""
        return self.plans[self._partition_of[number]].transactions[number]

    def append(self, batch: Batch, record: Record) -> None:
        """Moves the plan by a record, and adds that to ``batch``."""
        partition = self._partition_of[record.number]
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
            del self._partition_of[transaction.number], self.numbers[transaction.id]
            self.in_progress.add(transaction.owner, -1)
        while len(self.ended) > _REMEMBERED:
            self.ended.popitem(last=False)

    async def find_ended(self, id: str) -> Ended | None:  # noqa: A002
        """Returns what became of a transaction, once that is on disk; None: it has not ended, or was never begun."""
        if id in self.numbers:
            return None
        ended = self.ended.get(id)
        if ended is not None:
            await self._writer.drained()
            return ended()
        if not id.isascii():
            return None
        shared = self._writer.shared
        number = await read(number_of, self._store, id) if shared else read_at_once(number_of, self._store, id)
        return None if number is None else await read(read_ended, self._store, id)

    async def went(self, of: Newest, itself: bool = False) -> list[Written] | None:
        """Returns where commits under a producer's name went, as far as that is known; None: nobody knows any more.

        ``itself``: only where the newest did, which wrote something.
        """
        if of.topics is not None:
            return of.topics if itself else [*of.topics, *of.earlier]
        row = of.row
        ended = await self.find_ended(row.transaction)  # the row has no note; the outcome is kept for a time
        if ended is None or ended.outcome.sequence_id != row.sequence_id:
            return None
        return written_by(ended.outcome) or None  # one without messages says nothing of those before it

    async def no_longer(self, id: str, by: str | None = None, right: Right = Right.ADMIN) -> OncelogError:  # noqa: A002
        """Returns the reason why nothing can be done with the transaction of this id. Raises NotAllowed: it is not ``by``'s."""
        ended = await self.find_ended(id)
        if ended is not None:
            check_owner(ended.outcome.owner, by, what(id), right)
            return not_in_progress(id, ended.outcome.state, ended.outcome.detail or "nothing was done", ended.outcome.reason)
        return TransactionNotFound(f"no transaction {id[:249]!r} was begun here, or it is forgotten", transaction=id[:249])

    def due(self) -> list[GiveUp]:
        """Returns everything that is to be given up now; that may lead to more."""
        return [step for plan in self.plans for step in plan.due(self.running.now_ms())]

    def status(self, number: int) -> AtomicOutcome:
        """Returns the state of a transaction in progress."""
        return outcome(self.find(number), "in_progress")

    def original(self, group: str, request: CommitRequest, by: str | None = None) -> Newest | None:
        """Returns the producer's newest commit, if its sequence id is that of this one or higher.

        Raises ProducerFenced; NotAllowed: the name is not that of ``by``, who might fence or outrun its principal; SequenceGap:
        both refuse gaps, and there is one between them.
        """
        if request.producer is None or request.sequence_id is None:
            return None
        known = self.producers.get((group, request.producer))
        if known is None:
            return None
        row = known.row
        check_owner(row.owner, by, producer_of(group, request.producer))
        if row.incarnation != request.incarnation:
            raise fenced(group, request.producer, request.incarnation, row.incarnation)
        if request.sequence_id <= row.sequence_id:
            return known
        expected = row.sequence_id + 1
        if request.refuses_gaps and known.refused_gaps and request.sequence_id != expected:
            raise SequenceGap(
                f"{producer_of(group, request.producer)} has come to number {row.sequence_id}: {expected} is the next one, and "
                f"{request.sequence_id} leaves out what should be between; nothing was stored",
                producer=request.producer,
                expected=expected,
                received=request.sequence_id,
            )
        return None


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


def producer_of(group: str, name: str) -> str:
    """Returns what a refusal calls a producer of a group."""
    return f"producer {name!r} of group {group!r}"


def not_in_progress(id: str, state: str, detail: str, reason: str | None = None) -> TransactionNotInProgress:  # noqa: A002
    """Returns the refusal of any call on a transaction that has ended."""
    return TransactionNotInProgress(f"transaction {id!r} is {state}: {detail}", transaction=id, state=state, reason=reason)


def fenced(group: str, producer: str, incarnation: str | None, current: str | None) -> ProducerFenced:
    """Returns the refusal of an incarnation that is not that of the producer's newest commit."""
    return ProducerFenced(
        f"producer {producer!r} of group {group!r} belongs to incarnation {current!r}, not to {incarnation!r}; "
        "use another name, or have the group forget this one",
        producer=producer,
        incarnation=incarnation,
        current_incarnation=current,
    )
