"""A network of virtual time: between two processes two ordered streams of bytes, each piece at a time by chance.

What may happen to a connection: it is refused; it is cut before a request has arrived, or when it was answered; what was sent is
swallowed, or late; the link is slow; one host does not reach another one, and what was sent comes when it does again.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from oncelog.http.sockets import Deadline, Stream
from tests.world.virtual.loop import Process, VirtualLoop, context_of

Loss: TypeAlias = Literal["request lost", "answer lost", "request swallowed", "answer swallowed"]
"""What becomes of one request: the connection is cut before it arrives, or instead of its answer; or one of them never comes,
and the connection stands."""


@dataclass
class Weather:
    """How likely what is."""

    mean_delay: float = 0.001
    refused: float = 0.01
    request_lost: float = 0.015
    answer_lost: float = 0.02
    request_swallowed: float = 0.002
    answer_swallowed: float = 0.002
    late: float = 0.02
    slow_link: float = 0.03
    """Of a connection: so few bytes a second go through that a request takes seconds."""
    torn: float = 0.1
    """What is sent comes in two pieces."""


CALM = Weather(0.001, *[0.0] * 7)
"""Nothing goes wrong; pieces take their time."""
STILL = Weather(0.0, *[0.0] * 7)
"""Nothing goes wrong, and nothing takes time."""


class Network:
    """Who listens where, and all connections."""

    def __init__(self, loop: VirtualLoop, weather: Weather) -> None:
        self.loop = loop
        self.weather = weather
        self.listening: dict[tuple[str, int], tuple[Process, Callable[[str], asyncio.Protocol]]] = {}
        """(host, port) → the process, and what makes the protocol of a connection from an address."""
        self.connections: dict[Connection, None] = {}
        self.parted: set[frozenset[str]] = set()
        """Pairs of hosts that do not reach each other."""
        self.strike: Callable[[Process, bytes], Loss | None] = lambda process, data: None
        """Asked for each piece that a client sends, before chance is."""

    def reach(self, process: Process) -> Reach:
        """The network as this process has it."""
        return Reach(self, process)

    def delay(self) -> float:
        """Seconds that a piece is under way."""
        random, weather = self.loop.random, self.weather
        if not weather.mean_delay:
            return 0.0
        seconds = random.expovariate(1 / weather.mean_delay)
        return seconds + random.uniform(0.05, 1.5) if self.happens(weather.late) else seconds

    def happens(self, probability: float) -> bool:
        """By chance."""
        return bool(probability) and self.loop.random.random() < probability

    def loss(self, process: Process, data: bytes) -> Loss | None:
        """What becomes of a request."""
        struck = self.strike(process, data)
        if struck is not None:
            return struck
        weather = self.weather
        at = self.loop.random.random()
        losses: tuple[tuple[Loss, float], ...] = (
            ("request lost", weather.request_lost),
            ("answer lost", weather.answer_lost),
            ("request swallowed", weather.request_swallowed),
            ("answer swallowed", weather.answer_swallowed),
        )
        for loss, probability in losses:
            if at < probability:
                return loss
            at -= probability
        return None

    def part(self, one: str, other: str) -> None:
        """Have two hosts not reach each other."""
        self.loop.trace.note("part", one, other)
        self.parted.add(frozenset((one, other)))

    def heal(self) -> None:
        """Have all hosts reach each other again: what was sent meanwhile comes."""
        self.loop.trace.note("heal")
        self.parted.clear()
        for each in list(self.connections):
            each.heal()

    def kill(self, process: Process) -> None:
        """Nothing of this process listens any more, and whoever is connected with it is told so."""
        self.listening = {at: each for at, each in self.listening.items() if each[0] is not process}
        for each in list(self.connections):
            if process in (each.client, each.server):
                each.end_of(process)


class Connection:
    """Two streams of bytes, each in order."""

    def __init__(self, network: Network, client: Process, server: Process, make: Callable[[str], asyncio.Protocol]) -> None:
        self.network, self.loop = network, network.loop
        self.client, self.server = client, server
        slow = network.happens(network.weather.slow_link)
        self.rate = network.loop.random.uniform(200, 5_000) if slow else None
        self.client_end = ClientEnd(self)
        self.server_end = ServerEnd(self, make)
        network.connections[self] = None
        self._at = {client: 0.0, server: 0.0}
        """Who sends → when the last of it comes."""
        self._kept: deque[tuple[Context, Callable[..., None], tuple[Any, ...]]] = deque()
        """What comes when the hosts reach each other again."""

    def __repr__(self) -> str:
        return f"{self.client} {self.server}"

    @property
    def parted(self) -> bool:
        return bool(self.network.parted) and frozenset((self.client.host, self.server.host)) in self.network.parted

    def carry(self, sender: Process, size: int, call: Callable[..., None], *args: Any) -> None:
        """Have this called at the other end, behind all that was sent before."""
        seconds = self.network.delay() + (size / self.rate if self.rate is not None else 0.0)
        self._at[sender] = max(self._at[sender], self.loop.now + seconds)
        receiver = context_of(self.server) if sender is self.client else context_of(None)  # a client's buffer fills by itself
        self.loop.call_at(self._at[sender], self._comes, receiver, call, *args, context=context_of(None))

    def _comes(self, receiver: Context, call: Callable[..., None], *args: Any) -> None:
        if self.parted or self._kept:
            self._kept.append((receiver, call, args))
        else:
            self.loop.call_soon(call, *args, context=receiver)

    def heal(self) -> None:
        """What was kept comes now."""
        while self._kept and not self.parted:
            receiver, call, args = self._kept.popleft()
            self.loop.call_soon(call, *args, context=receiver)

    def end_of(self, process: Process) -> None:
        """One of both processes has ended: the other one hears so, behind what was sent before, or at once."""
        self.network.connections.pop(self, None)
        if process is self.client:
            self.carry(process, 0, self.server_end.lose, None)
        else:
            reset = self.network.happens(0.5)
            self.carry(process, 0, self.client_end.cut if reset else self.client_end.end)

    def cut(self) -> None:
        """Between both: neither hears anything more of the other one."""
        self.network.connections.pop(self, None)
        self.loop.call_soon(self.client_end.cut, context=context_of(None))
        self.loop.call_soon(
            self.server_end.lose, ConnectionResetError(errno.ECONNRESET, "reset"), context=context_of(self.server)
        )


class Reach:
    """A :class:`oncelog.http.sockets.Network` of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def addresses(self, host: str, port: int, deadline: Deadline) -> Sequence[Any]:
        raise OSError(f"{host} has no address")

    async def connect(self, address: Any, deadline: Deadline) -> Stream:
        network, at = self._network, tuple(address[4][:2])
        await asyncio.sleep(network.delay())
        while frozenset((self._process.host, at[0])) in network.parted:  # noqa: ASYNC110  # it knocks again, as TCP does
            await asyncio.sleep(min(0.5, deadline.left()))
        deadline.left()
        found = network.listening.get(at)
        if found is None or network.happens(network.weather.refused):
            network.loop.trace.note("refused", self._process, at[0])
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        connection = Connection(network, self._process, *found)
        network.loop.trace.note("connect", connection)
        return connection.client_end

    async def to_engine(self, engine: Any, deadline: Deadline) -> Stream:
        raise OSError("there is no store in this process")


