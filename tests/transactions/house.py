"""A transaction manager over the memory store: opened, closed, crashed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.clock import Clock
from oncelog_service.group_commit import Writer
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from oncelog_service.transactions.edits import Invalidated, Started
from oncelog_service.transactions.limits import TransactionLimits
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.snapshot import encode_snapshot
from oncelog_service.transactions.state import TransactionsState
from tests.patience import PATIENCE
from tests.support import ManualClock

SHORT, LONG = TransactionType.SHORT, TransactionType.LONG
ORDERS, BILLS = "here:default/orders/1", "here:default/bills/1"


@dataclass
class House:
    manager: TransactionManager
    store: MemoryStore
    writer: Writer


def crashed(disk: Disk) -> Disk:
    """The disk as a crash at this moment leaves it."""
    copy = Disk()
    copy.tables = {table: dict(rows) for table, rows in disk.tables.items()}
    return copy


@asynccontextmanager
async def opened(
    disk: Disk, clock: Clock | None = None, limits: TransactionLimits | None = None, clean: bool = True, instance: str = ""
) -> AsyncIterator[House]:
    """A manager recovered from ``disk``, closed at the end; without ``clean`` as if the process had gone."""
    store = MemoryStore(disk)
    writer = Writer(store, lambda _: None)
    try:
        manager = await TransactionManager.recover(store, writer, clock or ManualClock(), limits, instance)
        yield House(manager, store, writer)
        if clean:
            await manager.close()
    finally:
        if not clean:
            store.close()
        await writer.close()
        store.close()


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


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """On a loop of its own."""
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


def sees(transaction: Transaction, pointer: int) -> bool:
    """Whether a transaction sees what another one wrote under ``pointer``."""
    return pointer <= transaction.read_pointer and pointer not in {*transaction.invalids, *transaction.in_progress}


class Gate:
    """Holds the writes of a disk back until they are let through."""

    def __init__(self, disk: Disk) -> None:
        self._open = threading.Semaphore(0)
        disk.before_sync = self._wait

    def let(self, writes: int = 1_000) -> None:
        self._open.release(writes)

    def _wait(self, _: Sequence[Batch]) -> None:
        assert self._open.acquire(timeout=PATIENCE)
