"""Threads that wait for calls, to the very end of the process.

The interpreter shuts every pool of :mod:`concurrent.futures` before ``atexit`` runs, and from 3.12 on begins no thread by then. A
store that lives in somebody's process is used and closed just there: producers send what waits, and it is closed behind
them. So these are daemons, some are begun early, and nobody but their owner shuts them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """A pool. It is one of asyncio's kind by its class alone: that refuses any other as the default of an event loop."""

    def __init__(self, most: int, name: str) -> None:
        """Each is begun when a call finds none free, ``most`` in all."""
        super().__init__(most)  # whose own threads are never begun
        self._most, self._name = most, name
        self._calls: deque[Callable[[], None]] = deque()
        self._idle = 0
        """Threads that wait for a call, also for one that is there and has not been taken yet."""
        self._changed = threading.Condition()
        self._begun: list[threading.Thread] = []
        self._closed = False

    def make_ready(self, count: int) -> None:
        """Begins so many now, less those that there are. Raises RuntimeError: they cannot be begun."""
        while len(self._begun) < count:
            self._begin()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Has it called. Raises RuntimeError: it is shut down, or no thread can be begun."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("these threads call nothing more")
            if len(self._calls) >= self._idle and len(self._begun) < self._most:
                try:
                    self._begin()
                except RuntimeError:  # the interpreter exits: those that there are have to do
                    if not self._begun:
                        raise
            self._calls.append(partial(_call, future, partial(fn, *args, **kwargs)))
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends them behind what they were asked; ``wait``: returns when they have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if wait:
            for each in self._begun:
                each.join()

    def _begin(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._begun)}", daemon=True)
        thread.start()
        self._begun.append(thread)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._calls and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._calls:
                    return
                call = self._calls.popleft()
            call()
            del call  # it holds what nobody should keep while this waits


def _call(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
        del future, call  # the error's traceback holds this frame: until a collection
    else:
        future.set_result(result)
