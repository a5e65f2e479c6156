"""Whether bytes come, or go, as fast as is asked. Pure.

As in Apache's mod_reqtimeout each byte buys time: a client has its grace, and what passes adds to it as much as it would take at
the least rate. But never more than the grace: who sends six of eight megabytes in a moment and stops has bought no minutes.
"""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """How fast is fast enough."""

    bytes_per_second: float
    grace_seconds: float

    def begun(self, now: float) -> float:
        """Until when a client that begins now is fast enough, if nothing passes."""
        return now + self.grace_seconds

    def after(self, good_until: float, passed: int, now: float) -> float:
        """The same once so many more bytes have passed. Who was too slow has that to make up for."""
        return min(good_until + passed / self.bytes_per_second, now + self.grace_seconds)
