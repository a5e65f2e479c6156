"""All moves against a naive model that remembers every transaction there ever was and looks through all of them.

Beside the live state a second one is kept that only ever sees bytes: every edit encoded and decoded, and now and then itself as a
snapshot. Both must be the same after every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any

import pytest

from oncelog.errors import (
    InvalidRequest,
    OncelogError,
    TransactionConflict,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionPrepared,
)
from oncelog.wire.transaction import NO_SHORT, Transaction, TransactionType
from oncelog_service.transactions import decisions
from oncelog_service.transactions import state as state_module
from oncelog_service.transactions.decisions import Edits
from oncelog_service.transactions.edits import EDITS
from oncelog_service.transactions.snapshot import decode_snapshot, encode_snapshot
from oncelog_service.transactions.state import Move, Phase, TransactionsState, weight

SHORT, LONG = TransactionType.SHORT, TransactionType.LONG
LIFETIME_MS = 1_000


def own(pointer: int) -> int:
    """The pointer, or the first one of the upper half of its millisecond."""
    return max(pointer, pointer // 1_000_000 * 1_000_000 + 500_000)


@dataclass
class Known:
    """Everything about one transaction, for ever."""

    pointers: list[int]
    kind: TransactionType
    began: int
    lifetime_ms: int
    visible: frozenset[int]
    """What it saw when it began."""
    owner: str | None = None
    changes: frozenset[bytes] = frozenset()
    resource: str | None = None
    state: str = "in_progress"
    ended: int = -1
    pruned: bool = False
    unjudged: bool = False
    unacknowledged: list[tuple[int, str]] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return self.state == "in_progress"

    @property
    def judged(self) -> bool:
        return self.open and self.kind is SHORT and self.resource is None and not self.unjudged

    @property
    def hidden(self) -> bool:
        return (self.state == "invalid" and not self.pruned) or (self.state == "aborted" and bool(self.unacknowledged))

    @property
    def dealt_with(self) -> bool:
        return not self.open and not self.unacknowledged and (self.state != "invalid" or self.pruned)


class Transactions:
    """The live state, its shadow made of bytes, and the model."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.state = TransactionsState()
        self.shadow = TransactionsState()
        self.all: list[Known] = []
        self.step = 0

    # --- the model

    def some(self, index: int) -> Known:
        return self.all[-1 - index % len(self.all)]

    def pointer(self, index: int) -> int:
        known = self.some(index)
        return known.pointers[index % len(known.pointers)]

    def committed_pointers(self) -> frozenset[int]:
        return frozenset(pointer for known in self.all if known.state == "committed" for pointer in known.pointers)

    def conflicts(self, known: Known, changes: frozenset[bytes]) -> bool:
        if known.kind is LONG:
            return False
        others = [other for other in self.all if other is not known and other.kind is SHORT and other.changes & changes]
        if changes and known.unjudged:
            return True
        late = any(other.state == "committed" and other.ended > known.began for other in others)
        return late or any(other.open and other.resource is not None for other in others)

    def expected(self, known: Known, possible: bool) -> type[OncelogError] | None:
        if possible:
            return None
        return TransactionNotFound if known.dealt_with else TransactionNotInProgress

    # --- running a command on all three

    def run(self, error: type[OncelogError] | None, decide: Callable[..., Edits], *arguments: Any) -> int:
        """How many edits it took; it must be refused with ``error`` if there is one."""
        self.step += 1
        if error is not None:
            with pytest.raises(error) as refused:
                decide(self.state, *arguments)
            assert refused.type is error
            return 0
        edits = decide(self.state, *arguments)
        for edit in edits:
            self.state.apply(edit)
            self.shadow.apply(EDITS.decode(EDITS.encode(edit)))
        return len(edits)

    def check_transaction(self, known: Known, transaction: Transaction) -> None:
        """It sees exactly what had committed when it began."""
        seen = {
            pointer
            for other in self.all
            for pointer in other.pointers
            if other is not known
            and pointer <= transaction.read_pointer
            and pointer not in transaction.invalids
            and pointer not in transaction.in_progress
        }
        rolled_back = {pointer for other in self.all if other.state == "aborted" or other.pruned for pointer in other.pointers}
        assert seen - rolled_back == known.visible
        assert list(transaction.invalids) == sorted(transaction.invalids)
        assert list(transaction.in_progress) == sorted(transaction.in_progress)

    def start(self, kind: TransactionType, lifetime_ms: int, owner: str | None) -> None:
        in_progress = sorted(pointer for known in self.all if known.open for pointer in known.pointers)
        last = max((pointer for known in self.all for pointer in known.pointers), default=0)
        assert self.run(None, decisions.start, kind, lifetime_ms, self.now_ms, owner) == 1
        pointer = self.state.last
        assert pointer == own(max(last + 1, self.now_ms * 1_000_000 + 500_000))
        transaction = self.state.transaction(pointer)
        shorts = [known.pointers[0] for known in self.all if known.open and known.kind is SHORT]
        known = Known([pointer], kind, self.step, lifetime_ms, self.committed_pointers(), owner)
        assert list(transaction.in_progress) == in_progress
        assert transaction.first_short == min(shorts, default=NO_SHORT)
        assert (transaction.write_pointer, transaction.type) == (pointer, kind)
        self.check_transaction(known, transaction)
        self.all.append(known)

    def can_commit(self, index: int, changes: frozenset[bytes], resource: str | None) -> None:
        known = self.some(index)
        call = (decisions.can_commit, self.pointer(index), changes, resource, LIFETIME_MS * 2)
        if not known.open:
            self.run(self.expected(known, False), *call)
        elif known.resource is not None:
            added = known.kind is SHORT and not changes <= known.changes
            assert self.run(InvalidRequest if added else None, *call) == 0
        elif self.conflicts(known, changes):
            self.run(TransactionConflict, *call)
        else:
            self.run(None, *call)
            known.changes = changes if known.kind is SHORT else frozenset()
            if resource is not None:
                known.resource = resource
                known.lifetime_ms = max(known.lifetime_ms, LIFETIME_MS * 2)

    def commit(self, index: int, changes: frozenset[bytes]) -> None:
        known = self.some(index)
        call = (decisions.commit, self.pointer(index), changes)
        if not known.open:
            assert self.run(self.expected(known, known.state == "committed" and not known.dealt_with), *call) == 0
        elif known.resource is not None and known.kind is SHORT and not changes <= known.changes:
            self.run(InvalidRequest, *call)
        elif known.resource is None and self.conflicts(known, changes | known.changes):
            self.run(TransactionConflict, *call)
        else:
            self.run(None, *call)  # of a prepared one always
            known.changes |= changes if known.kind is SHORT else frozenset()
            self.end(known, "committed")

    def end(self, known: Known, state: str) -> None:
        known.state, known.ended = state, self.step

    def abort(self, index: int) -> None:
        known = self.some(index)
        possible = known.open or (known.state in ("aborted", "invalid") and not known.dealt_with)
        if self.run(self.expected(known, possible), decisions.abort, self.pointer(index)):
            self.end(known, "aborted")

    def abort_unless_prepared(self, index: int) -> None:
        known = self.some(index)
        call = (decisions.abort, self.pointer(index), Move.ABORT_UNLESS_PREPARED)
        if known.open and known.resource is not None:
            self.run(TransactionPrepared, *call)
        elif known.open:
            assert self.run(None, *call) == 1
            self.end(known, "aborted")
        else:
            assert self.run(self.expected(known, known.state != "committed" and not known.dealt_with), *call) == 0

    def invalidate(self, index: int) -> None:
        known = self.some(index)
        possible = known.open or (known.state == "invalid" and not known.dealt_with)
        if self.run(self.expected(known, possible), decisions.invalidate, self.pointer(index)):
            self.end(known, "invalid")

    def checkpoint(self, index: int) -> None:
        known = self.some(index)
        if self.run(self.expected(known, known.open), decisions.checkpoint, self.pointer(index), self.now_ms):
            assert self.state.last > max(pointer for other in self.all for pointer in other.pointers)
            known.pointers.append(self.state.last)
            transaction = self.state.transaction(known.pointers[0])
            assert transaction.write_pointer == known.pointers[-1]
            assert list(transaction.checkpoint_write_pointers) == known.pointers[1:]
            self.check_transaction(known, transaction)

    def enlist(self, index: int, name: str) -> None:
        known, pointer = self.some(index), self.pointer(index)
        if self.run(self.expected(known, known.open), decisions.enlist, pointer, name):
            assert (pointer, name) not in known.unacknowledged
            known.unacknowledged.append((pointer, name))

    def settle(self, index: int, name: str) -> None:
        known, pointer = self.some(index), self.pointer(index)
        possible = not known.open and not known.dealt_with
        if self.run(self.expected(known, possible), decisions.acknowledge, pointer, name):
            known.unacknowledged.remove((pointer, name))

    def prune(self, before: bool, chosen: set[int], ago_ms: int) -> None:
        pointers = frozenset(self.pointer(index) for index in chosen) if self.all else frozenset()
        before_ms = self.now_ms - ago_ms
        pruned = [
            known
            for known in self.all
            if known.state == "invalid"
            and not known.unacknowledged
            and not known.pruned
            and (known.pointers[0] < before_ms * 1_000_000 if before else set(known.pointers) & pointers)
        ]
        assert self.run(None, decisions.prune, None if before else pointers, before_ms) == bool(pruned)
        for known in pruned:
            known.pruned = True

    def drop_changes(self, owner: str | None, of_owner: int, of_all: int, index: int | None) -> None:
        """The oldest sets that anybody needs, unless a transaction from this one on does."""
        judged = [known for known in self.all if known.judged]
        kept = [known for known in self.all if known.state == "committed" and known.changes]
        kept = [known for known in kept if any(other.began < known.ended for other in judged)]
        until: int | None = None
        asked = (owner, of_owner, of_all)
        for known in sorted(kept, key=lambda known: known.ended):
            size = weight(known.changes)
            of_owner, of_all = of_owner - size * (known.owner == owner), of_all - size
            if of_owner <= 0 and of_all <= 0:
                until = known.ended
                break
        first = None if index is None else self.some(index)
        if until is not None and first is not None and first.began < until:
            until = None
        judged_from = NO_SHORT if first is None else first.pointers[0]
        assert self.run(None, decisions.drop_changes, *asked, judged_from) == (until is not None)
        for known in judged:
            known.unjudged = until is not None and known.began < until

    def time_passes(self, ms: int) -> None:
        self.now_ms = max(self.now_ms + ms, 0)

    def time_out(self, chosen: set[int]) -> None:
        late = {known.pointers[0]: known for known in map(self.some, chosen)} if self.all else {}
        due = [known for known in late.values() if known.open]
        assert self.run(None, decisions.time_out, tuple(late)) == len(due)
        for known in due:
            self.end(known, "invalid")

    def the_shadow_begins_anew_from_a_snapshot(self) -> None:
        self.shadow = decode_snapshot(encode_snapshot(self.shadow))

    def replaying_the_edits_gives_the_same_state(self) -> None:
        assert self.shadow.number == self.state.number
        assert encode_snapshot(self.shadow) == encode_snapshot(self.state)
        assert encode_snapshot(self.state.copy()) == encode_snapshot(self.state)

    def the_invalid_list_is_what_is_invalid_or_aborted_and_not_acknowledged(self) -> None:
        hidden = sorted(pointer for known in self.all if known.hidden for pointer in known.pointers)
        assert list(self.state.invalids) == list(self.shadow.invalids) == hidden

    def only_what_somebody_must_deal_with_is_kept(self) -> None:
        kept = {pointer for known in self.all if not known.dealt_with for pointer in known.pointers}
        assert set(self.state.roots) == set(self.shadow.roots) == kept
        told = {(pointer, name) for name, pointers in self.state.waiting.items() for pointer in pointers}
        assert told == {each for known in self.all if not known.open for each in known.unacknowledged}
        assert self.shadow.waiting == self.state.waiting
        assert list(self.state.pointers) == list(self.shadow.pointers) == sorted(self.state.pointers)

    def everything_keeps_its_owner(self) -> None:
        owners = {pointer: known.owner for known in self.all if not known.dealt_with for pointer in known.pointers}
        for state in (self.state, self.shadow):
            assert {pointer: state.owner(pointer) for pointer in owners} == owners

    def what_each_owner_holds_is_counted(self) -> None:
        owners = {known.pointers[0]: known.owner for known in self.all}
        kept = [(owners[each.pointer], weight(each.changes)) for each in self.state.committed]
        handed_in = [(known.owner, weight(known.changes)) for known in self.all if known.open]
        held = (
            (self.state.in_progress, [(known.owner, len(known.pointers)) for known in self.all if known.open]),
            (
                self.state.invalid,
                [(known.owner, len(known.pointers)) for known in self.all if known.hidden and known.state == "invalid"],
            ),
            (self.state.enlisted, [(known.owner, len(known.unacknowledged)) for known in self.all if known.open]),
            (self.state.changed, kept),
            (self.state.handed_in, handed_in),
        )
        for counted, each in held:
            assert counted.total == sum(amount for _, amount in each)
            for name in ("ada", "bob"):
                assert counted.of(name) == sum(amount for owner, amount in each if owner == name)
        assert self.shadow.changed.total == self.state.changed.total
        for mine, read in (
            (self.state.in_progress, self.shadow.in_progress),
            (self.state.invalid, self.shadow.invalid),
            (self.state.handed_in, self.shadow.handed_in),
        ):
            assert (mine.total, mine.of("ada"), mine.of("bob")) == (read.total, read.of("ada"), read.of("bob"))

    def change_sets_are_kept_only_while_somebody_may_conflict_with_them(self) -> None:
        if not any(known.judged for known in self.all):
            assert not self.state.committed

    def no_two_that_overlap_have_changed_the_same(self) -> None:
        committed = [known for known in self.all if known.state == "committed" and known.kind is SHORT]
        for one, other in combinations(committed, 2):
            if one.began < other.ended and other.began < one.ended:
                assert not one.changes & other.changes


