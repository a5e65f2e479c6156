"""Clocks that are set end no transaction early or late, and stop no publish: durations are measured by one that nobody sets."""

from __future__ import annotations

import pytest

from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.memory import Disk
from tests.service.house import PARTICIPANT, House, opened
from tests.world.clock import ManualClock

HOUR_MS = 3_600_000


async def published(house: House) -> int:
    """The pointer of a new transaction, under which a message is stored."""
    pointer = (await house.transactions.start(TransactionType.SHORT)).write_pointer
    await publish(house, pointer)
    return pointer


async def publish(house: House, pointer: int) -> None:
    await house.log.publish(PublishRequest([b"a"], write_pointer=pointer))


@pytest.mark.parametrize("step_ms", [-26 * HOUR_MS, 0, 26 * HOUR_MS])
async def test_who_takes_over_with_another_clock_gives_each_transaction_its_whole_time_anew(step_ms: int) -> None:
    disk, clock = Disk(), ManualClock()
    async with opened(disk, clock, clean=False) as house:
        pointer = await published(house)
        prepared = await published(house)
        await house.transactions.can_commit(prepared, [b"key"], "bank")
        clock.seconds += 29.0
    other = ManualClock(clock.ms + step_ms)
    other.seconds = 1_000.0
    async with opened(disk, other) as house:
        await publish(house, pointer)
        other.seconds += 29.0
        assert await house.transactions.expire_due() == 0
        other.seconds += 1.0
        assert await house.transactions.expire_due() == 1
        assert await state(house, pointer) == "invalid"
        assert await state(house, prepared) == "in_progress"


async def test_a_step_forward_forgets_no_outcome() -> None:
    clock = ManualClock()
    async with opened(Disk(), clock) as house:
        pointer = await published(house)
        await house.transactions.commit(pointer)
        await house.transactions.acknowledge(pointer, "0:default/orders/1")
        clock.ms += 27 * HOUR_MS
        assert await house.transactions.forget_outcomes() == 0
        assert await state(house, pointer) == "committed"
        clock.seconds += 27 * 3_600
        assert await house.transactions.forget_outcomes() == 1


async def test_what_ends_late_since_a_restart_gave_it_its_time_anew_is_not_forgotten_at_once() -> None:
    disk, clock = Disk(), ManualClock()
    async with opened(disk, clock) as house:
        pointer = await published(house)
        await house.transactions.can_commit(pointer, [b"key"], "bank")
        clock.advance(20 * HOUR_MS)
    async with opened(disk, clock) as house:
        clock.advance(7 * HOUR_MS)
        await house.transactions.commit(pointer)
        await house.transactions.acknowledge(pointer, PARTICIPANT)
        assert await house.transactions.forget_outcomes() == 0
    async with opened(disk, clock) as house:
        assert await house.transactions.forget_outcomes() == 0
        assert await state(house, pointer) == "committed"
        clock.advance(HOUR_MS + 1)
        assert await house.transactions.forget_outcomes() == 1


async def state(house: House, pointer: int) -> str:
    return (await house.transactions.show(pointer)).state
