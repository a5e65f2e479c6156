"""This process among those that share a store: alive as long as its heartbeat gets through, and what it holds.

The heartbeat has a worker of its own, so that no busy event loop is taken for dead. It goes on only while the event loop
turns: one that does not answers nobody, and must not keep what others could serve. By this process's own clock its leases
are valid for a little less than by the database's, counted from before the heartbeat was sent: when another one may take over,
this one has stopped answering from memory; its writes the fences keep out in any case.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from oncelog.errors import NotServedHere, OncelogError, StorageUnavailable
from oncelog.http.sockets import Network
from oncelog.http.transport import AsyncTransport
from oncelog.http.trust import Trust
from oncelog.wire.media import JSON
from oncelog_service.clock import Clock, of_clients
from oncelog_service.cluster.leases import TOPIC_PREFIX, Lease, Leases, topic_of
from oncelog_service.cluster.placement import preferred
from oncelog_service.storage.port import Dead, Fence, Instance, LeaseHolder, LeaseTable, StoreError
from oncelog_service.workers import Worker, Workers

_log = logging.getLogger(__name__)

_HAND_OVER = "/v1/cluster/hand-over"
_BEATS = 4
"""Heartbeats in the time after which an instance that is not heard of is taken for dead."""
_MARGIN = 0.1
"""Of that time: how much earlier its leases end by its own clock."""
_KEPT_SECONDS = 600.0
"""How long what was claimed stays where it is."""
_SETTLED_BEATS = 6
"""An instance has been there for so many heartbeats before anything is moved to it."""
_MOVED_AT_ONCE = 20
_VANISHED = 20
"""Of which the latest are remembered."""
_ASKING = 8

T = TypeVar("T")


class Membership(Leases):
    """Holds this process's leases for one event loop and one opening of the store."""

    def __init__(
        self,
        table: LeaseTable,
        url: str,
        own_token: Callable[[], str | None],
        ttl_seconds: float,
        clock: Clock,
        on_dead: Callable[[Exception], None],
        on_lost: Callable[[bytes], None],
        *,
        workers: Workers,
        network: Network | None = None,
    ) -> None:
        """``on_dead`` is called on the event loop, once, when others may have taken over everything; ``on_lost``, when another
        process is known to have a resource.
        """
        self.id = uuid4().hex
        self.url = url
        self._table = table
        self._own_token = own_token
        self._ttl = ttl_seconds
        self._clock = clock
        self._on_dead = on_dead
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._workers = workers
        self._network = network
        self._threads = workers.pool(_ASKING, "oncelog-cluster")
        self._mine: dict[bytes, Lease] = {}
        self._kept: dict[bytes, float] = {}
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._alive: Mapping[str, Instance] = {}
        self._seen: dict[str, int] = {}
        self.vanished: Mapping[str, str] = {}
        """id → URL of those that this process has seen alive and that are not any more; but where another one has come for it."""
        self._valid_until = -1.0
        self._ending = False
        self._heart: Worker | None = None
        self._has_turned = True
        """The event loop, since the heartbeat before this one."""

    async def join(self) -> None:
        """Begins to be alive. Raises StoreError."""
        began = self._clock.monotonic()
        await self._call(self._table.join, self.id, self.url, self._ttl_ms)
        self._renewed(began, await self._call(self._table.instances))
        self._heart = self._workers.begin("oncelog-heartbeat", self._beat, self._ttl / _BEATS)

    async def leave(self) -> None:
        """Lets the others take over at once. Where the database cannot be reached, they find out when the leases expire."""
        self.abandon()
        try:
            await self._call(self._table.leave, self.id)
        except StoreError as error:
            _log.warning("the others will take over when the leases have expired: %s", error)
        self._threads.shutdown(wait=False)

    def abandon(self) -> None:
        """Holds nothing any more, since the store has failed. Writes may still be under way; :meth:`leave` follows."""
        self._end()
        self._mine.clear()

    # --- leases

    async def take(self, resource: bytes, *, claim: bool = False) -> Lease:
        async with self._locked(resource):
            lease = self._mine.get(resource)
            if lease is None or not lease.is_valid:
                self.check_alive()
                if not claim:
                    await self._check_belongs_here(resource)
                lease = self._mine[resource] = Lease(await self._taken(resource, claim), self._standing)
            if claim:
                self.keep(resource)
            return lease

    async def _check_belongs_here(self, resource: bytes) -> None:
        """Raises NotServedHere where another instance has it, or is to take it. Only topics belong anywhere."""
        wanted = preferred(resource, self._alive)
        if wanted in (None, self.id) or not resource.startswith(TOPIC_PREFIX):
            return
        holder = await self._ask(self._table.holder, resource)
        if holder is None:  # then its instance may have died since the latest heartbeat: no client is to be sent there
            alive = {each.id: each for each in await self._ask(self._table.instances) if each.is_service}
            holder = alive.get(preferred(resource, alive) or "")
        if holder is not None and holder.id != self.id:
            raise NotServedHere(url=holder.url)

    async def _taken(self, resource: bytes, claim: bool) -> Fence:
        found = await self._ask(self._table.take, self.id, resource)
        if isinstance(found, Fence):
            return found
        if not claim:
            raise NotServedHere(url=found.url)
        await self._ask_for(resource, found)
        found = await self._ask(self._table.take, self.id, resource)
        if isinstance(found, Fence):
            return found
        raise StorageUnavailable(f"{found.url} serves it and has not handed it over yet; nothing was done, try again")

    async def _ask_for(self, resource: bytes, holder: Instance) -> None:
        name = topic_of(resource)
        assert name is not None  # nothing else is claimed
        namespace, topic = name
        body = json.dumps({"namespace": namespace, "topic": topic, "instance": self.id}).encode()

        try:
            clock = of_clients(self._clock)
            transport = AsyncTransport(holder.url, self._own_token(), self._ttl, self._trust, network=self._network, clock=clock)
            with closing(transport):
                await transport.ask("POST", _HAND_OVER, body, JSON)
        except OncelogError as error:
            raise StorageUnavailable(f"{holder.url} serves it and does not hand it over: {error.detail}") from error

    @cached_property
    def _trust(self) -> Trust:
        return Trust.chosen()  # once, as its certificates are read on the event loop

    def belongs_here(self, resource: bytes) -> bool:
        return resource in self._mine or preferred(resource, self._alive) == self.id

    @property
    def alive(self) -> tuple[str, tuple[str, ...]]:
        return self.id, tuple(self._alive)

    def keep(self, resource: bytes) -> None:
        self._kept[resource] = self._clock.monotonic() + _KEPT_SECONDS

    async def pass_on(self, resource: bytes, to: str | None) -> None:
        async with self._locked(resource):
            lease = self._mine.pop(resource, None)
            self._kept.pop(resource, None)
            if lease is not None:
                lease.lost = True
            fence = None if lease is None else lease.fence
            if fence is None:  # it may have been handed over to us, and never been taken
                found = await self._ask(self._table.take, self.id, resource)
                if not isinstance(found, Fence):
                    return
                fence = found
            await self._ask(self._table.give_up, self.id, fence, to)

    def lost(self, fences: Collection[Fence]) -> None:
        for fence in sorted(fences):
            lease = self._mine.get(fence.resource)
            if lease is not None and lease.fence == fence:
                lease.lost = True
                del self._mine[fence.resource]
                self._on_lost(fence.resource)

    def misplaced(self) -> Sequence[tuple[bytes, str]]:
        """Lists some topics that are held here and belong to another instance, which has been there for a while."""
        now, settled = self._clock.monotonic(), {each for each, beats in self._seen.items() if beats >= _SETTLED_BEATS}
        found = []
        for resource in self._mine:
            wanted = preferred(resource, self._alive) if resource.startswith(TOPIC_PREFIX) else None
            if wanted not in (None, self.id) and wanted in settled and self._kept.get(resource, now) <= now:
                found.append((resource, wanted))
                if len(found) == _MOVED_AT_ONCE:
                    break
        return found

    @property
    def held(self) -> int:
        return len(self._mine)

    async def overview(
        self, after: bytes = b"", limit: int | None = None
    ) -> tuple[Sequence[Instance], Mapping[bytes, LeaseHolder]]:
        """Returns all instances that are alive and serve, and the leases that are held: the first ``limit`` behind a resource.

        Raises StorageUnavailable.
        """
        instances = await self._ask(self._table.instances)
        return [each for each in instances if each.is_service], await self._ask(self._table.held, after, limit)

    def missing(self, instances: Iterable[Instance], held: Mapping[bytes, LeaseHolder]) -> list[tuple[str, str, int]]:
        """(id, URL, leases) of those that are gone without having left: nobody has come for all that they served.

        ``instances`` and ``held``: as :meth:`overview` tells them. Who has left as it should leaves no lease.
        """
        alive = {each.id for each in instances}
        left = Counter(lease.instance for lease in held.values())
        return [(id, url, left[id]) for id, url in self.vanished.items() if id not in alive and left[id]]  # noqa: A001

    async def holder(self, resource: bytes) -> Instance | None:
        """Returns the instance that holds a resource and is alive. Raises StorageUnavailable."""
        return await self._ask(self._table.holder, resource)

    def _standing(self) -> bool:
        return self._clock.monotonic() < self._valid_until and not self._ending

    def check_alive(self) -> None:
        """Raises StorageUnavailable when nothing may be answered any more."""
        if not self._standing():
            raise StorageUnavailable("the database has not been heard of for too long; others may serve everything by now")

    async def _ask(self, call: Callable[..., T], *args: object) -> T:
        try:
            return await self._call(call, *args)
        except Dead as error:
            self._dead(error)
            raise StorageUnavailable(str(error)) from error
        except StoreError as error:
            raise StorageUnavailable(f"nothing was done: {error}") from error

    async def _call(self, call: Callable[..., T], *args: object) -> T:
        try:
            return await self._loop.run_in_executor(self._threads, lambda: call(*args))
        except RuntimeError as error:  # the threads have ended
            raise StorageUnavailable("the service is stopping, or the store is being reopened") from error

    def _locked(self, resource: bytes) -> asyncio.Lock:
        lock = self._locks.get(resource)
        if lock is None:
            lock = self._locks[resource] = asyncio.Lock()
        return lock

    # --- the heartbeat, by its worker

    @property
    def _ttl_ms(self) -> int:
        return round(self._ttl * 1000)

    def _beat(self, worker: Worker) -> None:
        if self._ending:
            return
        if not self._has_turned:
            _log.warning("the event loop has not turned since the last heartbeat; until it does, the leases are not renewed")
            return
        self._has_turned = False
        worker.report(self._turned)
        began = self._clock.monotonic()  # before it is sent: the database's clock starts when it arrives, which is later
        try:
            alive = self._table.renew(self.id, self._ttl_ms)
        except Dead as error:
            worker.end()
            worker.report(self._dead, error)
        except StoreError as error:
            _log.warning("the heartbeat did not get through and will be tried again: %s", error)
        except Exception:  # a bug: without a heartbeat the leases end, and never come back
            _log.exception("the heartbeat failed and will be tried again")
        else:
            self._renewed(began, alive)

    def _turned(self) -> None:
        self._has_turned = True

    def _renewed(self, began: float, alive: Sequence[Instance]) -> None:
        before = {each.id: each.url for each in self._alive.values()}
        self._alive = {each.id: each for each in alive if each.is_service}  # a command is gone before it could serve anything
        urls = {each.url for each in self._alive.values()}
        gone = [each for each in {**self.vanished, **before}.items() if each[0] not in self._alive and each[1] not in urls]
        self.vanished = dict(gone[-_VANISHED:])
        self._seen = {each.id: self._seen.get(each.id, 0) + 1 for each in alive}
        self._valid_until = began + self._ttl * (1 - _MARGIN)

    def _dead(self, error: Exception) -> None:
        if not self._ending:
            self._end()
            self.death = error
            self._on_dead(error)

    def _end(self) -> None:
        self._ending = True
        if self._heart is not None:
            self._heart.end()
