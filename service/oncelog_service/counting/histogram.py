"""A histogram that costs the path it is on one bisect and two additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""From a sync of a disk with a battery to one that hangs, and to a poll that waits for a minute; narrow where a good disk and a
worse one differ. The same for all, so that they can be held against each other."""
SUBMISSIONS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Histogram:
    """Counts values by the bucket that they fall into. One thread's, or one event loop's; it never falls."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: the largest value of each bucket, rising; one more is for what is larger than all."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        """Of all values."""

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Returns (the largest value of a bucket, how many values were not above it) for each, as Prometheus has them."""
        found, upto = list[tuple[str, float]](), 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            upto += count
            found.append((bound, upto))
        return found
