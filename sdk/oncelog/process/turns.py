"""A lock that raises where it would wait for ever: in a signal handler, and in a forked child."""

from __future__ import annotations

import _thread
from typing import Self

from oncelog.process import forks


class Turn(_thread.RLock):  # type: ignore[misc]  # final to type checkers only
    """A lock for a ``with`` statement, around what cannot be interrupted by more of the same.

    Raises:
        Forked: the object was made before this process was forked; its lock may be held by a thread that does not exist here.
        RuntimeError: a signal handler interrupted the thread that holds it, and would wait for ever.
    """

    # That of C, whose __exit__ no Ctrl-C comes before: in one of Python it would leave the lock held for ever.

    def __new__(cls, _: str) -> Self:
        """Make one; ``_``: as in __init__."""
        return super().__new__(cls)

    def __init__(self, what: str) -> None:
        """``what``: it is around, in words."""
        self._what = what
        self._home = forks.here()

    @property
    def elsewhere(self) -> bool:
        """Whether it was made before a fork, on the other side of it."""
        return forks.here() != self._home

    def __enter__(self) -> bool:  # type: ignore[override]  # for with statements
        forks.check_made_here(self._home, self._what)
        if self._owned():
            raise RuntimeError(f"a signal handler cannot use {self._what} in the middle of another call of it; set a flag there")
        try:
            taken = self.acquire()
        except BaseException:
            if self._owned():  # Ctrl-C came behind it
                self.release()
            raise
        return taken

    def _owned(self) -> bool:
        owned: bool = self._is_owned()  # type: ignore[attr-defined]  # as threading.Condition asks it
        return owned
