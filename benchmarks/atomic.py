"""Atomic commits over two topics beside plain publishes and the bare server."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.measure import PAYLOADS, Row, Server, running
from benchmarks.turns import Turn, in_turns, repeat
from oncelog import Client
from oncelog.wire.codec import encode_commit_request, encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import CommitRequest, Part, PublishRequest

TOPICS = ("orders", "audit")
MESSAGES = 10
"""Of each commit on each topic."""
ATOMIC, PLAIN, BARE = "atomic commits", "two plain publishes", "one write of the bare server"
_PUBLISH = "/v1/namespaces/default/topics/{}/publish"


def atomic_rates(seconds: int) -> list[Row]:
    """Rates on fresh services."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = _rates(runner, 1, 250, seconds) + _rates(runner, 16, 1_000, seconds)
    return [*rows, _sdk_rate(seconds)]


# --- rates


class Caller(asyncio.Protocol):
    """One connection and next to no client: a request, its answer, the next one."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connected(cls, url: str) -> Caller:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        _, caller = await asyncio.get_running_loop().create_connection(cls, address.hostname, address.port)
        return caller

    def call(self, request: bytes) -> asyncio.Future[bytes]:
        """The body of the answer. The future raises RuntimeError for any but 200."""
        assert self._transport is not None
        self._received = b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = self._received[:end].lower() + b"\r\n"
        at = head.index(b"content-length:") + len(b"content-length:")
        body = self._received[end + 4 :]
        if len(body) < int(head[at : head.index(b"\r\n", at)]):
            return
        if b" 200 " in head[:20]:
            self._answer.set_result(body)
        else:
            self._answer.set_exception(RuntimeError(f"{head!r} {body[:300]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the service closed the connection"))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def _request(path: str, body: bytes) -> tuple[bytes, bytes]:
    """A request in two parts: an id goes between them where ``path`` has a {}."""
    before, _, after = path.partition("{}")
    tail = f"{after} HTTP/1.1\r\nhost: a\r\ncontent-type: {ONCELOG_AVRO}\r\ncontent-length: {len(body)}\r\n\r\n"
    return f"POST {before}".encode(), tail.encode() + body


def _messages(number: int) -> PublishRequest:
    """The messages of a commit on its topic of this number."""
    return PublishRequest(PAYLOADS[number * MESSAGES : (number + 1) * MESSAGES])


def _commit(group: str) -> CommitRequest:
    return CommitRequest(group=group, parts=[Part("default", topic, _messages(at)) for at, topic in enumerate(TOPICS)])


def _atomically() -> Callable[[Caller], Awaitable[None]]:
    head, tail = _request("/v1/atomic/{}/commit", encode_commit_request(_commit("bench")))
    numbers, run = itertools.count(), os.urandom(4).hex()

    async def once(caller: Caller) -> None:
        answer = await caller.call(b"%s%s-%d%s" % (head, run.encode(), next(numbers), tail))
        if b'"committed"' not in answer:
            raise RuntimeError(f"not committed: {answer!r}")

    return once


def _plainly() -> Callable[[Caller], Awaitable[None]]:
    bodies = [encode_publish_request(_messages(at)) for at in range(len(TOPICS))]
    requests = [b"".join(_request(_PUBLISH.format(topic), body)) for topic, body in zip(TOPICS, bodies, strict=True)]

    async def once(caller: Caller) -> None:
        for request in requests:
            await caller.call(request)

    return once


def _barely() -> Callable[[Caller], Awaitable[None]]:
    request = b"".join(_request("/publish", encode_publish_request(PublishRequest(PAYLOADS[: len(TOPICS) * MESSAGES]))))

    async def once(caller: Caller) -> None:
        await caller.call(request)

    return once


def _rates(runner: asyncio.Runner, connections: int, target: int, seconds: int) -> list[Row]:
    with running("oncelog") as server, running("bare") as bare, Client(server.url) as client:
        for topic in TOPICS:
            client.create_topic(topic)
        kinds = {ATOMIC: (server, _atomically()), PLAIN: (server, _plainly()), BARE: (bare, _barely())}
        turns: dict[str, Turn] = {}
        callers: list[Caller] = []
        for kind, (where, once) in kinds.items():
            own = runner.run(_connect(where, connections))
            callers += own
            turns[kind] = _turn(runner, own, once)
        reached = in_turns(turns, {kind: where.processor_seconds for kind, (where, _) in kinds.items()}, seconds)
        for caller in callers:
            runner.get_loop().call_soon(caller.close)
        _check(client)
    rate = reached.rate(ATOMIC)
    what = f"2 × {MESSAGES} messages, {connections} connection" + ("s" if connections > 1 else "")
    rows = [Row(f"{what}: {ATOMIC}", rate, "a second", f"≥ {target:,}", rate >= target)]
    rows += [Row(f"{what}: {kind}", reached.rate(kind), "a second") for kind in (PLAIN, BARE)]
    rows += [Row(f"{what}: {kind}: the server's processor", reached.processor_ms(kind), "ms each") for kind in kinds]
    return rows + [Row(f"{what}: {ATOMIC}: share of {kind}", reached.share(ATOMIC, kind) * 100, "%") for kind in (PLAIN, BARE)]


async def _connect(server: Server, connections: int) -> list[Caller]:
    return [await Caller.connected(server.url) for _ in range(connections)]


def _turn(runner: asyncio.Runner, callers: list[Caller], once: Callable[[Caller], Awaitable[None]]) -> Turn:
    async def until(caller: Caller, end: float) -> int:
        calls = 0
        while time.perf_counter() < end:
            await once(caller)
            calls += 1
        return calls

    async def all_of_them(seconds: float) -> int:
        end = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(until(caller, end) for caller in callers)))

    return lambda seconds: runner.run(all_of_them(seconds))


def _check(client: Client) -> None:
    """Both topics have got the same number of messages. Raises RuntimeError."""
    counts = [client.stats(topic).upcoming_offset for topic in TOPICS]
    if counts[0] != counts[1] or not counts[0]:
        raise RuntimeError(f"{counts} messages on {TOPICS}")


def _sdk_rate(seconds: int) -> Row:
    with running("oncelog") as server, Client(server.url) as client:
        for topic in TOPICS:
            client.create_topic(topic)

        def once() -> None:
            with client.atomic(group="bench") as batch:
                for at, topic in enumerate(TOPICS):
                    for payload in _messages(at).payloads:
                        batch.send(topic, payload)

        began = time.perf_counter()
        rate = repeat(once, seconds) / (time.perf_counter() - began)
        _check(client)
    return Row(f"2 × {MESSAGES} messages, 1 connection: {ATOMIC} through the SDK", rate, "a second")
