"""A server that answers HTTP on one socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from oncelog_service.background import Background
from oncelog_service.bounds.shares import Shares
from oncelog_service.clock import Clock
from oncelog_service.config import Settings
from oncelog_service.rest.bounds import descriptors
from oncelog_service.rest.bounds.accepting import Acceptor
from oncelog_service.rest.bounds.places import places_for, told_for
from oncelog_service.rest.certificates import Certificates
from oncelog_service.rest.protocol import Application, HttpConnection, Shared
from oncelog_service.rest.tls import TlsConnection
from oncelog_service.traffic import Edge, Traffic
from oncelog_service.watch.watch import Watch

_log = logging.getLogger(__name__)

_FINISH_SECONDS = 3
"""How long a stop waits for answers that are under way before who waits for anything is told to try again."""
_STOP_SECONDS = 5
"""How long it waits in all."""


_TURNS = 3
"""Of the event loop: one to begin the connections taken last, one to ask which sockets can be read, one to read."""


def _nothing() -> None:
    pass


class Server:
    """Belongs to one event loop."""

    def __init__(
        self,
        application: Application,
        settings: Settings,
        background: Background,
        clock: Clock,
        traffic: Traffic | None = None,
        watch: Watch | None = None,
        unpacking: Executor | None = None,
        shares: Shares | None = None,
    ) -> None:
        """Raises BadCertificate. ``traffic``: where it counts; ``watch``: samples the service while this answers; ``unpacking``:
        the thread for bodies that come packed; ``shares``: whose large work goes on next."""
        self._settings = settings
        self._shared = Shared(application, settings, clock, traffic, unpacking, shares)
        self._background = background
        self.certificates = Certificates.of(settings)
        """None: it does not speak TLS."""
        self._told = asyncio.Event()
        self._hurried = asyncio.Event()
        self._pause_seconds = settings.drain_seconds
        self._acceptor: Acceptor | None = None
        self._watch = watch
        self._shared.traffic.edge = self._edge

    def _edge(self) -> Edge:
        ends_ms = None if self.certificates is None else self.certificates.ends_ms
        return Edge(ends_ms, descriptors.limit())

    @property
    def under_way(self) -> int:
        """Requests whose head has been read, and which nothing before them on their connection keeps waiting."""
        return len(self._shared.exchanges)

    def stop(self) -> None:
        """Has :meth:`run` end; a second time, without the pause in which load balancers notice."""
        (self._hurried if self._told.is_set() else self._told).set()

    def say_requests(self, settings: Settings) -> None:
        """Has requests leave lines in the log as these settings say."""
        self._shared.requests.follow(settings)

    def pause_for(self, seconds: float) -> None:
        """Has a stop that begins later pause for so long instead of ``drain_seconds``."""
        self._pause_seconds = seconds

    def take(self, connected: socket.socket) -> None:
        """Takes a connection from within this process, which speaks plain HTTP whatever the port speaks; one that comes before
        :meth:`run`, or when it takes no more, is closed."""
        if self._acceptor is None:
            connected.close()
        else:
            self._acceptor.take(connected)

    def connection(self, address: str) -> asyncio.Protocol:
        """Returns what answers a connection from this address, whose transport the caller makes; while :meth:`run` does."""
        assert self._acceptor is not None
        return self._acceptor.protocol(address)

    def abandon(self) -> None:
        """Cuts every connection, as the end of the process would: no answer leaves any more. :meth:`run` is to be cancelled."""
        if self._acceptor is not None:
            self._acceptor.abandon()
        for connection in list(self._shared.connections):
            connection.abort()

    async def run(
        self,
        listener: socket.socket | None,
        on_ready: Callable[[], None],
        before_stop: Callable[[], None],
        on_drain: Callable[[], None] = _nothing,
    ) -> None:
        """Answers until :meth:`stop`. Then it answers on for ``drain_seconds``, each time with the connection's end; takes no
        more connections, and finishes what is under way, if that takes no longer than 5 s.

        ``listener``: None, where all connections are handed over by :meth:`take`.
        ``on_ready`` is called once connections are taken; ``on_drain`` when a stop begins, and again after the pause: has those
        end who wait for messages; ``before_stop``: has everybody end who waits for anything.
        """
        loop = asyncio.get_running_loop()
        self._make_places()
        acceptor = self._acceptor = Acceptor(listener, self._shared, self._protocol_of)
        acceptor.start()
        watching = [] if self.certificates is None else [loop.create_task(self.certificates.watch(self._background))]
        if self._watch is not None:
            watching.append(loop.create_task(self._background.keep("sampling", self._watch.run)))
        on_ready()
        await self._told.wait()
        on_drain()
        await self._pause()
        on_drain()
        if self._watch is not None:
            self._watch.release()
        await acceptor.close()
        for task in watching:
            task.cancel()
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # what has arrived by now is read before anybody is taken for idle
        for connection in list(self._shared.connections):
            connection.shut_down()
        began = loop.time()
        await self._all_gone(began + _FINISH_SECONDS)
        before_stop()
        await self._drain(began + _STOP_SECONDS)

    async def _pause(self) -> None:
        """Answers on, while load balancers learn that it is not ready."""
        self._shared.draining = True
        for connection in self._shared.connections:
            connection.ends_soon()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_seconds):
                await self._hurried.wait()

    def _make_places(self) -> None:
        """As many connections as are wanted, if descriptors are left for all else then."""
        limit, wanted = descriptors.limit(), self._settings.max_connections
        found = self._shared.places.all = places_for(limit, descriptors.used(), wanted)
        self._shared.most_told = told_for(found)
        if found < wanted:
            _log.warning("%d connections are taken at a time, not %d: no more than %d files may be open", found, wanted, limit)

    def _protocol_of(self, connection: HttpConnection) -> asyncio.Protocol:
        certificates = self.certificates
        return connection if certificates is None else TlsConnection(lambda: certificates.context, connection)

    async def _all_gone(self, deadline: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._shared.connections:
                    self._shared.all_gone.clear()
                    await self._shared.all_gone.wait()

    async def _drain(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        await self._all_gone(deadline)
        # What somebody who has hung up had asked for may still be under way; what a step has handed over the stop writes.
        answering = {each.answering for each in self._shared.exchanges if each.answering is not None}
        if answering:
            await asyncio.wait(answering, timeout=max(0.0, deadline - loop.time()))
        for task in answering:
            task.cancel()
        for connection in list(self._shared.connections):
            connection.abort()
        if answering:
            await asyncio.wait(answering)
