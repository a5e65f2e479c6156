"""Threads of the gate: one runs at a time, until it waits or ends; so they run in one order, and nobody waits for a moment.

They are threads of the interpreter, with all that belongs to one, which hand on a baton: the main thread gives it to one that
can go on (:meth:`tests.gate.time.Time.until`), and gets it back where that one waits. A lock is waited for in the same way, so
those that are made in the gate are those of here.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from concurrent.futures import thread as pools
from typing import Any

from tests.gate.time import TIME

_MAIN = _thread.get_ident()
_BATON = _thread.allocate_lock()
"""Given back to the main thread."""
_BATON.acquire()
_start, _join = threading.Thread.start, threading.Thread.join
_bootstrap_inner = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]


class Parked:
    """A thread that waits for its turn."""

    def __init__(self) -> None:
        self._turn = _thread.allocate_lock()
        self._turn.acquire()
        self.condition: Callable[[], object] = lambda: True
        self.ends: float | None = None
        self.ended = False

    def can_go_on(self, now: float) -> bool:
        """Whether what it waits for is there, or its time is over."""
        return bool(self.condition()) or (self.ends is not None and self.ends <= now)

    def run(self) -> None:
        """Let it run until it waits again; called by the main thread."""
        TIME.parked.remove(self)
        self._turn.release()
        _BATON.acquire()

    def wait_for_turn(self) -> None:
        """Called by the thread itself, as is the next."""
        self._turn.acquire()

    def until(self, condition: Callable[[], object], ends: float | None) -> bool:
        if condition():
            return True
        if ends is not None and ends <= TIME.now:
            return False
        self.condition, self.ends = condition, ends
        TIME.parked.append(self)
        _BATON.release()
        self._turn.acquire()
        return bool(condition())


_own: dict[int, Parked] = {}
"""Those of the gate, by their numbers."""


def until(condition: Callable[[], object], seconds: float | None = None, at: float | None = None) -> bool:
    """Wait for this in whatever thread, so many seconds or to this time; tell whether it came."""
    own = _own.get(_thread.get_ident())
    ends = at if seconds is None else TIME.now + seconds
    return TIME.until(condition, ends) if own is None else own.until(condition, ends)


def is_foreign() -> bool:
    """Whether this is neither the main thread nor one of the gate: it does not know of the baton."""
    ident = _thread.get_ident()
    return ident != _MAIN and ident not in _own


def start(thread: threading.Thread) -> None:
    """Stands for :meth:`threading.Thread.start`. It runs at once, until it waits."""
    parked = Parked()

    def begin() -> None:
        ident = _thread.get_ident()
        parked.wait_for_turn()
        _own[ident] = parked
        try:
            _bootstrap_inner(thread)
        finally:
            del _own[ident]
            parked.ended = True
            _BATON.release()

    thread._gate = parked  # type: ignore[attr-defined]
    thread._daemonic = True  # type: ignore[attr-defined]  # one that waits for ever keeps no process
    thread._bootstrap_inner = begin  # type: ignore[attr-defined]
    TIME.parked.append(parked)
    _start(thread)


def join(thread: threading.Thread, timeout: float | None = None) -> None:
    """Stands for :meth:`threading.Thread.join`."""
    parked = getattr(thread, "_gate", None)
    if parked is None or thread is threading.current_thread():
        _join(thread, timeout)
    elif until(lambda: parked.ended, timeout):
        _join(thread)


def forget() -> None:
    """Have the end of the process not wait for pools that nobody has shut."""
    for thread in [*pools._threads_queues]:  # type: ignore[attr-defined]
        if hasattr(thread, "_gate"):
            del pools._threads_queues[thread]  # type: ignore[attr-defined]


class Lock:
    """Stands for :func:`threading.Lock`."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        if is_foreign():
            return self._lock.acquire(True, timeout)
        while until(lambda: not self._lock.locked(), None if timeout < 0 else timeout):
            if self._lock.acquire(blocking=False):
                return True
        return False

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class RLock:
    """Stands for :func:`threading.RLock`."""

    def __init__(self) -> None:
        self._block = Lock()
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _thread.get_ident()
        if self._owner == me:
            self._count += 1
            return True
        if not self._block.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        if self._owner != _thread.get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._block.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._block._at_fork_reinit()
        self._owner, self._count = None, 0

    def _is_owned(self) -> bool:
        return self._owner == _thread.get_ident()

    def _release_save(self) -> tuple[int, int | None]:
        state, self._count, self._owner = (self._count, self._owner), 0, None
        self._block.release()
        return state

    def _acquire_restore(self, state: tuple[int, int | None]) -> None:
        self._block.acquire()
        self._count, self._owner = state


_condition_wait = threading.Condition.wait


def wait(self: threading.Condition, timeout: float | None = None) -> bool:
    """Stands for :meth:`threading.Condition.wait`."""
    if is_foreign():
        return _condition_wait(self, timeout)
    if not self._is_owned():  # type: ignore[attr-defined]
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = _thread.allocate_lock()
    waiter.acquire()
    self._waiters.append(waiter)  # type: ignore[attr-defined]
    saved = self._release_save()  # type: ignore[attr-defined]
    notified = False
    try:
        notified = until(lambda: not waiter.locked(), timeout)
    finally:
        self._acquire_restore(saved)  # type: ignore[attr-defined]
        if not notified and waiter in self._waiters:  # type: ignore[attr-defined]
            self._waiters.remove(waiter)  # type: ignore[attr-defined]
    return notified


def acquired(waiter: Any, timeout: float | None) -> bool:
    """Stands for what :class:`oncelog.process.turns.Condition` waits by."""
    return until(lambda: not waiter.locked(), timeout) and waiter.acquire(blocking=False)
