"""Snapshots are written in turn, never ahead of their map, and cost at most one entry per message."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_dedup import Snapshot
from oncelog_service.log.keep import snapshots as snapshots_module
from oncelog_service.log.keep.recovery import recover
from oncelog_service.log.limits import Limits
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from tests.patience import PATIENCE
from tests.service.house import PREFIX, crashed, numbered, oldest, opened
from tests.world.clock import ManualClock

FEW = Limits(snapshot_messages=10, snapshot_seconds=5.0)


def snapshots_of(disk: Disk) -> list[Snapshot]:
    return [Snapshot.from_bytes(data) for data in disk.tables[Table.SNAPSHOT].values()]


class Watched:
    """A disk that keeps a copy of itself, as a crash would leave it, at each write, and the snapshots written to it."""

    def __init__(self, every: int = 1, most: int = 10_000) -> None:
        self.disk = Disk()
        self.moments: list[Disk] = []
        self.snapshots: list[Snapshot] = []
        self.every, self.most = every, most
        self.disk.before_sync = self._before_sync

    def _before_sync(self, batches: Sequence[Batch]) -> None:
        if self.disk.writes % self.every == 0:
            self.moments.append(crashed(self.disk))
        for batch in batches:
            self.snapshots += [Snapshot.from_bytes(value) for table, _, value in batch.puts if table is Table.SNAPSHOT]
        assert len(self.snapshots) <= self.most, "they are written again and again"


async def test_a_snapshot_comes_with_time_too() -> None:
    disk, clock = Disk(), ManualClock()
    async with opened(disk, clock, FEW, clean=False) as house:
        await house.log.publish(numbered([b"x"], "p", 0))
        house.log.snapshots.begin_if_due()
        await house.writer.synced()
        assert snapshots_of(disk) == []
        clock.advance(5_000)
        house.log.snapshots.begin_if_due()
        async with asyncio.timeout(PATIENCE):
            while house.log.snapshots.behind:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [each.position.upcoming_offset for each in snapshots_of(disk)] == [1]
        assert (house.log.snapshots.newest, house.log.snapshots.behind) == (1, 0)


@pytest.mark.parametrize("producers", [1, 50, 300])
async def test_snapshots_write_at_most_one_entry_per_message(producers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many producers there are. The bound on what a restart replays is the same number."""
    monkeypatch.setattr(snapshots_module, "_ENCODED_AT_ONCE", 200)
    watched = Watched(every=10**9)
    messages = 0
    async with opened(watched.disk, limits=FEW, clean=False) as house:
        for round_number in range(4):
            for begin in range(0, producers, 50):
                names = [f"p{number}" for number in range(begin, min(producers, begin + 50))]
                await asyncio.gather(*(house.log.publish(numbered([b"x"], name, round_number)) for name in names))
                messages += len(names)
                assert sum(len(each.last_entries) for each in watched.snapshots) <= messages
        await house.log.snapshots.stop()  # a large map is encoded on a thread and joins a later write
        written = sum(len(each.last_entries) for each in watched.snapshots)
        assert written <= messages
        if producers > 1:
            assert written >= producers, "it does not get there by writing none"
        assert house.log.snapshots.behind <= max(2 * producers, 2 * FEW.snapshot_messages)


async def test_a_large_one_is_encoded_aside_and_holds_what_was_stable_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, goes = snapshots_module._encoded, threading.Event()

    def held_up(snapshots: Sequence[Snapshot]) -> list[bytes]:
        assert goes.wait(PATIENCE)
        return encoded(snapshots)

    monkeypatch.setattr(snapshots_module, "_ENCODED_AT_ONCE", 0)
    monkeypatch.setattr(snapshots_module, "_encoded", held_up)
    disk = Disk()
    async with opened(disk, clean=False) as house:
        await house.log.publish(numbered([b"x"], "p", 0))
        taking = asyncio.ensure_future(house.log.snapshots.take())
        for name, first in (("p", 1), ("q", 0)):
            await house.log.publish(numbered([b"x"], name, first))
        goes.set()
        await taking
    (snapshot,) = snapshots_of(disk)
    assert (snapshot.position.upcoming_offset, [*snapshot.last_entries]) == (1, ["p"])
    assert snapshot.last_entries.get("p").sequence_id == 0


async def test_one_that_fails_is_told_and_the_next_one_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoded, failures = snapshots_module._encoded, [MemoryError("too large")]

    def fails_once(snapshots: Sequence[Snapshot]) -> list[bytes]:
        if failures:
            raise failures.pop()
        return encoded(snapshots)

    monkeypatch.setattr(snapshots_module, "_ENCODED_AT_ONCE", -1)
    monkeypatch.setattr(snapshots_module, "_encoded", fails_once)
    async with opened(Disk(), limits=Limits(snapshot_messages=1)) as house:
        while house.log.snapshots.newest is None:
            await house.log.publish(PublishRequest([b"x"]))
        assert house.log.position.upcoming_offset < 100
    assert "a snapshot failed" in caplog.text


