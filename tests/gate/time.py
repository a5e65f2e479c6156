"""The time of the gate, which nobody waits for, and the event loops that live in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

BEGAN = 1_790_000_000.0
"""Seconds since 1970 at which each test begins."""
LONGEST_WAIT = 600.0
"""Seconds of its time in which what is waited for comes; it would not come at all."""
MOST_STEPS = 2_000_000
"""Of one test: turns, and looks at the clock. Something goes on for ever."""


class Stuck(AssertionError):
    """What is waited for does not come: nothing is left that could happen, or it takes for ever."""


class Runs(Protocol):
    """An event loop of the gate."""

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of something, so that it cannot be run."""

    def due(self, now: float) -> bool:
        """Whether something is to be done by now."""

    def next_at(self) -> float | None:
        """When its next timer is."""

    def turn(self) -> None:
        """Do what is due."""


class Waits(Protocol):
    """A thread of the gate that waits."""

    ends: float | None
    """Until when."""

    def can_go_on(self, now: float) -> bool:
        """Whether what it waits for is there, or its time is over."""

    def run(self) -> None:
        """Let it run until it waits again."""


class Time:
    """Moves when all loops and threads have nothing left to do, to the next timer of any."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loops: list[Runs] = []
        self.parked: list[Waits] = []

        self.steps = 0
        self.failed: list[Exception] = []
        """What callbacks of loops have raised, which a loop only logs."""

    def read(self) -> float:
        """Look at the clock. Raises Stuck: too often."""
        self._step()
        return self.now

    def wall(self) -> float:
        """Seconds since 1970."""
        return BEGAN + self.read()

    def _step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Stuck(f"this goes on for ever, at {self.now:.3f} s; {self.waiting()}")

    def until(self, condition: Callable[[], object], ends: float | None = None) -> bool:
        """Have everything go on until this is true, or this time has come; tell which. For the main thread. Raises Stuck."""
        most = self.now + LONGEST_WAIT if ends is None else ends
        while not condition():
            self._step()
            if ends is not None and ends <= self.now:
                return False
            if self._turn():
                continue
            times = [loop.next_at() for loop in self.loops if not loop.busy] + [each.ends for each in self.parked] + [ends]
            at = min((at for at in times if at is not None), default=None)
            if at is None or at > most:
                raise Stuck(f"what is waited for at {self.now:.3f} s does not come; {self.waiting()}")
            self.now = max(self.now, at)
        return True

    def _turn(self) -> bool:
        """Do what is due; tell whether there was anything."""
        for parked in self.parked:
            if parked.can_go_on(self.now):
                parked.run()
                return True
        found = False
        for loop in list(self.loops):
            if not loop.busy and loop.due(self.now):
                loop.turn()
                found = True
        return found

    def waiting(self) -> str:
        """Who waits, and where."""
        found = list(self._waiting())
        return f"waiting: {'; '.join(found[:40])}" if found else "nobody waits"

    def _waiting(self) -> Iterator[str]:
        import asyncio

        for loop in self.loops:
            for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):  # type: ignore[arg-type]
                stack = task.get_stack(limit=1)
                at = f"{stack[-1].f_code.co_filename.rsplit('/', 1)[-1]}:{stack[-1].f_lineno}" if stack else "?"
                yield f"{getattr(task.get_coro(), '__qualname__', task.get_name())} at {at}"


TIME = Time()
"""That of this process: one test after the other."""
