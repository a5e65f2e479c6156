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
    TransactionConflict,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog_service.reading import read
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from oncelog_service.transactions import manager as manager_module
from oncelog_service.transactions.limits import TransactionLimits
from oncelog_service.transactions.state import MOVES, Move, Phase
from tests.patience import PATIENCE
from tests.support import ManualClock
from tests.transactions.house import BILLS, LONG, ORDERS, SHORT, Gate, opened, run, sees, with_invalid

# --- what is seen


def test_a_transaction_sees_what_committed_before_it_began_and_nothing_else() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            before, during, aborted = [(await manager.start(SHORT)).transaction_id for _ in range(3)]
            await manager.enlist(aborted, ORDERS)
            await manager.commit(before)
            await manager.abort(aborted)
            reader = await manager.start(SHORT)
            assert [sees(reader, each) for each in (before, during, aborted)] == [True, False, False]
            assert list(reader.in_progress) == [during]
            await manager.commit(during)
            assert not sees(reader, during)
            assert sees(await manager.start(SHORT), during)

    run(scenario())


def test_a_checkpoint_goes_on_with_the_snapshot_of_the_start() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            elder = await manager.start(SHORT)
            begun = await manager.start(SHORT)
            younger = await manager.start(SHORT)
            await manager.commit(elder.transaction_id)
            await manager.commit(younger.transaction_id)
            again = await manager.checkpoint(begun.transaction_id)
            assert (again.read_pointer, again.in_progress) == (begun.read_pointer, begun.in_progress)
            assert again.write_pointer > younger.transaction_id
            assert again.checkpoint_write_pointers == (again.write_pointer,)
            assert not sees(again, elder.transaction_id)

    run(scenario())


def test_a_checkpoints_pointer_names_its_transaction_and_ends_with_it() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            begun = (await manager.start(SHORT)).transaction_id
            further = (await manager.checkpoint(begun)).write_pointer
            assert (await manager.checkpoint(further)).transaction_id == begun
            assert await manager.root(further) == begun
            assert further in (await manager.start(SHORT)).in_progress
            await manager.commit(further)
            assert (await manager.show(further)).write_pointer == begun
            assert await manager.states([begun, further]) == {begun: "committed", further: "committed"}

    run(scenario())


def test_an_aborted_transaction_is_seen_by_nobody_until_every_participant_has_settled() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            begun = (await manager.start(SHORT)).transaction_id
            further = (await manager.checkpoint(begun)).write_pointer
            await manager.enlist(begun, ORDERS)
            await manager.enlist(further, BILLS)
            await manager.abort(begun)
            assert [(each.write_pointer, each.participant, each.state) for each in await manager.unsettled(0)] == [
                (begun, ORDERS, "aborted"),
                (further, BILLS, "aborted"),
            ]
            await manager.settled(begun, ORDERS)
            assert list((await manager.start(SHORT)).invalids) == [begun, further]
            await manager.settled(further, BILLS)
            assert list((await manager.start(SHORT)).invalids) == []
            assert await manager.unsettled(0) == []

    run(scenario())


def test_the_states_of_several_name_one_that_is_settled_while_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, clean=False) as house:
            committed, aborted = [(await house.manager.start(SHORT)).write_pointer for _ in range(2)]
            await house.manager.enlist(aborted, ORDERS)
            await house.manager.commit(committed)
            await house.manager.abort(aborted)
        async with opened(disk) as house:

            async def read_late(*question: Any) -> Any:
                await house.manager.settled(aborted, ORDERS)
                return await read(*question)

            monkeypatch.setattr(manager_module, "read", read_late)
            assert await house.manager.states([committed, aborted]) == {committed: "committed", aborted: "aborted"}

    run(scenario())


# --- conflicts


