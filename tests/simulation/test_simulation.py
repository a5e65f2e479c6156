"""Random clients, failing writes, crashes and time: whatever happens, what was answered is so and memory is the fold of the log.

A failing run names its seed; ``SIMULATION_SEED=… pytest tests/simulation`` makes the same decisions again.
"""

from __future__ import annotations

import asyncio
import os
from random import Random, SystemRandom

import pytest

from oncelog.errors import RollbackRefused
from oncelog.wire.requests import PublishRequest, Rollback
from oncelog.wire.transaction import TransactionType
from tests.simulation.driver import Driver
from tests.simulation.judge import read_all
from tests.simulation.rows import NAMESPACE
from tests.simulation.world import World

STEPS = 40


def _simulate(seed: int, steps: int = STEPS) -> None:
    driver = Driver(Random(seed))
    try:
        asyncio.run(driver.run(steps))
    except BaseException as error:
        error.add_note("\n".join(["the last of what was done:", *driver.story[-25:], f"SIMULATION_SEED={seed}"]))
        raise


@pytest.mark.parametrize("seed", [int(os.environ.get("SIMULATION_SEED", 0)) or seed for seed in range(1, 13)])
def test_whatever_fails_memory_is_the_fold_of_the_log_and_answers_stay_true(seed: int) -> None:
    _simulate(seed)


def test_paging_behind_a_stored_group_at_the_end_of_a_log_comes_to_an_end() -> None:
    async def page() -> list[bytes]:
        world = World(snapshot_messages=25, cache_bytes=0)
        await world.start()
        await world.service.topics.create(NAMESPACE, "orders", {})
        log = await world.topic("orders")
        pointer = (await world.service.transactions.start(TransactionType.SHORT)).write_pointer
        await log.store(PublishRequest([b"1", b"2"], write_pointer=pointer))
        await log.publish(PublishRequest([], write_pointer=pointer))
        found = [payload for limit in (1, 2, 3) for _, _, payload in await read_all(world, "orders", limit)]
        await world.service.stop()
        return found

    assert asyncio.run(page()) == [b"1", b"2"] * 3


def test_a_rollback_around_a_request_that_is_not_rolled_back_is_refused_rather_than_called_done() -> None:
    async def roll_back() -> None:
        world = World(snapshot_messages=25, cache_bytes=0)
        await world.start()
        await world.service.topics.create(NAMESPACE, "orders", {})
        log = await world.topic("orders")
        pointer = (await world.service.transactions.start(TransactionType.SHORT)).write_pointer
        answers = [await log.publish(PublishRequest([body], write_pointer=pointer)) for body in (b"1", b"2", b"3")]
        first, _, last = ((each.start_timestamp, each.start_sequence_id) for each in answers)
        await log.roll_back(Rollback(pointer, first, first))
        await log.roll_back(Rollback(pointer, last, last))
        with pytest.raises(RollbackRefused):
            await log.roll_back(Rollback(pointer, first, last))
        await world.service.stop()

    asyncio.run(roll_back())


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_hundreds_of_random_histories_keep_every_promise() -> None:
    for _ in range(250):
        _simulate(SystemRandom().randrange(10**9), steps=50)
    for _ in range(15):
        _simulate(SystemRandom().randrange(10**9), steps=250)
