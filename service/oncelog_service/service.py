"""The service's life: open the store, serve, and after a failed write close, reopen and read everything back.

After **any** storage error nothing in memory is believed. LevelDB acknowledged 348 of 420 later writes that were gone after a
restart when it was used on after a full disk; closing, reopening and reading back lost none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from oncelog.errors import NotServedHere, NotSupported, OncelogError, StorageFailed, StorageUnavailable
from oncelog.http.sockets import Network
from oncelog_service.access.access import Access
from oncelog_service.access.audit import Audit
from oncelog_service.access.checks import Checks
from oncelog_service.access.issuer import Issuer
from oncelog_service.atomic.coordinator import AtomicCommits
from oncelog_service.background import Background
from oncelog_service.bounds import room
from oncelog_service.bounds.quotas import Quotas, Rates
from oncelog_service.bounds.turns import Turns
from oncelog_service.bounds.waits import Waits
from oncelog_service.clock import Clock
from oncelog_service.cluster.leader import Component, Leader
from oncelog_service.cluster.leases import ATOMIC_COMMITS, SETUP, TRANSACTIONS, Lease, Leases, topic_of
from oncelog_service.cluster.membership import Membership
from oncelog_service.config import LOOPBACK, Settings
from oncelog_service.counting.counts import Counts
from oncelog_service.group_commit import STALLED_SECONDS, Writer
from oncelog_service.log.cache import RecentMessages
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.reading import Scans, read
from oncelog_service.retention import Retention
from oncelog_service.settlement import SettlementTask
from oncelog_service.storage.copying import check_whole
from oncelog_service.storage.port import Fence, Store, StoreDamaged, StoreError
from oncelog_service.topics.directory import TopicName
from oncelog_service.topics.topics import Topics
from oncelog_service.traffic import Traffic
from oncelog_service.transactions.leased import LeasedTransactions
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.remote import RemoteTransactions
from oncelog_service.transactions.store_id import find_secret, find_store_id, store_id_of
from oncelog_service.workers import Workers

T = TypeVar("T")
C = TypeVar("C", bound=Component)

_log = logging.getLogger(__name__)

_READ_SECONDS = 5.0
"""How long the store is read for what is told of the service."""

_LOOK_SECONDS = 5.0
"""Between two looks whether the store answers."""

_REOPEN_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses before each attempt to reopen a store that failed; the last one repeats."""
_DAMAGED_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The same where writes fail since what is stored is damaged: reading it again does not help, and each attempt costs a replay."""
_HELD_SECONDS = 300.0
"""A store that was open for so long without a failure is not taken for damaged any more."""
_SIZE_SECONDS = 10.0
"""A store of 100 GB has 50,000 files: 0.2 s of a thread."""
_ANYWHERE = ("0.0.0.0", "::", None)
"""Addresses to listen on that are none to go to."""


def _is_here(url: str) -> bool:
    """Tells whether a URL leads to this machine; one that names no host does."""
    return urlsplit(url).hostname in (*LOOPBACK, None)


def _present(leader: Leader[C] | None) -> C | None:
    return None if leader is None else leader.present


class _Opened:
    """Holds what belongs to one opening of the store."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self.store = store
        self.writer = writer
        self.leases = Leases()
        self.topics: Topics | None = None
        self.led_transactions: Leader[TransactionManager] | None = None
        self.remote: RemoteTransactions | LeasedTransactions | None = None
        self.atomic: Leader[AtomicCommits] | None = None

    @property
    def transactions(self) -> TransactionManager | RemoteTransactions | LeasedTransactions | None:
        """Knows how transactions ended, here or elsewhere."""
        if self.remote is not None:
            return self.remote
        return _present(self.led_transactions)

    async def close(self) -> None:
        """Finishes what is in hand, leaves snapshots, lets the others take over, closes the store."""
        self.writer.hurry()
        try:
            logs = None if self.topics is None else self.topics.logs
            for part in (_present(self.atomic), logs, _present(self.led_transactions), self.remote):
                if part is not None:
                    await part.close()
        finally:
            await self.let_go()

    async def let_go(self) -> None:
        """Writes what is queued, lets the others take over, closes the store; nothing else, since memory may be wrong."""
        await self.writer.close()
        await self.leases.leave()  # else we, under our next name, would have to wait for our last one to expire
        await asyncio.to_thread(self.store.close)

    def release(self) -> None:
        """Tells readers and callers that wait, before a stop, to try again at once."""
        if self.topics is not None:
            self.topics.logs.release()
        for part in (self.led_transactions, self.remote):
            if part is not None:
                part.release()

    def abandon(self) -> None:
        """Tells callers that wait that the store has failed."""
        if self.topics is not None:
            self.topics.logs.abandon()
        for leader in (self.led_transactions, self.atomic):
            if leader is not None:
                leader.end()
        if self.remote is not None:
            self.remote.release()
        self.leases.abandon()


