"""A request that another instance must answer, and its answer handed back: for clients that cannot go there themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from typing import Any
from urllib.parse import urljoin, urlsplit

from oncelog.errors import ConnectionFailed, StorageUnavailable, from_problem
from oncelog.http.connections import FAILURES, Connections, connection_error
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
        self, url: str, method: str, target: str, headers: Mapping[bytes, bytes], body: bytes, principal: Principal
    ) -> Answer:
        """What the instance at ``url``, or the one it knows of, answers to this request.

        Raises StorageUnavailable: it cannot be reached; definite only if the request cannot have arrived.
        """
        passed = {name.decode(): headers[name].decode("latin-1") for name in _PASSED_ON if name in headers}
        if b"authorization" in headers:
            passed["authorization"] = headers[b"authorization"].decode("latin-1")
        elif self._access.own_token is not None:
            passed["authorization"] = authorization(self._access.own_token)
            if principal is not EVERYBODY:
                passed[ON_BEHALF.decode()] = principal.name
        url += target
        with closing(Connections(self._trust, self._network)) as connections:
            for _ in range(_HOPS):
                try:
                    answer = await connections.ask(method, url, body, passed, Deadline(self._longest, clock=self._clock))
                    try:
                        content = await answer.content()
                    finally:
                        answer.let_go()
                except FAILURES as error:
                    failure = connection_error(url, error)
                    raise StorageUnavailable(
                        f"{_base(url)} serves this and does not answer: {failure.detail}",
                        definite=isinstance(failure, ConnectionFailed) and failure.definite,
                    ) from error
                if answer.status != 307 or "location" not in answer.headers:
                    break
                url = urljoin(url, answer.headers["location"])
            else:
                raise StorageUnavailable(f"who serves this is changing ({_base(url)} does not know either); nothing was done")
        media = answer.headers.get("content-type", "application/octet-stream")
        back = {name: value for name, value in answer.headers.items() if name.startswith(_HANDED_BACK)}
        return Answer(content, media, answer.status, back)


def _base(url: str) -> str:
    return shown("{}://{}".format(*urlsplit(url)[:2]))