def test_of_two_transactions_that_change_the_same_key_exactly_one_commits() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            one, two = [(await manager.start(SHORT)).transaction_id for _ in range(2)]
            await manager.can_commit(one, [b"key", b"mine"])
            await manager.can_commit(two, [b"key"])
            await manager.commit(two)
            with pytest.raises(TransactionConflict) as conflict:
                await manager.commit(one)
            assert (conflict.value.write_pointer, conflict.value.conflicts_with) == (one, two)
            with pytest.raises(TransactionConflict):
                await manager.can_commit(one, [b"key"])
            assert (await manager.show(one)).state == "in_progress"
            later = (await manager.start(SHORT)).transaction_id
            await manager.commit(later, [b"key"])

    run(scenario())


def test_a_long_transaction_finds_no_conflict_and_is_none() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            long, short, another = [(await manager.start(kind)).transaction_id for kind in (LONG, SHORT, SHORT)]
            await manager.commit(short, [b"key"])
            await manager.commit(long, [b"key", b"other"])
            await manager.commit(another, [b"other"])

    run(scenario())


def test_a_prepared_transaction_can_always_commit() -> None:
    """The database that decides it may have committed: whoever changes the same has to give way."""

    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            rival, prepared, later = [(await manager.start(SHORT)).transaction_id for _ in range(3)]
            await manager.can_commit(rival, [b"key"])
            await manager.can_commit(prepared, [b"key"], "orders-db")
            await manager.can_commit(prepared, [b"key"], "orders-db")
            with pytest.raises(TransactionConflict) as conflict:
                await manager.commit(rival)
            assert conflict.value.conflicts_with == prepared
            with pytest.raises(TransactionConflict):
                await manager.can_commit(later, [b"key"])
            with pytest.raises(InvalidRequest):
                await manager.can_commit(prepared, [b"key", b"another"], "orders-db")
            with pytest.raises(InvalidRequest):
                await manager.can_commit(prepared, [b"key"], "another-db")
            await manager.commit(prepared)
            await manager.commit((await manager.start(SHORT)).transaction_id, [b"key"])

    run(scenario())


def test_the_keys_of_a_prepared_transaction_that_is_aborted_are_free_again() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            prepared, rival = [(await manager.start(SHORT)).transaction_id for _ in range(2)]
            await manager.can_commit(prepared, [b"key"], "orders-db")
            await manager.abort(prepared)
            await manager.commit(rival, [b"key"])

    run(scenario())


# --- durability


def test_a_commit_is_in_no_answered_start_before_it_is_on_disk() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, clean=False) as house:
            begun = (await house.manager.start(SHORT)).transaction_id
            gate = Gate(disk)
            commit = asyncio.ensure_future(house.manager.commit(begun))
            start = asyncio.ensure_future(house.manager.start(SHORT))
            status = asyncio.ensure_future(house.manager.show(begun))
            await asyncio.sleep(0.03)
            assert not any(each.done() for each in (commit, start, status))
            gate.let()
            assert sees(await start, begun)
            assert len(disk.tables[Table.OUTCOME]) == 1
            assert (await status).state == "committed"
            await commit

    run(scenario())


def test_a_refusal_waits_until_what_it_lost_to_is_on_disk() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, clean=False) as house:
            one, two = [(await house.manager.start(SHORT)).transaction_id for _ in range(2)]
            gate = Gate(disk)
            commit = asyncio.ensure_future(house.manager.commit(one, [b"key"]))
            await asyncio.sleep(0)
            refusal = asyncio.ensure_future(house.manager.can_commit(two, [b"key"]))
            await asyncio.sleep(0.03)
            assert not refusal.done()
            gate.let()
            with pytest.raises(TransactionConflict):
                await refusal
            await commit

    run(scenario())


# --- ids


def test_ids_rise_with_a_frozen_clock_one_that_steps_back_and_across_a_restart() -> None:
    async def scenario() -> None:
        disk, clock = Disk(), ManualClock(5_000)
        ids: list[int] = []
        for clean, step in ((False, 0), (True, -3_000), (False, 10)):
            async with opened(disk, clock, clean=clean) as house:
                ids += [(await house.manager.start(SHORT)).transaction_id for _ in range(3)]
                ids.append((await house.manager.checkpoint(ids[-1])).write_pointer)
            clock.ms += step
        assert ids == [5_000_000_000 + number for number in range(12)]
        clock.ms = 6_000
        async with opened(disk, clock) as house:
            assert (await house.manager.start(SHORT)).transaction_id == 6_000_000_000

    run(scenario())


