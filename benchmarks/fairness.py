"""What a flood on one topic costs another one: the slowest single publishes to a quiet topic, alone and beside it, in turns."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from benchmarks.callers import Caller, request
from benchmarks.measure import PAYLOADS, Row, Server, oncelog_server
from oncelog import Client
from oncelog.wire.codec import encode_publish_request
from oncelog.wire.requests import PublishRequest

CONNECTIONS = 8
TARGET = 3.0
TARGET_999 = 6.0
_FLOODS: Mapping[str, tuple[int, int]] = {
    "requests of 1 MB": (1_000, 1_000),
    "batches of 100": (100, 100),
}
"""What → messages of a request, bytes of each."""
_LARGE = "requests of 1 MB"
_TURNS, _WITHOUT = "oncelog", "without turns"
_UNBOUNDED = (
    "import runpy; from oncelog_service.bounds.turns import Turns; Turns.__init__.__defaults__ = (1 << 60, 1 << 60); "
    "runpy.run_module('oncelog_service', run_name='__main__')"
)
_PAUSE_SECONDS = 0.002
"""Between two publishes to the quiet topic, at most: so that they do not follow the flood's beat."""
_SETTLES_SECONDS = 0.5


@contextmanager
def _services() -> Iterator[dict[str, Server]]:
    home = Path(tempfile.mkdtemp(prefix="oncelog-bench-"))
    servers = {kind: oncelog_server(f"leveldb://{home / str(number)}") for number, kind in enumerate((_TURNS, _WITHOUT))}
    command = servers[_WITHOUT]._command
    command[1:3] = ["-c", _UNBOUNDED]
    try:
        for server in servers.values():
            server.start()
            with Client(server.url) as client:
                client.create_topic("quiet")
                client.create_topic("loud")
        yield servers
    finally:
        for server in servers.values():
            server.end()
        shutil.rmtree(home, ignore_errors=True)


class _Flood:
    """A process that publishes over several connections, each again as soon as it is answered."""

    def __init__(self, url: str, messages: int, size: int) -> None:
        command = [sys.executable, "-m", "benchmarks.fairness", url, str(messages), str(size)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def answered(self) -> int:
        """How many requests have been."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def _flooding(url: str, what: str) -> Iterator[_Flood]:
    flood = _Flood(url, *_FLOODS[what])
    time.sleep(_SETTLES_SECONDS)
    try:
        yield flood
    finally:
        flood.end()
        time.sleep(_SETTLES_SECONDS)


def fairness_rates(seconds: float) -> list[Row]:
    """Everything in turns of ``seconds`` / 3, three rounds in another order each."""
    spans: dict[str, list[list[float]]] = {}
    rates: dict[str, list[float]] = {}
    with _services() as servers:
        url, other = servers[_TURNS].url, servers[_WITHOUT].url
        beside = {
            "alone": (url, None, ""),
            **{f"beside {what}": (url, url, what) for what in _FLOODS},
            f"beside {_LARGE} to another service on the machine": (url, other, _LARGE),
            f"{_WITHOUT}: beside {_LARGE}": (other, other, _LARGE),
        }
        kinds = [*beside, *servers]
        for _ in range(3):
            for kind in kinds:
                if kind in beside:
                    quiet, loud, what = beside[kind]
                    spans.setdefault(kind, []).append(_quiet_beside(quiet, loud, what, seconds / 3))
                else:
                    rates.setdefault(kind, []).append(_rate_alone(servers[kind].url, seconds / 3))
            kinds.append(kinds.pop(0))
    return [*_rows(spans), *_rate_rows(rates)]


def _rows(spans: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[Row]:
    alone = [_p99_ms(each) for each in spans["alone"]]
    for kind, turns in spans.items():
        p99 = [_p99_ms(each) for each in turns]
        yield Row(f"single publishes to a quiet topic, {kind}: p50", statistics.median(map(_p50_ms, turns)), "ms")
        yield Row(f"single publishes to a quiet topic, {kind}: p99", statistics.median(p99), "ms")
        if kind != "alone":
            times = statistics.median(p99) / statistics.median(alone)
            own = kind.removeprefix("beside ") in _FLOODS
            target = (f"≤ {TARGET:.0f}", times <= TARGET) if own else ("", None)
            yield Row(f"single publishes to a quiet topic, {kind}: p99, of alone", times, "×", *target)
            times = _p999_ms(turns) / _p999_ms(spans["alone"])
            target = (f"≤ {TARGET_999:.0f}", times <= TARGET_999) if own else ("", None)
            yield Row(f"single publishes to a quiet topic, {kind}: p99.9, of alone", times, "×", *target)


def _rate_rows(rates: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    for kind, found in rates.items():
        yield Row(f"{_LARGE}, {CONNECTIONS} connections: {kind}", statistics.median(found), "MB/s")
    share = statistics.median(one / other for one, other in zip(rates[_TURNS], rates[_WITHOUT], strict=True))
    yield Row(f"{_LARGE}, {CONNECTIONS} connections: share of without turns", share * 100, "%", "≥ 95 %", share >= 0.95)


def _p50_ms(spans: Sequence[float]) -> float:
    return statistics.median(spans) * 1000


def _p99_ms(spans: Sequence[float]) -> float:
    return sorted(spans)[len(spans) * 99 // 100] * 1000


def _p999_ms(turns: Sequence[Sequence[float]]) -> float:
    """Of all turns together: one has too few."""
    spans = sorted(span for turn in turns for span in turn)
    return spans[len(spans) * 999 // 1000] * 1000


def _quiet_beside(quiet: str, loud: str | None, what: str, seconds: float) -> list[float]:
    if loud is None:
        return asyncio.run(_quiet(quiet, seconds))
    with _flooding(loud, what):
        return asyncio.run(_quiet(quiet, seconds))


async def _quiet(url: str, seconds: float) -> list[float]:
    """Seconds that each publish took."""
    head, tail = request("/v1/namespaces/default/topics/quiet/publish", encode_publish_request(PublishRequest(PAYLOADS[:1])))
    caller, pause, spans = await Caller.connected(url), Random(1), []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await caller.call(head + tail)
        spans.append(time.perf_counter() - began)
        await asyncio.sleep(pause.random() * _PAUSE_SECONDS)
    caller.close()
    return spans


def _rate_alone(url: str, seconds: float) -> float:
    messages, size = _FLOODS[_LARGE]
    with _flooding(url, _LARGE) as flood:
        before, began = flood.answered(), time.perf_counter()
        time.sleep(seconds)
        return (flood.answered() - before) * messages * size / (time.perf_counter() - began) / 1e6


async def _flood(url: str, messages: int, size: int) -> None:
    """Floods until killed; answers each line with how many requests were answered."""
    body = encode_publish_request(PublishRequest([os.urandom(size) for _ in range(messages)]))
    head, tail = request("/v1/namespaces/default/topics/loud/publish", body)
    answered = 0

    async def one(caller: Caller) -> None:
        nonlocal answered
        while True:
            await caller.call(head + tail)
            answered += 1

    flooding = [asyncio.ensure_future(one(await Caller.connected(url))) for _ in range(CONNECTIONS)]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("up", flush=True)
    while await reader.readline() and not any(each.done() for each in flooding):
        print(answered, flush=True)


if __name__ == "__main__":
    asyncio.run(_flood(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
