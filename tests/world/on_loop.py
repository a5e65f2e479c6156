"""The twin of threads on an event loop: where one of its calls would block, the loop goes on with others until that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from oncelog import Client
from oncelog.api.api import surrounded
from oncelog.http.sockets import Deadline, Engine, Network, Stream
from oncelog.process.clock import Clock

T = TypeVar("T")


async def on_loop(call: Callable[[], T]) -> T:
    """What a call returns or raises that blocks by such clients alone: no thread, no lock that another one holds."""
    made: T = await greenlet_spawn(call)
    return made


def clients_on_loop(network: Network, clock: Clock) -> type[Client]:
    """Clients of threads over the network of an event loop, for what :func:`on_loop` calls."""
    return surrounded(
        Client, network=_Network(network), clock=clock._replace(sleep=lambda seconds: await_only(asyncio.sleep(seconds)))
    )


async def _done(awaited: Awaitable[T]) -> T:
    """What a call has blocked for; or, where the loop asks itself, for a call that it watches, what it has waited for."""
    return await_only(awaited) if in_greenlet() else await awaited


class _Network:
    """Its operations return when those of the loop's network have."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def addresses(self, host: str, port: int, deadline: Deadline) -> Sequence[Any]:
        return await _done(self._network.addresses(host, port, deadline))

    async def connect(self, address: Any, deadline: Deadline) -> Stream:
        return _Stream(await _done(self._network.connect(address, deadline)))

    async def to_engine(self, engine: Engine, deadline: Deadline) -> Stream:
        return _Stream(await _done(self._network.to_engine(engine, deadline)))


class _Stream:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.is_quiet, self.hang_up, self.close = stream.is_quiet, stream.hang_up, stream.close

    async def send(self, data: bytes | memoryview, deadline: Deadline) -> None:
        await _done(self._stream.send(data, deadline))

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        return await _done(self._stream.receive(most, deadline))
