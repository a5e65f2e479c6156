"""Three instances over one PostgreSQL, for all tests here: each test finds them whole and uses topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog import Client
from tests.cluster.instances import Instances, instances
from tests.patience import PATIENCE
from tests.postgres import postgres_server


@pytest.fixture(scope="session")
def _instances(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    with instances(postgres_server().fresh_schema(), tmp_path_factory.mktemp("instances")) as found:
        yield found


@pytest.fixture
def cluster(_instances: Instances) -> Instances:
    """With default settings."""
    _instances.make_whole()
    return _instances


@pytest.fixture
def client(cluster: Instances) -> Iterator[Client]:
    """Of all three."""
    with cluster.client(retry=PATIENCE) as client:
        yield client
