"""What a request may cost before a handler sees it: size, time, and all of them together.

uvicorn limits neither a body nor a half-sent head, so both are done here. httptools, not h11: with h11 a smuggled second
request was answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from starlette.types import Receive, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from oncelog.errors import InvalidRequest, OncelogError, Overloaded, RequestTimeout, RequestTooLarge
from oncelog.wire.media import PROBLEM
from oncelog_service.config import Settings

MAX_HEAD_BYTES = 64 * 2**10
"""Request line and headers; nginx and Apache refuse at 8 to 32 KiB."""
_HEAD_TOO_LARGE = f"the request's head is larger than {MAX_HEAD_BYTES} bytes"


class Connection:
    """The tasks to stop when its client hangs up."""

    def __init__(self) -> None:
        self.lost = False
        self._readers: set[asyncio.Task[object]] = set()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Stops the block when the client hangs up: it has no effect but its answer."""
        task = asyncio.current_task()
        assert task is not None
        self._readers.add(task)
        try:
            yield
        finally:
            self._readers.discard(task)

    def hung_up(self) -> None:
        """The client has gone."""
        self.lost = True
        for task in self._readers:
            task.cancel()


CONNECTION = "oncelog.connection"
"""What a :class:`Connection` is called in the scope of its requests."""


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


async def read_body(scope: Scope, receive: Receive, settings: Settings, in_flight: InFlight) -> bytes:
    """The whole body, taken from ``in_flight`` as it arrives; the caller gives it back.

    A connection that ends before the body does sent no request: an empty body would replace a topic's properties by none.

    Raises:
        RequestTooLarge (before reading it, where its length is declared), RequestTimeout, Overloaded: nothing stays taken.
    """
    for name, value in scope["headers"]:
        # Cut before it is converted: Python refuses to convert thousands of digits, with an error that would be a 500.
        if name == b"content-length" and value.isdigit() and int(value[:20]) > settings.max_request_bytes:
            raise _too_large(settings)
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestTimeout("the connection ended before the body did")
            part: bytes = message.get("body", b"")
            if size + len(part) > settings.max_request_bytes:
                raise _too_large(settings)
            in_flight.take(len(part))  # as it arrives: a declared length costs its sender nothing, and would reserve all
            size += len(part)
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    except BaseException:
        in_flight.give_back(size)
        raise


def _too_large(settings: Settings) -> RequestTooLarge:
    limit = settings.max_request_bytes
    return RequestTooLarge(f"the body is larger than {limit} bytes; send fewer messages at once", limit=limit)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with bounds on the size of a request's head, and on the time that head and body take to arrive.

    The timers are here and not around the handlers: a body that arrives in one piece with its head, as most do, costs none.
    """

    head_timeout_seconds: float
    body_timeout_seconds: float

    _awaits_head = True
    _body_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection = Connection()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_body_timer()
        super().connection_lost(exc)
        self._connection.hung_up()

    def data_received(self, data: bytes) -> None:
        if self._awaits_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._start_timer()
        super().data_received(data)
        if not self._awaits_head:
            if self._body_timer is None:
                self._body_timer = self.loop.call_later(self.body_timeout_seconds, self._body_too_slow)
        elif self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_HEAD_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """Answers a problem, but only where it cannot be taken for the answer to an earlier request on the connection."""
        self._refuse(InvalidRequest(msg))

    def _refuse(self, error: OncelogError) -> None:
        cycle = self.cycle
        waits = cycle is not None and not cycle.response_complete
        if not waits or (cycle.more_body and not cycle.response_started and not self.pipeline):
            body = json.dumps(error.to_problem()).encode() + b"\n"
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status or 400).phrase}\r\ncontent-type: {PROBLEM}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        if self._head_timer is None:  # a head that begins in the same packet as the request before it
            self._start_timer()
        super().on_message_begin()
        self.scope[CONNECTION] = self._connection  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        if self._head_bytes > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES:
            raise ValueError(_HEAD_TOO_LARGE)  # the parser turns it into send_400_response
        self._awaits_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._awaits_head = True
        self._head_bytes = 0
        self._stop_body_timer()
        super().on_message_complete()

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _body_too_slow(self) -> None:
        self._body_timer = None
        if self.pipeline:  # an earlier request is still being answered and reading is paused: we are slow, not the client
            self._body_timer = self.loop.call_later(self.body_timeout_seconds, self._body_too_slow)
        elif not self.transport.is_closing():
            self._refuse(RequestTimeout(f"the body did not arrive within {self.body_timeout_seconds:g} s"))

    def _too_slow(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # closing would cut off the answer before it
            self._start_timer()
        elif not self.transport.is_closing():
            self.transport.close()


def guarded_protocol(head_timeout: float, body_timeout: float) -> type[GuardedProtocol]:
    """The protocol with these times, in seconds: uvicorn makes the objects and takes a class."""

    class Timed(GuardedProtocol):
        head_timeout_seconds = head_timeout
        body_timeout_seconds = body_timeout

    return Timed
