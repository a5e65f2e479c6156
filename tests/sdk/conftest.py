"""A service for the tests of a module, a client of it, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from oncelog import AsyncClient, AsyncConsumer, AsyncProducer, AsyncReader, Client, Producer
from oncelog.http.transport import AsyncTransport
from oncelog.http.trust import CA_VARIABLES
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


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """A service; where it is asked for by :data:`OVER_BOTH`, an engine, too."""
    with (running_engine if getattr(request, "param", "service") == "engine" else running_service)() as running:
        yield running


OVER_BOTH = pytest.mark.parametrize("house", ["service", pytest.param("engine", marks=pytest.mark.real)], indirect=True)
"""Tests over a service and over an engine. Between them and the SDK differs how a connection is made, and nothing behind that."""


@pytest.fixture
def no_trust_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*CA_VARIABLES, "ONCELOG_CERT", "ONCELOG_KEY", "ONCELOG_PROXY"):
        monkeypatch.delenv(name, raising=False)


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
def filled(house: RunningService, topic: str) -> str:
    """A topic of ten messages."""
    with Producer[bytes](topic, url=house.url) as producer:
        producer.send_batch([b"%d" % number for number in range(10)])
    return topic


@pytest.fixture
def producer(client: Client, topic: str, request: pytest.FixtureRequest) -> Iterator[Producer[bytes]]:
    """An open producer of the topic, named "p"; of the twin."""
    with getattr(request.module, "Producer", Producer)(topic, name="p", client=client) as producer:
        yield producer


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database: SQLite, and where :data:`IN_BOTH` says so PostgreSQL, too."""
    from tests.sdk.databases import opened

    is_file = getattr(request, "param", "sqlite") == "sqlite"
    with opened(f"sqlite:///{tmp_path}/data.db" if is_file else request.getfixturevalue("postgres").fresh_schema()) as engine:
        yield engine


IN_BOTH = pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)
"""Tests of what the databases differ in: types, locks, what a failed statement leaves behind."""


@pytest.fixture
def postgresql(postgres: PostgresServer) -> Iterator[Engine]:
    """An empty database with several writers at once."""
    from tests.sdk.databases import opened

    with opened(postgres.fresh_schema()) as engine:
        yield engine
