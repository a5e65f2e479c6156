"""A server that answers HTTP on one socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from oncelog_service.background import Background
from oncelog_service.config import Settings
from oncelog_service.rest.bounds import descriptors
from oncelog_service.rest.bounds.accepting import Acceptor
from oncelog_service.rest.bounds.places import places_for, told_for
from oncelog_service.rest.certificates import Certificates
from oncelog_service.rest.protocol import Application, HttpConnection, Shared
from oncelog_service.rest.tls import TlsConnection
from oncelog_service.traffic import Traffic
from oncelog_service.watch.gather import Edge
from oncelog_service.watch.watch import Watch

_log = logging.getLogger(__name__)

_STOP_SECONDS = 5
"""How long a stop waits for answers that are under way."""


class Server:
    """Belongs to one event loop."""

    def __init__(
        self,
        application: Application,
        settings: Settings,
        background: Background,
        traffic: Traffic | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Raises BadCertificate. ``traffic``: where it counts; ``watch``: samples the service while this answers."""
        self._settings = settings
        self._shared = Shared(application, settings, traffic)
        self._background = background
        self.certificates = Certificates.of(settings)
        """None: it does not speak TLS."""
        self._told = asyncio.Event()
        self._watch = watch
        if watch is not None:
            watch.edge = self._edge

    def _edge(self) -> Edge:
        ends_ms = None if self.certificates is None else self.certificates.ends_ms
        return Edge(ends_ms, descriptors.limit())

    @property
    def under_way(self) -> int:
        """Requests whose head has been read, and which nothing before them on their connection keeps waiting."""
        return len(self._shared.exchanges)

    def stop(self) -> None:
        """Has :meth:`run` end. Twice is as once."""
        self._told.set()

    async def run(self, listener: socket.socket, on_ready: Callable[[], None], before_stop: Callable[[], None]) -> None:
        """Answers until :meth:`stop`; then takes no more, and finishes what is under way if that takes no longer than 5 s.

        ``on_ready`` is called once connections are taken; ``before_stop``: has those who wait for something end at once.
        """
        loop = asyncio.get_running_loop()
        self._make_places()
        acceptor = Acceptor(listener, self._shared, self._protocol_of)
        acceptor.start()
        watching = [] if self.certificates is None else [loop.create_task(self.certificates.watch(self._background))]
        if self._watch is not None:
            watching.append(loop.create_task(self._background.keep("sampling", self._watch.run)))
        on_ready()
        await self._told.wait()
        before_stop()
        if self._watch is not None:
            self._watch.release()
        await acceptor.close()
        for task in watching:
            task.cancel()
        for connection in list(self._shared.connections):
            connection.shut_down()
        await self._drain(loop.time() + _STOP_SECONDS)

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

    async def _drain(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline):
                while self._shared.connections:
                    self._shared.all_gone.clear()
                    await self._shared.all_gone.wait()
        except TimeoutError:
            pass
        # What somebody who has hung up had asked for may still be under way.
        answering = {each.answering for each in self._shared.exchanges if each.answering is not None}
        if answering:
            await asyncio.wait(answering, timeout=max(0.0, deadline - loop.time()))
        for task in answering:
            task.cancel()
        for connection in list(self._shared.connections):
            connection.abort()
        if answering:
            await asyncio.wait(answering)
