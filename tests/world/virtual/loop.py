"""An event loop of virtual time: nothing waits, and the same seed gives the same run to the last event.

* Time moves when nothing is left to do, to the next timer, exactly: a rounded sum would never arrive.
* Each callback belongs to a process, by its context. Those of a process that was killed are dropped, with nothing cleaned up, as
  the end of a process does; those of one that is stopped wait until it goes on.
* What an executor is asked, and what another thread would tell this loop, are events of their own, each at a time by chance.
* Where nothing is left that could happen, where nothing ends in time, and where time does not move, it fails and says who waits.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio.events import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any, TypeVar

from oncelog.process.clock import Clock
from tests.world.virtual.trace import Trace

T = TypeVar("T")

BEGAN_MS = 1_790_000_000_000
"""When a world begins, in milliseconds since 1970."""
LIMIT_SECONDS = 600.0
"""Of virtual time; a run that needs longer does not end by itself."""
MOST_TURNS_IN_ALL = 80_000
MOST_TURNS = 10_000
"""Of the loop while the time stands still."""


class Stuck(AssertionError):
    """Nothing can happen any more, or nothing ends."""


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def never(seconds: float) -> None:
    """A thread that sleeps would stop the world."""
    raise AssertionError(f"something sleeps for {seconds:g} s")


class Process:
    """What a kill ends, and a stop holds up: an instance of the service, or a client."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = self.runs = True
        self.held: list[Handle] = []
        """What is to run when it goes on."""
        self.remains: list[object] = []
        """Kept as long as the world: what is dropped here would otherwise run its ``finally`` in a process that has ended."""
        self.ended: asyncio.Future[None] | None = None
        """Set when it is killed, for those that wait for what it does."""
        self.context = Context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name

    def kill(self) -> None:
        """Nothing of it runs any more."""
        self.alive = self.runs = False
        self.remains += self.held
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


def context_of(process: Process | None) -> Context:
    """A context in which everything belongs to this process; None: to the world."""
    return Context() if process is None else process.context.copy()


class VirtualLoop(asyncio.BaseEventLoop):
    """One for a whole world."""

    _ready: deque[Handle]
    _stopping: bool

    def __init__(self, random: Random, trace: Trace, mean_delay: float = 0.0005) -> None:
        """``mean_delay``: seconds that what threads do takes, on average; 0: no time, in order."""
        super().__init__()
        self.now = 0.0
        self.random = random
        self.trace = trace
        self.turns = 0
        self._since = 0
        """Turns when the time moved last."""
        self._mean = mean_delay
        self._timers: list[tuple[float, int, TimerHandle]] = []
        """A heap: of those of one time the one that was made first is first."""
        self._numbers = count()
        self._told: dict[Process | None, float] = {}
        """Process → when the last of what its threads have told it comes."""
        self.set_exception_handler(lambda loop, context: trace.note("unhandled", context["message"]))
        trace.clock = self.time
        trace.turns = lambda: self.turns

    # --- time

    def time(self) -> float:
        return self.now

    def wall(self) -> float:
        """Seconds since 1970, by a clock that is right."""
        return BEGAN_MS / 1000 + self.now

    @property
    def clock(self) -> Clock:
        """Of a client."""
        return Clock(self.time, self.wall, never)

    def _run_once(self) -> None:
        """A turn: what is ready, or what the next timer makes so, each where its process runs."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        self.turns += 1
        if not ready and not self._stopping:
            self._advance()
        elif self.turns - self._since > MOST_TURNS:
            raise Stuck(f"at {self.now:.3f} s the time does not move; {self.waiting()}")
        while timers and timers[0][0] <= self.now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            process: Process | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is None or process.runs:
                handle._run()
            else:
                (process.held if process.alive else process.remains).append(handle)

    def _advance(self) -> None:
        """Move to the next timer."""
        if self.turns > MOST_TURNS_IN_ALL:
            raise Stuck(f"after {self.turns} turns of the loop, at {self.now:.3f} s, nothing has ended; {self.waiting()}")
        if not self._timers:
            raise Stuck(f"nothing is left that could happen; {self.waiting()}")
        self.now, self._since = self._timers[0][0], self.turns
        if self.now > LIMIT_SECONDS:
            raise Stuck(f"nothing has ended in {LIMIT_SECONDS:g} s; {self.waiting()}")

    def waiting(self) -> str:
        """Who waits, and where."""
        found = []
        for task in sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()):
            process = task.get_context().get(PROCESS) if hasattr(task, "get_context") else None
            if process is None or process.alive:
                stack = task.get_stack(limit=1)
                at = f"{stack[-1].f_code.co_filename.rsplit('/', 1)[-1]}:{stack[-1].f_lineno}" if stack else "?"
                found.append(f"{process or 'the world'} at {at} ({getattr(task.get_coro(), '__qualname__', task.get_name())})")
        return "waiting: " + "; ".join(found[:40])

    # --- what runs

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> TimerHandle:  # type: ignore[override]
        timer = TimerHandle(max(when, self.now), callback, args, self, context)
        heapq.heappush(self._timers, (timer.when(), next(self._numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        """What another thread tells: in order, and later than it was told."""
        process = (copy_context() if context is None else context).get(PROCESS)
        at = self._told[process] = max(self._told.get(process, 0.0), self.now + self.delay())
        return self.call_at(at, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Called after a while, and told after another one."""
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                result, error = func(*args), None
            except BaseException as raised:
                result, error = None, raised
            self.call_later(self.delay(), told, result, error)

        def told(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.call_later(self.delay(), call)
        return future

    def delay(self) -> float:
        """Seconds by chance, for what a thread does."""
        return self.random.expovariate(1 / self._mean) if self._mean else 0.0

    def begin(self, process: Process, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have a process run this."""
        task = self.create_task(coroutine, context=context_of(process))
        process.remains.append(task)
        return task

    async def until_ended(self, process: Process, task: asyncio.Task[T]) -> T | None:
        """The result of what a process runs; None: it was killed before."""
        if process.ended is None:
            process.ended = self.create_future()
        await asyncio.wait([task, process.ended], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None

    def resume(self, process: Process) -> None:
        """Have one that was stopped go on."""
        process.runs = process.alive
        held, process.held = process.held, []
        self._ready.extend(held)
