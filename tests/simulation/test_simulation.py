"""Random clients, failing writes, crashes and time: whatever happens, what was answered is so and memory is the fold of the log.

A failing run names its seed; ``SIMULATION_SEED=… pytest tests/simulation`` makes the same decisions again.
"""

from __future__ import annotations

import asyncio
import os
from itertools import count
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.postgres import PostgresServer
from tests.simulation.driver import Driver
from tests.world.disk import Database

STEPS = 40
SEEDS = [int(os.environ.get("SIMULATION_SEED", 0)) or seed for seed in range(1, 11)]


def _simulate(seed: int, steps: int = STEPS, database: Database | None = None) -> None:
    driver = Driver(Random(seed), database)
    try:
        asyncio.run(driver.run(steps))
    except BaseException as error:
        error.add_note("\n".join(["the last of what was done:", *driver.story[-25:], f"SIMULATION_SEED={seed}"]))
        raise


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_memory_is_the_fold_of_the_log_and_answers_stay_true(seed: int) -> None:
    _simulate(seed)


@pytest.mark.parametrize("seed", [SEEDS[0], pytest.param(SEEDS[1], marks=pytest.mark.real)])
def test_a_database_answers_what_memory_does_whatever_fails(seed: int, tmp_path: Path) -> None:
    numbers = count()
    _simulate(seed, database=lambda: f"sqlite://{tmp_path / str(next(numbers))}")


def test_postgresql_answers_what_memory_does_whatever_fails(postgres: PostgresServer) -> None:
    _simulate(SEEDS[2], database=postgres.fresh_schema)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_hundreds_of_random_histories_keep_every_promise() -> None:
    for _ in range(250):
        _simulate(SystemRandom().randrange(10**9), steps=50)
    for _ in range(15):
        _simulate(SystemRandom().randrange(10**9), steps=250)
