"""How long to wait, and what may be tried again. Pure: told what failed, never trying anything itself."""

from __future__ import annotations

from oncelog.errors import (
    ConnectionFailed,
    ExpectationsNotChecked,
    InvalidRequest,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    Overloaded,
    ProducerInTransaction,
    RequestTimeout,
    RequestTooLarge,
    SequenceReused,
    StorageFailed,
    StorageUnavailable,
    TransactionsUnavailable,
)
from oncelog.expectation import is_past

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 2.0
"""A service that reopens its store or restarts is back within seconds; waiting longer only adds to that."""

_TRANSIENT = (
    ConnectionFailed,
    StorageUnavailable,
    StorageFailed,
    TransactionsUnavailable,
    ProducerInTransaction,  # as Kafka's CONCURRENT_TRANSACTIONS: mostly one that has just ended and is not settled yet
    KeyInTransaction,
    Overloaded,
    RequestTimeout,
)
_NEVER_OTHERWISE = (SequenceReused, InvalidRequest, RequestTooLarge)
"""The same request is refused with these whenever it comes."""
_OF_AN_EXPECTATION = (OffsetMismatch, ExpectationsNotChecked, KeyInTransaction)


def pause(attempt: int, fraction: float) -> float:
    """Seconds before retry number ``attempt`` (from 0): exponential, half of it spread by ``fraction`` (0 to 1).

    Without the spread, the clients of a service that restarts all come back in the same moment.
    """
    longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(attempt, 16))
    return longest / 2 + longest / 2 * fraction


def may_retry(error: OncelogError, idempotent: bool) -> bool:
    """Whether trying again may help and cannot do the thing twice.

    ``idempotent``: doing it twice is as once (a read; a publish of a named producer). Otherwise only what certainly was not done
    is tried again.
    """
    return isinstance(error, _TRANSIENT) and (idempotent or error.definite)


def rules_out_earlier_tries(error: OncelogError) -> bool:
    """Whether this refusal of a named producer's request says that no earlier try of it got through, or ever will.

    A try that got through would have been answered as a duplicate; one that may still be under way is refused as this one was.
    """
    return isinstance(error, _NEVER_OTHERWISE) or (isinstance(error, OffsetMismatch) and is_past(error))


def is_one_messages_fault(error: OncelogError) -> bool:
    """Whether a message is refused for what it is or expects, so that those behind it may go on without it."""
    return isinstance(error, _NEVER_OTHERWISE) or (isinstance(error, _OF_AN_EXPECTATION) and error.definite)