def one_step(machine: Transactions, random: Random, starts: int) -> None:
    """One move, mostly on one of the newest transactions; ``starts``: how likely it is that another one begins."""
    index = min(int(random.expovariate(0.3)), 30)
    changes = frozenset(random.sample([b"a", b"b", b"c", b""], random.randint(0, 2)))
    name = random.choice(["here:default/orders/1", "there:default/orders/1"])
    moves: dict[Callable[[], None], int] = {
        lambda: machine.start(
            random.choice([SHORT, SHORT, LONG]), random.choice([20, LIFETIME_MS]), random.choice([None, "ada", "bob"])
        ): starts,
        lambda: machine.can_commit(index, changes, random.choice([None, None, None, None, "db"])): 4,
        lambda: machine.commit(index, changes): 6,
        lambda: machine.abort(index): 1,
        lambda: machine.abort_unless_prepared(index): 1,
        lambda: machine.invalidate(index): 1,
        lambda: machine.checkpoint(index): 2,
        lambda: machine.enlist(index, name): 3,
        lambda: machine.settle(index, name): 3,
        lambda: machine.prune(random.random() < 0.5, {index, index // 2}, random.randint(0, 30)): 1,
        lambda: machine.time_passes(random.choice([-50, 0, 1, 5, 20])): 3,
        lambda: machine.time_out({index}): 1,
        lambda: machine.drop_changes(
            random.choice([None, "ada"]), random.choice([0, 0, 500]), random.choice([1, 600]), random.choice([None, None, index])
        ): 3,
        machine.the_shadow_begins_anew_from_a_snapshot: 1,
    }
    (move,) = random.choices(list(moves), weights=list(moves.values()))
    if machine.all or move is next(iter(moves)):
        move()


@pytest.mark.parametrize("seed", range(12))
def test_a_life_at_random_is_what_the_model_says(seed: int) -> None:
    """With many transactions at a time, and with few."""
    random = Random(seed)
    machine = Transactions(random.choice([1_000, 1_790_000_000_000]))
    for _ in range(200):
        one_step(machine, random, starts=(1, 3, 6, 15)[seed % 4])
        machine.replaying_the_edits_gives_the_same_state()
        machine.the_invalid_list_is_what_is_invalid_or_aborted_and_not_acknowledged()
        machine.only_what_somebody_must_deal_with_is_kept()
        machine.everything_keeps_its_owner()
        machine.what_each_owner_holds_is_counted()
        machine.change_sets_are_kept_only_while_somebody_may_conflict_with_them()
    machine.no_two_that_overlap_have_changed_the_same()


class Life:
    """A state that is moved at one moment."""

    def __init__(self) -> None:
        self.state = TransactionsState()

    def start(self, kind: TransactionType = SHORT) -> int:
        return self.do(decisions.start, kind, LIFETIME_MS, 1)

    def do(self, decide: Callable[..., Edits], *arguments: Any) -> int:
        for edit in decide(self.state, *arguments):
            self.state.apply(edit)
        return self.state.last


def test_a_commit_right_behind_a_start_conflicts_and_stays_unseen() -> None:
    """Its pointer is the next one after that of the only transaction left."""
    life = Life()
    older, begun = life.start(), life.start()
    life.do(decisions.commit, older, frozenset({b"key"}))
    assert life.state.transaction(begun).in_progress == (older,)
    with pytest.raises(TransactionConflict):
        life.do(decisions.commit, begun, frozenset({b"key"}))


def test_a_transaction_is_prepared_for_one_database() -> None:
    life = Life()
    begun = life.start()
    life.do(decisions.can_commit, begun, frozenset(), "db", LIFETIME_MS)
    with pytest.raises(InvalidRequest):
        life.do(decisions.can_commit, begun, frozenset(), "another", LIFETIME_MS)


def test_a_key_committed_twice_conflicts_by_its_newer_commit_when_the_older_one_is_swept_out() -> None:
    life, key = Life(), frozenset({b"key"})
    elder, first = life.start(), life.start()
    life.do(decisions.commit, first, key)
    begun, second = life.start(), life.start()
    life.do(decisions.commit, second, key)
    life.do(decisions.abort, elder)
    assert [each.pointer for each in life.state.committed] == [second]
    with pytest.raises(TransactionConflict) as refused:
        life.do(decisions.commit, begun, key)
    assert refused.value.conflicts_with == second


def test_many_that_are_pruned_at_once_leave_the_others_invalid() -> None:
    life = Life()
    begun = [life.start() for _ in range(40)]
    for pointer in begun:
        life.do(decisions.invalidate, pointer)
    life.do(decisions.prune, frozenset(begun[::2]), 0)
    assert (list(life.state.invalids), life.state.size) == (begun[1::2], 20)


def test_late_commits_that_nobody_overtook_are_swept_out() -> None:
    """With a transaction open all the time, what is kept for repeatable checkpoints does not grow."""
    life = Life()
    elder = life.start(LONG)
    for _ in range(2 * state_module._LATE_COMMITS):
        older, younger = life.start(), life.start()
        life.do(decisions.commit, older)
        life.do(decisions.commit, younger)
    assert len(life.state.late) <= state_module._LATE_COMMITS
    assert life.state.transaction(elder).in_progress == ()


def test_what_becomes_free_with_a_slow_transaction_is_dropped_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_SWEPT_KEYS", 10)
    life = Life()
    slow = life.start()
    for number in range(20):
        life.do(decisions.commit, life.start(), frozenset(b"%d.%d" % (number, key) for key in range(5)))
    life.do(decisions.abort, slow)
    assert len(life.state.committed) == 18
    for _ in range(9):
        life.do(decisions.abort, life.start())
    assert not life.state.committed


def test_an_invalid_one_that_is_aborted_is_hidden_until_its_topics_have_rolled_back() -> None:
    life = Life()
    begun = life.start()
    life.do(decisions.enlist, begun, "here:default/orders/1")
    life.do(decisions.invalidate, begun)
    life.do(decisions.abort, begun)
    assert (life.state.phase(begun), life.state.invalids, life.state.invalid.total) == (Phase.ABORTED, (begun,), 0)
    life.do(decisions.acknowledge, begun, "here:default/orders/1")
    assert (life.state.phase(begun), life.state.invalids) == (Phase.UNKNOWN, ())


def test_no_more_is_dropped_than_must_be_and_nothing_that_somebody_needs_who_is_not_old() -> None:
    life = Life()
    elder, key = life.start(), [frozenset({b"%d" % number}) for number in range(4)]
    for each in key[:2]:
        life.do(decisions.commit, life.start(), each)
    younger = life.start()
    for each in key[2:]:
        life.do(decisions.commit, life.start(), each)
    one = weight(key[0])
    for enough, judged_from in ((5 * one, NO_SHORT), (2 * one, elder), (3 * one, younger)):
        assert decisions.drop_changes(life.state, None, 0, enough, judged_from) == ()
    assert decisions.drop_changes(life.state, "ada", one, 0, NO_SHORT) == ()
    life.do(decisions.drop_changes, None, 0, one + 1, younger)
    assert (list(life.state.unjudged), list(life.state.judged), len(life.state.committed)) == ([elder], [younger], 2)
    life.do(decisions.commit, elder)
    with pytest.raises(TransactionConflict):
        life.do(decisions.commit, younger, key[2])
