"""Lets callers wait until there is more in a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Arrivals:
    """The callers that wait for one topic. Works on the event loop that owns it."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}  # of 5,000 topics: an empty set has 216 bytes

    def wake(self) -> None:
        """Have all that wait look again."""
        for arrival in self._waiting:
            if not arrival.done():
                arrival.set_result(None)
        self._waiting.clear()

    @staticmethod
    async def wait(topics: Iterable[Arrivals], seconds: float) -> None:
        """Return when one of them wakes, or the time is over."""
        topics = list(topics)
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for topic in topics:
            topic._waiting[arrival] = None
        try:
            await asyncio.wait([arrival], timeout=seconds)
        finally:
            for topic in topics:
                topic._waiting.pop(arrival, None)
