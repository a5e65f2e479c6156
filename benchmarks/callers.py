"""Connections with next to no client behind them: what is measured is the service, not an HTTP library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar, cast
from urllib.parse import urlsplit

from benchmarks.turns import Calls, Turn
from oncelog.wire.media import ONCELOG_AVRO

Call = Callable[[], Awaitable[object]]
C = TypeVar("C", bound="Caller")


class Caller(asyncio.Protocol):
    """One connection and next to no client: a request, its answer, the next one."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connected(cls, url: str) -> Self:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        _, caller = await asyncio.get_running_loop().create_connection(cls, address.hostname, address.port)
        return caller

    def call(self, request: bytes) -> asyncio.Future[bytes]:
        """Its answer. The future raises RuntimeError where it is a refusal."""
        self._received = b""
        self._answer = asyncio.get_running_loop().create_future()
        self.say(request)
        return self._answer

    def say(self, data: bytes) -> None:
        """Send this; nothing is waited for."""
        assert self._transport is not None
        self._transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._answer is None or self._answer.done():
            return
        try:
            answer = self.answer(self._received)
        except RuntimeError as error:
            self._answer.set_exception(error)
            return
        if answer is not None:
            self._answer.set_result(answer)

    def answer(self, received: bytes) -> bytes | None:
        """The body of what has been received since the call; None as long as it is not whole."""
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = received[:end].lower() + b"\r\n"
        at = head.index(b"content-length:") + len(b"content-length:")
        body = received[end + 4 :]
        if len(body) < int(head[at : head.index(b"\r\n", at)]):
            return None
        if b" 200 " not in head[:20]:
            raise RuntimeError(f"{head!r} {body[:300]!r}")
        return body

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the service closed the connection"))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def request(path: str, body: bytes, header: str = "") -> tuple[bytes, bytes]:
    """A request in two parts: an id goes between them where ``path`` has a {}. ``header``: one more, with its line's end."""
    before, _, after = path.partition("{}")
    known = f"host: 127.0.0.1\r\ncontent-type: {ONCELOG_AVRO}\r\n{header}"
    tail = f"{after} HTTP/1.1\r\n{known}content-length: {len(body)}\r\n\r\n"
    return f"POST {before}".encode(), tail.encode() + body


async def connected(url: str, connections: int, kind: type[C] = Caller) -> list[C]:  # type: ignore[assignment]
    """So many connections to the server at this address."""
    return [await kind.connected(url) for _ in range(connections)]


def calling(runner: asyncio.Runner, calls: Sequence[Call]) -> Turn:
    """All of them at the same time, each again as soon as it is answered."""

    async def one(call: Call, end: float) -> list[float]:
        spans = []
        while (began := time.perf_counter()) < end:
            await call()
            spans.append(time.perf_counter() - began)
        return spans

    async def everybody(seconds: float) -> Calls:
        began = time.perf_counter()
        spans = await asyncio.gather(*(one(call, began + seconds) for call in calls))
        return Calls([span for each in spans for span in each], time.perf_counter() - began)

    return lambda seconds: runner.run(everybody(seconds))
