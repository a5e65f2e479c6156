"""Decides what follows from a command to the transaction service. Pure: it is told the time and changes nothing.

A refusal comes from the table of moves (state.py), from a conflict, or from what a prepared transaction may not do any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from oncelog.errors import InvalidRequest, TransactionConflict
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType
from oncelog_service.transactions.edits import (
    Aborted,
    Acknowledged,
    Checkpointed,
    Committed,
    Edit,
    Enlisted,
    HandedIn,
    Invalidated,
    Pruned,
    Started,
)
from oncelog_service.transactions.state import MOVES, EndedTransaction, Move, OpenTransaction, Phase, TransactionsState, judge


class Start(NamedTuple):
    """Begin a transaction that times out after ``lifetime_ms``."""

    kind: TransactionType
    lifetime_ms: int


class CanCommit(NamedTuple):
    """Hand in what a transaction changed. ``lifetime_ms``, from its start, is what it has once it is prepared."""

    pointer: int
    changes: frozenset[bytes]
    resource: str | None
    lifetime_ms: int


class Commit(NamedTuple):
    """Commit a transaction, with keys beyond those handed in."""

    pointer: int
    changes: frozenset[bytes] = frozenset()


class Abort(NamedTuple):
    """Undo a transaction; with ``unless_prepared`` one that another database decides is left to it."""

    pointer: int
    unless_prepared: bool = False


class Invalidate(NamedTuple):
    """Give a transaction up."""

    pointer: int


class Checkpoint(NamedTuple):
    """Hand out a further write pointer."""

    pointer: int


class TimeOut(NamedTuple):
    """End transactions that have lived too long."""

    pointers: tuple[int, ...]


class Prune(NamedTuple):
    """Take these transactions out of the list of invalid ones, or all that began before a time."""

    pointers: frozenset[int] | None
    before_ms: int


class Enlist(NamedTuple):
    """Note a participant that is about to hold something under ``pointer``."""

    pointer: int
    participant: str


class Acknowledge(NamedTuple):
    """Note that a participant has dealt with the end of a transaction."""

    pointer: int
    participant: str


Command: TypeAlias = Start | CanCommit | Commit | Abort | Invalidate | Checkpoint | TimeOut | Prune | Enlist | Acknowledge


def decide(state: TransactionsState, command: Command, now_ms: int) -> tuple[Edit, ...]:
    """Decides what follows from a command; nothing when it has been obeyed before.

    ``now_ms`` numbers pointers, and decides nothing else.

    Raises:
        TransactionNotFound, TransactionNotInProgress, TransactionPrepared: the move is not in the table.
        TransactionConflict: another one committed one of its keys meanwhile, or is prepared to.
        InvalidRequest: a prepared transaction brings keys that it did not hand in.
    """
    return _DECIDE[type(command)](state, command, now_ms)


def _next_pointer(state: TransactionsState, now_ms: int) -> int:
    return max(state.last + 1, now_ms * POINTERS_PER_MS)


def _root(state: TransactionsState, pointer: int, move: Move) -> tuple[int, Phase]:
    """Returns the transaction's id and the phase that ``move`` leads it to."""
    after = judge(pointer, state.phase(pointer), move)
    return state.roots[pointer], after


def _start(state: TransactionsState, command: Start, now_ms: int) -> tuple[Edit, ...]:
    return (Started(_next_pointer(state, now_ms), command.kind, command.lifetime_ms),)


def _can_commit(state: TransactionsState, command: CanCommit, _: int) -> tuple[Edit, ...]:
    move = Move.HAND_IN if command.resource is None else Move.PREPARE
    root, _after = _root(state, command.pointer, move)
    transaction = state.open[root]
    if transaction.phase is Phase.PREPARED:
        _check_prepared(transaction, command.changes, command.resource)
        return ()
    _check_conflict(state, transaction, command.changes)
    lifetime_ms = transaction.lifetime_ms
    if command.resource is not None:
        lifetime_ms = max(lifetime_ms, command.lifetime_ms)
    return (HandedIn(root, lifetime_ms, command.resource, _kept(transaction, command.changes)),)


def _commit(state: TransactionsState, command: Commit, _: int) -> tuple[Edit, ...]:
    root, _after = _root(state, command.pointer, Move.COMMIT)
    transaction = state.open.get(root)
    if transaction is None:
        return ()
    if transaction.phase is Phase.PREPARED:
        _check_prepared(transaction, command.changes, None)
        return (Committed(root, frozenset()),)
    _check_conflict(state, transaction, transaction.changes | command.changes)
    return (Committed(root, _kept(transaction, command.changes) - transaction.changes),)


