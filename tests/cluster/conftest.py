"""Three instances in this process, over a database in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog import Client
from tests.cluster.instances import InPlace, Instances, in_place
from tests.patience import PATIENCE


@pytest.fixture
def cluster() -> Iterator[Instances[InPlace]]:
    with in_place() as found:
        yield found


@pytest.fixture
def client(cluster: Instances[InPlace]) -> Iterator[Client]:
    """Of all three."""
    with cluster.client(retry=PATIENCE) as client:
        yield client
