"""The end of the interpreter: what is not sent yet is sent within a bound, or named.

The threads that send are daemons, so that a service that does not answer keeps no process from ending. Before they are frozen,
:func:`at_exit` is called: by ``atexit``, when all other threads have ended. Children that are left by ``os._exit`` do not run
that: those of ``multiprocessing`` and of billiard run finalizers before, and those of Celery's pool, which do not come so far,
send a signal of Celery's. A process that is killed, or left by ``os._exit`` without a word as one of RQ's is, calls it never.
"""

from __future__ import annotations

import atexit
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from oncelog.errors import OncelogError
from oncelog.process import forks
from oncelog.process.clock import REAL

EXIT_SECONDS = 5.0
"""What is left of the ten seconds between SIGTERM and SIGKILL that containers get, when half of them is gone."""

logger = logging.getLogger("oncelog.exit")


class _Ending(Protocol):
    def _begin_exit(self) -> None:
        """Have what waits sent, without waiting for it."""

    def _end_exit(self, passed: float) -> str | None:
        """Wait for it, within the bound of the object, of which ``passed`` seconds are over. Return what could not be sent, in
        words."""


_live = WeakKeyDictionary[Any, None]()
_last: list[Callable[[], str | None]] = []
_armed: set[int] = set()
over: set[int] = set()
"""Processes, as forks.here() calls them, in which all that waited was asked: there :func:`late` has something to do."""


def register(each: _Ending) -> None:
    """Have it asked when this process ends, if it still lives then."""
    _live[each] = None
    _arm()


def register_last(end: Callable[[], str | None]) -> None:
    """Have it called when all that waited was sent. It returns what is to be said, if anything is."""
    _last.append(end)
    _arm()


def _arm() -> None:
    home = forks.here()
    if home not in _armed:
        _armed.add(home)
        _arm_child()


def _arm_child() -> None:
    """Has what leaves this process by ``os._exit`` call it before. Who does so is loaded already; nothing is imported."""
    modules = sys.modules
    util, process, billiard = map(modules.get, ("multiprocessing.util", "multiprocessing.process", "billiard.process"))
    is_child = process is not None and process.parent_process() is not None
    if billiard is not None:  # it shares the finalizers, and knows its children by itself
        is_child = is_child or getattr(billiard.current_process(), "_parent_pid", None) is not None
    if util is not None and is_child:
        util.Finalize(None, at_exit, exitpriority=0)
    ends = getattr(modules.get("celery.signals"), "worker_process_shutdown", None)
    if ends is not None:  # children of its pool alone send it, so it may be connected in their parent
        ends.connect(_before_exit, weak=False, dispatch_uid=__name__)


def _before_exit(**_: object) -> None:
    at_exit()


@atexit.register
def at_exit() -> None:
    """Send what waits, everywhere at once; say what could not be."""
    begun, live = REAL.monotonic(), list(_live)
    over.add(forks.here())
    for each in live:
        each._begin_exit()
    interruption: BaseException | None = None
    for each in live:
        try:
            lost = each._end_exit(REAL.monotonic() - begun)
        except BaseException as error:  # Ctrl-C ends the waiting, and all the others are named all the same
            interruption, begun = error, -inf
            lost = each._end_exit(inf)
        if lost is not None:
            say(lost)
    for end in _last:
        if (said := end()) is not None:
            say(said)
    if interruption is not None:
        raise interruption


def late(each: _Ending) -> None:
    """Have what waits again sent at once, if the others were asked already: a handler sends it that ``atexit`` calls later."""
    if forks.here() in over:
        each._begin_exit()
        lost = each._end_exit(0.0)
        if lost is not None:
            say(lost)


def say(lost: str) -> None:
    """Log what was lost, and warn of it. Never raises a warning: others are to be named yet, or an exception is on its way."""
    logger.error("%s", lost)
    with suppress(ResourceWarning):
        warnings.warn(lost, ResourceWarning, stacklevel=2)


def unclosed(what: object, home: int, said: str = "was not closed") -> None:
    """Warn of something that is dropped in the process where it was made without being ended, unless that process ends."""
    if forks.here() == home and home not in over:
        warnings.warn(f"{what} {said}", ResourceWarning, stacklevel=3, source=what)


@contextmanager
def leaving(kind: type[BaseException] | None, seconds: float = EXIT_SECONDS) -> Iterator[float | None]:
    """What closes at the end of a ``with`` block that this exception ended, if one did: within ``seconds``, given here, where it
    interrupts, since Ctrl-C once is enough. The error that ends the block says more than what closing raises."""
    interrupted = kind is not None and not issubclass(kind, Exception)
    try:
        yield seconds if interrupted else None
    except OncelogError:
        if kind is None:
            raise
    except TimeoutError as error:
        say(str(error))
