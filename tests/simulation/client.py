"""What all random clients share: a world, what is known of it, and how they ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

from oncelog.errors import OncelogError, StorageFailed, StorageUnavailable, TransactionNotInProgress
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType
from tests.model.facts import Begun, Facts
from tests.model.maps import Entry
from tests.simulation.world import LIFETIME_MS, TOPICS, World
from tests.world.disk import Database

PRODUCERS = ("a", "b", "c")
Action: TypeAlias = Callable[[], Awaitable[None]]
"""What was decided, to be done when its turn comes."""


class Client:
    """Every method without ``await`` decides, by ``random``; the action that it returns asks and notes what was answered."""

    def __init__(self, random: Random, database: Database | None = None) -> None:
        self.random = random
        self.world = World(random.choice([1, 3, 8, 25]), random.choice([0, 2**20]), database)
        self.facts = Facts()
        self.logs: dict[str, list[Entry]] = {topic: [] for topic in TOPICS}
        self.story: list[str] = []
        """What was done: it is shown with a failure."""
        self._serial = 0
        self._armed = False
        self._alone = True
        """Nothing else happens at the same time, nor fails."""

    async def _ask(self, what: str, call: Callable[[], Awaitable[object]]) -> OncelogError | None:
        """Call; the error that was answered, or None. Only a failing store may be unavailable."""
        try:
            await call()
        except OncelogError as error:
            self._tell(f"{what}: {type(error).__name__} {error}")
            if isinstance(error, (StorageFailed, StorageUnavailable)) and not self._armed:
                raise
            if isinstance(error, TransactionNotInProgress):
                self._told_of_an_end(error)
            return error
        self._tell(what)
        return None

    def _told_of_an_end(self, error: TransactionNotInProgress) -> None:
        """It is so from now on, whatever crashes."""
        begun = self.facts.begun.get(self.facts.roots.get(error.write_pointer or 0, 0))
        if begun is not None:
            assert not begun.certainly_open, error
            begun.possible -= {"in_progress"}

    def _tell(self, what: str) -> None:
        self.story.append(what)

    def _begin(self) -> Action:
        timeout_ms = self.random.choice([5_000, 30_000, 30_000, 3_600_000])
        kind = self.random.choice([TransactionType.SHORT] * 3 + [TransactionType.LONG])

        async def act() -> None:
            seen = self.facts.states() if self._alone else None
            begun: list[Begun] = []

            async def call() -> None:
                asked = timeout_ms if kind is TransactionType.SHORT else None
                transaction = await self.world.service.transactions.start(kind, asked)
                lifetime_ms = LIFETIME_MS if asked is None else asked
                pointers = [transaction.transaction_id]
                begun.append(Begun(transaction, [self.world.clock.ms], [lifetime_ms], seen, pointers=pointers))

            await self._ask("begin", call)
            for each in begun:
                self.facts.begun[each.root] = each
                self.facts.roots[each.root] = each.root

        return act

    def _some_transaction(self) -> Begun | None:
        begun = list(self.facts.begun.values())[-12:]
        chosen = [each for each in begun if each.certainly_open] if self.random.random() < 0.85 else begun
        return self.random.choice(chosen) if chosen else None

    def _pointer(self) -> int | None:
        """One to write under, mostly of a transaction in progress, now and then of one that has ended, or a foreign one."""
        if self.random.random() < 0.08:
            self._serial += 1
            self.facts.foreign.append(self.world.clock.ms * POINTERS_PER_MS + self._serial)
        if self.facts.foreign and self.random.random() < 0.15:
            return self.random.choice(self.facts.foreign[-3:])
        begun = list(self.facts.begun.values())[-12:]
        chosen = [each for each in begun if each.certainly_open] if self.random.random() < 0.95 else begun
        return self.random.choice(self.random.choice(chosen).pointers) if chosen else None

    def _may_have_ended(self, pointer: int) -> bool:
        root = self.facts.roots.get(pointer)
        if root is None:
            return self.facts.expired(pointer, self.world.clock.ms, LIFETIME_MS)
        return not self.facts.begun[root].certainly_open
