"""What is remembered of transactions by a client's word counts against its principal, and is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from oncelog.errors import OncelogError, Overloaded, QuotaExceeded, TransactionConflict
from oncelog_service.storage.memory import Disk
from oncelog_service.transactions.limits import TransactionLimits
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.state import weight
from tests.transactions.house import LONG, ORDERS, SHORT, opened
from tests.world.clock import ManualClock
from tests.world.disk import crashed

HOUR_MS = 3_600_000
KEPT_MS = (25 + 24) * HOUR_MS


class House:
    """One store over its lives."""

    def __init__(self, **limits: int) -> None:
        self.limits = replace(TransactionLimits(), **limits)
        self.disk, self.clock = Disk(), ManualClock()

    @asynccontextmanager
    async def life(self, clean: bool = True) -> AsyncIterator[TransactionManager]:
        async with opened(self.disk, self.clock, self.limits, clean) as house:
            yield house.manager
        self.disk = self.disk if clean else crashed(self.disk)


async def begun(manager: TransactionManager, owner: str | None = "ada") -> int:
    return (await manager.start(SHORT, None, owner)).transaction_id


async def given_up(manager: TransactionManager, owner: str | None = "ada") -> int:
    pointer = await begun(manager, owner)
    await manager.invalidate(pointer)
    return pointer


def assert_full(error: OncelogError, quota: str, soon: bool) -> None:
    assert isinstance(error, QuotaExceeded)
    assert (error.definite, error.quota, error.retry_after_ms) == (True, quota, 1000 if soon else None)


# --- in progress


@pytest.mark.parametrize("clean", [True, False])
async def test_a_checkpoint_counts_as_a_transaction_does(clean: bool) -> None:
    house = House(max_of_one=3)
    async with house.life(clean) as manager:
        first = await begun(manager)
        await manager.checkpoint(first)
        await manager.checkpoint(first)
    async with house.life(clean) as manager:
        for one_more in (manager.checkpoint(first), begun(manager)):
            with pytest.raises(QuotaExceeded) as refused:
                await one_more
            assert_full(refused.value, "transactions", soon=True)
        others = await begun(manager, "bob")
        await manager.checkpoint(others)
        await manager.abort(first)
        await begun(manager)


async def test_checkpoints_of_nobody_count_against_all() -> None:
    async with House(max_in_progress=3).life() as manager:
        first = await begun(manager, None)
        await manager.checkpoint(first)
        await manager.checkpoint(first)
        for one_more in (manager.checkpoint(first), begun(manager, "ada")):
            with pytest.raises(Overloaded):
                await one_more
        await manager.commit(first)
        await begun(manager)


async def test_transactions_of_one_are_on_so_many_topics_all_together() -> None:
    async with House(max_of_one=2, max_topics_each=2).life() as manager:
        first, second = await begun(manager), await begun(manager)
        for topic in range(3):
            await manager.enlist(first, f"here:default/t{topic}/1")
        await manager.enlist(second, ORDERS)
        with pytest.raises(QuotaExceeded) as refused:
            await manager.enlist(second, "here:default/t0/1")
        assert_full(refused.value, "participants", soon=True)
        await manager.enlist(second, ORDERS)  # where it is already
        await manager.enlist(await begun(manager, "bob"), ORDERS)
        await manager.commit(first)
        await manager.enlist(second, "here:default/t0/1")


# --- invalid


@pytest.mark.parametrize("clean", [True, False])
async def test_who_has_too_many_invalid_ones_begins_none_until_they_are_gone(clean: bool) -> None:
    house = House(max_invalid_of_one=3)
    async with house.life(clean) as manager:
        going_on = await begun(manager)
        first = await begun(manager)
        await manager.checkpoint(first)
        await manager.invalidate(first)
        second = await given_up(manager)
    async with house.life(clean) as manager:
        for one_more in (begun(manager), manager.checkpoint(going_on)):
            with pytest.raises(QuotaExceeded, match="abort those") as refused:
                await one_more
            assert_full(refused.value, "invalid_transactions", soon=False)
        await given_up(manager, "bob")
        await manager.abort(second, by="ada")  # its client has undone everything, and says so
        last = await given_up(manager)
        with pytest.raises(QuotaExceeded):
            await begun(manager)
        await manager.prune([last], None)
        await manager.enlist(going_on, ORDERS)
        await manager.invalidate(going_on)
        with pytest.raises(QuotaExceeded):
            await begun(manager)
        await manager.abort(going_on, by="ada")  # what a topic rolls back leaves the list by itself, and is not counted
        await begun(manager)


async def test_what_is_invalid_leaves_the_list_by_itself_once_topics_have_rolled_back_and_a_day_after_its_longest_life() -> None:
    house = House()
    async with house.life() as manager:
        alone, held = await begun(manager), await begun(manager, None)
        await manager.enlist(held, ORDERS)
        long = (await manager.start(LONG, None, "ada")).transaction_id
        house.clock.ms += 2 * KEPT_MS  # somebody sets the wall clock, which ages nothing
        await manager.expire_due()
        assert await manager.forget_outcomes() == 0
        house.clock.ms -= 2 * KEPT_MS
        house.clock.advance(KEPT_MS)
        await manager.expire_due()
        await manager.forget_outcomes()
        assert [each.write_pointer for each in await manager.list("invalid", 0, 10)] == [alone, held, long]
        house.clock.advance(1)
        while await manager.forget_outcomes():
            pass
        assert (await manager.start(SHORT)).invalids == (held,)
        await manager.acknowledge(held, ORDERS)
        await manager.forget_outcomes()
        assert (await manager.start(SHORT)).invalids == ()
    async with house.life() as manager:
        assert (await manager.start(SHORT)).invalids == ()


async def test_what_became_invalid_before_a_restart_stays_for_an_hour_after_it_however_old_it_is() -> None:
    house = House()
    async with house.life() as manager:
        pointer = await given_up(manager)
    house.clock.advance(2 * KEPT_MS)
    async with house.life() as manager:
        assert await manager.forget_outcomes() == 0
        house.clock.advance(HOUR_MS)
        assert (await manager.start(SHORT)).invalids == (pointer,)
        assert await manager.forget_outcomes() > 0
        assert (await manager.start(SHORT)).invalids == ()


async def test_where_settings_say_so_it_stays_until_somebody_prunes_it() -> None:
    house = House(invalid_kept_ms=0)
    async with house.life() as manager:
        pointer = await given_up(manager)
        house.clock.advance(100 * KEPT_MS)
        while await manager.forget_outcomes():
            pass
        assert (await manager.start(SHORT)).invalids == (pointer,)


# --- change sets

KEYS = [[b"%d of %d" % (key, each) for key in range(10)] for each in range(10)]
ONE = weight(KEYS[0])


async def committed(manager: TransactionManager, keys: list[bytes], owner: str | None = "ada") -> None:
    await manager.commit(await begun(manager, owner), keys)


@pytest.mark.parametrize("clean", [True, False])
async def test_change_sets_that_are_kept_count_against_their_principal_over_restarts_while_young_ones_may_conflict_with_them(
    clean: bool,
) -> None:
    house = House(max_kept_of_one=3 * ONE)
    async with house.life(clean) as manager:
        oldest = await begun(manager, "bob")
        await committed(manager, KEYS[0])
        await committed(manager, KEYS[1])
        handed_in = await begun(manager)
        await manager.can_commit(handed_in, KEYS[2])
    async with house.life(clean) as manager:
        another = await begun(manager)
        for one_more in (manager.can_commit(another, KEYS[3]), manager.commit(another, KEYS[3][:1])):
            with pytest.raises(QuotaExceeded, match="or are 30 s old") as refused:
                await one_more
            assert_full(refused.value, "change_sets", soon=True)
        await committed(manager, KEYS[4], "eve")
        await manager.can_commit(handed_in, KEYS[3])  # instead of those that it handed in before
        await manager.commit(handed_in)  # which adds nothing, so that it is never refused
        for keys in (KEYS[0], KEYS[3], KEYS[4]):
            with pytest.raises(TransactionConflict):
                await manager.can_commit(oldest, keys[:1])
        assert (await manager.show(another)).state == "in_progress"
        await manager.abort(oldest)
        await manager.can_commit(another, KEYS[5])


@pytest.mark.parametrize("owner", ["eve", None])
async def test_change_sets_of_all_are_bounded_too(owner: str | None) -> None:
    async with House(max_kept=2 * ONE).life() as manager:
        oldest = await begun(manager, "bob")
        await committed(manager, KEYS[0], "ada")
        await committed(manager, KEYS[1], None)
        another = await begun(manager, owner)
        for one_more in (manager.can_commit(another, KEYS[2]), manager.commit(another, KEYS[2])):
            with pytest.raises(Overloaded) as refused:
                await one_more
            assert refused.value.definite
        await manager.commit(another)  # it has its messages appear all the same, if it changed nothing else
        await manager.commit(oldest)
        await committed(manager, KEYS[2], owner)


async def test_what_a_database_has_decided_commits_however_much_is_kept() -> None:
    async with House(max_kept_of_one=ONE, max_kept=ONE).life() as manager:
        await begun(manager, "bob")
        prepared = await begun(manager)
        await manager.can_commit(prepared, KEYS[0], "postgresql://bank")
        await manager.can_commit(prepared, KEYS[0], "postgresql://bank")
        await manager.commit(prepared, KEYS[0])
        assert manager.state.changed.of("ada") == ONE


async def test_what_became_free_all_at_once_makes_room_also_where_nothing_else_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog_service.transactions.state._SWEPT_KEYS", 1)
    async with House(max_kept_of_one=5 * ONE).life() as manager:
        oldest = await begun(manager, "bob")
        for keys in KEYS[:5]:
            await committed(manager, keys)
        another = await begun(manager)
        await manager.commit(oldest)
        for _ in range(2):
            await manager.can_commit(another, KEYS[5])
        assert manager.state.changed.total <= 5 * ONE
