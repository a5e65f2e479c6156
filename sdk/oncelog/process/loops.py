"""Event loops: what was begun on one belongs to it, as what was made before a fork belongs to the other side."""

from __future__ import annotations

import asyncio

from oncelog.process import forks


class Loop:
    """The event loop on which something is used first, and the process that it was made in."""

    __slots__ = ("_home", "_loop", "_what")

    def __init__(self, what: str) -> None:
        """``what`` belongs to it, in words."""
        self._what = what
        self._home = forks.here()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raises Forked: it was made before a fork. RuntimeError: it is used on another event loop, or on none."""
        forks.check_made_here(self._home, self._what)
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise RuntimeError(f"{self._what} belongs to another event loop; make another one here")

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is the other side of a fork."""
        return forks.here() != self._home
