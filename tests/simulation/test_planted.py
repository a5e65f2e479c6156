"""A fault that is planted is seen by a client, by the model, by a store that finds itself damaged, or because nothing ends."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from oncelog.errors import OncelogError
from oncelog_service.storage.port import StoreError
from tests.simulation.clients import run
from tests.simulation.faults import FAULTS, planted, seen_by


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_planted_is_seen(fault: str) -> None:
    with ExitStack() as stack:
        for each in planted(fault):
            stack.enter_context(each)
        with pytest.raises((AssertionError, OncelogError, StoreError)):
            _run_all(fault)


def _run_all(fault: str) -> None:
    for seed in seen_by(fault):
        run(seed)
