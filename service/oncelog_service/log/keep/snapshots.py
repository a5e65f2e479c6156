"""Writes a topic's snapshots: when the schedule says so, at a clean stop, and for retention where that is affordable.

Two are kept, in two slots written in turn: if the newest is damaged, the one before it and a longer replay give the same map.
Retention deletes nothing that is not below both: it waits for those of the schedule, unless its own free as many messages as they
have entries, or the topic has been idle so long that the schedule writes none. Where the topic checks expectations, the snapshot
of its keys is written beside that of its producers, in one atomic change.

* A snapshot and its position are one value, and it never passes an unsettled row: it holds nothing that may yet stop counting.
* All snapshots of a map of more than 16 producers have, together, at most as many entries as messages were stored and deleted;
  but for one at each clean stop, and two once a topic has been without a message for a day.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from oncelog.errors import OncelogError
from oncelog_dedup import Snapshot, SnapshotSchedule, frees_enough
from oncelog_service.log.open_topic import OpenTopic, Recovered
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.pieces import put_pieces
from oncelog_service.storage.port import Batch, Table

_log = logging.getLogger(__name__)

_ENCODED_AT_ONCE = 2_000
"""Maps up to this size (1 ms) are encoded on the event loop; larger ones are copied and encoded on a thread."""


class Snapshots:
    """The snapshots of one open topic."""

    __slots__ = (
        "_clock",
        "_ended_for_good",
        "_fold",
        "_key_offsets",
        "_keys",
        "_offsets",
        "_prefix",
        "_running",
        "_schedule",
        "_since",
        "_writer",
    )

    def __init__(self, topic: OpenTopic, recovered: Recovered) -> None:
        self._prefix = topic.prefix
        limits = topic.limits
        self._schedule = SnapshotSchedule(
            topic.clock.monotonic(), limits.snapshot_messages, limits.snapshot_seconds, recovered.replayed
        )
        self._offsets = offsets = recovered.snapshots
        """The upcoming offset of the snapshot in each slot."""
        key_offsets = recovered.key_snapshots
        self._writer = topic.writer
        self._clock = topic.clock
        self._fold = topic.dedup.fold
        self._keys = topic.keys
        self._key_offsets: list[int | None] = list(offsets) if key_offsets is None else key_offsets
        """Without an index of keys: the same as the others."""
        self._since = topic.clock.monotonic()
        """When the oldest message that no snapshot has was persisted, or replayed."""
        self._ended_for_good = False
        self._running: asyncio.Future[None] | None = None

    @property
    def newest(self) -> int | None:
        """Upcoming offset of the newest snapshot: a restart would replay the messages from there on."""
        return max((offset for offset in self._offsets if offset is not None), default=None)

    @property
    def covered_by_both(self) -> int:
        """Every message below this offset is in both snapshots; 0 while there are not two."""
        return min(offset or 0 for offset in (*self._offsets, *self._key_offsets))

    @property
    def behind(self) -> int:
        """Messages that a restart now would replay."""
        return self._schedule.messages

    def age(self) -> float:
        """For how many seconds there have been messages that no snapshot has; 0: there are none."""
        return self._clock.monotonic() - self._since if self._schedule.messages else 0.0

    def count(self, messages: int) -> None:
        """Note so many more persisted messages, and begin a snapshot if one is due."""
        if not self._schedule.messages:
            self._since = self._clock.monotonic()
        self._schedule.count(messages)
        self.begin_if_due()

    def begin_if_due(self) -> None:
        """Begin a snapshot if the schedule says so. Nobody waits for it; it joins the next write."""
        if self._running is not None or self._ended_for_good:
            return
        now = self._clock.monotonic()
        if self._schedule.may_be_due(now) and self._schedule.due(now, self._entries(), self._unsettled()):
            self._begin()

    def _current(self) -> list[Snapshot]:
        """The stable map of the producers, and that of the keys where there is one, with their positions."""
        return [self._fold.stable] if self._keys is None else [self._fold.stable, self._keys.snapshot()]

    def _unsettled(self) -> int:
        """How many messages lie behind what is stable, which no snapshot may pass."""
        return self._fold.position.upcoming_offset - self._fold.stable.position.upcoming_offset

    def _entries(self) -> int:
        return sum(len(each.last_entries) for each in self._current())

    async def take(self) -> None:
        """Write a snapshot now and return when it is on disk. Raises StorageFailed or StorageUnavailable."""
        while self._running is not None:
            await asyncio.wait([self._running])
        await self._begin()

    async def cover(self, earliest: int, upto: int, idle: bool) -> int:
        """Both shall hold what lies below the offset ``upto``, so that it can be deleted; answers below which both do.

        They are written only if the messages from ``earliest`` on are enough for them, or the topic is ``idle``: then once is
        enough, since they hold all that is stable. Raises as :meth:`take`.
        """
        waiting = upto - max(earliest, self.covered_by_both)
        missing = sum(min(offset or 0 for offset in slot) < upto for slot in zip(self._offsets, self._key_offsets, strict=True))
        if idle or frees_enough(missing, self._entries(), waiting):
            while self.covered_by_both < upto:
                await self.take()
        return self.covered_by_both

    async def stop(self) -> None:
        """Begin no more, and return when the last one is written: from now on another process writes the topic's snapshots."""
        self._ended_for_good = True
        if self._running is not None:
            await asyncio.wait([self._running])

    def _begin(self) -> asyncio.Future[None]:
        snapshots = self._current()
        covered = self._schedule.messages - self._unsettled()
        if sum(len(each.last_entries) for each in snapshots) <= _ENCODED_AT_ONCE:
            self._running = self._submit(_encoded(snapshots), snapshots, covered)
        else:
            copies = [Snapshot(each.last_entries.copy(), each.position) for each in snapshots]
            self._running = asyncio.ensure_future(self._encode_and_submit(copies, covered))
        self._running.add_done_callback(self._ended)
        return self._running

    async def _encode_and_submit(self, snapshots: Sequence[Snapshot], covered: int) -> None:
        data = await asyncio.to_thread(_encoded, snapshots)
        await self._submit(data, snapshots, covered)

    def _submit(self, data: Sequence[bytes], snapshots: Sequence[Snapshot], covered: int) -> asyncio.Future[None]:
        # By both: where the index of keys is new, its first two snapshots go into different slots, wherever the producers' stand.
        slot = min((0, 1), key=lambda each: (self._offsets[each] or -1, self._key_offsets[each] or -1))
        batch = Batch()
        for table, each in zip((Table.SNAPSHOT, Table.KEY_SNAPSHOT), data, strict=False):
            put_pieces(batch, table, self._prefix + SNAPSHOT_SLOTS[slot], each)
        offsets = [each.position.upcoming_offset for each in snapshots]
        return self._writer.submit_lazily(batch, lambda: self._written(slot, offsets[0], offsets[-1], covered))

    def _written(self, slot: int, offset: int, key_offset: int, covered: int) -> None:
        self._offsets[slot] = offset
        self._key_offsets[slot] = key_offset
        # Here, not when the future's callbacks run: the request that this snapshot rode with is counted before those, and if
        # it makes the next snapshot due that one must begin, or a restart would replay one request more.
        self._running = None
        if covered > 0:  # what is left has come since it was begun, or lies behind what is not decided; so it is about as old
            self._since = self._clock.monotonic()
        self._schedule.done(self._clock.monotonic(), covered)

    def _ended(self, ended: asyncio.Future[None]) -> None:
        if self._running is ended:
            self._running = None
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not isinstance(error, OncelogError):  # those are the writer's to report
            _log.error("a snapshot failed; the next one will be taken when it is due: %s", error, exc_info=error)
            self._schedule.done(self._clock.monotonic(), 0)  # not with each message


def _encoded(snapshots: Sequence[Snapshot]) -> list[bytes]:
    return [each.to_bytes() for each in snapshots]
