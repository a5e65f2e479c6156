"""Counts what each turn of an event loop costs: nobody else on it is served meanwhile.

Work is counted in calls, of functions in Python and in C, which is the same each time: 20 ms are 50,000 of them. A call that is
long by itself – a signature, a parser – is one here, and is counted by whoever tests it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from unittest import mock

AT_MOST = 4_000
"""Calls in one turn, 1.6 ms: a slice of long work, which is meant to be of half a millisecond, and what else is in its step."""


class Turns:
    """What was counted."""

    def __init__(self) -> None:
        self.longest = 0
        """Calls."""
        self.round = 0
        """Calls since the loop has last looked at its sockets."""
        self.longest_round = 0
        self.calls = 0
        self.turns = 0
        self.where = ""
        """What the longest one was."""

    def note(self, calls: int, handle: asyncio.Handle) -> None:
        self.turns += 1
        self.calls += calls
        self.round += calls
        self.longest_round = max(self.longest_round, self.round)
        if calls > self.longest:
            self.longest, self.where = calls, repr(handle)


@contextmanager
def counted(loop: asyncio.AbstractEventLoop) -> Iterator[Turns]:
    """Counts the turns that the loop has meanwhile."""
    found, run = Turns(), asyncio.Handle._run  # type: ignore[attr-defined]  # asyncio's own, which its stubs do not name

    def counting(handle: asyncio.Handle) -> None:
        calls = 0

        def see(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        if handle._loop is not loop:  # type: ignore[attr-defined]
            return run(handle)
        before = sys.getprofile()
        sys.setprofile(see)
        try:
            return run(handle)
        finally:
            sys.setprofile(before)
            found.note(calls, handle)

    once = loop._run_once  # type: ignore[attr-defined]

    def counting_round() -> None:
        found.round = 0
        once()

    with mock.patch.object(asyncio.Handle, "_run", counting), mock.patch.object(loop, "_run_once", counting_round):
        yield found
