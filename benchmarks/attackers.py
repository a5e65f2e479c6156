"""The attacks of attacks.py, each a process of its own: which begins when it is told to, and ends so, or after a while.

They come from other loopback addresses than the victim.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple
from urllib.parse import urlsplit

import uvloop

from oncelog.wire.avro_parts import encode_long, encode_string
from oncelog.wire.codec import encode_commit_request, encode_publish_request
from oncelog.wire.media import JSON, ONCELOG_AVRO
from oncelog.wire.requests import CommitRequest, Part, PublishRequest

NAMESPACE = "/v1/namespaces/loud"
LOUD = NAMESPACE + "/topics/t0/publish"
AUDIENCE = "oncelog"
"""Whom the forged tokens are meant for."""
KEY = "a"
"""The id of the key that they say they are signed with."""
_LIMIT = 2**24
"""Of an answer's head, or of one that comes in pieces."""


class Line:
    """A connection: requests in, the statuses of their answers out."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], answered: Counter[str]) -> None:
        self._reader, self._writer = streams
        self._answered = answered
        self.body = b""
        """Of the last answer."""

    async def say(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> int:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        at = head.find(b"content-length:") + len(b"content-length:")
        if at >= len(b"content-length:"):
            self.body = await self._reader.readexactly(int(head[at : head.index(b"\r\n", at)]))
        else:
            self.body = await self._reader.readuntil(b"\r\n0\r\n\r\n")
        self._answered[head[9:12].decode()] += 1
        return int(head[9:12])

    async def ask(self, data: bytes) -> int:
        await self.say(data)
        return await self.answer()

    def close(self) -> None:
        self._writer.close()


class Attacker:
    """Where to, as whom, and what was answered."""

    def __init__(self, url: str, token: str | None, answered: Counter[str]) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self._host, self._port = address.hostname, address.port
        self._token, self._answered = token, answered

    @asynccontextmanager
    async def line(self, source: int = 2) -> AsyncIterator[Line]:
        """``source``: the last byte of the loopback address that it comes from."""
        local = (f"127.0.0.{source}", 0)
        line = Line(await asyncio.open_connection(self._host, self._port, limit=_LIMIT, local_addr=local), self._answered)
        try:
            yield line
        finally:
            line.close()

    async def always(self, connections: int, attack: Callable[[Line, int], Awaitable[object]], sources: int = 1) -> None:
        """On each of so many connections again and again; one that ends is made anew."""

        async def one(number: int) -> None:
            while True:
                try:
                    async with self.line(2 + number % sources) as line:
                        while True:
                            await attack(line, number)
                except (OSError, asyncio.IncompleteReadError):
                    self._answered["ended"] += 1

        await asyncio.gather(*map(one, range(connections)))

    def request(self, path: str, body: bytes = b"", media: str = JSON, *, method: str = "POST", token: str = "") -> bytes:
        bearer = token or self._token
        headers = "" if bearer is None else f"authorization: Bearer {bearer}\r\n"
        if method != "GET":
            headers += f"content-type: {media}\r\ncontent-length: {len(body)}\r\n"
        return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n".encode() + body

    def asking(self, path: str, value: object) -> bytes:
        return self.request(path, json.dumps(value).encode())


class Attack(NamedTuple):
    """One of them, and what it needs."""

    run: Callable[[Attacker], Awaitable[None]]
    topics: int = 1
    """In the attacker's namespace."""
    grants: Sequence[str] = ("write:loud/*", "read:loud/*")


# --- before the verdict


async def _refusals(attacker: Attacker) -> None:
    requests = 512 * b"GET /x HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"

    async def burst(line: Line, _: int) -> None:
        await line.say(requests)
        for _ in range(512):
            await line.answer()

    await attacker.always(500, burst)


async def _headers(attacker: Attacker) -> None:
    head = b"GET /x HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"a:\r\n" * 15_000 + b"\r\n"
    await attacker.always(64, lambda line, _: line.ask(head))


async def _half_sent(attacker: Attacker) -> None:
    """As large as a head may be, and never whole: the service closes it when its time is over."""
    head = b"GET /x HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"".join(b"a%d: %b\r\n" % (at, b"x" * 640) for at in range(95))

    await attacker.always(1_000, lambda line, _: line.ask(head))


