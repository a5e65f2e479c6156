"""What atomic commits leave on disk: as little as must be, for exactly as long as it is needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.errors import (
    BranchGone,
    InvalidRequest,
    StorageFailed,
    StorageUnavailable,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog_service import retention
from oncelog_service.atomic import coordinator, ledger
from oncelog_service.log.append import atomic
from oncelog_service.log.append.atomic import Journaled, Ready
from oncelog_service.log.groups.payloads import OutdatedBranch, outdated_branches
from oncelog_service.reading import read
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Store, Table
from tests.behaviours.atomics import BatchByBatch, House, Stalling, copy_of, living, messages, refusal
from tests.patience import PATIENCE
from tests.support import ManualClock

TTL_MS = 3_600_000
DAY_MS = 24 * 3_600_000
STAGED = (Table.PAYLOAD, Table.CHUNK, Table.GROUP)


@pytest.fixture(autouse=True)
def _no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's rounds are run by the tests."""
    monkeypatch.setattr(coordinator, "_ROUND_SECONDS", 3_600)


async def _commit_staged(house: House, name: str, count: int = 2) -> None:
    await house.begin(name)
    await house.stage(name, "a", 0, messages(*[name] * count))
    await house.stage(name, "b", 0, messages(name))
    await house.commit(name)


# --- payloads


