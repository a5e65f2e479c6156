"""A service for the tests of a module, a client of it, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from oncelog import Client
from tests.support import RunningService, running_service


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
