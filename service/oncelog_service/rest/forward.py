"""A request that another instance must answer, and its answer handed back: for clients that cannot go there themselves.

An answer that comes in chunks is handed on as they come, the next when the client has read those before: no more of it is held
here than the other instance has sent meanwhile. One that breaks off there breaks off here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, closing
from functools import cached_property
from math import inf
from typing import Any
from urllib.parse import urljoin, urlsplit

from oncelog.errors import ConnectionFailed, NotSupported, StorageUnavailable, from_problem
from oncelog.http.connections import FAILURES, Connections, Response, connection_error
from oncelog.http.credentials import authorization, shown
from oncelog.http.sockets import Awaiting, Deadline, Network
from oncelog.http.trust import Trust
from oncelog.process.clock import REAL, Clock
from oncelog.wire.media import JSON
from oncelog_service.access.access import Access
from oncelog_service.access.grants import EVERYBODY, Principal
from oncelog_service.rest.answer import Answer

ROUTE = b"oncelog-route"
"""The header by which a client asks for this, with the value ``proxy``."""
PROXY = b"proxy"
ON_BEHALF = b"oncelog-principal"
"""The header in which an instance says for whom it asks, where that one's own credential cannot be passed on: a certificate."""
_HOPS = 3
_MAX_CHUNKED = 16 * 2**20
"""Of an answer in chunks that is handed on as a whole: what a page, or the progress of a verification, does not reach."""
_PASSED_ON = (b"content-type", b"accept", b"x-request-id")
_HANDED_BACK = ("oncelog-", "ratelimit", "retry-after", "www-authenticate", "allow")
"""How the names of those headers begin that say something of the answer; the others each instance writes itself."""


class Forwarder:
    """Asks other instances, with the rights of who asks here. What asks ends with its task, and the request at the other instance
    with it."""

    def __init__(self, access: Access, longest_seconds: float, *, network: Network | None = None, clock: Clock = REAL) -> None:
        """``longest_seconds``: until an answer must have come; ``network``: else sockets."""
        self._access = access
        self._network = Awaiting() if network is None else network
        self._clock = clock
        self._longest = longest_seconds

    @cached_property
    def _trust(self) -> Trust:
        return Trust.chosen()  # once, as its certificates are read on the event loop

    async def ask(self, url: str, method: str, target: str, value: object = None) -> Any:
        """Returns the JSON that another instance answers to who may do everything: the caller has looked at who asks here.

        Raises its refusal; StorageUnavailable if it answers no JSON.
        """
        headers = {} if value is None else {b"content-type": JSON.encode()}
        body = b"" if value is None else json.dumps(value).encode()
        answer = await self.send(url, method, target, headers, body, EVERYBODY)
        try:
            found = json.loads(answer.body) if isinstance(answer.body, bytes) else None
        except ValueError:
            found = None
        if answer.status != 200 and isinstance(found, dict):
            raise from_problem(found, answer.status)
        if answer.status != 200 or found is None:
            raise StorageUnavailable(f"{url} serves some of the topics and answered {answer.status}, which says nothing of them")
        return found

    async def send(
        self,
        url: str,
        method: str,
        target: str,
        headers: Mapping[bytes, bytes],
        body: bytes,
        principal: Principal,
        still: Callable[[], object] | None = None,
    ) -> Answer:
        """What the instance at ``url``, or the one it knows of, answers to this request. ``still``: raises where it may
        not be told any more; with it, what comes in chunks is handed on piece by piece, each of which it is asked about.

        Raises StorageUnavailable: it cannot be reached; definite only if the request cannot have arrived. NotSupported: what
        comes in chunks is too large to be handed on as a whole.
        """
        passed = {name.decode(): headers[name].decode("latin-1") for name in _PASSED_ON if name in headers}
        if b"authorization" in headers:
            passed["authorization"] = headers[b"authorization"].decode("latin-1")
        elif self._access.own_token is not None:
            passed["authorization"] = authorization(self._access.own_token)
            if principal is not EVERYBODY:
                passed[ON_BEHALF.decode()] = principal.name
        url += target
        deadline = Deadline(self._longest, clock=self._clock)
        with closing(Connections(self._trust, self._network)) as connections:
            for _ in range(_HOPS):
                try:
                    deadline.begin_anew()
                    answer = await connections.ask(method, url, body, passed, deadline)
                except FAILURES as error:
                    raise _unanswered(url, error) from error
                if answer.status != 307 or "location" not in answer.headers:
                    break
                answer.let_go()
                url = urljoin(url, answer.headers["location"])
            else:
                raise StorageUnavailable(f"who serves this is changing ({_base(url)} does not know either); nothing was done")
        pieces = _Pieces(url, answer, deadline, still)  # its connection is open still: it is in use
        media = answer.headers.get("content-type", "application/octet-stream")
        back = {name: value for name, value in answer.headers.items() if name.startswith(_HANDED_BACK)}
        is_chunked = "chunked" in answer.headers.get("transfer-encoding", "")
        if is_chunked and still is not None:
            return Answer(pieces, media, answer.status, back)
        async with aclosing(pieces):
            content = await pieces.all(_MAX_CHUNKED if is_chunked else inf)
        return Answer(content, media, answer.status, back)


class _Pieces(AsyncGenerator[bytes, None]):
    """The body of another instance's answer as it comes. No generator itself: one that was closed before its first piece would
    never have run, and its connection stayed open."""

    def __init__(self, url: str, answer: Response, deadline: Deadline, still: Callable[[], object] | None) -> None:
        """``deadline``: of each piece."""
        self._still = still or bool
        self._url = url
        self._answer = answer
        self._deadline = deadline

    async def all(self, most: float) -> bytes:
        """Raises NotSupported: it has more bytes."""
        try:
            content = await self._answer.content(most)
        except FAILURES as error:
            raise _unanswered(self._url, error) from error
        if len(content) > most:
            raise NotSupported(f"what {_base(self._url)} answers comes in chunks, which HTTP/1.0 does not have; ask in HTTP/1.1")
        return content

    async def asend(self, value: None) -> bytes:
        self._deadline.begin_anew()
        try:
            parts = await self._answer.more()
        except FAILURES as error:
            raise _unanswered(self._url, error) from error
        if parts is None:
            raise StopAsyncIteration
        self._still()
        return b"".join(parts)

    async def athrow(self, *given: Any) -> bytes:
        return await super().athrow(*given)

    async def aclose(self) -> None:
        self._answer.let_go()


def _unanswered(url: str, error: BaseException) -> StorageUnavailable:
    failure = connection_error(url, error)
    return StorageUnavailable(
        f"{_base(url)} serves this and does not answer: {failure.detail}",
        definite=isinstance(failure, ConnectionFailed) and failure.definite,
    )


def _base(url: str) -> str:
    return shown("{}://{}".format(*urlsplit(url)[:2]))
