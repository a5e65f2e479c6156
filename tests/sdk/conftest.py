"""A service for the tests of a module, a client of it, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from oncelog import AsyncClient, AsyncConsumer, AsyncProducer, AsyncReader, Client, Producer
from oncelog.http.transport import AsyncTransport
from tests.world.awaits import Maker, event_loop
from tests.world.service import RunningService, running_engine, running_service

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.postgres import PostgresServer


class _AsyncTransport(AsyncTransport):
    call = AsyncTransport.ask


TWINS = {
    "Client": AsyncClient,
    "Producer": AsyncProducer,
    "Reader": AsyncReader,
    "Consumer": AsyncConsumer,
    "Transport": _AsyncTransport,
}


@pytest.fixture(params=["threads", "asyncio"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Has a module's tests run on both twins: under the names of the one stands the other, whose calls block."""
    if request.param == "threads":
        yield request.param
        return
    with event_loop() as loop:
        for name, kind in TWINS.items():
            if hasattr(request.module, name):
                monkeypatch.setattr(request.module, name, Maker(loop, kind))
        monkeypatch.setattr(request.module, "drive_all", iter, raising=False)
        yield request.param


@pytest.fixture(scope="module", params=["service", pytest.param("engine", marks=pytest.mark.real)])
def house(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """A service, and an engine: what the SDK promises holds over both."""
    with (running_service if request.param == "service" else running_engine)() as running:
        yield running


@pytest.fixture
def port(house: RunningService) -> RunningService:
    """A service that other processes reach, too."""
    if not house.url.startswith("http"):
        pytest.skip("another process has nothing of an engine; what one does itself is in tests/engine/test_processes.py")
    return house


@pytest.fixture
def client(house: RunningService, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client; in a module that runs on both twins, of the twin."""
    with getattr(request.module, "Client", Client)(house.url) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t-{uuid4().hex}"
    client.create_topic(name)
    return name


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    """A topic of ten messages."""
    with Producer[bytes](topic, client=client) as producer:
        producer.send_batch([b"%d" % number for number in range(10)])
    return topic


@pytest.fixture
def producer(client: Client, topic: str, request: pytest.FixtureRequest) -> Iterator[Producer[bytes]]:
    """An open producer of the topic, named "p"; of the twin."""
    with getattr(request.module, "Producer", Producer)(topic, name="p", client=client) as producer:
        yield producer


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database."""
    from tests.sdk.databases import opened

    is_file = request.param == "sqlite"
    with opened(f"sqlite:///{tmp_path}/data.db" if is_file else request.getfixturevalue("postgres").fresh_schema()) as engine:
        yield engine


@pytest.fixture
def postgresql(postgres: PostgresServer) -> Iterator[Engine]:
    """An empty database with several writers at once."""
    from tests.sdk.databases import opened

    with opened(postgres.fresh_schema()) as engine:
        yield engine
