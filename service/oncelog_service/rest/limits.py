"""What a request may cost before a handler sees it: size, time, and all of them together.

uvicorn limits neither a body nor a half-sent head, so both are done here. httptools, not h11: with h11 a smuggled second
request was answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from oncelog.errors import Overloaded, RequestTimeout, RequestTooLarge
from oncelog_service.config import Settings

MAX_HEAD_BYTES = 64 * 2**10
"""Request line and headers; nginx and Apache refuse at 8 to 32 KiB."""


class InFlight:
    """Bytes of request bodies held at the same time, over all connections."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes

    def take(self, size: int) -> None:
        """Raises Overloaded."""
        if size > self._left:
            raise Overloaded("the service holds as many request bodies as it may; try again in a moment")
        self._left -= size

    def give_back(self, size: int) -> None:
        """What :meth:`take` took."""
        self._left += size


async def read_body(scope: Scope, receive: Receive, settings: Settings) -> bytes:
    """The whole body. Raises RequestTooLarge (before reading it, where its length is declared), RequestTimeout."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > settings.max_request_bytes:
            raise _too_large(settings)
    message = await receive()
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > settings.max_request_bytes:
            raise _too_large(settings)
        return body
    try:
        return await asyncio.wait_for(_read_rest(message, receive, settings), settings.body_timeout_seconds)
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {settings.body_timeout_seconds:g} s") from None


async def _read_rest(message: Any, receive: Receive, settings: Settings) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        part = message.get("body", b"")
        size += len(part)
        if size > settings.max_request_bytes:
            raise _too_large(settings)
        parts.append(part)
        if not message.get("more_body"):
            if message["type"] == "http.disconnect":
                raise RequestTimeout("the connection ended before the body did")
            return b"".join(parts)
        message = await receive()


def _too_large(settings: Settings) -> RequestTooLarge:
    limit = settings.max_request_bytes
    return RequestTooLarge(f"the body is larger than {limit} bytes; send fewer messages at once", limit=limit)


def guarded_protocol(head_timeout_seconds: float) -> type[HttpToolsProtocol]:
    """uvicorn's HTTP protocol, with a bound on the size of a request's head and on the time it may take to arrive."""

    class GuardedProtocol(HttpToolsProtocol):
        """Closes a connection whose request head is too large or too slow."""

        _awaits_head = True
        _head_bytes = 0
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._awaits_head:
                self._head_bytes += len(data)
                if self._head_timer is None:
                    self._start_timer()
            super().data_received(data)
            if self._awaits_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")

        def on_headers_complete(self) -> None:
            self._awaits_head = False
            self._stop_timer()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._awaits_head = True
            self._head_bytes = 0
            super().on_message_complete()

        def _start_timer(self) -> None:
            self._head_timer = self.loop.call_later(head_timeout_seconds, self._too_slow)

        def _stop_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _too_slow(self) -> None:
            self._head_timer = None
            if not self.transport.is_closing():
                self.transport.close()

    return GuardedProtocol
