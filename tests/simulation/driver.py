"""One simulation: random clients of a service that fails, crashes and loses time; after each step everything is checked."""

from __future__ import annotations

import asyncio

from tests.model.maps import NAMESPACE
from tests.simulation.client import Action
from tests.simulation.transacting import Transacting
from tests.simulation.world import LIFETIME_MS, TOPICS
from tests.world.disk import FAULTS, Fault, arm, disarm


class Driver(Transacting):
    """Everything is decided by ``random``."""

    async def run(self, steps: int) -> None:
        """So many steps, each with everything checked behind it."""
        await self.world.start()
        for topic in TOPICS:
            await self.world.service.topics.create(NAMESPACE, topic, {"ttl": str(10**9), "check.expected.offsets": "true"})
        try:
            for _ in range(steps):
                await self.step()
                self.logs = await self.world.check(self.facts, self.random)
        finally:
            disarm(self.world.disk)
            await self.world.service.stop()

    async def step(self) -> None:
        """Mostly some clients at the same time; else time goes by, or the service stops, crashes, or reopens a topic."""
        kind = self.random.choices([self._burst, self._time, self._crash, self._restart, self._reopen], [80, 8, 5, 3, 4])[0]
        await kind()

    # --- what is not a client's doing

    async def _crash(self) -> None:
        self._tell("crash")
        await self.world.crash()
        self._opened_anew(surely=True)

    async def _restart(self) -> None:
        self._tell("restart")
        await self.world.restart()
        self._opened_anew(surely=True)

    async def _failed(self, fault: Fault) -> None:
        """After a write that was to fail, and may have: the service starts again, or reads everything back by itself."""
        crashes = fault.startswith("crash")
        if crashes:
            await self.world.crash()
        self._opened_anew(surely=crashes)
        disarm(self.world.disk)

    def _opened_anew(self, surely: bool) -> None:
        """Nobody knows how long the service was away, so each transaction has its whole time anew; what has ended stays so."""
        for each in self.facts.begun.values():
            each.opened_anew(self.world.clock.ms, surely)

    async def _reopen(self) -> None:
        topic = self.random.choice(TOPICS)
        self._tell(f"reopen {topic}")
        await self.world.reopen_topic(topic)

    async def _time(self) -> None:
        ms = self.random.choices([1, 2_000, 40_000, LIFETIME_MS + 1], [6, 4, 4, 1])[0]
        self._tell(f"{ms} ms go by")
        self.world.clock.advance(ms)
        now = self.world.clock.ms
        late = [each for each in self.facts.begun.values() if each.expires_ms <= now]
        for each in self.facts.begun.values():
            if "in_progress" in each.possible and each.may_expire_ms <= now:
                each.possible |= {"invalid"}
        if self.random.random() < 0.2:
            await self._expire_and_fail(self.random.choice(FAULTS))
            return
        await self.world.service.transactions.expire_due()  # type: ignore[union-attr]
        await self.world.service.retention.once()
        for each in late:
            each.possible -= {"in_progress"}

    async def _expire_and_fail(self, fault: Fault) -> None:
        """What is answered while time-outs are being written stays so, whatever becomes of the write."""
        self._tell(f"the time-outs' write {fault}")
        transactions = self.world.service.transactions
        arm(self.world.disk, fault, 0)
        _, told = await asyncio.gather(
            transactions.expire_due(),  # type: ignore[union-attr]
            transactions.states(list(self.facts.begun)),
            return_exceptions=True,
        )
        if not isinstance(told, BaseException):
            for root, state in told.items():
                self.facts.begun[root].answered(state)
        await self._failed(fault)

    # --- clients

    async def _burst(self) -> None:
        count = self.random.choices([1, 2, 4, 6], [6, 2, 1, 1])[0]
        fault = self.random.choice(FAULTS) if self.random.random() < 0.12 else None
        self._alone = count == 1 and fault is None
        actions = [self._planned() for _ in range(count)]
        if fault is not None:
            write = self.random.randrange(count + 2)
            self._tell(f"write {write} {fault}")
            self._armed = True
            arm(self.world.disk, fault, write)
        answers = await asyncio.gather(*(action() for action in actions), return_exceptions=True)
        self._armed = False
        if fault is not None:
            await self._failed(fault)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _planned(self) -> Action:
        plans = [
            (self._publish, 30),
            (self._publish_in_transaction, 26),
            (self._send_again, 12),
            (self._publish_group, 8),
            (self._begin, 14),
            (self._end, 16),
            (self._checkpoint, 4),
            (self._prepare, 2),
            (self._roll_back, 10),
            (self._forge_rollback, 2),
            (self._open_producer, 3),
            (self._look, 4),
            (self._prune, 1),
        ]
        return self.random.choices([plan for plan, _ in plans], [weight for _, weight in plans])[0]()
