"""The futures that send_async hands out: concurrent.futures.Future, but a batch of them shares one condition.

A plain Future builds a condition of its own, five objects and 2 µs to make and set one; with 150,000 messages a second that and
the garbage collector's work on them would be most of what the SDK does. The messages of a batch are completed together anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, LOGGER, PENDING
from copy import copy

from oncelog.errors import OncelogError
from oncelog.process import forks
from oncelog.values.receipt import Receipt


class _Shared:
    """What the outcomes of all producers of a process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def _after_fork(self) -> None:
        forks.renew(self.lock)


_shared = _Shared()
forks.register(_shared)
# One for all: concurrent.futures.wait holds the locks of all its futures at once, and takes them in the order of the futures.
# With a lock for each producer, two threads that wait for messages of two producers would wait for each other. Nothing but
# outcomes: senders have a lock each, or threads that send through one each would hold each other up. None is taken under this
# one, nor this one under theirs.
LOCK = _shared.lock
"""The lock of all outcomes of this process. Reentrant: a signal handler may interrupt who holds it."""


class Condition(threading.Condition):
    """A condition on the lock of all outcomes."""

    # Of the lock itself, in C: Ctrl-C in those of threading.Condition, which are Python, would leave it held for ever.
    __enter__ = LOCK.__enter__
    __exit__ = LOCK.__exit__

    def __init__(self) -> None:
        super().__init__(LOCK)


class Outcome(Future[Receipt]):
    """What becomes of one message: its receipt, or the OncelogError that it met."""

    awaited = False
    """Whether the call that sent the message waits for it and so hears of its failure."""

    def __init__(self, condition: threading.Condition) -> None:
        # All attributes of Future.__init__, with the batch's condition for its own. Its docstring forbids calling it from
        # outside, not subclassing; the names have been the same since Python 3.2.
        self._condition = condition
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[Receipt]], object]] = []

    def cancel(self) -> bool:
        """False: a message that is queued cannot be taken back; what was sent may be on disk already."""
        return False

    def done(self) -> bool:
        """Whether it has its receipt or its error."""
        return self._state == FINISHED  # without the lock: senders ask under theirs

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt. Raises the message's OncelogError, or TimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            # A copy: raising the batch's one error for each of its messages would make its traceback longer every time.
            raised = copy(error).with_traceback(None)
            raised.__cause__ = error.__cause__
            try:
                raise raised
            finally:
                del error, raised
        assert self._result is not None
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None when the message is on disk. Raises TimeoutError."""
        if self._state == FINISHED:
            return self._exception
        with self._condition:
            if not self._condition.wait_for(lambda: self._state == FINISHED, timeout):
                raise TimeoutError(f"the message has no outcome after {timeout} s")
            return self._exception


def complete(outcomes: Sequence[Outcome], receipts: Iterable[Receipt | None], error: OncelogError | None = None) -> None:
    """Give each outcome its receipt, or all of them the error, and wake its waiters. All share one condition.

    An outcome that is complete already stays as it is, so that an interrupted call can be made again.
    """
    condition = outcomes[0]._condition
    with condition:
        for outcome, receipt in zip(outcomes, receipts, strict=False):
            if outcome._state == FINISHED:
                continue
            outcome._result = receipt
            outcome._exception = error
            outcome._state = FINISHED
            if outcome._waiters:
                for waiter in outcome._waiters:
                    (waiter.add_result if error is None else waiter.add_exception)(outcome)
        condition.notify_all()
    # Without the lock: a callback may send, fork, or wait for a thread that wants the lock.
    for outcome in outcomes:
        if outcome._done_callbacks:
            callbacks, outcome._done_callbacks = outcome._done_callbacks, []
            for callback in callbacks:
                _call(callback, outcome)


def _call(callback: Callable[[Future[Receipt]], object], outcome: Outcome) -> None:
    try:
        callback(outcome)
    except Exception:  # as Future does: the sender's thread must go on
        LOGGER.exception("exception calling callback for %r", outcome)


def is_untold(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether one that has no result yet belongs to a message whose sender does not wait for it."""
    return any(outcome._state != FINISHED and not outcome.awaited for outcome in outcomes)


def disown(outcomes: Sequence[Outcome], error: OncelogError) -> None:
    """In a forked child: nobody here will complete them. Takes no lock, since who holds it may not exist here; calls nobody."""
    for outcome in outcomes:
        if outcome._state != FINISHED:
            outcome._exception = error
            outcome._done_callbacks.clear()
            outcome._state = FINISHED