async def test_after_a_clean_stop_nothing_is_replayed_and_without_news_nothing_is_written() -> None:
    disk = Disk()
    async with opened(disk) as house:
        await house.log.publish(numbered([b"x"] * 3, "p", 0))
    async with opened(disk) as house:
        assert house.log.replayed == 0
        before = disk.writes
    assert disk.writes == before


async def test_retention_deletes_nothing_that_is_not_in_both_snapshots() -> None:
    watched = Watched()
    async with opened(watched.disk, clean=False) as house:
        for number in range(8):
            await house.log.publish(numbered([b"x"], "p", number))
        assert await house.log.removal.delete(oldest(watched.disk, 5)) == 5
        assert house.log.snapshots.covered_by_both >= 5
    for moment in [*watched.moments, watched.disk]:
        assert recover(MemoryStore(moment), PREFIX).fold.position.upcoming_offset in range(9)
        if moment.tables[Table.TRIM]:
            assert [each.position.upcoming_offset for each in snapshots_of(moment)] == [8, 8]
            assert len(oldest(moment)) == 3


@pytest.mark.parametrize("idle", [False, True])
async def test_retention_writes_no_more_entries_than_it_frees_messages_and_an_idle_topic_is_freed_once(idle: bool) -> None:
    """Many producers, and message after message expires. A restart changes neither."""
    watched, clock, producers = Watched(every=10**9), ManualClock(), 200
    async with opened(watched.disk, clock, clean=False) as house:
        for number in range(producers):
            await house.log.publish(numbered([b"x"], f"p{number}", 0))
        await house.log.snapshots.take()
        for number in range(100):
            await house.log.publish(numbered([b"x"], "p0", number + 1))
            await house.log.removal.delete(oldest(watched.disk, 1))
        assert len(watched.snapshots) == 1, "two would hold 400 entries, and free less"
        assert len(oldest(watched.disk)) == producers + 100, "both cover nothing yet"
        assert await house.log.removal.delete(oldest(watched.disk, 200)) == 200, (
            "one is there already: 200 entries free 200 messages"
        )
        assert len(watched.snapshots) == 2
    disk = watched.disk
    async with opened(disk, clock, clean=False) as house:
        await house.log.publish(numbered([b"x"], "p0", 101))
        clock.advance(24 * 3_600_000 - (0 if idle else 1))
        for _ in range(3):
            await house.log.removal.delete(oldest(disk))
        assert len(oldest(disk)) == (0 if idle else 101)
        assert len(watched.snapshots) == (4 if idle else 2)
    fold = recover(MemoryStore(disk), PREFIX).fold
    assert (len(fold), fold.position.upcoming_offset) == (producers, producers + 101)


async def test_an_idle_topic_is_freed_up_to_what_is_undecided_and_no_snapshot_is_tried_in_vain() -> None:
    """None can hold what is undecided, however often it is written."""
    watched, clock = Watched(every=10**9, most=2), ManualClock()
    async with opened(watched.disk, clock, clean=False) as house:
        await house.log.publish(numbered([b"x"], "p", 0))
        begun = await house.transactions.start(TransactionType.LONG)
        await house.log.publish(PublishRequest([b"undecided"], write_pointer=begun.transaction_id))
        await house.log.publish(numbered([b"x"], "p", 1))
        clock.advance(24 * 3_600_000)
        assert await house.log.removal.delete(oldest(watched.disk)) == 1
        assert len(watched.snapshots) == 2
        assert house.log.earliest_offset == 1


async def test_a_busy_topic_is_freed_by_the_snapshots_of_its_schedule() -> None:
    """At most the messages of two of them, and what comes while they are on their way, wait. Nothing is written for retention."""
    watched, producers = Watched(every=10**9), 50
    async with opened(watched.disk, limits=FEW, clean=False) as house:
        for number in range(300):
            await house.log.publish(numbered([b"x"], f"p{number % producers}", number))
            if number >= producers:
                await house.log.removal.delete(oldest(watched.disk, 5))
        messages = house.log.position.upcoming_offset
        assert sum(len(each.last_entries) for each in watched.snapshots) <= messages
        await house.writer.synced()
        assert house.log.snapshots.covered_by_both >= messages - 3 * producers
        assert house.log.earliest_offset == messages - len(oldest(watched.disk)) >= messages - 4 * producers
