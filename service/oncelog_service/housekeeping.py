"""What is seen to now and then while a store is open, beside retention and settlement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from oncelog.errors import OncelogError
from oncelog_service.bounds import room
from oncelog_service.cluster.leases import Leases, topic_of
from oncelog_service.group_commit import Writer
from oncelog_service.storage.port import Store, StoreError
from oncelog_service.topics.topics import Topics

_log = logging.getLogger(__name__)


class Outcomes(Protocol):
    """Remembers how things ended."""

    async def forget_outcomes(self) -> int:
        """Forgets some that nobody may ask for any more; returns how many: 0 once there are none."""
        ...


async def move_topics(topics: Topics, leases: Leases, every_seconds: float) -> None:
    """Reads again what others have set, and moves topics to where they belong, until cancelled."""
    while True:
        await asyncio.sleep(every_seconds)
        try:
            await topics.rolled_back.reread()
            await topics.policies.reread()
            for resource, to in leases.misplaced():
                name = topic_of(resource)
                assert name is not None  # nothing else is misplaced
                await topics.logs.hand_over(*name, to)
        except OncelogError as error:
            _log.warning("topics are moved to where they belong later: %s", error)


async def forget_outcomes(parts: Callable[[], Iterable[Outcomes | None]], every_seconds: float) -> None:
    """Has what is served here forget the outcomes that nobody may ask for any more, until cancelled."""
    while True:
        await asyncio.sleep(every_seconds)
        try:
            for part in parts():
                while part is not None and await part.forget_outcomes():
                    pass
        except OncelogError as error:
            _log.warning("outcomes of old transactions are forgotten later: %s", error)


async def watch_disk(disk: room.Room, store: Store, writer: Writer) -> None:
    """Also whether it is there: nobody writes to an idle store, and what was moved away can be read for a while."""
    try:
        await room.watch(disk, store.free_bytes, writer.drained)
    except StoreError as error:
        writer.give_up(error)
