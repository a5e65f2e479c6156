"""HTTP to one service: no redirect followed blindly, no ~/.netrc, always a deadline, every failure one of our errors.

Requests are procedures (:mod:`oncelog.process.procedures`), with two shells: :class:`Transport` has connections for each thread,
:class:`AsyncTransport` has those of an event loop.

A service may be several instances over one store. Any of them says who serves what (``not_served_here``, 307); that is
remembered, and forgotten when it cannot be reached any more. Then the others are asked, named or heard of.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit
from weakref import WeakKeyDictionary, finalize

from oncelog.errors import (
    ClientClosed,
    ConnectionFailed,
    GatewayUnavailable,
    InvalidResponse,
    NotServedHere,
    OncelogError,
    StorageFailed,
    StorageUnavailable,
)
from oncelog.http.answers import problem_in, refusal
from oncelog.http.connections import FAILURES, Connections, Response, connection_error
from oncelog.http.credentials import authorization, chosen_token, shown
from oncelog.http.engines import BASE, InProcess, names_a_store
from oncelog.http.silence import AGAIN_SECONDS, SILENT_SECONDS, Again, Silence
from oncelog.http.sockets import Awaiting, Blocking, Deadline, Network
from oncelog.http.trust import Trust
from oncelog.process import forks
from oncelog.process.clock import REAL, Clock
from oncelog.process.procedures import driven
from oncelog.process.tracing import switch
from oncelog.process.turns import Loop
from oncelog.wire.media import DEFAULT_URL, JSON, ONCELOG_AVRO, essence

READ_SECONDS = 30.0
"""Until an answer must have come, to its last byte, unless a caller says otherwise."""
MAX_ANSWER_BYTES = 256 << 20
"""More than any service answers at once: a poll and a range of columns are 8 MiB and one message, as it is set by default."""
MAX_JSON_BYTES = 64 << 20
"""The names of 250,000 topics, each as long as may be."""
MAX_PROBLEM_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 20
_ASK_ANOTHER = (StorageUnavailable, StorageFailed, GatewayUnavailable)
"""After these another instance may know better."""
_TOO_OFTEN = 429
_MAX_REDIRECTS = 5
_MAX_QUESTIONS = 2
"""One names another, which says whether it does."""
_IDLE = 100
"""Connections of one event loop to a host that are kept, as each task that waits has one of its own; and how many hosts."""
_REMEMBERED = 10_000
"""Topics of which is remembered who serves them."""
_LOOK_SECONDS = 1.0
"""Between two tries, after which it is seen that the client is closed: a pause that a service asks for may be half a minute."""


_MOST_SPARE = 2
"""Connections that a thread keeps: for its request, and for one that a signal handler makes in the middle of it. What is read bit
by bit has some of its own meanwhile."""
_Spare = deque[Connections]
_NOWHERE = deque[Connections](maxlen=0)
"""What is appended here is kept elsewhere."""


class Requests:
    """Requests to a service, over connections that a shell brings."""

    _sockets: Callable[[], Network]
    """Makes the network where none is given."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = READ_SECONDS,
        trust: Trust | None = None,
        *,
        network: Network | None = None,
        clock: Clock = REAL,
    ) -> None:
        """``url`` defaults to ONCELOG_URL; several instances of one service by commas, or one store, which is opened in this
        process when the first call needs it. ``token``: as :func:`chosen_token`.

        ``timeout``: seconds for a whole answer; ``trust``: else what the environment says; ``network``: else sockets. Raises
        ValueError for what is no http(s) URL nor a store's, for a token that cannot be one, and for certificates that cannot be
        read.
        """
        self._network = self._sockets() if network is None else network
        self.clock = clock
        if url is not None and not isinstance(url, str):
            raise TypeError(f"url is a str, as {DEFAULT_URL!r}, not of type {type(url).__name__}")
        named = (url or os.environ.get("ONCELOG_URL") or DEFAULT_URL).strip()
        self.engine = InProcess(named) if names_a_store(named) else None
        """What opens a store in this process; None: this is a service's URL."""
        self._bases = [each.strip().rstrip("/") for each in ([BASE] if self.engine else named.split(","))]
        """Of every instance that is known, the one to ask first in front."""
        for each in self._bases:
            if not _is_base(each):
                raise ValueError(f"not the URL of a service: {shown(each)!r}; it looks like {DEFAULT_URL}")
        self.url = named if self.engine else self._bases[0]
        self._trust = Trust() if self.engine else Trust.chosen() if trust is None else trust
        if any(each.startswith("https:") for each in self._bases):
            _ = self._trust.context  # which says now what is wrong with it
        self._served: dict[str, str] = {}
        """What begins a path → who serves it."""
        self._token = chosen_token(token)
        self._timeout = timeout
        self._lock = threading.RLock()  # a signal handler may interrupt who holds it
        self._closed = False
        self._home = forks.here()
        self._named = shown
        if self.engine is not None:
            self._named = partial(_of_store, named)
            finalize(self, self.engine.let_go).atexit = False  # the process ends all engines
        self._begin()

    def carry(self, token: str | None) -> None:
        """Carries this token from the next request on, chosen as by :func:`chosen_token`. Raises ValueError for what is none."""
        self._token = chosen_token(token)

    def _begin(self) -> None:
        """What the shell begins with."""
        raise NotImplementedError

    @property
    def others(self) -> int:
        """How many instances are known beside the one that is asked first."""
        return len(self._bases) - 1

    def _take(self) -> tuple[_Spare, Connections]:
        """Connections for one request, and where they are to be appended behind it. Raises ClientClosed."""
        raise NotImplementedError

    async def pause(self, seconds: float) -> None:
        """Return when so many seconds are over, or this is closed."""
        while seconds > 0 and not self._closed:
            await self._sleep(min(seconds, _LOOK_SECONDS))
            seconds -= _LOOK_SECONDS

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close every connection; what the service holds is not waited for. From now on every call raises ClientClosed."""
        raise NotImplementedError

    async def end(self) -> None:
        """Close, and give back the store that this process has opened; return when that is closed, unless others here use it."""
        self.close()
        if self.engine is not None:
            self.engine.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        media: str | None = None,
        params: dict[str, str] | None = None,
        timeout: float | Again | None = None,
        accept: str | None = None,
        most: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """The body of a 2xx answer; ``accept``: the media type that it should have, where there is a choice.

        ``timeout``: seconds until all of it must have come, redirects included; else what the transport was made with.
        ``most``: bytes that it may have. What is sent :class:`Again` is not waited for in silence where another instance serves
        by now what it is about: that is a ResponseTimeout, and the next one goes there.

        Raises:
            OncelogError: what the service answered otherwise. ConnectionFailed, ResponseTimeout, InvalidResponse: no proper
            answer; ``definite`` is True only if the request cannot have arrived.
        """
        return (await self.answer(method, path, body, media, params, timeout, accept, most))[0]

    async def answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        media: str | None,
        params: dict[str, str] | None,
        timeout: float | Again | None,
        accept: str | None,
        most: int = MAX_ANSWER_BYTES,
    ) -> tuple[bytes, Mapping[str, str]]:
        """The body and the headers, their names in lower case, of a 2xx answer; arguments and errors as of :meth:`ask`."""
        if isinstance(timeout, Again):
            watch = self._watch(path, timeout) if timeout.asks_others and self.others else None
            deadline = Deadline(timeout.timeout or self._timeout, watch, self.clock, is_held=timeout.held > 0)
        else:
            deadline = Deadline(timeout or self._timeout, clock=self.clock)
        spare, connections = self._take()
        try:
            response = await self._send(connections, method, path, body, media, params, deadline, accept)
            try:
                _check_content(response)
                return await _whole(response, most), response.headers
            except FAILURES as error:
                raise self._failed(response.asked, error) from error
            finally:
                response.let_go()
        finally:
            spare.append(connections)

    async def ask_lines(
        self, method: str, path: str, body: bytes | None = None, media: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a 2xx answer as they arrive, each in time. Raises as :meth:`ask` does, also between two lines."""
        deadline = Deadline(self._timeout, clock=self.clock)
        spare, connections = self._take()
        try:
            response = await self._send(connections, method, path, body, media, None, deadline, None)
            try:
                _check_content(response)
                begun = b""
                while (parts := await self._more(response)) is not None:
                    *lines, begun = b"".join([begun, *parts]).split(b"\n")
                    for line in lines:
                        deadline.begin_anew()
                        if line:
                            yield line
                    if len(begun) > _MAX_LINE_BYTES:
                        raise InvalidResponse(f"{response.url} answers a line of more than {_MAX_LINE_BYTES} bytes")
                if begun:
                    yield begun
            finally:
                response.let_go()
        finally:
            spare.append(connections)

    async def _more(self, response: Response) -> list[bytes] | None:
        try:
            return await response.more()
        except FAILURES as error:
            raise self._failed(response.asked, error) from error

    async def _send(
        self,
        connections: Connections,
        method: str,
        path: str,
        body: bytes | None,
        media: str | None,
        params: dict[str, str] | None,
        deadline: Deadline,
        accept: str | None,
    ) -> Response:
        """The 2xx answer, its body still to be read."""
        headers = {name: value for name, value in (("content-type", media), ("accept", accept)) if value is not None}
        tracing = switch.tracing
        if tracing is not None:
            headers.update(tracing.headers())
        part = _part(path)
        base = self._served.get(part) or self._bases[0]
        url, trusted, named = base + path + (f"?{urlencode(params)}" if params else ""), True, False
        for _ in range(_MAX_REDIRECTS + 1):
            token = self._token  # once: another thread may carry another one
            if token is not None and trusted:
                headers["authorization"] = authorization(token)
            else:
                headers.pop("authorization", None)  # a token is for the service it was given for
            if isinstance(deadline.watch, _Watch):
                deadline.watch.begins(connections, self._base(url) if trusted else "")
            try:
                response = await connections.ask(method, url, body, headers, deadline)
            except FAILURES as error:
                raise self._failed(url, error) from error
            if 200 <= response.status < 300:
                return response
            try:
                said = await response.content(MAX_PROBLEM_BYTES, whole=False)  # its status alone says something
            finally:
                response.let_go()
            if response.status in (307, 308) and "location" in response.headers:
                here, url = url, _joined(url, response.headers["location"])  # the same method, the same body
                elsewhere = _elsewhere(response, said) if trusted else None
                if elsewhere is not None and url.startswith(elsewhere + "/") and not _lays_bare(here, url):
                    self.serves(part, elsewhere)
                    named = True
                else:
                    trusted = trusted and urlsplit(url)[:2] == urlsplit(here)[:2]
                continue
            refused = refusal(self._named(self._base(url)), response.status, response.headers, said, self._now())
            if isinstance(refused, _ASK_ANOTHER) and getattr(refused, "http_status", None) != _TOO_OFTEN:
                self._gone(self._base(url))  # it may be cut off from the database; if it is not, the others will say so
            raise refused
        self._served.pop(part, None)
        if named:  # each names another one: who serves this is changing
            raise ConnectionFailed(f"nobody of {', '.join(map(shown, self._bases))} serves this at this moment", definite=True)
        raise InvalidResponse(f"{shown(self.url)} redirects more than {_MAX_REDIRECTS} times")

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.time(), UTC)

    def _failed(self, url: str, error: BaseException) -> OncelogError:
        """Name what failed on the way to a URL and back; it is asked last from now on."""
        base = self._base(url)
        self._gone(base)
        return connection_error(self._named(base), error)

    def _watch(self, path: str, again: Again) -> _Watch | None:
        question = _question(again.served or _part(path))
        return None if question is None else _Watch(self, *question, again.held)

    async def who_serves(self, connections: Connections, question: str, silent: str, turn: int, deadline: Deadline) -> str | None:
        """Ask another instance than the silent one who serves something; ``turn``: which of them. None: nobody else is known
        to."""
        others = [base for base in self._bases if base != silent]
        base = others[turn % len(others)] if others else None
        for _ in range(_MAX_QUESTIONS):
            asked, base = base, None if base in (None, silent) else await self.named_by(connections, base, question, deadline)
            if base == asked:
                return base
        return None

    async def named_by(self, connections: Connections, base: str, question: str, deadline: Deadline) -> str | None:
        """Ask an instance who serves something: that is itself if it answers, or whom it names. None: it does not say."""
        token = self._token
        headers = {} if token is None else {"authorization": authorization(token)}
        with suppress(OncelogError, *FAILURES):
            response = await connections.ask("GET", base + question, None, headers, deadline)
            try:
                _check_content(response)
                said = await response.content(MAX_PROBLEM_BYTES)
            finally:
                response.let_go()
            if response.status == 200 and essence(response.headers.get("content-type", "")) == JSON:
                return base
            named = _elsewhere(response, said) if response.status in (307, 308) else None
            return None if named is None or _lays_bare(base, named) else named
        return None

    def serves(self, part: str, base: str) -> None:
        """Remember who serves a part: it is asked there the next time."""
        with self._lock:
            self._served[part] = base
            if base not in self._bases:
                self._bases.append(base)
            while len(self._served) > _REMEMBERED:
                del self._served[next(iter(self._served))]

    def _base(self, url: str) -> str:
        """The instance that is asked at a URL: one that is known, whose own path may have a ``/v1/`` in it; else what lies before
        the first."""
        known = [base for base in list(self._bases) if url.startswith(base + "/v1/")]
        return max(known, key=len, default=url.partition("/v1/")[0])

    def _gone(self, base: str) -> None:
        """Ask another one first: this one could not be reached, or cannot serve."""
        with self._lock:
            for part in [part for part, served in list(self._served.items()) if served == base]:
                self._served.pop(part, None)
            if base in self._bases:
                self._bases.remove(base)
                self._bases.append(base)


