"""What every call to the service has in common: its address, its being tried again, its answer being read."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import cache, lru_cache
from math import inf
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from oncelog.api.plausible import check_names_rise
from oncelog.api.retry import Held, Holds, Outage, Tries
from oncelog.errors import DiskFull, InvalidRequest, InvalidResponse, OncelogError
from oncelog.http.credentials import shown
from oncelog.http.silence import Again
from oncelog.http.transport import MAX_JSON_BYTES, READ_SECONDS, AsyncTransport, Requests
from oncelog.http.trust import Certificate, Trust, Verify
from oncelog.process.logs import log
from oncelog.process.procedures import Procedure, answer_of
from oncelog.values.numbers import MILLISECOND, check_long, check_seconds
from oncelog.wire.codec import decode_polled
from oncelog.wire.isolation import read_headers
from oncelog.wire.media import JSON, ONCELOG_AVRO
from oncelog.wire.models import Resource
from oncelog.wire.names import check_namespace, check_topic, no_text
from oncelog.wire.requests import Polled

_log = logging.getLogger("oncelog.client")

T = TypeVar("T")
K = TypeVar("K", str, int)

RETRY_SECONDS = 15.0
"""How long a call is tried again before its error is raised: as long as a service needs to restart."""
PAGE = 1_000
"""Of a listing."""


class Calls:
    """The transport, and how long to insist. What has the calls themselves stands on it: :class:`oncelog.api.topics.AsyncApi`.

    The calls are procedures (:mod:`oncelog.process.procedures`): :class:`oncelog.AsyncClient` has them as they are,
    :class:`oncelog.Client` drives them.
    """

    _shell: type[Requests] = AsyncTransport

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = READ_SECONDS,
        retry: float = RETRY_SECONDS,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
    ) -> None:
        """Make a client; it connects with the first call.

        Args:
            url: of the service, or of several of its instances, by commas; or of a store, which is opened in this process. Else
                ONCELOG_URL, else http://127.0.0.1:7070.
            token: else ONCELOG_TOKEN, or what is in ONCELOG_TOKEN_FILE.
            timeout: seconds until an answer must have come, to its last byte.
            retry: seconds that a call is tried again, from its first failure on; what waits on the service is not trying, and one
                that had no answer in ``timeout`` is given up where that was longer. Of several instances one that stands still
                takes no call with it: after three seconds without a byte what may be done twice is asked of one that serves it by
                then, and of the others for ``timeout`` each, unless ``retry`` is 0.
            verify: the certificates to trust, a file, a directory or an ssl.SSLContext, else ONCELOG_CA, REQUESTS_CA_BUNDLE,
                CURL_CA_BUNDLE, SSL_CERT_FILE or SSL_CERT_DIR, else the public ones.
            cert: the client's own, a file that has its key too, or a pair of files; else ONCELOG_CERT and ONCELOG_KEY.
            proxy: URL of the one to go through, else ONCELOG_PROXY, else none.

        Raises:
            ValueError: what is no http(s) URL, seconds that cannot be, certificates that cannot be read.
        """
        check_seconds("timeout", timeout, MILLISECOND)
        check_seconds("retry", retry)
        self._transport = self._shell(url, token, timeout, Trust.chosen(verify, cert, proxy))
        self._clock = self._transport.clock
        self._timeout = timeout
        self._retry = retry
        self._holds = Holds()
        self._outage = Outage()
        self._unconfirmed: dict[int, bool] = {}
        """Transactions that were rolled back here, and whose service may not have heard of it → whether they were given up."""

    @property
    def url(self) -> str:
        """URL of the service."""
        return self._transport.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.url)!r})"

    async def _trying(
        self, call: Callable[[], T | Awaitable[T]], idempotent: bool, seconds: float | None = None, tries: Tries | None = None
    ) -> T:
        """Call, and call again while that is safe and of use; see :func:`oncelog.api.retry.may_retry`.

        ``seconds``: for how long, else the client's ``retry``; ``tries``: those so far, where there are some.

        Raises:
            OncelogError: the last try's; ``definite`` only if no earlier try may have got through either.
        """
        tries = self._tries(idempotent, seconds) if tries is None else tries
        while True:
            began = self._clock.monotonic()
            try:
                answer = await answer_of(call)
            except OncelogError as error:
                wait = tries.wait_after(error, self._clock.monotonic(), random.random())
                if wait is None:
                    raise
                self._say(error, wait, began)
            else:
                self._outage.heard()
                return answer
            await self._transport.pause(wait)

    def _say(self, error: OncelogError, wait: float, began: float) -> None:
        log(_log, logging.INFO, "a call failed and is tried again in %.2f s: %s: %s", wait, error.code, str(error))
        if (away := self._outage.failed(error, began, self._clock.monotonic())) is not None:
            text = "the service has been away for %.0f s, and calls are tried again: %s: %s"
            log(_log, logging.WARNING, text, away, error.code, str(error))

    def _tries(self, idempotent: bool, seconds: float | None = None, *, held: bool = False) -> Tries:
        seconds = self._retry if seconds is None else seconds
        others = self._transport.others if seconds else 0
        ends = self._clock.monotonic() + seconds
        return Tries(ends, idempotent=idempotent, others=others, seconds=seconds, held=held)

    def _waits(self, held: float = 0.0, served: str | None = None) -> Again:
        """How long a request is waited for that may be sent again, and is held for so many seconds."""
        return Again(self._timeout + held, held, served, bool(self._retry))

    async def _held(self, wait: float, once: Callable[[float], Awaitable[T]], is_nothing: Callable[[T], bool]) -> T:
        """The answer to what the service holds for ``wait`` seconds where there is nothing yet, tried as
        :class:`oncelog.api.retry.Held` says.

        ``once``: asks it, to be held for so many seconds; ``is_nothing``: whether it was answered before anything had come.
        """
        clock = self._clock.monotonic
        held, tries = Held(self._holds, wait, clock()), self._tries(idempotent=True, held=wait > 0)

        async def asked() -> T:
            try:
                return await once(held.asks(clock()))
            except OncelogError as error:
                held.failed(error, clock())
                raise

        while True:
            answer: T = await self._trying(asked, True, tries=tries)
            if held.answered(is_nothing(answer), clock()):
                return answer
            tries.heard()

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        media: str | None = None,
        *,
        idempotent: bool,
        params: dict[str, str] | None = None,
        accept: str | None = None,
        timeout: float | None = None,
        most: int = MAX_JSON_BYTES,
        within: float | None = None,
    ) -> bytes:
        """The answer of one call, tried again as :meth:`_trying` does.

        ``timeout``: seconds until an answer must have come, else the client's; ``most``: bytes that it may have; ``within``:
        seconds for all tries together.
        """
        end = inf if within is None else self._clock.monotonic() + within
        is_sent_again = idempotent and bool(self._retry if within is None else within)

        def once() -> Procedure[bytes]:
            seconds = max(0.001, min(self._timeout if timeout is None else timeout, end - self._clock.monotonic()))
            waits = Again(seconds) if is_sent_again else seconds
            return self._transport.ask(method, path, body, media, params, waits, accept, most)

        tries = None if within is None else Tries(end, idempotent=idempotent, others=self._transport.others if within else 0)
        return await self._trying(once, idempotent, tries=tries)

    async def _get(
        self, path: str, params: dict[str, str] | None = None, most: int = MAX_JSON_BYTES, accept: str | None = None
    ) -> bytes:
        return await self._call("GET", path, params=params, accept=accept, most=most, idempotent=True)

    async def _put(self, path: str, value: object, params: dict[str, str] | None = None) -> None:
        await self._call("PUT", path, json.dumps(value).encode(), JSON, idempotent=False, params=params)

    async def _post(
        self,
        path: str,
        value: object = None,
        *,
        idempotent: bool,
        accept: str | None = None,
        timeout: float | None = None,
        within: float | None = None,
    ) -> bytes:
        body, media = (None, None) if value is None else (json.dumps(value).encode(), JSON)
        return await self._call("POST", path, body, media, idempotent=idempotent, accept=accept, timeout=timeout, within=within)

    async def _delete(self, path: str, params: dict[str, str] | None = None, *, idempotent: bool = False) -> None:
        # Not repeated blindly: between two tries another client may have made it again.
        await self._call("DELETE", path, params=params, idempotent=idempotent)

    async def _lines(
        self, path: str, body: bytes | None = None, media: str | None = None, *, idempotent: bool
    ) -> AsyncIterator[bytes]:
        """The lines of an answer that comes bit by bit; tried again until the first of them has come, unless a disk is too full
        for it."""
        tries, begun = self._tries(idempotent), False
        while True:
            began = self._clock.monotonic()
            try:
                async with aclosing(self._transport.ask_lines("POST", path, body, media)) as lines:
                    async for line in lines:
                        begun = True
                        yield line
                return
            except OncelogError as error:
                is_final = begun or isinstance(error, DiskFull)  # for what is as large as a backup somebody must make room
                wait = None if is_final else tries.wait_after(error, self._clock.monotonic(), random.random())
                if wait is None:
                    raise
                self._say(error, wait, began)
            await self._transport.pause(wait)

    async def _page(
        self,
        path: str,
        body: Callable[[int], bytes],
        media: str,
        wait_ms: int,
        most_messages: int | None,
        params: dict[str, str] | None = None,
    ) -> Polled:
        """The messages that a request held by the service for ``wait_ms`` brings; ``body``: of one that is held for so many.

        Tried again, it is not held until the service was heard of.
        """

        async def once(held: float) -> Polled:
            data = body(int(held * 1000))
            answer, headers = await self._transport.answer("POST", path, data, media, params, self._waits(held), ONCELOG_AVRO)
            isolation, by = read_headers(headers)
            return decoded(lambda body: decode_polled(body, most_messages), answer)._replace(isolation=isolation, held=by)

        return await self._held(wait_ms / 1000, once, lambda polled: not polled.messages and polled.position is None)

    async def _listed(
        self,
        kind: type[list[T]],
        path: str,
        key: Callable[[T], K],
        params: dict[str, str] | None = None,
        rising: bool = True,
    ) -> AsyncIterator[T]:
        """Every resource of a listing, fetched page by page; ``key``: what the next page goes on behind. Raises InvalidResponse
        for a page that does not."""
        asked = {"limit": str(PAGE), **(params or {})}
        behind: K | None = None
        # A page may be shorter than it was asked for, since what it listed is gone: only an empty one is the last.
        while page := parse(kind, await self._get(path, asked)):
            check_names_rise([key(each) for each in (page if rising else page[-1:])], behind, rising)
            for each in page:
                yield each
            behind = key(page[-1])
            asked["after"] = str(behind)


def of_generation(generation: int | None) -> dict[str, str] | None:
    """The query that has an address refuse what is of another generation of its topic; None: whichever it is."""
    check_generation(generation)
    return None if generation is None else {"generation": str(generation)}


def check_generation(generation: int | None) -> None:
    """Raises InvalidRequest for what can be no topic's generation; None: whichever it is."""
    if generation is not None:
        check_long("generation", generation)


