"""Asks on a thread of its own while the caller waits, so that the caller can be told to stop waiting, from anywhere, at once.

A request that is held on the service for 20 seconds cannot be called off in the thread that reads its answer: not by another
thread, and not by a signal handler, which runs in the middle of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast
from weakref import finalize

from oncelog.process import forks

T = TypeVar("T")


class Stopped(Exception):
    """Nobody is to wait here any more."""


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
        self._changed = threading.Condition()  # reentrant
        self._stopped = False
        self._queue: _Queue | None = None
        """Of the thread, while that has nothing to do."""
        self._home = forks.here()

    def run(self, call: Callable[[], T]) -> T:
        """What the call returns or raises. Raises Stopped once :meth:`stop` is called; the call may go on by itself then."""
        errand, queue = _Errand(call), self._take_queue()
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
        """Nobody waits here any more, now or later."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def after_fork(self) -> None:
        """In the child there is no thread."""
        forks.renew(self._changed._lock)  # type: ignore[attr-defined]
        self._queue = None

    def _take_queue(self) -> _Queue | None:
        """Of a thread that has nothing to do. None: none can be started, since the interpreter exits."""
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
            with self._changed:
                self._changed.wait_for(lambda: errand.done or self._stopped)
        finally:
            # Where it goes on by itself, as after Ctrl-C, nobody waits for it: the next one has a thread of its own.
            if errand.done and self._queue is None:
                self._queue = queue
            else:
                queue.put(None)
        if not errand.done:
            raise Stopped


def _serve(queue: _Queue, changed: threading.Condition) -> None:
    """The thread. It holds nothing of the object but the condition, so that this can be collected."""
    while (errand := queue.get()) is not None:
        errand.run()
        with changed:
            errand.done = True
            changed.notify_all()
        del errand