class Transport(Requests):
    """Connections to a service. Thread-safe: each thread keeps its own, alive between requests."""

    _sockets = Blocking
    call = driven(Requests.ask)

    def _begin(self) -> None:
        self._local = threading.local()
        self._sessions = WeakKeyDictionary[Connections, None]()  # those of threads that have ended go with them
        forks.register(self)

    async def _sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)  # it is this thread that waits

    def close(self) -> None:
        self._closed = True
        with self._lock:
            sessions = list(self._sessions)
            self._sessions.clear()
        for session in sessions:
            session.close()
        self._local = threading.local()

    def _take(self) -> tuple[_Spare, Connections]:
        if self._closed:
            raise ClientClosed
        if forks.here() != self._home:
            self._after_fork()
        local = self._local.__dict__
        spare: _Spare = local.get("spare") or local.setdefault("spare", deque(maxlen=_MOST_SPARE))
        try:
            return spare, spare.pop()
        except IndexError:  # in this thread for the first time, or in a signal handler in the middle of another request
            made = Connections(self._trust, self._network, engine=self.engine, named=self._named)
            with self._lock:
                self._sessions[made] = None
                if self._closed:  # meanwhile, by another thread
                    made.close()
            return spare, made

    def _after_fork(self) -> None:
        """In the child: connections of its own. The parent's are let go of without a word to the service."""
        self._home = forks.here()
        self._local = threading.local()
        self._sessions = WeakKeyDictionary()
        forks.renew(self._lock)


