"""Relays are killed and paused while sixteen writers commit and roll back: the topics equal what was committed, once each.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, func, select, text

from oncelog import Client, Message, Outbox, OutboxRelay, Reader
from oncelog.sql.outbox_lease import OutboxDatabase
from tests.patience import PATIENCE, until
from tests.postgres import postgres_server
from tests.scenarios.outbox_relay import POINTS
from tests.scenarios.outbox_writers import Writer, check_topics
from tests.scenarios.seed import seeded
from tests.support import ServiceProcess, running_service

TOPICS = ("paid", "shipped")
NAME = "orders"
WRITERS = 16
TAKEOVER_SECONDS = 0.5


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a service with the topics."""
    with running_service(f"leveldb://{tmp_path / 'log'}") as service:
        create_topics(service.url)
        yield service.url


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The database of the outbox."""
    with shop(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def postgresql(tmp_path: Path) -> Iterator[Engine]:
    with shop("postgresql", tmp_path) as made:
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


# --- killed at a chosen moment


@pytest.mark.parametrize("point", POINTS)
def test_a_relay_that_dies_at_the_worst_moment_leaves_each_row_to_be_published_once(url: str, engine: Engine, point: str) -> None:
    outbox = Outbox(NAME)
    with engine.begin() as connection:
        for number in range(20):
            outbox.add(connection, TOPICS[0], b"%d" % number)
    database = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "tests.scenarios.outbox_relay", database, url, NAME, point]
    died = subprocess.run(command, cwd=Path(__file__).parents[2], timeout=PATIENCE, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert 0 < waiting(engine) <= 20, "it is to die before it is done"
    with engine.begin() as connection:
        outbox.add(connection, TOPICS[0], b"20")
    with Client(url) as client:
        OutboxRelay(outbox, engine, client=client, takeover_seconds=TAKEOVER_SECONDS).run_once()
    assert [message.payload for message in log_of(url, TOPICS[0])] == [b"%d" % number for number in range(21)]
    assert waiting(engine) == 0


# --- killed at random


def test_kills_of_the_relay_lose_double_and_reorder_nothing(url: str, postgresql: Engine) -> None:
    kill_relays(url, postgresql, kills=3, relays=1)


def test_the_relay_that_stands_by_goes_on_when_the_other_is_killed(url: str, postgresql: Engine) -> None:
    kill_relays(url, postgresql, kills=2, relays=2)


@pytest.mark.slow
@pytest.mark.parametrize("relays", [1, 2])
def test_twenty_kills_of_relays_lose_double_and_reorder_nothing(url: str, engine: Engine, relays: int) -> None:
    kill_relays(url, engine, kills=20, relays=relays)


@pytest.mark.slow
def test_kills_of_relay_and_service_together_lose_double_and_reorder_nothing(tmp_path: Path, engine: Engine) -> None:
    with ServiceProcess(tmp_path / "log", snapshot_messages=200) as service:
        create_topics(service.url)
        kill_relays(service.url, engine, kills=10, relays=1, service=service)


def kill_relays(url: str, engine: Engine, kills: int, relays: int, service: ServiceProcess | None = None) -> None:
    with seeded() as rng:
        running = [RelayProcess(engine, url) for _ in range(relays)]
        try:
            with writing(engine, rng) as writers:
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
        check(url, engine, writers)


def test_a_paused_relay_that_awakes_after_it_was_followed_changes_nothing(url: str, postgresql: Engine) -> None:
    engine = postgresql
    with seeded() as rng:
        first, second = RelayProcess(engine, url), RelayProcess(engine, url)
        try:
            with writing(engine, rng) as writers:
                first.start()
                until(lambda: first.state == "relaying", "the first one relays")
                second.start()
                until(lambda: second.state == "standby", "the second one stands by")
                for active, other in ((first, second), (second, first)):
                    at_work(engine, url)
                    time.sleep(rng.uniform(0.0, 0.05))
                    active.send(signal.SIGSTOP)
                    until(lambda other=other: other.state == "relaying", "the other one follows")  # type: ignore[misc]
                    at_work(engine, url)
                    active.send(signal.SIGCONT)
                    until(lambda active=active: active.state == "standby", "the paused one notices")  # type: ignore[misc]
            emptied(engine)
        finally:
            first.kill()
            second.kill()
        check(url, engine, writers)


# --- how


class RelayProcess:
    """`oncelog outbox relay` as a process, and what it says."""

    def __init__(self, engine: Engine, url: str) -> None:
        database = engine.url.render_as_string(hide_password=False)
        self._command = [sys.executable, "-m", "oncelog_service", "outbox", "relay", database, "--name", NAME, "--url", url]
        self._command += ["--takeover-seconds", str(TAKEOVER_SECONDS), "--poll-seconds", "0.01", "--rows", "500", "--json"]
        self._process: subprocess.Popen[bytes] | None = None
        self.state: str | None = None
        """What it said last."""

    def start(self) -> None:
        self.state = None
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if process is self._process:
                self.state = json.loads(line)["state"]


@contextmanager
def writing(engine: Engine, rng: random.Random) -> Iterator[list[Writer]]:
    """Sixteen writers; on leaving they have ended."""
    longest = 0.02 if engine.dialect.name == "sqlite" else 0.5  # there one waits for the other
    writers = [Writer(number, Outbox(NAME), engine, TOPICS, rng.getrandbits(32), longest) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.enough()
        for writer in writers:
            writer.join(PATIENCE)


def check(url: str, engine: Engine, writers: list[Writer]) -> None:
    for writer in writers:
        assert writer.failure is None, writer.failure
    committed = [transaction for writer in writers for transaction in writer.committed]
    check_topics(committed, {topic: log_of(url, topic) for topic in TOPICS})
    assert any(writer.rolled_back for writer in writers), "nothing was rolled back: this proves less than it says"
    with engine.connect() as connection:
        kept = connection.scalar(text("SELECT count(*) FROM orders"))
    assert kept == sum(len(transaction.messages) for transaction in committed)
    lease = OutboxDatabase(Outbox(NAME), engine).seen()
    assert lease is not None
    assert lease.plan == ()


def log_of(url: str, topic: str) -> list[Message]:
    with Reader(topic, url=url, timeout=0) as reader:
        return list(reader)


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
