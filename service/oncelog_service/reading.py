"""Reads of the store off the event loop, its failures turned into what a client is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from oncelog.errors import StorageUnavailable, TopicDamaged
from oncelog_service.storage.port import StoreDamaged, StoreError

P = ParamSpec("P")
R = TypeVar("R")


_SCANNING = 3
"""Threads for long scans. They share the interpreter with the event loop: each one more takes its turns from everybody."""

_LARGE_PAGES = 4
"""Put together at the same time: they are memory that no bound of the connections sees."""


class Scans:
    """Threads of their own for reads that look at much: who checks, refolds or cleans up a log does not hold up who polls.

    A caller with more to read than a few thousand rows comes again for the next ones, so that all get their turns, and so that it
    ends when no caller waits for it any more, or the store is closed.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_SCANNING, "oncelog-scan")
        self.large_pages = asyncio.Semaphore(_LARGE_PAGES)
        """Held while a large page is put together: a hundred that are half finished would be as many times max_poll_bytes."""

    async def read(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As :func:`read`. A call that has not begun when no caller waits for it any more never does."""
        whole = partial(read_at_once, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, whole)


async def read(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``call(...)`` on a thread. Raises TopicDamaged or StorageUnavailable for the store's own errors."""
    return await asyncio.to_thread(lambda: read_at_once(call, *args, **kwargs))


def read_at_once(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``call(...)`` on the event loop, for what needs no disk: a key that is not there does not (bloom filters)."""
    try:
        return call(*args, **kwargs)
    except StoreDamaged as damage:
        raise TopicDamaged(f"the store is damaged: {damage}") from damage
    except StoreError as error:
        raise StorageUnavailable(f"the store cannot be read: {error}") from error
