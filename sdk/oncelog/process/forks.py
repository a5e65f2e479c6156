"""Forks: what was made before one belongs to the other side, its connections, locks, threads and messages.

A forked child gets a copy of every object, but only the thread that forked; sockets it shares with its parent. So every object
of the SDK is notified in the child (:func:`register`), or asks where it was made (:func:`here`). Servers that fork without
Python's own hooks (uWSGI without ``py-call-osafterfork``) are found out by the process id, at the next call.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, NoReturn, Protocol
from weakref import WeakKeyDictionary

from oncelog.errors import Forked

logger = logging.getLogger("oncelog.forks")


class _Forkable(Protocol):
    def _after_fork(self) -> None:
        """Called in the child, before anything else is done with the object there."""


class MadeHere:
    """Has connections, threads or locks, and so belongs to the process that made it."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Raises TypeError: by pickle, which would take it to another process, and by copy, whose two would be one."""
        kind = type(self).__name__
        raise TypeError(f"{kind} can be neither pickled nor copied: it is its process's; make another one where it is needed")


class _Process:
    """This process, as far as the SDK has noticed."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.depth = 0
        self.lock = threading.Lock()
        self.known = WeakKeyDictionary[Any, None]()

    def begin(self) -> None:
        """Tell every object that this is a child."""
        self.pid = os.getpid()
        self.depth += 1
        self.lock = threading.Lock()
        for each in list(self.known):
            try:
                each._after_fork()
            except Exception:
                logger.exception("%r may not be used in this process, which was forked", each)


_process = _Process()
os.register_at_fork(after_in_child=_process.begin)


def here() -> int:
    """Return a number of this process that differs from those of its parents."""
    if os.getpid() != _process.pid:
        with _process.lock:
            if os.getpid() != _process.pid:
                _process.begin()
    return _process.depth


def register(each: _Forkable) -> None:
    """Have ``each._after_fork()`` called in every child that is forked while it lives."""
    _process.known[each] = None


def check_made_here(home: int, what: str) -> None:
    """Raises Forked if ``here()`` was not ``home``."""
    if here() != home:
        raise forked(what)


def forked(what: str) -> Forked:
    """Make the error for what belongs to the other side of a fork."""
    return Forked(f"{what} was made before this process was forked from another one, and is that one's; make another one here")


def renew(lock: Any) -> None:
    """In the child: free a lock that a thread of the parent may have held, which does not exist here.

    What the forking thread itself holds, it will release itself.
    """
    if not (hasattr(lock, "_is_owned") and lock._is_owned()):
        lock._at_fork_reinit()  # what threading and logging do with theirs
