"""A service that can be stopped, crashed and started again on the same disk, under a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog_service.storage.memory import Disk, MemoryStore
from tests.support import ManualClock, RunningService, running_service


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
