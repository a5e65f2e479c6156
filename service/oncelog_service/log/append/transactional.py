"""What transactions do on one topic: store messages, and publish what is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from oncelog.errors import SequenceReused
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest, PublishResponse, ReceiptRun
from oncelog_service.log.admission import Admission
from oncelog_service.log.append.expectations import Expectations
from oncelog_service.log.append.history import differs
from oncelog_service.log.append.judge import Judge, sequence_gap
from oncelog_service.log.append.log_end import LogEnd, columns_of
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.append.receipts import response, unplaced_runs
from oncelog_service.log.groups.stored import StoredGroup, find_stored
from oncelog_service.log.memory import Memory
from oncelog_service.log.numbers import reused
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import row_at
from oncelog_service.reading import read
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID
from oncelog_service.storage.payload_rows import encode_payloads
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import GroupRow, encode_record
from oncelog_service.storage.runs import Laying


@dataclass(slots=True, eq=False)
class Transactional:
    """The transactional side of one open topic. Works on the event loop that owns it."""

    _topic: OpenTopic
    _memory: Memory
    _producers: Producers
    _judge: Judge
    _expectations: Expectations
    _end: LogEnd

    # --- store

    async def store(self, request: PublishRequest, pointer: int, still: Callable[[], None]) -> PublishResponse:
        """Put the messages that are new behind those stored under the pointer. Raises StoredGroupPublished."""
        producer, ids = request.producer, request.sequence_ids
        group = await self._topic.groups.open(pointer)
        before = await self._judge.known(request, gaps=False)
        stored = await self._stored_already(group, request, before.messages)
        known = before.messages + stored
        receipts = before.receipts + unplaced_runs(DUPLICATE, ids and ids[before.messages : known], stored)
        if known == len(request.payloads):
            return response(receipts, write_pointer=pointer)
        if producer is not None:  # once more: what is in the group was waited for
            await self._producers.check_epoch(producer, request.epoch)
        self._topic.check_open()
        self._topic.pointers.check(pointer)
        still()
        columns = columns_of(request, known, None)
        batch = Batch()
        producers = () if producer is None else (producer,)  # it is counted once it appears
        with Admission(self._topic, len(request.payloads) - known, request.size, producers, stamps=group.stamps) as admission:
            payload_ids, first = group.stamps.take(len(columns.payloads), self._topic.clock.now_ms())
            laying = Laying(Table.PAYLOAD, group.key, first, before_bytes=group.bytes)
            laying.add(payload_ids, encode_payloads(columns))
            batch.put_laid(laying)
            admission.take(laying.upto_bytes)  # what is there, and all of this: it could not appear
            group.bytes = laying.upto_bytes
            group.push(producer, columns.sequence_ids, payload_ids, first)
            group.push_keys(columns.keys, payload_ids, first)
            done = self._topic.writer.submit(batch, partial(group.persist, producer, columns.sequence_ids, payload_ids, first))
        await done
        receipts += unplaced_runs(STORED, columns.sequence_ids, len(columns.payloads))
        return response(receipts, write_pointer=pointer)

    async def _stored_already(self, group: StoredGroup, request: PublishRequest, known: int) -> int:
        """How many of the request's messages behind the first ``known`` ones are in the group; the others are new to it."""
        producer, ids = request.producer, request.sequence_ids
        while True:
            self._topic.check_open()
            if group.row is not None:
                await self._topic.writer.drained()
                group.check_open()
            if ids is None or (producer is not None and not self._topic.rules.deduplicates):
                return 0
            rest = ids[known:]
            verdict = group.judge(producer, rest)
            if verdict.in_flight:
                await self._topic.writer.drained()
                continue
            if producer is not None:
                self._check_gap(group, producer, rest[verdict.persisted :])
            if not verdict.persisted:
                return 0
            repeated = rest[: verdict.persisted]
            found = await read(find_stored, self._topic.store, group.key, producer, repeated)
            for index, sequence_id in enumerate(repeated, known):
                if sequence_id in found and differs(found[sequence_id], request, index):
                    raise _stored_otherwise(group.pointer, producer, sequence_id)
            if group.row is None and group.judge(producer, rest) == verdict:
                return verdict.persisted

    def _check_gap(self, group: StoredGroup, producer: str, new_ids: Sequence[int]) -> None:
        gap = self._producers.gap(producer, new_ids, group.dedup.last_pushed(producer))
        if gap is not None:
            raise sequence_gap(producer, *gap)

    # --- publish what is stored

    async def publish_stored(self, request: PublishRequest, pointer: int, still: Callable[[], None]) -> PublishResponse:
        """Insert the one row that makes everything stored under the pointer appear, as one contiguous group.

        Raises:
            StoredGroupPublished: it was; a named producer that repeats its own request gets `duplicate` instead.
            SequenceReused: a producer has published ids of the group outside of it meanwhile.
            OffsetMismatch, KeyInTransaction: what the request expects does not hold.
        """
        group = await self._topic.groups.open(pointer)
        while True:
            self._topic.check_open()
            if request.producer is not None:
                await self._producers.check_epoch(request.producer, request.epoch)
            if group.row is not None:
                return await self._published_already(group, group.row, request.producer)
            if not group.drained:
                await self._topic.writer.drained()
                continue
            self._topic.pointers.check(pointer)
            if not request.conditional or (found := self._expectations.found(request)) is None:
                break
            await self._expectations.refuse(found, pointer)
        still()
        if self._topic.rules.deduplicates:
            self._check_still_new(group)
        batch = Batch()
        with Admission(self._topic, 0, 0, group.producers(), group.keys) as admission:
            admission.take(group.bytes)
            appeared = self._end.appear(group, request.producer)
            self._end.put_appeared(batch, [appeared])
            done = self._topic.writer.submit(batch, partial(self._memory.group_written, appeared))
        await done
        run, at = appeared.run, appeared.at
        return response(_group_receipt(STORED, group, at, run.count, run.first_offset), [at], group.pointer)

    async def _published_already(self, group: StoredGroup, row: GroupRow, producer: str | None) -> PublishResponse:
        await self._topic.writer.drained()
        if row.row_id is None or producer is None or producer != row.producer:
            group.check_open()
        at = bytes.fromhex(row.row_id or "")
        stored = await read(row_at, self._topic.store, self._topic.prefix, at)
        receipts = [] if stored is None else _group_receipt(DUPLICATE, group, at, stored.messages, stored.offset)
        return response(receipts, [at], group.pointer)

    def _check_still_new(self, group: StoredGroup) -> None:
        for name in group.producers():
            pushed, first = self._topic.dedup.last_pushed(name), group.first_sequence_id(name)
            if pushed is not None and pushed.sequence_id >= first:
                raise SequenceReused(
                    f"producer {name!r} has published up to sequence id {pushed.sequence_id} outside of the group stored under "
                    f"write pointer {group.pointer}, which begins with {first}",
                    producer=name,
                    sequence_id=first,
                )

    async def expire_stored(self, pointer: int) -> bool:
        """Note that what is stored under the pointer is older than the topic's ttl; whether it may be deleted now.

        Not while its transaction is in progress, nor once it is published: it lives from then on.
        """
        if (await self._topic.transactions.states([pointer])).get(pointer) == "in_progress":
            return False
        group = await self._topic.groups.open(pointer)
        self._topic.check_open()
        if group.row is None and group.drained:
            group.row = GroupRow(None)
            batch = Batch()
            batch.put(Table.GROUP, group.key, encode_record(group.row))
            await self._topic.writer.submit(batch)
        if group.row is None or group.row.row_id is not None:
            return False
        self._topic.groups.close(pointer)
        return True


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
