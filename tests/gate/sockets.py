"""Sockets in memory: ports, connections, two ordered streams of bytes, ends and resets, as on loopback."""

from __future__ import annotations

import errno
import selectors
import socket
import struct
from collections import deque
from itertools import count
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from tests.gate.threads import until

REAL = socket.socket
_FIRST = 1 << 20
"""Numbers of sockets begin here, above those of files."""
_ROOM = 212_992
"""Bytes that lie between two ends before the sender has to wait: Linux's default."""
_PORTS = (40_000, 60_000)


class Socket:
    """A socket of the gate. It takes the place of :class:`socket.socket`."""

    _numbers = count(_FIRST)
    _open: ClassVar[dict[int, Socket]] = {}
    _bound: ClassVar[WeakValueDictionary[int, Socket]] = WeakValueDictionary()
    _listening: ClassVar[dict[int, Socket]] = {}
    _ports = count(_PORTS[0])

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:  # noqa: A002
        self.family = socket.AF_INET if family == -1 else socket.AddressFamily(family)
        self.type = socket.SOCK_STREAM if type == -1 else socket.SocketKind(type)
        self.proto = max(proto, 0)
        self._number = next(self._numbers)
        self._open[self._number] = self
        self._timeout: float | None = None
        self._io_refs = 0
        self._closed = False
        self._port = 0
        self._backlog: deque[Socket] | None = None
        self._most = 0
        self._peer: Socket | None = None
        self._name: tuple[Any, ...] = self._address(0)
        self._peer_name: tuple[Any, ...] | None = None
        self._come = bytearray()
        self._room = _ROOM
        self._ended = self._ends = self._reset = False
        """No more comes; no more goes; the other end is gone."""
        self._lingers = True
        self._options: dict[tuple[int, int], int] = {}

    @classmethod
    def numbered(cls, number: int) -> Socket | None:
        """The open one of this number."""
        return cls._open.get(number)

    def _address(self, port: int) -> tuple[Any, ...]:
        return ("::1", port, 0, 0) if self.family == socket.AF_INET6 else ("127.0.0.1", port)

    # --- ports

    def bind(self, address: tuple[Any, ...]) -> None:
        port = address[1] or next(self._ports)
        holder = self._bound.get(port)
        if port in self._listening or (holder is not None and not (holder._may_share and self._may_share)):
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._port = port
        self._name = (address[0], port, *address[2:])
        self._bound[port] = self

    @property
    def _may_share(self) -> bool:
        return bool(self._options.get((socket.SOL_SOCKET, socket.SO_REUSEADDR)))

    def listen(self, backlog: int = 128) -> None:
        self._most = backlog
        self._listening[self._port] = self
        if self._backlog is None:
            self._backlog = deque()

    def accept(self) -> tuple[Socket, tuple[Any, ...]]:
        if not self._backlog and self._backlog is not None:
            self._wait(lambda: self._backlog or self._backlog is None)
        if self._backlog is None:
            raise OSError(errno.EINVAL, "Invalid argument")
        accepted = self._backlog.popleft()
        assert accepted._peer_name is not None
        return accepted, accepted._peer_name

    def connect(self, address: tuple[Any, ...]) -> None:
        listening = self._listening.get(address[1])
        if listening is None or listening._backlog is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if len(listening._backlog) > listening._most:
            self._wait(lambda: listening._backlog is None or len(listening._backlog) <= listening._most)
        self._name = self._address(next(self._ports))
        other = Socket(self.family, self.type, self.proto)
        other._join(self)
        self._join(other)
        other._name = self._peer_name = address
        other._peer_name = self._name
        listening._backlog.append(other)

    def connect_ex(self, address: tuple[Any, ...]) -> int:
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or -1
        return 0

    def _join(self, other: Socket) -> None:
        self._peer = other

    # --- bytes

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._await_bytes()
        data = bytes(self._come[:size])
        if not flags & socket.MSG_PEEK:
            del self._come[:size]
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        data = self.recv(nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def _await_bytes(self) -> None:
        self._check()
        if not self.ready() & selectors.EVENT_READ:
            self._wait(lambda: self.ready() & selectors.EVENT_READ)
        if self._reset and not self._come:
            if self._ended:
                return
            self._ended = True  # told once
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def send(self, data: Any, flags: int = 0) -> int:
        self._check()
        view = memoryview(data).cast("B")
        peer = self._peer
        if peer is None or self._ends:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if self._reset:
            raise (
                ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
                if not self._ended
                else BrokenPipeError(errno.EPIPE, "Broken pipe")
            )
        if peer._closed:
            self._reset = True  # it is answered so, and this is told the next time
            self._ended = False
            return len(view)
        if len(peer._come) >= peer._room:
            self._wait(lambda: self.ready() & selectors.EVENT_WRITE)
            return self.send(data, flags)
        part = view[: peer._room - len(peer._come)]
        peer._come += part
        return len(part)

    def sendall(self, data: Any, flags: int = 0) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view, flags) :]

    def sendmsg(self, buffers: Any, *_: Any) -> int:
        return self.send(b"".join(buffers))

    # --- its end

    def shutdown(self, how: int) -> None:
        self._check()
        if self._backlog is not None:
            self._close_listener()
            return
        if self._peer is None or self._reset:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self._ended = True
        if how in (socket.SHUT_WR, socket.SHUT_RDWR):
            self._ends = True
            self._peer._ended = True

    def detach(self) -> int:
        self._closed = True
        return self._number

    def _real_close(self, *_: object) -> None:
        self._open.pop(self._number, None)
        if self._bound.get(self._port) is self:
            del self._bound[self._port]
        self._close_listener()
        peer = self._peer
        if peer is not None and not peer._closed:
            if self._come or not self._lingers:
                peer._come.clear()
                peer._reset, peer._ended = True, False
            else:
                peer._ended = True
        self._come.clear()

    def _close_listener(self) -> None:
        """Take no more; who waits to be taken is reset."""
        if self._listening.get(self._port) is self:
            del self._listening[self._port]
        for waiting in self._backlog or ():
            waiting._lingers = False
            waiting.close()
        self._backlog = None

    makefile = REAL.makefile
    _decref_socketios = REAL._decref_socketios  # type: ignore[attr-defined]
    close = REAL.close

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._closed:
            self.close()

    def __del__(self) -> None:
        if not self._closed:
            self._closed = True
            self._real_close()

    # --- what is asked of it

    def ready(self) -> int:
        """Whether it can be read, and written, as selectors says it."""
        if self._backlog is not None:
            return selectors.EVENT_READ if self._backlog else 0
        peer = self._peer
        if peer is None:
            return 0
        read = selectors.EVENT_READ if self._come or self._ended or self._reset else 0
        write = selectors.EVENT_WRITE if self._reset or peer._closed or len(peer._come) < peer._room else 0
        return read | write

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _wait(self, condition: Any) -> None:
        if self._timeout == 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if not until(lambda: self._closed or condition(), self._timeout):
            raise TimeoutError("timed out")
        self._check()

    @property
    def timeout(self) -> float | None:
        return self._timeout

    def fileno(self) -> int:
        return -1 if self._closed else self._number

    def gettimeout(self) -> float | None:
        return self._timeout

    def settimeout(self, seconds: float | None) -> None:
        if seconds is not None and seconds < 0:
            raise ValueError("Timeout value out of range")
        self._timeout = None if seconds is None else float(seconds)

    def setblocking(self, blocks: bool) -> None:
        self._timeout = None if blocks else 0.0

    def getblocking(self) -> bool:
        return self._timeout != 0

    def getsockname(self) -> tuple[Any, ...]:
        self._check()
        return self._name

    def getpeername(self) -> tuple[Any, ...]:
        if self._peer_name is None:
            if self._peer is None:
                raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
            return ("", 0)
        return self._peer_name

    def setsockopt(self, level: int, name: int, value: Any, *_: object) -> None:
        if (level, name) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self._lingers = struct.unpack("ii", value) != (1, 0)
        elif (level, name) == (socket.SOL_SOCKET, socket.SO_RCVBUF):
            self._room = 2 * value
        elif isinstance(value, int):
            self._options[level, name] = value

    def getsockopt(self, level: int, name: int, *_: object) -> int:
        return self._options.get((level, name), 0)


def pair(*_: object) -> tuple[Socket, Socket]:
    """Two that are connected. It takes the place of :func:`socket.socketpair`."""
    one, other = Socket(), Socket()
    one._join(other)
    other._join(one)
    return one, other


class Poll:
    """It takes the place of :func:`select.poll`."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}

    def register(self, fd: Any, eventmask: int = 7) -> None:
        self._asked[fd if isinstance(fd, int) else fd.fileno()] = eventmask

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        until(self._ready, None if timeout is None or timeout < 0 else timeout / 1000)
        return self._ready()

    def _ready(self) -> list[tuple[int, int]]:
        import select

        found = []
        for number, mask in self._asked.items():
            asked = Socket.numbered(number)
            ready = select.POLLNVAL if asked is None else 0
            if asked is not None:
                events = asked.ready()
                ready |= select.POLLIN if events & selectors.EVENT_READ else 0
                ready |= select.POLLOUT if events & selectors.EVENT_WRITE else 0
            if ready & (mask | select.POLLNVAL):
                found.append((number, ready & (mask | select.POLLNVAL)))
        return found
