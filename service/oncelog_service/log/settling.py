"""Settles transactions on one topic: it asks how they ended, has their rows count from now on, or rolls them back.

Rows of a transaction are rolled back (the sign of T inverted) by the first of two: the client's ``rollback``, or the service
itself when the transaction was aborted, invalidated or timed out. Either way the producers' maps step back by the one fold that
recovery uses. Two rules are kept here:

* A row is rolled back for good, and never once its transaction has committed.
* A rollback takes what the fold knows as whole requests of that pointer, whatever its body claims.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

from oncelog.errors import (
    ProducerInTransaction,
    RollbackRefused,
    StaleMessageId,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionPrepared,
)
from oncelog.wire.models import TransactionState
from oncelog.wire.requests import Rollback
from oncelog.wire.transaction import is_own
from oncelog_dedup import Run
from oncelog_service.log.keep.snapshots import Snapshots
from oncelog_service.log.memory import Memory
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import row_at, runs_from
from oncelog_service.reading import read
from oncelog_service.storage.keys import ROW_ID_SIZE, pointer_key, row_id
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import EndedRow, encode_record
from oncelog_service.storage.runs import StoredRun, rolled_back

_log = logging.getLogger(__name__)

_ROLLED_BACK_AT_ONCE = 2_000
"""Messages that one write rolls back. The transaction is hidden as a whole until the last of them is."""
_BYTES_AT_ONCE = 8 * 2**20
"""… and bytes: large messages are not in memory all together. The request that reaches this is whole."""


class Settling:
    """What one open topic does about the ends of transactions. Works on the event loop that owns the topic."""

    __slots__ = (
        "_created",
        "_fold",
        "_memory",
        "_pointers",
        "_prefix",
        "_snapshots",
        "_store",
        "_topic",
        "_transactions",
        "_writer",
    )

    def __init__(self, topic: OpenTopic, memory: Memory, snapshots: Snapshots) -> None:
        self._topic = topic
        self._prefix = topic.prefix
        self._created = topic.row.created if topic.row.generation > 1 else 0
        """No row of this generation is older, ms."""
        self._store = topic.store
        self._writer = topic.writer
        self._fold = topic.dedup.fold
        self._pointers = topic.pointers
        self._transactions = topic.transactions
        self._memory = memory
        self._snapshots = snapshots

    # --- how a transaction ended

    async def settle(self, pointer: int, committed: bool, *, by_hand: bool = False) -> bool:
        """The transaction has ended for good: its rows count from now on, or are rolled back. Idempotent.

        Args:
            by_hand: an operator says so, and no transaction service knows it: it is on disk before anything of it is seen.

        Returns whether it has committed: what an operator has ended before ends in no other way.

        Raises StorageFailed, StorageUnavailable, DiskFull: what is not on disk yet stays unsettled.
        """
        self._topic.check_open()
        async with self._pointers.changing(pointer):
            known = self._pointers.ended_by_hand.get(pointer)
            if known is not None:
                if known.committed != committed and not by_hand:
                    _log.error(
                        "transaction %d has %s, but an operator had %s what was published under it on %s, and that stays so: it "
                        "is not the same on all its topics",
                        pointer,
                        "committed" if committed else "ended without a commit",
                        "committed" if known.committed else "rolled back",
                        self._topic.participant,
                    )
                committed, by_hand = known.committed, False
            if committed:
                with self._pointers.committed(pointer, by_hand):
                    await self._writer.drained()  # what is in flight is no run of the fold yet, and would stay unsettled
                    if by_hand:
                        await self._note_end(pointer, committed)
                    self._memory.commit(pointer)
            else:
                # Else rows could be written behind the roll-back, and would count.
                async with self._pointers.closed(pointer, by_hand):
                    await self._writer.drained()
                    if by_hand:
                        await self._note_end(pointer, committed)
                    await self._roll_back(pointer, self._fold.unsettled.get(pointer, ()))
            self._topic.groups.close(pointer)
            self._topic.numbers.pop(pointer, None)
            self._pointers.forget(pointer)
        return committed

    async def _note_end(self, pointer: int, committed: bool) -> None:
        self._topic.check_open()  # it may have waited for long: whoever has opened the topic since has read what was noted
        # The row of a group without messages is at the offset of what comes next: it is passed once that is.
        upto = max((run.first_offset + max(run.count, 1) for run in self._fold.unsettled.get(pointer, ())), default=0)
        row, key, batch = EndedRow(committed, upto), pointer_key(self._prefix, pointer), Batch()
        batch.put(Table.ENDED, key, encode_record(row))

        def noted() -> None:
            self._pointers.ended_by_hand[pointer] = row
            if not committed:
                self._topic.rolled_back_by_hand.add(key)

        await self._writer.submit(batch, noted)

    async def settle_ended(self, pointers: Collection[int], *, under: int | None = None) -> dict[int, TransactionState | None]:
        """Settle those of the pointers whose transactions have ended.

        Args:
            under: the write pointer of the request that asks; what is to be rolled back then stays.

        Returns:
            The others, each with its state; None: another service's, and young enough to be undecided; or one that ours does not
            know, since it was put back to an earlier time.

        Raises TransactionsUnavailable: nobody says how they ended; they stay unsettled.
        """
        states = await self._transactions.states(pointers) if pointers else {}
        left: dict[int, TransactionState | None] = {}
        for pointer in pointers:
            state = self._ended_by_hand(pointer) or states.get(pointer)
            committed = state == "committed" or (state is None and await self._counts_by_age(pointer))
            # A request under a pointer of its own must not wait for those under another: two of them could for each other.
            if committed or (state in ("aborted", "invalid") and under is None):
                await self.settle(pointer, committed)
            else:
                left[pointer] = state
        return left

    def _ended_by_hand(self, pointer: int) -> TransactionState | None:
        """How an operator has ended it here, whatever a transaction service says of it by now."""
        known = self._pointers.ended_by_hand.get(pointer)
        return None if known is None else "committed" if known.committed else "aborted"

    async def _counts_by_age(self, pointer: int) -> bool:
        """Whether what nobody knows the end of counts, since it is older than any transaction may become.

        Where ours are handed out only what ours has certainly dealt with and forgotten: what it never knew may have been aborted,
        and so may what this topic had dealt with before its store was put back.
        """
        if not self._pointers.expired(pointer):
            return False
        return not is_own(pointer) or (not self._topic.is_before(pointer) and await self._transactions.forgotten(pointer))

    async def settle_all_ended(self) -> None:
        """Settle every transaction with messages here that has ended or is too old. Raises as :meth:`settle_ended`."""
        await self.settle_ended(list(self._fold.unsettled))

    async def settle_expired(self) -> None:
        """Settle what is older than any transaction may become and is not in progress, and what is left of a roll-back that an
        operator began; forget what need not be known."""
        ended = self._pointers.ended_by_hand
        await self.settle_ended([each for each in self._fold.unsettled if each in ended or self._pointers.expired(each)])
        await self._forget_ended()

    async def _forget_ended(self) -> None:
        """Delete what is noted of ends that both snapshots have, and of pointers so old that nothing is taken under them."""
        ended, covered, batch = self._pointers.ended_by_hand, self._snapshots.covered_by_both, Batch()
        old = [each for each, row in ended.items() if row.upto <= covered and self._pointers.expired(each)]
        for each in old:
            batch.delete(Table.ENDED, pointer_key(self._prefix, each))
        if old:
            await self._writer.submit(batch)
            for each in old:
                del ended[each]
                self._topic.rolled_back_by_hand.discard(pointer_key(self._prefix, each))

    async def end_foreign(self, pointer: int, committed: bool) -> None:
        """End a write pointer on this topic that our transaction service does not know, at an operator's word: nothing more is
        taken under it. It is on disk when this returns. Idempotent.

        Raises:
            TransactionNotInProgress: our own transaction service knows it; what ends it there ends it here. Or it has ended here
                in the other way.
            TransactionNotFound: nothing is held back under it. TransactionsUnavailable: whose it is cannot be asked.
            DiskFull: there is no room for all of the roll-back now; it is begun, and retention goes on with it.
        """
        state = (await self._transactions.states([pointer])).get(pointer)
        self._topic.check_open()
        if state is not None:
            raise TransactionNotInProgress(
                f"write pointer {pointer} is of our own transaction service: end the transaction there",
                write_pointer=pointer,
                state=state,
            )
        if pointer not in self._fold.unsettled and pointer not in self._pointers.ended_by_hand:
            raise TransactionNotFound(f"the topic holds nothing back under write pointer {pointer}", write_pointer=pointer)
        if await self.settle(pointer, committed, by_hand=True) != committed:
            ended = "rolled back" if committed else "committed"
            raise TransactionNotInProgress(
                f"what was published under write pointer {pointer} was {ended} on this topic before", write_pointer=pointer
            )

    async def end_transactions(self, producer: str, abort: bool) -> None:
        """A new incarnation of the producer ends the transactions of the older ones, as Kafka's does; unless ``abort``, it finds
        them ended. Those of another transaction service are not ours to end.

        Raises:
            ProducerInTransaction: one is prepared, so its database decides; or it may not be aborted. A producer that went on
                from what is settled now would give its sequence ids to other messages.
        """
        pointers = self._topic.transactions_of(producer)
        for pointer in (await self._transactions.states(pointers)) if pointers else ():
            if abort:
                await self._abort_unless_prepared(pointer)
            if (await self.settle_ended([pointer])).get(pointer) == "in_progress":
                raise ProducerInTransaction(
                    f"producer {producer!r} has messages in the transaction {pointer}, which is not decided; if it is prepared, "
                    "its database decides: recover that first (SqlParticipant.recover)",
                    producer=producer,
                    write_pointer=pointer,
                )

    async def _abort_unless_prepared(self, pointer: int) -> None:
        try:
            await self._transactions.abort(pointer, unless_prepared=True)
        except (TransactionNotInProgress, TransactionPrepared):
            return  # it has committed meanwhile, or its database decides

    async def are_related(self, pointer: int | None, other: int) -> bool:
        """Whether both are write pointers of one transaction in progress, which has checkpoints."""
        own = None if pointer is None else await self._transactions.root(pointer)
        try:
            return own is not None and await self._transactions.root(other) == own
        except TransactionNotInProgress:
            return False

    # --- roll back

    async def roll_back(self, rollback: Rollback, by: str | None = None) -> None:
        """Roll back rows of the pointer's requests, as the client asks for. Idempotent.

        Raises:
            NotAllowed: the transaction is not that of ``by``.
            RollbackRefused: the range is not exactly what requests of this pointer published here. Nothing is changed.
            DiskFull: there is no room for it now. Of several requests some may be rolled back; asked again, the others are.
            TransactionNotInProgress: it has committed. StaleMessageId: the rows belong to an older generation.
        """
        self._topic.check_open()
        pointer = rollback.write_pointer
        first, last = row_id(*rollback.start), row_id(*rollback.end)
        if not any(first) and not any(last):
            return  # a request that stored nothing has nothing to roll back
        if rollback.start[0] < self._created:
            raise StaleMessageId("the rows to roll back are older than this generation of the topic")
        await self._pointers.check_owner(pointer, by)
        async with self._pointers.changing(pointer), self._pointers.refusing_for_good(pointer):
            await self._writer.drained()
            state = self._ended_by_hand(pointer) or (await self._transactions.states([pointer])).get(pointer)
            if state == "committed":
                raise TransactionNotInProgress(f"the transaction {pointer} has committed", write_pointer=pointer, state=state)
            runs = self._runs_between(pointer, first, last)
            over = [first, last]  # what is rolled back already says so itself, …
            if runs:  # … or the front of it, where an earlier call was broken off
                over = [] if runs[0].first_id[:ROW_ID_SIZE] == first else [first]
            deleted = self._topic.trimmed_id[:ROW_ID_SIZE]  # what retention has deleted was settled, and says nothing any more
            over = [each for each in over if each > deleted]
            whole = not runs or runs[-1].last_id[:ROW_ID_SIZE] == last
            if whole and (not over or await read(_are_rolled_back, self._store, self._prefix, pointer, over)):
                await self._roll_back(pointer, runs, still_open=state not in ("aborted", "invalid"))
            else:
                raise RollbackRefused(
                    f"the rows to roll back are not exactly what requests under write pointer {pointer} published here",
                    write_pointer=pointer,
                )

    def whole_requests(self, pointer: int, row_ids: Sequence[bytes]) -> list[bytes]:
        """Row ids, rising, of the ends of the pointer's unsettled requests that these rising rows are in."""
        ends: list[bytes] = []
        for run in self._fold.unsettled.get(pointer, ()):
            first, last = run.first_id[:ROW_ID_SIZE], run.last_id[:ROW_ID_SIZE]
            at = bisect_left(row_ids, first)
            if at < len(row_ids) and row_ids[at] <= last:
                ends += (first, last)
        return ends

    def _runs_between(self, pointer: int, first: bytes, last: bytes) -> list[Run]:
        """The pointer's unsettled requests that lie in the range."""
        return [
            run
            for run in self._fold.unsettled.get(pointer, ())
            if first <= run.first_id[:ROW_ID_SIZE] and run.last_id[:ROW_ID_SIZE] <= last
        ]

    async def _roll_back(self, pointer: int, runs: Iterable[Run], *, still_open: bool = False) -> None:
        """Invert the sign of T in the rows of these runs. ``still_open``: refuse if the transaction ends meanwhile.

        Raises DiskFull: there is no room to write more of them anew; those behind what was are rolled back another time.
        """
        for part in _slices(runs):
            left = part
            while left:
                at_once = min(_BYTES_AT_ONCE, self._writer.room.slice_bytes)
                stored, count = await read(_read_rolled_back, self._store, self._prefix, left, at_once)
                await self._writer.room.rewrite(sum(len(each.data) for each in stored))
                self._topic.check_open()
                if still_open:
                    self._pointers.check(pointer)
                batch = Batch()
                for each in stored:
                    batch.rewrite(Table.MESSAGE, self._prefix + each.id, each.data)
                await self._writer.submit(batch, partial(self._memory.roll_back, pointer, left[:count], stored))
                left = left[count:]


