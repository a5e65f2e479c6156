"""Reads of the store off the event loop, its failures turned into what a client is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, Protocol, Self, TypeVar

from oncelog.errors import StorageUnavailable, TopicDamaged
from oncelog_service.storage.port import StoreDamaged, StoreError
from oncelog_service.workers import Workers

P = ParamSpec("P")
R = TypeVar("R")


_SCANNING = 3
"""Threads for long scans. They share the interpreter with the event loop: each one more takes its turns from everybody."""

_LARGE_PAGES = 1
"""Put together at the same time: they are memory that no bound of the connections sees, each up to three times
``max_poll_bytes``. More would hardly be faster: they share the interpreter. The price: a slow read of the disk holds up
all of them. 100 clients that never read cost 82 MB with one place, 105 where many small messages need none, 123 with two."""


class Share(Protocol):
    """How much of the process one who asks has used."""

    @property
    def is_held_up(self) -> bool:
        """It may not have now what others wait for."""
        ...

    async def gives_way(self) -> None:
        """Returns when it may."""


class Place:
    """That of one large answer, while it is put together and encoded.

    The invariant: who has it keeps it until the answer is handed over to the connection, which counts what is not read, or until
    nothing is held any more. Between the end of the handler, which leaves it, and the write nobody has a turn; but one answer at
    a time may be packed there.
    """

    __slots__ = ("_pages", "_share", "taken")

    def __init__(self, pages: asyncio.Semaphore, share: Share | None = None) -> None:
        """``share``: of whoever takes it; None: it is not asked."""
        self._pages = pages
        self._share = share
        self.taken = False

    async def take(self) -> None:
        """Returns when there is one. Twice is as once."""
        while not self.taken:
            await self._pages.acquire()
            self.taken = True
            if self._share is not None and self._share.is_held_up:
                self.leave()
                await self._share.gives_way()

    def leave(self) -> None:
        """Lets the next one have it. Twice is as once."""
        if self.taken:
            self.taken = False
            self._pages.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Scans:
    """Threads of their own for reads that look at much: who checks, refolds or cleans up a log does not hold up who polls.

    A caller with more to read than a few thousand rows comes again for the next ones, so that all get their turns, and so that it
    ends when no caller waits for it any more, or the store is closed.
    """

    def __init__(self, workers: Workers) -> None:
        self._threads = workers.pool(_SCANNING, "oncelog-scan")
        self._large_pages = asyncio.Semaphore(_LARGE_PAGES)
        self._columns = asyncio.Semaphore(1)
        self._lists = asyncio.Semaphore(1)

    def make_ready(self) -> None:
        """Begins a thread, for a process that exits. Raises RuntimeError: there is none."""
        self._threads.make_ready(1)

    def close(self) -> None:
        """Ends the threads, behind what they are in."""
        self._threads.shutdown(wait=False)

    def place(self, share: Share | None = None) -> Place:
        """That of one answer, to be taken if it is large: a hundred half finished ones would be as many times max_poll_bytes."""
        return Place(self._large_pages, share)

    def place_of_columns(self) -> Place:
        """The same for columns, one by one: their cells are objects until they are joined, five times what they are then."""
        return Place(self._columns)

    def place_of_list(self, share: Share) -> Place:
        """The same while rows of many topics are read: in Python, so that threads would only make each other wait."""
        return Place(self._lists, share)

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
