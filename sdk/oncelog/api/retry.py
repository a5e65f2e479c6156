"""Says what may be tried again, and after how long. Pure: told what failed and when, it tries nothing and waits for nobody.

Each caller keeps a :class:`Tries`, asks it after every failure, and sleeps as it can: in a thread, on an event, in a loop.
"""

from __future__ import annotations

from math import inf

from oncelog.errors import (
    ClientClosed,
    ConnectionFailed,
    DiskFull,
    ExpectationsNotChecked,
    InvalidRequest,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    Overloaded,
    ProducerEnded,
    ProducerFenced,
    ProducerInTransaction,
    QuotaExceeded,
    RequestTimeout,
    RequestTooLarge,
    ResponseTimeout,
    SequenceGap,
    SequenceReused,
    StorageFailed,
    StorageUnavailable,
    TransactionsUnavailable,
)
from oncelog.values.expectation import is_past

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 2.0
"""A service that reopens its store or restarts is back within seconds; waiting longer only adds to that."""
LONGEST_ASKED_SECONDS = 30.0
"""Of a ``Retry-After`` no more is heeded: nobody on the way to the service decides that its clients stand still."""

_TRANSIENT = (
    ConnectionFailed,  # also GatewayUnavailable: a gateway says that the service is away
    StorageUnavailable,
    StorageFailed,
    TransactionsUnavailable,
    ProducerInTransaction,  # as Kafka's CONCURRENT_TRANSACTIONS: mostly one that has just ended and is not settled yet
    KeyInTransaction,
    Overloaded,
    DiskFull,
    QuotaExceeded,
    RequestTimeout,
)
_NEVER_OTHERWISE = (SequenceReused, InvalidRequest, RequestTooLarge)
"""The same request is refused with these whenever it comes."""
_ENDS_A_PRODUCER = (ProducerFenced, ProducerEnded, SequenceGap, ClientClosed)
"""Whatever this producer sends after one of these is refused, too."""
_OF_AN_EXPECTATION = (OffsetMismatch, ExpectationsNotChecked, KeyInTransaction)


def pause(attempt: int, fraction: float) -> float:
    """Seconds before retry number ``attempt`` (from 0): exponential, half of it spread by ``fraction`` (0 to 1)."""
    # Without the spread, the clients of a service that restarts all come back in the same moment.
    longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(attempt, 16))
    return longest / 2 + longest / 2 * fraction


class Tries:
    """The tries of one call: how many there were, until when there may be more, and whether one may have got through."""

    __slots__ = ("_ends", "_failed", "_idempotent", "_named", "_others", "perhaps_done")

    def __init__(self, ends: float = inf, *, idempotent: bool = True, named: bool = False, others: int = 0) -> None:
        """``ends``: by the caller's clock; ``idempotent``: see :func:`may_retry`; ``named``: it is a named producer's request.

        ``others``: so many further instances are asked when one has not answered, even if that took all the time there was.
        """
        self._ends = ends
        self._idempotent = idempotent
        self._named = named
        self._others = others
        self._failed = 0
        self.perhaps_done = False
        """Whether a try that failed may have got through all the same."""

    def wait(self, now: float, fraction: float, asked: float = 0.0) -> float | None:
        """Seconds until the next try, at least ``asked`` of them; None: there is no time for one.

        What is asked is heeded up to :data:`LONGEST_ASKED_SECONDS`, and up to the last moment: one more try may be the one.
        """
        own, left = pause(self._failed, fraction), self._ends - now
        self._failed += 1
        return None if own > left else min(own + min(asked, LONGEST_ASKED_SECONDS), left)

    def wait_after(self, error: OncelogError, now: float, fraction: float) -> float | None:
        """Seconds until the next try after ``error``. None: that is how the call ends, and ``error`` says now whether it is
        definite of *all* tries: a refusal now says nothing of an earlier one that may have got through."""
        wait = self.wait(now, fraction, error.retry_after or 0.0)
        if isinstance(error, ResponseTimeout) and self._others:  # that took all the time; another one may answer at once
            self._others, wait = self._others - 1, wait or 0.0
        if wait is None or not may_retry(error, self._idempotent):
            error.definite = error.definite and (not self.perhaps_done or (self._named and rules_out_earlier_tries(error)))
            return None
        self.perhaps_done = self.perhaps_done or not error.definite
        return wait


def may_retry(error: OncelogError, idempotent: bool) -> bool:
    """Whether trying again may help and cannot do the thing twice.

    ``idempotent``: a repetition changes nothing (a read; a publish of a named producer). Otherwise only what certainly was not
    done is tried again.
    """
    if isinstance(error, QuotaExceeded) and error.retry_after_ms is None:
        return False  # somebody must make room
    return isinstance(error, _TRANSIENT) and (idempotent or error.definite)


def rules_out_earlier_tries(error: OncelogError) -> bool:
    """Whether this refusal of a named producer's request says that no earlier try of it got through, or ever will.

    A try that got through would have been answered as a duplicate; one that may still be under way is refused as this one was.
    """
    if isinstance(error, RequestTooLarge) and error.limit is None:
        return False  # not the service's own word: whatever stands before it knows nothing of earlier tries
    return isinstance(error, _NEVER_OTHERWISE) or (isinstance(error, OffsetMismatch) and is_past(error))


def is_one_messages_fault(error: OncelogError) -> bool:
    """Whether a message is refused for what it is or expects, so that those behind it may go on without it."""
    return isinstance(error, _NEVER_OTHERWISE + _OF_AN_EXPECTATION) and error.definite


def ends_a_producer(error: OncelogError) -> bool:
    """Whether nothing that the same producer sends later can be stored either."""
    return isinstance(error, _ENDS_A_PRODUCER)
