"""Three instances over one PostgreSQL, for all tests here: each test finds them whole and uses topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog import Client
from tests.cluster.instances import LEASE_SECONDS, Instances, instances
from tests.patience import PATIENCE
from tests.postgres import postgres_server


@pytest.fixture(scope="session")
def _instances(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    folder = tmp_path_factory.mktemp("instances")
    with instances(postgres_server().fresh_schema(), folder, lease_seconds=LEASE_SECONDS) as found:
        yield found


@pytest.fixture
def cluster(_instances: Instances) -> Instances:
    _instances.make_whole()
    return _instances


@pytest.fixture
def client(cluster: Instances) -> Iterator[Client]:
    """Of all three."""
    with cluster.client(retry=PATIENCE) as client:
        yield client
