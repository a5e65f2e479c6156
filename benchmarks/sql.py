"""The store on PostgreSQL beside bare inserts of the same rows into the same server, and beside LevelDB."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path

from tests.postgres import PostgresServer

from benchmarks.measure import Load, Row, oncelog_server, wrk
from oncelog import Client

BATCH = 1_000
CONNECTIONS = 8
ROUNDS = 3
_BARE = "CREATE TABLE bare (key bytea PRIMARY KEY, value bytea NOT NULL)"
_INSERT = "INSERT INTO bare (key, value) SELECT * FROM unnest(%b::bytea[], %b::bytea[])"


def sql_rates(seconds: float) -> list[Row]:
    """Batched and single publishes, each kind in turns with the others; bare: psycopg, one connection, a statement a request."""
    server = PostgresServer()
    try:
        return _batched(server, seconds) + _single(server, seconds)
    finally:
        server.remove()


def _batched(server: PostgresServer, seconds: float) -> list[Row]:
    rates: dict[str, list[float]] = {"bare": [], "postgresql": [], "leveldb": [], "sqlite": []}
    value_bytes = _value_bytes(server)
    for _ in range(ROUNDS):
        for kind, found in rates.items():
            if kind == "bare":
                found.append(BATCH / _bare(server, BATCH, value_bytes, seconds))
            else:
                found.append(_published(server, kind, CONNECTIONS, BATCH, seconds).requests_per_second * BATCH)
    best = {kind: max(found) for kind, found in rates.items()}
    share = best["postgresql"] / best["bare"]
    what = f"requests of {BATCH:,}, {CONNECTIONS} connections"
    return [
        Row(f"bare INSERT … unnest of {BATCH:,} rows, PostgreSQL", best["bare"], "rows/s"),
        *(Row(f"{what}: {kind}", best[kind], "messages/s") for kind in ("postgresql", "sqlite", "leveldb")),
        Row(f"{what}: postgresql, share of bare", share * 100, "%", "≥ 60 %", share >= 0.6),
    ]


def _single(server: PostgresServer, seconds: float) -> list[Row]:
    p50s: dict[str, list[float]] = {"bare": [], "postgresql": [], "leveldb": [], "sqlite": []}
    value_bytes = _value_bytes(server)
    for _ in range(ROUNDS):
        for kind, found in p50s.items():
            if kind == "bare":
                found.append(_bare(server, 1, value_bytes, seconds) * 1_000)
            else:
                found.append(_published(server, kind, 1, 1, seconds).p50_ms)
    best = {kind: min(found) for kind, found in p50s.items()}
    ratio = best["postgresql"] / best["bare"]
    return [
        Row("bare synced insert of one row, PostgreSQL, p50", best["bare"], "ms"),
        *(Row(f"single publishes, 1 connection: {kind} p50", best[kind], "ms") for kind in ("postgresql", "sqlite", "leveldb")),
        Row("single publishes, 1 connection: postgresql, of a bare insert", ratio, "times", "≤ 1.5", ratio <= 1.5),
    ]


def _published(server: PostgresServer, kind: str, connections: int, messages: int, seconds: float) -> Load:
    home = Path(tempfile.mkdtemp(prefix="oncelog-bench-"))
    try:
        store = server.fresh_schema() if kind == "postgresql" else f"{kind}://{home / 'data'}"
        return _load(store, connections, messages, seconds)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _load(store: str, connections: int, messages: int, seconds: float) -> Load:
    service = oncelog_server(store)
    try:
        service.start()
        Client(service.url).create_topic("bench")
        return wrk(service.url + "/v1/namespaces/default/topics/bench/publish", connections, messages, True, seconds)
    finally:
        service.end()


def _value_bytes(server: PostgresServer) -> int:
    """How long the rows of such messages are."""
    store = server.fresh_schema()
    _load(store, 1, 1, 1)  # requests of one: those of more are laid together
    table = f"{store.rpartition('%3D')[2]}.oncelog_row"
    with server.connect() as connection:
        found = connection.execute(f"SELECT avg(length(value))::int FROM {table} WHERE key BETWEEN 'M' AND 'N'").fetchone()
    assert found is not None
    return int(found[0])


def _bare(server: PostgresServer, rows: int, value_bytes: int, seconds: float) -> float:
    """The median of one synced statement that inserts so many rows, in seconds."""
    values = [os.urandom(value_bytes) for _ in range(rows)]
    spans = []
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS bare")
        connection.execute(_BARE)
        end = time.perf_counter() + seconds
        for number in count():
            keys = [b"Mdefault:bench:\0\0\0\1" + (number * rows + at).to_bytes(10, "big") for at in range(rows)]
            began = time.perf_counter()
            connection.execute(_INSERT, (keys, values))
            spans.append(time.perf_counter() - began)
            if time.perf_counter() > end:
                return statistics.median(spans)
    raise AssertionError
