"""What atomic commits leave on disk: as little as must be, for exactly as long as it is needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.errors import (
    BranchGone,
    InvalidRequest,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog_service import retention
from oncelog_service.log.append import atomic
from oncelog_service.log.groups.payloads import OutdatedBranch, outdated_branches
from oncelog_service.reading import read
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Store, Table
from tests.atomic.house import House, Stalling, living, messages, refused
from tests.patience import PATIENCE
from tests.world.clock import ManualClock
from tests.world.disk import crashed

TTL_MS = 3_600_000
DAY_MS = 24 * 3_600_000
STAGED = (Table.PAYLOAD, Table.CHUNK, Table.GROUP)


async def _commit_staged(house: House, name: str, count: int = 2) -> None:
    await house.begin(name)
    await house.stage(name, "a", 0, messages(*[name] * count))
    await house.stage(name, "b", 0, messages(name))
    await house.commit(name)


# --- payloads


async def test_the_payloads_of_a_copied_group_live_exactly_as_long_as_its_row() -> None:
    clock = ManualClock()
    async with living(Disk(), clock) as house:
        await house.create("a", ttl="3600")
        await house.create("b")
        await house.begin("old", timeout_ms=DAY_MS)
        await house.stage("old", "a", 0, messages("old", "old"))
        clock.advance(TTL_MS // 2)
        await _commit_staged(house, "young")
        clock.advance(TTL_MS // 2 - 1)
        await house.service.opening.retention().once()
        assert await house.shown("a") == ["young", "young"]
        clock.advance(TTL_MS)
        assert await house.shown("a") == []
        await house.service.opening.retention().once()
        assert await house.shown("b") == ["young"]
        assert house.rows(Table.PAYLOAD) == 2, "`young` on b, and `old`, which is in progress"
        await house.commit("old")
        published = clock.now_ms()
        assert await house.shown("a") == ["old", "old"], "a message lives from its publication on"
        clock.ms = published + TTL_MS - 1
        await house.service.opening.retention().once()
        assert await house.shown("a") == ["old", "old"]
        clock.advance(1)
        await house.service.opening.retention().once()
        assert house.rows(Table.PAYLOAD) == house.rows(Table.GROUP) == 1
        assert house.rows(Table.CHUNK) == 0
        await house.verify("a", "b")


async def test_a_transaction_that_has_ended_leaves_nothing_in_memory_whatever_was_refused_or_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chunk that was refused, or that was still being read back when its transaction ended, was remembered for ever."""
    disk = Disk()
    async with living(disk, topics="ab") as house:
        for name in ("refused", "late", "named", "t"):
            await house.begin(name)
        await refused(InvalidRequest, house.stage("refused", "a", 1, messages("x")))
        for name in ("late", "named"):
            await house.stage(name, "a", 0, messages("x"))
        await house.atomic.abort("refused")
        await house.dropped()
        assert len((await house.topic("a")).atomic._staged) == 2
        disk = crashed(disk)
    async with living(disk) as house:
        entered, goes = asyncio.Event(), asyncio.Event()

        async def held_up(*args: Any) -> Any:
            found = await read(*args)
            entered.set()
            await goes.wait()
            return found

        monkeypatch.setattr(atomic, "read", held_up)
        for name, late in (
            ("late", house.stage("late", "a", 1, messages("y"))),
            ("named", house.commit("t", branches=["named"])),
        ):
            entered.clear()
            goes.clear()
            waiting = asyncio.ensure_future(late)
            await entered.wait()
            entered.clear()
            await house.atomic.abort(name)
            await entered.wait()  # it is being deleted
            goes.set()
            await refused((TransactionNotInProgress, BranchGone), waiting)
        await house.dropped()
        assert (await house.topic("a")).atomic._staged == {}


async def test_a_deleted_topic_leaves_nothing_of_what_was_staged_and_copied(house: House) -> None:
    await _commit_staged(house, "t")
    await house.begin("open")
    await house.stage("open", "a", 0, messages("x"))
    await house.delete("a")
    await house.delete("b")
    await house.service.opening.retention().once()
    assert [house.rows(table) for table in (*STAGED, Table.MESSAGE)] == [0, 0, 0, 0]


# --- the journal