class AsyncTransport(Requests):
    """Connections to a service, of the event loop on which it is used first."""

    _sockets = Awaiting

    def _begin(self) -> None:
        self._pool = Connections(
            self._trust, self._network, most_idle=_IDLE, most_hosts=_IDLE, engine=self.engine, named=self._named
        )
        self.loop = Loop("the client")

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def close(self) -> None:
        self._closed = True
        self._pool.close()

    def _take(self) -> tuple[_Spare, Connections]:
        """Raises RuntimeError, Forked, too: this is another event loop."""
        if self._closed:
            raise ClientClosed
        self.loop.check()
        return _NOWHERE, self._pool  # which all share

    async def end(self) -> None:
        self.close()
        if self.engine is not None:
            await asyncio.shield(asyncio.to_thread(self.engine.close))  # which is done, whoever is cancelled meanwhile


class _Watch:
    """While nothing comes of one instance, asks the others whether one of them serves it by now."""

    def __init__(self, requests: Requests, part: str, question: str, held: float) -> None:
        self._requests, self._clock = requests, requests.clock
        self._part, self._question = part, question
        self._silence = Silence(self._clock.monotonic(), held)
        self._turns = 0
        self._connections: Connections
        self._silent = ""

    def begins(self, connections: Connections, silent: str) -> None:
        """``silent``: the instance that is waited for; empty where it is none that the token is for."""
        self._connections, self._silent = connections, silent

    def left(self) -> float:
        return self._silence.left(self._clock.monotonic())

    def heard(self) -> None:
        self._silence.heard(self._clock.monotonic())

    async def look(self, seconds: float) -> None:
        ends, requests = Deadline(seconds, clock=self._clock), self._requests
        base = await requests.who_serves(self._connections, self._question, self._silent, self._turns, ends.within(AGAIN_SECONDS))
        self._turns += 1
        if base is not None and not await self._is_slow(ends.within(AGAIN_SECONDS / 2)):
            requests.serves(self._part, base)
            raise TimeoutError(f"nothing came for {SILENT_SECONDS:g} s and more, and {shown(base)} serves this by now")
        self._silence.asked(self._clock.monotonic())

    async def _is_slow(self, deadline: Deadline) -> bool:
        """Whether it serves this still: another address may lead to the same instance, as a load balancer's does, or to one that
        passes on what it is asked. Who stands still does not answer."""
        silent = self._silent
        return bool(silent) and await self._requests.named_by(self._connections, silent, self._question, deadline) == silent


