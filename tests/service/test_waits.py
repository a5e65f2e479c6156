"""What long polls hold: a share of the room for bodies, and never more."""

from __future__ import annotations

from contextlib import ExitStack

from oncelog_service.bounds.waits import Waits

KIB = 2**10


def test_those_that_wait_hold_no_more_than_their_share_and_small_ones_always_may() -> None:
    waits = Waits(100 * KIB)
    with ExitStack() as ends:
        assert [ends.enter_context(waits.holding(40 * KIB)) for _ in range(4)] == [True, True, False, False]
        assert ends.enter_context(waits.holding(20 * KIB))
        assert not ends.enter_context(waits.holding(5 * KIB))
        assert all(ends.enter_context(waits.holding(4 * KIB)) for _ in range(1_000))
        assert waits.bytes == 100 * KIB
    assert waits.bytes == 0
    with waits.holding(100 * KIB) as may_wait:
        assert may_wait
