"""Takes connections from a socket, as many as there are places, and has the others told that there is none.

asyncio's own accept takes all that wait before anybody is asked, and where descriptors run out it logs, and pauses for a second;
uvloop's resets whoever comes then. So it is done here, a few in one turn of the event loop.

The invariants:

* A connection has its place from the moment in which it is accepted; whose protocol never begins gives it back.
* Descriptors do not run out of this: connections and the reserve are fewer than there are, and beyond its place nobody but a few
  who are being told has one. Where something else has taken them all, those who wait give way, and nobody is reset.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from oncelog.errors import OncelogError, Overloaded
from oncelog_service.rest.bounds.places import address_of
from oncelog_service.rest.protocol import HttpConnection, Shared

_log = logging.getLogger(__name__)

_BACKLOG = 2_048
_AT_ONCE = 4
"""Accepted in one turn of the event loop; others have theirs."""

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 0.05
_LOG_SECONDS = 60


class Acceptor:
    """Takes the connections of one socket, and those that it is handed."""

    def __init__(
        self, listener: socket.socket | None, shared: Shared, over: Callable[[HttpConnection], asyncio.Protocol]
    ) -> None:
        """``over``: the protocol that the transport of one from the socket is given, the connection itself or one below it.
        ``listener``: None, where all are handed over."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._shared = shared
        self._over = over
        self._beginning: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._logged = -float(_LOG_SECONDS)
        self._closed = False

    def start(self) -> None:
        """Begins to take connections."""
        if self._listener is not None:
            self._listener.setblocking(False)
            self._listener.listen(_BACKLOG)
        self._listen()

    def take(self, connected: socket.socket) -> None:
        """Takes one that is connected already, within this process: nothing of it passes anybody who could read along."""
        self._take(connected, "", lambda connection: connection)

    def protocol(self, address: str) -> asyncio.Protocol:
        """Returns what answers a connection from this address, whose transport the caller makes."""
        return self._over(self._connection(address))

    def _take(self, connected: socket.socket, address: str, over: Callable[[HttpConnection], asyncio.Protocol]) -> None:
        """From now on it is closed here."""
        if self._closed:
            connected.close()
            return
        connected.setblocking(False)
        task = self._loop.create_task(self._begin(self._connection(address), connected, over))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def close(self) -> None:
        """Takes those that wait, and no more; returns when those that were taken have begun.

        Who has connected has perhaps asked already, and would be cut off; who comes later is refused at once, by the system.
        """
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            with suppress(OSError):
                while self._accept(self._listener):
                    pass
        self.abandon()
        if self._beginning:
            await asyncio.wait(self._beginning)

    def abandon(self) -> None:
        """Takes no more from now on; who waits to be taken is refused by the system."""
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def _listen(self) -> None:
        self._pause = None
        if not self._closed and self._listener is not None:
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> bool:
        """Takes some; tells whether others may wait."""
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return False
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                self._await_descriptors(listener, error)
                return False
            self._take(accepted, address_of(peer[0]), self._over)
        return True

    def _connection(self, address: str) -> HttpConnection:
        shared = self._shared
        places, now = shared.places, self._loop.time()
        of_one = places.is_full_for(address)
        if of_one or places.is_full:
            holder = places.gives_way(shared.connections, address if of_one else None, now)
            if holder is None:
                shared.traffic.refused["address" if of_one else "connections"] += 1
                return HttpConnection(shared, address, refused=_no_place(of_one))
            assert isinstance(holder, HttpConnection)
            shared.traffic.refused[holder.give_way()] += 1
        return HttpConnection(shared, address, placed=True)

    async def _begin(
        self, connection: HttpConnection, accepted: socket.socket, over: Callable[[HttpConnection], asyncio.Protocol]
    ) -> None:
        protocol = over(connection)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted)
        except OSError:  # it has gone already
            connection.leave()
            accepted.close()

    def _await_descriptors(self, listener: socket.socket, error: OSError) -> None:
        """Has one connection give way, and comes again in a moment: while one waits to be taken, the socket calls at once."""
        now = self._loop.time()
        self._shared.traffic.refused["descriptors"] += 1
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            _log.warning("no connection can be taken at the moment: %s", error.strerror)
        holder = self._shared.places.gives_way(self._shared.connections, None, now)
        if isinstance(holder, HttpConnection):
            holder.give_way()
        if self._closed:
            return
        self._loop.remove_reader(listener)
        self._pause = self._loop.call_later(_PAUSE_SECONDS, self._listen)


def _no_place(of_one: bool) -> OncelogError:
    if of_one:
        return Overloaded("there are as many connections from this address as the service takes of one; try again in a moment")
    return Overloaded("the service has as many connections as it takes; try again in a moment")
