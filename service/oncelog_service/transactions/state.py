"""Holds the state of all transactions, and the rules by which it moves. Pure: it is told the time and writes nothing.

For every call of the service a function of decisions.py says what follows from it, as edits (edits.py), or raises;
``state.apply(edit)`` makes it so and cannot fail. Replaying the edits in their order gives the same state,
so what is on disk is the edits, and recovery is the fold over them.

A transaction is an id, which is its first write pointer, and any number of checkpoints: further pointers that end with it. This
table is what may become of it; the refusals come from it too. An outcome never changes, but from invalid to aborted when its
client comes back. What was aborted is hidden until every participant has acknowledged it: at no moment is a part of it seen.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from itertools import takewhile
from typing import Any, Literal, NamedTuple, TypeAlias

from oncelog.errors import TransactionNotFound, TransactionNotInProgress, TransactionPrepared
from oncelog.wire.models import TransactionState
from oncelog.wire.transaction import NO_SHORT, Transaction, TransactionType
from oncelog_service.bounds.holding import Held
from oncelog_service.transactions.edits import (
    Aborted,
    Acknowledged,
    ChangesDropped,
    Checkpointed,
    Committed,
    Edit,
    Enlisted,
    HandedIn,
    Invalidated,
    Pruned,
    Started,
)


class Phase(Enum):
    """A stage in the life of a transaction. The value is how a refusal puts it."""

    UNKNOWN = "unknown"
    OPEN = "in progress"
    COMMITTING = "about to commit"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"
    INVALID = "invalid"
    PRUNED = "invalid and pruned"

    __hash__ = object.__hash__


class Move(Enum):
    """A thing that may happen to a transaction. The value is how a refusal puts it."""

    START = "started"
    HAND_IN = "asked whether it can commit"
    PREPARE = "prepared"
    COMMIT = "committed"
    ABORT = "aborted"
    ABORT_UNLESS_PREPARED = "aborted by others"
    INVALIDATE = "invalidated"
    TIME_OUT = "timed out"
    CHECKPOINT = "checkpointed"
    ENLIST = "joined"
    ACKNOWLEDGE = "acknowledged"
    PRUNE = "pruned"

    __hash__ = object.__hash__


_WHILE_OPEN = {
    Move.PREPARE: Phase.PREPARED,
    Move.COMMIT: Phase.COMMITTED,
    Move.ABORT: Phase.ABORTED,
    Move.INVALIDATE: Phase.INVALID,
    Move.TIME_OUT: Phase.INVALID,
}

MOVES: dict[Phase, dict[Move, Phase]] = {
    Phase.UNKNOWN: {Move.START: Phase.OPEN},
    Phase.OPEN: {
        **_WHILE_OPEN,
        Move.HAND_IN: Phase.COMMITTING,
        Move.CHECKPOINT: Phase.OPEN,
        Move.ENLIST: Phase.OPEN,
        Move.ABORT_UNLESS_PREPARED: Phase.ABORTED,
    },
    # can-commit may be repeated, and the publisher, which is the last participant, enlists only now.
    Phase.COMMITTING: {
        **_WHILE_OPEN,
        Move.HAND_IN: Phase.COMMITTING,
        Move.CHECKPOINT: Phase.COMMITTING,
        Move.ENLIST: Phase.COMMITTING,
        Move.ABORT_UNLESS_PREPARED: Phase.ABORTED,
    },
    # From here on another database decides. What it needs to commit is kept for it, see `_reserve`: a prepared transaction can
    # always commit. A caller that does not know what it has decided, such as a producer that is opened anew, cannot abort:
    # ABORT_UNLESS_PREPARED is not here, and it is one move, so that no caller looks first and aborts then.
    Phase.PREPARED: {
        **_WHILE_OPEN,
        Move.HAND_IN: Phase.PREPARED,
        Move.CHECKPOINT: Phase.PREPARED,
        Move.ENLIST: Phase.PREPARED,
    },
    Phase.COMMITTED: {Move.COMMIT: Phase.COMMITTED, Move.ACKNOWLEDGE: Phase.COMMITTED},
    Phase.ABORTED: {Move.ABORT: Phase.ABORTED, Move.ABORT_UNLESS_PREPARED: Phase.ABORTED, Move.ACKNOWLEDGE: Phase.ABORTED},
    # A client that finds its transaction timed out rolls back and aborts: then it need not be pruned (as in Tephra). Others
    # cannot say that its participants have rolled back: it stays invalid.
    Phase.INVALID: {
        Move.INVALIDATE: Phase.INVALID,
        Move.ABORT: Phase.ABORTED,
        Move.ABORT_UNLESS_PREPARED: Phase.INVALID,
        Move.ACKNOWLEDGE: Phase.INVALID,
        Move.PRUNE: Phase.PRUNED,
    },
    Phase.PRUNED: {
        Move.INVALIDATE: Phase.PRUNED,
        Move.ABORT: Phase.PRUNED,
        Move.ABORT_UNLESS_PREPARED: Phase.PRUNED,
        Move.ACKNOWLEDGE: Phase.PRUNED,
    },
}

ANSWER: dict[Phase, TransactionState] = {
    Phase.OPEN: "in_progress",
    Phase.COMMITTING: "in_progress",
    Phase.PREPARED: "in_progress",
    Phase.COMMITTED: "committed",
    Phase.ABORTED: "aborted",
    Phase.INVALID: "invalid",
    Phase.PRUNED: "invalid",
}
"""What a phase is called on the wire."""

ENDED: dict[TransactionState, Phase] = {"committed": Phase.COMMITTED, "aborted": Phase.ABORTED, "invalid": Phase.PRUNED}
"""The phase of a transaction of which only the outcome is known any more."""


def judge(pointer: int, phase: Phase, move: Move) -> Phase:
    """Returns the phase that ``move`` leads to. Raises TransactionNotFound, TransactionNotInProgress, TransactionPrepared."""
    after = MOVES[phase].get(move)
    if after is not None:
        return after
    if phase is Phase.UNKNOWN:
        raise not_found(pointer)
    if phase is Phase.PREPARED and move is Move.ABORT_UNLESS_PREPARED:
        raise TransactionPrepared(
            f"transaction {pointer} is prepared: its database decides about it; nothing was done", write_pointer=pointer
        )
    possible = ", ".join(each.value for each, moves in MOVES.items() if move in moves)
    raise TransactionNotInProgress(
        f"transaction {pointer} is {phase.value}; to be {move.value} it must be one of: {possible}",
        write_pointer=pointer,
        state=ANSWER[phase],
    )


def not_found(pointer: int, forgotten: bool = False) -> TransactionNotFound:
    """Returns the refusal of a pointer that was never handed out, or whose outcome is no longer kept."""
    return TransactionNotFound(f"no transaction {pointer} is known here", write_pointer=pointer, forgotten=forgotten or None)


# --- the state ----------------------------------------------------------------------------------------------------------


class Participant(NamedTuple):
    """A pointer, and who holds something under it."""

    pointer: int
    name: str


class OpenTransaction(NamedTuple):
    """A transaction in progress. Values are replaced, never changed: a copy of the state is a copy of its dictionaries."""

    pointer: int
    kind: TransactionType
    phase: Phase
    read_pointer: int
    """As of its start, as ``first_short``: its checkpoints read the same snapshot."""
    first_short: int
    lifetime_ms: int
    """How long it may live; lifetimes.py measures."""
    resource: str | None = None
    changes: frozenset[bytes] = frozenset()
    """Of a short one."""
    checkpoints: tuple[int, ...] = ()
    participants: tuple[Participant, ...] = ()
    owner: str | None = None


EndedPhase: TypeAlias = Literal[Phase.COMMITTED, Phase.ABORTED, Phase.INVALID]


class EndedTransaction(NamedTuple):
    """An ended transaction that is still needed: by a participant or, if it is invalid, until it is pruned."""

    pointer: int
    phase: EndedPhase
    checkpoints: tuple[int, ...]
    unacknowledged: tuple[Participant, ...]
    owner: str | None = None


class CommittedChanges(NamedTuple):
    """The keys of a committed transaction. Those that began before ``commit_pointer`` conflict with them."""

    commit_pointer: int
    pointer: int
    changes: frozenset[bytes]
    weight: int
    """Of the keys."""


def committed_changes(commit_pointer: int, pointer: int, changes: frozenset[bytes]) -> CommittedChanges:
    """Returns the change set of a transaction that commits."""
    return CommittedChanges(commit_pointer, pointer, changes, weight(changes))


def weight(changes: Collection[bytes]) -> int:
    """Returns about how many bytes of memory a change set takes while it is kept."""
    return sum(map(len, changes)) + _KEY_BYTES * len(changes) + _SET_BYTES if changes else 0


class LateCommit(NamedTuple):
    """A pointer that a younger transaction met in progress and that has committed since."""

    pointer: int
    commit_pointer: int


_LATE_COMMITS = 1_000
"""Up to so many late commits are kept before those that nobody needs are swept out."""
_KEY_BYTES, _SET_BYTES = 120, 390
"""Beyond a key's own bytes, and beyond those of a set's keys: measured, CPython 3.11."""
_SWEPT_KEYS = 20_000
"""Of change sets that are dropped at a time: 10 ms."""


class TransactionsState:
    """All transactions that are in progress or not dealt with. :meth:`apply` is its only change."""

    def __init__(self) -> None:
        self.number = 0
        """Of the last edit that is in it."""
        self.last = 0
        """The highest pointer handed out."""
        self.read_pointer = 0
        """The highest pointer of a transaction that has ended."""
        self.open: dict[int, OpenTransaction] = {}
        """By id, rising."""
        self.ended: dict[int, EndedTransaction] = {}
        self.committed: deque[CommittedChanges] = deque()
        """In the order of their commits, as long as a short transaction in progress may conflict with them."""
        self.late: list[LateCommit] = []
        """In the order of their commits."""
        self.late_limit = _LATE_COMMITS
        self.unjudged: dict[int, None] = {}
        """Short ones in progress of which nobody can say any more whether they conflict, since change sets that they may conflict
        with are dropped; rising. They commit if they have changed nothing."""
        # What follows from the above:
        self.roots: dict[int, int] = {}
        """The id that each pointer known here belongs to."""
        self.pointers: dict[int, None] = {}
        """Those in progress, rising, since they are handed out so."""
        self.waiting: dict[str, dict[int, None]] = {}
        """Participant → the pointers of ended transactions of which it is to be notified, in the order of their ends."""
        self._hidden: list[int] = []
        """Rising. There may be very many, and each start hands them out."""
        self._invalids: tuple[int, ...] | None = ()
        self.in_progress = Held()
        """Pointers of transactions in progress, in whatever phase: one each, and its checkpoints."""
        self.enlisted = Held()
        """Participants of transactions in progress, once for each pointer."""
        self.invalid = Held()
        """Pointers of invalid transactions."""
        self.handed_in = Held()
        """:func:`weight` of the change sets of transactions in progress."""
        self.changed = Held()
        """:func:`weight` of the change sets that have committed and are kept."""
        self.judged: dict[int, None] = {}
        """Short ones in progress that may still find a conflict, rising: those that are neither prepared nor unjudged."""
        self._committers: dict[int, str] = {}
        """By the id of its transaction, whose a committed change set is."""
        self._shorts: dict[int, None] = {}
        self._newest: dict[bytes, CommittedChanges] = {}
        """By key, who committed it last: if that is no conflict, none before it was one."""
        self._reserved: dict[bytes, int] = {}
        """By key, the prepared transaction that must be able to commit it."""

    # --- what it says

    def phase(self, pointer: int) -> Phase:
        """Returns the phase of the transaction that this pointer belongs to; UNKNOWN also once it is dealt with."""
        root = self.roots.get(pointer)
        if root is None:
            return Phase.UNKNOWN
        transaction = self.open.get(root)
        return self.ended[root].phase if transaction is None else transaction.phase

    def owner(self, pointer: int) -> str | None:
        """Returns the owner of the transaction, known here, that this pointer belongs to."""
        root = self.roots[pointer]
        return (self.open.get(root) or self.ended[root]).owner

    def committer(self, committed: CommittedChanges) -> str | None:
        """Returns whose a change set is that is kept."""
        return self._committers.get(committed.pointer)

    @property
    def invalids(self) -> tuple[int, ...]:
        """Pointers never to be seen, rising: invalid until pruned, aborted until every participant has acknowledged."""
        if self._invalids is None:
            self._invalids = tuple(self._hidden)
        return self._invalids

    @property
    def first_short(self) -> int:
        """The oldest short transaction in progress."""
        return next(iter(self._shorts), NO_SHORT)

    @property
    def size(self) -> int:
        """Roughly how many things a snapshot of it holds."""
        return len(self.open) + len(self.ended) + len(self.committed) + len(self._newest) + len(self.late)

    def transaction(self, pointer: int) -> Transaction:
        """Returns a transaction in progress as its participants need it, with the snapshot that it began with.

        Pointers that have become invalid since are in ``invalids`` instead of ``in_progress``: in both they are not seen.
        """
        begun = self.open[pointer]
        return Transaction(
            transaction_id=pointer,
            read_pointer=begun.read_pointer,
            invalids=self.invalids,
            in_progress=self._in_progress_before(pointer),
            first_short=begun.first_short,
            type=begun.kind,
            write_pointer=begun.checkpoints[-1] if begun.checkpoints else pointer,
            checkpoint_write_pointers=begun.checkpoints,
        )

    def _in_progress_before(self, pointer: int) -> tuple[int, ...]:
        """Returns the pointers that were in progress when this one was handed out, rising, without those that are invalid now."""
        pointers = tuple(self.pointers)
        before = pointers[: bisect_left(pointers, pointer)]
        if self.late and self.late[-1].commit_pointer > pointer:
            since = [late.pointer for late in self.late if late.pointer < pointer < late.commit_pointer]
            before = tuple(sorted([*before, *since]))
        return before

    def conflict(self, transaction: OpenTransaction, changes: frozenset[bytes]) -> int | None:
        """Returns a transaction that committed one of these keys since this one began, or is prepared to; only short ones
        have any."""
        if transaction.kind is TransactionType.LONG:
            return None
        for key in changes & self._newest.keys():
            if self._newest[key].commit_pointer > transaction.pointer:
                return self._newest[key].pointer
        # A prepared transaction is not asked any more: what is reserved is another's.
        return next((self._reserved[key] for key in changes & self._reserved.keys()), None)

    def copy(self) -> TransactionsState:
        """Returns a state that later edits to this one do not change; only good for :func:`snapshot.encode_snapshot`."""
        copy = TransactionsState()
        copy.number, copy.last, copy.read_pointer, copy.late_limit = self.number, self.last, self.read_pointer, self.late_limit
        copy.open, copy.ended = self.open.copy(), self.ended.copy()
        copy.committed, copy.late, copy.unjudged = self.committed.copy(), self.late.copy(), self.unjudged.copy()
        return copy

    # --- how it moves

    def apply(self, edit: Edit) -> None:
        """Moves by an edit. Edits must be those that decisions.py made, in that order."""
        self.number += 1
        _APPLY[type(edit)](self, edit)

    def _started(self, edit: Started) -> None:
        pointer = edit.pointer
        if self.last == 0:
            self.read_pointer = pointer - 1  # the first reader sees what other services' transactions wrote before
        self.last = pointer
        begun = OpenTransaction(pointer, edit.kind, Phase.OPEN, self.read_pointer, self.first_short, edit.lifetime_ms)
        self._track_open(begun._replace(owner=edit.owner))

    def _handed_in(self, edit: HandedIn) -> None:
        before = self.open[edit.pointer]
        move = Move.HAND_IN if edit.resource is None else Move.PREPARE
        after = before._replace(
            phase=MOVES[before.phase][move],
            lifetime_ms=edit.lifetime_ms,
            resource=edit.resource,
            changes=edit.changes,
        )
        self.open[edit.pointer] = after
        self.handed_in.add(before.owner, weight(after.changes) - weight(before.changes))
        if after.phase is Phase.PREPARED:
            self._reserve(after)
            self._sweep()

    def _committed(self, edit: Committed) -> None:
        transaction = self._close(edit.pointer)
        pointers = (transaction.pointer, *transaction.checkpoints)
        commit_pointer = self.last + 1
        changes = transaction.changes | edit.changes
        if changes:
            self._remember(committed_changes(commit_pointer, transaction.pointer, changes), transaction.owner)
        youngest = next(reversed(self.open), 0)
        self.late += [LateCommit(pointer, commit_pointer) for pointer in pointers if pointer < youngest]
        self._place(transaction, Phase.COMMITTED)
        self._sweep()

    def _aborted(self, edit: Aborted) -> None:
        ended = self.ended.get(edit.pointer)
        if ended is None:
            self._place(self._close(edit.pointer), Phase.ABORTED)
            self._sweep()
        elif ended.unacknowledged:
            self.ended[edit.pointer] = ended._replace(phase=Phase.ABORTED)
            self.invalid.add(ended.owner, -1 - len(ended.checkpoints))
        else:
            self._forget([ended])

    def _invalidated(self, edit: Invalidated) -> None:
        self._place(self._close(edit.pointer), Phase.INVALID)
        self._sweep()

    def _checkpointed(self, edit: Checkpointed) -> None:
        transaction = self.open[edit.pointer]
        self.last = edit.checkpoint
        self.open[edit.pointer] = transaction._replace(checkpoints=(*transaction.checkpoints, edit.checkpoint))
        self.roots[edit.checkpoint] = edit.pointer
        self.pointers[edit.checkpoint] = None
        self.in_progress.add(transaction.owner, 1)

    def _pruned(self, edit: Pruned) -> None:
        self._forget([self.ended[pointer] for pointer in edit.pointers])

    def _enlisted(self, edit: Enlisted) -> None:
        root = self.roots[edit.pointer]
        transaction = self.open[root]
        self.open[root] = transaction._replace(participants=(*transaction.participants, Participant(*edit)))
        self.enlisted.add(transaction.owner, 1)

    def _acknowledged(self, edit: Acknowledged) -> None:
        root = self.roots[edit.pointer]
        ended = self.ended[root]
        left = tuple(each for each in ended.unacknowledged if each != (edit.pointer, edit.participant))
        self.ended[root] = after = ended._replace(unacknowledged=left)
        pointers = self.waiting[edit.participant]
        del pointers[edit.pointer]
        if not pointers:
            del self.waiting[edit.participant]
        if not left and ended.phase is not Phase.INVALID:
            self._forget([after])

    def _changes_dropped(self, edit: ChangesDropped) -> None:
        self.leave_unjudged([*takewhile(lambda pointer: pointer < edit.commit_pointer, self.judged)])
        self._sweep()

    # --- the parts of moves

    def track(self, opened: Collection[OpenTransaction], ended: Collection[EndedTransaction]) -> None:
        """Takes these into an empty state: for reading a snapshot back, whose order this relies on."""
        for transaction in opened:
            self._track_open(transaction)
            for checkpoint in transaction.checkpoints:
                self.roots[checkpoint] = transaction.pointer
                self.pointers[checkpoint] = None
            if transaction.phase is Phase.PREPARED:
                self._reserve(transaction)
        self.pointers = dict.fromkeys(sorted(self.pointers))
        for each in ended:
            self._track_ended(each)

    def leave_unjudged(self, pointers: Collection[int]) -> None:
        """Keeps no change set for these any more: the oldest that are judged."""
        for pointer in pointers:
            del self.judged[pointer]
            self.unjudged[pointer] = None

    def _track_open(self, transaction: OpenTransaction) -> None:
        pointer = transaction.pointer
        self.open[pointer] = transaction
        self.roots[pointer] = pointer
        self.pointers[pointer] = None
        self.in_progress.add(transaction.owner, 1 + len(transaction.checkpoints))
        self.enlisted.add(transaction.owner, len(transaction.participants))
        self.handed_in.add(transaction.owner, weight(transaction.changes))
        if transaction.kind is TransactionType.SHORT:
            self._shorts[pointer] = self.judged[pointer] = None

    def _track_ended(self, ended: EndedTransaction) -> None:
        pointers = (ended.pointer, *ended.checkpoints)
        self.ended[ended.pointer] = ended
        for pointer in pointers:
            self.roots[pointer] = ended.pointer
        for pointer, participant in ended.unacknowledged:
            self.waiting.setdefault(participant, {})[pointer] = None
        if ended.phase is not Phase.COMMITTED:
            for pointer in pointers:
                insort(self._hidden, pointer)
            self._invalids = None
        if ended.phase is Phase.INVALID:
            self.invalid.add(ended.owner, len(pointers))

    def _reserve(self, prepared: OpenTransaction) -> None:
        """Reserves the keys of a prepared transaction: its database may have committed, so the conflict is found by the
        others."""
        self._reserved.update(dict.fromkeys(prepared.changes, prepared.pointer))
        self.judged.pop(prepared.pointer, None)
        self.unjudged.pop(prepared.pointer, None)

    def _close(self, pointer: int) -> OpenTransaction:
        transaction = self.open.pop(pointer)
        pointers = (pointer, *transaction.checkpoints)
        for each in pointers:
            del self.pointers[each]
        self.in_progress.add(transaction.owner, -len(pointers))
        self.enlisted.add(transaction.owner, -len(transaction.participants))
        self.handed_in.add(transaction.owner, -weight(transaction.changes))
        self._shorts.pop(pointer, None)
        self.judged.pop(pointer, None)
        self.unjudged.pop(pointer, None)
        if transaction.phase is Phase.PREPARED:
            for key in transaction.changes:
                del self._reserved[key]
        self.read_pointer = max(self.read_pointer, pointers[-1])
        return transaction

    def _place(self, transaction: OpenTransaction, phase: EndedPhase) -> None:
        """Keeps an ended transaction as long as it must be dealt with."""
        if transaction.participants or phase is Phase.INVALID:
            pointer, checkpoints, participants = transaction.pointer, transaction.checkpoints, transaction.participants
            self._track_ended(EndedTransaction(pointer, phase, checkpoints, participants, transaction.owner))
        else:
            for pointer in (transaction.pointer, *transaction.checkpoints):
                del self.roots[pointer]

    def _forget(self, all_ended: Collection[EndedTransaction]) -> None:
        hidden: list[int] = []
        for ended in all_ended:
            del self.ended[ended.pointer]
            if ended.phase is Phase.INVALID:
                self.invalid.add(ended.owner, -1 - len(ended.checkpoints))
            for pointer in (ended.pointer, *ended.checkpoints):
                del self.roots[pointer]
                if ended.phase is not Phase.COMMITTED:
                    hidden.append(pointer)
        if hidden:
            self._hidden = _without(self._hidden, hidden)
            self._invalids = None

    def _remember(self, committed: CommittedChanges, owner: str | None) -> None:
        self.committed.append(committed)
        self.changed.add(owner, committed.weight)
        if owner is not None:
            self._committers[committed.pointer] = owner
        self._newest.update(dict.fromkeys(committed.changes, committed))

    def recall(self, committed: Collection[CommittedChanges]) -> None:
        """Takes committed change sets into an empty state: for reading a snapshot back, which does not say whose they are."""
        for each in committed:
            self._remember(each, None)

    def attribute(self, owners: Mapping[int, str | None]) -> None:
        """Says by id whose the recalled change sets are."""
        for each in self.committed:
            owner = owners.get(each.pointer)
            if owner is not None:
                self._committers[each.pointer] = owner
                self.changed.add(None, -each.weight)
                self.changed.add(owner, each.weight)

    def sweep_changes(self) -> bool:
        """Drops change sets that nobody who is judged can conflict with, as edits do: it may be called at any time. Tells whether
        it dropped any.

        Some at a time: all that was committed beside a slow transaction becomes free when that ends, and it holds up everybody to
        drop a million keys. The rest goes when the next ones end, each of which adds one at most, or find no room.
        """
        first = next(iter(self.judged), NO_SHORT)
        kept, keys = len(self.committed), 0
        while self.committed and self.committed[0].commit_pointer <= first and keys < _SWEPT_KEYS:
            dropped = self.committed.popleft()
            keys += len(dropped.changes)
            self.changed.add(self._committers.pop(dropped.pointer, None), -dropped.weight)
            for key in dropped.changes:
                if self._newest[key] is dropped:
                    del self._newest[key]
        return len(self.committed) < kept

    def _sweep(self) -> None:
        """Drops what nobody in progress can conflict with, and the late commits that nobody overtook."""
        self.sweep_changes()
        if not self.open:
            self.late.clear()
        elif len(self.late) > self.late_limit:
            ids = tuple(self.open)
            self.late = [late for late in self.late if _between(ids, late.pointer, late.commit_pointer)]
            self.late_limit = max(_LATE_COMMITS, 2 * len(self.late))


def _without(rising: list[int], gone: list[int]) -> list[int]:
    """Returns the list without some of its members: one by one if they are few, else in one go."""
    if len(gone) > 16:
        members = set(gone)
        return [each for each in rising if each not in members]
    for each in gone:
        del rising[bisect_left(rising, each)]
    return rising


def _between(ids: tuple[int, ...], low: int, high: int) -> bool:
    """Returns whether one of the rising ``ids`` lies between the two."""
    at = bisect_left(ids, low + 1)
    return at < len(ids) and ids[at] < high


_APPLY: dict[type[Edit], Callable[[TransactionsState, Any], None]] = {
    Started: TransactionsState._started,
    HandedIn: TransactionsState._handed_in,
    Committed: TransactionsState._committed,
    Aborted: TransactionsState._aborted,
    Invalidated: TransactionsState._invalidated,
    Checkpointed: TransactionsState._checkpointed,
    Pruned: TransactionsState._pruned,
    Enlisted: TransactionsState._enlisted,
    Acknowledged: TransactionsState._acknowledged,
    ChangesDropped: TransactionsState._changes_dropped,
}
