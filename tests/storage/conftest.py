"""Fixtures of tests of stores: places on SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer
from tests.storage.stores import Place, place_of


@pytest.fixture(params=("sqlite", "postgresql"))
def on_sql(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place_of(request.param, tmp_path) as place:
        yield place


@pytest.fixture
def shared(postgres: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    """On PostgreSQL."""
    with place_of("postgresql", tmp_path) as place:
        yield place
