"""The network of an event loop: the same connections and the same HTTP, with operations that are awaited."""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from oncelog.http.connections import Connection, Connections, origin
from oncelog.http.deadline import Deadline
from oncelog.http.sockets import Plain, Stream
from oncelog.http.trust import Trust

_IDLE = 100
"""Connections to one host that are kept: as many as tasks ask at once; each task that waits has one of its own."""


class _Awaited(Plain):
    """A connected socket that does not block."""

    async def send(self, data: bytes | memoryview, deadline: Deadline) -> None:
        async with asyncio.timeout(deadline.left()):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        async with asyncio.timeout(deadline.left()):
            return await asyncio.get_running_loop().sock_recv(self._socket, most)


class Awaiting:
    """A network whose operations are awaited."""

    async def addresses(self, host: str, port: int, deadline: Deadline) -> Sequence[Any]:
        async with asyncio.timeout(deadline.left()):
            try:
                return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except UnicodeError as error:
                raise OSError(f"{host!r} is no host's name") from error

    async def connect(self, opened: socket.socket, address: Any, deadline: Deadline) -> Stream:
        opened.setblocking(False)
        async with asyncio.timeout(deadline.left()):
            await asyncio.get_running_loop().sock_connect(opened, address)
        return _Awaited(opened)


class Pool(Connections):
    """Connections of one event loop. One that is in use belongs to its response alone; of the others the newest is used first."""

    def __init__(self, trust: Trust) -> None:
        super().__init__(trust, Awaiting())
        self._idle_ones: defaultdict[tuple[str, str], list[Connection]] = defaultdict(list)

    def keep(self, url: str, connection: Connection) -> None:
        """Have it ready for the next request to the same host."""
        idle = self._idle_ones[origin(urlsplit(url))]
        if self._closed or len(idle) >= _IDLE:
            connection.close()
        else:
            idle.append(connection)

    def close(self) -> None:
        """Close those that are idle, and each of the others when its answer has been read."""
        super().close()
        for idle in self._idle_ones.values():
            while idle:
                idle.pop().close()

    def _idle(self, url: SplitResult) -> Connection | None:
        idle = self._idle_ones[origin(url)]
        while idle:
            connection = idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()
        return None