def _question(part: str) -> tuple[str, str] | None:
    """The part of the service, and what whoever serves it answers, while others name that one; to ask takes it over where nobody
    does. None: any instance answers."""
    if part in ("/v1/transactions", "/v1/atomic"):
        return part, part + "?limit=1"
    return (part, part + "/stats") if part.startswith("/v1/namespaces/") else None


def _of_store(store: str, url: str) -> str:
    """A URL that an engine is asked, as it may be printed."""
    return store + url.removeprefix(BASE)


@lru_cache(maxsize=1_024)
def _part(path: str) -> str:
    """The part of the service that a path belongs to, served as a whole.

    A topic, all transactions, or all atomic commits (chunks are staged there, too).
    """
    parts = path.split("/")
    if path.startswith("/v1/namespaces/") and len(parts) > 5 and parts[4] == "topics":
        return "/v1/atomic" if len(parts) > 6 and parts[6] == "stage" else "/".join(parts[:6])
    return "/".join(parts[:3])


def _joined(here: str, location: str) -> str:
    """The address that a redirect leads to. Raises InvalidResponse."""
    try:
        there = urljoin(here, location)
        if _is_http(urlsplit(there)):
            return there
    except ValueError:
        pass
    raise InvalidResponse(f"{shown(here)} redirects to {shown(location)[:200]!r}, which is no http(s) address")


