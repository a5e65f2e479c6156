"""Fixtures of tests of one topic's log."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from oncelog_service.storage.memory import Disk
from tests.service.house import House, opened


@pytest.fixture
def house() -> AbstractAsyncContextManager[House]:
    """A log that is empty, over a disk of its own."""
    return opened(Disk())
