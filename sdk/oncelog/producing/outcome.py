"""What becomes of messages: results for those that are answered together, and the futures that send_async hands out.

A plain Future builds a condition of its own, five objects and 2 µs to make and set one; with 150,000 messages a second that and
the garbage collector's work on them would be most of what the SDK does. The messages of a request are completed together anyway:
a future here is a view of what became of them.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, LOGGER, PENDING
from copy import copy
from logging import ERROR
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

from oncelog.errors import OncelogError
from oncelog.process import forks
from oncelog.process.logs import log
from oncelog.process.turns import Condition
from oncelog.values.receipt import Receipt, Receipts


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


class _Result(NamedTuple):
    """What messages that stand side by side have become."""

    begin: int
    end: int
    first: int
    """The message that the first of the receipts is of."""
    receipts: Receipts
    error: OncelogError | None
    """None: they have receipts."""


_BEGIN = itemgetter(0)
_ALL = 2**62


class Outcomes:
    """What becomes of messages that have something in common: of those in one batch, or of all that one call sends.

    It has an entry for each request that was answered, not for each message. What is of a single message – its receipt, its
    future, that future's waiters and callbacks – is made when somebody asks for it.
    """

    __slots__ = ("_results", "awaited", "count", "waited", "watched")

    def __init__(self, count: int = 0) -> None:
        """``count``: of the messages, where one call sends them all and waits for them."""
        self.waited: Condition | None = None
        """Of those who wait, once somebody does. Its lock is that of all."""
        self.count = count
        self.awaited: Collection[int] = range(count)
        """The messages whose sender waits for them, and so hears of their failure."""
        self.watched: dict[int, Outcome] = {}
        """The futures that somebody waits for, or that call somebody, by the message. With the lock held."""
        self._results: list[_Result] = []
        """By their begin. None overlaps another."""

    def of(self, index: int) -> _Result | None:
        """Find the result of a message; None: it has none yet."""
        results = self._results
        count = len(results)  # asked once: the sender's thread may add another
        at = bisect_right(results, index, hi=count, key=_BEGIN) if count > 1 else count
        return results[at - 1] if at and results[at - 1].begin <= index < results[at - 1].end else None

    def wait_for(self, index: int, timeout: float | None) -> _Result:
        """Wait for the result of a message. Raises TimeoutError."""
        result = self.of(index)
        if result is None:
            self._until(lambda: self.of(index) is not None, timeout)
            result = self.of(index)
        if result is None:
            raise TimeoutError(f"the message has no outcome after {timeout} s")
        return result

    def done(self) -> bool:
        """Tell whether all of them have a result."""
        return sum(result.end - result.begin for result in self._results) == self.count

    def wait(self) -> None:
        """Return when all of them have a result."""
        self._until(self.done, None)

    def _until(self, condition: Callable[[], bool], timeout: float | None) -> None:
        with LOCK:
            if self.waited is None:
                made = Condition(LOCK)
                self.waited = made if self.waited is None else self.waited  # by a handler meanwhile, and others wait there
            self.waited.wait_for(condition, timeout)

    def disregard(self) -> OncelogError | None:
        """Their sender does not wait for them any more. Return the first failure that there is by now: it does not hear of it."""
        self.awaited = ()
        return next((result.error for result in self._results if result.error is not None), None)

    def receipts(self) -> Receipts:
        """Return the receipts of all, which have results. Raises the error of the first that met one."""
        for result in self._results:
            if result.error is not None:
                raise_copy(result.error)
        if len(self._results) == 1:
            return self._results[0].receipts
        return Receipts([run for result in self._results for run in result.receipts.runs])

    def is_untold(self, begin: int, count: int) -> bool:
        """Tell whether one that has no result yet belongs to a message whose sender does not wait for it."""
        return any(index not in self.awaited and self.of(index) is None for index in range(begin, begin + count))

    def complete(self, begin: int, count: int, receipts: Receipts, error: OncelogError | None = None) -> None:
        """Give the messages from ``begin`` on their receipts, or all of them the error; wake their waiters, run their callbacks.

        What is complete already stays as it is, so that an interrupted call can be made again.
        """
        done: list[Outcome] = []
        with LOCK:
            self._note(begin, begin + count, receipts, error)
            if self.watched:
                done += [self.watched[at] for at in range(begin, begin + count) if at in self.watched]
            for outcome in done:
                outcome.wake()
            if self.waited is not None:
                self.waited.notify_all()
        # Without the lock: a callback may send, fork, or wait for a thread that wants the lock.
        for outcome in done:
            outcome.call()
            self.watched.pop(outcome.index, None)

    def disown(self, error: OncelogError) -> None:
        """In a forked child: nobody here will complete them. Calls nobody, and takes no lock: who holds it may not exist here."""
        self._note(0, _ALL, Receipts(()), error)
        self.watched = {}

    def _note(self, begin: int, end: int, receipts: Receipts, error: OncelogError | None) -> None:
        """Note the result of those that have none."""
        first, results = begin, self._results
        while begin < end:
            at = bisect_right(results, begin, key=_BEGIN)
            if at and begin < results[at - 1].end:
                begin = results[at - 1].end
                continue
            upto = end if at == len(results) else min(end, results[at].begin)
            results.insert(at, _Result(begin, upto, first, receipts, error))
            begin = upto


class Outcome(forks.MadeHere, Future[Receipt]):
    """The future of one message: its receipt, or the OncelogError that it met. It knows where to look, and nothing else."""

    _is_told = False
    """Whether those who wait for several futures know of it."""

    def __init__(self, of: Outcomes, index: int) -> None:
        self._of = of
        self.index = index

    def __getattr__(self, name: str) -> Any:
        # The attributes that Future.__init__ sets, which is not called; the names have been the same since Python 3.2. Its own
        # methods, and the functions of concurrent.futures, look at them with it held.
        match name:
            case "_condition":
                return LOCK
            case "_state":
                return FINISHED if self.done() else PENDING
            case "_result":
                return self.result() if self.done() and self.exception() is None else None
            case "_exception":
                return self.exception() if self.done() else None
            case "_waiters" | "_done_callbacks":
                made: list[Any] = []
                setattr(self, name, made)
                if not self.done():
                    self._of.watched[self.index] = self
                return made
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def cancel(self) -> bool:
        """False: a message that is queued cannot be taken back; what was sent may be on disk already."""
        return False

    def done(self) -> bool:
        """Whether it has its receipt or its error."""
        return self._of.of(self.index) is not None  # without the lock: senders ask under theirs

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt. Raises the message's OncelogError, or TimeoutError."""
        result = self._of.of(self.index) or self._of.wait_for(self.index, timeout)
        if result.error is not None:
            raise_copy(result.error)
        return result.receipts.at(self.index - result.first)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None when the message is on disk. Raises TimeoutError."""
        return self._of.wait_for(self.index, timeout).error

    def wait(self) -> None:
        """Return when it has its result."""
        self._of.wait_for(self.index, None)

    def disregard(self) -> OncelogError | None:
        """Its sender does not wait for it any more. Return its failure, if it has one by now: the sender does not hear of it."""
        self._of.awaited = [index for index in self._of.awaited if index != self.index]
        result = self._of.of(self.index)
        return None if result is None else result.error

    def wake(self) -> None:
        """Tell those who wait for several futures that this one is done."""
        if not self._is_told:
            tell = "add_result" if self.exception() is None else "add_exception"
            for waiter in self._waiters:
                getattr(waiter, tell)(self)
            self._is_told = True

    def call(self) -> None:
        """Run the callbacks, each once. What one raises is logged: this thread may be that of whoever sends something else."""
        callbacks: list[Callable[[Future[Receipt]], object]] = vars(self).pop("_done_callbacks", [])
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as error:
                if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                    raise  # Ctrl-C, at the interpreter's exit: else the main thread sends nothing
                log(LOGGER, ERROR, "exception calling callback for %r", self, error=error)


def raise_copy(error: OncelogError) -> NoReturn:
    """Raise a copy: raising the one error of many messages for each of them would make its traceback longer every time."""
    raised = copy(error).with_traceback(None)
    raised.__cause__ = error.__cause__
    try:
        raise raised
    finally:
        del error, raised
