"""Connections that are kept between requests, keep a deadline, trust whom they are given, and heed nothing around them.

No ~/.netrc (it would replace the token), no proxy and no cookie from anywhere, no redirect followed.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from math import inf
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from oncelog.errors import CertificateRefused, ClientClosed, ConnectionFailed, OncelogError, ResponseTimeout
from oncelog.http.credentials import Address, shown
from oncelog.http.exchange import Head, Incoming, basic, request_bytes, target_of
from oncelog.http.sockets import CONNECT_SECONDS, Deadline, Engine, Network, Stream, Tls, connected
from oncelog.http.trust import Trust

_SEGMENT_BYTES = 1 << 17
"""Up to here, head and body go in one piece: in two they would wake the service twice. Copying more costs more than that."""
_HEAD_BYTES = 1 << 16
"""Until the head is there, and most answers with it. Memory of 128 KiB and more comes from the kernel each time, for 15 µs."""
_PART_BYTES = 1 << 18
_OUT_OF_TIME, _OF_ANOTHER_HOST = (9, 10), (62, 64)
"""OpenSSL's numbers (X509_V_ERR_…): not yet valid, expired; another name, another address."""
_ABOUT_OURS = re.compile("ALERT.*(CERTIFICATE|UNKNOWN.CA|ACCESS.DENIED)", re.IGNORECASE)
"""What OpenSSL calls the alerts of a host that does not take a client's certificate."""
_PORTS = {"http": 80, "https": 443}

_NOT_HELD = nullcontext()

FAILURES = (OSError, UnicodeError)
"""Whatever is raised when no proper answer comes."""


class NotSent(OSError):
    """There is no connection, or no request that could be sent; ``__cause__`` says why."""