async def tried(calls: Calls, call: Callable[[], T | Awaitable[T]]) -> T:
    """Make a call that is idempotent, and again for as long as this client insists. Raises the last try's OncelogError."""
    return await calls._trying(call, idempotent=True)


async def paused(calls: Calls, seconds: float) -> None:
    """Return when so many seconds are over, or the client is closed."""
    await calls._transport.pause(seconds)


def quoted(name: str) -> str:
    """A name as one segment of a path. Raises TypeError for what is no text, InvalidRequest for what would be none or several."""
    if not isinstance(name, str):
        raise no_text(name, "a name")
    if name in ("", ".", "..") or "/" in name:
        raise InvalidRequest(f"not a name: {name!r}")
    return quote(name, safe="")


def topic_path(namespace: str, topic: str) -> str:
    """The address of a topic. Raises InvalidRequest for what is no name, TypeError for what is no text."""
    try:
        return _topic_path(namespace, topic)
    except TypeError:
        check_topic(topic)  # what cannot be looked up, as a list, is no text
        check_namespace(namespace)
        raise


@lru_cache(maxsize=1_024)
def _topic_path(namespace: str, topic: str) -> str:
    return f"/v1/namespaces/{check_namespace(namespace)}/topics/{check_topic(topic)}"


def as_request(kind: type[Resource], what: str, **fields: object) -> dict[str, object]:
    """A request as it travels. Raises InvalidRequest: it is not ``what`` it should be."""
    try:
        return kind(**fields).to_wire()
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, each['loc']))} is {each['input']!r:.100}: {each['msg'].lower()}" for each in error.errors())
        raise InvalidRequest(f"not {what}: {'; '.join(wrong)}") from None


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)  # to make one takes longer than to use it


def parse(kind: type[T], body: bytes) -> T:
    """The resource in a JSON answer. Raises InvalidResponse."""
    try:
        resource: T = _adapter(kind).validate_json(body)
        return resource
    except (ValidationError, RecursionError) as error:
        raise InvalidResponse(f"the answer is not what was expected: {str(error)[:1000]}") from error


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode an answer. Raises InvalidResponse."""
    try:
        return decode(body)
    except (InvalidRequest, ValueError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
        raise InvalidResponse(f"the answer cannot be read: {error}") from error
