"""Seeds of everything: whatever fails when, what was answered is so, and every reader is given the one log.

`python -m tests.world SEED` runs one again and says what happens, an event a line.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from pathlib import Path
from random import SystemRandom

import pytest

from tests.postgres import PostgresServer
from tests.simulation.clients import run

SEEDS = range(1, 26)
judged = cache(run)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_answers_stay_true_and_readers_are_given_one_log(seed: int) -> None:
    outcome = judged(seed)
    assert outcome.counts["kill"] > 0
    assert outcome.messages > 100


def test_a_seed_is_the_same_run_to_the_last_event() -> None:
    assert run(8) == judged(8)


def test_all_of_them_are_hundreds_of_kills() -> None:
    assert sum(judged(seed).counts["kill"] for seed in SEEDS) >= 250


def test_a_database_answers_what_memory_does_and_all_goes_the_same_way_to_the_last_event(tmp_path: Path) -> None:
    numbers = count()
    assert run(4, beside=lambda: f"sqlite://{tmp_path / str(next(numbers))}") == judged(4)


def test_postgresql_answers_what_memory_does_whatever_fails(postgres: PostgresServer) -> None:
    assert run(4, beside=postgres.fresh_schema) == judged(4)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_hundreds_of_seeds_by_chance_keep_every_promise() -> None:
    for _ in range(400):
        run(SystemRandom().randrange(10**9))
