"""One opening of the store: what belongs to it, in which order that is begun, and how it ends.

What it has in memory is believed until it ends. It ends in order (:meth:`Opening.close`), or without another write
(:meth:`Opening.abandon`, :meth:`Opening.let_go`) after **any** storage error, for whatever it has may be wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from oncelog.errors import NotServedHere, NotSupported
from oncelog_service.atomic.coordinator import AtomicCommits
from oncelog_service.atomic.upkeep import Upkeep
from oncelog_service.bounds import room
from oncelog_service.cluster.leader import Component, Leader
from oncelog_service.cluster.leases import ATOMIC_COMMITS, SETUP, TRANSACTIONS, Lease, Leases, topic_of
from oncelog_service.cluster.membership import Membership
from oncelog_service.config import LOOPBACK
from oncelog_service.group_commit import Writer
from oncelog_service.housekeeping import forget_outcomes, move_topics, watch_disk
from oncelog_service.lasting import Lasting
from oncelog_service.log.cache import RecentMessages
from oncelog_service.reading import read
from oncelog_service.retention import Retention
from oncelog_service.settlement import SettlementTask
from oncelog_service.storage.copying import check_whole
from oncelog_service.storage.port import Fence, Store, StoreError
from oncelog_service.topics.topics import Topics
from oncelog_service.transactions.leased import LeasedTransactions
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.port import Transactions
from oncelog_service.transactions.remote import RemoteTransactions
from oncelog_service.transactions.store_id import find_secret, find_store_id, store_id_of

C = TypeVar("C", bound=Component)

_log = logging.getLogger(__name__)

_SIZE_SECONDS = 10.0
"""A store of 100 GB has 50,000 files: 0.2 s of a thread."""
_ANYWHERE = ("0.0.0.0", "::", None)
"""Addresses to listen on that are none to go to."""


async def store_opened(open_store: Callable[[], Store]) -> Store:
    """Opens the store. Whoever is cancelled meanwhile leaves none open: its lock would keep everybody out."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_store))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        while not opening.done():
            with suppress(asyncio.CancelledError):  # told again, it waits on
                await asyncio.wait([opening])
        with suppress(Exception):
            await asyncio.to_thread(opening.result().close)
        raise


