"""Lets callers wait until there is more in a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class Arrivals:
    """The callers that wait for one topic. Works on the event loop that owns it."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Waiting, None] | None = None
        """Made for who waits: an empty set takes 216 bytes, and of many topics most have nobody waiting."""

    def wake(self) -> None:
        """Have all that wait look again."""
        for each in self._waiting or ():
            each._note(self)

    def dismiss(self) -> None:
        """Have all that wait answer with what there is, which may be nothing: before a stop."""
        for each in self._waiting or ():
            each._note(None)

    @staticmethod
    async def wait(topics: Iterable[Arrivals], seconds: float) -> bool:
        """Return when one of them wakes, or the time is over. True: who finds nothing may wait on."""
        with Waiting(topics) as waiting:
            return bool(await waiting.woken(seconds))


class Waiting:
    """One caller that waits for some topics, from when it is entered: it hears which of them have woken, so that with a thousand
    of them an arrival in one costs a look at that one."""

    __slots__ = ("_arrival", "_dismissed", "_topics", "_woken")

    def __init__(self, topics: Iterable[Arrivals]) -> None:
        self._topics = [*topics]
        self._woken: dict[Arrivals, None] = {}
        self._dismissed = False
        self._arrival: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        for topic in self._topics:
            if topic._waiting is None:
                topic._waiting = {}
            topic._waiting[self] = None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for topic in self._topics:
            if topic._waiting is not None:
                topic._waiting.pop(self, None)
                if not topic._waiting:
                    topic._waiting = None

    def _note(self, topic: Arrivals | None) -> None:
        """``topic``: which has woken; None: nobody is to wait any longer."""
        if topic is None:
            self._dismissed = True
        else:
            self._woken[topic] = None
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def woken(self, seconds: float) -> list[Arrivals]:
        """Those that have woken since this was asked before, as soon as there is one. None: the time is over, or nobody is to
        wait any longer."""
        if not (self._woken or self._dismissed):
            self._arrival = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._arrival], timeout=seconds)
        woken, self._woken = [*self._woken], {}
        return [] if self._dismissed else woken
