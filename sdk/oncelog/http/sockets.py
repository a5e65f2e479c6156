"""Bytes to a host and back, plain or under TLS: each operation is told until when it may take.

TLS and the choice among a host's addresses are procedures (:mod:`oncelog.process.procedures`), the same for both twins. What
differs is a :class:`Network`: one whose operations block, and that of an event loop.

The time-outs of sockets are of one operation each: a server that sends a byte a second, in its headers or in its body, would hold
a caller for ever. So each operation on a socket is given what is left until the one time by which a whole request has its answer.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any, Protocol, TypeVar

from oncelog.process.clock import REAL, Clock

T = TypeVar("T")

_RECORD_BYTES = 1 << 16
_SPEAKS_TLS = (b"\x16", b"\x15")
"""With which who speaks TLS may begin: a handshake, or an alert."""
_LONGEST_POLL_MS = 1 << 30
"""Twelve days; more than 2^31 - 1 the system does not take."""
CONNECT_SECONDS = 5.0
"""How long it may take until there is a connection, whatever the answer may take."""


class Watch(Protocol):
    """Looks for another host while nothing comes of one."""

    def left(self) -> float:
        """Seconds until it looks; 0 or less: now."""

    def heard(self) -> None:
        """Something has come, or gone."""

    async def look(self, seconds: float) -> None:
        """Return, after so long at most: it goes on waiting. Raises TimeoutError: that would be in vain."""


class Deadline:
    """The time at which a request is given up."""

    __slots__ = ("_clock", "_ends", "_seconds", "is_held", "watch")

    def __init__(self, seconds: float, watch: Watch | None = None, clock: Clock = REAL, *, is_held: bool = False) -> None:
        """``watch``: what is done about a silence before; ``is_held``: the service may hold the request meanwhile."""
        self._seconds = seconds
        self.is_held = is_held
        self._clock = clock
        self._ends = clock.monotonic() + seconds
        self.watch = watch

    def left(self) -> float:
        """Seconds that are left, more than 0. Raises TimeoutError: it is over."""
        left = self._ends - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def within(self, seconds: float) -> Deadline:
        """One that ends after so many seconds, or with this one. Raises TimeoutError: this one is over."""
        return Deadline(min(seconds, self.left()), clock=self._clock)

    def begin_anew(self) -> None:
        """Count from now: of an answer that comes in parts, each may take as long."""
        self._ends = self._clock.monotonic() + self._seconds


class Stream(Protocol):
    """A connection to a host. Whatever fails is an OSError; TimeoutError: the deadline is over."""

    async def send(self, data: bytes | memoryview, deadline: Deadline) -> None:
        """Send all of it."""

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        """At most so many bytes, as soon as there are any; none at its end."""

    def is_quiet(self) -> bool:
        """Whether it stands and nothing has come that nobody waits for."""

    def hang_up(self) -> None:
        """Have who receives find its end, and the host, too; that one closes it then. In any thread, while it is not closed."""

    def close(self) -> None:
        """Let go of it without a word to the host: a forked child does so with its parent's."""


class Network(Protocol):
    """How a shell reaches hosts."""

    async def addresses(self, host: str, port: int, deadline: Deadline) -> Sequence[Any]:
        """Look up a host, as :func:`socket.getaddrinfo` answers. Raises OSError; TimeoutError: the deadline is over."""
        ...

    async def connect(self, address: Any, deadline: Deadline) -> Stream:
        """Connect to one of the addresses. Raises OSError."""
        ...

    async def to_engine(self, engine: Engine, deadline: Deadline) -> Stream:
        """Open the store of this process, unless it is open, and connect to its engine. Raises OSError, OncelogError."""
        ...


class Plain:
    """A connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def send(self, data: bytes | memoryview, deadline: Deadline) -> None:
        if deadline.watch is None:
            await self._send_all(data, deadline)
            return
        view = memoryview(data)
        self._socket.settimeout(0)
        while True:
            with suppress(BlockingIOError):
                view = view[self._socket.send(view) :]
            if not view:
                return
            await self._ready(select.POLLOUT, deadline, deadline.watch)

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        if deadline.watch is not None:
            await self._ready(select.POLLIN, deadline, deadline.watch)
        return await self._receive(most, deadline)

    async def _ready(self, event: int, deadline: Deadline, watch: Watch) -> None:
        """Return when it can be received, or sent: nothing is under way before, and waiting for it loses nothing."""
        while not await self._is_ready(event, min(deadline.left(), watch.left())):
            if watch.left() <= 0:
                await watch.look(deadline.left())
        watch.heard()

    async def _is_ready(self, event: int, seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self._socket, event)
        return bool(waiting.poll(max(0, min(ceil(seconds * 1000), _LONGEST_POLL_MS))))

    async def _send_all(self, data: bytes | memoryview, deadline: Deadline) -> None:
        self._socket.settimeout(deadline.left())
        self._socket.sendall(data)  # all of it within that time

    async def _receive(self, most: int, deadline: Deadline) -> bytes:
        self._socket.settimeout(deadline.left())
        return self._socket.recv(most)

    def is_quiet(self) -> bool:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return not waiting.poll(0)

    def hang_up(self) -> None:
        with suppress(OSError):  # it has its end already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()  # of a thread that has ended


class Tls:
    """A stream under TLS within another stream, which may be one under TLS: to a proxy."""

    def __init__(self, inner: Stream, context: ssl.SSLContext, host: str) -> None:
        self._inner = inner
        self._come, self._to_go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._come, self._to_go, server_hostname=host)
        self._first = b""
        """The first byte that came."""

    async def shake_hands(self, deadline: Deadline) -> None:
        """Begin with this. Raises OSError, of which ssl.SSLCertVerificationError: the host is not trusted."""
        try:
            await self._drive(self._tls.do_handshake, deadline)
        except ssl.SSLError as error:
            with suppress(OSError):
                await self._flush(deadline)  # the host is told why
            if self._first and self._first not in _SPEAKS_TLS:
                raise OSError("it does not speak TLS; its address may begin with http://") from error
            if isinstance(error, ssl.SSLEOFError):
                raise OSError("it closed the connection in the middle of the TLS handshake") from error
            raise

    async def send(self, data: bytes | memoryview, deadline: Deadline) -> None:
        view = memoryview(data)
        for at in range(0, len(view), _RECORD_BYTES):
            part = view[at : at + _RECORD_BYTES]
            while part:
                part = part[await self._drive(lambda part=part: self._tls.write(part), deadline) :]  # type: ignore[misc]

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        try:
            return await self._drive(lambda: self._tls.read(most), deadline)
        except ssl.SSLEOFError:  # closed without saying so under TLS: HTTP says itself where an answer ends
            return b""

    def is_quiet(self) -> bool:
        return not self._tls.pending() and not self._come.pending and self._inner.is_quiet()

    def hang_up(self) -> None:
        self._inner.hang_up()

    def close(self) -> None:
        self._inner.close()

    async def _drive(self, step: Callable[[], T], deadline: Deadline) -> T:
        """Do it, with as much sent and received as it takes."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                await self._flush(deadline)
                if data := await self._inner.receive(_RECORD_BYTES, deadline):
                    self._first = self._first or data[:1]
                    self._come.write(data)
                else:
                    self._come.write_eof()
                continue
            await self._flush(deadline)
            return done

    async def _flush(self, deadline: Deadline) -> None:
        if data := self._to_go.read():
            await self._inner.send(data, deadline)


