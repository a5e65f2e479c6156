"""A roll-back holds no more in memory than it must, however large the messages are (log/settling.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from oncelog.errors import DiskFull, RollbackRefused
from oncelog.wire.models import TrimTopic
from oncelog.wire.requests import PublishRequest, Rollback
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.bounds.room import Room
from oncelog_service.group_commit import Writer
from oncelog_service.log import settling
from oncelog_service.log.limits import Limits
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch
from tests.service.house import BEGIN, crashed, opened
from tests.world.polls import read_all

SIZE = 1_000


class Weighed(MemoryStore):
    """Notes how many rows each write rewrites."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.puts: list[int] = []

    def write(self, batches: Sequence[Batch]) -> None:
        self.puts.append(sum(len(value) >= SIZE for batch in batches for _, _, value in batch.puts))
        super().write(batches)


@pytest.mark.parametrize("at_once", [1, 3 * SIZE, 2**40])
async def test_large_messages_are_rolled_back_some_at_a_time(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(settling, "_BYTES_AT_ONCE", at_once)
    disk = Disk()
    store = Weighed(disk)
    async with opened(disk, clean=False, store=store) as house:
        pointer = await house.start()
        for _ in range(10):
            await house.log.publish(PublishRequest([b"." * SIZE], write_pointer=pointer))
        await house.log.publish(PublishRequest([b"behind"]))
        store.puts.clear()
        await house.transactions.abort(pointer)
        await house.log.settle(pointer, False)
        assert (sum(store.puts), max(store.puts)) == (10, {1: 1, 3 * SIZE: 3}.get(at_once, 10))
        assert house.log.ranges.stable == 11
    async with opened(crashed(disk)) as house:
        assert house.log.ranges.stable == 11
        assert [each.payload for each in await read_all(house.log)][-1] == b"behind"


@pytest.mark.parametrize("who", ["the service", "the client", "an operator"])
async def test_a_roll_back_without_room_is_broken_off_and_ended_later(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Of several requests some are rolled back; the same call again has the others so, and never one of them twice."""
    disk, room = Disk(), Room(80 * SIZE)
    store = Weighed(disk)
    limits = Limits(foreign_write_pointers=True)
    async with opened(disk, limits=limits, clean=False, store=store, writing=partial(Writer, room=room)) as house:
        pointer = BEGIN * POINTERS_PER_MS + 123 if who == "an operator" else await house.start()
        answers = [await house.log.publish(PublishRequest([b"." * SIZE], write_pointer=pointer)) for _ in range(30)]
        first, last = answers[0], answers[-1]
        both = (first.start_timestamp, first.start_sequence_id), (last.end_timestamp, last.end_sequence_id)

        async def once() -> None:
            if who == "the client":
                await house.log.roll_back(Rollback(pointer, *both))
            elif who == "an operator" and pointer not in house.log.topic.pointers.ended_by_hand:
                await house.log.settling.end_foreign(pointer, False)
            elif who == "an operator":
                await house.log.settling.settle_expired()
            else:
                await house.log.settle(pointer, False)

        if who == "the service":
            await house.transactions.abort(pointer)
        store.puts.clear()
        room.looked(65 * SIZE, room.admitted)  # of which 60 are kept
        with pytest.raises(DiskFull):
            await once()
        assert sum(store.puts) == 0, "a slice of five does not fit"
        room.looked(76 * SIZE, room.admitted)
        with pytest.raises(DiskFull):
            await once()
        assert sum(store.puts) == 5
        assert len(house.log.dedup.fold.unsettled[pointer]) == 25
        room.looked(10_000 * SIZE, room.admitted)
        await once()
        await once()
        assert (sum(store.puts), house.log.dedup.fold.unsettled) == (30, {})
    async with opened(crashed(disk)) as house:
        assert house.log.dedup.fold.unsettled == {}


async def test_a_roll_back_is_idempotent_also_when_what_it_rolled_back_is_deleted() -> None:
    async with opened(Disk()) as house:
        log, pointer = house.log, await house.start()
        answers = [await log.publish(PublishRequest([each], write_pointer=pointer)) for each in (b"a", b"b", b"c")]
        others = await log.publish(PublishRequest([b"d"], write_pointer=await house.start()))
        first, second, third = (
            ((each.start_timestamp, each.start_sequence_id), (each.end_timestamp, each.end_sequence_id)) for each in answers
        )
        await log.roll_back(Rollback(pointer, first[0], second[1]))
        await log.removal.trim(TrimTopic(before_offset=2))
        await log.removal.delete_trimmed()
        assert log.earliest_offset == 2
        await log.roll_back(Rollback(pointer, first[0], second[1]))
        assert [run.count for run in log.dedup.fold.unsettled[pointer]] == [1]
        with pytest.raises(RollbackRefused):
            await log.roll_back(Rollback(pointer, first[0], (others.end_timestamp, others.end_sequence_id)))
        await log.roll_back(Rollback(pointer, first[0], third[1]))
        assert pointer not in log.dedup.fold.unsettled
