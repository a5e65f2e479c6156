"""Lets callers wait until there is more in a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Arrivals:
    """The callers that wait for one topic. Works on the event loop that owns it."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] | None = None
        """Made for who waits: an empty set takes 216 bytes, and of many topics most have nobody waiting."""

    def wake(self) -> None:
        """Have all that wait look again."""
        waiting, self._waiting = self._waiting, None
        for arrival in waiting or ():
            if not arrival.done():
                arrival.set_result(None)

    @staticmethod
    async def wait(topics: Iterable[Arrivals], seconds: float) -> None:
        """Return when one of them wakes, or the time is over."""
        topics = list(topics)
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for topic in topics:
            if topic._waiting is None:
                topic._waiting = set()
            topic._waiting.add(arrival)
        try:
            await asyncio.wait([arrival], timeout=seconds)
        finally:
            for topic in topics:
                if topic._waiting is not None:
                    topic._waiting.discard(arrival)
