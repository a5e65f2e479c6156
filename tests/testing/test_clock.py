"""The clock of a service for tests."""

from __future__ import annotations

import time

import pytest

from oncelog_service.testing.clock import MovedClock

pytestmark = pytest.mark.real


def test_time_that_passes_moves_both_clocks_and_one_that_is_set_only_that_of_the_wall() -> None:
    clock = MovedClock()
    wall, span = clock.now_ms(), clock.monotonic()
    clock.pass_by(60)
    assert wall + 60_000 <= clock.now_ms() <= time.time_ns() // 1_000_000 + 60_000
    assert clock.monotonic() - span >= 60
    span = clock.monotonic()
    clock.set_by(3_600)
    assert wall + 3_660_000 <= clock.now_ms()
    assert clock.monotonic() - span < 3_600
    with pytest.raises(ValueError, match="does not go back"):
        clock.pass_by(-1)


def test_a_clock_that_is_set_back_shows_to_the_next_process_only() -> None:
    clock = MovedClock()
    before = clock.now_ms()
    clock.set_by(-3_600)
    assert clock.now_ms() == before
    assert clock.behind_ms() > 3_500_000
    clock.begin_anew()
    assert clock.now_ms() < before - 3_500_000
    assert clock.behind_ms() == 0