# --- ends


@pytest.mark.parametrize("end", ["commit", "abort", "invalidate"])
@pytest.mark.parametrize("restart", [False, True])
def test_ending_a_transaction_twice_is_as_once(end: str, restart: bool) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, clean=False) as house:
            begun = (await house.manager.start(SHORT)).transaction_id
            further = (await house.manager.checkpoint(begun)).write_pointer
            await getattr(house.manager, end)(begun)
            await getattr(house.manager, end)(further)
            edits = house.manager.state.number
            if not restart:
                await getattr(house.manager, end)(begun)
                assert house.manager.state.number == edits
        if restart:
            async with opened(disk, clean=False) as house:
                await getattr(house.manager, end)(begun)
                await getattr(house.manager, end)(further)
                assert house.manager.state.number == edits

    run(scenario())


@pytest.mark.parametrize("restart", [False, True])
def test_whoever_comes_too_late_learns_what_became_of_the_transaction(restart: bool) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, clean=False) as house:
            committed, aborted, invalid = [(await house.manager.start(SHORT)).transaction_id for _ in range(3)]
            await house.manager.commit(committed)
            await house.manager.abort(aborted)
            await house.manager.invalidate(invalid)
            if not restart:
                await too_late(house.manager, committed, aborted, invalid)
        if restart:
            async with opened(disk, clean=False) as house:
                await too_late(house.manager, committed, aborted, invalid)

    async def too_late(manager, committed: int, aborted: int, invalid: int) -> None:  # type: ignore[no-untyped-def]
        for pointer, state, moves in (
            (committed, "committed", ("abort", "invalidate", "can_commit", "checkpoint", "enlist", "root")),
            (aborted, "aborted", ("commit", "invalidate", "can_commit", "checkpoint", "enlist", "root")),
            (invalid, "invalid", ("commit", "can_commit", "checkpoint", "enlist", "root")),
        ):
            assert (await manager.show(pointer)).state == state
            for move in moves:
                extra = {"can_commit": ([],), "enlist": (ORDERS,)}.get(move, ())
                with pytest.raises(TransactionNotInProgress) as refused:
                    await getattr(manager, move)(pointer, *extra)
                assert (refused.value.write_pointer, refused.value.state) == (pointer, state)
        assert await manager.states([committed, aborted, invalid, 7]) == {
            committed: "committed",
            aborted: "aborted",
            invalid: "invalid",
        }

    run(scenario())


def test_a_pointer_that_was_never_handed_out_is_foreign() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            begun = (await manager.start(SHORT)).transaction_id
            for foreign in (7, begun - 1, begun + 1, 2**62):
                assert await manager.enlist(foreign, ORDERS) is False
                assert await manager.root(foreign) is None
                assert not manager.ended(foreign)
                assert await manager.states([foreign]) == {}
                for move in (manager.commit, manager.abort, manager.invalidate, manager.checkpoint, manager.show):
                    with pytest.raises(TransactionNotFound) as unknown:
                        await move(foreign)
                    assert unknown.value.write_pointer == foreign

    run(scenario())


def test_an_invalid_transaction_that_is_aborted_after_all_leaves_the_invalid_list() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            begun = (await manager.start(SHORT)).transaction_id
            await manager.invalidate(begun)
            assert list((await manager.start(SHORT)).invalids) == [begun]
            await manager.abort(begun)
            assert list((await manager.start(SHORT)).invalids) == []
            assert (await manager.show(begun)).state == "aborted"

    run(scenario())


# --- time


