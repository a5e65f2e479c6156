"""Locks around what a procedure does: ``with await turn.come():``. Of threads, and of an event loop.

That of threads raises where it would wait for ever: in a signal handler, and in a forked child. What was begun on an event loop
belongs to that, as what was made before a fork belongs to the other side.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from contextlib import suppress
from itertools import starmap
from math import inf
from typing import Any, Self

from oncelog.process import forks
from oncelog.process.clock import REAL

_DEAF_SECONDS = 1.0
"""A signal that comes in the moment before the main thread waits in C, or that the system gives to another thread, does not end
that waiting, and Python does not run its handler before: so the main thread waits no longer at once."""


class Turn(_thread.RLock):  # type: ignore[misc]  # final to type checkers only
    """A lock for a ``with`` statement, around what cannot be interrupted by more of the same.

    Raises:
        Forked: the object was made before this process was forked; its lock may be held by a thread that does not exist here.
        RuntimeError: a signal handler interrupted the thread that holds it, and would wait for ever.
    """

    # That of C, whose __exit__ no Ctrl-C comes before: in one of Python it would leave the lock held for ever.

    def __new__(cls, _: str) -> Self:
        """Make one; ``_``: as in __init__."""
        return super().__new__(cls)

    def __init__(self, what: str) -> None:
        """``what``: it is around, in words."""
        self._what = what
        self._home = forks.here()

    @property
    def elsewhere(self) -> bool:
        """Whether it was made before a fork, on the other side of it."""
        return forks.here() != self._home

    async def come(self) -> Self:
        """Return it; the ``with`` statement waits."""
        return self

    def __enter__(self) -> bool:  # type: ignore[override]  # for with statements
        forks.check_made_here(self._home, self._what)
        if self._owned():
            raise RuntimeError(f"a signal handler cannot use {self._what} in the middle of another call of it; set a flag there")
        try:
            taken = self.acquire()
        except BaseException:
            if self._owned():  # Ctrl-C came behind it
                self.release()
            raise
        return taken

    def _owned(self) -> bool:
        owned: bool = self._is_owned()  # type: ignore[attr-defined]  # as threading.Condition asks it
        return owned


class Condition(threading.Condition):
    """A condition whose waiting Ctrl-C ends with the lock held, as who waits lets it go.

    To be taken as its lock itself, a reentrant one of C: Ctrl-C in Condition's own __exit__ would leave it held for ever.
    """

    def wait(self, timeout: float | None = None) -> bool:
        """As threading's. There Ctrl-C may come between letting the lock go and what takes it again: then who waited lets go
        what it does not hold, and RuntimeError hides what has come."""
        if not self._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter, held = _thread.allocate_lock(), list[Any]()
        waiter.acquire()
        self._waiters.append(waiter)  # type: ignore[attr-defined]
        woken = False
        try:
            held.extend(starmap(self._release_save, ((),)))  # type: ignore[attr-defined]  # in C, where no handler runs
            woken = _acquired(waiter, timeout)
            return woken
        finally:
            if held:
                self._acquire_restore(held[0])  # type: ignore[attr-defined]
            if not woken:
                with suppress(ValueError):
                    self._waiters.remove(waiter)  # type: ignore[attr-defined]


def _acquired(waiter: _thread.LockType, timeout: float | None) -> bool:
    end = inf if timeout is None else REAL.monotonic() + timeout
    most = _DEAF_SECONDS if threading.current_thread() is threading.main_thread() else threading.TIMEOUT_MAX
    while not waiter.acquire(timeout=max(0.0, min(end - REAL.monotonic(), most))):
        if REAL.monotonic() >= end:
            return False
    return True


class Loop:
    """The event loop on which something is used first, and the process that it was made in."""

    __slots__ = ("_home", "_loop", "_what")

    def __init__(self, what: str) -> None:
        """``what`` belongs to it, in words."""
        self._what = what
        self._home = forks.here()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raises Forked: it was made before a fork. RuntimeError: it is used on another event loop, or on none."""
        forks.check_made_here(self._home, self._what)
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(f"{self._what} needs asyncio, and no event loop of asyncio runs here") from None
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise RuntimeError(f"{self._what} belongs to another event loop; make another one here")

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is the other side of a fork."""
        return forks.here() != self._home


class AsyncTurn:
    """A lock of an event loop, taken by one task at a time."""

    def __init__(self, what: str) -> None:
        """``what``: it is around, in words."""
        self._loop = Loop(what)
        self._is_taken = False
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def elsewhere(self) -> bool:
        """Whether it was made before a fork, on the other side of it."""
        return self._loop.is_elsewhere

    async def come(self) -> Self:
        """Return when it is free: the ``with`` statement takes it, with no await between. Raises Forked, RuntimeError."""
        self._loop.check()
        while self._is_taken:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        return self

    def __enter__(self) -> None:
        self._is_taken = True

    def __exit__(self, *_: object) -> None:
        self._is_taken = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
