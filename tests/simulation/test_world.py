"""Seeds of everything: whatever fails when, what was answered is so, and every reader is given the one log.

`python -m tests.world SEED` runs one again and says what happens, an event a line.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from oncelog.errors import OncelogError
from tests.simulation.clients import everyone, followers
from tests.simulation.faults import FAULTS, planted
from tests.simulation.worlds import Outcome, simulate

SEEDS = range(1, 26)


def _run(seed: int) -> Outcome:
    return simulate(seed, everyone, followers)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_answers_stay_true_and_readers_are_given_one_log(seed: int) -> None:
    outcome = _run(seed)
    assert outcome.counts["kill"] > 0
    assert outcome.messages > 100


def test_a_seed_is_the_same_run_to_the_last_event() -> None:
    assert _run(1) == _run(1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_planted_is_seen(fault: str) -> None:
    with ExitStack() as stack:
        for each in planted(fault):
            stack.enter_context(each)
        with pytest.raises((AssertionError, OncelogError)):  # by a client, by the model, or nothing ends
            _seeds()


def _seeds() -> None:
    for seed in SEEDS[:5]:
        _run(seed)