class Opening:
    """Belongs to the event loop of the service. All its parts are there once :meth:`begin` has returned."""

    topics: Topics
    _atomic: Leader[AtomicCommits]
    _transactions: Leader[TransactionManager] | RemoteTransactions
    """Where instances share the store, topics ask the leader wherever it is: see ``_leased``."""

    def __init__(self, lasting: Lasting, store: Store, on_failure: Callable[[Exception], None]) -> None:
        """``on_failure`` is told once that nothing in memory is to be believed any more."""
        self._lasting = lasting
        self._on_failure = on_failure
        self.store = store
        told = on_failure, self._on_fenced, lasting.room, lasting.counts, lasting.turns.pause
        at_once = lasting.settings.quick_writes
        self.writer = Writer(store, *told, clock=lasting.clock, workers=lasting.workers, at_once=at_once)
        self.leases = Leases()
        self.cache = RecentMessages(lasting.settings.cache_bytes)
        self._leased: LeasedTransactions | None = None
        self._abandons: list[Callable[[], None]] = []
        """Ends each part that was begun."""
        self._store_bytes: tuple[float, int] | None = None
        """When it was looked at, and what was found."""

    # --- how it begins

    async def begin(self) -> None:
        """Begins all parts. Raises StoreError, StorageUnavailable, StorageFailed: it is to be abandoned, and let go of."""
        lasting, store, settings = self._lasting, self.store, self._lasting.settings
        self.leases = await self._join()
        self._abandons.append(self.leases.abandon)
        await asyncio.to_thread(check_whole, store)  # after joining: who begins a copy looks for us behind its mark
        await asyncio.to_thread(store.check_written)
        store_id = await self._store_id()
        secret = await asyncio.to_thread(find_secret, store) if self._is_shared else None
        await lasting.access.open(store, self.writer, self.leases, secret)
        transactions = await self._begin_transactions(store_id)
        about = store, self.writer, lasting.clock, self.cache, settings.limits, transactions, store_id
        self.topics = await asyncio.to_thread(Topics, *about, leases=self.leases, scans=lasting.scans)
        self._abandons.append(self.topics.logs.abandon)
        self._atomic = self._leader(ATOMIC_COMMITS, self._recover_atomic)
        await self._atomic.begin()
        if self.leases.death is not None:
            raise StoreError(str(self.leases.death))
        await room.look(lasting.room, store.free_bytes, self.writer.drained)
        self.writer.check()  # nobody else would: until here there is nothing that a failure could be told of

    @property
    def _is_shared(self) -> bool:
        return self.leases.alive is not None

    async def _join(self) -> Leases:
        """Returns the leases of this process: every lease, where it has the store for itself."""
        lasting, settings, url = self._lasting, self._lasting.settings, self._lasting.url
        table = self.store.lease_table()
        if table is None:
            return Leases()
        if urlsplit(url).hostname in _ANYWHERE:
            raise StoreError(
                f"several can share this store, and none is found at {url}: name this service's address, --advertised-url"
            )
        if _is_here(url) and settings.advertised_url is None and not _is_here(settings.store):
            _log.warning(
                "others that share this store, and their clients, are told to find this service at %s, another machine for each "
                "of them: with several machines listen on an address of this one, --host, or name it, --advertised-url",
                url,
            )
        membership = Membership(
            table,
            url,
            lambda: lasting.access.own_token,
            settings.lease_seconds,
            lasting.clock,
            self._on_failure,
            self._on_lost,
            workers=lasting.workers,
            network=lasting.network,
        )
        await membership.join()
        return membership

    async def _store_id(self) -> str:
        """Returns the store's name, drawn by one process where there is none yet."""
        while True:
            try:
                lease = await self.leases.take(SETUP)
            except NotServedHere:
                name = await asyncio.to_thread(find_store_id, self.store)
                if name is not None:
                    return name
                await asyncio.sleep(0.1)
            else:
                name = await asyncio.to_thread(store_id_of, self.store, lease.fence)
                await self.leases.pass_on(SETUP, None)
                return name

    async def _begin_transactions(self, store_id: str) -> Transactions:
        lasting, settings = self._lasting, self._lasting.settings
        reached = store_id, lasting.clock, lasting.network
        if settings.transactions_url is not None:
            token = settings.transactions_token or settings.token
            remote = self._transactions = RemoteTransactions(settings.transactions_url, token, *reached)
            self._abandons.append(remote.release)
            return remote

        async def recover(lease: Lease) -> TransactionManager:
            await asyncio.to_thread(self.store.check_written)
            writer, limits = self.writer.under(lease), settings.transaction_limits
            return await TransactionManager.recover(self.store, writer, lasting.clock, limits, store_id)

        leader = self._transactions = self._leader(TRANSACTIONS, recover)
        await leader.begin()
        if not self._is_shared:
            return leader.here
        leased = self._leased = LeasedTransactions(leader, lasting.access.own_token, *reached)
        self._abandons.append(leased.release)
        return leased

    async def _recover_atomic(self, lease: Lease) -> AtomicCommits:
        await asyncio.to_thread(self.store.check_written)
        lasting, writer = self._lasting, self.writer.under(lease)
        return await AtomicCommits.recover(self.store, writer, self.topics, lasting.clock, lasting.settings.atomic_limits)

    def _leader(self, resource: bytes, recover: Callable[[Lease], Awaitable[C]]) -> Leader[C]:
        leader = Leader(resource, self.leases, recover, self._lasting.background)
        self._abandons.append(leader.end)
        return leader

    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Returns what is to run while it lasts, by what it is called."""
        lasting, settings, store, topics = self._lasting, self._lasting.settings, self.store, self.topics
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "retention": self.retention().run,
            "looking whether the store answers": partial(lasting.looking.keep, store),
            "watching the disk": partial(watch_disk, lasting.room, store, self.writer),
            "making room on the disk": partial(room.make, lasting.room, store.reclaim),
            "serving atomic commits": self._atomic.run,
            "serving transactions": self._transactions.run,
            "forgetting old outcomes": partial(forget_outcomes, self._with_outcomes, settings.retention_seconds),
            "settlement": SettlementTask(topics.participants, topics.transactions, lasting.clock).run,
        }
        if lasting.access.issuer is not None:
            tasks["reading the issuer's keys"] = lasting.access.issuer.keep_up
        if self._is_shared:
            tasks["reading tokens"] = lasting.access.keep_up
            tasks["moving topics"] = partial(move_topics, topics, self.leases, settings.lease_seconds / 4)
        return tasks

    def _with_outcomes(self) -> tuple[TransactionManager | None, Upkeep | None]:
        served, atomic = self._served, self._atomic.present
        return served if isinstance(served, TransactionManager) else None, None if atomic is None else atomic.upkeep

    # --- what is there

    @property
    def transactions(self) -> TransactionManager | RemoteTransactions:
        """Returns the transaction service, as it answers its addresses here.

        Raises NotServedHere: another process serves it; StorageUnavailable.
        """
        return self._transactions.here if isinstance(self._transactions, Leader) else self._transactions

    @property
    def _served(self) -> TransactionManager | RemoteTransactions | None:
        return self._transactions.present if isinstance(self._transactions, Leader) else self._transactions

    @property
    def atomic(self) -> AtomicCommits:
        """Returns the coordinator of atomic commits. Raises NotServedHere, StorageUnavailable."""
        return self._atomic.here

    @property
    def membership(self) -> Membership:
        """Returns this process's membership. Raises NotSupported: it has the store for itself."""
        if not isinstance(self.leases, Membership):
            raise NotSupported("this service has its store for itself; several can share one on PostgreSQL")
        return self.leases

    def retention(self) -> Retention:
        """Makes a retention, which remembers from round to round what it has deleted."""
        lasting, settings = self._lasting, self._lasting.settings

        def needs(number: int) -> bool:
            journal = self._atomic.present
            return journal is None or journal.ledger.is_open(number)

        about = settings.retention_seconds, settings.limits.max_transaction_lifetime_ms
        return Retention(self.topics, lasting.scans, needs, self.store, lasting.clock, *about)

    async def store_bytes(self) -> int:
        """Returns how many bytes the store takes on disk, as of the last ten seconds. Raises StorageUnavailable, TopicDamaged."""
        now = self._lasting.clock.monotonic()
        if self._store_bytes is None or now - self._store_bytes[0] >= _SIZE_SECONDS:
            self._store_bytes = now, await read(self.store.size_bytes)
        return self._store_bytes[1]

    def carry(self, token: str | None) -> None:
        """Shows another token to the transaction service behind a URL. Raises ValueError: it cannot be one."""
        if isinstance(self._transactions, RemoteTransactions):
            self._transactions.carry(token)

    def _on_fenced(self, lost: frozenset[Fence]) -> None:
        self.leases.lost(lost)

    def _on_lost(self, resource: bytes) -> None:
        _log.warning("%s is served by another process now", resource.decode())
        name = topic_of(resource)
        if name is not None:  # none is served before all parts are there
            self.topics.logs.drop(name)

    # --- how it ends

    def release(self) -> None:
        """Tells readers and callers that wait, before a stop, to try again at once."""
        for part in (self.topics.logs, self._transactions, self._leased):
            if part is not None:
                part.release()

    async def close(self) -> None:
        """Finishes what is in hand, leaves snapshots, lets the others take over, closes the store."""
        self.writer.hurry()
        try:
            for part in (self._atomic.present, self.topics.logs, self._served, self._leased):
                if part is not None:
                    await part.close()
        finally:
            await self.let_go()

    def abandon(self) -> None:
        """Tells callers that wait that the store has failed. Of parts that were not begun, there are none who wait."""
        for each in reversed(self._abandons):
            each()

    async def let_go(self) -> None:
        """Writes what is queued, lets the others take over, closes the store; nothing else, since memory may be wrong."""
        await self.writer.close()
        await self.leases.leave()  # else we, under our next name, would have to wait for our last one to expire
        await asyncio.to_thread(self.store.close)


def _is_here(url: str) -> bool:
    """Tells whether a URL leads to this machine; one that names no host does."""
    return urlsplit(url).hostname in (*LOOPBACK, None)