async def connected(network: Network, host: str, port: int, deadline: Deadline) -> Stream:
    """A connection to the first of the host's addresses that takes it.

    The time is for all of them together, and for looking them up: an address that does not answer leaves as much to the others
    as it was given itself. Raises OSError: what the last one met; TimeoutError.
    """
    failure: OSError | None = None
    addresses = numeric(host, port) or await network.addresses(host, port, deadline)
    for at, address in enumerate(addresses):
        share = deadline.within(deadline.left() / (len(addresses) - at))
        try:
            return await network.connect(address, share)
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")


def numeric(host: str, port: int) -> list[Any]:
    """The address that the host is; none where it is a name."""
    try:
        return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return []


@contextmanager
def _opened(address: Any) -> Iterator[socket.socket]:
    """A socket to connect to an address as :func:`socket.getaddrinfo` answers it; closed where that fails."""
    opened = socket.socket(*address[:3])
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield opened
    except BaseException:
        opened.close()
        raise


class Engine(Protocol):
    """Opens a store in this process, and answers for it."""

    @property
    def is_open(self) -> bool:
        """Whether a connection can be had at once."""

    def open(self, seconds: float) -> None:
        """Open the store, or wait for who does. Raises OncelogError; OSError, of which TimeoutError: it takes longer."""

    def connect(self) -> socket.socket:
        """The client's end of a new connection. Raises OSError."""

    def close(self) -> None:
        """Give it back; the last who uses it waits until the store is closed."""


class Blocking:
    """A network whose operations block the thread that calls them."""

    async def addresses(self, host: str, port: int, deadline: Deadline) -> Sequence[Any]:
        """Looking them up cannot be interrupted, so a thread does it; one that is waited for in vain ends by itself."""
        found: list[Any] = []

        def look_up() -> None:
            try:
                found.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                found.append(error)

        thread = threading.Thread(target=look_up, name="oncelog-look-up", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter exits, and lets no thread begin any more (Python 3.12)
            look_up()
        else:
            thread.join(deadline.left())
        if not found:
            raise TimeoutError(f"looking up {host} took too long")
        if isinstance(found[0], Exception):
            raise found[0] if isinstance(found[0], OSError) else OSError(f"{host!r} is no host's name")
        addresses: list[Any] = found[0]
        return addresses

    async def connect(self, address: Any, deadline: Deadline) -> Stream:
        with _opened(address) as opened:
            opened.settimeout(deadline.left())
            opened.connect(address[4])
            return Plain(opened)

    async def to_engine(self, engine: Engine, deadline: Deadline) -> Stream:
        if not engine.is_open:
            engine.open(deadline.left())
        return Plain(engine.connect())


class _Awaited(Plain):
    """A connected socket that does not block."""

    async def _is_ready(self, event: int, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bool] = loop.create_future()

        def become(is_ready: bool) -> None:
            if not ready.done():
                ready.set_result(is_ready)

        receives = event == select.POLLIN
        (loop.add_reader if receives else loop.add_writer)(self._socket, become, True)
        timer = loop.call_later(max(0.0, seconds), become, False)
        try:
            return await ready
        finally:
            timer.cancel()
            (loop.remove_reader if receives else loop.remove_writer)(self._socket)

    async def _send_all(self, data: bytes | memoryview, deadline: Deadline) -> None:
        async with asyncio.timeout(deadline.left()):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def _receive(self, most: int, deadline: Deadline) -> bytes:
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

    async def connect(self, address: Any, deadline: Deadline) -> Stream:
        with _opened(address) as opened:
            opened.setblocking(False)
            async with asyncio.timeout(deadline.left()):
                await asyncio.get_running_loop().sock_connect(opened, address[4])
            return _Awaited(opened)

    async def to_engine(self, engine: Engine, deadline: Deadline) -> Stream:
        if not engine.is_open:
            await asyncio.to_thread(engine.open, deadline.left())
        connected = engine.connect()
        connected.setblocking(False)
        return _Awaited(connected)
