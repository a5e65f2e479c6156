"""One topic's log while it is open: the main path.

``publish``: judge → stamp → write → persist → answer. From the verdict to the hand-over to the writer nothing awaits, so that
ids and offsets are assigned, and sequence ids pushed, in one step per request; the writer keeps that order, and so do the
answers. ``poll``: bound by TTL → rows → encoded.

Everything here is what recovery.py folded from disk plus what was persisted since. After a failed write the object is closed and
a new one is recovered; it is never repaired in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from oncelog.errors import OffsetOutOfRange, SequenceGap, SequenceReused, StaleMessageId, StorageUnavailable
from oncelog.wire.requests import DUPLICATE, STORED, ConsumeRequest, PublishRequest, PublishResponse, ReceiptRun
from oncelog_dedup import Deduplicator, Mark, Position, Snapshot, SnapshotSchedule
from oncelog_service.clock import Clock
from oncelog_service.log.cache import TopicCache
from oncelog_service.log.checks import check_consume, check_publish
from oncelog_service.log.history import FURTHER, MOST_RECENT, find_originals
from oncelog_service.log.producers import Producers
from oncelog_service.log.reading import read
from oncelog_service.log.recovery import Recovered
from oncelog_service.log.scan import Bounds, Encode, Page, after, collect, find_offset, read_page
from oncelog_service.log.snapshots import Snapshots
from oncelog_service.log.stamps import Stamps
from oncelog_service.log.writer import Writer
from oncelog_service.properties import live_from
from oncelog_service.storage.keys import FIRST_ROW_ID, ROW_ID_SIZE, split_row_id, timestamp_prefix
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.rows import Columns, Row, TopicRow, TrimRow, encode_record, encode_rows, message_id_of


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one call may ask for, and how often snapshots are taken."""

    max_messages: int = 10_000
    """Per publish request."""
    default_poll_messages: int = 1_000
    max_poll_messages: int = 100_000
    max_poll_bytes: int = 8 * 2**20
    max_wait_ms: int = 60_000
    snapshot_messages: int = 1_000
    snapshot_seconds: float = 120.0


