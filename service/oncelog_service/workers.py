"""Who runs what a service does beside its event loop: a thread for each worker, and pools of threads.

It is handed in, as the clock is, so that a simulation can run all of it as events on one loop of virtual time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from oncelog_service.threads import Threads


class Step(Protocol):
    """What a worker does at a time."""

    def __call__(self, worker: Worker, /) -> float | None:
        """Returns the seconds after which it is to be called again, or None: when the worker is woken next."""
        ...


class Worker(Protocol):
    """Calls one step, again and again, never twice at the same time."""

    def wake(self) -> None:
        """Calls the step once more, after what it was woken for before. Never raises; from any thread."""
        ...

    def report(self, call: Callable[..., object], *args: object) -> None:
        """Calls this on the event loop, after what was reported before; to be used by the step."""
        ...

    def end(self) -> None:
        """Calls the step no more than it was woken for before. From any thread."""
        ...

    async def ended(self) -> None:
        """Waits, after :meth:`end`, until the last step has returned and what it reported has been called."""
        ...


class Workers(Protocol):
    """Begins workers and pools for one event loop."""

    def begin(self, name: str, step: Step, every: float | None = None) -> Worker:
        """Begins a worker, on the running event loop. ``every``: it wakes by itself after so many seconds of rest."""
        ...

    def pool(self, most: int, name: str) -> Threads:
        """Returns an executor of at most so many threads, for :meth:`asyncio.loop.run_in_executor`."""
        ...


class ThreadWorkers:
    """Threads of this process: daemons, so that none of them holds up its end."""

    def begin(self, name: str, step: Step, every: float | None = None) -> Worker:
        return _WorkerThread(name, step, every)

    def pool(self, most: int, name: str) -> Threads:
        return Threads(most, name)


class _WorkerThread:
    __slots__ = ("_calls", "_every", "_loop", "_step", "_thread")

    def __init__(self, name: str, step: Step, every: float | None) -> None:
        self._step = step
        self._every = every
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[bool] = SimpleQueue()
        """True to have the step called, False behind the last one."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._calls.put(True)

    def report(self, call: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop was closed under us: no caller is left
            self._loop.call_soon_threadsafe(call, *args)

    def end(self) -> None:
        self._calls.put(False)

    async def ended(self) -> None:
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while self._is_woken():
            while pause := self._step(self):
                time.sleep(pause)

    def _is_woken(self) -> bool:
        try:
            return self._calls.get(timeout=self._every)
        except Empty:
            return True
