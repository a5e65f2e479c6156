"""Trims the oldest messages of a topic that has become larger than it may be, where its properties say so (`max.bytes.policy`).

It is begun by what grows the log, or settles more of it, and goes on until the topic is within its limit, or what is left cannot
go: what is undecided, and what was written last. One write says where the log begins now, whatever that takes out; the rows go in
slices behind it.
"""

from __future__ import annotations

import asyncio
import logging

from oncelog.errors import NotServedHere, OncelogError, StorageUnavailable
from oncelog_service.log.keep.removal import Removal
from oncelog_service.log.open_topic import OpenTopic

_log = logging.getLogger(__name__)


class Trimming:
    """Of one open topic. Works on the event loop that owns it."""

    __slots__ = ("_removal", "_running", "_topic", "_tried")

    def __init__(self, topic: OpenTopic, removal: Removal) -> None:
        self._topic = topic
        self._removal = removal
        self._running: asyncio.Task[None] | None = None
        self._tried: tuple[int, bool, int] | None = None
        """What decides what can go, as it was when nothing could."""

    def begin_if_due(self) -> None:
        """Begin to trim if the topic is too large; nobody waits for it."""
        limit = self._topic.rules.max_bytes
        if limit is None or not limit.trims or self._topic.size.present <= limit.bytes:
            return
        if self._running is None and not self._topic.closed and self._tried != self._moment(limit.bytes):
            self._running = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Return when nothing is under way any more, of a topic that is closed: nothing begins then."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def _moment(self, limit: int) -> tuple[int, bool, int]:
        """What can go depends on this alone: the newest write stays, so what is stable goes on once there is another one."""
        fold = self._topic.dedup.fold
        stable = fold.stable.position.upcoming_offset
        return stable, stable < fold.position.upcoming_offset, limit

    async def _run(self) -> None:
        try:
            while (limit := self._topic.rules.max_bytes) is not None and limit.trims and self._topic.size.present > limit.bytes:
                moment = self._moment(limit.bytes)
                trimmed = await self._removal.trim_to(limit)
                if not trimmed:
                    if moment != self._moment(limit.bytes):
                        continue  # more can go now, and who said so found that a trim was under way
                    self._tried = moment
                    break
                _log.info(
                    "%s: its oldest %d messages were trimmed, to offset %d: it may take %d bytes (max.bytes), and has %d",
                    *(self._topic.participant, trimmed, self._topic.begin_offset, limit.bytes, self._topic.size.present),
                )
                await self._removal.delete_trimmed()
        except (StorageUnavailable, NotServedHere):
            pass  # it was closed, or is served elsewhere now: whoever opens it goes on
        except OncelogError as error:
            _log.warning("trimming %s stopped, and will be tried again: %s", self._topic.participant, error)
        except Exception:
            _log.exception("trimming %s stopped, and will be tried again", self._topic.participant)
        finally:
            self._running = None