class TopicLog:
    """An open topic. All methods run on the event loop that owns it."""

    def __init__(
        self,
        prefix: bytes,
        row: TopicRow,
        recovered: Recovered,
        store: Store,
        writer: Writer,
        cache: TopicCache,
        clock: Clock,
        limits: Limits,
        deduplication: Callable[[], bool],
    ) -> None:
        """``prefix`` begins every key of this generation; ``deduplication`` says what holds for the topic at each request."""
        self.row = row
        self.prefix = prefix
        self.replayed = recovered.replayed
        self.earliest_offset = recovered.earliest_offset
        self._begin = FIRST_ROW_ID
        """The key before which retention has deleted everything since the topic was opened."""
        self.position: Position = recovered.position
        """Just behind the last persisted message."""
        self.deduplication = deduplication
        self.dedup = Deduplicator(recovered.marks)
        self.producers = Producers(prefix, recovered.producers, self.dedup, store, writer, lambda: self.position.upcoming_offset)
        self.snapshots = Snapshots(
            prefix,
            recovered.snapshots,
            SnapshotSchedule(clock.monotonic(), limits.snapshot_messages, limits.snapshot_seconds, recovered.replayed),
            writer,
            clock,
            lambda: Snapshot(self.dedup.persisted, self.position),
        )
        last_id = recovered.position.last_message_id
        self._stamps = Stamps(row.created, recovered.position.upcoming_offset, last_id and last_id[:ROW_ID_SIZE])
        self._store = store
        self._writer = writer
        self.cache = cache
        self._clock = clock
        self._limits = limits
        self.stored = 0
        """Messages stored since the topic was opened."""
        self.refused = 0
        """Messages answered as duplicates since then."""
        self._arrivals: set[asyncio.Future[None]] = set()
        self._trimming = asyncio.Lock()
        self._closed = False

    # --- publish --------------------------------------------------------------------------------------------------------

    async def publish(self, request: PublishRequest) -> PublishResponse:
        """Store the messages that are new, once; answer when they, and whatever the answer depends on, are synced.

        Raises:
            InvalidRequest, RequestTooLarge, ProducerFenced, SequenceGap, SequenceReused: definite; nothing is stored.
            StorageUnavailable: definite, nothing is stored. StorageFailed: not definite.
        """
        check_publish(request, self._limits.max_messages)
        duplicates: list[ReceiptRun] = []
        known = 0
        if request.producer is not None and request.sequence_ids is not None:
            duplicates = await self._duplicates(request.producer, request.sequence_ids, request.payloads, request.epoch)
            known = sum(run.count for run in duplicates)
            self.refused += known
            if known == len(request.payloads):
                return PublishResponse(duplicates)
        self._check_open()
        self._writer.check()  # what is stamped and pushed below must be submitted
        columns = self._columns(request, known)
        row_ids, first_offset = self._stamps.take(len(columns.payloads), self._clock.now_ms())
        rows = encode_rows(columns, row_ids, first_offset)
        batch = Batch()
        batch.put_run(Table.MESSAGE, self.prefix, row_ids, rows)
        sequence_id = -1 if columns.sequence_ids is None else columns.sequence_ids[-1]
        last = Mark(sequence_id, message_id_of(row_ids[-1]), first_offset + len(rows) - 1)
        if columns.producer is not None:
            self.dedup.push(columns.producer, last)
        await self._writer.submit(batch, partial(self._persisted, columns.producer, last, row_ids, rows))
        return _response(duplicates, columns.sequence_ids, row_ids, first_offset)

    async def _duplicates(
        self, producer: str, sequence_ids: Sequence[int], payloads: Sequence[bytes], epoch: int | None
    ) -> list[ReceiptRun]:
        """Receipts of those messages, at the beginning of the request, that are already stored.

        When this returns, the request's other messages are new at this very moment.
        """
        receipts: list[ReceiptRun] = []
        known = 0
        while True:
            self._check_open()
            await self.producers.check_epoch(producer, epoch)
            if not self.deduplication():
                return []
            verdict = self.dedup.judge(producer, sequence_ids)
            if verdict.in_flight:
                await self._writer.settled()
            elif verdict.persisted != known:
                known = verdict.persisted
                receipts = await self._originals(producer, sequence_ids[:known], payloads)
            elif (gap := self.producers.gap(producer, sequence_ids[known:])) is None:
                return receipts
            elif self.dedup.in_flight(producer):
                await self._writer.settled()  # the refusal depends on what is being written
            else:
                raise SequenceGap(
                    f"producer {producer!r} refuses gaps: expected sequence id {gap[0]}, received {gap[1]}",
                    producer=producer,
                    expected=gap[0],
                    received=gap[1],
                )

    async def _originals(self, producer: str, sequence_ids: Sequence[int], payloads: Sequence[bytes]) -> list[ReceiptRun]:
        mark = self.dedup.last_persisted(producer)
        assert mark is not None  # something of it was judged persisted
        # Up to the newest message: this may be the most recent request again, which always gets its original ids.
        bounds = MOST_RECENT if sequence_ids[-1] == mark.sequence_id else FURTHER
        rows = await read(find_originals, self._store, self.prefix, mark.message_id[:ROW_ID_SIZE], sequence_ids, bounds)
        for sequence_id, payload in zip(sequence_ids, payloads, strict=False):
            original = rows.get(sequence_id)
            if original is not None and original.payload != payload:
                raise SequenceReused(
                    f"sequence id {sequence_id} of producer {producer!r} is stored at offset {original.offset} "
                    "with another payload",
                    producer=producer,
                    sequence_id=sequence_id,
                    message_id=original.message_id.hex(),
                    offset=original.offset,
                )
        return _duplicate_runs(sequence_ids, rows)

    def _columns(self, request: PublishRequest, known: int) -> Columns:
        """The messages behind the first ``known`` ones."""
        newest = None if request.producer is None else self.dedup.last_pushed(request.producer)
        previous = None if newest is None else newest.message_id[:ROW_ID_SIZE]
        new = slice(known, None)
        return Columns(
            payloads=request.payloads[new],
            producer=request.producer,
            sequence_ids=request.sequence_ids and request.sequence_ids[new],
            keys=request.keys and request.keys[new],
            properties=request.properties and request.properties[new],
            ttls=request.ttls and request.ttls[new],
            previous=previous,
        )

    def _persisted(self, producer: str | None, last: Mark, row_ids: list[bytes], rows: list[bytes]) -> None:
        if producer is not None:
            self.dedup.persist(producer, last)
        self.stored += len(rows)
        self.cache.append(row_ids, rows)
        self.position = Position(last.offset + 1, last.message_id)
        self.snapshots.count(len(rows))
        self._wake()

    # --- poll -----------------------------------------------------------------------------------------------------------

    async def poll(self, request: ConsumeRequest, encode: Encode) -> Page:
        """The messages from where the request says, at most its limit; an empty page after its wait at the latest.

        Raises:
            InvalidRequest, StaleMessageId, OffsetOutOfRange: definite. TopicDamaged: a message is damaged or missing.
        """
        check_consume(request, self._limits.max_wait_ms)
        self._check_open()
        limit = min(request.limit or self._limits.default_poll_messages, self._limits.max_poll_messages)
        start = await self._start(request)
        end = self._clock.monotonic() + (request.wait or 0) / 1000
        while True:
            page = await self._page(start, limit, encode)
            if page.last_row_id is not None:
                start = after(page.last_row_id)
            left = end - self._clock.monotonic()
            if page.messages or left <= 0:
                return page
            await self._arrival(start, left)
            self._check_open()

    async def _page(self, start: bytes, limit: int, encode: Encode) -> Page:
        # Not behind the last message: what had expired before a restart stays so when the clock was set back meanwhile.
        now_ms = max(self._clock.now_ms(), self._stamps.last_timestamp)
        # What was deleted stays so, although the cache may still hold it.
        start = max(start, self._begin, timestamp_prefix(live_from(self.row, now_ms)))
        last_id = self.position.last_message_id
        if last_id is None or last_id[:ROW_ID_SIZE] < start:
            return Page([], None)
        bounds = Bounds(limit, self._limits.max_poll_bytes, now_ms)
        cached_from = self.position.upcoming_offset - self.cache.messages
        if self.cache.covers(start) or cached_from <= self.earliest_offset:
            return collect(self.cache.rows(start), bounds, encode)
        return await read(read_page, self._store, self.prefix, start, bounds, encode)

    async def _start(self, request: ConsumeRequest) -> bytes:
        """The key at which the scan begins."""
        if request.start_offset is not None:
            return await self._start_at_offset(request.start_offset + (not request.inclusive))
        if request.start_from is None:
            return FIRST_ROW_ID
        if isinstance(request.start_from, int):
            return timestamp_prefix(request.start_from + (not request.inclusive))
        return self._start_at_id(request.start_from, request.inclusive)

    async def _start_at_offset(self, offset: int) -> bytes:
        upcoming = self.position.upcoming_offset
        if offset > upcoming:
            raise OffsetOutOfRange(f"offset {offset} lies beyond the upcoming offset {upcoming}", upcoming=upcoming)
        last_id = self.position.last_message_id
        if offset < upcoming and offset > self.earliest_offset:
            found = await read(find_offset, self._store, self.prefix, offset)
            if found is not None:
                return found
        return after(last_id[:ROW_ID_SIZE]) if last_id is not None and offset == upcoming else FIRST_ROW_ID

    def _start_at_id(self, message_id: bytes, inclusive: bool) -> bytes:
        row_id, in_row = message_id[:ROW_ID_SIZE], message_id[ROW_ID_SIZE:]
        timestamp, _ = split_row_id(row_id)
        if self.row.generation > 1 and timestamp < self.row.created:
            raise StaleMessageId(
                f"message id {message_id.hex()} is older than generation {self.row.generation} of the topic; "
                "start from the oldest",
                generation=self.row.generation,
            )
        return row_id if inclusive and not any(in_row) else after(row_id)

    async def _arrival(self, start: bytes, seconds: float) -> None:
        """Return when there may be something at or after ``start``, or the time is over."""
        last_id = self.position.last_message_id
        if last_id is not None and last_id[:ROW_ID_SIZE] >= start:
            return
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals.add(arrival)
        try:
            await asyncio.wait([arrival], timeout=seconds)
        finally:
            self._arrivals.discard(arrival)

    def _wake(self) -> None:
        for arrival in self._arrivals:
            if not arrival.done():
                arrival.set_result(None)
        self._arrivals.clear()

    # --- keeping house --------------------------------------------------------------------------------------------------

    async def trim(self, row_ids: Sequence[bytes]) -> int:
        """Delete the oldest messages, whose row ids these are; returns how many. Both snapshots cover them first."""
        async with self._trimming:
            return await self._trim(row_ids)

    async def _trim(self, row_ids: Sequence[bytes]) -> int:
        self._check_open()
        if row_ids[0] < self._begin:
            return 0  # another round of retention was here first
        upto = self.earliest_offset + len(row_ids)
        while self.snapshots.covered_by_both < upto:
            await self.snapshots.take()
        batch = Batch()
        for row_id in row_ids:
            batch.delete(Table.MESSAGE, self.prefix + row_id)
        batch.put(Table.TRIM, self.prefix, encode_record(TrimRow(upto)))
        await self._writer.submit(batch, partial(self._trimmed, upto, after(row_ids[-1])))
        return len(row_ids)

    def _trimmed(self, earliest_offset: int, begin: bytes) -> None:
        self.earliest_offset = earliest_offset
        self._begin = begin

    async def close(self, snapshot: bool = True) -> None:
        """Take nothing more; wait for what is in flight and, at a clean stop, leave a snapshot so that nothing is replayed."""
        self._closed = True
        self._wake()
        await self._writer.settled()
        if snapshot and self.snapshots.behind:
            await self.snapshots.take()
        self.cache.clear()

    def release(self) -> None:
        """Take nothing more, and tell whoever waits to try again: before a stop, and after the store has failed."""
        self._closed = True
        self._wake()
        self.cache.clear()

    @property
    def last_timestamp(self) -> int:
        """The highest publish timestamp handed out."""
        return self._stamps.last_timestamp

    def _check_open(self) -> None:
        if self._closed:
            raise StorageUnavailable("the topic was closed meanwhile; nothing was done, try again")


