"""The transaction service in one process: what its answers promise."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from oncelog.errors import (
    InvalidRequest,
    Overloaded,
    RequestTooLarge,
    StorageUnavailable,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionPrepared,
)
from oncelog.wire.models import TransactionState
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType
from oncelog_service.reading import read
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, StoreDamaged, Table
from oncelog_service.transactions import manager as manager_module
from oncelog_service.transactions.edits import Started
from oncelog_service.transactions.limits import TransactionLimits
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.openings import KEPT, Opening, find_openings, may_know, put_openings
from oncelog_service.transactions.port import Owned
from oncelog_service.transactions.snapshot import encode_snapshot
from oncelog_service.transactions.state import TransactionsState
from tests.patience import PATIENCE
from tests.transactions.house import BILLS, LONG, ORDERS, SHORT, opened, with_invalid
from tests.world.clock import ManualClock
from tests.world.disk import Gate, crashed


async def test_the_states_of_several_name_one_that_is_acknowledged_while_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    async with opened(disk, clean=False) as house:
        committed, aborted = [(await house.manager.start(SHORT)).write_pointer for _ in range(2)]
        await house.manager.enlist(aborted, ORDERS)
        await house.manager.commit(committed)
        await house.manager.abort(aborted)
    async with opened(disk) as house:

        async def read_late(*question: Any) -> Any:
            await house.manager.acknowledge(aborted, ORDERS)
            return await read(*question)

        monkeypatch.setattr(manager_module, "read", read_late)
        assert await house.manager.states([committed, aborted]) == {committed: "committed", aborted: "aborted"}


# --- ends

ENDS: dict[str, TransactionState] = {"commit": "committed", "abort": "aborted", "invalidate": "invalid"}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("restart", [False, True])
async def test_an_end_is_idempotent_and_whoever_comes_too_late_learns_of_it(end: str, restart: bool) -> None:
    disk, state = Disk(), ENDS[end]
    async with opened(disk, clean=False) as house:
        begun = (await house.manager.start(SHORT)).transaction_id
        further = (await house.manager.checkpoint(begun)).write_pointer
        assert await house.manager.root(further) == begun
        await getattr(house.manager, end)(begun)
        edits = house.manager.state.number
        survivor = crashed(disk)
        if not restart:
            await _too_late(house.manager, begun, further, end, state)
            assert house.manager.state.number == edits
    async with opened(survivor, clean=False) as house:
        await _too_late(house.manager, begun, further, end, state)
        assert house.manager.state.number == edits


async def _too_late(manager: TransactionManager, begun: int, further: int, end: str, state: str) -> None:
    possible = {end, "abort"} if end == "invalidate" else {end}
    for pointer in (begun, further):
        await getattr(manager, end)(pointer)
        shown = await manager.show(pointer)
        assert (shown.write_pointer, shown.state) == (begun, state)
        for move in {"commit", "abort", "invalidate", "can_commit", "checkpoint", "enlist", "root"} - possible:
            extra = {"can_commit": ([],), "enlist": (ORDERS,)}.get(move, ())
            with pytest.raises(TransactionNotInProgress) as refused:
                await getattr(manager, move)(pointer, *extra)
            assert (refused.value.write_pointer, refused.value.state) == (pointer, state)
    assert await manager.states([begun, further, 7]) == {begun: state, further: state}


async def test_a_pointer_that_was_never_handed_out_is_foreign(manager: TransactionManager) -> None:
    begun = (await manager.start(SHORT)).transaction_id
    for foreign in (7, begun - 1, begun + 1, 2**62):
        assert await manager.enlist(foreign, ORDERS) is None
        assert await manager.root(foreign) is None
        assert not manager.ended(foreign)
        assert await manager.states([foreign]) == {}
        for move in (manager.commit, manager.abort, manager.invalidate, manager.checkpoint, manager.show):
            with pytest.raises(TransactionNotFound) as unknown:
                await move(foreign)
            assert unknown.value.write_pointer == foreign


async def test_who_does_not_know_what_the_database_has_decided_ends_nothing_that_is_prepared(manager: TransactionManager) -> None:
    prepared, begun = [(await manager.start(SHORT)).transaction_id for _ in range(2)]
    await manager.can_commit(prepared, [b"key"], "db")
    await manager.abort(begun, unless_prepared=True)
    with pytest.raises(TransactionPrepared):
        await manager.abort(prepared, unless_prepared=True)
    assert await manager.states([prepared, begun]) == {prepared: "in_progress", begun: "aborted"}


# --- time


@pytest.mark.parametrize(
    ("kind", "timeout_ms", "resource", "lives_ms"),
    [(SHORT, 1_000, None, 1_000), (SHORT, None, None, 30_000), (LONG, None, None, 90_000_000), (SHORT, 1_000, "db", 90_000_000)],
    ids=["its own", "short", "long", "prepared"],
)
async def test_a_transaction_lives_as_long_as_it_may_and_becomes_invalid(
    kind: TransactionType, timeout_ms: int | None, resource: str | None, lives_ms: int
) -> None:
    clock = ManualClock()
    async with opened(Disk(), clock) as house:
        manager, began_ms = house.manager, clock.ms
        begun = (await manager.start(kind, timeout_ms)).transaction_id
        clock.advance(500)
        await manager.can_commit(begun, [b"key"], resource)
        status = await manager.show(begun)
        assert (status.resource, status.expires_ms) == (resource, began_ms + lives_ms)
        clock.advance(lives_ms - 501)
        assert await manager.expire_due() == 0
        clock.advance(1)
        assert await manager.expire_due() == 1
        assert list((await manager.start(SHORT, 10)).invalids) == [begun]


async def test_the_background_task_ends_what_is_due_without_being_asked() -> None:
    class Clock(ManualClock):
        def monotonic(self) -> float:
            return time.monotonic()

    async with opened(Disk(), Clock()) as house:
        task = asyncio.ensure_future(house.manager.run())
        await asyncio.sleep(0.05)
        began = time.monotonic()
        begun = (await house.manager.start(SHORT, 300)).transaction_id
        await house.manager.enlist(begun, ORDERS)
        assert [each.state for each in await house.manager.unacknowledged(PATIENCE)] == ["invalid"]
        assert time.monotonic() - began < 0.5, "it is told, it does not wait for its next round"
        task.cancel()


# --- participants


async def test_a_participant_is_noted_once_and_before_what_it_writes_next() -> None:
    disk = Disk()
    async with opened(disk, clean=False) as house:
        manager = house.manager
        begun = (await manager.start(SHORT)).transaction_id
        writes = disk.writes
        disk.before_sync = gate = Gate()
        assert await manager.enlist(begun, ORDERS) == Owned(None)
        edits = manager.state.number
        assert await manager.enlist(begun, ORDERS) == Owned(None)
        assert manager.state.number == edits
        assert disk.writes == writes  # nobody waited
        gate.opened.set()
        await manager.commit(begun)
    async with opened(disk) as house:
        assert [each.participant for each in await house.manager.unacknowledged(0)] == [ORDERS]


async def test_unacknowledged_waits_for_an_end_and_knows_whose_participants_they_are() -> None:
    async with opened(Disk(), store_id="here") as house:
        manager = house.manager
        begun = (await manager.start(SHORT)).transaction_id
        further = (await manager.checkpoint(begun)).write_pointer
        for pointer, participant in ((further, BILLS), (begun, ORDERS), (begun, "there:default/orders/1")):
            await manager.enlist(pointer, participant)
            await manager.acknowledge(pointer, participant)  # before the end that says nothing
        waiting = asyncio.ensure_future(manager.unacknowledged(10))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await manager.commit(begun)
        assert manager.ended(begun)
        told = [(each.write_pointer, each.state, each.participant) for each in await waiting]
        assert told == [(further, "committed", BILLS), (begun, "committed", ORDERS)]
        assert [each.participant for each in await manager.unacknowledged(0, "there")] == ["there:default/orders/1"]
        assert await manager.unacknowledged(0.01, "elsewhere") == []
        for pointer, participant in ((begun, ORDERS), (begun, ORDERS), (further, BILLS), (12345, ORDERS)):
            await manager.acknowledge(pointer, participant)
        assert await manager.unacknowledged(0) == []
        assert (await manager.show(begun)).participants == ["there:default/orders/1"]


async def test_who_waits_for_the_next_end_looks_only_when_there_is_one(
    manager: TransactionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = (await manager.start(SHORT)).transaction_id
    await manager.enlist(begun, ORDERS)
    await manager.commit(begun)
    await manager.acknowledge(begun, ORDERS)
    looked, look = list[int](), manager._settlements
    monkeypatch.setattr(manager, "_settlements", lambda *asked: looked.append(1) or look(*asked))
    assert await manager.unacknowledged(0.05) == []
    assert len(looked) <= 3


# --- listing and pruning


async def test_invalid_transactions_are_listed_by_rising_pointer_whenever_they_became_so(manager: TransactionManager) -> None:
    ids = [(await manager.start(SHORT)).transaction_id for _ in range(3)]
    for each in reversed(ids):
        await manager.invalidate(each)
    assert [each.write_pointer for each in await manager.list("invalid", ids[0], 10)] == ids[1:]
    with pytest.raises(InvalidRequest):
        await manager.list("committed", 0, 10)


async def test_what_is_pruned_is_named_or_older_than_a_time() -> None:
    async with opened(with_invalid(100)) as house:
        for pointers, before_ms in ((None, None), ([1], 1)):
            with pytest.raises(InvalidRequest):
                await house.manager.prune(pointers, before_ms)
        assert [await house.manager.prune([7], None) for _ in range(2)] == [1, 0]
        assert await house.manager.prune(None, house.manager.state.last // POINTERS_PER_MS + 1) == 99
        assert (await house.manager.start(SHORT)).invalids == ()


# --- limits


async def test_what_is_too_much_is_refused() -> None:
    limits = TransactionLimits(max_in_progress=2, max_changes=2, max_change_bytes=10, max_timeout_ms=1_000)
    async with opened(Disk(), limits=limits) as house:
        manager = house.manager
        with pytest.raises(InvalidRequest):
            await manager.start(SHORT, 1_001)
        with pytest.raises(InvalidRequest):
            await manager.start(LONG, 1_000)
        begun = (await manager.start(SHORT, 1_000)).transaction_id
        await manager.start(LONG)
        with pytest.raises(Overloaded):
            await manager.start(SHORT, 1_000)
        with pytest.raises(RequestTooLarge):
            await manager.can_commit(begun, [b"1", b"2", b"3"])
        with pytest.raises(RequestTooLarge):
            await manager.commit(begun, [b"12345678901"])
        for name in ("", "x" * 70_000):
            with pytest.raises(InvalidRequest):
                await manager.enlist(begun, name)
        await manager.commit(begun, [b"1234567890"])


async def test_a_released_manager_answers_nothing_any_more(manager: TransactionManager) -> None:
    begun = (await manager.start(SHORT)).transaction_id
    waiting = asyncio.ensure_future(manager.unacknowledged(10))
    await asyncio.sleep(0)
    manager.release()
    calls = [waiting, manager.start(SHORT), manager.commit(begun), manager.show(begun), manager.enlist(begun, ORDERS)]
    calls += [manager.states([begun]), manager.root(begun), manager.list("invalid", 0, 1), manager.acknowledge(begun, ORDERS)]
    for call in calls:
        with pytest.raises(StorageUnavailable):
            await call


# --- where pointers lie


@pytest.mark.parametrize(
    ("last", "following"),
    [(10**6 - 1, 10**6 + 500_000), (500_001, 500_002), (7, 500_000), (3 * 10**6, 3 * 10**6 + 500_000)],
    ids=["the half is used up", "it is not", "an older version's", "an older version's, by a clock that was ahead"],
)
async def test_pointers_are_of_the_upper_half_of_a_millisecond_and_go_on_in_that_of_the_next(last: int, following: int) -> None:
    disk, batch, state = Disk(), Batch(), TransactionsState()
    state.apply(Started(last, SHORT, 30_000))
    batch.put(Table.TRANSACTION_SNAPSHOT, SNAPSHOT_SLOTS[0], encode_snapshot(state))
    MemoryStore(disk).write([batch])
    async with opened(disk, ManualClock(0)) as house:
        assert (await house.manager.checkpoint(last)).write_pointer == following
        assert (await house.manager.start(SHORT)).write_pointer == following + 1
        await house.manager.commit(last)


async def test_it_says_which_pointers_it_has_forgotten_over_many_openings_and_of_none_that_it_never_knew() -> None:
    disk, clock, known, never = Disk(), ManualClock(), [], []
    for opening in range(60):
        async with opened(disk, clock, clean=opening % 2 == 0) as house:
            if opening % 3:
                known.append((await house.manager.start(SHORT)).write_pointer)
                await house.manager.abort(known[-1])
                clock.advance(1)
                never.append(clock.ms * POINTERS_PER_MS + 500_000)
            clock.advance(1_000)
    async with opened(disk, clock) as house:
        assert not any([await house.manager.forgotten(each) for each in known]), "too young"
        clock.advance(200_000_000)
        assert all([await house.manager.forgotten(each) for each in known])
        while await house.manager.forget_outcomes():
            pass
        for each, expected in ((known[0], True), (never[0], None), (known[0] - 1, None)):
            with pytest.raises(TransactionNotFound) as refusal:
                await house.manager.show(each)
            assert refusal.value.forgotten is expected
        assert not any([await house.manager.forgotten(each) for each in never])


def test_of_the_openings_that_handed_pointers_out_the_newest_are_kept() -> None:
    openings, batch, disk = [Opening(2 * each, 2 * each + 1) for each in range(KEPT + 9)], Batch(), Disk()
    put_openings(batch, openings)
    MemoryStore(disk).write([batch])
    found = find_openings(MemoryStore(disk))
    assert found == openings[-KEPT:]
    assert not may_know(found, 10**6, openings[8].first)
    assert may_know(found, 10**6, openings[9].first)
    for damaged in (b"x", b"00"):
        disk.tables[Table.STORE_ID][b"pointers"] = damaged
        with pytest.raises(StoreDamaged):
            find_openings(MemoryStore(disk))
