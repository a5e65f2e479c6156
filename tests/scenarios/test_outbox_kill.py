"""Relays are killed and paused while sixteen writers commit and roll back: the topics equal what was committed, once each.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, func, select, text

from oncelog import Client, Outbox, Reader
from oncelog.sql.outbox.database import OutboxDatabase
from tests.model import outbox as model
from tests.model.outbox import Committed
from tests.patience import PATIENCE, until
from tests.postgres import postgres_server
from tests.world.crash import seeded
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

TOPICS = ("paid", "shipped")
NAME = "orders"
WRITERS = 16
TAKEOVER_SECONDS = 0.5


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The database of the outbox."""
    with shop(request.param, tmp_path) as made:
        yield made


@contextmanager
def shop(kind: str, tmp_path: Path) -> Iterator[Engine]:
    if kind == "sqlite":
        made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": 60})
        with made.connect() as connection:
            connection.execute(text("PRAGMA journal_mode=WAL"))
    else:
        made = create_engine(postgres_server().fresh_schema(), pool_size=WRITERS + 4)
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE orders (n VARCHAR(99))"))
    Outbox(NAME).create_tables(made)
    yield made
    made.dispose()


@pytest.mark.parametrize(
    ("kills", "relays", "with_service"),
    [
        (2, 2, False),
        pytest.param(20, 1, False, marks=pytest.mark.slow),
        pytest.param(20, 2, False, marks=pytest.mark.slow),
        pytest.param(10, 1, True, marks=pytest.mark.slow),
    ],
)
def test_kills_of_relays_lose_double_and_reorder_nothing(
    tmp_path: Path, engine: Engine, kills: int, relays: int, with_service: bool
) -> None:
    with ServiceProcess(tmp_path / "log", snapshot_messages=200) as service:
        create_topics(service.url)
        kill_relays(service.url, engine, kills, relays, service if with_service else None)


def kill_relays(url: str, engine: Engine, kills: int, relays: int, service: ServiceProcess | None = None) -> None:
    with seeded() as rng:
        running = [RelayProcess(engine, url) for _ in range(relays)]
        try:
            with writing(engine, rng) as committed:
                for relay in running:
                    relay.start()
                killed, end = 0, time.monotonic() + 2 * PATIENCE
                while killed < kills:
                    assert time.monotonic() < end, f"{killed} relays were killed at work, not {kills}"
                    at_work(engine, url)
                    time.sleep(rng.uniform(0.0, 0.3))
                    victim = rng.choice(running)
                    if service is not None:
                        service.kill()
                    victim.kill()
                    if waiting(engine) > 0:  # a kill with nothing to do proves nothing
                        killed += 1
                    if service is not None:
                        service.start()
                    victim.start()
                at_work(engine, url)
            emptied(engine)
        finally:
            for relay in running:
                relay.kill()
        check(url, engine, committed)


# --- how


def write(number: int, engine: Engine, rng: random.Random, enough: threading.Event) -> list[Committed]:
    """Begins transactions, adds messages and rows of its own business, waits, and commits or rolls back, until it is enough."""
    longest = 0.02 if engine.dialect.name == "sqlite" else 0.5  # there one waits for the other
    outbox, committed, count = Outbox(NAME), list[Committed](), 0
    while not enough.is_set():
        began, added, count = time.monotonic(), [], count + 1
        with engine.connect() as connection:
            for each in range(rng.randint(1, 4)):
                topic, payload = rng.choice(TOPICS), b"%d.%d.%d" % (number, count, each)
                outbox.add(connection, topic, payload, key=str(number))
                added.append((topic, payload))
                connection.execute(text("INSERT INTO orders VALUES (:p)"), {"p": payload.decode()})
                time.sleep(rng.choice((0.0, 0.0, rng.uniform(0, longest / 4))))
            time.sleep(rng.choice((0.0, rng.uniform(0, longest / 4), rng.uniform(0, longest))))
            if rng.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                committed.append(Committed(began, time.monotonic(), added))
        time.sleep(rng.uniform(0, 0.2))
    return committed


class RelayProcess:
    """`oncelog outbox relay` as a process."""

    def __init__(self, engine: Engine, url: str) -> None:
        database = engine.url.render_as_string(hide_password=False)
        self._command = [sys.executable, "-m", "oncelog_service", "outbox", "relay", database, "--name", NAME, "--url", url]
        self._command += ["--takeover-seconds", str(TAKEOVER_SECONDS), "--poll-seconds", "0.01", "--rows", "500"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)


@contextmanager
def writing(engine: Engine, rng: random.Random) -> Iterator[list[Committed]]:
    """Sixteen writers; on leaving they have ended, and what they have committed is in the list."""
    committed, enough = list[Committed](), threading.Event()
    with ThreadPoolExecutor(WRITERS) as threads:
        seeds = [random.Random(rng.getrandbits(32)) for _ in range(WRITERS)]
        writers = [threads.submit(write, number, engine, seed, enough) for number, seed in enumerate(seeds)]
        try:
            yield committed
        finally:
            enough.set()
            for writer in writers:
                committed += writer.result(PATIENCE)


def check(url: str, engine: Engine, committed: list[Committed]) -> None:
    for topic in TOPICS:
        with Reader(topic, url=url, timeout=0) as reader:
            model.check(committed, topic, [(message.sequence_id, message.payload) for message in reader])
    with engine.connect() as connection:
        kept = connection.scalar(text("SELECT count(*) FROM orders"))
    assert kept == sum(len(transaction.messages) for transaction in committed)
    lease = OutboxDatabase(Outbox(NAME), engine).seen()
    assert lease is not None
    assert lease.plan == ()


def waiting(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(Outbox(NAME).table)) or 0


def create_topics(url: str) -> None:
    with Client(url) as client:
        for topic in TOPICS:
            client.create_topic(topic)


def emptied(engine: Engine) -> None:
    """Return when everything is published."""
    until(lambda: waiting(engine) == 0, "the outbox is empty", every=0.05)


def at_work(engine: Engine, url: str) -> None:
    """Return when a relay has caught up with the writers and goes on publishing: there rows appear behind higher ones."""
    until(lambda: waiting(engine) < 100, "it catches up")
    with Client(url) as client:

        def count() -> int:
            return sum(client.stats(topic).upcoming_offset for topic in TOPICS)

        before = count()
        until(lambda: count() >= before + 100, "the topics grow")
