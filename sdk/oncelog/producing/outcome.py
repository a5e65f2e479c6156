"""The futures that send_async hands out: concurrent.futures.Future, but a batch of them shares one condition.

A plain Future builds a condition of its own, five objects and 2 µs to make and set one; with 150,000 messages a second that and
the garbage collector's work on them would be most of what the SDK does. The messages of a batch are settled together anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, LOGGER, PENDING
from copy import copy
from itertools import repeat

from oncelog.errors import OncelogError
from oncelog.values.receipt import Receipt


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


def settle(outcomes: Sequence[Outcome], receipts: Iterable[Receipt | None], error: OncelogError | None = None) -> None:
    """Give each outcome its receipt, or all of them the error, and tell whoever waits. All share one condition.

    An outcome that is settled already stays as it is, so that an interrupted call can be made again.
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
    for outcome in outcomes:
        if outcome._done_callbacks:
            callbacks, outcome._done_callbacks = outcome._done_callbacks, []
            for callback in callbacks:
                _call(callback, outcome)


def _call(callback: Callable[[Future[Receipt]], object], outcome: Outcome) -> None:
    try:
        callback(outcome)
    except Exception:  # as Future does: whoever sends must not suffer from it
        LOGGER.exception("exception calling callback for %r", outcome)


def settle_failed(outcomes: Sequence[Outcome], error: OncelogError) -> None:
    """Give all of them the error."""
    settle(outcomes, repeat(None), error)


def is_anybody_to_be_told(outcomes: Sequence[Outcome]) -> bool:
    """Whether a failure of all that have no outcome yet would be heard of by nobody who waits."""
    return any(outcome._state != FINISHED and not outcome.awaited for outcome in outcomes)


def disown(outcomes: Sequence[Outcome], error: OncelogError) -> None:
    """In a forked child: nobody here will settle them. Takes no lock, since who holds it may not exist here; calls nobody."""
    for outcome in outcomes:
        if outcome._state != FINISHED:
            outcome._exception = error
            outcome._done_callbacks.clear()
            outcome._state = FINISHED
