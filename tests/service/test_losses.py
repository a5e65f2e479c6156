"""What a salvaged store lacks: holes within a log, and at its end those that a snapshot knows of; filled, the topic opens."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_dedup import Mark, Position, SequenceMap, Snapshot
from oncelog_service.log.keep.losses import fill, holes
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.rows import Columns, TopicRow, encode_record, message_id_of
from tests.service.house import PREFIX, numbered, opened
from tests.service.house import fill as filled

TOPIC = PREFIX[:-4]


@pytest.mark.parametrize("lost", [range(3, 5), range(8, 10)], ids=["in the middle", "the newest"])
def test_messages_that_are_gone_are_named_and_their_places_filled(lost: range) -> None:
    disk = Disk()
    ids = filled(disk, [Columns([b"m"], producer="p", sequence_ids=[number]) for number in range(10)])
    marks = SequenceMap({"p": Mark(9, message_id_of(ids[9]), 9)})
    batch = Batch()
    batch.put(Table.TOPIC, TOPIC, encode_record(TopicRow(1, 0, {})))
    batch.put(Table.SNAPSHOT, PREFIX + SNAPSHOT_SLOTS[0], Snapshot(marks, Position(10, message_id_of(ids[9]))).to_bytes())
    for number in lost:
        batch.delete(Table.MESSAGE, PREFIX + ids[number])
    store = MemoryStore(disk)
    store.write([batch])
    found = list(holes(store))
    assert [(hole.first, hole.end) for hole in found] == [(lost.start, lost.stop)]
    for hole in found:
        fill(store, hole)
    assert list(holes(store)) == []

    async def scenario() -> None:
        """Whoever was publishing sends everything again, which was answered as damage."""
        async with opened(disk) as house:
            assert house.log.position.upcoming_offset == 10
            assert house.log.producers.show("p").last_persisted == 9
            answer = await house.log.publish(numbered([b"m"] * 10 + [b"new"], "p", 0))
            assert [run.status for run in answer.receipts for _ in range(run.count)] == ["duplicate"] * 10 + ["stored"]
            why = await house.log.producers.why("p", lost.start, deduplication=True)
            assert (why.verdict, why.offset) == ("duplicate", None)

    asyncio.run(scenario())