def _response(
    duplicates: list[ReceiptRun], sequence_ids: Sequence[int] | None, row_ids: Sequence[bytes], first_offset: int
) -> PublishResponse:
    runs: list[ReceiptRun] = []
    at = 0
    for count in _run_lengths(sequence_ids, row_ids):
        sequence_id = None if sequence_ids is None else sequence_ids[at]
        runs.append(ReceiptRun(STORED, count, sequence_id, message_id_of(row_ids[at]), first_offset + at))
        at += count
    start_timestamp, start_sequence_id = split_row_id(row_ids[0])
    end_timestamp, end_sequence_id = split_row_id(row_ids[-1])
    return PublishResponse(
        duplicates + runs,
        start_timestamp=start_timestamp,
        start_sequence_id=start_sequence_id,
        end_timestamp=end_timestamp,
        end_sequence_id=end_sequence_id,
    )


def _run_lengths(sequence_ids: Sequence[int] | None, row_ids: Sequence[bytes]) -> list[int]:
    """How many messages in a row share a receipt: one millisecond, and sequence ids that leave nothing out."""
    dense = sequence_ids is None or sequence_ids[-1] - sequence_ids[0] == len(sequence_ids) - 1
    if dense and row_ids[0][:8] == row_ids[-1][:8]:
        return [len(row_ids)]
    lengths = [1]
    for at in range(1, len(row_ids)):
        follows = sequence_ids is None or sequence_ids[at] == sequence_ids[at - 1] + 1
        if follows and row_ids[at][:8] == row_ids[at - 1][:8]:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def _duplicate_runs(sequence_ids: Sequence[int], rows: Mapping[int, Row]) -> list[ReceiptRun]:
    runs: list[ReceiptRun] = []
    for sequence_id in sequence_ids:
        row = rows.get(sequence_id)
        last = runs[-1] if runs else None
        if last is not None and _continues(last, sequence_id, row):
            runs[-1] = last._replace(count=last.count + 1)
        else:
            message_id, offset = (None, None) if row is None else (row.message_id, row.offset)
            runs.append(ReceiptRun(DUPLICATE, 1, sequence_id, message_id, offset))
    return runs


def _continues(run: ReceiptRun, sequence_id: int, row: Row | None) -> bool:
    if run.sequence_id is None or sequence_id != run.sequence_id + run.count:
        return False
    if row is None or run.message_id is None or run.offset is None:
        return row is None and run.message_id is None
    timestamp, seq_id = split_row_id(run.message_id)
    return split_row_id(row.row_id) == (timestamp, seq_id + run.count) and row.offset == run.offset + run.count
