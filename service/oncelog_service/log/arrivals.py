"""Lets callers wait until there is more in a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Arrivals:
    """The callers that wait for one topic. Works on the event loop that owns it."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], None] | None = None
        """Made for who waits: an empty set takes 216 bytes, and of many topics most have nobody waiting."""

    def wake(self) -> None:
        """Have all that wait look again."""
        self._end(True)

    def dismiss(self) -> None:
        """Have all that wait answer with what there is, which may be nothing: before a stop."""
        self._end(False)

    def _end(self, more: bool) -> None:
        waiting, self._waiting = self._waiting, None
        for arrival in waiting or ():
            if not arrival.done():
                arrival.set_result(more)

    @staticmethod
    async def wait(topics: Iterable[Arrivals], seconds: float) -> bool:
        """Return when one of them wakes, or the time is over. True: who finds nothing may wait on."""
        topics = list(topics)
        arrival: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for topic in topics:
            if topic._waiting is None:
                topic._waiting = {}
            topic._waiting[arrival] = None
        try:
            await asyncio.wait([arrival], timeout=seconds)
        finally:
            for topic in topics:
                if topic._waiting is not None:
                    topic._waiting.pop(arrival, None)
        return arrival.done() and arrival.result()
