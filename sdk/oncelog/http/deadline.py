"""One time by which a whole request has its answer: looking up, connecting, sending, every byte that comes back.

The time-outs of sockets are of one operation each: a server that sends a byte a second, in its headers or in its body, holds a
caller for ever. So each operation on a socket is given what is left until the deadline.
"""

from __future__ import annotations

import time

CONNECT_SECONDS = 5.0
"""How long it may take until there is a connection, whatever the answer may take."""


class Deadline:
    """The time at which a request is given up."""

    __slots__ = ("_ends", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left, more than 0. Raises TimeoutError: it is over."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def within(self, seconds: float) -> Deadline:
        """One that ends after so many seconds, or with this one. Raises TimeoutError: this one is over."""
        return Deadline(min(seconds, self.left()))

    def begin_anew(self) -> None:
        """Count from now: of an answer that comes in parts, each may take as long."""
        self._ends = time.monotonic() + self._seconds
