"""A store in this process beside a service of its own: single publishes of a named producer, in turns; how soon one begins."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

from benchmarks.measure import PAYLOADS, Row, oncelog_server
from benchmarks.turns import TURN_SECONDS
from oncelog import Client, Producer
from oncelog_service.engine import Engine

_STORES = ("memory://", "leveldb://{}")
_BEGUN = 20
_START_MS = 50


def engine_rates(seconds: float) -> list[Row]:
    """The median of a publish, and of a start with everything loaded."""
    rows = []
    for store in _STORES:
        home = Path(tempfile.mkdtemp(prefix="oncelog-bench-"))
        try:
            rows += _publishes(store, home, seconds)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    return [*rows, _starts()]


def _publishes(store: str, home: Path, seconds: float) -> list[Row]:
    name = store.partition(":")[0]
    with ExitStack() as stack:
        server = oncelog_server(store.format(home / "served"))
        stack.callback(server.end)
        server.start()
        producers = {}
        for kind, url in (("a service", server.url), ("an engine", store.format(home / "own"))):
            client = stack.enter_context(Client(url))
            client.create_topic("bench")
            producers[kind] = stack.enter_context(Producer("bench", name="bench", client=client))
        spans: dict[str, list[float]] = {kind: [] for kind in producers}
        payloads = cycle(PAYLOADS)
        for _ in range(max(1, round(seconds / TURN_SECONDS))):
            for kind, producer in producers.items():
                ends = time.perf_counter() + TURN_SECONDS
                while (began := time.perf_counter()) < ends:
                    producer.send(next(payloads))
                    spans[kind].append(time.perf_counter() - began)
    served, own = (statistics.median(spans[kind]) * 1e6 for kind in ("a service", "an engine"))
    return [
        Row(f"one publish, {name}, a service over HTTP", served, "µs"),
        Row(f"one publish, {name}, an engine in this process", own, "µs", "no slower than the service", own <= served),
    ]


def _starts() -> Row:
    spans = []
    for _ in range(_BEGUN):
        began = time.perf_counter()
        with Engine():
            spans.append(time.perf_counter() - began)
    median = statistics.median(spans) * 1e3
    return Row("an engine begins, in memory", median, "ms", f"below {_START_MS}", median < _START_MS)
