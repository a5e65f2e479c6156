"""Event loops of the gate: asyncio's own, over sockets in memory and the gate's time."""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

from tests.gate.sockets import Socket
from tests.gate.threads import until
from tests.gate.time import TIME, Stuck
from tests.patience import PATIENCE

T = TypeVar("T")


class Selector(selectors._BaseSelectorImpl):  # type: ignore[name-defined,misc]
    """Asks sockets in memory. To wait is to have the other loops and threads go on."""

    _fd_to_key: dict[int, selectors.SelectorKey]
    loop: Loop | None = None
    """Whose it is."""

    def ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Those of which one can be read or written now."""
        found = []
        for key in [*self._fd_to_key.values()]:
            asked = Socket.numbered(key.fd)
            events = 0 if asked is None else asked.ready() & key.events
            if events:
                found.append((key, events))
        return found

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Those, or none once the loop has something else to do."""
        loop = self.loop
        if timeout is not None and timeout <= 0:
            pass
        elif loop is None:
            until(self.ready, timeout)
        else:
            until(lambda: loop.due(TIME.now), at=loop.next_at())
        return self.ready()


class Loop(asyncio.SelectorEventLoop):
    """One of them."""

    # asyncio's own, which its stubs do not name
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self) -> None:
        selector = Selector()
        super().__init__(selector)
        self._asked = selector
        selector.loop = self
        self.busy = False
        TIME.loops.append(self)

    def time(self) -> float:
        return TIME.now

    @property
    def _clock_resolution(self) -> float:
        return math.ulp(TIME.now)  # else timers run early, and find that it is not time yet

    @_clock_resolution.setter
    def _clock_resolution(self, _: float) -> None:
        """It follows from the time."""

    def due(self, now: float) -> bool:
        """Whether something is to be done by now."""
        return bool(self._ready or self._stopping or ((at := self.next_at()) is not None and at <= now) or self._asked.ready())

    def next_at(self) -> float | None:
        """When its next timer is."""
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
        return self._scheduled[0].when() if self._scheduled else None

    def turn(self) -> None:
        """Do what is due, once, as if it ran."""
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._thread_id = threading.get_ident()
        try:
            self._run_once()
        finally:
            self._thread_id = None
            asyncio._set_running_loop(running)

    def _run_once(self) -> None:
        self.busy = True
        try:
            super()._run_once()
        finally:
            self.busy = False

    def done(self, task: asyncio.Future[T], seconds: float | None = None) -> T:
        """What it comes to. Raises TimeoutError: not within so many seconds."""
        if not until(task.done, seconds):
            raise TimeoutError(f"not within {seconds} s; {TIME.waiting()}")
        return task.result()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "handle" in context and isinstance(context.get("exception"), Exception):
            TIME.failed.append(context["exception"])
        super().call_exception_handler(context)

    def end(self) -> None:
        """Cancel what is left, and close, as :func:`asyncio.run` does."""
        try:
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            if not until(lambda: all(task.done() for task in left), PATIENCE):
                raise Stuck(f"a task goes on although it is cancelled; {TIME.waiting()}")
            self.done(self.create_task(self.shutdown_asyncgens()))
            self.done(self.create_task(self.shutdown_default_executor()))
        finally:
            self.close()

    def close(self) -> None:
        if self in TIME.loops:
            TIME.loops.remove(self)
        super().close()

    # --- threads

    def call_soon_threadsafe(  # type: ignore[override]  # of the same arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None  # nobody sleeps who would have to be woken

    def _close_self_pipe(self) -> None:
        """There is none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""


class Policy(asyncio.DefaultEventLoopPolicy):
    """Every event loop is one of the gate."""

    def new_event_loop(self) -> Loop:
        return Loop()
