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
    return await asyncio.to_thread(lambda: read_at_once(call, *args, **kwargs))


def read_at_once(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The same here and now: on the event loop for what needs no disk, as a key that is not there does not (bloom filters)."""
    try:
        return call(*args, **kwargs)
    except StoreDamaged as damage:
        raise TopicDamaged(f"the store is damaged: {damage}") from damage
    except StoreError as error:
        raise StorageUnavailable(f"the store cannot be read: {error}") from error