class ClientEnd:
    """A :class:`oncelog.http.sockets.Stream`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._ended = self._reset = self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    async def send(self, data: bytes | memoryview, deadline: Deadline) -> None:
        deadline.left()
        if self._reset or self._closed:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        connection, data = self._connection, bytes(data)
        network, trace = connection.network, connection.loop.trace
        loss = network.loss(connection.client, data)
        trace.note("send", connection, _head(data), len(data), loss or "", data=data)
        if loss == "request lost":
            connection.cut()
        elif loss != "request swallowed":
            if loss is not None:
                connection.server_end.loses = loss
            cut = network.loop.random.randrange(len(data)) if network.happens(network.weather.torn) else 0
            for piece in (data[:cut], data[cut:]):
                if piece:
                    connection.carry(connection.client, len(piece), connection.server_end.arrives, piece)

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        watch = deadline.watch
        while not (self._buffer or self._ended or self._reset):
            left = deadline.left()
            await self._wait(left if watch is None else max(0.0, min(left, watch.left())))
            if watch is not None and not self._buffer and watch.left() <= 0:
                await watch.look(deadline.left())
        if self._reset:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        if watch is not None:
            watch.heard()
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        return data

    def is_quiet(self) -> bool:
        return not (self._buffer or self._ended or self._reset or self._closed)

    def hang_up(self) -> None:
        self.end()  # the host is told when it is closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._connection.network.connections.pop(self._connection, None)
            if self._connection.client.alive:
                self._connection.carry(self._connection.client, 0, self._connection.server_end.ends)

    # --- what comes

    def arrives(self, data: bytes) -> None:
        if not (self._reset or self._closed):
            self._buffer += data
            self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def cut(self) -> None:
        self._reset = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, seconds: float) -> None:
        """Return when something has come, or after so long."""
        loop = self._connection.loop
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await waiter
        finally:
            timer.cancel()


class ServerEnd(asyncio.Transport):
    """What the service's protocol writes to. What is called by the connection runs in the server's process."""

    def __init__(self, connection: Connection, make: Callable[[str], asyncio.Protocol]) -> None:
        super().__init__()
        self._connection = connection
        self.loses: Loss | None = None
        """What becomes of the next answer."""
        self._protocol: asyncio.Protocol | None = None
        self._closing = self._lost = self._paused = False
        self._held: deque[bytes] = deque()
        connection.loop.call_soon(self._begin, make, context=context_of(connection.server))

    def _begin(self, make: Callable[[str], asyncio.Protocol]) -> None:
        protocol = self._protocol = make(self._connection.client.host)
        protocol.connection_made(self)

    # --- what comes

    def arrives(self, data: bytes) -> None:
        if self._lost or self._closing:
            return
        if self._paused:
            self._held.append(data)
        else:
            self._protocol.data_received(data)  # type: ignore[union-attr]

    def ends(self) -> None:
        """The client has closed its end."""
        if not self._lost and not self._protocol.eof_received():  # type: ignore[union-attr]
            self.close()

    def lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._connection.network.connections.pop(self._connection, None)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    # --- what the protocol asks for

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (self._connection.client.host, 1)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Whatever is written is on its way."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        while self._held and not self._paused and not self._lost:
            self._protocol.data_received(self._held.popleft())  # type: ignore[union-attr]

    def write(self, data: Any) -> None:
        if self._lost or self._closing:
            return
        connection, data = self._connection, bytes(data)
        loss = self.loses
        connection.loop.trace.note("answer", connection, _head(data), len(data), loss or "", data=data)
        if loss == "answer lost":
            connection.cut()
        elif loss is None:
            connection.carry(connection.server, len(data), connection.client_end.arrives, data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._connection.carry(self._connection.server, 0, self._connection.client_end.end)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.write_eof()
            self._connection.loop.call_soon(self.lose, None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._connection.carry(self._connection.server, 0, self._connection.client_end.cut)
            self._connection.loop.call_soon(self.lose, None)


def _head(data: bytes) -> str:
    """How it begins, if it begins a request or an answer."""
    line = data.split(b"\r\n", 1)[0][:100].decode("latin-1")
    return line if "HTTP/1" in line else "…"