async def _forged(attacker: Attacker) -> None:
    """Each another one, from 60 addresses."""
    claims = {"iss": "bench", "aud": AUDIENCE, "exp": time.time() + 3_600, "oncelog_grants": ["admin"]}
    numbers = count()

    def token() -> str:
        parts = {"alg": "ES256", "kid": KEY}, {**claims, "sub": f"forger{next(numbers)}"}
        encoded = [json.dumps(part).encode() for part in parts] + [b"\x01" + os.urandom(31) + b"\x01" + os.urandom(31)]
        return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in encoded)

    async def ask(line: Line, _: int) -> None:
        await line.ask(attacker.request("/v1/namespaces", method="GET", token=token()))

    await attacker.always(60, ask, sources=60)


async def _numbers(attacker: Attacker) -> None:
    """One of seven million digits, and as many as a body holds of as many digits as are read."""
    one = b'{"messages": ["x"], "sequenceIds": [' + b"1" * 7_000_000 + b"]}"
    many = b'{"messages": ["x"], "sequenceIds": [' + b",".join([b"1" * 40] * 190_000) + b"]}"
    requests = [attacker.request(LOUD, body) for body in (one, many)]
    await attacker.always(4, lambda line, number: line.ask(requests[number % 2]))


async def _names(attacker: Attacker) -> None:
    """Of seven million letters, wherever a name is read."""
    name, run, numbers = "n" * 7_000_000, os.urandom(4).hex(), count()
    message = {"messages": ["x"]}
    wherever: Sequence[Callable[[str], tuple[str, object]]] = (
        lambda odd: (f"{NAMESPACE}/offsets", {"topics": {odd: {}}}),
        lambda odd: (LOUD, {**message, "producer": odd, "sequenceIds": [0]}),
        lambda odd: (f"{NAMESPACE}/topics/t0/producers", {"name": odd}),
        lambda odd: (f"/v1/atomic/{run}{next(numbers)}/commit", _commit("g", odd, message)),
        lambda odd: (f"/v1/atomic/{run}{next(numbers)}/commit", _commit(odd, "t0", message)),
    )

    async def ask(line: Line, number: int) -> None:
        await line.ask(attacker.asking(*wherever[number](f"{next(numbers)}{name}")))

    await attacker.always(len(wherever), ask)


def _commit(group: str, topic: str, request: Mapping[str, object]) -> dict[str, object]:
    return {"group": group, "parts": [{"namespace": "loud", "topic": topic, "request": request}]}


# --- behind it


async def _tiny(attacker: Attacker) -> None:
    body = attacker.request(LOUD, encode_publish_request(PublishRequest([b"x"] * 10_000)), ONCELOG_AVRO)
    await attacker.always(4, lambda line, _: line.ask(body))


async def _again(attacker: Attacker) -> None:
    """The same ones of the same producer: each is looked for."""
    plain = encode_publish_request(PublishRequest([b"x"] * 10_000))[4:]
    heads = [b"\x00\x02" + encode_string(f"p{number}") + b"\x00\x04" + encode_long(0) for number in range(4)]
    named = [attacker.request(LOUD, head + plain, ONCELOG_AVRO) for head in heads]
    await attacker.always(4, lambda line, number: line.ask(named[number]))


async def _atomic(attacker: Attacker) -> None:
    """As many messages as one may carry over so many topics: 12,500, of which each topic counts as 100."""
    messages = PublishRequest([b"x"] * 95)
    body = encode_commit_request(CommitRequest("g", [Part("loud", f"t{number}", messages) for number in range(64)]))
    run, numbers = os.urandom(4).hex(), count()

    async def ask(line: Line, _: int) -> None:
        await line.ask(attacker.request(f"/v1/atomic/{run}-{next(numbers)}/commit", body, ONCELOG_AVRO))

    await attacker.always(4, ask)


async def _offsets(attacker: Attacker) -> None:
    """A hundred wait for more on a thousand topics, and one message on one of these answers all of them."""
    topics = {f"t{number}": {} for number in range(1_000)}

    async def wait(line: Line, _: int) -> None:
        after = json.loads(line.body) if line.body else None
        asked = topics if after is None else {name: {"after": each["stable"]} for name, each in after.items()}
        if await line.ask(attacker.asking(f"{NAMESPACE}/offsets", {"topics": asked, "wait": 30_000})) != 200:
            line.body = b""
            await asyncio.sleep(0.1)

    async def publish(line: Line, _: int) -> None:
        await line.ask(attacker.asking(LOUD, {"messages": ["x"]}))
        await asyncio.sleep(0.05)

    await asyncio.gather(attacker.always(100, wait), attacker.always(1, publish))