async def test_what_one_long_transaction_kept_of_the_journal_goes_a_part_at_a_time() -> None:
    """It may be open for a day: millions of rows would be deleted in one write, in one turn of the event loop."""
    disk, deleted = Disk(), list[int]()
    async with living(disk, trim_every=4, journal_partitions=1) as house:
        disk.before_sync = lambda batches: deleted.extend(
            sum(table is Table.JOURNAL for table, _ in batch.deletes) for batch in batches
        )
        await house.begin("long")
        for number in range(100):
            await house.commit(f"short-{number}", group="g")
        assert (house.rows(Table.JOURNAL), sum(deleted)) == (201, 0)
        await house.atomic.abort("long")
        for number in range(100, 120):
            await house.commit(f"short-{number}", group="g")
        await house.service.opening.writer.synced()
        assert max(deleted) == 40
        assert house.rows(Table.JOURNAL) < 8
        disk = crashed(disk)
    async with living(disk, journal_partitions=1) as house:
        assert [await house.state(name) for name in ("long", "short-0", "short-119")] == ["asked", "committed", "committed"]


async def test_numbers_rise_over_restarts_and_clocks_that_step_back() -> None:
    disk, clock, last = Disk(), ManualClock(), 0
    for _ in range(4):
        async with living(disk, clock) as house:
            for _ in range(3):
                number = int((await house.atomic.begin(None, "g", None, None)).id)
                assert number > last
                last = number
                clock.advance(-3_600_000)
            disk = crashed(disk)


async def test_the_number_of_partitions_changes_when_every_transaction_has_ended() -> None:
    disk = Disk()
    groups = [f"g{number}" for number in range(8)]
    async with living(disk, journal_partitions=4, topics="a") as house:
        for group in groups:
            await house.commit(f"1-{group}", {"a": messages(group)}, group=group)
        await house.begin("open", group="g3")
        await house.stage("open", "a", 0, messages("open"))
        disk = crashed(disk)
    async with living(disk, journal_partitions=2) as house:
        for group in groups:
            await house.commit(f"2-{group}", {"a": messages(group)}, group=group)
        await house.commit("open")
        disk = crashed(disk)
    for partitions in (2, 1, 5):
        async with living(disk, journal_partitions=partitions) as house:
            await house.service.opening.writer.synced()
            assert {key[:2] for key in disk.tables[Table.JOURNAL]} == set(), "what was recorded under another number"
            for group in groups:
                await house.commit(f"of-{partitions}-{group}", {"a": messages(group)}, group=group)
                assert await house.state(f"1-{group}") == "committed"
            assert len(await house.shown("a")) == 17 + 8 * (2, 1, 5).index(partitions) + 8
            disk = crashed(disk)


# --- outcomes


async def test_an_outcome_that_is_forgotten_leaves_no_row(house: House) -> None:
    await house.commit("empty", group="g")
    assert await house.atomic.upkeep.forget_outcomes() == 0
    house.clock.advance(DAY_MS)
    assert await house.atomic.upkeep.forget_outcomes() == 1
    await refused(TransactionNotFound, house.atomic.show("empty"))
    assert house.rows(Table.ATOMIC_ID) == house.rows(Table.ATOMIC_OUTCOME) == 0


# --- retention


async def test_what_is_committed_while_retention_looks_at_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was staged longer ago than messages live, and is copied between the moment at which retention finds it unpublished and
    the one at which nobody needs it any more. Its payloads were deleted under the row that had just published them."""
    clock = ManualClock()
    async with living(Disk(), clock) as house:
        await house.create("a", ttl="3600")
        await house.begin("old", timeout_ms=DAY_MS)
        await house.stage("old", "a", 0, messages("old", "old"))
        clock.advance(TTL_MS + 1)
        loop = asyncio.get_running_loop()

        def found_and_committed(store: Store, prefix: bytes, live_from: int, trimmed: bool) -> list[OutdatedBranch]:
            found = outdated_branches(store, prefix, live_from, trimmed)
            asyncio.run_coroutine_threadsafe(house.commit("old"), loop).result(PATIENCE)
            return found

        monkeypatch.setattr(retention, "outdated_branches", found_and_committed)
        await house.service.opening.retention().once()
        assert await house.shown("a") == ["old", "old"]
        await house.verify("a")


async def test_what_is_committed_stays_although_its_commit_is_still_being_written_when_retention_looks() -> None:
    """Nobody needs what was staged any more, and the row that publishes it is not on disk yet."""
    clock, store = ManualClock(), Stalling(Disk())
    async with living(None, clock, store) as house:
        await house.create("a", ttl="3600")
        await house.begin("old", timeout_ms=DAY_MS)
        await house.stage("old", "a", 0, messages("old", "old"))
        clock.advance(TTL_MS + 1)
        store.stall()
        try:
            commit = asyncio.ensure_future(house.commit("old"))
            assert await asyncio.to_thread(store.entered.wait, PATIENCE)
            looking = asyncio.ensure_future(house.service.opening.retention().once())
            await asyncio.wait([looking], timeout=0.3)
        finally:
            store.goes.set()
        await commit
        await looking
        assert await house.shown("a") == ["old", "old"]
        await house.verify("a")