def _slices(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Runs of about :data:`_ROLLED_BACK_AT_ONCE` rows at a time; a copy, since a rollback changes what is unsettled."""
    part: list[Run] = []
    rows = 0
    for run in tuple(runs):
        part.append(run)
        rows += run.count
        if rows >= _ROLLED_BACK_AT_ONCE:
            yield part
            part, rows = [], 0
    if part:
        yield part


def _read_rolled_back(store: Store, prefix: bytes, runs: Sequence[Run], at_once: float) -> tuple[list[StoredRun], int]:
    """What is stored of the first of the runs, already with its sign inverted, and how many these are. Raises TopicDamaged.

    ``at_once``: bytes at which no further run begins.
    """
    stored: list[StoredRun] = []
    size = 0
    for count, run in enumerate(runs):
        if size >= at_once:
            return stored, count
        last = run.last_id[:ROW_ID_SIZE]
        with closing(runs_from(store, prefix, run.first_id[:ROW_ID_SIZE])) as found:
            for each in found:
                if each.id > last:
                    break
                stored.append(rolled_back(prefix, each))
                size += len(each.data)
                if each.id == last:
                    break
    return stored, len(runs)


def _are_rolled_back(store: Store, prefix: bytes, pointer: int, row_ids: Iterable[bytes]) -> bool:
    """Whether these are rows of the pointer that are rolled back already."""
    return all(row is not None and row.write_pointer == -pointer for row in (row_at(store, prefix, at) for at in row_ids))
