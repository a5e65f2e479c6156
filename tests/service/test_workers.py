"""Workers: a step for each call, one at a time; reports in their order; nothing after the end. Threads and a loop do the same."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_service.workers import ThreadWorkers, Worker, Workers
from tests.patience import PATIENCE
from tests.world.workers import LoopWorkers


@pytest.fixture(params=[ThreadWorkers, LoopWorkers])
def workers(request: pytest.FixtureRequest) -> Workers:
    made: Workers = request.param()
    return made


async def test_each_call_is_a_step_and_the_end_comes_after_them_and_after_what_they_reported(workers: Workers) -> None:
    told: list[int] = []
    steps = iter(range(100))

    def step(worker: Worker) -> None:
        worker.report(told.append, next(steps))

    worker = workers.begin("t", step)
    for _ in range(100):
        worker.wake()
    worker.end()
    worker.wake()
    await asyncio.wait_for(worker.ended(), PATIENCE)
    assert told == [*range(100)]
    await asyncio.wait_for(worker.ended(), PATIENCE)


async def test_a_step_that_wants_to_wait_is_called_again_without_being_woken_also_when_the_end_is_near(workers: Workers) -> None:
    told: list[str] = []
    pauses = iter([0.002, 0.001, None, 0.001, None])

    def step(worker: Worker) -> float | None:
        pause = next(pauses)
        worker.report(told.append, "waits" if pause else "done")
        return pause

    worker = workers.begin("t", step)
    worker.wake()
    worker.wake()
    worker.end()
    await asyncio.wait_for(worker.ended(), PATIENCE)
    assert told == ["waits", "waits", "done", "waits", "done"]


async def test_one_that_wakes_by_itself_does_until_it_ends_itself(workers: Workers) -> None:
    steps = iter(range(100))

    def step(worker: Worker) -> None:
        if next(steps) == 3:
            worker.end()

    worker = workers.begin("t", step, every=0.001)
    await asyncio.wait_for(worker.ended(), PATIENCE)
    assert next(steps) == 4


async def test_one_that_rests_ends_at_once(workers: Workers) -> None:
    worker = workers.begin("t", lambda _: None, every=10 * PATIENCE)
    worker.end()
    await asyncio.wait_for(worker.ended(), PATIENCE)