def test_a_short_transaction_times_out_and_becomes_invalid() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with opened(Disk(), clock) as house:
            manager = house.manager
            quick = (await manager.start(SHORT, 1_000)).transaction_id
            usual = (await manager.start(SHORT)).transaction_id
            long = (await manager.start(LONG)).transaction_id
            clock.advance(999)
            assert await manager.expire_due() == 0
            clock.advance(1)
            assert await manager.expire_due() == 1
            assert (await manager.show(quick)).state == "invalid"
            clock.advance(30_000)
            assert await manager.expire_due() == 1
            assert list((await manager.start(SHORT, 10)).invalids) == [quick, usual]
            clock.advance(90_000_000)
            await manager.expire_due()
            assert (await manager.show(long)).state == "invalid"

    run(scenario())


def test_a_prepared_transaction_does_not_time_out_before_the_maximum_lifetime() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with opened(Disk(), clock) as house:
            begun = (await house.manager.start(SHORT, 1_000)).transaction_id
            began_ms = clock.ms
            clock.advance(500)
            await house.manager.can_commit(begun, [b"key"], "orders-db")
            status = await house.manager.show(begun)
            assert (status.resource, status.expires_ms) == ("orders-db", began_ms + 90_000_000)
            clock.advance(89_999_499)
            assert await house.manager.expire_due() == 0
            clock.advance(1)
            assert await house.manager.expire_due() == 1

    run(scenario())


def test_the_background_task_ends_what_is_due_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "_TICK_SECONDS", 10 * PATIENCE)  # it is told, it does not wait for its next round

    class Clock(ManualClock):
        def monotonic(self) -> float:
            return time.monotonic()

    async def scenario() -> None:
        async with opened(Disk(), Clock()) as house:
            task = asyncio.ensure_future(house.manager.run())
            await asyncio.sleep(0.05)
            begun = (await house.manager.start(SHORT, 1_000)).transaction_id
            await house.manager.enlist(begun, ORDERS)
            assert [each.state for each in await house.manager.unsettled(PATIENCE)] == ["invalid"]
            task.cancel()

    run(scenario())


# --- participants


def test_a_participant_is_noted_once_and_before_what_it_writes_next() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, clean=False) as house:
            manager = house.manager
            begun = (await manager.start(SHORT)).transaction_id
            writes = disk.writes
            gate = Gate(disk)
            assert await manager.enlist(begun, ORDERS) is True
            edits = manager.state.number
            assert await manager.enlist(begun, ORDERS) is True
            assert manager.state.number == edits
            assert disk.writes == writes  # nobody waited
            gate.let()
            await manager.commit(begun)
        async with opened(disk) as house:
            assert [each.participant for each in await house.manager.unsettled(0)] == [ORDERS]

    run(scenario())


def test_unsettled_waits_for_an_end_and_knows_whose_participants_they_are() -> None:
    async def scenario() -> None:
        async with opened(Disk(), instance="here") as house:
            manager = house.manager
            begun = (await manager.start(SHORT)).transaction_id
            await manager.enlist(begun, ORDERS)
            await manager.enlist(begun, "there:default/orders/1")
            waiting = asyncio.ensure_future(manager.unsettled(10))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await manager.commit(begun)
            assert manager.ended(begun)
            assert [(each.state, each.participant) for each in await waiting] == [("committed", ORDERS)]
            assert [each.participant for each in await manager.unsettled(0, "there")] == ["there:default/orders/1"]
            assert await manager.unsettled(0.01, "elsewhere") == []
            await manager.settled(begun, ORDERS)
            await manager.settled(begun, ORDERS)
            await manager.settled(12345, ORDERS)
            assert (await manager.show(begun)).participants == ["there:default/orders/1"]

    run(scenario())


def test_settling_before_the_end_changes_nothing() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            begun = (await house.manager.start(SHORT)).transaction_id
            await house.manager.enlist(begun, ORDERS)
            await house.manager.settled(begun, ORDERS)
            await house.manager.abort(begun)
            assert [each.participant for each in await house.manager.unsettled(0)] == [ORDERS]

    run(scenario())


def test_one_answer_has_at_most_a_thousand_settlements() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            for _ in range(3):
                begun = (await house.manager.start(SHORT)).transaction_id
                for number in range(501):
                    await house.manager.enlist(begun, f"here:default/{number}/1")
                await house.manager.commit(begun)
            assert len(await house.manager.unsettled(0)) == 1_000

    run(scenario())


