"""One Spark session for all tests in this folder, and a service for each test file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from oncelog import Client
from oncelog.spark.session import SMALL, session
from tests.world.service import RunningService, running_service


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, small and quick; the source is registered. The first query of a session takes 10 seconds, each next one 2."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    running = session("tests", "local[2]", **SMALL, **{"spark.sql.warehouse.dir": str(warehouse)})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """A service over a memory store that the tests of one file share; each uses topics of its own."""
    with running_service() as running:
        yield running


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[Client]:
    with Client(service.url) as made:
        yield made
