"""A manager of transactions over a store in memory, for a coroutine test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from oncelog_service.storage.memory import Disk
from oncelog_service.transactions.manager import TransactionManager
from tests.transactions.house import opened


@pytest.fixture
def manager() -> AbstractAsyncContextManager[TransactionManager]:
    @asynccontextmanager
    async def managing() -> AsyncIterator[TransactionManager]:
        async with opened(Disk()) as house:
            yield house.manager

    return managing()