# --- listing and pruning


def test_transactions_are_listed_by_rising_pointer_from_where_one_says() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            ids = [(await manager.start(SHORT)).transaction_id for _ in range(6)]
            for each in (ids[4], ids[0], ids[2]):
                await manager.invalidate(each)
            assert [each.write_pointer for each in await manager.list("in_progress", ids[1], 1)] == [ids[3]]
            assert [each.write_pointer for each in await manager.list("invalid", 0, 10)] == [ids[0], ids[2], ids[4]]
            assert [each.write_pointer for each in await manager.list("invalid", ids[0], 1)] == [ids[2]]
            with pytest.raises(InvalidRequest):
                await manager.list("committed", 0, 10)

    run(scenario())


def test_pruning_leaves_those_whose_participants_have_not_settled() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with opened(Disk(), clock) as house:
            manager = house.manager
            old, waiting = [(await manager.start(SHORT)).transaction_id for _ in range(2)]
            await manager.enlist(waiting, ORDERS)
            clock.advance(10)
            young = (await manager.start(SHORT)).transaction_id
            for each in (old, waiting, young):
                await manager.invalidate(each)
            assert await manager.prune(None, clock.ms) == 1
            assert await manager.prune(None, clock.ms) == 0
            assert await manager.prune([waiting, young, 12345], None) == 1
            assert list((await manager.start(SHORT)).invalids) == [waiting]
            await manager.settled(waiting, ORDERS)
            assert await manager.prune([waiting], None) == 1
            assert (await manager.show(waiting)).state == "invalid"
            for pointers, before_ms in ((None, None), ([old], clock.ms)):
                with pytest.raises(InvalidRequest):
                    await manager.prune(pointers, before_ms)

    run(scenario())


def test_pruning_everything_leaves_an_empty_list() -> None:
    async def scenario() -> None:
        async with opened(with_invalid(100)) as house:
            assert await house.manager.prune(None, house.manager.state.last // 1_000_000 + 1) == 100
            assert (await house.manager.start(SHORT)).invalids == ()

    run(scenario())


# --- limits


def test_what_is_too_much_is_refused() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_released_manager_answers_nothing_any_more() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            manager = house.manager
            begun = (await manager.start(SHORT)).transaction_id
            waiting = asyncio.ensure_future(manager.unsettled(10))
            await asyncio.sleep(0)
            manager.release()
            calls = [waiting, manager.start(SHORT), manager.commit(begun), manager.show(begun), manager.enlist(begun, ORDERS)]
            calls += [manager.states([begun]), manager.root(begun), manager.list("invalid", 0, 1), manager.settled(begun, ORDERS)]
            for call in calls:
                with pytest.raises(StorageUnavailable):
                    await call

    run(scenario())


def test_every_refusal_names_what_would_have_been_possible() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            begun = (await house.manager.start(SHORT)).transaction_id
            await house.manager.commit(begun)
            with pytest.raises(TransactionNotInProgress, match="is committed; to be aborted it must be one of: in progress"):
                await house.manager.abort(begun)

    run(scenario())


def test_every_phase_and_every_move_is_in_the_table() -> None:
    assert set(MOVES) == set(Phase)
    assert {move for moves in MOVES.values() for move in moves} == set(Move)


def test_starting_with_ten_thousand_invalid_transactions_takes_less_than_five_milliseconds() -> None:
    async def scenario() -> None:
        async with opened(with_invalid(10_000)) as house:
            manager = house.manager
            took = []
            for _ in range(20):
                before = time.perf_counter()
                transaction = await manager.start(SHORT)
                transaction.to_bytes()
                took.append(time.perf_counter() - before)
                await manager.invalidate(transaction.transaction_id)  # so that the list is another one each time
            assert len(transaction.invalids) == 10_019
            assert min(took) < 0.005  # the others were held up by whatever else this machine does

    run(scenario())
