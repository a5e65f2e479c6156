"""Atomic commits over two topics beside plain publishes and the bare server."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from functools import partial

import uvloop

from benchmarks.callers import Caller, calling, connected, request
from benchmarks.measure import PAYLOADS, Row, running
from benchmarks.turns import Turn, in_turns, repeat
from oncelog import Client
from oncelog.wire.codec import encode_commit_request, encode_publish_request
from oncelog.wire.requests import CommitRequest, Part, PublishRequest

TOPICS = ("orders", "audit")
MESSAGES = 10
"""Of each commit on each topic."""
ATOMIC, PLAIN, BARE = "atomic commits", "two plain publishes", "one write of the bare server"
_PUBLISH = "/v1/namespaces/default/topics/{}/publish"


def atomic_rates(seconds: float) -> list[Row]:
    """Rates on fresh services."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = _rates(runner, 1, 250, seconds) + _rates(runner, 16, 1_200, seconds)
    return [*rows, _sdk_rate(seconds)]


# --- rates


def _messages(number: int) -> PublishRequest:
    """The messages of a commit on its topic of this number."""
    return PublishRequest(PAYLOADS[number * MESSAGES : (number + 1) * MESSAGES])


def _commit(group: str) -> CommitRequest:
    return CommitRequest(group=group, parts=[Part("default", topic, _messages(at)) for at, topic in enumerate(TOPICS)])


def atomically() -> Callable[[Caller], Awaitable[None]]:
    """A commit of so many messages on each topic, and the next one."""
    head, tail = request("/v1/atomic/{}/commit", encode_commit_request(_commit("bench")))
    numbers, run = itertools.count(), os.urandom(4).hex()

    async def once(caller: Caller) -> None:
        answer = await caller.call(b"%s%s-%d%s" % (head, run.encode(), next(numbers), tail))
        if b'"committed"' not in answer:
            raise RuntimeError(f"not committed: {answer!r}")

    return once


def _plainly() -> Callable[[Caller], Awaitable[None]]:
    bodies = [encode_publish_request(_messages(at)) for at in range(len(TOPICS))]
    requests = [b"".join(request(_PUBLISH.format(topic), body)) for topic, body in zip(TOPICS, bodies, strict=True)]

    async def once(caller: Caller) -> None:
        for each in requests:
            await caller.call(each)

    return once


def _barely() -> Callable[[Caller], Awaitable[None]]:
    write = b"".join(request("/publish", encode_publish_request(PublishRequest(PAYLOADS[: len(TOPICS) * MESSAGES]))))

    async def once(caller: Caller) -> None:
        await caller.call(write)

    return once


def _rates(runner: asyncio.Runner, connections: int, target: int, seconds: float) -> list[Row]:
    with running("oncelog") as server, running("bare") as bare, Client(server.url) as client:
        for topic in TOPICS:
            client.create_topic(topic)
        kinds = {ATOMIC: (server, atomically()), PLAIN: (server, _plainly()), BARE: (bare, _barely())}
        turns: dict[str, Turn] = {}
        callers: list[Caller] = []
        for kind, (where, once) in kinds.items():
            own = runner.run(connected(where.url, connections))
            callers += own
            turns[kind] = calling(runner, [partial(once, caller) for caller in own])
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


def _check(client: Client) -> None:
    """Both topics have got the same number of messages. Raises RuntimeError."""
    counts = [client.stats(topic).upcoming_offset for topic in TOPICS]
    if counts[0] != counts[1] or not counts[0]:
        raise RuntimeError(f"{counts} messages on {TOPICS}")


def _sdk_rate(seconds: float) -> Row:
    with running("oncelog") as server, Client(server.url) as client:
        for topic in TOPICS:
            client.create_topic(topic)

        def once() -> None:
            with client.atomic(group="bench") as batch:
                for at, topic in enumerate(TOPICS):
                    for payload in _messages(at).payloads:
                        batch.send(topic, payload)

        rate = repeat(once, seconds).rate
        _check(client)
    return Row(f"2 × {MESSAGES} messages, 1 connection: {ATOMIC} through the SDK", rate, "a second")
