"""Decides what follows from each call of the transaction service. Pure: it is told the time and changes nothing.

Each function returns the edits that follow; none when the same has been asked before. A refusal comes from the table of moves
(state.py), from a conflict, or from what a prepared transaction may not do any more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from oncelog.errors import InvalidRequest, TransactionConflict
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType, next_own
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
from oncelog_service.transactions.state import MOVES, EndedTransaction, Move, OpenTransaction, Phase, TransactionsState, judge

Edits: TypeAlias = tuple[Edit, ...]
_NO_KEYS: frozenset[bytes] = frozenset()


def start(state: TransactionsState, kind: TransactionType, lifetime_ms: int, now_ms: int, owner: str | None = None) -> Edits:
    """Begins a transaction that times out after ``lifetime_ms``; ``now_ms`` numbers it, and decides nothing."""
    return (Started(_next_pointer(state, now_ms), kind, lifetime_ms, owner),)


def _next_pointer(state: TransactionsState, now_ms: int) -> int:
    """Returns one above all that were handed out, from the half of a millisecond that is ours."""
    return next_own(max(state.last + 1, now_ms * POINTERS_PER_MS))


def _judged(state: TransactionsState, pointer: int, move: Move) -> tuple[int, Phase]:
    """Returns the transaction's id and the phase that ``move`` leads it to.

    Raises TransactionNotFound, TransactionNotInProgress, TransactionPrepared: the move is not in the table.
    """
    after = judge(pointer, state.phase(pointer), move)
    return state.roots[pointer], after


def can_commit(
    state: TransactionsState, pointer: int, changes: frozenset[bytes], resource: str | None, lifetime_ms: int
) -> Edits:
    """Hands in what a transaction changed. ``lifetime_ms``, from its start, is what it has once it is prepared.

    Raises:
        TransactionConflict: another one committed one of its keys meanwhile, or is prepared to; or that is not known any more.
        InvalidRequest: it is prepared, for another database or without one of these keys.
    """
    root, _ = _judged(state, pointer, Move.HAND_IN if resource is None else Move.PREPARE)
    transaction = state.open[root]
    if transaction.phase is Phase.PREPARED:
        _check_prepared(transaction, changes, resource)
        return ()
    _check_conflict(state, transaction, changes)
    lifetime_ms = transaction.lifetime_ms if resource is None else max(transaction.lifetime_ms, lifetime_ms)
    return (HandedIn(root, lifetime_ms, resource, _kept(transaction, changes)),)


def commit(state: TransactionsState, pointer: int, changes: frozenset[bytes] = _NO_KEYS) -> Edits:
    """Commits a transaction, with keys beyond those handed in. Raises as :func:`can_commit`."""
    root, _ = _judged(state, pointer, Move.COMMIT)
    transaction = state.open.get(root)
    if transaction is None:
        return ()
    if transaction.phase is Phase.PREPARED:
        _check_prepared(transaction, changes, None)
        return (Committed(root, _NO_KEYS),)
    _check_conflict(state, transaction, transaction.changes | changes)
    return (Committed(root, _kept(transaction, changes) - transaction.changes),)


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
    if changes and transaction.pointer in state.unjudged:
        raise too_old(transaction.pointer)


def too_old(pointer: int) -> TransactionConflict:
    """Returns the refusal of a transaction that has changed something and began before change sets that are dropped."""
    return TransactionConflict(
        f"transaction {pointer} is too old to change anything: not all that others have changed since it began is kept, and it "
        "may be the same; roll back and try the whole transaction again",
        write_pointer=pointer,
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


def drop_changes(
    state: TransactionsState, owner: str | None, of_owner: int, of_all: int, judged_from: int
) -> tuple[ChangesDropped, ...]:
    """Drops the oldest change sets, until so much of the owner's, and of all, is dropped.

    None, if that is not enough, or a transaction from the pointer ``judged_from`` on may conflict with one of them.
    """
    for dropped in state.committed:
        if dropped.commit_pointer > judged_from:
            break
        of_all -= dropped.weight
        if state.committer(dropped) == owner:
            of_owner -= dropped.weight
        if of_owner <= 0 and of_all <= 0:
            return (ChangesDropped(dropped.commit_pointer),)
    return ()


def abort(state: TransactionsState, pointer: int, move: Move = Move.ABORT) -> Edits:
    """Undoes a transaction; by ABORT_UNLESS_PREPARED one that another database decides is left to it."""
    root, after = _judged(state, pointer, move)
    return () if state.phase(root) is after else (Aborted(root),)


def invalidate(state: TransactionsState, pointer: int) -> Edits:
    """Gives a transaction up."""
    root, after = _judged(state, pointer, Move.INVALIDATE)
    return () if state.phase(root) is after else (Invalidated(root),)


def checkpoint(state: TransactionsState, pointer: int, now_ms: int) -> Edits:
    """Hands out a further write pointer."""
    root, _ = _judged(state, pointer, Move.CHECKPOINT)
    return (Checkpointed(root, _next_pointer(state, now_ms)),)


def time_out(state: TransactionsState, pointers: Collection[int]) -> Edits:
    """Ends transactions that have lived too long."""
    return tuple(Invalidated(pointer) for pointer in pointers if pointer in state.open)


def prune(state: TransactionsState, pointers: Collection[int] | None, before_ms: int, limit: int | None = None) -> Edits:
    """Takes these transactions out of the list of invalid ones, or all that began before a time; at most ``limit``."""
    if pointers is None:
        chosen = [each for each in state.ended if each < before_ms * POINTERS_PER_MS]
    else:
        chosen = [each for each in dict.fromkeys(map(state.roots.get, pointers)) if each in state.ended]
    gone = tuple(sorted(each for each in chosen if _may_be_pruned(state.ended[each])))[:limit]
    return (Pruned(gone),) if gone else ()


def _may_be_pruned(ended: EndedTransaction) -> bool:
    return Move.PRUNE in MOVES[ended.phase] and not ended.unacknowledged


def enlist(state: TransactionsState, pointer: int, participant: str) -> Edits:
    """Notes a participant that is about to hold something under ``pointer``."""
    root, _ = _judged(state, pointer, Move.ENLIST)
    return () if (pointer, participant) in state.open[root].participants else (Enlisted(pointer, participant),)


def acknowledge(state: TransactionsState, pointer: int, participant: str) -> Edits:
    """Notes that a participant has dealt with the end of a transaction."""
    root, _ = _judged(state, pointer, Move.ACKNOWLEDGE)
    return (Acknowledged(pointer, participant),) if (pointer, participant) in state.ended[root].unacknowledged else ()
