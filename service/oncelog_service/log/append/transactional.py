"""What transactions do on one topic: store, publish what is stored, roll back, and learn how a transaction ended.

Rows of a transaction are marked as rolled back (the sign of T inverted) by whoever is first: the client's ``rollback``, or the
service itself when the transaction was aborted, invalidated or timed out. Either way the producers' maps step back by the one
fold that recovery uses. A row is never unmarked, and never marked once its transaction has committed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

from oncelog.errors import RollbackRefused, SequenceReused, StaleMessageId, TransactionNotInProgress
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest, PublishResponse, ReceiptRun, Rollback
from oncelog_dedup import Run
from oncelog_service.log.append.expectations import Expectations
from oncelog_service.log.append.judge import Judge, sequence_gap
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.append.receipts import response, unplaced_runs
from oncelog_service.log.append.unnamed import Unnamed
from oncelog_service.log.cache import TopicCache
from oncelog_service.log.groups.stored import Appearances, Groups, StoredGroup, find_stored
from oncelog_service.log.numbers import reused
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import row_at, rows_from
from oncelog_service.reading import read
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, ROW_ID_SIZE, row_id
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.rows import (
    Columns,
    GroupRow,
    encode_payload_rows,
    encode_record,
    rolled_back,
)

_MARKED_AT_ONCE = 2_000
"""Rows that one write marks as rolled back. The transaction is hidden as a whole until the last of them is."""


class Transactional:
    """The transactional side of one open topic. Works on the event loop that owns it."""

    def __init__(
        self,
        topic: OpenTopic,
        appearances: Appearances,
        cache: TopicCache,
        producers: Producers,
        groups: Groups,
        expectations: Expectations,
        on_published: Callable[[Run, Run | None], None],
        on_settled: Callable[[], None],
    ) -> None:
        """``on_published``: a group's row is on disk, with the runs for the producers and for the keys. ``on_settled``: a
        snapshot may go further now."""
        self._prefix = topic.prefix
        self._created = topic.row.created if topic.row.generation > 1 else 0
        """No row of this generation is older, ms."""
        self._store = topic.store
        self._writer = topic.writer
        self._clock = topic.clock
        self._dedup = topic.dedup
        self._keys = topic.keys
        self._appearances = appearances
        self._cache = cache
        self._producers = producers
        self.groups = groups
        self.unnamed = Unnamed(topic)
        self.pointers = topic.pointers
        self._transactions = topic.transactions
        self._expectations = expectations
        self._check_open = topic.check_open
        self._on_published = on_published
        self._on_settled = on_settled
        self.watchers: list[set[str]] = []
        """Producers that step back are added to each of these: for whoever compares the log with the maps meanwhile."""
        self.judge: Judge
        """Set right after it is built: it settles what it finds ended, here."""

    # --- store

    async def store(self, request: PublishRequest, pointer: int) -> PublishResponse:
        """Put the messages that are new behind those stored under the pointer. Raises StoredGroupPublished."""
        producer, ids = request.producer, request.sequence_ids
        group = await self.groups.open(pointer)
        before = await self.judge.known(request, gaps=False)
        stored = await self._stored_already(group, request, before.messages)
        known = before.messages + stored
        receipts = before.receipts + unplaced_runs(DUPLICATE, ids and ids[before.messages : known], stored)
        if known == len(request.payloads):
            return response(receipts, write_pointer=pointer)
        if producer is not None:  # once more: what is in the group was waited for
            await self._producers.check_epoch(producer, request.epoch)
        self._check_open()
        self._writer.check()
        self.pointers.check(pointer)
        columns = columns_of(request, known, None)
        batch = Batch()
        with group.stamps.given_back():
            payload_ids, first = group.stamps.take(len(columns.payloads), self._clock.now_ms())
            batch.put_run(Table.PAYLOAD, group.key, payload_ids, encode_payload_rows(columns, payload_ids, first))
        with self._writer.moving():
            group.push(producer, columns.sequence_ids, payload_ids, first)
            group.push_keys(columns.keys, payload_ids, first)
            done = self._writer.submit(batch, partial(group.persist, producer, columns.sequence_ids, payload_ids, first))
        await done
        receipts += unplaced_runs(STORED, columns.sequence_ids, len(columns.payloads))
        return response(receipts, write_pointer=pointer)

    async def _stored_already(self, group: StoredGroup, request: PublishRequest, known: int) -> int:
        """How many of the request's messages behind the first ``known`` ones are in the group; the others are new to it."""
        producer, ids = request.producer, request.sequence_ids
        while True:
            self._check_open()
            if group.row is not None:
                await self._writer.settled()
                group.check_open()
            if ids is None or (producer is not None and not self.judge.deduplicates):
                return 0
            rest = ids[known:]
            verdict = group.judge(producer, rest)
            if verdict.in_flight:
                await self._writer.settled()
                continue
            if producer is not None:
                self._check_gap(group, producer, rest[verdict.persisted :])
            if not verdict.persisted:
                return 0
            repeated = rest[: verdict.persisted]
            found = await read(find_stored, self._store, group.key, producer, repeated)
            for sequence_id, payload in zip(repeated, request.payloads[known:], strict=False):
                if sequence_id in found and found[sequence_id].payload != payload:
                    raise _stored_otherwise(group.pointer, producer, sequence_id)
            if group.row is None and group.judge(producer, rest) == verdict:
                return verdict.persisted

    def _check_gap(self, group: StoredGroup, producer: str, new_ids: Sequence[int]) -> None:
        gap = self._producers.gap(producer, new_ids, group.dedup.last_pushed(producer))
        if gap is not None:
            raise sequence_gap(producer, *gap)

    # --- publish what is stored

    async def publish_stored(self, request: PublishRequest, pointer: int) -> PublishResponse:
        """Insert the one row that makes everything stored under the pointer appear, as one contiguous group.

        Raises:
            StoredGroupPublished: it was; a named producer that repeats its own request gets `duplicate` instead.
            SequenceReused: a producer has published ids of the group outside of it meanwhile.
            OffsetMismatch, KeyInTransaction: what the request expects does not hold.
        """
        group = await self.groups.open(pointer)
        while True:
            self._check_open()
            if request.producer is not None:
                await self._producers.check_epoch(request.producer, request.epoch)
            if group.row is not None:
                return await self._published_already(group, group.row, request.producer)
            if not group.settled:
                await self._writer.settled()
                continue
            self._writer.check()
            self.pointers.check(pointer)
            if not request.conditional or (found := self._expectations.found(request)) is None:
                break
            await self._expectations.refuse(found, pointer)
        if self.judge.deduplicates:
            self._check_still_new(group)
        return await self._insert(group, request.producer)

    async def _insert(self, group: StoredGroup, producer: str | None) -> PublishResponse:
        """From the checks to the hand-over nothing awaits, and nothing raises."""
        batch = Batch()
        with self._writer.moving():
            run, keyed = self._appearances.put(batch, group, producer)
            done = self._writer.submit(batch, partial(self._on_published, run, keyed))
        await done
        at = run.first_id[:ROW_ID_SIZE]
        return response(_group_receipt(STORED, group, at, run.count, run.first_offset), [at], group.pointer)

    async def _published_already(self, group: StoredGroup, row: GroupRow, producer: str | None) -> PublishResponse:
        await self._writer.settled()
        if row.row_id is None or producer is None or producer != row.producer:
            group.check_open()
        at = bytes.fromhex(row.row_id or "")
        stored = await read(row_at, self._store, self._prefix, at)
        receipts = [] if stored is None else _group_receipt(DUPLICATE, group, at, stored.messages, stored.offset)
        return response(receipts, [at], group.pointer)

    def _check_still_new(self, group: StoredGroup) -> None:
        for name in group.producers():
            pushed, first = self._dedup.last_pushed(name), group.first_sequence_id(name)
            if pushed is not None and pushed.sequence_id >= first:
                raise SequenceReused(
                    f"producer {name!r} has published up to sequence id {pushed.sequence_id} outside of the group stored under "
                    f"write pointer {group.pointer}, which begins with {first}",
                    producer=name,
                    sequence_id=first,
                )

    # --- roll back

    async def roll_back(self, rollback: Rollback) -> None:
        """Mark rows of the pointer's requests, as the client asks for; twice is as once.

        Raises:
            RollbackRefused: the range is not exactly what requests of this pointer published here. Nothing is changed.
            TransactionNotInProgress: it has committed. StaleMessageId: the rows belong to an older generation.
        """
        pointer = rollback.write_pointer
        first, last = row_id(*rollback.start), row_id(*rollback.end)
        if not any(first) and not any(last):
            return  # a request that stored nothing has nothing to roll back
        if rollback.start[0] < self._created:
            raise StaleMessageId("the rows to roll back are older than this generation of the topic")
        async with self.pointers.changing(pointer), self.pointers.refusing_for_good(pointer):
            await self._writer.settled()
            state = (await self._transactions.states([pointer])).get(pointer)
            if state == "committed":
                raise TransactionNotInProgress(f"the transaction {pointer} has committed", write_pointer=pointer, state=state)
            runs = self._runs_between(pointer, first, last)
            if runs and (runs[0].first_id[:ROW_ID_SIZE], runs[-1].last_id[:ROW_ID_SIZE]) == (first, last):
                await self._mark(pointer, runs, still_open=state not in ("aborted", "invalid"))
            elif runs or not await read(_are_rolled_back, self._store, self._prefix, pointer, first, last):
                raise _refused(pointer)

    def whole_requests(self, pointer: int, row_ids: Sequence[bytes]) -> list[bytes]:
        """Row ids, rising, of the ends of the pointer's unsettled requests that these rising rows are in: only whole ones are
        rolled back."""
        ends: list[bytes] = []
        for run in self._dedup.fold.unsettled.get(pointer, ()):
            first, last = run.first_id[:ROW_ID_SIZE], run.last_id[:ROW_ID_SIZE]
            at = bisect_left(row_ids, first)
            if at < len(row_ids) and row_ids[at] <= last:
                ends += (first, last)
        return ends

    def _runs_between(self, pointer: int, first: bytes, last: bytes) -> list[Run]:
        """The pointer's unsettled requests that lie in the range."""
        return [
            run
            for run in self._dedup.fold.unsettled.get(pointer, ())
            if first <= run.first_id[:ROW_ID_SIZE] and run.last_id[:ROW_ID_SIZE] <= last
        ]

    async def _mark(self, pointer: int, runs: Iterable[Run], *, still_open: bool = False) -> None:
        """Invert the sign of T in the rows of these runs. ``still_open``: refuse if the transaction ends meanwhile."""
        for part in _slices(runs):
            row_ids, rows = await read(_read_marked, self._store, self._prefix, part)
            self._check_open()
            if still_open:
                self.pointers.check(pointer)
            batch = Batch()
            for at, row in zip(row_ids, rows, strict=True):
                batch.put(Table.MESSAGE, self._prefix + at, row)  # a run is what is new
            await self._writer.submit(batch, partial(self._marked, pointer, part, row_ids, rows))

    def _marked(self, pointer: int, runs: Sequence[Run], row_ids: Sequence[bytes], rows: Sequence[bytes]) -> None:
        affected = self._dedup.fold.roll_back(pointer, runs)
        if self._keys is not None:
            self._keys.roll_back(pointer, runs)
        for watcher in self.watchers:
            watcher |= affected
        self._cache.replace(row_ids, rows)
        self._on_settled()

    # --- how a transaction ended

    async def settle(self, pointer: int, committed: bool) -> None:
        """The transaction has ended for good: its rows count from now on, or are marked. Twice is as once."""
        async with self.pointers.changing(pointer):
            if committed:
                await self._writer.settled()
                self._dedup.fold.commit(pointer)
                if self._keys is not None:
                    self._keys.commit(pointer)
                self._on_settled()
            else:
                async with self.pointers.closed(pointer):
                    await self._writer.settled()
                    await self._mark(pointer, self._dedup.fold.unsettled.get(pointer, ()))
            self.groups.close(pointer)
            self.unnamed.close(pointer)
            self.pointers.forget(pointer)

    def outlived(self) -> list[int]:
        """Unsettled write pointers that are older than any transaction may become."""
        return [pointer for pointer in self._dedup.fold.unsettled if self.pointers.outlived(pointer)]

    async def expire_stored(self, pointer: int) -> bool:
        """Note that what is stored under the pointer has expired, unless it is published; whether it may be deleted."""
        group = await self.groups.open(pointer)
        self._check_open()
        if group.row is None and group.settled:
            group.row = GroupRow(None)
            batch = Batch()
            batch.put(Table.GROUP, group.key, encode_record(group.row))
            await self._writer.submit(batch, lambda: None)
        if group.row is None or group.row.row_id is not None:
            return False
        self.groups.close(pointer)
        return True


