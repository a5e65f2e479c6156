"""What of a topic lives: the one place that says so. Expiry is a one-way street.

A message that was once passed over because it had expired is never delivered again, whatever becomes of the clock, of the
process and of the topic's ttl. Time alone cannot say that: after a restart the clock may have been set back. So a topic keeps its
*judgements*: "rows before this one were judged at that millisecond". Before an answer leaves that passes over what no judgement
on disk has expired yet, the judgement behind it is written.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from oncelog_service.log.judgements import Judgements, judged, judged_at
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import after, following, offset_from, run_from, runs_from, stored_in
from oncelog_service.properties import live_from
from oncelog_service.reading import read
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, ROW_ID_SIZE, timestamp_prefix
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import ExpiryRow, encode_record
from oncelog_service.storage.runs import GROUP

_PASSED_OVER = 10_000
"""Messages that were rolled back and are looked at, at most, for one behind them that was not."""


class Living(NamedTuple):
    """What lives at a moment."""

    now_ms: int
    begin: bytes
    """The first place that the topic's ttl, retention and trims let live: a row id, or in a stored group a message id."""
    judgements: Judgements = ()

    def at(self, row_id: bytes) -> int:
        """The millisecond at which a message's own ttl is judged."""
        return judged_at(self.judgements, row_id, self.now_ms)


class Behind(NamedTuple):
    """What lies behind a place and has expired by the topic's ttl, or was trimmed."""

    lost: bool
    """Whether anything does."""
    first: int | None
    """Offset of the first of it; None: retention has been there, and nobody knows any more."""
    earliest: int | None
    """Offset of the first message that lives; None: none does."""
    oldest: bytes | None
    """Id of the first row that no judgement on disk has expired; None: there is none."""


class Expiry:
    """Says what of one open topic lives, and writes its judgements. Works on the event loop that owns the topic."""

    __slots__ = ("_clock", "_durable", "_judgements", "_oldest", "_prefix", "_store", "_topic", "_writer")

    def __init__(self, topic: OpenTopic, judgements: Judgements) -> None:
        """``judgements``: on disk."""
        self._topic = topic
        self._prefix = topic.prefix
        self._store = topic.store
        self._writer = topic.writer
        self._clock = topic.clock
        self._judgements = judgements
        self._durable = judgements
        self._oldest = timestamp_prefix(topic.row.created)
        """There is no row before this key that no judgement on disk has expired: mostly that is known without looking. None is
        older than its topic."""

    def living(self) -> Living:
        """What lives now."""
        # Not behind the last message: what was published at a time has been there at that time.
        now_ms = max(self._clock.now_ms(), self._topic.stamps.last_timestamp)
        last_row = self._topic.last_row_id
        self._judgements = judged(self._judgements, now_ms, last_row and following(last_row))
        return Living(now_ms, self._begin(self._judgements, now_ms), self._judgements)

    def _begin(self, judgements: Judgements, now_ms: int) -> bytes:
        """The first place that lives by the topic's ttl, and by what was deleted and trimmed."""
        row = self._topic.row
        begins = [min(each.upto, timestamp_prefix(live_from(row, each.ms))) for each in judgements]
        trimmed = self._topic.trimmed_id and following(self._topic.trimmed_id[:ROW_ID_SIZE])
        return max(trimmed, self._topic.hidden_before, timestamp_prefix(live_from(row, now_ms)), *begins)

    async def behind(self, start: bytes, living: Living, rolled_back: bool = False) -> Behind:
        """What lies at or after the place ``start`` and is passed over because the topic's ttl has expired it; that this stays so
        is on disk when this returns. ``rolled_back``: rows that were rolled back are no loss.

        Raises TopicDamaged, StorageUnavailable.
        """
        if start >= living.begin:
            return Behind(False, None, None, None)
        durable = self._begin(self._durable, 0)
        found = await read(_behind, self._store, self._prefix, start, living.begin, durable, self._topic.trimmed_id, rolled_back)
        if found.oldest is not None and found.oldest < living.begin and durable < living.begin:
            await self.keep()
        elif found.oldest is not None:
            self._oldest = max(self._oldest, found.oldest)
        return found

    async def hide(self, living: Living) -> None:
        """See that what lies before the first living row stays expired: that is on disk when this returns."""
        if self._oldest < living.begin and self._topic.last_row_id and self._begin(self._durable, 0) < living.begin:
            await self.behind(FIRST_ROW_ID, living)

    async def passed_over(self, expired_at: int, last: bytes | None) -> None:
        """An answer passes over messages, up to the row ``last``, whose own ttl was over at ``expired_at``: see that it stays."""
        if last is not None and expired_at > judged_at(self._durable, last[:ROW_ID_SIZE], 0):
            await self.keep()

    async def keep(self) -> None:
        """Return when the judgements of this moment are on disk.

        Not those of the caller: it may have been reading meanwhile, and would undo what a later answer stands on.
        """
        judgements = self._judgements
        row = ExpiryRow([[each.ms, each.upto.hex()] for each in judgements])
        batch = Batch()
        batch.put(Table.EXPIRY, self._prefix, encode_record(row))
        await self._writer.submit(batch, lambda: self._kept(judgements))

    def _kept(self, judgements: Judgements) -> None:
        self._durable = judgements


def _behind(store: Store, prefix: bytes, start: bytes, begin: bytes, durable: bytes, trimmed: bytes, rolled_back: bool) -> Behind:
    oldest = run_from(store, prefix, durable[:ROW_ID_SIZE])
    lost, first = start <= trimmed, None
    if not lost:
        first = _first_from(store, prefix, start, begin, rolled_back)
        lost = first is not None
    earliest = offset_from(store, prefix, begin) if lost else None
    return Behind(lost, first, earliest, None if oldest is None else oldest.id_at(oldest.index_from(durable[:ROW_ID_SIZE])))


def _first_from(store: Store, prefix: bytes, start: bytes, begin: bytes, rolled_back: bool) -> int | None:
    """Offset of the first message at or after ``start`` and before ``begin``."""
    at, within = start[:ROW_ID_SIZE], start[ROW_ID_SIZE:]
    passed_over = 0
    with closing(runs_from(store, prefix, at)) as runs:
        for run in runs:
            index = run.index_from(at if run.flags & GROUP or within <= FIRST_PAYLOAD_ID else after(at))
            if index == len(run):
                continue
            if run.id_at(index) >= begin or passed_over > _PASSED_OVER:
                return None
            if rolled_back and run.is_rolled_back:
                passed_over += len(run)
                continue
            if not run.flags & GROUP or run.id != at or within <= FIRST_PAYLOAD_ID:
                return run.first + index
            with closing(stored_in(store, prefix, run, within)) as stored:
                for each in stored:
                    if (index := each.index_from(within)) < len(each):
                        # Of a group a part may be trimmed: then what lives begins in it.
                        return run.first + each.first + index if run.id + each.id_at(index) < begin else None
    return None
