"""Reads of the store off the event loop, its failures turned into what a client is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from oncelog.errors import StorageUnavailable, TopicDamaged
from oncelog_service.storage.port import StoreDamaged, StoreError

P = ParamSpec("P")
R = TypeVar("R")


async def read(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``call(...)`` on a thread. Raises TopicDamaged or StorageUnavailable for the store's own errors."""
    try:
        return await asyncio.to_thread(call, *args, **kwargs)
    except StoreDamaged as damage:
        raise TopicDamaged(f"the store is damaged: {damage}") from damage
    except StoreError as error:
        raise StorageUnavailable(f"the store cannot be read: {error}") from error
