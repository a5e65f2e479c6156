"""Reaches the transaction service of a store that several processes share: with the holder of its lease, here or elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from oncelog.errors import TransactionsUnavailable
from oncelog.wire.models import Settlement, TransactionState, TransactionStatus
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.clock import Clock
from oncelog_service.cluster.leader import Leader
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.port import Transactions
from oncelog_service.transactions.remote import RemoteTransactions
from oncelog_service.transactions.wanted import EVERYTHING, Wanted


class LeasedTransactions:
    """Implements the port (port.py) over the instance that serves it now. Belongs to one event loop."""

    def __init__(self, leader: Leader[TransactionManager], token: str | None, store_id: str, clock: Clock) -> None:
        self._leader = leader
        self._token = token
        self._store_id = store_id
        self._clock = clock
        self._remote: tuple[str, RemoteTransactions] | None = None

    @property
    def here(self) -> TransactionManager:
        """Returns the manager, if it is served here. Raises NotServedHere, StorageUnavailable."""
        return self._leader.here

    @property
    def reachable(self) -> bool:
        """Whether the service is here, or answered when it was last asked."""
        return self._leader.present is not None or (self._remote is not None and self._remote[1].reachable)

    def _now(self) -> Transactions:
        manager = self._leader.present
        if manager is not None:
            return manager
        url = self._leader.url
        if url is None:
            raise TransactionsUnavailable("no instance serves the transactions at this moment; nothing was done, try again")
        if self._remote is None or self._remote[0] != url:
            self.release()
            self._remote = (url, RemoteTransactions(url, self._token, self._store_id, self._clock))
        return self._remote[1]

    def release(self) -> None:
        """Lets go of the connection to the instance that served it."""
        if self._remote is not None:
            self._remote[1].release()
        self._remote = None

    async def close(self) -> None:
        """Lets go of the connection and its sockets."""
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote[1].close()

    async def run(self) -> None:
        """Who leads the transactions has something to run; see Leader."""

    async def start(self, kind: TransactionType, timeout_ms: int | None = None) -> Transaction:
        return await self._now().start(kind, timeout_ms)

    async def can_commit(self, pointer: int, changes: Collection[bytes], resource: str | None = None) -> str:
        return await self._now().can_commit(pointer, changes, resource)

    async def commit(self, pointer: int, changes: Collection[bytes] = ()) -> None:
        await self._now().commit(pointer, changes)

    async def abort(self, pointer: int, unless_prepared: bool = False) -> None:
        await self._now().abort(pointer, unless_prepared)

    async def invalidate(self, pointer: int) -> None:
        await self._now().invalidate(pointer)

    async def checkpoint(self, pointer: int) -> Transaction:
        return await self._now().checkpoint(pointer)

    async def show(self, pointer: int) -> TransactionStatus:
        return await self._now().show(pointer)

    async def list(self, state: TransactionState, after: int, limit: int) -> Sequence[TransactionStatus]:
        return await self._now().list(state, after, limit)

    async def prune(self, pointers: Collection[int] | None, before_ms: int | None) -> int:
        return await self._now().prune(pointers, before_ms)

    async def states(self, pointers: Collection[int]) -> dict[int, TransactionState]:
        return await self._now().states(pointers)

    async def root(self, pointer: int) -> int | None:
        return await self._now().root(pointer)

    async def enlist(self, pointer: int, participant: str) -> bool:
        """Enlists a participant, durably: its lease is another one, so the order of writes says nothing."""
        now = self._now()
        enlisted = await now.enlist(pointer, participant)
        if isinstance(now, TransactionManager):
            await now.synced()
        return enlisted

    def ended(self, pointer: int) -> bool:
        manager = self._leader.present
        if manager is not None:
            return manager.ended(pointer)
        return self._remote is not None and self._remote[1].ended(pointer)

    async def unacknowledged(
        self, wait_seconds: float, store_id: str | None = None, wanted: Wanted = EVERYTHING
    ) -> Sequence[Settlement]:
        return await self._now().unacknowledged(wait_seconds, store_id, wanted)

    async def acknowledge(self, pointer: int, participant: str) -> None:
        await self._now().acknowledge(pointer, participant)
