"""Workers without threads: each step and each report is an event of its own on the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeAlias, TypeVar

from oncelog_service.threads import Threads
from oncelog_service.workers import Step

P = ParamSpec("P")
T = TypeVar("T")

After: TypeAlias = Callable[[float, Callable[[], None]], asyncio.Handle]
"""Calls something once, after so many seconds or later."""


def _later(seconds: float, call: Callable[[], None]) -> asyncio.Handle:
    return asyncio.get_running_loop().call_later(seconds, call)


class LoopWorkers:
    """Implements :class:`~oncelog_service.workers.Workers` on the running event loop.

    ``after`` decides when an event comes: what it adds to the seconds that it is asked for is what a thread waits for its turn.
    """

    def __init__(self, after: After = _later, before_reports: Callable[[], None] = lambda: None) -> None:
        """``before_reports``: called before each report, which is behind what the step did: a disk completes its writes."""
        self._after, self._before_reports = after, before_reports

    def begin(self, name: str, step: Step, every: float | None = None) -> LoopWorker:
        return LoopWorker(step, every, self._after, self._before_reports)

    def pool(self, most: int, name: str) -> Threads:
        return InPlace(most, name)


class LoopWorker:
    """Implements :class:`~oncelog_service.workers.Worker`."""

    def __init__(self, step: Step, every: float | None, after: After, before_reports: Callable[[], None]) -> None:
        self._step = step
        self._every = every
        self._after = after
        self._before_reports = before_reports
        self._woken = 0
        self._next: asyncio.Handle | None = None
        """The step to come."""
        self._reports: deque[Callable[[], object]] = deque()
        self._ending = False
        self._ended = asyncio.get_running_loop().create_future()
        self._rest()

    def wake(self) -> None:
        if self._ending:
            return
        self._woken += 1
        if self._woken == 1:
            self._plan(0)

    def report(self, call: Callable[..., object], *args: object) -> None:
        self._reports.append(lambda: call(*args))
        self._after(0, self._tell)

    def _tell(self) -> None:
        self._before_reports()
        self._reports.popleft()()  # whichever event comes first calls what was reported first

    def end(self) -> None:
        self._ending = True
        if not self._woken:
            self._rest()

    async def ended(self) -> None:
        await asyncio.shield(self._ended)

    def _run(self) -> None:
        self._next = None
        if not self._woken and self._ending:  # it has ended in the step before
            return
        pause = self._step(self)
        if pause:
            self._plan(pause)
            return
        self._woken = max(0, self._woken - 1)
        if self._woken:
            self._plan(0)
        else:
            self._rest()

    def _rest(self) -> None:
        if not self._ending:
            if self._every is not None:
                self._plan(self._every)
            return
        if self._next is not None:
            self._next.cancel()
        if not self._ended.done():
            self.report(lambda: self._ended.done() or self._ended.set_result(None))

    def _plan(self, seconds: float) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._after(seconds, self._run)


class InPlace(Threads):
    """Makes calls where they are handed in: two runs do everything in one order, and nobody waits for a thread."""

    def __init__(self, most: int = 1, name: str = "in place") -> None:
        super().__init__(most, name)
        self._ended = False

    def make_ready(self, count: int) -> None:
        pass

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._ended:
            raise RuntimeError("nothing more is called here")
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = True
