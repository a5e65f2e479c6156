"""A transaction manager over the memory store: opened, closed, crashed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from oncelog.wire.transaction import TransactionType
from oncelog_service.clock import Clock
from oncelog_service.group_commit import Writer
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.seals import SealedStore
from oncelog_service.transactions.edits import Invalidated, Started
from oncelog_service.transactions.limits import TransactionLimits
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.recovery import Recovered, recover
from oncelog_service.transactions.snapshot import encode_snapshot
from oncelog_service.transactions.state import TransactionsState
from oncelog_service.workers import ThreadWorkers
from tests.world.clock import ManualClock
from tests.world.disk import Gate

SHORT, LONG = TransactionType.SHORT, TransactionType.LONG
ORDERS, BILLS = "here:default/orders/1", "here:default/bills/1"


@dataclass
class House:
    manager: TransactionManager
    store: SealedStore
    writer: Writer


@asynccontextmanager
async def opened(
    disk: Disk, clock: Clock | None = None, limits: TransactionLimits | None = None, clean: bool = True, store_id: str = ""
) -> AsyncIterator[House]:
    """A manager recovered from ``disk``, closed at the end; without ``clean`` as if the process had gone."""
    store = SealedStore(MemoryStore(disk))
    writer = Writer(store, lambda _: None, clock=ManualClock(), workers=ThreadWorkers())
    try:
        manager = await TransactionManager.recover(store, writer, clock or ManualClock(), limits, store_id)
        yield House(manager, store, writer)
        if clean:
            await manager.close()
    finally:
        if isinstance(disk.before_sync, Gate):
            disk.before_sync.opened.set()  # of a test that failed: nobody waits for it
        if not clean:
            store.close()
        await writer.close()
        store.close()


def found_on(disk: Disk) -> Recovered:
    """What a recovery makes of the disk."""
    return recover(SealedStore(MemoryStore(disk)))


def with_invalid(count: int) -> Disk:
    """A disk whose snapshot holds so many invalid transactions."""
    state = TransactionsState()
    for pointer in range(1, count + 1):
        state.apply(Started(pointer, SHORT, 30_000))
        state.apply(Invalidated(pointer))
    disk, batch = Disk(), Batch()
    batch.put(Table.TRANSACTION_SNAPSHOT, SNAPSHOT_SLOTS[0], encode_snapshot(state))
    MemoryStore(disk).write([batch])
    return disk
