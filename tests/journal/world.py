"""A disk, and a coordinator as small as can be, so that the plan can be crashed after every single write.

What the coordinator hands over moves its plan and its `view` at once; it becomes durable later, in order, and is answered after
that. A crash keeps a prefix of what was handed over. Who was told what, and what each commit asked for, is remembered outside: no
crash may make a lie of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from oncelog_service.journal.plan import Apply, Decide, Finish, GiveUp, Plan, Step
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
    decode,
    encode,
)

TOPICS = tuple(TopicRef("default", name, 1) for name in ("a", "b", "c"))
FOR_EVER = 2**62


class Row(NamedTuple):
    """What a topic got from one transaction, in a row."""

    number: int
    messages: tuple[str, ...]


@dataclass
class Disk:
    """What one store holds: journal, data journals, logs, outcomes."""

    begins_at: int = 0
    """Of the journal: the position of the first record that was not deleted."""
    journal: dict[int, bytes] = field(default_factory=dict)
    archive: dict[int, bytes] = field(default_factory=dict)
    """The journal as it were if nothing was ever deleted."""
    staged: dict[tuple[int, TopicRef], tuple[str, ...]] = field(default_factory=dict)
    logs: dict[TopicRef, tuple[Row, ...]] = field(default_factory=lambda: dict.fromkeys(TOPICS, ()))
    outcomes: dict[int, str] = field(default_factory=dict)

    def copy(self) -> Disk:
        maps = (self.journal, self.archive, self.staged, self.logs, self.outcomes)
        return Disk(self.begins_at, *(each.copy() for each in maps))  # type: ignore[arg-type]

    def keep(self, position: int, data: bytes) -> None:
        self.journal[position] = self.archive[position] = data

    def trim(self, begins_at: int) -> None:
        self.begins_at = begins_at
        for position in [position for position in self.journal if position < begins_at]:
            del self.journal[position]

    def stage(self, number: int, topic: TopicRef, message: str) -> None:
        self.staged[number, topic] = (*self.staged.get((number, topic), ()), message)

    def drop(self, numbers: Iterable[int]) -> None:
        gone = set(numbers)
        self.staged = {key: messages for key, messages in self.staged.items() if key[0] not in gone}

    def append(self, topic: TopicRef, row: Row) -> None:
        self.logs[topic] = (*self.logs[topic], row)

    def restart(self) -> Plan:
        """What a restart knows; it must be what it would know if nothing had been deleted."""
        plan = replay(self.begins_at, self.journal)
        assert knowledge(plan) == knowledge(replay(0, self.archive))
        return plan


def replay(begins_at: int, journal: dict[int, bytes]) -> Plan:
    """The fold of a journal, with every record applied twice."""
    plan = Plan(begins_at)
    for position, data in sorted(journal.items()):
        record = decode(position, data)
        plan.apply(position, record)
        plan.apply(position, record)
    return plan


def knowledge(plan: Plan) -> object:
    """All that a plan says."""
    numbers = list(plan.transactions)
    steps = [plan.steps(0), plan.steps(FOR_EVER), *map(plan.steps_of, numbers)]
    return plan.position, plan.next_order, plan.keep_from(), numbers, plan.transactions, steps


Write = Callable[[Disk], None]


class Batch(NamedTuple):
    """What becomes durable at once, and who is told what after that."""

    writes: tuple[Write, ...]
    answers: tuple[tuple[int, str], ...]


class World:
    """One coordinator on one disk."""

    def __init__(self, together: bool, after_push: Callable[[World], None] = lambda world: None) -> None:
        self.together = together
        """Whether rows and their ApplyCommit are one batch. If not, a row that is there already is not copied again."""
        self.after_push = after_push
        self.disk = Disk()
        self.view = Disk()
        self.plan = Plan()
        self.pending: list[Batch] = []
        self.told: dict[int, str] = {}
        self.asked: dict[int, dict[TopicRef, tuple[str, ...]]] = {}
        """What each commit asked for, by topic."""
        self.groups: dict[int, str] = {}
        self.of: dict[int, int] = {}
        """Whom a branch is for, if that one had not ended before it began."""
        self.last = 0

    # --- writing

    def push(self, records: Iterable[Record], *writes: Write, answers: Iterable[tuple[int, str]] = ()) -> None:
        """Hand over one batch."""
        batch = Batch((*writes, *map(self._record, records)), tuple(answers))
        for write in batch.writes:
            write(self.view)
        self.pending.append(batch)
        self.after_push(self)

    def _record(self, record: Record) -> Write:
        position = self.plan.position
        data = encode(position, record)
        self.plan.apply(position, record)
        return lambda disk: disk.keep(position, data)

    def sync(self, count: int) -> None:
        """The next batches become durable, and are answered."""
        for batch in self.pending[:count]:
            for write in batch.writes:
                write(self.disk)
            self.told.update(batch.answers)
        del self.pending[:count]

    def crash(self, count: int) -> None:
        """The next batches become durable and nothing else; nobody was told of them."""
        for batch in self.pending[:count]:
            for write in batch.writes:
                write(self.disk)
        self.pending.clear()
        self.view = self.disk.copy()
        self.plan = self.disk.restart()

    def crashed_now(self) -> World:
        """Another world in which all that was handed over is durable and answered, and then the power failed."""
        other = World(self.together)
        other.disk, other.view = self.view.copy(), self.view.copy()
        other.plan = other.disk.restart()
        other.told, other.asked, other.groups, other.last = self.told.copy(), self.asked, self.groups, self.last
        other.of = self.of
        for batch in self.pending:
            other.told.update(batch.answers)
        return other

    # --- what clients ask for

    def begin(self, group: str, expires: int, of: int | None = None) -> int:
        self.last += 1
        number = self.last
        self.groups[number] = group
        if of is not None and self.state(of) not in ENDED:
            self.of[number] = of
        self.push([Begin(number, f"t{number}", group, 0, expires, of and f"t{of}")], answers=[(number, "begun")])
        return number

    def stage(self, number: int, topic: TopicRef) -> None:
        """One more message, enlisted in the same batch when it is the first."""
        message = f"{number}.{len(self.view.staged.get((number, topic), ()))}"
        enlist = [] if topic in self.plan.transactions[number].topics else [Enlist(number, topic)]
        self.push(enlist, lambda disk: disk.stage(number, topic, message))

    def commit(self, number: int, *branches: int, at_once: bool = False) -> None:
        """Ask for it; ``at_once``: judged in the same batch."""
        named = (number, *branches)
        asked = {topic: tuple(message for each in named for message in self.staged(each, topic)) for topic in TOPICS}
        self.asked[number] = {topic: messages for topic, messages in asked.items() if messages}
        commit = Commit(number, branches, None, None, None, None)
        if at_once:
            self.push([commit, self.prepare_commit(number, branches)], answers=[(number, "prepared")])
        else:
            self.push([commit])

    def abort(self, number: int) -> None:
        abort = Abort(number, "asked", "", None)
        self.push([abort], lambda disk: disk.drop([number]), ends([number], "aborted"), answers=[(number, "aborted")])

    def trim(self) -> None:
        begins_at = self.plan.keep_from()
        self.push([], lambda disk: disk.trim(begins_at))

    def staged(self, number: int, topic: TopicRef) -> tuple[str, ...]:
        return self.view.staged.get((number, topic), ())

    # --- taking steps

    def prepare_commit(self, number: int, branches: tuple[int, ...]) -> PrepareCommit:
        holders = {topic: tuple(each for each in (number, *branches) if self.staged(each, topic)) for topic in TOPICS}
        parts = tuple(TopicPart(topic, numbers) for topic, numbers in holders.items() if numbers)
        return PrepareCommit(number, self.plan.next_order, parts)

    def take(self, step: Step, refuse: bool = False) -> None:
        """Do what the plan asks for."""
        number = step.number
        match step:
            case Decide() if not refuse:
                branches = self.commit_of(number).branches
                self.push([self.prepare_commit(number, branches)], answers=[(number, "prepared")])
            case Decide() | GiveUp():
                self.abort(number)
            case Apply():
                self.copy_into(number, step.part)
            case Finish():
                branches = self.commit_of(number).branches
                both = ends([number], "committed"), ends(branches, "adopted")
                self.push([Applied(number)], lambda disk: disk.drop([number, *branches]), *both, answers=[(number, "committed")])

    def commit_of(self, number: int) -> Commit:
        commit = self.plan.transactions[number].commit
        assert commit is not None
        return commit

    def copy_into(self, number: int, part: TopicPart) -> None:
        row = Row(number, tuple(message for each in part.branches for message in self.staged(each, part.topic)))
        log = self.view.logs[part.topic]
        record = ApplyCommit(number, part.topic, len(row.messages), sum(len(before.messages) for before in log), "00")
        if self.together:
            self.push([record], lambda disk: disk.append(part.topic, row))
            return
        if all(before.number != number for before in log):
            self.push([], lambda disk: disk.append(part.topic, row))
        self.push([record])

    def run_to_the_end(self, refuse: frozenset[int] = frozenset(), now: int = FOR_EVER) -> None:
        """All steps there are, again and again, until there is none."""
        while steps := self.plan.steps(now):
            for step in steps:
                self.take(step, step.number in refuse)

    # --- what must hold

    def check(self) -> None:
        """Whatever was told is still so, and no log has anything that it should not have."""
        for number, state in self.told.items():
            assert self.state(number) in STAYS[state], f"{number} was {state} and is {self.state(number)}"
        for topic, log in self.view.logs.items():
            numbers = [row.number for row in log]
            assert len(set(numbers)) == len(numbers), f"{topic} has something twice: {log}"
            for row in log:
                assert self.state(row.number) in ("prepared", "committed"), (
                    f"{topic} has {row}, which is {self.state(row.number)}"
                )
                assert self.asked[row.number].get(topic) == row.messages
        for number, outcome in self.view.outcomes.items():
            if outcome == "committed":
                assert all(number in self.numbers_on(topic) for topic in self.asked[number]), f"{number} is on some topics only"
        for one, other in combinations(TOPICS, 2):
            assert_same_order(self.numbers_on(one), self.numbers_on(other))

    def check_settled(self) -> None:
        """Who is left when no step is, may still go on: nobody is committing, prepared, or left alone."""
        self.check()
        for number, transaction in self.plan.transactions.items():
            assert transaction.in_progress
            of = self.of.get(number)
            if of is not None and self.groups.get(of) == self.groups[number]:
                assert self.state(of) not in ENDED, f"{number} goes on although {of} is {self.state(of)}"

    def check_end(self) -> None:
        """Nothing is left to be done, and nothing is left."""
        self.check()
        assert not self.plan.transactions
        assert not self.view.staged
        assert all(outcome in ENDED for outcome in map(self.state, self.told))
        assert self.plan.keep_from() == self.plan.position

    def state(self, number: int) -> str:
        transaction = self.plan.transactions.get(number)
        if transaction is None:
            return self.view.outcomes.get(number, "unknown")
        return "prepared" if transaction.prepared else "begun"

    def numbers_on(self, topic: TopicRef) -> list[int]:
        return [row.number for row in self.view.logs[topic]]


ENDED = ("committed", "adopted", "aborted")
STAYS = {
    "begun": {"begun", "prepared", "committed", "adopted", "aborted"},
    "prepared": {"prepared", "committed"},
    "committed": {"committed"},
    "aborted": {"aborted"},
}


def ends(numbers: Iterable[int], outcome: str) -> Write:
    """Their outcome. It never changes."""

    def write(disk: Disk) -> None:
        for number in numbers:
            assert number not in disk.outcomes
            disk.outcomes[number] = outcome

    return write


def assert_same_order(one: list[int], other: list[int]) -> None:
    both = set(one) & set(other)
    assert [number for number in one if number in both] == [number for number in other if number in both]
