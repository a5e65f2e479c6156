"""A thread that does in the background what somebody has to do, and has hold of that one only while there is something.

Who is dropped ends so, and the thread with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import TypeVar
from weakref import finalize, ref

T = TypeVar("T")


class Tender(threading.Thread):
    """The thread. It looks again when it is rung for."""

    def __init__(self, what: T, tend: Callable[[T], float | None], name: str) -> None:
        """``tend``: does for it what is to be done now. Returns the seconds until there is more to do, inf where there is
        nothing; None: there never will be."""
        super().__init__(name=name, daemon=True)
        self._what: ref[object] = ref(what)
        self._tend: Callable[..., float | None] = tend
        self._bell: SimpleQueue[None] = SimpleQueue()

    def begin(self) -> None:
        """Begins. Raises RuntimeError: none can be started any more, since the interpreter exits."""
        self.start()
        if (what := self._what()) is not None:
            finalize(what, self.ring).atexit = False

    def ring(self) -> None:
        """Has it look. Takes no lock: the collector rings, too."""
        self._bell.put(None)

    def run(self) -> None:
        """Looks, and waits until it is to look again."""
        while (what := self._what()) is not None and (left := self._tend(what)) is not None:
            if left == inf:
                what = None
            with suppress(Empty):
                self._bell.get(timeout=None if left == inf else left)
