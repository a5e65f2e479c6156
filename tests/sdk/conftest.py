"""A service for the tests of a module, a client of it, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from oncelog import Client, Producer
from tests.world.service import RunningService, running_service

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.postgres import PostgresServer


@pytest.fixture(scope="module")
def house() -> Iterator[RunningService]:
    with running_service() as service:
        yield service


@pytest.fixture
def client(house: RunningService) -> Iterator[Client]:
    with Client(house.url) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t-{uuid4().hex}"
    client.create_topic(name)
    return name


@pytest.fixture
def producer(client: Client, topic: str) -> Iterator[Producer[bytes]]:
    """An open producer of the topic, named "p"."""
    with Producer[bytes](topic, name="p", client=client) as producer:
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
