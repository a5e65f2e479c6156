"""Houses for the behaviours: a service that can be stopped, crashed and started again on the same disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from tempfile import TemporaryDirectory

import pytest

from tests.world.clock import ManualClock
from tests.world.disk import Gate
from tests.world.house import House

_MEMORY = "/dev/shm"
"""Files of SQLite lie here: what is tested is not their durability, and each sync costs a millisecond or ten."""


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest) -> Iterator[Callable[[], str] | None]:
    """The URLs of databases that are asked beside the memory, if any."""
    if request.param == "memory":
        yield None
        return
    with TemporaryDirectory(prefix="oncelog-rows-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder:
        numbers = count()
        yield lambda: f"sqlite://{folder}/{next(numbers)}"


@pytest.fixture
def house(clock: ManualClock, database: Callable[[], str] | None) -> Iterator[House]:
    with House(clock, database) as house:
        yield house


@pytest.fixture
def pool(house: House) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that go on at once."""
    with ThreadPoolExecutor(12) as pool:
        yield pool
        # A test that fails in front of a closed gate would wait for its own calls here.
        if isinstance(gate := house.disk.before_sync, Gate):
            gate.opened.set()
