"""Deletes what has expired, and what is left of deleted topics, in slices that hold up no request.

Expired messages are invisible from the first millisecond whether they are deleted or not; this only frees the space.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from oncelog.errors import NotServedHere, OncelogError
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.clock import Clock
from oncelog_service.log.groups.payloads import (
    Outdated,
    branch_keys,
    generations_with_payloads,
    outdated_branches,
    outdated_groups,
    payload_keys,
)
from oncelog_service.log.groups.stored import read_group_row
from oncelog_service.log.scan import bytes_of, expired_rows, next_keys, trim_of
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.properties import live_from
from oncelog_service.reading import Scans
from oncelog_service.storage.keys import FIRST_GENERATION, generation_key, topic_key
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import TopicRow
from oncelog_service.topics.directory import TopicName
from oncelog_service.topics.topics import Topics

_log = logging.getLogger(__name__)

SLICE = 1_000
"""Rows deleted in one write. Deletes by key in one giant batch ran a real system out of memory (CDAP-17939)."""
_BY_GENERATION = (
    Table.MESSAGE,
    Table.PAYLOAD,
    Table.SNAPSHOT,
    Table.KEY_SNAPSHOT,
    Table.TRIM,
    Table.LOST,
    Table.ENDED,
    Table.EXPIRY,
    Table.GROUP,
    Table.CHUNK,
)
_WITH_NONCES = (Table.PRODUCER, Table.SUBSCRIPTION)
_NONCES_SECONDS = 600.0
"""How long the rows of a deleted topic's producers and subscriptions stay, from when this process first sees it deleted: an open
that the network repeats or holds up is known again in the topic's next generation."""


@dataclass(slots=True)
class _Old:
    """What is left of older generations of a topic."""

    below: int
    """The first generation that stays."""
    since: float
    """When this process first saw that those before it are deleted."""
    tables: list[Table]
    """Where rows may be left that are due; empty a round after none was found."""
    nonces_gone: bool = False
    """Rows with nonces were due too."""