def _lays_bare(here: str, there: str) -> bool:
    """Whether what goes encrypted to the one could be read on its way to the other: whoever names that, no token goes along."""
    return urlsplit(here).scheme == "https" != urlsplit(there).scheme


def _elsewhere(response: Response, body: bytes) -> str | None:
    """The instance that a refusal names as the one that serves this."""
    problem = problem_in(response.headers.get("content-type", ""), body)
    if problem is None or problem["code"] != NotServedHere.code or not isinstance(problem.get("url"), str):
        return None
    url = str(problem["url"]).rstrip("/")
    return url if _is_base(url) else None


def _is_base(url: str) -> bool:
    """Whether paths can be appended to it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return _is_http(parts) and not parts.query and not parts.fragment


def _is_http(parts: SplitResult) -> bool:
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _check_content(response: Response) -> None:
    """Refuse (InvalidResponse) what the service never answers: a page for people, packed bytes."""
    packed = response.headers.get("content-encoding")
    if packed is not None and packed.strip().lower() not in ("", "identity"):  # and unpacked, a little may be gigabytes
        raise InvalidResponse(f"{response.url} answers in the content encoding {packed[:50]!r}, which was not asked for")
    media = response.headers.get("content-type", "")
    if media != ONCELOG_AVRO and essence(media) == "text/html":
        raise InvalidResponse(f"{response.url} answers a page of HTML, which is no oncelog service's answer")


async def _whole(response: Response, limit: int) -> bytes:
    """Its body. Raises InvalidResponse if it is larger."""
    claimed = response.headers.get("content-length", "")
    if claimed.isascii() and claimed.isdigit() and len(claimed) < 20 and int(claimed) <= limit:
        limit = int(claimed)
    elif claimed:
        raise InvalidResponse(f"{response.url} announces an answer of {claimed[:50]} bytes; {limit} are the most")
    body = await response.content(limit)
    if len(body) > limit:
        raise InvalidResponse(f"{response.url} answers more than {limit} bytes")
    return body
