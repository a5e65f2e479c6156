"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import ManualClock, RunningService, running_service

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("default")

for _name in [name for name in os.environ if name.startswith("ONCELOG_")]:
    del os.environ[_name]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def running() -> Iterator[RunningService]:
    """A service in this process over a memory store."""
    with running_service() as service:
        yield service
