"""A service over a disk that fails and crashes when told to, and a clock that goes only when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

from oncelog.errors import OncelogError
from oncelog_service.config import Settings
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.service import Service
from oncelog_service.settlement import SettlementTask
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch
from tests.simulation.rows import NAMESPACE
from tests.support import ManualClock

TOPICS = ("orders", "payments")
LIFETIME_MS = 90_000_000

Fault: TypeAlias = Literal["fails", "fails but is on disk", "crash before", "crash behind"]
FAULTS: tuple[Fault, ...] = ("fails", "fails but is on disk", "crash before", "crash behind")


class World:
    """One service after the other over what is on disk."""

    def __init__(self, snapshot_messages: int, cache_bytes: int) -> None:
        self.clock = ManualClock()
        self.disk = Disk()
        self._settings = Settings(
            foreign_write_pointers=True,
            store="memory://",
            snapshot_messages=snapshot_messages,
            cache_bytes=cache_bytes,
            retention_seconds=3_600,
        )
        self.service: Service

    async def start(self) -> None:
        """Open what is on disk."""
        disk = self.disk
        self.service = Service(self._settings, lambda: MemoryStore(disk), self.clock)
        await self.service.start()

    async def restart(self) -> None:
        """Stop cleanly and start again."""
        await self.service.stop()
        await self.start()

    async def crash(self) -> None:
        """Start on what is on disk at this moment. What the old service does from now on, nobody will see."""
        survivor, old = Disk(), self.service
        survivor.tables = {table: dict(rows) for table, rows in self.disk.tables.items()}
        self.disk.before_sync = _dead
        self.disk.fail_after_apply = False
        self.disk = survivor
        with suppress(OncelogError):  # its disk is gone
            await old.stop()
        await self.start()

    def arm(self, fault: Fault, write: int) -> None:
        """Let the so-manieth write from now on, 0 is the next one, fail; after a crash all further ones fail."""
        disk, left = self.disk, write

        def strike(_: Sequence[Batch]) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                disk.fail_after_apply = fault in ("fails but is on disk", "crash behind")
                raise OSError(f"the simulation's write {fault}")
            if left < -1:
                disk.fail_after_apply = False
                if fault.startswith("crash"):
                    raise OSError("the simulation has crashed")

        disk.before_sync = strike

    def disarm(self) -> None:
        """Every write works again."""
        self.disk.before_sync = None
        self.disk.fail_after_apply = False

    async def ready(self) -> None:
        """Return when the store is open and every transaction that has ended is settled."""
        for _ in range(2_000):
            try:
                if not await self.service.transactions.unsettled(0):
                    return
                await SettlementTask(self.service.topics, self.service.transactions, self.clock).once()
            except OncelogError:
                await asyncio.sleep(0.005)  # it is being reopened
        raise AssertionError("transactions that have ended do not settle")

    async def topic(self, name: str) -> TopicLog:
        """An open topic."""
        return await self.service.topics.open(NAMESPACE, name)

    async def reopen_topic(self, name: str) -> None:
        """Close the topic; whoever uses it next recovers it."""
        log = self.service.topics.opened.pop((NAMESPACE, name), None)
        if log is not None:
            await log.close()


def _dead(_: Sequence[Batch]) -> None:
    raise OSError("the simulation has crashed")
