"""Seeds of everything: whatever fails when, what was answered is so, and every reader is given the one log.

`python -m tests.world SEED` runs one again and says what happens, an event a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from oncelog.errors import OncelogError
from tests.simulation.clients import SHARED, run
from tests.simulation.faults import FAULTS, OF_INSTANCES, planted

SEEDS = range(1, 26)
ALONE = (1, 2, 3, 4)
"""Seeds by which a planted fault is to be seen."""


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_answers_stay_true_and_readers_are_given_one_log(seed: int) -> None:
    outcome = run(seed)
    assert outcome.counts["kill"] > 0
    assert outcome.messages > 100


@pytest.mark.parametrize("seed", [1, 8])
def test_a_seed_is_the_same_run_to_the_last_event(seed: int) -> None:
    assert run(seed) == run(seed)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_planted_is_seen(fault: str) -> None:
    with ExitStack() as stack:
        for each in planted(fault):
            stack.enter_context(each)
        with pytest.raises((AssertionError, OncelogError)):  # by a client, by the model, or nothing ends
            _run_all(SHARED if fault in OF_INSTANCES else ALONE)


def _run_all(seeds: Sequence[int]) -> None:
    for seed in seeds:
        run(seed)
