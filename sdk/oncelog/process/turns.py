"""One caller at a time, in the process where it was made; what cannot be is an error and no waiting for ever."""

from __future__ import annotations

import threading

from oncelog.process import forks


class Turn:
    """A lock for a ``with`` statement, around what cannot be interrupted by more of the same.

    Raises:
        Forked: the object was made before this process was forked; its lock may be held by a thread that does not exist here.
        RuntimeError: a signal handler interrupted who holds it, and would wait for ever.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._home = forks.here()

    @property
    def elsewhere(self) -> bool:
        """Whether it was made before a fork."""
        return forks.here() != self._home

    def __enter__(self) -> None:
        forks.check_made_here(self._home, self._what)
        if self._holder == threading.get_ident():
            raise RuntimeError(f"a signal handler cannot use {self._what} in the middle of another call of it; set a flag there")
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()
