"""Which published messages of a transaction that no producer sent are stored already.

The ids are on the messages themselves, in the log; memory holds those of the write pointers that are in use, and reads them back
when a pointer is first used here: after a restart, or on the instance that took the topic over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import islice

from oncelog.wire.requests import PublishRequest
from oncelog_dedup import Run
from oncelog_service.log.append.history import Original, differs
from oncelog_service.log.append.receipts import duplicate_runs
from oncelog_service.log.append.step import BEGINNING, NOTHING, Known, Sofar, Waits
from oncelog_service.log.keep.recovery import rows
from oncelog_service.log.numbers import Numbers, Taken, partly_taken, reused
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import row_at
from oncelog_service.reading import read
from oncelog_service.storage.keys import ROW_ID_SIZE
from oncelog_service.storage.port import Store


class Unnamed:
    """Knows the sequence ids of one open topic's messages without a producer. Works on the event loop that owns it."""

    __slots__ = ("_fold", "_numbers", "_prefix", "_store", "_writer")

    def __init__(self, topic: OpenTopic) -> None:
        self._prefix = topic.prefix
        self._store = topic.store
        self._writer = topic.writer
        self._fold = topic.dedup.fold
        self._numbers = topic.numbers

    def step(self, request: PublishRequest, pointer: int, sofar: Sofar = BEGINNING) -> Known | Waits:
        """What of a request without a producer is stored under the pointer: all of it, or nothing at this very moment; or what
        has to be waited for. The caller has asked whether the topic is open.

        It does not matter whether the topic deduplicates: the ids are the transaction's, not a producer's. What is waited for
        raises SequenceReused: its ids are those of other messages; InvalidRequest: only some of them are taken.
        """
        sequence_ids = request.sequence_ids
        if sequence_ids is None:
            return NOTHING
        numbers = self._numbers.get(pointer)
        if numbers is None:
            return partial(self._open, pointer)
        taken = numbers.overlapping(sequence_ids)
        if not taken:
            return NOTHING
        return sofar.known if sofar.known.messages else partial(self._look, pointer, request, sequence_ids, numbers, taken)

    async def _open(self, pointer: int) -> Sofar:
        runs = self._fold.unsettled.get(pointer, ())
        read_back = await read(_numbers, self._store, self._prefix, pointer, runs) if runs else Numbers()
        self._numbers.setdefault(pointer, read_back)  # somebody else may have read it meanwhile
        return BEGINNING

    async def _look(
        self, pointer: int, request: PublishRequest, sequence_ids: Sequence[int], numbers: Numbers, taken: list[Taken]
    ) -> Sofar:
        await self._writer.drained()
        found = await read(_messages, self._store, self._prefix, pointer, taken[0])
        if taken != numbers.overlapping(sequence_ids):
            return BEGINNING
        if not found:
            numbers.drop(taken[0])
            return BEGINNING
        if not taken[0].holds(sequence_ids):
            raise partly_taken(pointer, sequence_ids, taken[0])
        return Sofar(_repeated(pointer, request, sequence_ids, found))


def _repeated(pointer: int, request: PublishRequest, sequence_ids: Sequence[int], found: dict[int, Original]) -> Known:
    for index, sequence_id in enumerate(sequence_ids):
        original = found[sequence_id]
        if differs(original, request, index):
            raise reused(pointer, sequence_id, message_id=original.message_id.hex(), offset=original.offset)
    return Known(len(sequence_ids), duplicate_runs(sequence_ids, found), found)


def _numbers(store: Store, prefix: bytes, pointer: int, runs: Sequence[Run]) -> Numbers:
    """The ids that these runs of the pointer have taken: the first row of each says where its ids begin. Raises TopicDamaged."""
    numbers = Numbers()
    for run in runs:
        row = row_at(store, prefix, run.first_id[:ROW_ID_SIZE])
        if row is not None and row.write_pointer == pointer and row.producer is None and row.sequence_id is not None:
            numbers.add(Taken(row.sequence_id, row.sequence_id + run.count, row.row_id))
    return numbers


def _messages(store: Store, prefix: bytes, pointer: int, taken: Taken) -> dict[int, Original]:
    """Sequence id → message; nothing, if they were rolled back. Raises TopicDamaged."""
    with closing(rows(store, prefix, taken.row_id)) as found:
        return {
            row.sequence_id: Original(row.sequence_id, row.message_id, row.offset, row.payload, pointer, row.erased)
            for row in islice(found, taken.end - taken.first)
            if row.write_pointer == pointer and row.sequence_id is not None
        }
