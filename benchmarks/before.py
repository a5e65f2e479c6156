"""oncelog beside another version of itself, in turns: what a change has cost, or saved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvloop

from benchmarks.callers import calling, connected
from benchmarks.measure import Beside, Row, Server, raw_poll, running
from benchmarks.rivals import BATCH, OWN, READ, Aim, at_least, at_most, expect, publish, random_payloads, rate_row
from benchmarks.turns import Turn, Turns, in_turns, repeat
from oncelog import Client, Producer, Reader

BASE = "the other version"
_SHAPES = ((64, 1, at_most(0.38, "×")), (16, 1, None), (1, 1, None), (8, 10, None), (8, BATCH, None))
"""Connections, messages of a request, and what its processor time should be of the other one's."""


def base_rates(python: str, seconds: float) -> list[Row]:
    """Each piece of work on fresh services. ``python``: of an environment in which the other version is installed."""
    rows: list[Row] = []
    for connections, messages, aim in _SHAPES:
        names, payloads = [f"p{number}" for number in range(connections)], random_payloads(100, messages)
        with _both(python) as (servers, runner):
            kinds = {kind: _publishing(runner, server.url, names, payloads) for kind, server in servers.items()}
            turns = _in_turns(kinds, servers, seconds)
        what = f"requests of {messages:,} × 100 B, {connections} connection" + ("s" if connections > 1 else "")
        rows += _rows(turns, what, messages, aim)
    return rows + _reading(python, seconds)


def _publishing(runner: asyncio.Runner, url: str, names: Sequence[str], payloads: Sequence[bytes]) -> Turn:
    callers = runner.run(connected(url, len(names)))
    return calling(runner, [publish(caller, "bench", name, payloads) for caller, name in zip(callers, names, strict=True)])


def _reading(python: str, seconds: float) -> list[Row]:
    """Everything from the start."""
    payloads, rows = random_payloads(100), list[Row]()
    with _both(python) as (servers, _):
        for server in servers.values():
            with Client(server.url) as client, Producer("bench", name="p", client=client) as producer:
                for _ in range(READ // BATCH):
                    producer.send_batch(payloads)
        for what, read in {"Reader": _objects, "raw poll": raw_poll}.items():
            kinds = {kind: _repeating(read, server.url) for kind, server in servers.items()}
            turns = _in_turns(kinds, servers, seconds)
            rows += _rows(turns, f"{what} from the start", READ, None, at_least(0.95))
    return rows


def _repeating(read: Callable[[str], int], url: str) -> Turn:
    return lambda seconds: repeat(lambda: expect(READ, read(url)), seconds)


def _objects(url: str) -> int:
    with Client(url) as client, Reader("bench", client=client, timeout=0) as reader:
        return sum(1 for _ in reader)


@contextmanager
def _both(python: str) -> Iterator[tuple[dict[str, Server], asyncio.Runner]]:
    """Fresh services with a topic, by who they are."""
    with (
        running("oncelog") as own,
        running("oncelog", python) as base,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        for server in (own, base):
            with Client(server.url) as client:
                client.create_topic("bench")
        yield {OWN: own, BASE: base}, runner


def _in_turns(kinds: dict[str, Turn], servers: dict[str, Server], seconds: float) -> Turns:
    return in_turns(kinds, {kind: server.processor_seconds for kind, server in servers.items()}, seconds)


def _rows(turns: Turns, what: str, messages: int, processor: Aim | None, rate: Aim | None = None) -> Iterator[Row]:
    yield rate_row(turns, what, BASE, messages, rate)
    for figure, of, ratio, aim in (
        ("p50", turns.p50_ms, turns.times_as_long, None),
        ("processor of the service", turns.processor_ms, turns.times_as_much, processor),
    ):
        times = ratio(OWN, BASE)
        target = (aim.text, aim.met(times)) if aim else ("", None)
        yield Row(f"{what}: {figure}", of(OWN), "ms a call", *target, beside=Beside(BASE, of(BASE), times))