class Retention:
    """The background task of one opening of the store."""

    def __init__(
        self,
        topics: Topics,
        scans: Scans,
        needs: Callable[[int], bool],
        store: Store,
        clock: Clock,
        every_seconds: float,
        max_transaction_lifetime_ms: int,
    ) -> None:
        """``needs``: whether what is staged under this number must stay."""
        self._topics = topics
        self._scans = scans
        self._needs = needs
        self._store = store
        self._clock = clock
        self._every_seconds = every_seconds
        self._max_transaction_lifetime_ms = max_transaction_lifetime_ms
        self._old: dict[TopicName, _Old] = {}
        """What is being deleted, or gone, of older generations."""

    async def run(self) -> None:
        """Go over all topics again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            try:
                await self.once()
            except OncelogError as error:
                _log.warning("retention stopped early and will try again: %s", error)

    async def once(self) -> int:
        """Go over all topics once; returns how many rows were deleted."""
        deleted = 0
        for log in list(self._topics.logs.opened.values()):
            log.snapshots.begin_if_due()
            log.trimming.begin_if_due()
            await self._end_expired(log)
        with_payloads = await self._with_payloads()
        for name, row in await self._scans.read(lambda: list(self._topics.directory.rows())):
            if not self._topics.logs.belongs_here(name):
                continue
            try:
                deleted += await self._old_generations(name, row)
                if not row.deleted:
                    await self._open_too_large(name, row)
                    deleted += await self._expired(name, row)
                    deleted += await self._payloads(name, row, with_payloads)
            except NotServedHere:
                continue  # the process that serves it sees to it
            except OncelogError as error:
                _log.warning("retention of %s/%s failed and will be tried again: %s", *name, error)
            except Exception:
                _log.exception("retention of %s/%s failed and will be tried again", *name)
        return deleted

    async def _with_payloads(self) -> set[bytes] | None:
        """Of which generations of topics payloads are to be looked at; None: of all, as it is not known which have some."""
        try:
            return await self._scans.read(generations_with_payloads, self._store)
        except OncelogError:
            return None

    async def _end_expired(self, log: TopicLog) -> None:
        try:
            await log.end_idle_producers()
            await log.settling.settle_expired()
        except OncelogError as error:
            _log.warning("old transactions and names of producers cannot be ended now and will be: %s", error)

    async def _open_too_large(self, name: TopicName, row: TopicRow) -> None:
        """Open a topic that trims itself and is too large, since it may have less than before: it goes on from there."""
        limit = self._topics.policies.max_bytes(name[0], row)
        if limit is None or not limit.trims or name in self._topics.logs.opened:
            return
        prefix = generation_key(topic_key(*name), row.generation)
        if await self._scans.read(bytes_of, self._store, prefix) > limit.bytes:
            await self._topics.logs.open(*name)

    async def _expired(self, name: TopicName, row: TopicRow) -> int:
        """Opens the topic only if there is something to delete: 10,000 idle topics stay closed."""
        prefix = generation_key(topic_key(*name), row.generation)
        deleted = 0
        while True:
            now_ms = self._clock.now_ms()
            rows = await self._scans.read(expired_rows, self._store, prefix, live_from(row, now_ms), now_ms, SLICE)
            if not rows:
                return deleted
            log = await self._topics.logs.open(*name)
            if log.prefix != prefix or log.row != row:
                return deleted  # changed meanwhile; the next round sees the new row
            trimmed = await log.removal.delete(rows)
            deleted += trimmed
            if trimmed < len(rows):
                return deleted  # what is left is not settled yet

    async def _payloads(self, name: TopicName, row: TopicRow, where: set[bytes] | None) -> int:
        """Stored groups that are published and trimmed, and those that expired before they were published."""
        prefix = generation_key(topic_key(*name), row.generation)
        if where is not None and prefix not in where:
            return 0
        begin = live_from(row, self._clock.now_ms())
        trimmed = (await self._scans.read(trim_of, self._store, prefix)).hidden_below > 0
        oldest, deleted = self._oldest_pointer(), 0
        for group in await self._scans.read(outdated_groups, self._store, prefix, begin, oldest, trimmed):
            if group.unpublished and not await self._expire_stored(name, prefix, group):
                continue
            deleted += await self._delete(name, partial(payload_keys, self._store, group, SLICE))
        for branch in await self._scans.read(outdated_branches, self._store, prefix, begin, trimmed):
            if branch.published or await self._is_left_over(name, prefix, branch.number):
                deleted += await self._delete(name, partial(branch_keys, self._store, branch.key, SLICE))
        return deleted

    async def _is_left_over(self, name: TopicName, prefix: bytes, number: int) -> bool:
        """Whether what was staged under the number will never be copied, nor has been since it was looked at.

        Asked in this order: once nothing needs it, its commit has been handed over, if there was one, and is seen on disk.
        """
        if self._needs(number):
            return False
        await (await self._topics.logs.writer(name)).drained()
        return await self._scans.read(read_group_row, self._store, prefix, -number) is None

    async def _expire_stored(self, name: TopicName, prefix: bytes, group: Outdated) -> bool:
        log = await self._topics.logs.open(*name)
        return log.prefix == prefix and await log.expire_stored(group.pointer)

    def _oldest_pointer(self) -> int:
        """Older write pointers are refused: nothing needs to be known of them any more."""
        return (self._clock.now_ms() - self._max_transaction_lifetime_ms) * POINTERS_PER_MS

    async def _old_generations(self, name: TopicName, row: TopicRow) -> int:
        first_kept = row.generation + 1 if row.deleted else row.generation
        if first_kept == FIRST_GENERATION:
            return 0
        old = self._old.get(name)
        if old is None or old.below != first_kept:
            old = self._old[name] = _Old(first_kept, self._clock.monotonic(), list(_BY_GENERATION))
        if not old.tables:
            if old.nonces_gone or self._clock.monotonic() - old.since < _NONCES_SECONDS:
                return 0
            old.nonces_gone, old.tables = True, list(_WITH_NONCES)
        start, stop = generation_key(topic_key(*name), 0), generation_key(topic_key(*name), first_kept)
        deleted = 0
        for table in old.tables:
            deleted += await self._delete(name, partial(self._keys, table, start, stop))
        if not deleted:
            old.tables = []
        return deleted

    def _keys(self, table: Table, start: bytes, stop: bytes) -> list[tuple[Table, bytes]]:
        with closing(self._store.scan(table, start, stop)) as rows:
            return [(table, key) for key in next_keys(rows, SLICE)]

    async def _delete(self, name: TopicName, next_keys: Callable[[], list[tuple[Table, bytes]]]) -> int:
        """Delete slice after slice, until there is none. Raises NotServedHere."""
        deleted = 0
        while keys := await self._scans.read(next_keys):
            batch = Batch()
            for table, key in keys:
                batch.delete(table, key)
            await (await self._topics.logs.writer(name)).submit(batch)
            deleted += len(keys)
        return deleted