async def _lists(attacker: Attacker) -> None:
    paths = f"{NAMESPACE}/topics", f"{NAMESPACE}/stats", "/v1/subscriptions", "/v1/held"
    requests = [attacker.request(path, method="GET") for path in paths]
    await attacker.always(16, lambda line, number: line.ask(requests[number % len(requests)]))


async def _begun(attacker: Attacker, line: Line, kind: str = "short") -> int | None:
    """The write pointer of a transaction; None: it was refused."""
    status = await line.ask(attacker.asking("/v1/transactions", {"type": kind}))
    return int(json.loads(line.body)["writePointer"]) if status == 200 else None


async def _change_sets(attacker: Attacker) -> None:
    """As large as one may be, kept since an older transaction is in progress."""
    numbers = count()

    async def commit(line: Line, _: int) -> None:
        if (pointer := await _begun(attacker, line)) is None:
            return
        changes = {"changes": [f"{next(numbers)}-{'k' * 300}" for _ in range(20_000)]}
        await line.ask(attacker.asking(f"/v1/transactions/{pointer}/can-commit", changes))
        await line.ask(attacker.asking(f"/v1/transactions/{pointer}/commit", {}))

    async with attacker.line() as older:
        await _begun(attacker, older)
        await attacker.always(4, commit)


async def _invalid(attacker: Attacker) -> None:
    async def invalidate(line: Line, _: int) -> None:
        if (pointer := await _begun(attacker, line)) is not None:
            await line.ask(attacker.asking(f"/v1/transactions/{pointer}/invalidate", {}))

    await attacker.always(16, invalidate)


async def _checkpoints(attacker: Attacker) -> None:
    async def checkpoint(line: Line, _: int) -> None:
        if (pointer := await _begun(attacker, line)) is None:
            return
        while await line.ask(attacker.asking(f"/v1/transactions/{pointer}/checkpoint", {})) == 200:
            pass
        await line.ask(attacker.asking(f"/v1/transactions/{pointer}/abort", {}))

    await attacker.always(16, checkpoint)


ATTACKS: Mapping[str, Attack] = {
    "500 connections with 512 refusals behind one another each": Attack(_refusals),
    "heads with 15,000 headers": Attack(_headers),
    "1,000 half-sent heads": Attack(_half_sent),
    "forged signed tokens": Attack(_forged),
    "JSON of long numbers": Attack(_numbers),
    "names of 7 MB": Attack(_names),
    "requests of 10,000 tiny messages": Attack(_tiny),
    "requests of 10,000 repeats": Attack(_again),
    "atomic commits over 64 topics": Attack(_atomic, topics=64),
    "offsets of 1,000 topics by 100 who wait": Attack(_offsets, topics=1_000),
    "lists at 10,000 topics by one who sees few": Attack(
        _lists, topics=10_000, grants=("read:loud/t77*", *(f"write:other/t*{number}" for number in range(20)))
    ),
    "change sets": Attack(_change_sets),
    "invalid transactions": Attack(_invalid),
    "checkpoints": Attack(_checkpoints),
}


# --- the process


async def loops(share: float) -> None:
    """Nothing but an equally busy process: so much of each 10 ms."""
    while True:
        until = time.perf_counter() + share * 0.01
        while time.perf_counter() < until:
            pass
        await asyncio.sleep((1 - share) * 0.01)


async def _main(work: Callable[[Attacker], Awaitable[None]], url: str, token: str) -> None:
    """A line of stdin begins it, each further one is answered with what was answered until then; the end of stdin ends it."""
    answered: Counter[str] = Counter()
    told = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    print("ready", flush=True)
    await told.readline()
    attack = asyncio.ensure_future(work(Attacker(url, token, answered)))
    while await told.readline():
        if attack.done():
            attack.result()
        print(json.dumps(answered), flush=True)


def main(what: str, url: str, token: str, seconds: str) -> None:
    """``what``: of ATTACKS, or the share of a processor that is looped away. ``seconds``: its longest life."""
    signal.alarm(int(seconds))
    work = ATTACKS[what].run if what in ATTACKS else lambda _: loops(float(what))
    uvloop.run(_main(work, url, token))


if __name__ == "__main__":
    main(*sys.argv[1:])
