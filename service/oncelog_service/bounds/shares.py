"""Whose large work goes on next. Pure: it knows no request.

A thread does not free the event loop: a parser in C keeps the interpreter for as long as it takes, and threads in Python have
it for a moment each, in turn with the loop. So large work is done one piece at a time, wherever it is done; and who has used
more than a share of the last second waits for others who wait. The invariants:

* One at a time has entered, and each who waits to enter does so as soon as nobody has, and it may go on.
* It may go on where it has used no more than SHARE, or where nobody else has small work under way.
* Of those who may go on, the one enters who has used least; of one's own, the one that came first.
* Who holds what others wait for is held up by no small work, and goes first: whoever hands that out asks :meth:`Shares.may` then,
  and takes it back from one who may not.
* Others' small work, however much of it there is, holds nobody up for longer than what was used takes to fade to SHARE.
* Who is alone has everything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from math import exp
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SHARE = 0.2
"""Seconds of the last one."""
_LOOKS_SECONDS = 0.001
"""How often those who are held up look whether they still are: nobody tells them, so that small work costs nothing for it."""
_MANY = 1_024
"""Of whom it is known what they have used, beyond which those are forgotten who have used nothing lately."""
_NOTHING = 0.001
_HOLDS = object()
"""In whose name those wait who hold what others wait for."""


def _nobody(who: Hashable) -> bool:
    return False


class Shares:
    """Belongs to one event loop."""

    def __init__(self, now: Callable[[], float], later: Callable[[float, Callable[[], None]], object], thread: Executor) -> None:
        """``now``: seconds; ``later``: calls after so many seconds; ``thread``: one."""
        self.now = now
        self.thread = thread
        self._later = later
        self.others: Callable[[Hashable], bool] = _nobody
        """Tells whether somebody else has small work under way."""
        self._used: dict[Hashable, tuple[float, float]] = {}
        """Who → seconds, and when that was so: it fades with the seconds."""
        self._many = _MANY
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._entered = False
        self._looks = False

    def used(self, who: Hashable) -> float:
        """Seconds of the last one, about."""
        if (found := self._used.get(who)) is None:
            return 0.0
        seconds, at = found
        return seconds * exp(at - self.now())

    def charge(self, who: Hashable, seconds: float) -> None:
        """It has worked for so long."""
        if len(self._used) >= self._many and who not in self._used:
            self._used = {each: found for each, found in self._used.items() if self.used(each) > _NOTHING}
            self._many = max(_MANY, 2 * len(self._used))
        self._used[who] = self.used(who) + seconds, self.now()

    def is_over(self, who: Hashable) -> bool:
        """Tells whether it has used more than its share."""
        return self.used(who) > SHARE

    @asynccontextmanager
    async def alone(self, who: Hashable) -> AsyncIterator[None]:
        """While its large work goes on. Nothing may be waited for meanwhile but the next turn of the event loop, and a thread."""
        await self._enter(who)
        try:
            yield
        finally:
            self._leave()

    def may(self, who: Hashable) -> bool:
        """Tells whether it may go on, or waits for others' small work."""
        return not self.is_over(who) or not self.others(who)

    async def turn(self, who: Hashable, *, holds: bool = False) -> None:
        """Returns when what it does next, before it waits for anything, may be large. ``holds``: others wait for what
        it holds."""
        await self._enter(_HOLDS if holds else who)
        self._later(0, self._leave)

    async def apart(self, who: Hashable, holds: bool, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """``call(...)`` on a thread, alone. ``holds``: as above."""
        await self._enter(_HOLDS if holds else who)
        began = self.now()

        def leave(work: asyncio.Future[R]) -> None:
            if not work.cancelled():
                work.exception()  # else it is said that nobody has asked, where nobody waits for it any more
            self.charge(who, self.now() - began)
            self._leave()

        try:
            work = asyncio.get_running_loop().run_in_executor(self.thread, partial(call, *args, **kwargs))
        except BaseException:
            self._leave()
            raise
        work.add_done_callback(leave)
        await asyncio.wait([work])
        try:
            return work.result()
        finally:
            del work, args, kwargs  # what it has raised holds this frame: until a collection

    async def _enter(self, who: Hashable) -> None:
        if not (self._entered or self._waiting) and self.may(who):
            self._entered = True
            return
        queue = self._waiting.setdefault(who, deque())
        queue.append(future := asyncio.get_running_loop().create_future())
        self._next()
        try:
            await future
        except BaseException:
            if not future.cancelled():
                self._leave()  # its turn has come meanwhile
            elif future in queue:
                queue.remove(future)
                self._forget(who, queue)
            raise

    def _leave(self) -> None:
        self._entered = False
        self._next()

    def _next(self) -> None:
        if self._entered:
            return
        for who in sorted(self._waiting, key=self._place_of):
            queue = self._waiting[who]
            while queue and self.may(who):
                future = queue.popleft()
                self._forget(who, queue)
                if not future.cancelled():
                    self._entered = True
                    future.set_result(None)
                    return
        self._look_soon()

    def _place_of(self, who: Hashable) -> float:
        return -1.0 if who is _HOLDS else self.used(who)

    def _forget(self, who: Hashable, queue: deque[asyncio.Future[None]]) -> None:
        if not queue:
            del self._waiting[who]

    def _look_soon(self) -> None:
        if self._waiting and not self._looks:
            self._looks = True
            self._later(_LOOKS_SECONDS, self._look)

    def _look(self) -> None:
        self._looks = False
        self._next()
