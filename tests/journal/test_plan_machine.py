"""The plan under a coordinator that is crashed after every single write and every single answer.

After each write of each life another world begins from what is durable then, with every answer given that could have been given.
It replays the journal, every record twice, must know what it would know if nothing had been deleted, and takes all steps to the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncelog_service.journal.plan import Apply, Step, Transaction
from oncelog_service.journal.records import TopicRef
from tests.journal.world import TOPICS, World, knowledge

which = st.integers(0, 30)
some_topics = st.sets(st.sampled_from(TOPICS), max_size=2)
groups = st.sampled_from(["g", "g", "h"])


def power_fails(world: World) -> None:
    """After this write, whatever was told must stay so, and everything must come to an end."""
    other = world.crashed_now()
    other.check()
    odd = frozenset(number for number in other.plan.transactions if number % 2)
    other.run_to_the_end(refuse=odd, now=0)
    other.check_settled()
    other.run_to_the_end()
    other.check_end()


class Lives(RuleBasedStateMachine):
    """Several transactions, branches and topics; steps are taken in any order that the plan allows."""

    @initialize(together=st.booleans())
    def start(self, together: bool) -> None:
        self.world = World(together, power_fails)
        self.now = 0

    def some(self, index: int, fits: Callable[[Transaction], bool]) -> Transaction | None:
        fitting = [transaction for transaction in self.world.plan.transactions.values() if fits(transaction)]
        return fitting[-1 - index % len(fitting)] if fitting else None

    @rule(group=groups, lifetime=st.sampled_from([2, 50]), of=st.none() | st.integers(-1, 3))
    def begin(self, group: str, lifetime: int, of: int | None) -> None:
        """``of`` counts back from this one; what is negative begins later."""
        number = self.world.last + 1
        parent = None if of is None or number - of < 1 else number - of
        self.world.begin(group, self.now + lifetime, parent)

    @rule(group=groups, bystander=st.booleans(), staged=st.lists(some_topics, min_size=2, max_size=3))
    def begin_a_family(self, group: str, bystander: bool, staged: list[set[TopicRef]]) -> None:
        """A transaction and its branches with messages in each of them; somebody else may begin between."""
        parent = self.world.begin(group, self.now + 50)
        if bystander:
            self.world.begin(group, self.now + 50)
        family = [parent, *(self.world.begin(group, self.now + 50, of=parent) for _ in staged[1:])]
        for number, topics in zip(family, staged, strict=True):
            for topic in sorted(topics):
                self.world.stage(number, topic)

    @rule(index=which, topic=st.sampled_from(TOPICS))
    def stage(self, index: int, topic: TopicRef) -> None:
        transaction = self.some(index, lambda each: each.in_progress)
        if transaction is not None:
            self.world.stage(transaction.number, topic)

    @rule(index=which, named=st.lists(which, max_size=2), strangers=st.booleans(), at_once=st.booleans())
    def commit(self, index: int, named: list[int], strangers: bool, at_once: bool) -> None:
        """Naming some of its own branches, or some that are for others."""
        transaction = self.some(index, lambda each: each.in_progress)
        if transaction is None:
            return
        numbers = dict.fromkeys(
            branch.number
            for branch in (self.some(place, lambda each: self.may_name(transaction, each, strangers)) for place in named)
            if branch is not None
        )
        self.world.commit(transaction.number, *numbers, at_once=at_once)

    @rule(index=which, further=st.booleans())
    def commit_with_all_its_branches(self, index: int, further: bool) -> None:
        """In one batch, and maybe everything that follows at once."""
        transaction = self.some(index, lambda each: each.in_progress and each.of is None)
        if transaction is None:
            return
        everybody = self.world.plan.transactions.values()
        branches = [each.number for each in everybody if self.may_name(transaction, each, strangers=False)]
        self.world.commit(transaction.number, *branches, at_once=True)
        if further:
            self.go_on(transaction.number)

    def may_name(self, transaction: Transaction, branch: Transaction, strangers: bool) -> bool:
        own = branch.of == transaction.id
        return branch.in_progress and branch is not transaction and branch.group == transaction.group and (own or strangers)

    @rule(index=which)
    def abort(self, index: int) -> None:
        transaction = self.some(index, lambda each: each.in_progress or (each.commit is not None and each.prepared is None))
        if transaction is not None:
            self.world.abort(transaction.number)

    @rule(index=which, refuse=st.booleans())
    def take_a_step(self, index: int, refuse: bool) -> None:
        """Any that need not wait for another one: topics are as quick as they like."""
        steps = list(ready(self.world.plan.steps(self.now)))
        if steps:
            self.world.take(steps[index % len(steps)], refuse)

    @rule(index=which)
    def go_on_with_one(self, index: int) -> None:
        """As after a commit: without looking at the others."""
        transaction = self.some(index, lambda each: not each.in_progress)
        if transaction is not None:
            self.go_on(transaction.number)

    def go_on(self, number: int) -> None:
        while steps := self.world.plan.steps_of(number):
            for step in steps:
                self.world.take(step)

    @rule()
    def take_all_steps(self) -> None:
        for step in self.world.plan.steps(self.now):
            self.world.take(step)

    @precondition(lambda self: self.world.pending)
    @rule(count=st.integers(1, 30))
    def sync(self, count: int) -> None:
        self.world.sync(count)

    @rule(count=st.integers(0, 30))
    def crash(self, count: int) -> None:
        self.world.crash(count)

    @rule()
    def trim(self) -> None:
        """What is kept must say the same as everything."""
        self.world.trim()

    @rule(ms=st.sampled_from([1, 1, 60]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @invariant()
    def all_or_nothing_once_and_in_order(self) -> None:
        self.world.check()

    @invariant()
    def what_is_replayed_is_what_was_lived(self) -> None:
        assert knowledge(self.world.view.restart()) == knowledge(self.world.plan)

    def teardown(self) -> None:
        self.world.run_to_the_end()
        self.world.check_end()


def ready(steps: list[Step]) -> Iterator[Step]:
    """Those that come before every other of the same topic."""
    busy = set()
    for step in steps:
        if isinstance(step, Apply):
            if step.part.topic in busy:
                continue
            busy.add(step.part.topic)
        yield step


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def one_step(lives: Lives, random: Random) -> None:
    """One move, mostly about the newest transactions, and seldom a crash of everything that lives."""
    index = random.randrange(4)
    group = random.choice(["g", "g", "g", "h"])
    staged = [set(random.sample(TOPICS, random.randint(0, 2))) for _ in range(random.randint(2, 3))]
    named = random.sample(range(4), random.randint(0, 2))
    moves: dict[Callable[[], None], int] = {
        lambda: lives.begin_a_family(group, random.random() < 0.5, staged): 4,
        lambda: lives.begin(group, random.choice([2, 50]), random.choice([None, 1, 2, 3])): 3,
        lambda: lives.commit(index, named, random.random() < 0.4, random.random() < 0.5): 5,
        lambda: lives.commit_with_all_its_branches(index, random.random() < 0.5): 2,
        lambda: lives.abort(index): 2,
        lambda: lives.take_a_step(index, random.random() < 0.3): 5,
        lambda: lives.go_on_with_one(index): 2,
        lambda: lives.time_passes(random.choice([1, 1, 1, 60])): 1,
        lambda: lives.sync(random.randint(1, 30)): 1,
        lambda: lives.crash(random.randint(0, 30)): 1,
        lives.trim: 2,
    }
    (move,) = random.choices(list(moves), weights=list(moves.values()))
    move()


@pytest.mark.parametrize("seeds", [range(12), range(12, 24), range(24, 36)])
def test_short_lives_at_random(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        lives = Lives()
        lives.start(random.random() < 0.5)
        try:
            for _ in range(25):
                one_step(lives, random)
                lives.all_or_nothing_once_and_in_order()
                lives.what_is_replayed_is_what_was_lived()
            lives.teardown()
        except Exception as error:
            raise AssertionError(f"life with seed {seed}") from error


# --- one history, crashed everywhere


class PowerFailed(Exception):
    """After the write that was chosen."""


def two_transactions(world: World, at_once: bool) -> None:
    """One with a branch that it names and one that it does not, and another one beside it, both over two topics.

    ``at_once``: the first has ended, and what was written of it before the second began is deleted, when the second commits. Else
    both commits are written before either is decided.
    """
    a, b = TOPICS[:2]
    first, second = world.begin("g", 50), world.begin("g", 50)
    named, unnamed = world.begin("g", 50, of=first), world.begin("g", 50, of=first)
    for number, topic in ((first, a), (named, b), (named, a), (unnamed, a), (second, b), (second, a)):
        world.stage(number, topic)
    world.commit(first, named, at_once=at_once)
    if at_once:
        world.run_to_the_end(now=0)
        world.trim()
    world.commit(second, at_once=at_once)
    world.run_to_the_end()
    world.trim()


def crash_after(world: World, writes: int, told: bool, live: Callable[[World], None]) -> bool:
    """Live until so many batches are durable; whether there were so many. ``told``: the last one was answered, too."""
    left = writes

    def after_push(world: World) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            world.crash(len(world.pending) - 1)
            raise PowerFailed
        if left > 0 or told:
            world.sync(1)

    world.after_push = after_push
    try:
        live(world)
    except PowerFailed:
        return True
    finally:
        world.after_push = lambda world: None
    world.crash(len(world.pending))
    return False


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_two_transactions_over_two_topics_crashed_after_every_write_and_again_after_every_write(
    together: bool, at_once: bool, told: bool
) -> None:
    failed, writes = True, 0
    while failed:
        failed_again, again = True, 0
        while failed_again:
            world = World(together)
            failed = crash_after(world, writes, told, lambda world: two_transactions(world, at_once))
            failed_again = crash_after(world, again, told, World.run_to_the_end)
            world.check()
            world.run_to_the_end(now=0)
            world.check_settled()
            world.run_to_the_end()
            world.check_end()
            again += 1
        writes += 1
    assert writes > 15
    assert sum(map(len, world.view.logs.values())) == 4