class Connection:
    """A stream to a host, and the answers that come in on it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.incoming = Incoming()

    def is_fresh(self) -> bool:
        """Whether the next request may be sent on it, as far as can be seen from here."""
        try:
            return self.stream.is_quiet()
        except (OSError, ValueError):  # closed meanwhile
            return False

    def close(self) -> None:
        """Close it."""
        self.stream.close()
        self.incoming.close()


class Response:
    """An answer: its head, and its body as it comes. :meth:`let_go` of it, whatever happens."""

    def __init__(self, url: str, connection: Connection, home: Connections, deadline: Deadline, begun: list[bytes]) -> None:
        """``begun``: what of the body came with the head."""
        self.asked = url
        """The URL, which is not to be printed."""
        self.status = connection.incoming.status
        self.headers: Mapping[str, str] = connection.incoming.headers
        """Names in lower case."""
        self._connection = connection
        self._home = home
        self._deadline = deadline
        self._begun = begun

    @property
    def url(self) -> str:
        """It as it may be printed."""
        return self._home.named(self.asked)

    async def more(self) -> list[bytes] | None:
        """What comes next of the body, as soon as there is any; None at its end. Raises OSError."""
        incoming = self._connection.incoming
        begun, self._begun = self._begun, []
        while not begun:
            if incoming.complete:
                return None
            begun = incoming.feed(await self._connection.stream.receive(_PART_BYTES, self._deadline))
        return begun

    async def content(self, most: float = inf, *, whole: bool = True) -> bytes:
        """All of the body, or its beginning where it has more than ``most`` bytes.

        Raises OSError; unless it need not be ``whole``: then it is what came of it.
        """
        parts, self._begun = self._begun, []
        size = sum(map(len, parts))
        incoming = self._connection.incoming
        try:
            while size <= most and not incoming.complete:
                more = incoming.feed(await self._connection.stream.receive(_PART_BYTES, self._deadline))
                parts += more
                size += sum(map(len, more))
        except FAILURES:
            if whole:
                raise
        return b"".join(parts)

    def let_go(self) -> None:
        """Keep the connection for the next request if all of the answer has come, else close it."""
        incoming = self._connection.incoming
        if incoming.complete and incoming.reusable:
            self._home.keep(_place(self.asked).origin, self._connection)
        else:
            self._connection.close()


class Connections:
    """Connections of one thread or of one event loop. One that is in use belongs to its response alone."""

    def __init__(
        self,
        trust: Trust,
        network: Network,
        *,
        most_idle: int = 1,
        most_hosts: int = 4,
        engine: Engine | None = None,
        named: Callable[[str], str] = shown,
    ) -> None:
        """``most_idle``: connections that are kept, to each of ``most_hosts`` hosts. ``engine``: all are to this one, whatever
        the URL; ``named``: says how a URL is printed."""
        self._engine = engine
        self.named = named
        self._trust = trust
        self._network = network
        self._most_idle = most_idle
        self._most_hosts = most_hosts
        self._kept: dict[tuple[str, str], list[Connection]] = {}
        """Those to each host; the one that was used last is at the end, and is used first."""
        self._held: list[Connection] = []
        """Those on which the service holds a request."""
        self._guard = threading.RLock()
        """Held while these change: one that another thread hangs up is not closed meanwhile."""
        self._closed = False

    async def ask(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], deadline: Deadline) -> Response:
        """The answer to a request, its body still to be read.

        Raises OSError: none came; NotSent: the request cannot have arrived.
        """
        try:
            place = _place(url)
            head = self._head(method, place, headers, body)
            kept = self._idle(place.origin)
            connection = kept or Connection(await self._opened(place.url, deadline))
        except (OSError, ValueError) as error:
            raise NotSent(f"{urlsplit(url).hostname}: {error}") from error
        incoming, begun = connection.incoming, list[bytes]()
        try:
            incoming.begin()
            with self._holding(connection) if deadline.is_held else _NOT_HELD:
                try:
                    if body is not None:
                        head = Head(head + body[:_SEGMENT_BYTES])
                    await connection.stream.send(head, deadline)
                    if body is not None and len(body) > _SEGMENT_BYTES:
                        await connection.stream.send(memoryview(body)[_SEGMENT_BYTES:], deadline)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # who refuses a body unread may have answered, or said under TLS why; what has come is there to be read
                while not incoming.has_head:
                    begun += incoming.feed(await connection.stream.receive(_HEAD_BYTES, deadline))
        except BaseException as error:
            connection.close()
            if kept is None and _refuses_ours(error):
                # In TLS 1.3 the host tells so behind the handshake: before that it looks at no request.
                raise NotSent(f"{place.url.hostname}: {error}") from error
            raise
        return Response(url, connection, self, deadline, begun)

    def keep(self, host: tuple[str, str], connection: Connection) -> None:
        """Have it ready for the next request to the same host."""
        idle = [*self._kept.pop(host, ()), connection]
        self._kept[host], surplus = idle[-self._most_idle :], idle[: -self._most_idle]
        if len(self._kept) > self._most_hosts:
            for each in [*self._kept][: -self._most_hosts]:
                surplus += self._kept.pop(each, ())
        for connection in surplus:
            connection.close()
        if self._closed:  # perhaps at this moment, by another thread
            self._drop()

    @contextmanager
    def _holding(self, connection: Connection) -> Iterator[None]:
        """While the service holds a request, which :meth:`close` ends: a read, of which nothing is lost. Raises ClientClosed."""
        with self._guard:
            self._held.append(connection)
        try:
            if self._closed:
                raise ClientClosed
            yield
        except OSError as error:
            if self._closed:
                raise ClientClosed from error
            raise
        finally:
            with self._guard:
                self._held.remove(connection)

    def close(self) -> None:
        """Close those that are idle and those that are held, and each of the others when its answer has been read."""
        self._closed = True
        with self._guard:
            for each in self._held:
                each.stream.hang_up()
        self._drop()

    def _drop(self) -> None:
        while self._kept:
            with suppress(KeyError, IndexError):  # their thread takes one at this moment
                _, idle = self._kept.popitem()
                while idle:
                    idle.pop().close()

    def _idle(self, origin: tuple[str, str]) -> Connection | None:
        idle = self._kept.get(origin)
        try:
            while idle:
                if (connection := idle.pop()).is_fresh():
                    return connection
                connection.close()
        except IndexError:
            pass  # a handler has taken it, or somebody closes all of them
        return None

    def _head(self, method: str, place: _Place, headers: Mapping[str, str], body: bytes | None) -> bytes:
        target = place.target
        if place.user is not None:
            headers = {**headers, "authorization": place.user}
        if self._trust.proxy is not None and place.url.scheme == "http":
            target = f"http://{place.host}{target}"
            if (user := basic(urlsplit(self._trust.proxy))) is not None:
                headers = {**headers, "proxy-authorization": user}
        return request_bytes(method, place.host, target, headers, body)

    async def _opened(self, url: SplitResult, deadline: Deadline) -> Stream:
        """A new connection to the host, through the proxy if there is one.

        Raises OSError; ValueError: certificates cannot be read; OncelogError: the store of this process cannot be opened.
        """
        if self._engine is not None:
            return await self._network.to_engine(self._engine, deadline)
        deadline = deadline.within(CONNECT_SECONDS)
        proxy = None if self._trust.proxy is None else Address(*urlsplit(self._trust.proxy))
        first = url if proxy is None else proxy
        stream = await connected(self._network, first.hostname or "", first.port or _PORTS[first.scheme], deadline)
        try:
            if first.scheme == "https":
                stream = await _under_tls(stream, self._trust, first, deadline)
            if proxy is not None and url.scheme == "https":
                await _tunnel(stream, url, proxy, deadline)
                stream = await _under_tls(stream, self._trust, url, deadline)
        except BaseException:
            stream.close()
            raise
        return stream


def connection_error(url: str, error: BaseException) -> OncelogError:
    """The error that is raised where no answer came."""
    url, unsent = shown(url), isinstance(error, NotSent)
    cause = error.__cause__ if unsent else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return CertificateRefused(f"the certificate of {url} {_why_not_trusted(cause)}")
    if unsent and _refuses_ours(cause):
        return CertificateRefused(f"{url} does not take the certificate of this client, or asks for one: {error}")
    if isinstance(cause, TimeoutError) and not unsent:
        return ResponseTimeout(f"{url} did not answer in time: {error}")
    running = "; is it running? `oncelog serve` starts one" if isinstance(cause, ConnectionRefusedError) else ""
    return ConnectionFailed(f"{url} cannot be reached: {error}{running}", definite=unsent)


def _why_not_trusted(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message
    if error.verify_code in _OUT_OF_TIME:
        return f"is out of its time, or the clock here is wrong: {said}"
    if error.verify_code in _OF_ANOTHER_HOST:
        return f"is for other hosts, so this may be another one: {said}"
    return f"is not trusted; name the CA that signed it: {said}"


def _refuses_ours(error: BaseException | None) -> bool:
    """Tells whether the host has broken off because of the certificate that this client has shown, or has not."""
    return isinstance(error, ssl.SSLError) and bool(_ABOUT_OURS.search(error.reason or ""))


async def _under_tls(stream: Stream, trust: Trust, url: SplitResult, deadline: Deadline) -> Stream:
    tls = Tls(stream, trust.context, url.hostname or "")
    await tls.shake_hands(deadline)
    return tls


async def _tunnel(stream: Stream, url: SplitResult, proxy: SplitResult, deadline: Deadline) -> None:
    """Have the proxy connect to the host (CONNECT). Raises OSError."""
    there = f"{_bracketed(url.hostname or '')}:{url.port or _PORTS[url.scheme]}"
    user = basic(proxy)
    named = {} if user is None else {"proxy-authorization": user}
    await stream.send(request_bytes("CONNECT", there, there, named, None), deadline)
    head = b""
    while b"\r\n\r\n" not in head:
        # Byte by byte: what is behind the head is the host's, and no parser of answers knows that this one has no body.
        byte = await stream.receive(1, deadline)
        head += byte
        if not byte or len(head) > 1 << 16:
            raise OSError("the proxy does not answer CONNECT in HTTP")
    status = head.partition(b"\r\n")[0].split(b" ", 2)
    if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or not (status[1].isdigit() and 200 <= int(status[1]) < 300):
        raise OSError(f"the proxy does not connect: {head.splitlines()[0][:200].decode('latin-1')!r}")


class _Place(NamedTuple):
    """What a URL says, as requests need it."""

    url: Address
    origin: tuple[str, str]
    """What a connection is to."""
    host: str
    target: str
    user: str | None
    """The header's value for the user and password in it."""


@lru_cache(maxsize=1_024)  # a client asks at the same again and again
def _place(url: str) -> _Place:
    """Raises ValueError, of which UnicodeError: it is no address."""
    parts = Address(*urlsplit(url))
    return _Place(parts, (parts.scheme, parts.netloc), _host(parts), target_of(parts), basic(parts))


def _host(url: SplitResult) -> str:
    """The host, and its port unless that is the usual one, as they stand in a URL."""
    host = _bracketed((url.hostname or "").encode("idna").decode() if not url.netloc.isascii() else url.hostname or "")
    return host if url.port in (None, _PORTS[url.scheme]) else f"{host}:{url.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
