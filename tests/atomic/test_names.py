"""Names that clients choose: who takes one first has it, so many of them, until an operator frees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.errors import NotAllowed, QuotaExceeded, TransactionNotFound
from oncelog.wire.models import AtomicOutcome
from oncelog_service.access.grants import EVERYBODY, Grant, Principal
from oncelog_service.atomic.outcomes import forgettable
from oncelog_service.reading import read
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from tests.atomic.house import House, commit_of, living, messages, refused
from tests.atomic.test_housekeeping import DAY_MS
from tests.service.house import turns
from tests.world.clock import ManualClock
from tests.world.disk import crashed

ADA, BOB, ROOT = (
    Principal(name, [Grant.parse(grant)]) for name, grant in (("ada", "write:*/*"), ("bob", "write:*/*"), ("root", "admin"))
)


async def committed(house: House, who: Principal, number: int, producer: str = "p", payload: str = "x") -> AtomicOutcome:
    request = commit_of({"a": messages(f"{payload}{number}")}, group="g", producer=producer, sequence_id=number, incarnation="i")
    return await house.atomic.commit(f"{who.name}-{producer}-{number}", request, who)


async def test_a_producer_of_a_group_stays_that_of_who_committed_first_whoever_else_may_commit_under_it() -> None:
    disk = Disk()
    async with living(disk, topics="a") as house:
        await committed(house, ADA, 1)
        await committed(house, ROOT, 2)
        disk = crashed(disk)
    async with living(disk) as house:
        assert (await house.atomic.producers.show("g", "p", ROOT)).owner == "ada"
        await refused(NotAllowed, committed(house, BOB, 3))
        await committed(house, ADA, 3)
        await house.atomic.producers.forget("g", "p", None, ROOT)
        await committed(house, BOB, 1)
        await refused(NotAllowed, committed(house, ADA, 4))


async def test_what_nobody_with_a_name_took_is_everybodys_until_somebody_with_one_commits() -> None:
    async with living(topics="a") as house:
        await committed(house, EVERYBODY, 1)
        await committed(house, BOB, 2)
        await refused(NotAllowed, committed(house, ADA, 3))


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_principal_takes_so_many_names_and_goes_on_under_those_that_it_has(at_once: bool) -> None:
    disk, settings = Disk(), {"max_group_producers_per_principal": 2}
    async with living(disk, topics="a", **settings) as house:
        await committed(house, ADA, 1, "p")
        await committed(house, ADA, 1, "q")
        disk = crashed(disk)
    async with living(disk, **settings) as house:
        if not at_once:
            await house.atomic.begin("ada-r-1", "g", None, None, ADA)
        full = await refused(QuotaExceeded, committed(house, ADA, 1, "r"))
        assert (full.quota, full.limit, full.definite, full.retry_after_ms) == ("group_producers", 2, True, None)
        await committed(house, ADA, 2, "p")
        await committed(house, BOB, 1, "r")
        await house.atomic.producers.forget("g", "q", None, ADA)
        both = await asyncio.gather(committed(house, ADA, 1, "s"), committed(house, ADA, 1, "t"), return_exceptions=True)
        assert sorted(type(each).__name__ for each in both) == ["AtomicOutcome", "QuotaExceeded"]
        assert await house.shown("a") == ["x1", "x1", "x2", "x1", "x1"]


@pytest.mark.parametrize("ended", [True, False])
async def test_an_id_that_was_taken_is_refused_to_others_and_free_once_an_operator_frees_it(ended: bool) -> None:
    disk = Disk()
    async with living(disk, topics="a") as house:
        await house.atomic.begin("order-1", "g", None, None, BOB)
        await house.atomic.stage("order-1", "default", "a", 0, messages("taken"), BOB)
        if ended:
            await house.atomic.abort("order-1", BOB)
        disk = crashed(disk)
    request = commit_of({"a": messages("x")}, group="h")
    async with living(disk) as house:
        await refused(NotAllowed, house.atomic.commit("order-1", request, ADA))
        await house.atomic.free("order-1")
        await house.dropped()
        assert [house.rows(table) for table in (Table.ATOMIC_ID, Table.ATOMIC_OUTCOME, Table.CHUNK)] == [0, 0, 0]
        for _ in range(2):
            await refused(TransactionNotFound, house.atomic.show("order-1", BOB))
            await refused(TransactionNotFound, house.atomic.free("order-1"))
        assert (await house.atomic.commit("order-1", request, ADA)).state == "committed"
        await refused(NotAllowed, house.atomic.show("order-1", BOB))
        disk = crashed(disk)
    async with living(disk) as house:
        assert (await house.atomic.commit("order-1", request, ADA)).state == "committed"
        assert await house.shown("a") == ["x"]


async def test_an_id_is_not_freed_while_what_became_of_it_is_being_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be taken anew meanwhile, and the forgetting would forget that: the same commit would happen twice."""
    clock, looked = ManualClock(), asyncio.Event()

    async def slowly(function: Any, *args: Any) -> Any:
        found = await read(function, *args)
        if function is forgettable:
            await looked.wait()
        return found

    async with living(clock=clock, topics="a") as house:
        await house.commit("order-1", group="g")
        clock.advance(DAY_MS)
        monkeypatch.setattr("oncelog_service.atomic.upkeep.read", slowly)
        forgetting = asyncio.ensure_future(house.atomic.upkeep.forget_outcomes())
        await turns()
        freed = asyncio.ensure_future(house.atomic.free("order-1"))
        await turns()
        assert not freed.done()
        looked.set()
        assert await forgetting == 1
        with pytest.raises(TransactionNotFound):
            await freed
        for _ in range(2):
            assert (await house.commit("order-1", {"a": messages("pay")}, group="g")).state == "committed"
        assert await house.shown("a") == ["pay"]
