"""What may come between the steps of an erasure: a roll-back of its row, and that row's deletion (log/keep/removal.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from oncelog.errors import StorageFailed, StorageUnavailable
from oncelog.wire.models import EraseMessage, TrimTopic
from oncelog.wire.requests import PublishRequest
from oncelog_service.bounds.size import MaxBytes
from oncelog_service.log.keep import removal
from oncelog_service.log.keep.removal import Removal
from oncelog_service.properties import Rules
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Store, StoreError, Table
from tests.patience import PATIENCE
from tests.service.house import House, crashed, numbered, oldest, opened, turns
from tests.world.disk import HeldStore
from tests.world.polls import read_all


class Watched(MemoryStore):
    """Has something happen while a row is scrubbed."""

    def __init__(self, disk: Disk, meanwhile: Callable[[bool], None]) -> None:
        super().__init__(disk)
        self._meanwhile = meanwhile

    def scrub(self, table: Table, key: bytes, *, written: bool) -> None:
        super().scrub(table, key, written=written)
        self._meanwhile(written)


async def rows_of(house: House) -> list[tuple[int, bytes]]:
    return [(each.offset, each.payload) for each in await read_all(house.log)]


@pytest.mark.parametrize("stored", [False, True], ids=["published", "stored apart"])
async def test_an_erasure_does_not_undo_a_roll_back_that_came_while_the_row_was_read(
    monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    disk, loop = Disk(), asyncio.get_running_loop()
    async with opened(disk, clean=False) as house:
        pointer = await house.start()
        messages = PublishRequest([b"a", b"secret"], write_pointer=pointer)
        if stored:
            await house.log.store(messages)
            messages = PublishRequest([], write_pointer=pointer)
        await house.log.publish(messages)
        read, times = removal._erased, []

        async def abort() -> None:
            await house.transactions.abort(pointer)
            await house.log.settle(pointer, False)

        def read_and_rolled_back(store: Store, prefix: bytes, offset: int, now_ms: int) -> Any:
            found = read(store, prefix, offset, now_ms)
            times.append(found.pointer)
            if len(times) == 1:
                asyncio.run_coroutine_threadsafe(abort(), loop).result(PATIENCE)
            return found

        monkeypatch.setattr(removal, "_erased", read_and_rolled_back)
        await house.log.removal.erase(EraseMessage(offset=1))
        assert times == [pointer, -pointer], "it was read again"
        assert await rows_of(house) == [(0, b"a"), (1, b"")]
    for _ in range(2):
        async with opened(crashed(disk)) as house:
            assert house.log.ranges.stable == 2, "nothing is undecided"
            (row, _) = await house.log.inspection.rows(0, 2) if not stored else [*await house.log.inspection.rows(0, 2), None]
            assert row is not None
            assert row.rolled_back


async def test_a_row_that_is_to_be_deleted_does_not_come_again_with_its_erasure() -> None:
    disk, loop = Disk(), asyncio.get_running_loop()
    deleting: list[Any] = []

    def meanwhile(written: bool) -> None:
        if not written:
            deleting.append(asyncio.run_coroutine_threadsafe(house.log.removal.delete(oldest(disk)), loop))
            with suppress(TimeoutError):
                deleting[0].result(0.3)  # it waits for the erasure; where it did not, it would be done by then

    async with opened(disk, clean=False, store=Watched(disk, meanwhile)) as house:
        await house.log.publish(numbered([b"a", b"b"], "p", 0))
        await house.log.removal.trim(TrimTopic(before_offset=2))
        await house.log.removal.erase(EraseMessage(offset=1))
        assert await asyncio.wrap_future(deleting[0]) == 1
        assert disk.tables[Table.MESSAGE] == {}
    async with opened(crashed(disk)) as house:
        assert await rows_of(house) == []
        assert house.log.dedup.last_persisted("p") is not None


@pytest.mark.parametrize("then", ["trim", "delete", "erase"])
async def test_what_was_handed_over_by_a_caller_who_has_gone_is_not_undone_by_the_next(then: str) -> None:
    disk = Disk()
    store = HeldStore(disk)
    async with opened(disk, clean=False, store=store) as house:
        removal = house.log.removal
        await house.log.publish(numbered([b"a"], "p", 0))
        await house.log.publish(numbered([b"b", b"c", b"d"], "p", 1))
        await removal.trim(TrimTopic(before_offset=1))
        rows = oldest(disk)[:1]
        for _ in range(2):
            await house.log.snapshots.take()
        first = removal.erase(EraseMessage(offset=2)) if then == "erase" else removal.trim(TrimTopic(before_offset=3))
        store.may.clear()
        store.asked.clear()
        gone = asyncio.ensure_future(first)
        assert await asyncio.to_thread(store.asked.wait, PATIENCE)
        gone.cancel()
        await asyncio.wait([gone])
        following = {
            "trim": lambda: removal.trim(TrimTopic(before_offset=2)),
            "delete": lambda: removal.delete(rows),
            "erase": lambda: removal.erase(EraseMessage(offset=3)),
        }
        done = asyncio.ensure_future(following[then]())
        await turns()
        store.may.set()
        await done
    async with opened(crashed(disk)) as house:
        assert await rows_of(house) == ([(1, b"b"), (2, b""), (3, b"")] if then == "erase" else [(3, b"d")])


async def test_what_could_not_be_scrubbed_is_not_definite_and_is_done_when_it_is_repeated() -> None:
    disk, fail = Disk(), [False, True]

    def meanwhile(written: bool) -> None:
        if fail and fail.pop(0):
            raise StoreError("a long scan")

    async with opened(disk, store=Watched(disk, meanwhile)) as house:
        await house.log.publish(PublishRequest([b"a"]))
        with pytest.raises(StorageFailed) as raised:
            await house.log.removal.erase(EraseMessage(offset=0))
        assert not raised.value.definite
        assert await rows_of(house) == [(0, b"")]
        await house.log.removal.erase(EraseMessage(offset=0))
        assert [written for *_, written in disk.scrubbed] == [False, True, False, True]
        fail.append(True)
        with pytest.raises(StorageUnavailable):
            await house.log.removal.erase(EraseMessage(offset=0))  # nothing was written yet


async def test_a_topic_that_is_closed_meanwhile_writes_nothing_more() -> None:
    disk = Disk()
    closing: list[Sequence[bytes]] = []

    def meanwhile(written: bool) -> None:
        closing.append([*disk.tables[Table.MESSAGE].values()])
        house.log.topic.closed = True

    async with opened(disk, clean=False, store=Watched(disk, meanwhile)) as house:
        await house.log.publish(PublishRequest([b"a"]))
        with pytest.raises(StorageUnavailable):
            await house.log.removal.erase(EraseMessage(offset=0))
        assert [*disk.tables[Table.MESSAGE].values()] == closing[0]


async def test_what_is_settled_while_a_trim_finds_that_nothing_can_go_is_trimmed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[int] = []
    async with opened(Disk()) as house:
        pointer, trim_to = await house.start(), Removal.trim_to
        for _ in range(4):
            await house.log.publish(PublishRequest([b"." * 500], write_pointer=pointer))

        async def overtaken(removal: Removal, limit: MaxBytes) -> int:
            found.append(await trim_to(removal, limit))
            if len(found) == 1:
                await house.transactions.commit(pointer)
                await house.log.settle(pointer, True)
            return found[-1]

        monkeypatch.setattr(Removal, "trim_to", overtaken)
        house.log.topic.rules = Rules(max_bytes=MaxBytes(1_500, trims=True))  # less than before
        house.log.trimming.begin_if_due()
        await house.log.trimming.stop()
        assert (found[0], house.log.begin_offset) == (0, 2)
