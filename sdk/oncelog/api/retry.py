"""How long to wait, and what may be tried again. Pure: told what failed, never trying anything itself."""

from __future__ import annotations

from oncelog.errors import (
    ClientClosed,
    ConnectionFailed,
    ExpectationsNotChecked,
    InvalidRequest,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    Overloaded,
    ProducerEnded,
    ProducerFenced,
    ProducerInTransaction,
    RequestTimeout,
    RequestTooLarge,
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
    ConnectionFailed,  # also GatewayUnavailable: somebody on the way says that the service is away
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
_ENDS_A_PRODUCER = (ProducerFenced, ProducerEnded, SequenceGap, ClientClosed)
"""Whatever this producer sends after one of these is refused, too."""
_OF_AN_EXPECTATION = (OffsetMismatch, ExpectationsNotChecked, KeyInTransaction)


def pause(attempt: int, fraction: float) -> float:
    """Seconds before retry number ``attempt`` (from 0): exponential, half of it spread by ``fraction`` (0 to 1).

    Without the spread, the clients of a service that restarts all come back in the same moment.
    """
    longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(attempt, 16))
    return longest / 2 + longest / 2 * fraction


def wait_before_retry(error: OncelogError, attempt: int, fraction: float, left: float) -> float | None:
    """Seconds to wait after ``error``, before retry number ``attempt``; None where ``left`` seconds are too few for one.

    A ``Retry-After`` is heeded up to :data:`LONGEST_ASKED_SECONDS`, and up to the last moment: one more try may be the one.
    """
    own = pause(attempt, fraction)
    if own > left:
        return None
    return min(own + min(error.retry_after or 0.0, LONGEST_ASKED_SECONDS), left)


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
    if isinstance(error, RequestTooLarge) and error.limit is None:
        return False  # not the service's own word: whatever stands before it knows nothing of earlier tries
    return isinstance(error, _NEVER_OTHERWISE) or (isinstance(error, OffsetMismatch) and is_past(error))


def is_one_messages_fault(error: OncelogError) -> bool:
    """Whether a message is refused for what it is or expects, so that those behind it may go on without it."""
    return isinstance(error, _NEVER_OTHERWISE + _OF_AN_EXPECTATION) and error.definite


def ends_a_producer(error: OncelogError) -> bool:
    """Whether nothing that the same producer sends later can be stored either."""
    return isinstance(error, _ENDS_A_PRODUCER)