def test_the_payloads_of_a_copied_group_live_exactly_as_long_as_its_row() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with living(Disk(), clock) as house:
            await house.create("a", ttl="3600")
            await house.create("b")
            await house.begin("old", timeout_ms=DAY_MS)
            await house.stage("old", "a", 0, messages("old", "old"))
            clock.advance(TTL_MS // 2)
            await _commit_staged(house, "young")
            clock.advance(TTL_MS // 2 - 1)
            await house.service.retention.once()
            assert await house.shown("a") == ["young", "young"]
            clock.advance(TTL_MS)
            assert await house.shown("a") == []
            await house.service.retention.once()
            assert await house.shown("b") == ["young"]
            assert house.rows(Table.PAYLOAD) == 3, "`young` on b, and `old`, which is in progress"
            await house.commit("old")
            published = clock.now_ms()
            assert await house.shown("a") == ["old", "old"], "a message lives from its publication on"
            clock.ms = published + TTL_MS - 1
            await house.service.retention.once()
            assert await house.shown("a") == ["old", "old"]
            clock.advance(1)
            await house.service.retention.once()
            assert house.rows(Table.PAYLOAD) == house.rows(Table.GROUP) == 1
            assert house.rows(Table.CHUNK) == 0
            await house.verify("a", "b")

    asyncio.run(scenario())


def test_what_an_aborted_transaction_had_staged_goes_when_the_service_stops_before_it_was_deleted() -> None:
    async def scenario() -> None:
        disk = Disk()
        store = BatchByBatch(disk)
        async with living(disk, store=store) as house:
            await house.create("a", "b")
            await house.begin("t")
            for chunk in range(3):
                await house.stage("t", "a", chunk, messages("x", "y"))
            await house.journal.abort("t")
            await house.dropped()
            crashes = [each for each in store.disks if each.tables[Table.CHUNK] and each.tables[Table.ATOMIC_OUTCOME]]
            assert crashes
        for crash in crashes:
            async with living(crash) as house:
                await house.dropped()
                assert [house.rows(table) for table in STAGED] == [0, 0, 0]

    asyncio.run(scenario())


def test_a_transaction_that_has_ended_leaves_nothing_in_memory_whatever_was_refused_or_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chunk that was refused, or that was still being read back when its transaction ended, was remembered for ever."""

    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a", "b")
            for name in ("refused", "late", "named", "t"):
                await house.begin(name)
            assert isinstance(await refusal(house.stage("refused", "a", 1, messages("x"))), InvalidRequest)
            for name in ("late", "named"):
                await house.stage(name, "a", 0, messages("x"))
            await house.journal.abort("refused")
            await house.dropped()
            assert len((await house.topic("a")).journaled.known) == 2
            disk = copy_of(disk)
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
                await house.journal.abort(name)
                await entered.wait()  # it is being deleted
                goes.set()
                assert isinstance(await refusal(waiting), TransactionNotInProgress | BranchGone)
            await house.dropped()
            assert (await house.topic("a")).journaled.known == []

    asyncio.run(scenario())


def test_messages_that_were_staged_anew_for_a_commit_that_was_refused_go_after_a_restart() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a", "b", check_expected_offsets="true")
            await house.publish("a", messages("0", producer="p", first=0))
            part = messages("0", "1", producer="p", first=0)
            assert await refusal(house.commit("t", {"a": part, "b": messages("b", expected_offset=9)}, group="g"))
            await house.dropped()
            after = copy_of(disk)
        async with living(after) as house:
            await house.dropped()
            assert [house.rows(table) for table in STAGED] == [0, 0, 0]
            await house.verify("a", "b")

    asyncio.run(scenario())


def test_a_deleted_topic_leaves_nothing_of_what_was_staged_and_copied() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await _commit_staged(house, "t")
            await house.begin("open")
            await house.stage("open", "a", 0, messages("x"))
            await house.delete("a")
            await house.delete("b")
            await house.service.retention.once()
            assert [house.rows(table) for table in (*STAGED, Table.MESSAGE)] == [0, 0, 0, 0]

    asyncio.run(scenario())


# --- the journal


@pytest.mark.parametrize(
    ("turns", "trim_every"), [pytest.param(8, 100, id="few"), pytest.param(50, 1_000, id="many", marks=pytest.mark.slow)]
)
def test_any_number_of_commits_leaves_a_short_journal(turns: int, trim_every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_TRIM_EVERY", trim_every)

    async def scenario() -> None:
        clock = ManualClock()
        async with living(Disk(), clock, journal_partitions=1) as house:
            await house.create("a")
            most = 0
            for turn in range(turns):
                calls = [house.commit(f"{turn}-{each}", {"a": messages("x")}, group="g") for each in range(100)]
                await asyncio.gather(*calls)
                clock.advance(1_000)
                most = max(most, house.rows(Table.JOURNAL))
            assert most < 500 + 2 * trim_every < 5 * 100 * turns
            assert len(await house.shown("a")) == 100 * turns

    asyncio.run(scenario())


def test_records_of_a_transaction_that_is_in_progress_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_TRIM_EVERY", 10)

    async def scenario() -> None:
        disk = Disk()
        async with living(disk, journal_partitions=1) as house:
            await house.create("a")
            await house.begin("open", timeout_ms=DAY_MS)
            await house.stage("open", "a", 0, messages("open"))
            for turn in range(3):
                await asyncio.gather(*(house.commit(f"{turn}-{each}", group="g") for each in range(10)))
            after = copy_of(disk)
        async with living(after, journal_partitions=1) as house:
            await house.commit("open")
            assert await house.shown("a") == ["open"]

    asyncio.run(scenario())


def test_a_journal_that_is_trimmed_at_every_turn_is_whole_behind_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_TRIM_EVERY", 1)

    async def scenario() -> None:
        disk, clock = Disk(), ManualClock()
        store = BatchByBatch(disk)
        told: list[tuple[int, str]] = []
        async with living(disk, clock, store, journal_partitions=1) as house:
            await house.create("a", "b")
            for name in ("t1", "t2", "t3", "t4"):
                await _commit_staged(house, name, 1)
                told.append((len(store.disks), name))
                clock.advance(11_000)  # the next number is one of a new block
            await house.service.writer.synced()
            disks = list(store.disks)
        for batches, crash in enumerate(disks):
            for partitions in (1, 3):
                async with living(copy_of(crash), ManualClock(clock.now_ms() - 11_000), journal_partitions=partitions) as house:
                    for when, name in told:
                        if when <= batches:
                            assert (await house.journal.show(name)).state == "committed"
                            assert (await house.commit(name, group="g")).messages == 2
                    if batches > told[0][0]:
                        assert await house.shown("a") == await house.shown("b")

    asyncio.run(scenario())


def test_numbers_rise_over_restarts_and_clocks_that_step_back() -> None:
    async def scenario() -> None:
        disk, clock, last = Disk(), ManualClock(), 0
        for _ in range(4):
            async with living(disk, clock) as house:
                for _ in range(3):
                    number = int((await house.journal.begin(None, "g", None, None)).id)
                    assert number > last
                    last = number
                    clock.advance(-3_600_000)
                disk = copy_of(disk)

    asyncio.run(scenario())


def test_the_number_of_partitions_changes_when_every_transaction_has_ended() -> None:
    async def scenario() -> None:
        disk = Disk()
        groups = [f"g{number}" for number in range(8)]
        async with living(disk, journal_partitions=4) as house:
            await house.create("a")
            for group in groups:
                await house.commit(f"1-{group}", {"a": messages(group)}, group=group)
            await house.begin("open", group="g3")
            await house.stage("open", "a", 0, messages("open"))
            disk = copy_of(disk)
        async with living(disk, journal_partitions=2) as house:
            for group in groups:
                await house.commit(f"2-{group}", {"a": messages(group)}, group=group)
            await house.commit("open")
            disk = copy_of(disk)
        for partitions in (2, 1, 5):
            async with living(disk, journal_partitions=partitions) as house:
                await house.service.writer.synced()
                assert {key[:2] for key in disk.tables[Table.JOURNAL]} == set(), "what was recorded under another number"
                for group in groups:
                    await house.commit(f"of-{partitions}-{group}", {"a": messages(group)}, group=group)
                    assert (await house.journal.show(f"1-{group}")).state == "committed"
                assert len(await house.shown("a")) == 17 + 8 * (2, 1, 5).index(partitions) + 8
                disk = copy_of(disk)

    asyncio.run(scenario())


# --- outcomes


def test_an_outcome_is_forgotten_only_when_no_message_lives_that_it_is_about() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with living(Disk(), clock) as house:
            await house.create("a", "b", ttl=str(2 * DAY_MS // 1000))
            await _commit_staged(house, "t")
            await house.commit("empty", group="g")
            clock.advance(DAY_MS)
            assert await house.journal.forget_outcomes() == 0
            clock.advance(DAY_MS - 1)
            assert await house.journal.forget_outcomes() == 0
            assert await house.shown("a") == ["t", "t"]
            clock.advance(1)
            assert await house.shown("a") == []
            assert await house.journal.forget_outcomes() == 2
            assert isinstance(await refusal(house.journal.show("t")), TransactionNotFound)
            assert house.rows(Table.ATOMIC_ID) == house.rows(Table.ATOMIC_OUTCOME) == 0

    asyncio.run(scenario())


# --- writes that fail


def test_a_commit_whose_write_fails_is_whole_or_nothing_and_its_repeat_says_which() -> None:
    async def scenario(struck: int, on_disk: bool) -> tuple[str, bool]:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a", "b")
            await house.begin("t")
            await house.stage("t", "a", 0, messages("1", producer="p", first=0))
            left = struck

            def strike(_: object) -> None:
                nonlocal left
                left -= 1
                if left == -1:
                    raise OSError("the disk is full")

            disk.fail_after_apply = on_disk
            disk.before_sync = strike
            answer = await asyncio.gather(house.commit("t", {"b": messages("1")}), return_exceptions=True)
            assert isinstance(answer[0], StorageFailed | StorageUnavailable) or answer[0].state == "committed"  # type: ignore[union-attr]
            disk.before_sync, disk.fail_after_apply = None, False
            after = copy_of(disk)
        async with living(after) as house:
            state = (await house.journal.show("t")).state
            placed = state == "committed"
            assert (await house.shown("a"), await house.shown("b")) == ((["1"], ["1"]) if placed else ([], []))
            again = await house.commit("t", {"b": messages("1")})
            assert again.state == "committed"
            assert (await house.shown("a"), await house.shown("b")) == (["1"], ["1"])
            await house.verify("a", "b")
            return state, isinstance(answer[0], StorageFailed | StorageUnavailable)

    found = {asyncio.run(scenario(struck, on_disk)) for struck in range(4) for on_disk in (False, True)}
    assert {("in_progress", True), ("committed", True)} <= found, found


def test_what_is_committed_while_retention_looks_at_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was staged longer ago than messages live, and is copied between the moment at which retention finds it unpublished and
    the one at which nobody needs it any more. Its payloads were deleted under the row that had just published them."""

    async def scenario() -> None:
        clock = ManualClock()
        async with living(Disk(), clock) as house:
            await house.create("a", ttl="3600")
            await house.begin("old", timeout_ms=DAY_MS)
            await house.stage("old", "a", 0, messages("old", "old"))
            clock.advance(TTL_MS + 1)
            loop = asyncio.get_running_loop()

            def found_and_committed(store: Store, prefix: bytes, live_from: int) -> list[OutdatedBranch]:
                found = outdated_branches(store, prefix, live_from)
                asyncio.run_coroutine_threadsafe(house.commit("old"), loop).result(PATIENCE)
                return found

            monkeypatch.setattr(retention, "outdated_branches", found_and_committed)
            await house.service.retention.once()
            assert await house.shown("a") == ["old", "old"]
            await house.verify("a")

    asyncio.run(scenario())


def test_what_is_committed_stays_although_its_commit_is_still_being_written_when_retention_looks() -> None:
    """Nobody needs what was staged any more, and the row that publishes it is not on disk yet."""

    async def scenario() -> None:
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
                looking = asyncio.ensure_future(house.service.retention.once())
                await asyncio.wait([looking], timeout=0.3)
            finally:
                store.goes.set()
            await commit
            await looking
            assert await house.shown("a") == ["old", "old"]
            await house.verify("a")

    asyncio.run(scenario())


def test_what_a_commit_has_staged_anew_stays_until_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it is there already, so the rest is staged once more under a number of its own; and then the next topic lets the
    commit wait for longer than messages live."""

    async def scenario() -> None:
        clock = ManualClock()
        async with living(Disk(), clock) as house:
            await house.create("a", ttl="10")
            await house.create("b")
            await house.publish("a", messages("0", producer="p", first=0))
            ready = Journaled.ready

            async def late(self: Journaled, *args: Any) -> Ready:
                found = await ready(self, *args)
                clock.advance(11_000)
                await house.service.retention.once()
                return found

            monkeypatch.setattr(Journaled, "ready", late)
            await house.commit("t", {"a": messages("0", "1", producer="p", first=0), "b": messages("b")}, group="g")
            monkeypatch.undo()
            assert await house.shown("a") == ["1"]
            await house.verify("a", "b")

    asyncio.run(scenario())
