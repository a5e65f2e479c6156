"""Folds the records of one partition into its transactions in progress.

The plan is the fold of the partition's records, and each record moves it::

    Begin ─▶ in progress ─┬─ Commit ─▶ ended, and the branches that it names with it
              ▲        │  └─ Abort ──▶ ended
              └ Enlist ┘

There is no state between: a Commit is one write with everything that it makes visible. What is to be done without being asked is
one thing only, to give a transaction up: when it is out of time, or when the one that it is for (`of`) has ended without it.

Records before `keep_from()` may be deleted. What is left is folded from its first position on, so a plan that does not begin at 0
meets records of transactions whose Begin is gone. All these have ended; what counts of them is which branches ended with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oncelog_service.atomic.records import Abort, Begin, Commit, Enlist, Record, TopicRef


class PlanError(ValueError):
    """A record cannot follow those before it."""


@dataclass(slots=True)
class Transaction:
    """A transaction in progress: it may be staged into, be committed, be named by a commit, or be aborted."""

    number: int
    id: str
    group: str
    began: int
    expires: int
    """Milliseconds, as it was recorded; who measures time-outs sets it to a time of a clock of its own."""
    of: str | None
    owner: str | None
    first_position: int
    """Of its Begin."""
    keep_from: int
    """Of the first record that must be kept for it: its Begin, or that of the transaction which left it out."""
    topics: dict[TopicRef, None] = field(default_factory=dict)
    """Those that hold chunks of it, in the order in which they were enlisted."""
    left_out: str | None = None
    """Why no commit will name it any more."""


class GiveUp(NamedTuple):
    """A transaction that is to be aborted: it ``timed_out``, or was ``not_named`` by the one that it is for."""

    number: int
    reason: str
    detail: str


class Plan:
    """The transactions of one partition. :meth:`apply` is its only change; the first record must be that of ``position``."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        """Of the next record."""
        self.transactions: dict[int, Transaction] = {}
        """Those that have not ended, by number, in the order in which they began."""
        self._whole = position == 0
        self._ids: dict[tuple[str, str], Transaction] = {}
        """By group and id."""
        self._branches: dict[tuple[str, str], dict[int, Transaction]] = {}
        """By group and id of the transaction that they are for."""

    # --- what it says

    def due(self, now_ms: int) -> list[GiveUp]:
        """Returns everything that is to be given up now. That may lead to more: ask again until there is nothing."""
        return [step for transaction in self.transactions.values() if (step := _give_up(transaction, now_ms)) is not None]

    def keep_from(self) -> int:
        """Returns the position before which all records belong to ended transactions and may be deleted; it never falls.

        It may be the position of the next record: who deletes them all must remember it.
        """
        return min((transaction.keep_from for transaction in self.transactions.values()), default=self.position)

    # --- how it moves

    def apply(self, record: Record) -> None:
        """Moves by the next record. Raises PlanError: it cannot follow those before it; nothing has changed."""
        _APPLY[type(record)](self, record)
        self.position += 1

    def _begin(self, record: Begin) -> None:
        key = (record.group, record.id)
        if record.number in self.transactions or key in self._ids:
            raise PlanError(f"transaction {record.number} ({record.id}) begins twice")
        begun = Transaction(*record, first_position=self.position, keep_from=self.position)
        self.transactions[record.number] = self._ids[key] = begun
        if record.of is not None:
            self._branches.setdefault((record.group, record.of), {})[record.number] = begun

    def _enlist(self, record: Enlist) -> None:
        transaction = self._find(record)
        if transaction is not None:
            transaction.topics[record.topic] = None

    def _commit(self, record: Commit) -> None:
        transaction = self._find(record)
        branches = [self.transactions[number] for number in record.branches if number in self.transactions]
        _check(len({record.number, *record.branches}) == 1 + len(record.branches), record, "it names a branch twice, or itself")
        _check(not self._whole or len(branches) == len(record.branches), record, "it names a branch that has ended")
        groups = {each.group for each in (transaction, *branches) if each is not None}
        _check(len(groups) < 2, record, f"it is of the groups {sorted(groups)}")
        for ended in branches if transaction is None else (*branches, transaction):
            self._end(ended, "has ended")

    def _abort(self, record: Abort) -> None:
        transaction = self._find(record)
        if transaction is not None:
            self._end(transaction, "was aborted")

    # --- the parts of moves

    def _find(self, record: Record) -> Transaction | None:
        """Returns the transaction that it is about; None if its Begin is gone."""
        transaction = self.transactions.get(record.number)
        if transaction is None and self._whole:
            raise PlanError(f"{record} cannot follow: this transaction is not in progress")
        return transaction

    def _end(self, transaction: Transaction, how: str) -> None:
        number, key = transaction.number, (transaction.group, transaction.id)
        del self.transactions[number], self._ids[key]
        if transaction.of is not None:
            of = (transaction.group, transaction.of)
            del self._branches[of][number]
            if not self._branches[of]:
                del self._branches[of]
        for branch in self._branches.get(key, {}).values():
            _leave_out(branch, transaction, how)


def _check(possible: bool, record: Record, why: str) -> None:
    if not possible:
        raise PlanError(f"{record} cannot follow: {why}")


def _leave_out(branch: Transaction, parent: Transaction, how: str) -> None:
    """Notes that no commit will name a branch.

    A restart must learn that again, so ``parent``'s records are kept as long as it.
    """
    if branch.left_out is None:
        branch.left_out = f"its transaction {parent.id} {how}"
        branch.keep_from = min(branch.keep_from, parent.first_position)


def _give_up(transaction: Transaction, now_ms: int) -> GiveUp | None:
    if transaction.left_out is not None:
        return GiveUp(transaction.number, "not_named", transaction.left_out)
    if transaction.expires <= now_ms:
        return GiveUp(transaction.number, "timed_out", "it was not committed in time")
    return None


_APPLY: dict[type[Record], Callable[[Plan, Any], None]] = {
    Begin: Plan._begin,
    Enlist: Plan._enlist,
    Commit: Plan._commit,
    Abort: Plan._abort,
}
