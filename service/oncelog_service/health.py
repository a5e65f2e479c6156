"""How a service is doing: whether its store is open and answers, whether requests are to be sent here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from oncelog.errors import StorageUnavailable
from oncelog_service.group_commit import STALLED_SECONDS
from oncelog_service.service import Service

_READ_SECONDS = 5.0
"""How long the store is read for what is told of the service."""


def check_answers(service: Service) -> None:
    """Raises StorageUnavailable while the store is not open, when others may serve everything that it shares with them, and while
    it hangs."""
    service.opening.leases.check_alive()
    if seconds := stalled_seconds(service):
        raise StorageUnavailable(f"the store has not answered for {seconds:.0f} s; what is written or read waits for it")


def check_ready(service: Service) -> None:
    """Raises StorageUnavailable as :func:`check_answers`, while nothing can be written, and when it is about to stop."""
    if service.draining:
        raise StorageUnavailable("the service is stopping; others, or the next one in its place, answer")
    check_answers(service)
    service.opening.writer.check()


def writing_seconds(service: Service) -> float:
    """Returns for how long the write has been under way that the store is in; 0: it is in none, or not open."""
    return 0.0 if service.present is None else service.present.writer.writing_seconds


def stalled_seconds(service: Service) -> float:
    """Returns for how long the store has not answered, once that is longer than it should take; else 0."""
    seconds = max(writing_seconds(service), service.looking.seconds)
    return seconds if seconds >= STALLED_SECONDS else 0.0


@asynccontextmanager
async def reading(service: Service) -> AsyncIterator[None]:
    """Bounds what tells of the service and reads the store for it: one that hangs is not read, and must be said.

    Raises TimeoutError.
    """
    async with asyncio.timeout(0 if stalled_seconds(service) else _READ_SECONDS):
        await asyncio.sleep(0)  # where it hangs nothing is even begun, which would hold a thread of those who read
        yield


def is_damaged(service: Service) -> bool:
    """Tells whether writes fail again and again since rows are damaged."""
    return service.failures.damaged(service.clock.monotonic())


def status(service: Service) -> Literal["ok", "failing", "full", "damaged", "stalled", "closed"]:
    """Returns the most severe of these that is so."""
    if service.present is None:
        return "closed"
    if stalled_seconds(service):
        return "stalled"
    if is_damaged(service):
        return "damaged"
    return "full" if service.room.state == "full" else "failing" if service.background.failing else "ok"
