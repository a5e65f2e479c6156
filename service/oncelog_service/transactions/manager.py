"""The transaction service in this process: commands in, edits into the store, answers when they are synced.

``decide → submit → apply`` is one step of the event loop, so the state moves when an edit is handed to the writer, and edits
become durable in the order in which they were decided. Every answer waits for a submission: a move for its own edits, a refusal
or a reading for everything before it. So nothing is ever said that a crash could unsay.

Everything here is what recovery.py folded from disk plus what was submitted since. After a failed write the object is released
and a new one is recovered; it is never repaired in memory.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NoReturn

from oncelog.errors import (
    InvalidRequest,
    OncelogError,
    Overloaded,
    RequestTooLarge,
    StorageFailed,
    StorageUnavailable,
)
from oncelog.wire.models import Settlement, TransactionState, TransactionStatus
from oncelog.wire.transaction import NO_SHORT, POINTERS_PER_MS, Transaction, TransactionType
from oncelog_service.access.grants import Right
from oncelog_service.access.owners import check_owner, may_touch
from oncelog_service.bounds.holding import check_held, check_transactions
from oncelog_service.bounds.slices import slices
from oncelog_service.clock import Clock, SteadyClock
from oncelog_service.group_commit import Writer
from oncelog_service.reading import read
from oncelog_service.storage.events import MAX_TEXT_BYTES
from oncelog_service.storage.keys import outcome_key
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.transactions import decisions
from oncelog_service.transactions.decisions import Edits
from oncelog_service.transactions.edit_log import EditLog
from oncelog_service.transactions.edits import Aborted, Checkpointed, Committed, Edit, HandedIn, Invalidated, Pruned, Started
from oncelog_service.transactions.lifetimes import Lifetimes
from oncelog_service.transactions.limits import TransactionLimits
from oncelog_service.transactions.openings import Opening, may_know, put_openings
from oncelog_service.transactions.outcomes import Outcome, encode_outcome, oldest_outcomes, read_outcomes
from oncelog_service.transactions.port import MayAppear, Owned
from oncelog_service.transactions.recovery import Recovered, recover
from oncelog_service.transactions.state import (
    ANSWER,
    ENDED,
    EndedTransaction,
    Move,
    OpenTransaction,
    Phase,
    TransactionsState,
    judge,
    not_found,
    weight,
)
from oncelog_service.transactions.wanted import EVERYTHING, Wanted

Decide = Callable[[TransactionsState, int], Edits]

_RECENT_OUTCOMES = 20_000
"""Outcomes kept in memory: those not yet synced, and those likely to be asked for."""
_SETTLEMENTS = 1_000
"""Most settlements in one answer."""
_TIMED_OUT_AT_ONCE = 1_000
_LISTED_AT_ONCE = 50
"""Looked at in one step of a list."""
_TICK_SECONDS = 1.0
_SHORTEST_PAUSE_SECONDS = 0.05
"""Between two rounds of time-outs, so that many short transactions that end one after the other do not keep the loop busy."""


class TransactionManager:
    """Implements :class:`~oncelog_service.transactions.port.Transactions`. All methods run on the loop that owns it."""

    def __init__(
        self,
        recovered: Recovered,
        store: Store,
        writer: Writer,
        clock: Clock,
        limits: TransactionLimits | None = None,
        store_id: str = "",
    ) -> None:
        """``store_id``: whose participants (``"<store id>:…"``) :meth:`unacknowledged` tells of; all where it is empty."""
        self.state: TransactionsState = recovered.state
        self.limits = limits or TransactionLimits()
        self._log = EditLog(recovered, writer, self.limits.snapshot_edits)
        self._store = store
        self._writer = writer
        self._clock = clock
        self._steady = SteadyClock(clock)
        self._first_ms = recovered.first_ms
        self._openings = recovered.openings
        self._is_noted = False
        """Whether this one is among them, which it is as soon as it has handed out a pointer."""
        self._store_id = store_id
        self._recent: dict[int, Outcome] = {}
        self._more_ended = asyncio.Event()
        """Another one each time that it was set."""
        self._nudge = asyncio.Event()
        self._opened = clock.monotonic()
        self._oldest_recovered = next(iter(self.state.pointers), None)
        """Those in progress were given their whole lifetime anew, so they may end when their pointers are old."""
        self._lifetimes = Lifetimes(self.state.open, self._opened)
        self._wakes = 0.0
        self._closed = False

    @classmethod
    async def recover(
        cls, store: Store, writer: Writer, clock: Clock, limits: TransactionLimits | None = None, store_id: str = ""
    ) -> TransactionManager:
        """Read back what is on disk, on a thread. Raises StoreDamaged, StoreError."""
        recovered = await asyncio.to_thread(recover, store)
        return cls(recovered, store, writer, clock, limits, store_id)

    # --- the life of a transaction --------------------------------------------------------------------------------------

    async def start(self, kind: TransactionType, timeout_ms: int | None = None, owner: str | None = None) -> Transaction:
        """Begins a transaction. Its snapshot holds nothing that is not on disk when this returns.

        Raises InvalidRequest for a time-out that is too long, Overloaded when too many are in progress, QuotaExceeded when too
        many of the owner are, or are invalid, DiskFull.
        """
        self._check_open()
        if owner is not None:
            _check_string(owner, "owner")
        lifetime_ms = self._lifetime_ms(kind, timeout_ms)
        self._check_room(owner)
        self._writer.room.admit()
        done = self._submit(decisions.start(self.state, kind, lifetime_ms, self._pointers_ms(), owner))
        transaction = self.state.transaction(self.state.last)
        self._lifetimes.begin(transaction.transaction_id, self._clock.monotonic())
        self._nudge_for(transaction.transaction_id)
        await done
        return transaction

    def _check_room(self, owner: str | None) -> None:
        """Raises QuotaExceeded, Overloaded unless one more pointer may be handed out; asked in the step that does."""
        in_progress, invalid, limits = self.state.in_progress, self.state.invalid, self.limits
        check_transactions(owner, in_progress.of(owner), limits.max_of_one, "transactions and checkpoints of them")
        way_out = "abort those whose clients are gone, once what they wrote outside of topics is undone, or have them pruned"
        of_those = "invalid transactions and checkpoints of them", way_out
        check_held(owner, invalid.of(owner), 1, limits.max_invalid_of_one, "invalid_transactions", *of_those, soon=False)
        if in_progress.total >= limits.max_in_progress:
            raise Overloaded(f"{in_progress.total} transactions and checkpoints are in progress, as many as the service takes")

    def _lifetime_ms(self, kind: TransactionType, timeout_ms: int | None) -> int:
        if kind is TransactionType.LONG:
            if timeout_ms is not None:
                raise InvalidRequest("a long transaction has no time-out of its own; it lives as long as any may")
            return self.limits.max_lifetime_ms
        if timeout_ms is None:
            return self.limits.default_timeout_ms
        if not 0 < timeout_ms <= self.limits.max_timeout_ms:
            raise InvalidRequest(f"a time-out of {timeout_ms} ms is not between 1 and {self.limits.max_timeout_ms} ms")
        return timeout_ms

    async def can_commit(
        self,
        pointer: int,
        changes: Collection[bytes],
        resource: str | None = None,
        by: str | None = None,
        may: MayAppear | None = None,
    ) -> str:
        """Checks and keeps a change set. See the port; raises RequestTooLarge for too large a one too, QuotaExceeded, Overloaded
        where too many are kept."""
        if resource is not None:
            _check_string(resource, "resource")
        keys, lifetime_ms = self._keys(changes), self.limits.max_lifetime_ms
        move = Move.HAND_IN if resource is None else Move.PREPARE
        decide = self._keeping(partial(decisions.can_commit, changes=keys, resource=resource, lifetime_ms=lifetime_ms))
        await self._sweep_for(pointer, keys)
        await self._move(pointer, by, move, decide if resource is None else _asking(may, decide))
        return self._store_id

    async def commit(
        self, pointer: int, changes: Collection[bytes] = (), by: str | None = None, may: MayAppear | None = None
    ) -> None:
        """Commits; conflicts are checked again, except for a prepared transaction, whose keys are reserved. See the port; raises
        as :meth:`can_commit` of keys that were not handed in."""
        keys = self._keys(changes)
        decide = self._keeping(partial(decisions.commit, changes=keys))
        await self._sweep_for(pointer, keys)
        await self._move(pointer, by, Move.COMMIT, _asking(may, decide))

    async def abort(self, pointer: int, unless_prepared: bool = False, by: str | None = None) -> None:
        move = Move.ABORT_UNLESS_PREPARED if unless_prepared else Move.ABORT
        await self._move(pointer, by, move, partial(decisions.abort, move=move))

    async def invalidate(self, pointer: int, by: str | None = None) -> None:
        await self._move(pointer, by, Move.INVALIDATE, decisions.invalidate)

    async def checkpoint(self, pointer: int, by: str | None = None) -> Transaction:
        """Hands out a further write pointer, on the snapshot that the transaction began with. See the port; raises QuotaExceeded,
        Overloaded as :meth:`start`."""
        self._writer.room.admit()
        done = await self._begin(pointer, by, Move.CHECKPOINT, self._further)
        assert done is not None  # there is always a further pointer
        transaction = self.state.transaction(self.state.roots[pointer])
        await done
        return transaction

    def _further(self, state: TransactionsState, pointer: int) -> Edits:
        edits = decisions.checkpoint(state, pointer, self._pointers_ms())
        self._check_room(state.owner(pointer))
        return edits

    def _keeping(self, decide: Decide) -> Decide:
        """Decides as ``decide`` does, if there is room for the keys that it keeps, or the oldest change sets can make some.

        What is handed in already needs none: so what a database has decided is never refused for it.
        """

        def decided(state: TransactionsState, pointer: int) -> Edits:
            edits = decide(state, pointer)
            return sum((self._room(edit) for edit in edits if isinstance(edit, (HandedIn, Committed))), edits)

        return decided

    def _room(self, edit: HandedIn | Committed) -> Edits:
        """Returns what makes room for the keys of an edit. Raises QuotaExceeded, Overloaded, TransactionConflict.

        Only who is old is hurt by it: who has lived for less than a transaction that asks for no time-out is judged by all change
        sets. Else who commits a lot would end what others have just begun, where now a bound of his own stops him.
        """
        transaction = self.state.open[edit.pointer]
        owner, replaced = transaction.owner, transaction.changes if isinstance(edit, HandedIn) else ()
        more = weight(edit.changes) - weight(replaced)
        lacking = self._lacking(owner, more)
        if more <= 0 or max(lacking) <= 0:
            return ()
        goes_on = isinstance(edit, HandedIn) and edit.resource is None
        edits = decisions.drop_changes(self.state, owner, *lacking, self._judged_from(None if goes_on else edit.pointer))
        if not edits:
            self._refuse_changes(owner, more)
        elif goes_on and edits[0].commit_pointer > edit.pointer:
            raise decisions.too_old(edit.pointer)
        return edits

    def _lacking(self, owner: str | None, more: int) -> tuple[int, int]:
        """Returns how much room for change sets lacks the owner, and how much lack all; not above 0: there is enough."""
        handed_in, changed = self.state.handed_in, self.state.changed
        of_one = 0 if owner is None else handed_in.of(owner) + changed.of(owner) + more - self.limits.max_kept_of_one
        return of_one, handed_in.total + changed.total + more - self.limits.max_kept

    def _judged_from(self, leaves: int | None) -> int:
        """Returns the oldest short transaction in progress that is not old, but for the one that ``leaves``."""
        now, old_ms = self._clock.monotonic(), self.limits.default_timeout_ms
        judged = (each for each in self.state.judged if each != leaves)
        return next((each for each in judged if self._lifetimes.lived_ms(each, now) < old_ms), NO_SHORT)

    def _refuse_changes(self, owner: str | None, more: int) -> NoReturn:
        handed_in, changed, limits = self.state.handed_in, self.state.changed, self.limits
        what = "bytes of change sets, handed in or kept for the transactions that began before they committed"
        way_out = f"try again when those have ended, or are {limits.default_timeout_ms / 1000:g} s old"
        held = handed_in.of(owner) + changed.of(owner)
        check_held(owner, held, more, limits.max_kept_of_one, "change_sets", what, way_out, soon=True)
        raise Overloaded(f"{handed_in.total + changed.total} {what}, as many as the service keeps; {way_out}")

    async def _sweep_for(self, pointer: int, keys: frozenset[bytes]) -> None:
        """Drops change sets that nobody needs, as long as there is no room for these; returns in a step in which that is so."""
        known = self.state.open.get(self.state.roots.get(pointer, 0))
        more = weight(keys)
        while known is not None and max(self._lacking(known.owner, more)) > 0:
            if not self.state.sweep_changes():
                break
            await asyncio.sleep(0)

    def _keys(self, changes: Collection[bytes]) -> frozenset[bytes]:
        if len(changes) > self.limits.max_changes:
            raise RequestTooLarge(f"{len(changes)} keys are more than a change set may have", limit=self.limits.max_changes)
        keys = frozenset(changes)
        if sum(map(len, keys)) > self.limits.max_change_bytes:
            raise RequestTooLarge("the keys of the change set are too long", limit=self.limits.max_change_bytes)
        return keys

    # --- asking -----------------------------------------------------------------------------------------------------------

    async def show(self, pointer: int, by: str | None = None) -> TransactionStatus:
        self._check_open()
        status = self._status(pointer)
        if status is None:
            outcome = await self._outcome(pointer)
            if outcome is None:
                raise not_found(pointer, self._forgotten(pointer))
            status = TransactionStatus(write_pointer=outcome.root, state=outcome.state, owner=outcome.owner)
        await self._durable()
        _check_owner(pointer, status.owner, by, Right.OPERATE)
        return status

    def _status(self, pointer: int) -> TransactionStatus | None:
        root = self.state.roots.get(pointer)
        if root is None:
            return None
        transaction = self.state.open.get(root)
        if transaction is None:
            return _ended_status(self.state.ended[root])
        left_ms = math.ceil(self._lifetimes.left_seconds(root, self._clock.monotonic()) * 1000)
        return _open_status(transaction, self._clock.now_ms() + left_ms, self._store_id)

    async def list(self, state: TransactionState, after: int, limit: int, by: str | None = None) -> Sequence[TransactionStatus]:
        """Lists transactions. See the port; raises InvalidRequest for other states."""
        self._check_open()
        if state not in ("in_progress", "invalid"):
            raise InvalidRequest(f"transactions can be listed that are in_progress or invalid, not {state}")
        in_progress, found = state == "in_progress", list[TransactionStatus]()
        pointers = sorted(self.state.open if in_progress else self.state.ended)
        for at, part in enumerate(slices(pointers[bisect_right(pointers, after) :], _LISTED_AT_ONCE)):
            if at:
                await asyncio.sleep(0)
                self._check_open()
            ids = (each for each in part if self._is_listed(each, in_progress, by))
            found += [status for each in ids if (status := self._status(each)) is not None]
            if len(found) >= limit:
                break
        await self._durable()
        return found[:limit]

    def _is_listed(self, pointer: int, in_progress: bool, by: str | None) -> bool:
        """Tells whether a transaction is in progress still, or invalid, and is one of ``by``."""
        known = self.state.open.get(pointer) if in_progress else self.state.ended.get(pointer)
        if known is None or not (in_progress or known.phase is Phase.INVALID):
            return False
        return may_touch(known.owner, by)

    async def prune(self, pointers: Collection[int] | None, before_ms: int | None) -> int:
        """Forgets invalid transactions. See the port; raises InvalidRequest unless exactly one of the two is given."""
        if (pointers is None) == (before_ms is None):
            raise InvalidRequest("name the write pointers to prune, or a time: one of the two")
        self._check_open()
        edits = decisions.prune(self.state, pointers, before_ms or 0)
        if not edits:
            await self._durable()
            return 0
        before = len(self.state.ended)
        done = self._submit(edits)
        pruned = before - len(self.state.ended)
        await done
        return pruned

    # --- for those that hold messages of transactions -------------------------------------------------------------------------

    async def states(self, pointers: Collection[int], by: str | None = None) -> dict[int, TransactionState]:
        self._check_open()
        found: dict[int, TransactionState] = {}
        stored: dict[int, Outcome] = {}
        asked: set[int] = set()
        # What memory knows at first may have ended, and lie on disk alone, once the rest was read.
        while missing := [
            each for each in pointers if each not in asked and each not in self.state.roots and each not in self._recent
        ]:
            asked.update(missing)
            stored.update(await read(read_outcomes, self._store, missing))
        for pointer in pointers:
            outcome = self._recent.get(pointer, stored.get(pointer))
            # The state first: what was read may be older.
            if pointer in self.state.roots:
                if may_touch(self.state.owner(pointer), by):
                    found[pointer] = ANSWER[self.state.phase(pointer)]
            elif outcome is not None and may_touch(outcome.owner, by):
                found[pointer] = outcome.state
        await self._durable()
        return found

    async def forgotten(self, pointer: int) -> bool:
        """See the port. Durable: what was handed out so long ago is."""
        self._check_open()
        return self._forgotten(pointer)

    def _forgotten(self, pointer: int) -> bool:
        age_ms = self._steady.now_ms() - pointer // POINTERS_PER_MS
        return age_ms > self.limits.max_lifetime_ms and may_know(self._openings, self.state.last, pointer)

    async def root(self, pointer: int) -> int | None:
        """See the port. That it is in progress is durable no later than what is submitted to the same writer next."""
        return self.state.roots[pointer] if await self._in_progress(pointer) else None

    async def enlist(self, pointer: int, participant: str, by: str | None = None) -> Owned | None:
        """Enlists a participant; durable no later than what is submitted to the same writer next. See the port."""
        _check_string(participant, "participant")
        if not await self._in_progress(pointer, by):
            return None
        edits = decisions.enlist(self.state, pointer, participant)
        if edits:
            owner, limit = self.state.owner(pointer), self.limits.max_of_one * self.limits.max_topics_each
            of_those = "topics in transactions in progress", "end some"
            check_held(owner, self.state.enlisted.of(owner), 1, limit, "participants", *of_those, soon=True)
            # Lazily: it shares the sync of the messages that follow on it.
            self._log.append(self.state, edits, Batch(), lazily=True)
        return Owned(self.state.owner(pointer))

    async def _in_progress(self, pointer: int, by: str | None = None) -> bool:
        """Returns whether a pointer is in progress; False for one never handed out here.

        Raises NotAllowed, TransactionNotInProgress.
        """
        self._check_open()
        if pointer in self.state.pointers and may_touch(self.state.owner(pointer), by):
            return True
        phase, owner = await self._found(pointer)
        if phase is not Phase.UNKNOWN:
            await self._durable()
            _check_owner(pointer, owner, by, Right.ADMIN)
            judge(pointer, phase, Move.ENLIST)
        return False

    def ended(self, pointer: int) -> bool:
        """See the port. Exact for participants that have not acknowledged the end."""
        root = self.state.roots.get(pointer)
        return pointer in self._recent if root is None else root in self.state.ended

    async def unacknowledged(
        self, wait_seconds: float, store_id: str | None = None, wanted: Wanted = EVERYTHING
    ) -> Sequence[Settlement]:
        """See the port. At most 1,000; the same again until they are acknowledged."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_seconds
        while True:
            self._check_open()
            found = self._settlements(self._store_id if store_id is None else store_id, wanted)
            left = end - loop.time()
            if found or left <= 0:
                await self._durable()
                return found
            with suppress(TimeoutError):
                await asyncio.wait_for(self._more_ended.wait(), left)

    def _settlements(self, store_id: str, wanted: Wanted) -> Sequence[Settlement]:
        """Collects the ends that participants wait for. Each is looked at once: what others have to do costs nothing."""
        prefix = f"{store_id}:" if store_id else ""
        found: list[Settlement] = []
        for participant, pointers in self.state.waiting.items():
            if not participant.startswith(prefix) or not wanted.wants(participant):
                continue
            for pointer in islice(pointers, _SETTLEMENTS - len(found)):
                phase = self.state.ended[self.state.roots[pointer]].phase
                found.append(Settlement(write_pointer=pointer, state=ANSWER[phase], participant=participant))
            if len(found) == _SETTLEMENTS:
                break
        return found

    async def acknowledge(self, pointer: int, participant: str) -> None:
        """Notes that a participant has dealt with the end; of a transaction in progress, or unknown, there is nothing to note."""
        self._check_open()
        if pointer in self.state.waiting.get(participant, ()):
            self._log.append(self.state, decisions.acknowledge(self.state, pointer, participant), Batch(), lazily=True)

    # --- keeping house ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ends transactions that have lived too long, until cancelled or the store fails."""
        while True:
            try:
                await self.expire_due()
            except (StorageFailed, StorageUnavailable):
                return  # the service reads everything back and runs this anew
            self._nudge.clear()
            now = self._clock.monotonic()
            pause = min(max(self._lifetimes.next_seconds(now, _TICK_SECONDS), _SHORTEST_PAUSE_SECONDS), _TICK_SECONDS)
            self._wakes = now + pause
            try:
                await asyncio.wait_for(self._nudge.wait(), pause)
            except TimeoutError:
                continue
            await asyncio.sleep(_SHORTEST_PAUSE_SECONDS)

    async def expire_due(self) -> int:
        """Moves transactions that have lived too long to the invalid ones; returns how many, when that is on disk."""
        self._check_open()
        expired = 0
        while edits := decisions.time_out(self.state, self._lifetimes.due(self._clock.monotonic())[:_TIMED_OUT_AT_ONCE]):
            expired += len(edits)
            self._writer.counts.timed_out += len(edits)
            await self._submit(edits)
            self._check_open()
        return expired

    async def forget_outcomes(self, limit: int = 1_000) -> int:
        """Forgets at most ``limit`` outcomes older than a transaction can live, and as many old invalid ones whose participants
        have all acknowledged it; returns how many. Call it until that is 0.

        How old one is its pointer says, not when it ended. So what was in progress at a restart is kept for as long as it may
        have lived since, and what ended shortly before one, for the grace after it.
        """
        self._check_open()
        if (self._clock.monotonic() - self._opened) * 1000 < self.limits.outcome_grace_ms:
            return 0
        return await self._prune_old(limit) + await self._delete_outcomes(limit)

    def _kept_from(self, beyond_ms: int) -> int:
        """Returns the pointer from which on everything has lived, or ended, within what a transaction may live and so long."""
        kept_ms = self.limits.max_lifetime_ms + beyond_ms
        below = max(self._steady.now_ms() - kept_ms, 0) * POINTERS_PER_MS
        if (self._clock.monotonic() - self._opened) * 1000 < kept_ms and self._oldest_recovered is not None:
            below = min(below, self._oldest_recovered)
        return below

    async def _prune_old(self, limit: int) -> int:
        if not self.limits.invalid_kept_ms:
            return 0
        edits = decisions.prune(self.state, None, self._kept_from(self.limits.invalid_kept_ms) // POINTERS_PER_MS, limit)
        if edits:
            await self._submit(edits)
        return sum(len(edit.pointers) for edit in edits if isinstance(edit, Pruned))

    async def _delete_outcomes(self, limit: int) -> int:
        keys = await read(oldest_outcomes, self._store, self._kept_from(self.limits.outcome_grace_ms), limit)
        if not keys:
            return 0
        batch = Batch()
        for key in keys:
            batch.delete(Table.OUTCOME, key)
        await self._writer.submit(batch)
        return len(keys)

    async def synced(self) -> None:
        """Returns when everything that was decided before this call is on disk. Raises StorageFailed, StorageUnavailable."""
        await self._writer.synced()

    async def close(self, snapshot: bool = True) -> None:
        """Takes nothing more; waits for what is in flight and, at a clean stop, leaves a snapshot so that nothing is replayed."""
        self.release()
        await self._writer.drained()
        if snapshot:
            await self._log.close(self.state)

    def release(self) -> None:
        """Takes nothing more, and tells all that wait to try again: before a stop, and after the store has failed."""
        self._closed = True
        self._wake()

    # --- the way every move goes --------------------------------------------------------------------------------------------

    async def _move(self, pointer: int, by: str | None, move: Move, decide: Decide) -> None:
        done = await self._begin(pointer, by, move, decide)
        await (self._durable() if done is None else done)

    async def _begin(self, pointer: int, by: str | None, move: Move, decide: Decide) -> asyncio.Future[None] | None:
        """Decides and submits; returns None if the same was done before.

        A refusal waits until what it was judged against is on disk.
        """
        self._check_open()
        try:
            if pointer in self.state.roots:
                _check_owner(pointer, self.state.owner(pointer), by, _OTHERS.get(move, Right.ADMIN))
                edits = decide(self.state, pointer)
            else:
                phase, owner = await self._found(pointer)
                _check_owner(pointer, owner, by, _OTHERS.get(move, Right.ADMIN))
                judge(pointer, phase, move)
                return None
        except OncelogError:
            await self._durable()
            raise
        return self._submit(edits) if edits else None

    async def _found(self, pointer: int) -> tuple[Phase, str | None]:
        """Returns phase and owner of the transaction that this pointer belongs to, also when only its outcome is kept."""
        phase = self.state.phase(pointer)
        if phase is not Phase.UNKNOWN:
            return phase, self.state.owner(pointer)
        outcome = await self._outcome(pointer)
        return (Phase.UNKNOWN, None) if outcome is None else (ENDED[outcome.state], outcome.owner)

    def _submit(self, edits: Edits) -> asyncio.Future[None]:
        """Hands edits over and applies them. Nothing awaits between the decision and this."""
        batch = Batch()
        ended = [outcome for edit in edits for outcome in self._outcomes(edit)]
        for pointer, outcome in ended:
            self._recent.pop(pointer, None)  # the newest stand last
            batch.put(Table.OUTCOME, outcome_key(pointer), encode_outcome(outcome))
        first = None if self._is_noted else next(filter(None, map(_handed_out, edits)), None)
        opening = [] if first is None else [Opening(self.state.last, first)]
        if opening:
            put_openings(batch, [*self._openings, *opening])
        done = self._log.append(self.state, edits, batch)
        self._openings += opening
        self._is_noted = self._is_noted or bool(opening)
        self._writer.counts.transactions.update(map(type, edits))
        if ended:
            for pointer, _ in ended:
                self._lifetimes.end(pointer)
            self._recent.update(ended)
            done.add_done_callback(self._trim_recent)
            if self.state.waiting:
                self._wake()
        return done

    def _outcomes(self, edit: Edit) -> Sequence[tuple[int, Outcome]]:
        """Returns the outcomes that an edit brings: of the transaction and each of its checkpoints."""
        if not isinstance(edit, (Committed, Aborted, Invalidated)):
            return []
        transaction = self.state.open.get(edit.pointer) or self.state.ended[edit.pointer]
        outcome = Outcome(edit.pointer, _STATE_OF[type(edit)], transaction.owner)
        return [(pointer, outcome) for pointer in (edit.pointer, *transaction.checkpoints)]

    def _trim_recent(self, _: asyncio.Future[None]) -> None:
        """Drops the oldest recent outcomes; since this one is written they are, too."""
        while len(self._recent) > _RECENT_OUTCOMES:
            del self._recent[next(iter(self._recent))]

    def _pointers_ms(self) -> int:
        """The time that numbers a write pointer."""
        return max(self._clock.now_ms(), self._first_ms)

    async def _outcome(self, pointer: int) -> Outcome | None:
        outcome = self._recent.get(pointer)
        if outcome is None and 0 < pointer <= self.state.last:
            outcome = (await read(read_outcomes, self._store, [pointer])).get(pointer)
        return outcome

    async def _durable(self) -> None:
        """Returns when everything that has been said so far is on disk. Raises StorageUnavailable: nothing was done."""
        try:
            await self._writer.drained()
        except StorageFailed as error:
            raise StorageUnavailable(str(error)) from error

    def _check_open(self) -> None:
        if self._closed:
            raise StorageUnavailable("the transaction service was closed meanwhile; nothing was done, try again")

    def _nudge_for(self, pointer: int) -> None:
        now = self._clock.monotonic()
        if now + self._lifetimes.left_seconds(pointer, now) < self._wakes:
            self._nudge.set()

    def _wake(self) -> None:
        self._more_ended.set()
        self._more_ended = asyncio.Event()


_OTHERS = dict.fromkeys((Move.ABORT, Move.ABORT_UNLESS_PREPARED, Move.INVALIDATE), Right.OPERATE)
"""What lets one make these moves with the transactions of others; the other moves take `admin`."""
_STATE_OF: dict[type[Edit], TransactionState] = {Committed: "committed", Aborted: "aborted", Invalidated: "invalid"}


def _asking(may: MayAppear | None, decide: Decide) -> Decide:
    """Decides as ``decide`` does, once ``may`` has let the transaction's messages appear. What was done before is not asked
    about, nor what a database decides."""

    def decided(state: TransactionsState, pointer: int) -> Edits:
        edits = decide(state, pointer)
        transaction = state.open.get(state.roots[pointer])
        if may is not None and edits and transaction is not None and transaction.phase is not Phase.PREPARED:
            pointers = (transaction.pointer, *transaction.checkpoints)
            may(dict.fromkeys(name for _, name in transaction.participants), pointers)
        return edits

    return decided


def _handed_out(edit: Edit) -> int | None:
    """Returns the pointer that an edit hands out."""
    return edit.pointer if isinstance(edit, Started) else edit.checkpoint if isinstance(edit, Checkpointed) else None


def _open_status(transaction: OpenTransaction, expires_ms: int, store_id: str) -> TransactionStatus:
    return TransactionStatus(
        write_pointer=transaction.pointer,
        state=ANSWER[transaction.phase],
        type="short" if transaction.kind is TransactionType.SHORT else "long",
        started_ms=transaction.pointer // POINTERS_PER_MS,
        expires_ms=expires_ms,
        resource=transaction.resource,
        store_id=store_id,
        checkpoints=list(transaction.checkpoints),
        participants=list(dict.fromkeys(name for _, name in transaction.participants)),
        owner=transaction.owner,
    )


def _ended_status(ended: EndedTransaction) -> TransactionStatus:
    return TransactionStatus(
        write_pointer=ended.pointer,
        state=ANSWER[ended.phase],
        started_ms=ended.pointer // POINTERS_PER_MS,
        checkpoints=list(ended.checkpoints),
        participants=list(dict.fromkeys(name for _, name in ended.unacknowledged)),
        owner=ended.owner,
    )


def _check_owner(pointer: int, owner: str | None, by: str | None, right: Right) -> None:
    check_owner(owner, by, f"transaction {pointer}", right)


def _check_string(text: str, what: str) -> None:
    if not text or len(text.encode()) > MAX_TEXT_BYTES:
        raise InvalidRequest(f"the {what} must have 1 to {MAX_TEXT_BYTES} bytes")
