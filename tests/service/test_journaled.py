"""What journaled transactions stage on one topic: read back as it was, refused when it is damaged, dropped to the last row."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.errors import InvalidRequest, StorageUnavailable, TopicDamaged
from oncelog.wire.requests import PublishRequest
from oncelog_service.atomic.ledger import BLOCK
from oncelog_service.cluster.leases import Lease
from oncelog_service.log.append.atomic import Ready, Staged
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Batch, Fence, Table
from tests.service.house import PREFIX, House, crashed, flip, numbered, opened

NUMBER = 1_790_000_000_000_000_000


async def put(house: House, staged: Staged, chunk: int, request: PublishRequest) -> None:
    batch = Batch()
    assert house.log.journaled.is_new(staged, chunk, request)
    house.log.journaled.put(batch, staged, chunk, request)
    await house.writer.submit(batch, lambda: None)


async def staged_disk() -> Disk:
    """With three chunks."""
    disk = Disk()
    async with opened(disk, keyed=True) as house:
        staged = house.log.journaled.begun(NUMBER)
        await put(house, staged, 0, numbered([b"0", b"1"], "p", 0))
        await put(house, staged, 1, PublishRequest([b"2"], keys=[b"k"], expected_offset=2))
        await put(house, staged, 2, PublishRequest([b"3"], expected_key_offsets={"k": 2, "x": None}))
        return crashed(disk)


def test_what_is_staged_reads_back_as_it_was_in_store_order() -> None:
    async def scenario() -> None:
        async with opened(await staged_disk(), keyed=True) as house:
            staged = await house.log.journaled.open(NUMBER)
            assert list(staged.chunks) == [0, 1, 2]
            assert [(each.first_place, each.messages) for each in staged.chunks.values()] == [(0, 2), (2, 1), (3, 1)]
            assert staged.chunks[2].key_places == {"k": 2}
            assert (staged.next_chunk, staged.group.messages) == (3, 4)
            assert not house.log.journaled.is_new(staged, 0, numbered([b"0", b"1"], "p", 0))
            ready = await house.log.journaled.ready([staged], lambda: NUMBER + BLOCK)
            assert house.log.journaled.judged(ready)

    asyncio.run(scenario())


@pytest.mark.parametrize("table", [Table.PAYLOAD, Table.CHUNK])
@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_a_staged_row_that_is_damaged_or_missing_is_refused(table: Table, place: int, how: str) -> None:
    async def scenario() -> None:
        disk = await staged_disk()
        key = sorted(disk.tables[table])[place]
        if how == "missing":
            del disk.tables[table][key]
        elif table is Table.CHUNK:
            disk.tables[table][key] = b"{" + disk.tables[table][key]
        else:
            flip(disk, table, key)
        async with opened(disk, keyed=True) as house:
            with pytest.raises(TopicDamaged):
                await house.log.journaled.open(NUMBER)

    asyncio.run(scenario())


def test_nothing_is_copied_into_a_log_that_was_closed() -> None:
    async def scenario() -> None:
        async with opened(await staged_disk(), keyed=True) as house:
            staged = await house.log.journaled.open(NUMBER)
            await house.log.close()
            with pytest.raises(StorageUnavailable):
                house.log.journaled.judged(Ready([staged], {}))
            assert staged.group.row is None

    asyncio.run(scenario())


@pytest.mark.parametrize("published", [1, 2])
def test_a_commit_is_looked_at_again_if_its_first_message_was_published_meanwhile(published: int) -> None:
    """Then it is judged once more; also where that is all which came in between."""

    async def scenario() -> None:
        async with opened(await staged_disk(), keyed=True) as house:
            staged = await house.log.journaled.open(NUMBER)
            ready = await house.log.journaled.ready([staged], lambda: NUMBER + BLOCK)
            assert house.log.journaled.judged(ready)
            await house.log.publish(numbered([b"0", b"1"][:published], "p", 0))
            assert not house.log.journaled.judged(ready)

    asyncio.run(scenario())


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_sequence_ids_rise_from_one_branch_to_the_next(begin: int) -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            branches = [house.log.journaled.begun(NUMBER + each) for each in (0, 1)]
            await put(house, branches[0], 0, numbered([b"0", b"1"], "p", 0))
            await put(house, branches[1], 0, numbered([b"x"], "p", begin))
            if begin > 1:
                await house.log.journaled.ready(branches, lambda: NUMBER + BLOCK)
                return
            with pytest.raises(InvalidRequest, match="strictly rise"):
                await house.log.journaled.ready(branches, lambda: NUMBER + BLOCK)

    asyncio.run(scenario())


@pytest.mark.parametrize("step", ["stage", "copy"])
def test_what_a_coordinator_stages_and_copies_stands_on_the_lease_of_the_topic(step: str) -> None:
    """It submits the batch itself, and may have been stopped for long: then two rows would stand at one offset."""

    async def scenario() -> None:
        disk = await staged_disk()
        async with opened(disk, keyed=True, clean=False) as house:
            staged = await house.log.journaled.open(NUMBER)
            fence = Fence(PREFIX, 1)
            house.log.journaled._writer = house.writer.under(Lease(PREFIX, fence, lambda: True))
            batch, disk.epochs[PREFIX] = Batch(), 2
            if step == "stage":
                house.log.journaled.put(batch, staged, 3, PublishRequest([b"4"]))
            else:
                house.log.journaled.copy(batch, [staged])
            rows = {table: dict(found) for table, found in disk.tables.items()}
            with pytest.raises(StorageUnavailable):
                await house.writer.submit(batch, lambda: None)
            assert disk.tables == rows

    asyncio.run(scenario())


def test_what_is_dropped_leaves_no_row_of_its_own_and_every_row_of_others() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk) as house:
            for number in (NUMBER - 1, NUMBER, NUMBER + 1):
                staged = house.log.journaled.begun(number)
                for chunk in range(3 if number == NUMBER else 1):
                    await put(house, staged, chunk, PublishRequest([b"x"] * (700 if number == NUMBER else 1)))
            await house.log.journaled.drop(NUMBER)
            await house.writer.synced()
            assert [len(disk.tables[table]) for table in (Table.PAYLOAD, Table.CHUNK)] == [2, 2]
            assert (await house.log.journaled.open(NUMBER)).group.messages == 0
            for number in (NUMBER - 1, NUMBER + 1):
                house.log.journaled.close(number)
                assert (await house.log.journaled.open(number)).group.messages == 1

    asyncio.run(scenario())
