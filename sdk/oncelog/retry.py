"""How long to wait, and what may be tried again. Pure: told what failed, never trying anything itself."""

from __future__ import annotations

from oncelog.errors import (
    ConnectionFailed,
    OncelogError,
    Overloaded,
    ProducerInTransaction,
    RequestTimeout,
    StorageFailed,
    StorageUnavailable,
    TransactionsUnavailable,
)

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 2.0
"""A service that reopens its store or restarts is back within seconds; waiting longer only adds to that."""

_TRANSIENT = (
    ConnectionFailed,
    StorageUnavailable,
    StorageFailed,
    TransactionsUnavailable,
    ProducerInTransaction,  # as Kafka's CONCURRENT_TRANSACTIONS: mostly one that has just ended and is not settled yet
    Overloaded,
    RequestTimeout,
)


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
