"""Requests run on a thread of their own while the caller waits, so that its waiting can be ended from anywhere, at once.

A request that is held on the service for 20 seconds cannot be called off in the thread that reads its answer: not by another
thread, and not by a signal handler, which runs in the middle of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast
from weakref import finalize

from oncelog.process import forks
from oncelog.process.turns import Condition

T = TypeVar("T")


class Stopped(Exception):
    """The waiting was ended."""


class _Errand:
    """One call and what came of it."""

    __slots__ = ("call", "done", "error", "result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call: Callable[[], Any] | None = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False

    def run(self) -> None:
        assert self.call is not None
        try:
            self.result = self.call()
        except BaseException as error:
            self.error = error
        self.call = None


_Queue = SimpleQueue[_Errand | None]


class Errands:
    """Runs one call after the other. Its thread, a daemon, begins with the first and ends with this object."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = threading.RLock()
        self._changed = Condition(self._guard)
        self._stopped = False
        self._queue: _Queue | None = None
        """Of the thread, while that has nothing to do."""
        self._home = forks.here()

    def run(self, call: Callable[[], T]) -> T:
        """Return or raise what the call does. Raises Stopped once :meth:`stop` is called; the call may go on by itself then."""
        # In the context of who asks, who waits meanwhile: what that one is doing, a trace for example, its errand does.
        errand, queue = _Errand(partial(copy_context().run, call)), self._take_queue()
        if queue is None:
            errand.run()
        else:
            queue.put(errand)
            self._wait(errand, queue)
        if errand.error is not None:
            try:
                raise errand.error
            finally:
                del errand  # else the traceback would hold itself
        return cast(T, errand.result)

    def stop(self) -> None:
        """End the waiting, now and later."""
        with self._guard:
            self._stopped = True
            self._changed.notify_all()

    def rest(self) -> None:
        """Let the thread go, which has nothing to do; the next call begins another one."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.put(None)

    def after_fork(self) -> None:
        """Forget the thread: there is none in the child."""
        forks.renew(self._guard)
        self._queue = None

    def _take_queue(self) -> _Queue | None:
        """Return the queue of a thread that has nothing to do. None: none can be started, since the interpreter exits."""
        if self._stopped:
            raise Stopped
        queue, self._queue = self._queue, None
        if queue is not None and self._home == forks.here():
            return queue
        self._home = forks.here()
        queue = SimpleQueue()
        try:
            threading.Thread(target=_serve, args=(queue, self._changed), name=self._name, daemon=True).start()
        except RuntimeError:
            return None
        finalize(self, queue.put, None)
        return queue

    def _wait(self, errand: _Errand, queue: _Queue) -> None:
        try:
            with self._guard:
                self._changed.wait_for(lambda: errand.done or self._stopped)
        finally:
            # Where the call goes on by itself, as after Ctrl-C, its thread is let go: the next call has another one.
            if errand.done and self._queue is None:
                self._queue = queue
            else:
                queue.put(None)
        if not errand.done:
            raise Stopped


def aside(call: Callable[[], T]) -> T:
    """Return or raise what the call does, which no signal handler interrupts: one that waits for what it has interrupted, and so
    for itself, would wait for ever. Ctrl-C ends the waiting, and the call goes on by itself."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    errands = Errands("oncelog-aside")
    try:
        return errands.run(call)
    finally:
        errands.rest()


def _serve(queue: _Queue, changed: Condition) -> None:
    """Run one call after the other. Holds nothing of the object but the condition, so that the object can be collected."""
    while (errand := queue.get()) is not None:
        errand.run()
        with changed:
            errand.done = True
            changed.notify_all()
        del errand
