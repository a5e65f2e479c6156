"""One service for the whole module: what is asked of it here is refused and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rest.talk import Topic
from tests.world.service import RunningService, running_service

SMALL = {"max_request_bytes": 100_000, "max_messages": 100, "max_wait_ms": 1_000}
"""Its limits."""


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningService]:
    with running_service(**SMALL) as service:
        yield service


@pytest.fixture(scope="module")
def topic(shared: RunningService) -> Topic:
    return Topic(shared.url, "refusals")
