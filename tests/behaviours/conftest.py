"""A service that can be stopped, crashed and started again on the same disk, under a clock that the test sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from oncelog_service.storage.memory import Disk, MemoryStore
from tests.behaviours.stores import KINDS, rows_in
from tests.support import ManualClock, RunningService, running_service

ON_POSTGRESQL = ("test_deduplication", "test_durability")
"""In the normal run too. Everything runs on SQLite and PostgreSQL when the slow tests are."""

_MEMORY = "/dev/shm"
"""Files of SQLite lie here: what is tested is not their durability, and each sync costs a millisecond or ten."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.rpartition(".")
    if "stored_in" not in metafunc.fixturenames or module[0] != __name__.rpartition(".")[0]:
        return
    soon = ("memory", "postgresql") if module[2] in ON_POSTGRESQL else ("memory",)
    kinds = [pytest.param(kind, marks=() if kind in soon else pytest.mark.slow) for kind in KINDS]
    metafunc.parametrize("stored_in", kinds, indirect=True)


@pytest.fixture(autouse=True)
def stored_in(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the service of this test keeps its rows."""
    kind: str = getattr(request, "param", "memory")
    if kind == "memory":
        yield kind
        return
    with (
        TemporaryDirectory(prefix="oncelog-rows-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder,
        pytest.MonkeyPatch.context() as patch,
        rows_in(kind, Path(folder), patch),
    ):
        yield kind


class Machine:
    """A disk and a clock; each :meth:`run` is one life of the service on them."""

    def __init__(self, clock: ManualClock) -> None:
        self.disk = Disk()
        self.clock = clock

    @contextmanager
    def run(self, **settings: Any) -> Iterator[RunningService]:
        with running_service(clock=self.clock, open_store=lambda: MemoryStore(self.disk), **settings) as service:
            yield service

    def crash(self) -> Machine:
        """The machine as it comes back after power was cut now: only what is on disk, whatever is stopped cleanly later."""
        after = Machine(self.clock)
        after.disk.tables = {table: dict(rows) for table, rows in self.disk.tables.items()}
        return after


@pytest.fixture
def machine(clock: ManualClock) -> Machine:
    return Machine(clock)
