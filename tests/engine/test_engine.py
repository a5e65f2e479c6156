"""The engine: its life, its connections, and that it ends as a service does or as a process that is killed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog import Client, Producer
from oncelog.errors import ConnectionFailed
from oncelog.wire.requests import PublishRequest
from oncelog_service.engine import Engine
from oncelog_service.engine.engine import EngineStopped
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.seals import SealedStore
from tests.patience import PATIENCE, until
from tests.world.disk import Gate

pytestmark = pytest.mark.real


def asked(connection: socket.socket, path: str = "/v1/namespaces") -> bytes:
    connection.settimeout(PATIENCE)
    connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return connection.recv(1 << 16)


def test_a_connection_to_the_engine_speaks_http() -> None:
    with Engine() as engine, engine.connect() as connection:
        assert asked(connection).startswith(b"HTTP/1.1 200 OK")
        assert asked(connection).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("scheme", "end"), [("memory://", Engine.abandon), ("leveldb://", Engine.abandon), ("sqlite://", Engine.stop)]
)
def test_what_was_acknowledged_is_there_when_it_is_started_again(
    tmp_path: Path, scheme: str, end: Callable[[Engine], None]
) -> None:
    engine = Engine("memory://" if scheme == "memory://" else f"{scheme}{tmp_path}/store", listen=True).start()
    try:
        url = engine.url
        with Client(url, retry=0) as client:
            client.create_topic("t")
            with Producer("t", name="p", client=client) as producer:
                producer.send(b"one")
            end(engine)
            with pytest.raises(ConnectionFailed):
                client.topics()
            assert engine.start().url == url
            assert client.stats("t").upcoming_offset == 1
    finally:
        engine.stop()


def test_one_that_stops_leaves_snapshots_and_one_that_is_abandoned_leaves_none() -> None:
    disk = Disk()
    engine = Engine(open_store=lambda: SealedStore(MemoryStore(disk)), listen=True).start()
    with Client(engine.url) as client:
        client.create_topic("t")
        with Producer("t", name="p", client=client) as producer:
            producer.send(b"one")
    engine.abandon()
    assert not disk.tables[Table.SNAPSHOT]
    with engine, Client(engine.url) as client:
        assert client.stats("t").upcoming_offset == 1
    assert disk.tables[Table.SNAPSHOT]


def test_what_is_queued_when_it_is_abandoned_is_neither_written_nor_answered() -> None:
    disk = Disk()
    engine = Engine(open_store=lambda: SealedStore(MemoryStore(disk)), listen=True).start()
    with Client(engine.url) as client:
        for topic in ("one", "two"):
            client.create_topic(topic)
            client.publish(topic, PublishRequest([b"here"]))  # the store is not read while the gate holds it
    gate = disk.before_sync = Gate()
    outcomes = {}

    def publish(topic: str) -> None:
        with Client(engine.url, retry=0) as client, pytest.raises(ConnectionFailed) as failure:
            client.publish(topic, PublishRequest([b"lost"]))
        outcomes[topic] = failure.value

    threads = {topic: threading.Thread(target=publish, args=(topic,)) for topic in ("one", "two")}
    threads["one"].start()
    assert gate.entered.wait(PATIENCE)
    threads["two"].start()
    until(lambda: engine.service.opening.writer.queued()[0])
    ending = threading.Thread(target=engine.abandon)
    ending.start()
    for each in threads.values():
        each.join(PATIENCE)  # cut, though the write goes on
    assert not any(each.definite for each in outcomes.values())
    gate.opened.set()
    ending.join(PATIENCE)
    disk.before_sync = None
    with engine, Client(engine.url) as client:
        assert [client.stats(topic).upcoming_offset for topic in ("one", "two")] == [2, 1]


def test_one_that_does_not_run_says_so() -> None:
    engine = Engine()
    with pytest.raises(EngineStopped):
        engine.connect()
    with engine, pytest.raises(RuntimeError, match="runs already"):
        engine.start()
    with pytest.raises(EngineStopped):
        engine.connect()
    engine.stop()
    engine.abandon()


def test_one_that_runs_needs_no_further_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the interpreter exits none begins, from Python 3.12 on."""
    engine = Engine(f"leveldb://{tmp_path}/store")
    with engine, Client(engine.url) as client:
        client.create_topic("t")

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with Client(engine.start().url, retry=0) as client, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        client.publish("t", PublishRequest([b"one"]))
        assert client.stats("t").upcoming_offset == 1
        with engine.connect() as connection:
            assert b"oncelog_" in asked(connection, "/metrics")
        engine.stop()


def test_the_environment_says_nothing_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELOG_TOKEN", "secret")
    monkeypatch.setenv("ONCELOG_MAX_MESSAGES", "1")
    with Engine() as engine, engine.connect() as connection:
        assert asked(connection).startswith(b"HTTP/1.1 200 OK")
        assert engine.service.settings.max_messages == 10_000


def test_told_to_stop_twice_while_it_opens_it_leaves_no_store_open(tmp_path: Path) -> None:
    opening, goes_on, open_ = threading.Event(), threading.Event(), store_opener(f"leveldb://{tmp_path}/store")

    def opened() -> Store:
        opening.set()
        assert goes_on.wait(PATIENCE)
        return open_()

    engine = Engine(f"leveldb://{tmp_path}/store", open_store=opened)
    engine.begin()
    assert opening.wait(PATIENCE)
    for _ in range(3):
        engine.ask_to_stop()
        assert not engine.ended(0.05)
    goes_on.set()
    engine.stop()
    open_().close()


def test_what_has_ended_it_is_raised_by_its_stop_once() -> None:
    def die() -> None:
        raise SystemExit("as if the memory were full")

    engine = Engine().start()
    engine._running.call(die)
    assert engine.ended(PATIENCE)
    with pytest.raises(EngineStopped, match="as if the memory were full"):
        engine.connect()
    with pytest.raises(SystemExit):
        engine.stop()
    engine.stop()


def test_a_start_that_is_interrupted_leaves_no_store_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Engine, __: float | None = None) -> None:
        raise KeyboardInterrupt

    engine = Engine(f"leveldb://{tmp_path}/store")
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.start()
    assert engine.ended(PATIENCE)
    with Client(engine.url) as client:
        assert client.topics() == []
