"""Crashes and failing disks: what was answered stays so, and everything else is wholly done or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import pytest

from oncelog.errors import (
    InvalidRequest,
    OncelogError,
    StorageFailed,
    StorageUnavailable,
    TransactionConflict,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.wire.models import TransactionState
from oncelog_service.storage.keys import SNAPSHOT_SLOTS, outcome_key
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import StoreDamaged, Table
from oncelog_service.transactions import edit_log
from oncelog_service.transactions.limits import TransactionLimits
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.snapshot import encode_snapshot
from tests.patience import PATIENCE
from tests.transactions.house import BILLS, LONG, ORDERS, SHORT, found_on, opened, with_invalid
from tests.world.clock import ManualClock
from tests.world.disk import Gate, crashed, flip, no_space

SMALL = TransactionLimits(snapshot_edits=7)
"""Snapshots all the time."""


async def one_move(manager: TransactionManager, random: Random, clock: ManualClock, ids: list[int]) -> None:
    """Anything at all, on any transaction; being refused is an answer too."""
    pointer = random.choice(ids[-6:]) if ids else 7
    changes = random.sample([b"a", b"b", b"c"], random.randint(0, 2))
    moves: list[Callable[[], Awaitable[object]]] = [
        lambda: manager.commit(pointer, changes),
        lambda: manager.can_commit(pointer, changes, random.choice([None, "db"])),
        lambda: manager.abort(pointer),
        lambda: manager.invalidate(pointer),
        lambda: manager.checkpoint(pointer),
        lambda: manager.enlist(pointer, random.choice([ORDERS, BILLS])),
        lambda: manager.acknowledge(pointer, random.choice([ORDERS, BILLS])),
        lambda: manager.prune([pointer], None),
        manager.expire_due,
    ]
    if random.random() < 0.4 or not ids:
        begun = await manager.start(random.choice([SHORT, LONG]), None)
        ids.append(begun.transaction_id)
        return
    clock.advance(random.choice([0, 1, 10_000]))
    with suppress(TransactionConflict, TransactionNotInProgress, TransactionNotFound, InvalidRequest):
        await random.choice(moves)()


@pytest.mark.parametrize("seed", range(2))
async def test_after_a_crash_at_any_write_the_state_is_what_it_was_after_that_write(seed: int) -> None:
    """Every write is held against what recovery makes of the disk that it left."""
    random, clock, disk, ids = Random(seed), ManualClock(), Disk(), list[int]()
    for _ in range(3):
        async with opened(disk, clock, SMALL, clean=random.random() < 0.5) as house:
            for _ in range(40):
                await one_move(house.manager, random, clock, ids)
                await house.manager.start(SHORT)  # whatever was submitted lazily or without waiting is written with it
                live = house.manager.state
                recovered = found_on(crashed(disk)).state
                assert encode_snapshot(recovered) == encode_snapshot(live), seed
                assert recovered.invalids == live.invalids


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("move", ["start", "commit", "abort", "invalidate", "can_commit", "checkpoint"])
async def test_after_a_failed_write_the_transaction_is_wholly_as_before_or_wholly_as_after(move: str, on_disk: bool) -> None:
    disk = Disk()
    async with opened(disk, clean=False) as house:
        manager = house.manager
        begun = (await manager.start(SHORT)).transaction_id
        further = (await manager.checkpoint(begun)).write_pointer
        before = encode_snapshot(manager.state)
        disk.before_sync, disk.fail_after_apply = Gate(no_space(), opened=True), on_disk
        arguments = {"start": (SHORT,), "can_commit": (begun, [b"key"])}.get(move, (begun,))
        with pytest.raises(StorageFailed):
            await getattr(manager, move)(*arguments)
        after = encode_snapshot(manager.state)
        for call in (manager.start(SHORT), manager.commit(begun), manager.show(begun), manager.states([begun])):
            with pytest.raises(StorageUnavailable):
                await call
    disk.before_sync, disk.fail_after_apply = None, False
    ended: dict[str, TransactionState] = {"commit": "committed", "abort": "aborted", "invalidate": "invalid"}
    async with opened(disk, clean=False) as house:
        assert encode_snapshot(house.manager.state) == (after if on_disk else before)
        state = ended.get(move, "in_progress") if on_disk else "in_progress"
        assert await house.manager.states([begun, further]) == {begun: state, further: state}


async def test_the_background_task_ends_when_the_store_fails() -> None:
    disk, clock = Disk(), ManualClock()
    async with opened(disk, clock, clean=False) as house:
        await house.manager.start(SHORT, 1)
        disk.before_sync = Gate(no_space(), opened=True)
        clock.advance(1)
        await asyncio.wait_for(house.manager.run(), PATIENCE)


async def test_a_clean_stop_leaves_nothing_to_replay() -> None:
    disk = Disk()
    async with opened(disk) as house:
        begun = (await house.manager.start(SHORT)).transaction_id
    recovered = found_on(disk)
    assert max(each or 0 for each in recovered.snapshots) == recovered.state.number == 1
    assert list(recovered.state.open) == [begun]


async def many(disk: Disk, transactions: int = 40) -> list[int]:
    """Two snapshots and more, and edits after them."""
    async with opened(disk, limits=SMALL, clean=False) as house:
        ids = []
        for _ in range(transactions):
            ids.append((await house.manager.start(SHORT)).transaction_id)
            await house.manager.commit(ids[-1], [b"key"])
        ids.append((await house.manager.start(LONG)).transaction_id)
        await house.writer.synced()  # the newest snapshot
        await house.writer.synced()  # what it allowed to be deleted
        await house.manager.enlist(ids[-1], ORDERS)
        await house.manager.commit(ids[-1])
        return ids


async def test_edits_that_both_snapshots_hold_are_deleted_and_no_others() -> None:
    disk = Disk()
    await many(disk)
    recovered = found_on(disk)
    numbers = [each for each in recovered.snapshots if each is not None]
    stored = [int.from_bytes(key, "big") for key in sorted(disk.tables[Table.TRANSACTION_EDIT])]
    assert len(numbers) == 2
    assert stored == list(range(min(numbers) + 1, recovered.state.number + 1))


@pytest.mark.parametrize("lost", [0, 1])
async def test_one_damaged_snapshot_is_made_up_for_by_the_other_and_more_edits(lost: int) -> None:
    disk = Disk()
    await many(disk)
    whole = found_on(disk).state
    flip(disk, Table.TRANSACTION_SNAPSHOT, SNAPSHOT_SLOTS[lost])
    recovered = found_on(disk)
    assert recovered.snapshots[lost] is None
    assert encode_snapshot(recovered.state) == encode_snapshot(whole)
    async with opened(disk) as house:  # the next snapshot takes the place of the damaged one
        await house.manager.start(SHORT)
    assert None not in found_on(disk).snapshots


async def test_with_both_snapshots_damaged_nothing_is_made_up() -> None:
    disk = Disk()
    await many(disk)
    for slot in SNAPSHOT_SLOTS:
        flip(disk, Table.TRANSACTION_SNAPSHOT, slot)
    with pytest.raises(StoreDamaged):
        found_on(disk)
    disk.tables[Table.TRANSACTION_EDIT].clear()
    with pytest.raises(StoreDamaged):
        found_on(disk)


async def test_a_damaged_outcome_is_refused() -> None:
    disk = Disk()
    begun = (await many(disk))[0]
    flip(disk, Table.OUTCOME, outcome_key(begun))
    async with opened(disk) as house:
        with pytest.raises(OncelogError, match="damaged"):
            await house.manager.show(begun)


async def test_large_snapshots_are_encoded_aside_and_hold_exactly_the_edits_up_to_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edit_log, "_ENCODED_AT_ONCE", 200)
    disk = with_invalid(250)
    async with opened(disk, clean=False) as house:
        begun = [(await house.manager.start(SHORT)).transaction_id for _ in range(50)]
        while not disk.tables[Table.TRANSACTION_SNAPSHOT].get(SNAPSHOT_SLOTS[1]):
            begun += [each.transaction_id for each in await asyncio.gather(*(house.manager.start(SHORT) for _ in range(50)))]
            await asyncio.gather(*(house.manager.commit(begun.pop(0)) for _ in range(50)))
        live = encode_snapshot(house.manager.state)
    recovered = found_on(disk)
    assert min(each or 0 for each in recovered.snapshots) == 500
    assert encode_snapshot(recovered.state) == live


async def test_outcomes_outlive_their_transactions_by_the_maximum_lifetime_and_are_then_deleted() -> None:
    disk, clock = Disk(), ManualClock()
    async with opened(disk, clock) as house:
        manager = house.manager
        old = [(await manager.start(SHORT)).transaction_id for _ in range(5)]
        for each in old:
            await manager.commit(each)
    async with opened(disk, clock) as house:
        manager = house.manager
        clock.advance(90_000_000)
        young = (await manager.start(SHORT)).transaction_id
        await manager.commit(young)
        assert await manager.forget_outcomes() == 0
        clock.advance(3_600_001)
        assert [await manager.forget_outcomes(2) for _ in range(4)] == [2, 2, 1, 0]
        assert await manager.states([*old, young]) == {young: "committed"}
        with pytest.raises(TransactionNotFound):
            await manager.show(old[0])