def _kept(transaction: OpenTransaction, changes: frozenset[bytes]) -> frozenset[bytes]:
    """Returns the keys that are kept: none of a long transaction, which is not checked, and no other one against it."""
    return frozenset() if transaction.kind is TransactionType.LONG else changes


def _check_conflict(state: TransactionsState, transaction: OpenTransaction, changes: frozenset[bytes]) -> None:
    other = state.conflict(transaction, changes)
    if other is not None:
        raise TransactionConflict(
            f"transaction {other} changed the same as transaction {transaction.pointer} and was first; "
            "roll back and try the whole transaction again",
            write_pointer=transaction.pointer,
            conflicts_with=other,
        )


def _check_prepared(transaction: OpenTransaction, changes: frozenset[bytes], resource: str | None) -> None:
    """Refuses to add what would have to be checked: the commit of a prepared transaction cannot fail any more."""
    if resource not in (None, transaction.resource):
        raise InvalidRequest(f"transaction {transaction.pointer} is prepared for {transaction.resource!r}, not for {resource!r}")
    if transaction.kind is TransactionType.SHORT and not changes <= transaction.changes:
        raise InvalidRequest(
            f"transaction {transaction.pointer} is prepared; keys that were not handed in cannot be added: "
            f"{len(changes - transaction.changes)}"
        )


def _abort(state: TransactionsState, command: Abort, _: int) -> tuple[Edit, ...]:
    root, after = _root(state, command.pointer, abort_move(command.unless_prepared))
    return () if state.phase(root) is after else (Aborted(root),)


def abort_move(unless_prepared: bool) -> Move:
    """Returns the move of the table that an abort is."""
    return Move.ABORT_UNLESS_PREPARED if unless_prepared else Move.ABORT


def _invalidate(state: TransactionsState, command: Invalidate, _: int) -> tuple[Edit, ...]:
    root, _after = _root(state, command.pointer, Move.INVALIDATE)
    return () if state.phase(root) is Phase.INVALID else (Invalidated(root),)


def _checkpoint(state: TransactionsState, command: Checkpoint, now_ms: int) -> tuple[Edit, ...]:
    root, _after = _root(state, command.pointer, Move.CHECKPOINT)
    return (Checkpointed(root, _next_pointer(state, now_ms)),)


def _time_out(state: TransactionsState, command: TimeOut, _: int) -> tuple[Edit, ...]:
    return tuple(Invalidated(pointer) for pointer in command.pointers if pointer in state.open)


def _prune(state: TransactionsState, command: Prune, _: int) -> tuple[Edit, ...]:
    if command.pointers is None:
        chosen = [each for each in state.ended if each < command.before_ms * POINTERS_PER_MS]
    else:
        roots = {state.roots.get(pointer) for pointer in command.pointers}
        chosen = [each for each in roots if each in state.ended]
    gone = tuple(sorted(each for each in chosen if _may_be_pruned(state.ended[each])))
    return (Pruned(gone),) if gone else ()


def _may_be_pruned(ended: EndedTransaction) -> bool:
    return Move.PRUNE in MOVES[ended.phase] and not ended.unacknowledged


def _enlist(state: TransactionsState, command: Enlist, _: int) -> tuple[Edit, ...]:
    root, _after = _root(state, command.pointer, Move.ENLIST)
    if (command.pointer, command.participant) in state.open[root].participants:
        return ()
    return (Enlisted(command.pointer, command.participant),)


def _acknowledge(state: TransactionsState, command: Acknowledge, _: int) -> tuple[Edit, ...]:
    root, _after = _root(state, command.pointer, Move.ACKNOWLEDGE)
    if (command.pointer, command.participant) not in state.ended[root].unacknowledged:
        return ()
    return (Acknowledged(command.pointer, command.participant),)


_DECIDE: dict[type[Command], Callable[[TransactionsState, Any, int], tuple[Edit, ...]]] = {
    Start: _start,
    CanCommit: _can_commit,
    Commit: _commit,
    Abort: _abort,
    Invalidate: _invalidate,
    Checkpoint: _checkpoint,
    TimeOut: _time_out,
    Prune: _prune,
    Enlist: _enlist,
    Acknowledge: _acknowledge,
}
