"""A request that another instance must answer, and its answer handed back: for clients that cannot go there themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urljoin, urlsplit

from oncelog.errors import ConnectionFailed, StorageUnavailable
from oncelog.http.connections import FAILURES, Connections, connection_error
from oncelog.http.deadline import Deadline
from oncelog.process.procedures import drive
from oncelog_service.rest.answer import Answer

ROUTE = b"oncelog-route"
"""The header by which a client asks for this, with the value ``proxy``."""
PROXY = b"proxy"
_THREADS = 64
"""Requests under way; each may be a poll that waits."""
_HOPS = 3
_PASSED_ON = (b"content-type", b"accept")


class Forwarder:
    """Asks other instances. Its threads begin when they are first needed."""

    def __init__(self, token: str | None, longest_seconds: float) -> None:
        """``token``: what this service's clients carry, and theirs; ``longest_seconds``: until an answer must have come."""
        self._token = token
        self._longest = longest_seconds
        self._threads = ThreadPoolExecutor(_THREADS, "oncelog-forward")

    async def send(self, url: str, method: str, target: str, headers: Mapping[bytes, bytes], body: bytes) -> Answer:
        """What the instance at ``url``, or the one it knows of, answers to this request.

        Raises StorageUnavailable: it cannot be reached; definite only if the request cannot have arrived.
        """
        passed = {name.decode(): headers[name].decode("latin-1") for name in _PASSED_ON if name in headers}
        if self._token is not None:
            passed["authorization"] = f"Bearer {self._token}"
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: self._send(method, url + target, passed, body)
        )

    def _send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Answer:
        with closing(Connections()) as connections:
            for _ in range(_HOPS):
                try:
                    answer = drive(connections.ask(method, url, body, headers, Deadline(self._longest)))
                    try:
                        content = drive(answer.content())
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
        return Answer(content, answer.headers.get("content-type", "application/octet-stream"), answer.status)


def _base(url: str) -> str:
    return "{}://{}".format(*urlsplit(url)[:2])
