"""How much somebody may hold at the same time: things that are there until they end or are deleted. Pure.

Whoever asks does so in the step that makes one more, with nothing awaited in between: so there is never one too many.
"""

from __future__ import annotations

from oncelog.errors import QuotaExceeded

_SOON_MS = 1_000
"""When to come again for what ends by itself; a server's own guess, as ``Retry-After: 1`` is where it is overloaded."""


def check_names(quota: str, held: int, more: int, limit: int | None, whose: str) -> None:
    """Raises QuotaExceeded unless there may be so many ``more`` of them. ``quota``: `topics` or `producers`; ``limit``: None for
    as many as come."""
    if limit is not None and held + more > limit:
        raise QuotaExceeded(
            f"{whose} has {held} {quota}, and may have {limit}; nothing was done, delete some that are not needed",
            quota=quota,
            limit=limit,
        )


def check_transactions(owner: str | None, held: int, limit: int, what: str = "transactions") -> None:
    """Raises QuotaExceeded unless the owner may have one more in progress. None: nobody with a name, who is not counted."""
    if owner is not None and held >= limit:
        raise QuotaExceeded(
            f"{owner} has {held} {what} in progress, as many as one principal may have: {limit}; nothing was begun, end some",
            quota="transactions",
            limit=limit,
            retry_after_ms=_SOON_MS,
        )
