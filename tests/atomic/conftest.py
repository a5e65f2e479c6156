"""A service with the topics a and b, for a coroutine test."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from tests.atomic.house import House, living


@pytest.fixture
def house() -> AbstractAsyncContextManager[House]:
    return living(topics="ab")


@pytest.fixture
def checked() -> AbstractAsyncContextManager[House]:
    """Its topics check what messages expect."""
    return living(topics="ab", checked=True)
