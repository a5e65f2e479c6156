"""Reaches the transaction service of a store that several processes share: with the holder of its lease, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from oncelog.errors import TransactionsUnavailable
from oncelog.http.sockets import Network
from oncelog_service.clock import Clock
from oncelog_service.cluster.leader import Leader
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.port import Owned, Transactions
from oncelog_service.transactions.remote import RemoteTransactions

P = ParamSpec("P")
T = TypeVar("T")


def _asked(
    method: Callable[Concatenate[Transactions, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[LeasedTransactions, P], Coroutine[Any, Any, T]]:
    """Makes the method of the port that asks whoever serves the transactions at that moment."""

    async def asked(self: LeasedTransactions, /, *args: P.args, **named: P.kwargs) -> T:
        answer: T = await getattr(self._now(), method.__name__)(*args, **named)
        return answer

    return asked


class LeasedTransactions:
    """Implements the port (port.py) over the instance that serves it now. Belongs to one event loop."""

    def __init__(
        self, leader: Leader[TransactionManager], token: str | None, store_id: str, clock: Clock, network: Network | None
    ) -> None:
        self._leader = leader
        self._token = token
        self._store_id = store_id
        self._clock = clock
        self._network = network
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
            self._remote = (url, RemoteTransactions(url, self._token, self._store_id, self._clock, self._network))
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

    start = _asked(Transactions.start)
    can_commit = _asked(Transactions.can_commit)
    commit = _asked(Transactions.commit)
    abort = _asked(Transactions.abort)
    invalidate = _asked(Transactions.invalidate)
    checkpoint = _asked(Transactions.checkpoint)
    show = _asked(Transactions.show)
    list = _asked(Transactions.list)
    prune = _asked(Transactions.prune)
    states = _asked(Transactions.states)
    forgotten = _asked(Transactions.forgotten)
    root = _asked(Transactions.root)
    unacknowledged = _asked(Transactions.unacknowledged)
    acknowledge = _asked(Transactions.acknowledge)

    async def enlist(self, pointer: int, participant: str, by: str | None = None) -> Owned | None:
        """Enlists a participant, durably: its lease is another one, so the order of writes says nothing."""
        now = self._now()
        enlisted = await now.enlist(pointer, participant, by)
        if isinstance(now, TransactionManager):
            await now.synced()
        return enlisted

    def ended(self, pointer: int) -> bool:
        manager = self._leader.present
        if manager is not None:
            return manager.ended(pointer)
        return self._remote is not None and self._remote[1].ended(pointer)