def _issuer(settings: Settings) -> Issuer | None:
    if settings.jwt_issuer is None or settings.jwt_audience is None or settings.jwt_keys is None:
        return None
    return Issuer(settings.jwt_issuer, settings.jwt_audience, settings.jwt_keys, settings.jwt_grants_claim)


def _later(seconds: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, call)


class Service:
    """Serves one store. Everything runs on the event loop that :meth:`start` was called on."""

    def __init__(
        self,
        settings: Settings,
        open_store: Callable[[], Store],
        clock: Clock,
        workers: Workers,
        url: str | None = None,
        network: Network | None = None,
    ) -> None:
        """``url``: the address at which other processes over the same store, and clients, find this one. ``network``: over which
        it reaches others; else sockets."""
        self.settings = settings
        self.url = url or settings.advertised_url or settings.url_of(settings.host, settings.port)
        self.clock = clock
        self.network = network
        self._workers = workers
        self.failures = 0
        """How often the store had to be reopened."""
        self._damages = 0
        """How often in a row a write failed since what is stored is damaged."""
        self._opened_at = 0.0
        self._store_bytes: tuple[float, int] | None = None
        """When it was looked at, and what was found."""
        self._open_store = open_store
        self._opened: _Opened | None = None
        self.cache = RecentMessages(settings.cache_bytes)
        self.scans = Scans(workers)
        self.telling = workers.pool(1, "oncelog-telling")
        """For what is told of the process and reads no store: told also while all other threads wait for one that hangs."""
        self.packing, self.unpacking = (workers.pool(1, f"oncelog-{name}") for name in ("packing", "unpacking"))
        """For large answers, so that such an answer waits for no store either, and for large bodies that come packed."""
        self._looking = workers.pool(1, "oncelog-looking")
        """For one small read of the store now and then, by which is known whether it answers: it finds no other before it."""
        self._looking_since: float | None = None
        """When the one that is under way began. Set on its thread."""
        self.waits = Waits(settings.max_inflight_bytes // 4)
        """What long polls hold."""
        self.room = room.Room(settings.min_free_bytes)
        """On the disk. It outlives the openings of the store, as all does that counts."""
        self.counts = Counts(settings.metrics_topics)
        principal_rates = Rates(settings.max_principal_messages_per_second, settings.max_principal_bytes_per_second)
        self.principal_quotas = Quotas("a principal of this service", principal_rates)
        """What each principal may send."""
        self.turns = Turns(settings.max_inflight_bytes, _later)
        """Whose request is written next. It outlives the openings of the store."""
        self.background = Background(clock)
        self.traffic = Traffic()
        self._checking = workers.pool(1, "oncelog-checking")
        """For the signatures of tokens."""
        issuer = _issuer(settings)
        checks = None if issuer is None else Checks(issuer, self._checking, clock.now_ms, clock.monotonic, self.traffic)
        self.access = Access(settings.token, clock.now_ms, locked=settings.is_locked, issuer=issuer, checks=checks)
        self.audit = Audit(settings.audit_log, _later)
        self.draining = False
        """It is about to stop: clients are to go elsewhere."""
        self._running: list[asyncio.Task[None]] = []
        self._reopening: asyncio.Task[None] | None = None
        self._reason = "the store is not open yet"

    async def start(self) -> None:
        """Opens the store. Raises StoreError if that does not work; then nothing is left open."""
        settings = self.settings
        self._begin_threads()
        store = await self._store_opened()

        def on_fenced(lost: frozenset[Fence]) -> None:
            opened.leases.lost(lost)

        about = self._on_failure, on_fenced, self.room, self.counts, self.turns.pause
        writer = Writer(store, *about, clock=self.clock, workers=self._workers, at_once=settings.quick_writes)
        opened = _Opened(store, writer)
        try:
            leases = opened.leases = await self._join(store)
            await asyncio.to_thread(check_whole, store)  # after joining: who begins a copy looks for us behind its mark
            await asyncio.to_thread(store.check_written)
            store_id = await self._store_id(store, leases)
            shared = leases.alive is not None
            await self.access.open(store, opened.writer, leases, await asyncio.to_thread(find_secret, store) if shared else None)
            self.cache = RecentMessages(settings.cache_bytes)
            transactions = await self._open_transactions(opened, store_id)
            topics = opened.topics = await asyncio.to_thread(
                Topics,
                store,
                opened.writer,
                self.clock,
                self.cache,
                settings.limits,
                transactions,
                store_id,
                leases=leases,
                scans=self.scans,
            )

            async def recover_atomic(lease: Lease) -> AtomicCommits:
                await asyncio.to_thread(store.check_written)
                return await AtomicCommits.recover(store, opened.writer.under(lease), topics, self.clock, settings.atomic_limits)

            atomic = opened.atomic = Leader(ATOMIC_COMMITS, leases, recover_atomic, self.background)
            await atomic.begin()
            if leases.death is not None:
                raise StoreError(str(leases.death))
            await room.look(self.room, store.free_bytes, opened.writer.drained)
            opened.writer.check()  # nobody else would: until here there is nothing that a failure could be told of
        except BaseException as error:
            opened.abandon()
            await opened.let_go()
            if isinstance(error, (StorageUnavailable, StorageFailed)):
                raise StoreError(error.detail) from error
            raise
        # Last: from here on requests are answered, and every part of what is opened must be there.
        self._opened = opened
        self._opened_at = self.clock.monotonic()
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "retention": self.retention.run,
            "looking whether the store answers": partial(self._keep_looking, store),
            "watching the disk": partial(self._watch_disk, store, opened.writer),
            "making room on the disk": partial(room.make, self.room, store.reclaim),
            "serving atomic commits": atomic.run,
            "serving transactions": transactions.run if opened.led_transactions is None else opened.led_transactions.run,
            "forgetting old outcomes": partial(self._forget_outcomes, opened),
            "settlement": SettlementTask(topics.participants, transactions, self.clock).run,
        }
        if self.access.issuer is not None:
            tasks["reading the issuer's keys"] = self.access.issuer.keep_up
        if shared:
            tasks["reading tokens"] = self.access.keep_up
            tasks["moving topics"] = partial(self._keep_house, leases, topics)
        self._running = [asyncio.ensure_future(self.background.keep(what, run)) for what, run in tasks.items()]

    async def _store_opened(self) -> Store:
        """Opens the store. Whoever is cancelled meanwhile leaves none open: its lock would keep everybody out."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._open_store))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            while not opening.done():
                with suppress(asyncio.CancelledError):  # told again, it waits on
                    await asyncio.wait([opening])
            with suppress(Exception):
                await asyncio.to_thread(opening.result().close)
            raise

    def drain(self) -> None:
        """Says from now on that it is not ready, and has readers that wait answer with what there is; all else goes on.

        Again: readers that have begun to wait meanwhile.
        """
        self.draining = True
        if self._opened is not None and self._opened.topics is not None:
            for log in self._opened.topics.logs.opened.values():
                log.topic.dismiss()

    def release(self) -> None:
        """Tells callers that wait, before a stop, to try again at once; else the stop would wait for every one of them."""
        self.turns.release()
        if self._opened is not None:
            self._opened.release()

    async def stop(self) -> None:
        """Finishes what is in hand, leaves a snapshot of every open topic, closes the store."""
        self._reason = "the service is stopping"
        for task in (self._reopening, *self._running):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()
        self._end_threads()
        self.audit.close()

    async def abandon(self) -> None:
        """Lets go of the store as the end of the process would: what is queued is not written, and nothing is left for the next
        opening. Whoever waits hears nothing more, so every connection is cut before this."""
        self._reason = "the service has ended"
        opened, self._opened = self._opened, None
        try:
            if opened is not None:
                await opened.writer.abandon()
        finally:
            for task in (self._reopening, *self._running):
                if task is not None:
                    task.cancel()
            if opened is not None:
                opened.abandon()
                await asyncio.to_thread(opened.store.close)
            self._end_threads()
            self.audit.close()

    def _begin_threads(self) -> None:
        self.scans.make_ready()
        for each in (self.telling, self._looking):
            each.make_ready(1)

    def _end_threads(self) -> None:
        self.scans.close()
        for each in (self.telling, self._looking, self.packing, self.unpacking, self._checking):
            each.shutdown(wait=False)

    @property
    def topics(self) -> Topics:
        """Returns the topics. Raises StorageUnavailable while the store is not open."""
        return self._there(self._present.topics)

    def open_log(self, name: TopicName) -> TopicLog | None:
        """Returns the topic's log if it is open, for what does not wait; else, or where it takes nothing more, it is to be
        opened."""
        topics = None if self._opened is None else self._opened.topics
        return None if topics is None else topics.logs.opened.get(name)

    @property
    def transactions(self) -> TransactionManager | RemoteTransactions:
        """Returns the transaction service, as it answers its addresses here.

        Raises StorageUnavailable while the store is not open; NotServedHere: another process serves it.
        """
        transactions = self._present.transactions
        if transactions is None:
            raise StorageUnavailable(self._reason)
        return transactions.here if isinstance(transactions, LeasedTransactions) else transactions

    @property
    def atomic(self) -> AtomicCommits:
        """Returns the coordinator of atomic commits. Raises StorageUnavailable while the store is not open; NotServedHere."""
        return self._there(self._present.atomic).here

    @property
    def membership(self) -> Membership:
        """Returns this process's membership. Raises NotSupported: it has the store for itself. StorageUnavailable."""
        leases = self._present.leases
        if not isinstance(leases, Membership):
            raise NotSupported("this service has its store for itself; several can share one on PostgreSQL")
        return leases

    def carry(self, token: str | None) -> None:
        """Shows another token to the transaction service behind a URL. Raises ValueError: it cannot be one."""
        remote = None if self._opened is None else self._opened.remote
        if isinstance(remote, RemoteTransactions):
            remote.carry(token)

    def check_serves(self) -> None:
        """Raises StorageUnavailable while the store is not open, or when others may serve everything that it shares with them."""
        self._present.leases.check_alive()

    def check_answers(self) -> None:
        """Raises StorageUnavailable as :meth:`check_serves`, and while the store hangs."""
        self.check_serves()
        if seconds := self.stalled_seconds:
            raise StorageUnavailable(f"the store has not answered for {seconds:.0f} s; what is written or read waits for it")

    def check_ready(self) -> None:
        """Raises StorageUnavailable as :meth:`check_answers`, while nothing can be written, and when it is about to stop."""
        if self.draining:
            raise StorageUnavailable("the service is stopping; others, or the next one in its place, answer")
        self.check_answers()
        self.writer.check()

    @property
    def writing_seconds(self) -> float:
        """Returns for how long the write has been under way that the store is in; 0: it is in none, or not open."""
        return 0.0 if self._opened is None else self._opened.writer.writing_seconds

    @property
    def reading_seconds(self) -> float:
        """Returns for how long the read has been under way by which is known whether the store answers; 0: none is."""
        since = self._looking_since
        return 0.0 if since is None else self.clock.elapsed() - since

    @property
    def stalled_seconds(self) -> float:
        """Returns the longer of both, once that is longer than a store should take; else 0."""
        seconds = max(self.writing_seconds, self.reading_seconds)
        return seconds if seconds >= STALLED_SECONDS else 0.0

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Bounds what tells of the service and reads the store for it: one that hangs is not read, and must be said.

        Raises TimeoutError.
        """
        async with asyncio.timeout(0 if self.stalled_seconds else _READ_SECONDS):
            await asyncio.sleep(0)  # where it hangs nothing is even begun, which would hold a thread of those who read
            yield

    async def _watch_disk(self, store: Store, writer: Writer) -> None:
        """Also whether it is there: nobody writes to an idle store, and what was moved away can be read for a while."""
        try:
            await room.watch(self.room, store.free_bytes, writer.drained)
        except StoreError as error:
            writer.give_up(error)

    async def _keep_looking(self, store: Store) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.get_running_loop().run_in_executor(self._looking, self._look, store)

    def _look(self, store: Store) -> None:
        self._looking_since = self.clock.elapsed()
        try:
            with suppress(StoreError):  # that it fails is an answer too, which whoever reads is told
                store.look()
                store.check_written()
        finally:
            self._looking_since = None

    @property
    def damaged(self) -> bool:
        """Tells whether writes fail again and again since rows are damaged."""
        held = self._opened is not None and self.clock.monotonic() - self._opened_at > _HELD_SECONDS
        return self._damages > 0 and not held

    @property
    def is_open(self) -> bool:
        """Tells whether the store is open."""
        return self._opened is not None

    @property
    def reason(self) -> str:
        """Returns why the store is not open; empty while it is."""
        return "" if self.is_open else self._reason

    @property
    def status(self) -> Literal["ok", "failing", "full", "damaged", "stalled", "closed"]:
        """Returns the most severe of these that is so."""
        if not self.is_open:
            return "closed"
        if self.stalled_seconds:
            return "stalled"
        return (
            "damaged" if self.damaged else "full" if self.room.state == "full" else "failing" if self.background.failing else "ok"
        )

    @property
    def leases_held(self) -> int:
        """Counts the leases of a shared store that this process holds."""
        return 0 if self._opened is None else self._opened.leases.held

    @property
    def writer(self) -> Writer:
        """Returns the writer. Raises StorageUnavailable while the store is not open."""
        return self._present.writer

    @property
    def store(self) -> Store:
        """Returns the store, for reading. Raises StorageUnavailable while it is not open."""
        return self._present.store

    async def store_bytes(self) -> int:
        """Returns how many bytes the store takes on disk, as of the last ten seconds. Raises StorageUnavailable, TopicDamaged."""
        store, now = self.store, self.clock.monotonic()
        if self._store_bytes is None or now - self._store_bytes[0] >= _SIZE_SECONDS:
            self._store_bytes = now, await read(store.size_bytes)
        return self._store_bytes[1]

    @property
    def _present(self) -> _Opened:
        return self._there(self._opened)

    def _there(self, part: T | None) -> T:
        if part is None:
            raise StorageUnavailable(self._reason)
        return part

    @property
    def retention(self) -> Retention:
        """Returns a retention over the present store, to run a round by hand."""
        settings, opened = self.settings, self._present
        lifetime_ms = settings.limits.max_transaction_lifetime_ms

        def needs(number: int) -> bool:
            journal = _present(opened.atomic)
            return journal is None or journal.ledger.is_open(number)

        return Retention(self.topics, self.scans, needs, opened.store, self.clock, settings.retention_seconds, lifetime_ms)

    async def _join(self, store: Store) -> Leases:
        settings = self.settings
        table = store.lease_table()
        if table is None:
            return Leases()
        if urlsplit(self.url).hostname in _ANYWHERE:
            raise StoreError(
                f"several can share this store, and none is found at {self.url}: name this service's address, --advertised-url"
            )
        if _is_here(self.url) and settings.advertised_url is None and not _is_here(settings.store):
            _log.warning(
                "others that share this store, and their clients, are told to find this service at %s, another machine for each "
                "of them: with several machines listen on an address of this one, --host, or name it, --advertised-url",
                self.url,
            )
        membership = Membership(
            table,
            self.url,
            lambda: self.access.own_token,
            settings.lease_seconds,
            self.clock,
            self._on_failure,
            self._on_lost,
            workers=self._workers,
            network=self.network,
        )
        await membership.join()
        return membership

    async def _store_id(self, store: Store, leases: Leases) -> str:
        """Returns the store's name, drawn by one process where there is none yet."""
        while True:
            try:
                lease = await leases.take(SETUP)
            except NotServedHere:
                name = await asyncio.to_thread(find_store_id, store)
                if name is not None:
                    return name
                await asyncio.sleep(0.1)
            else:
                name = await asyncio.to_thread(store_id_of, store, lease.fence)
                await leases.pass_on(SETUP, None)
                return name

    async def _open_transactions(
        self, opened: _Opened, store_id: str
    ) -> TransactionManager | RemoteTransactions | LeasedTransactions:
        settings = self.settings
        if settings.transactions_url is not None:
            token = settings.transactions_token or settings.token
            remote = opened.remote = RemoteTransactions(settings.transactions_url, token, store_id, self.clock, self.network)
            return remote

        async def recover(lease: Lease) -> TransactionManager:
            await asyncio.to_thread(opened.store.check_written)
            writer = opened.writer.under(lease)
            return await TransactionManager.recover(opened.store, writer, self.clock, settings.transaction_limits, store_id)

        leader = opened.led_transactions = Leader(TRANSACTIONS, opened.leases, recover, self.background)
        await leader.begin()
        if opened.leases.alive is None:
            return leader.here
        leased = opened.remote = LeasedTransactions(leader, self.access.own_token, store_id, self.clock, self.network)
        return leased

    async def _keep_house(self, leases: Leases, topics: Topics) -> None:
        """Reads again what others have set and moves topics to where they belong, now and then, until cancelled."""
        while True:
            await asyncio.sleep(self.settings.lease_seconds / 4)
            try:
                await topics.rolled_back.reread()
                await topics.policies.reread()
                for resource, to in leases.misplaced():
                    name = topic_of(resource)
                    assert name is not None  # nothing else is misplaced
                    await topics.logs.hand_over(*name, to)
            except OncelogError as error:
                _log.warning("topics are moved to where they belong later: %s", error)

    async def _forget_outcomes(self, opened: _Opened) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_seconds)
            try:
                for part in (_present(opened.led_transactions), _present(opened.atomic)):
                    while part is not None and await part.forget_outcomes():
                        pass
            except OncelogError as error:
                _log.warning("outcomes of old transactions are forgotten later: %s", error)

    def _on_lost(self, resource: bytes) -> None:
        _log.warning("%s is served by another process now", resource.decode())
        name = topic_of(resource)
        topics = None if self._opened is None else self._opened.topics
        if topics is not None and name is not None:
            topics.logs.drop(name)

    def _on_failure(self, error: Exception) -> None:
        """Stops answering from memory, since a write failed, or others may have taken everything over."""
        _log.error("the store failed and is closed until it has been read back: %s", error)
        self.failures += 1
        self._reason = f"the store failed and is being reopened: {error}"
        if isinstance(error, StoreDamaged):
            self._damages = self._damages + 1 if self.damaged else 1
            pause = self._pause(0)
            self._reason = f"the store is damaged, writes to it fail, and it is reopened in {pause:g} s: {error}"
            _log.error(
                "writes will fail again as long as that is so: stop the service and run `oncelog salvage`; %s", self._reason
            )
        for task in self._running:
            task.cancel()
        opened, self._opened = self._opened, None
        if opened is not None:
            # Now, and not in the task: a caller that waits must hear of the failure before anything is read back.
            opened.abandon()
            self._reopening = asyncio.ensure_future(self._reopen(opened))

    def _pause(self, attempt: int) -> float:
        """Returns the seconds before the next attempt to reopen the store."""
        pause = _REOPEN_SECONDS[min(attempt, len(_REOPEN_SECONDS) - 1)]
        if not self.damaged:
            return pause
        return max(pause, _DAMAGED_SECONDS[min(self._damages, len(_DAMAGED_SECONDS)) - 1])

    async def _reopen(self, opened: _Opened) -> None:
        try:
            await opened.let_go()
        except Exception:
            _log.exception("what was left of the store that failed could not be closed")
        attempt = 0
        while True:
            await asyncio.sleep(self._pause(attempt))
            attempt += 1
            try:
                await self.start()
            except Exception as error:  # whatever it is: a service that gave up would be closed for good, and run on
                self._reason = f"the store failed and cannot be reopened yet: {error}"
                _log.error("%s", self._reason, exc_info=not isinstance(error, StoreError))
            else:
                _log.warning("the store is open again after %d attempts", attempt)
                return
