"""Writes a topic's snapshots: when the schedule says so, at a clean stop, and before retention may delete.

Two are kept, in two slots written in turn: if the newest is damaged, the one before it and a longer replay give the same map.
Retention deletes nothing that is not below both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncelog_dedup import Snapshot, SnapshotSchedule
from oncelog_service.clock import Clock
from oncelog_service.log.writer import Writer
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.port import Batch, Table

_ENCODED_AT_ONCE = 2_000
"""Maps up to this size (1 ms) are encoded on the event loop; larger ones are copied and encoded on a thread."""


class Snapshots:
    """The snapshots of one open topic."""

    def __init__(
        self,
        prefix: bytes,
        offsets: list[int | None],
        schedule: SnapshotSchedule,
        writer: Writer,
        clock: Clock,
        current: Callable[[], Snapshot],
        unsettled: Callable[[], int],
    ) -> None:
        """``offsets``: upcoming offset of the snapshot in each slot; ``current``: the settled map and its position;
        ``unsettled``: how many messages lie behind that position, which no snapshot may pass."""
        self._prefix = prefix
        self._offsets = offsets
        self._schedule = schedule
        self._writer = writer
        self._clock = clock
        self._current = current
        self._unsettled = unsettled
        self._running: asyncio.Future[None] | None = None

    @property
    def newest(self) -> int | None:
        """Upcoming offset of the newest snapshot: a restart would replay the messages from there on."""
        return max((offset for offset in self._offsets if offset is not None), default=None)

    @property
    def covered_by_both(self) -> int:
        """Every message below this offset is in both snapshots; 0 while there are not two."""
        return min(offset or 0 for offset in self._offsets)

    @property
    def behind(self) -> int:
        """Messages that a restart now would replay."""
        return self._schedule.messages

    def count(self, messages: int) -> None:
        """Note so many more persisted messages, and begin a snapshot if one is due."""
        self._schedule.count(messages)
        self.begin_if_due()

    def begin_if_due(self) -> None:
        """Begin a snapshot if the schedule says so. Nobody waits for it; it joins the next write."""
        if self._running is None and self._schedule.due(self._clock.monotonic(), len(self._current().marks), self._unsettled()):
            self._begin()

    async def take(self) -> None:
        """Write a snapshot now and return when it is on disk. Raises StorageFailed or StorageUnavailable."""
        while self._running is not None:
            await asyncio.wait([self._running])
        await self._begin()

    def _begin(self) -> asyncio.Future[None]:
        snapshot = self._current()
        covered = self._schedule.messages - self._unsettled()
        if len(snapshot.marks) <= _ENCODED_AT_ONCE:
            self._running = self._submit(snapshot.to_bytes(), snapshot.position.upcoming_offset, covered)
        else:
            copy = Snapshot(snapshot.marks.copy(), snapshot.position)
            self._running = asyncio.ensure_future(self._encode_and_submit(copy, covered))
        self._running.add_done_callback(self._ended)
        return self._running

    async def _encode_and_submit(self, snapshot: Snapshot, covered: int) -> None:
        data = await asyncio.to_thread(snapshot.to_bytes)
        await self._submit(data, snapshot.position.upcoming_offset, covered)

    def _submit(self, data: bytes, offset: int, covered: int) -> asyncio.Future[None]:
        slot = 0 if (self._offsets[0] or -1) <= (self._offsets[1] or -1) else 1
        batch = Batch()
        batch.put(Table.SNAPSHOT, self._prefix + SNAPSHOT_SLOTS[slot], data)
        return self._writer.submit_lazily(batch, lambda: self._written(slot, offset, covered))

    def _written(self, slot: int, offset: int, covered: int) -> None:
        self._offsets[slot] = offset
        # Here, not when the future's callbacks run: the request that this snapshot rode with is counted before those, and if
        # it makes the next snapshot due that one must begin, or a restart would replay one request more.
        self._running = None
        self._schedule.done(self._clock.monotonic(), covered)

    def _ended(self, ended: asyncio.Future[None]) -> None:
        if self._running is ended:
            self._running = None
        if not ended.cancelled():
            ended.exception()  # the writer has told of the failure; here nobody waits
