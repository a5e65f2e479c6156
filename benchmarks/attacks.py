"""What attacks cost a victim, who publishes small messages to a quiet topic.

In turns it is alone, beside the attack, and beside a process that only loops, as busy as the attacker: with two cores, who stands
beside an attacker waits for a core, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

import requests
import uvloop
from tests.patience import until

from benchmarks.access import locked
from benchmarks.attackers import ATTACKS, NAMESPACE, Attack, Attacker
from benchmarks.measure import PAYLOADS, Beside, Row, Server, processor_seconds
from oncelog import Client
from oncelog.errors import Unauthorized
from oncelog.wire.codec import encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest

TARGET = 3.0
"""p99 beside an attack, of alone."""
ROUNDS = 3
_ALONE, _ATTACKED = "alone", "attacked"
_FLOOR = f"a loop that takes as much of the {os.cpu_count()} cores as the attacker"
_SENDERS, _PAUSE_SECONDS = 8, 0.04
"""Of the victim: each publishes when its time has come, however long the one before took, and counts from then on: an answer that
comes late is as late for who would have asked meanwhile."""
_GIVEN_UP_SECONDS = 10.0
"""What is not answered by then, or is refused, took so long; and so does what follows where the connection is closed."""
_SETTLES_SECONDS, _SETTLED_SECONDS, _UNSETTLED_SECONDS = 0.5, 0.1, 60.0
"""After a turn so long a pause, until the service answers at once again, or for so long."""
_AT_A_TIME = 32
"""Topics that are made."""
_LIFE_SECONDS = 30
"""Of an attacker beyond its turn, were this process to go."""


class _Turn(NamedTuple):
    """Of the victim, and what others used."""

    spans: Sequence[float]
    seconds: float
    """Until the last one was answered."""
    service: float
    """Of a core."""
    attacker: float


def attack_rates(seconds: float, chosen: Sequence[str] = ()) -> list[Row]:
    """A fresh service for each attack; everything in turns of ``seconds`` / 3."""
    return [row for what in chosen or ATTACKS for row in _attacked(what, ATTACKS[what], seconds / ROUNDS)]


def _attacked(what: str, attack: Attack, seconds: float) -> Iterator[Row]:
    with _service(attack) as (server, victim, attacker):
        turns: dict[str, list[_Turn]] = {_ALONE: [], _ATTACKED: [], _FLOOR: []}
        answered: Counter[str] = Counter()
        kinds, before = list(turns), server.resident_mb()
        _alone(server, victim, seconds)
        for _ in range(ROUNDS):
            for kind in kinds:
                if kind == _ALONE:
                    turn = _alone(server, victim, seconds)
                elif kind == _ATTACKED:
                    turn = _beside(server, victim, what, attacker, seconds, answered)
                else:
                    share = min(1.0, turns[_ATTACKED][-1].attacker)
                    turn = _beside(server, victim, str(share), attacker, seconds, Counter())
                turns[kind].append(turn)
                _settle(server)
            kinds.append(kinds.pop(0))
        after, peak = server.resident_mb(), server.resident_mb("VmHWM")
    spans = {kind: [span * 1000 for turn in each for span in turn.spans] for kind, each in turns.items()}
    yield from _latencies(what, spans)
    yield Row(f"{what}: the service's memory", after, "MB", beside=Beside("before", before, after / before))
    yield Row(f"{what}: the service's memory at most", peak, "MB", beside=Beside("before", before, peak / before))
    service, used = (statistics.median(each) * 100 for each in zip(*(turn[2:] for turn in turns[_ATTACKED]), strict=True))
    yield Row(f"{what}: processor of the service", service, "% of a core", beside=Beside("the attacker", used, service / used))
    said = ", ".join(f"{number:,} × {status}" for status, number in sorted(answered.items()))
    took = sum(turn.seconds for turn in turns[_ATTACKED])
    yield Row(f"{what}: answered: {said or 'none'}", answered.total() / took, "a second")


def _latencies(what: str, spans: dict[str, list[float]]) -> Iterator[Row]:
    alone, attacked, floor = spans[_ALONE], spans[_ATTACKED], spans[_FLOOR]
    kinds: dict[str, Callable[[Sequence[float]], float]] = {"p50": statistics.median, "p99": _p99, "longest": max}
    for name, of in kinds.items():
        value, times = of(attacked), of(attacked) / of(alone)
        aim = (f"≤ {TARGET:.0f} ×", times <= TARGET) if name == "p99" else ("", None)
        yield Row(f"a publish beside {what}: {name}", value, "ms", *aim, beside=Beside(_ALONE, of(alone), times))
        yield Row(f"a publish beside {what}: {name}", value, "ms", beside=Beside(_FLOOR, of(floor), value / of(floor)))


def _p99(spans: Sequence[float]) -> float:
    return sorted(spans)[len(spans) * 99 // 100]


# --- who is there


@contextmanager
def _service(attack: Attack) -> Iterator[tuple[Server, str, str]]:
    """A fresh one that knows everybody, with the victim's topic and the attacker's; the tokens of both."""
    with locked() as (server, sign):
        admin = sign("admin", ["admin"])
        with Client(server.url, token=admin) as client:
            until(lambda: client.namespaces() is not None, "its keys are read", despite=(Unauthorized,))
            client.create_topic("quiet")
            tokens = [
                client.create_token(name, grants).secret
                for name, grants in (("victim", ["write:default/quiet"]), ("attacker", attack.grants))
            ]
        asyncio.run(_make_topics(Attacker(server.url, admin, Counter()), attack.topics))
        yield server, *tokens


async def _make_topics(admin: Attacker, topics: int) -> None:
    async def some(first: int) -> None:
        async with admin.line() as line:
            for number in range(first, topics, _AT_A_TIME):
                status = await line.ask(admin.request(f"{NAMESPACE}/topics/t{number}", method="PUT"))
                if status != 200:
                    raise RuntimeError(f"{status} {line.body!r}")

    await asyncio.gather(*map(some, range(min(topics, _AT_A_TIME))))


def _alone(server: Server, token: str, seconds: float) -> _Turn:
    used, began = server.processor_seconds(), time.perf_counter()
    spans = uvloop.run(_publishing(server.url, token, seconds))
    took = time.perf_counter() - began
    return _Turn(spans, took, (server.processor_seconds() - used) / took, 0.0)


def _beside(server: Server, victim: str, what: str, attacker: str, seconds: float, answered: Counter[str]) -> _Turn:
    """``what`` it is beside of: one of ATTACKS, or the share of a processor that is looped away."""
    life = str(round(seconds + _GIVEN_UP_SECONDS + _LIFE_SECONDS))
    command = [sys.executable, "-m", "benchmarks.attackers", what, server.url, attacker, life]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            process.stdin.write(b"go\n")
            process.stdin.flush()
            used = processor_seconds(process.pid)
            turn = _alone(server, victim, seconds)
            share = (processor_seconds(process.pid) - used) / turn.seconds
            process.stdin.write(b"and?\n")
            process.stdin.flush()
            if not (said := process.stdout.readline()):
                raise RuntimeError(f"the attack has ended by itself: {what}")
            answered.update(json.loads(said))
        finally:
            process.kill()
    return turn._replace(attacker=share)


def _settle(server: Server) -> None:
    began = asked = time.perf_counter()
    while asked < began + _UNSETTLED_SECONDS:
        time.sleep(_SETTLES_SECONDS)
        asked = time.perf_counter()
        requests.get(server.url + "/livez", timeout=_UNSETTLED_SECONDS)
        if time.perf_counter() < asked + _SETTLED_SECONDS:
            return


async def _publishing(url: str, token: str, seconds: float) -> list[float]:
    """Seconds from when each publish was to be sent until it was answered."""
    victim, random, spans = Attacker(url, token, Counter()), Random(1), list[float]()
    body = encode_publish_request(PublishRequest(PAYLOADS[:1]))
    request = victim.request("/v1/namespaces/default/topics/quiet/publish", body, ONCELOG_AVRO)
    began = time.perf_counter()
    end, given_up = began + seconds, asyncio.get_running_loop().time() + seconds + _GIVEN_UP_SECONDS

    async def send(due: float) -> None:
        try:
            async with asyncio.timeout_at(given_up):
                async with victim.line(1) as line:
                    while due < end:
                        await asyncio.sleep(due - time.perf_counter())
                        status = await line.ask(request)
                        spans.append(time.perf_counter() - due if status == 200 else _GIVEN_UP_SECONDS)
                        due += _PAUSE_SECONDS * (0.5 + random.random())
        except (OSError, asyncio.IncompleteReadError):
            while due < end:
                spans.append(_GIVEN_UP_SECONDS)
                due += _PAUSE_SECONDS

    await asyncio.gather(*(send(began + number * _PAUSE_SECONDS / _SENDERS) for number in range(_SENDERS)))
    return spans