def columns_of(request: PublishRequest, known: int, previous: bytes | None, write_pointer: int | None = None) -> Columns:
    """The request's messages behind the first ``known`` ones; ``previous``: row id of the producer's message before them."""
    new = slice(known, None)
    return Columns(
        payloads=request.payloads[new],
        producer=request.producer,
        sequence_ids=request.sequence_ids and request.sequence_ids[new],
        keys=request.keys and request.keys[new],
        properties=request.properties and request.properties[new],
        ttls=request.ttls and request.ttls[new],
        previous=previous,
        write_pointer=write_pointer,
        tails=request.tails and request.tails[new],
    )


def _stored_otherwise(pointer: int, producer: str | None, sequence_id: int) -> SequenceReused:
    if producer is None:
        return reused(pointer, sequence_id)
    return SequenceReused(
        f"sequence id {sequence_id} of producer {producer!r} is stored under write pointer {pointer} with another payload",
        producer=producer,
        sequence_id=sequence_id,
    )


def _group_receipt(status: str, group: StoredGroup, at: bytes, messages: int, offset: int) -> list[ReceiptRun]:
    if not messages:
        return []
    return [ReceiptRun(status, messages, None, at + (group.first_payload_id or FIRST_PAYLOAD_ID), offset)]


def _slices(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Runs of about :data:`_MARKED_AT_ONCE` rows at a time; a copy, since marking changes what is unsettled."""
    part: list[Run] = []
    rows = 0
    for run in tuple(runs):
        part.append(run)
        rows += run.count
        if rows >= _MARKED_AT_ONCE:
            yield part
            part, rows = [], 0
    if part:
        yield part


def _read_marked(store: Store, prefix: bytes, runs: Sequence[Run]) -> tuple[list[bytes], list[bytes]]:
    """The rows of the runs, already with their sign inverted. Raises TopicDamaged."""
    row_ids: list[bytes] = []
    rows: list[bytes] = []
    for run in runs:
        last = run.last_id[:ROW_ID_SIZE]
        with closing(rows_from(store, prefix, run.first_id[:ROW_ID_SIZE])) as found:
            for at, row in found:
                if at > last:
                    break
                row_ids.append(at)
                rows.append(rolled_back(row))
                if at == last:
                    break
    return row_ids, rows


def _are_rolled_back(store: Store, prefix: bytes, pointer: int, first: bytes, last: bytes) -> bool:
    """Whether the range begins and ends with rows of the pointer that are marked already."""
    return all(row is not None and row.write_pointer == -pointer for row in (row_at(store, prefix, at) for at in (first, last)))


def _refused(pointer: int) -> RollbackRefused:
    return RollbackRefused(
        f"the rows to roll back are not exactly what requests under write pointer {pointer} published here",
        write_pointer=pointer,
    )
