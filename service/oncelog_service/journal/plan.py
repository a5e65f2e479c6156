"""What is known of the journaled transactions of one partition, and what is to be done about each of them.

The plan is the fold of the partition's records. It takes no step itself: a step leads to a record, and that moves the plan::

    Begin ─▶ in progress ─ Commit ─▶ committing ─ PrepareCommit ─▶ prepared ─ ApplyCommit … ─ Applied ─▶ ended
                 │                        │
                 └──────── Abort ─────────┴─▶ ended

    step      when                                                               record
    Decide    committing                                                         PrepareCommit or Abort
    Apply     prepared, and the topic has not got its messages                   ApplyCommit
    Finish    prepared, and every topic has got them                             Applied
    GiveUp    in progress, and out of time or left out by the one it is for      Abort

A Commit *holds* the branches it names: they do nothing of their own until it is decided. PrepareCommit makes them *adopted*, and
Applied ends them together with their transaction; Abort lets them go. Whoever is for a transaction (`of`) that is prepared or has
ended, and neither held nor adopted, is given up.

Records before `keep_from()` may be deleted. What is left is folded from its first position on, so a plan that does not begin at 0
meets records of transactions whose Begin is gone. All these have ended; what counts of them is which branches ended with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from oncelog_service.journal.records import (
    Abort,
    Applied,
    ApplyCommit,
    Begin,
    Commit,
    Enlist,
    PrepareCommit,
    Record,
    TopicPart,
    TopicRef,
)


class PlanError(ValueError):
    """A record is missing, or it cannot follow those before it."""


@dataclass(slots=True)
class Transaction:
    """One that has not ended."""

    number: int
    id: str
    group: str
    began: int
    expires: int
    """Milliseconds, as it was recorded; whoever measures time-outs sets it to a time of a clock of its own."""
    of: str | None
    first_position: int
    """Of its Begin."""
    keep_from: int
    """Of the first record that must be kept for it: its Begin, or that of the transaction which left it out."""
    topics: dict[TopicRef, None] = field(default_factory=dict)
    """Those that hold chunks of it, in the order in which they were enlisted."""
    commit: Commit | None = None
    prepared: PrepareCommit | None = None
    applied: dict[TopicRef, ApplyCommit] = field(default_factory=dict)
    waiting: dict[TopicRef, TopicPart] = field(default_factory=dict)
    """Of a prepared one: what has not been applied."""
    held_by: int | None = None
    """Number of the committing transaction that names it."""
    adopted_by: int | None = None
    """Number of the prepared transaction that it is part of."""
    left_out: str | None = None
    """Why nobody will name it any more."""

    @property
    def in_progress(self) -> bool:
        """Whether it may still be staged into, be committed, be named by a commit, or be aborted."""
        return self.commit is None and self.held_by is None and self.adopted_by is None


class Decide(NamedTuple):
    """Judge it: its commit was asked for and has no outcome."""

    number: int


class Apply(NamedTuple):
    """Copy what belongs to it into the log of this topic."""

    number: int
    part: TopicPart


class Finish(NamedTuple):
    """Every topic has got its messages: say so."""

    number: int


class GiveUp(NamedTuple):
    """Abort it: ``timed_out``, or ``not_named`` by the transaction that it is for."""

    number: int
    reason: str
    detail: str


Step: TypeAlias = Decide | Apply | Finish | GiveUp


class Plan:
    """The transactions of one partition. :meth:`apply` is its only change; the first record must be that of ``position``."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        """Of the next record."""
        self.transactions: dict[int, Transaction] = {}
        """Those that have not ended, by number, in the order in which they began."""
        self._whole = position == 0
        self._last_order = -1
        self._ids: dict[tuple[str, str], Transaction] = {}
        """By group and id."""
        self._branches: dict[tuple[str, str], dict[int, Transaction]] = {}
        """By group and id of the transaction that they are for."""
        self._committing: dict[int, Transaction] = {}
        """In the order of their Commits."""
        self._prepared: dict[int, Transaction] = {}
        """In the order of their PrepareCommits."""
        self._queues: dict[TopicRef, dict[int, None]] = {}
        """Numbers of the prepared ones that a topic has not got, in order."""
        self._forgotten: dict[int, tuple[int, ...]] = {}
        """Branches named by transactions whose Begin is gone."""

    # --- what it says

    @property
    def next_order(self) -> int:
        """The order for a PrepareCommit; it rises with every record, whatever was deleted."""
        return self.position

    def steps(self, now_ms: int) -> list[Step]:
        """Everything that is to be done now, in the order in which it must be done.

        What is prepared comes first, since whatever is decided is judged against it. Whoever cannot take an Apply now must pass
        over the later ones of the same topic too. Taking a step may lead to further ones: ask again until there are none.
        """
        steps: list[Step] = []
        for transaction in self._prepared.values():
            steps += _apply_or_finish(transaction, transaction.waiting.values())
        steps += map(Decide, self._committing)
        for transaction in self.transactions.values():
            steps += _give_up(transaction, now_ms)
        return steps

    def steps_of(self, number: int) -> list[Step]:
        """What is to be done now about this transaction, time-outs aside; nothing if it has ended.

        There is no Apply for a topic that waits for one prepared before.
        """
        transaction = self.transactions.get(number)
        if transaction is None:
            return []
        if transaction.prepared is not None:
            parts = [part for part in transaction.waiting.values() if self._is_next(number, part.topic)]
            return _apply_or_finish(transaction, parts)
        if transaction.commit is not None:
            return [Decide(number)]
        return _give_up(transaction, None)

    def waits(self, topic: TopicRef) -> bool:
        """Whether something that was prepared has not been applied on this topic."""
        return topic in self._queues

    def needs(self, number: int) -> bool:
        """Whether what is staged under this number is to be copied, by its own transaction or by another one."""
        return number in self.transactions or any(
            number in part.branches for each in self._prepared.values() for part in each.waiting.values()
        )

    def keep_from(self) -> int:
        """Records before this position belong to ended transactions only and may be deleted; it never falls.

        It may be the position of the next record: whoever deletes them all must remember it.
        """
        return min((transaction.keep_from for transaction in self.transactions.values()), default=self.position)

    def _is_next(self, number: int, topic: TopicRef) -> bool:
        return next(iter(self._queues[topic])) == number

    # --- how it moves

    def apply(self, position: int, record: Record) -> None:
        """Make it so. A record whose position has been passed changes nothing.

        Raises:
            PlanError: records between are missing, or it cannot follow those before it; nothing has changed.
        """
        if position < self.position:
            return
        if position > self.position:
            raise PlanError(f"the record at position {self.position} is missing: {position} came next")
        _APPLY[type(record)](self, record)
        self.position = position + 1

    def _begin(self, record: Begin) -> None:
        key = (record.group, record.id)
        if record.number in self.transactions or key in self._ids:
            raise PlanError(f"transaction {record.number} ({record.id}) begins twice")
        begun = Transaction(
            record.number,
            record.id,
            record.group,
            record.began,
            record.expires,
            record.of,
            self.position,
            self.position,
        )
        self.transactions[record.number] = self._ids[key] = begun
        if record.of is not None:
            of = (record.group, record.of)
            self._branches.setdefault(of, {})[record.number] = begun
            parent = self._ids.get(of)
            if parent is not None and parent.prepared is not None:
                _leave_out(begun, parent, "had been prepared before it began")

    def _enlist(self, record: Enlist) -> None:
        transaction = self._find(record)
        if transaction is not None:
            _check(transaction.in_progress, record, "it is not in progress")
            transaction.topics[record.topic] = None

    def _commit(self, record: Commit) -> None:
        transaction = self._find(record)
        if transaction is None:
            self._forgotten[record.number] = record.branches
            return
        _check(transaction.in_progress, record, "it is not in progress")
        _check(len({record.number, *record.branches}) == 1 + len(record.branches), record, "it names a branch twice, or itself")
        branches = self._named(record.branches)
        _check(not self._whole or len(branches) == len(record.branches), record, "it names a branch that has ended")
        for branch in branches:
            usable = branch.in_progress and branch.group == transaction.group
            _check(usable, record, f"branch {branch.number} is not in progress, or of another group")
        for branch in branches:
            branch.held_by = record.number
        transaction.commit = record
        self._committing[record.number] = transaction

    def _prepare_commit(self, record: PrepareCommit) -> None:
        _check(record.order > self._last_order, record, f"{self._last_order} was the last order")
        transaction = self._find(record)
        if transaction is not None:
            self._prepare(transaction, record)
        self._last_order = record.order

    def _prepare(self, transaction: Transaction, record: PrepareCommit) -> None:
        number, commit = record.number, transaction.commit
        if commit is None or transaction.prepared is not None:
            raise PlanError(f"{record} cannot follow: it is not committing")
        waiting = {part.topic: part for part in record.parts}
        _check(len(waiting) == len(record.parts), record, "it names a topic twice")
        named = {number, *commit.branches}
        others = {each for part in record.parts for each in part.branches} - named
        _check(others.isdisjoint(self.transactions), record, "its commit did not name these branches")
        for branch in self._named(commit.branches):
            branch.held_by, branch.adopted_by = None, number
        transaction.prepared, transaction.waiting = record, waiting
        del self._committing[number]
        self._prepared[number] = transaction
        for topic in waiting:
            self._queues.setdefault(topic, {})[number] = None
        self._leave_out_branches(transaction, "was prepared without it")

    def _apply_commit(self, record: ApplyCommit) -> None:
        transaction = self._find(record)
        if transaction is None:
            return
        _check(record.topic in transaction.waiting, record, "it is not to be applied there")
        _check(self._is_next(record.number, record.topic), record, "another one prepared before it is not applied there")
        del transaction.waiting[record.topic]
        transaction.applied[record.topic] = record
        queue = self._queues[record.topic]
        del queue[record.number]
        if not queue:
            del self._queues[record.topic]

    def _applied(self, record: Applied) -> None:
        transaction = self._find(record)
        if transaction is None:
            branches = self._forgotten.pop(record.number, ())
        else:
            if transaction.commit is None or transaction.prepared is None or transaction.waiting:
                raise PlanError(f"{record} cannot follow: not every topic has got its messages")
            branches = transaction.commit.branches
            self._end(transaction, "has ended")
        for branch in self._named(branches):
            self._end(branch, "has ended")

    def _abort(self, record: Abort) -> None:
        transaction = self._find(record)
        if transaction is None:
            self._forgotten.pop(record.number, None)
            return
        free = transaction.held_by is None and transaction.adopted_by is None
        _check(free and transaction.prepared is None, record, "it is prepared, or named by another commit")
        if transaction.commit is not None:
            for branch in self._named(transaction.commit.branches):
                branch.held_by = None
        self._end(transaction, "was aborted")

    # --- the parts of moves

    def _find(self, record: Record) -> Transaction | None:
        """Whom it is about; None if its Begin is gone."""
        transaction = self.transactions.get(record.number)
        if transaction is None and self._whole:
            raise PlanError(f"{record} cannot follow: this transaction is not in progress")
        return transaction

    def _named(self, numbers: Iterable[int]) -> list[Transaction]:
        """Those of them that have not ended."""
        return [self.transactions[number] for number in numbers if number in self.transactions]

    def _end(self, transaction: Transaction, how: str) -> None:
        number, key = transaction.number, (transaction.group, transaction.id)
        del self.transactions[number], self._ids[key]
        self._committing.pop(number, None)
        self._prepared.pop(number, None)
        if transaction.of is not None:
            of = (transaction.group, transaction.of)
            del self._branches[of][number]
            if not self._branches[of]:
                del self._branches[of]
        self._leave_out_branches(transaction, how)

    def _leave_out_branches(self, transaction: Transaction, how: str) -> None:
        for branch in self._branches.get((transaction.group, transaction.id), {}).values():
            if branch.adopted_by != transaction.number:
                _leave_out(branch, transaction, how)


def _check(possible: bool, record: Record, why: str) -> None:
    if not possible:
        raise PlanError(f"{record} cannot follow: {why}")


def _leave_out(branch: Transaction, parent: Transaction, how: str) -> None:
    """Nobody will name it. A restart must learn that again, so the records of ``parent`` are kept as long as the branch is."""
    if branch.left_out is None:
        branch.left_out = f"its transaction {parent.id} {how}"
        branch.keep_from = min(branch.keep_from, parent.first_position)


def _apply_or_finish(transaction: Transaction, parts: Iterable[TopicPart]) -> list[Step]:
    if transaction.waiting:
        return [Apply(transaction.number, part) for part in parts]
    return [Finish(transaction.number)]


def _give_up(transaction: Transaction, now_ms: int | None) -> list[Step]:
    """Whether it is to be given up; without a time, time-outs do not count."""
    if not transaction.in_progress:
        return []
    if transaction.left_out is not None:
        return [GiveUp(transaction.number, "not_named", transaction.left_out)]
    if now_ms is not None and transaction.expires <= now_ms:
        return [GiveUp(transaction.number, "timed_out", "it was not committed in time")]
    return []


_APPLY: dict[type[Record], Callable[[Plan, Any], None]] = {
    Begin: Plan._begin,
    Enlist: Plan._enlist,
    Commit: Plan._commit,
    PrepareCommit: Plan._prepare_commit,
    ApplyCommit: Plan._apply_commit,
    Applied: Plan._applied,
    Abort: Plan._abort,
}
