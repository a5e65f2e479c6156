"""One time by which a whole request has its answer: looking up, connecting, sending, every byte that comes back.

The time-outs of sockets, and so those of requests, are of one operation each: a server that sends a byte a second, in its headers
or in its body, holds a caller for ever. Here every operation on a socket may take what is left until the deadline.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

from urllib3.util import Timeout

CONNECT_SECONDS = 5.0
"""How long it may take until there is a connection, whatever the answer may take."""


class Deadline(Timeout):
    """The time at which a request is given up. urllib3 takes it as the time-out of a request, and asks it before each step."""

    def __init__(self, seconds: float) -> None:
        super().__init__(total=max(seconds, 0.001))
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left; 0 when it is over."""
        return max(0.0, self._ends - time.monotonic())

    def begin_anew(self) -> None:
        """Count from now: of an answer that comes in parts, each may take as long."""
        self._ends = time.monotonic() + self._seconds

    def clone(self) -> Deadline:
        """Return itself: it is one request's."""
        return self

    def start_connect(self) -> float:
        """The time now: it began when it was made."""
        return time.monotonic()

    @property
    def connect_timeout(self) -> float:
        """Seconds for connecting."""
        return Left(min(CONNECT_SECONDS, self.left()), self)

    @property
    def read_timeout(self) -> float:
        """Seconds for all that comes back."""
        return Left(self.left(), self)


class Left(float):
    """The seconds that are left, as every time-out is a number; and until when, for sockets that know of deadlines."""

    deadline: Deadline

    def __new__(cls, seconds: float, deadline: Deadline) -> Left:
        left = super().__new__(cls, seconds)
        left.deadline = deadline
        return left


class _Timed:
    """Operations of a socket, within its deadline. The time-out that is set says which; one that is a plain number has none."""

    _deadline: Deadline | None = None

    def settimeout(self, value: float | None) -> None:
        self._deadline = getattr(value, "deadline", None)
        super().settimeout(None if value is None else float(value))  # type: ignore[misc]

    def gettimeout(self) -> float | None:
        seconds: float | None = super().gettimeout()  # type: ignore[misc]
        if seconds is None or self._deadline is None:
            return seconds
        return Left(min(seconds, self._deadline.left()), self._deadline)  # TLS carries it over to the socket that it makes

    def recv(self, *given: Any) -> bytes:
        self._within()
        data: bytes = super().recv(*given)  # type: ignore[misc]
        return data

    def recv_into(self, *given: Any) -> int:
        self._within()
        count: int = super().recv_into(*given)  # type: ignore[misc]
        return count

    def send(self, *given: Any) -> int:
        self._within()
        count: int = super().send(*given)  # type: ignore[misc]
        return count

    def sendall(self, *given: Any) -> None:
        self._within()
        super().sendall(*given)  # type: ignore[misc]

    def _within(self) -> None:
        if self._deadline is not None:
            # Anew before each operation: what urllib3 sets once lets every single byte take the whole time.
            left = self._deadline.left()
            if left <= 0:
                raise TimeoutError("timed out")
            super().settimeout(left)  # type: ignore[misc]


class TimedSocket(_Timed, socket.socket):
    """A socket whose every operation ends by its deadline."""


class TimedTlsSocket(_Timed, ssl.SSLSocket):
    """A socket under TLS whose every operation ends by its deadline; the ``sslsocket_class`` of a context."""


def connected(host: str, port: int, timeout: float | None, options: Sequence[Any] | None) -> socket.socket:
    """A connection to the first of the host's addresses that takes it.

    ``timeout`` is for all of them together, and for looking them up: an address that does not answer leaves as much to the others
    as it was given itself. Raises OSError: what the last one met; TimeoutError.
    """
    ends = None if timeout is None else time.monotonic() + timeout
    failure: OSError | None = None
    addresses = _addresses(host, port, timeout)
    for at, (family, kind, protocol, _, address) in enumerate(addresses):
        left = None if ends is None else ends - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("timed out") from failure
        opened = TimedSocket(family, kind, protocol)
        try:
            for option in options or ():
                opened.setsockopt(*option)
            opened.settimeout(None if left is None else left / (len(addresses) - at))
            opened.connect(address)
            opened.settimeout(timeout if ends is None else _still(timeout, ends))
            return opened
        except OSError as error:
            opened.close()
            failure = error
        except BaseException:
            opened.close()
            raise
    raise failure or OSError(f"{host} has no address")


def _still(timeout: float | None, ends: float) -> float:
    """The time that is left, with the deadline that it belongs to."""
    left = max(0.001, ends - time.monotonic())
    deadline = getattr(timeout, "deadline", None)
    return left if deadline is None else Left(left, deadline)


def _addresses(host: str, port: int, seconds: float | None) -> list[Any]:
    """The addresses of the host.

    Looking them up cannot be interrupted, so a thread does it; one that is waited for in vain ends by itself.
    """
    try:
        return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # it is a name
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
        thread.join(seconds)
    if not found:
        raise TimeoutError(f"looking up {host} took too long")
    if isinstance(found[0], Exception):
        raise found[0] if isinstance(found[0], OSError) else OSError(f"{host!r} is no host's name")
    addresses: list[Any] = found[0]
    return addresses
