"""How much somebody may hold at the same time: things that are there until they end or are deleted. Pure.

Whoever asks does so in the step that makes one more, with nothing awaited in between: so there is never one too many.
"""

from __future__ import annotations

from collections.abc import Callable

from oncelog.errors import QuotaExceeded

_SOON_MS = 1_000
"""When to come again for what ends by itself; a server's own guess, as ``Retry-After: 1`` is where it is overloaded."""


GONE = 10
"""So many times as many names as may be there may be known altogether, with those that are gone: who had one of these stays
fenced by it. A job that has a new subscription each hour and deletes it comes to that in eleven years; then the oldest are given
back (log/read/subscriptions.py)."""


def check_names(
    quota: str, held: int, more: int, limit: int | None, whose: str, way_out: str = "delete some that are not needed"
) -> None:
    """Raises QuotaExceeded unless there may be so many ``more`` of them. ``quota``: `topics`, `producers`, `subscriptions` or
    `keys`; ``limit``: None for as many as come."""
    if limit is not None and held + more > limit:
        raise QuotaExceeded(
            f"{whose} has {held} {quota}, and may have {limit}; nothing was done, {way_out}",
            quota=quota,
            limit=limit,
        )


def knows_too_many(known: int, limit: int | None) -> bool:
    """Tells whether so many names are more than may be known, gone or not."""
    return limit is not None and known > limit * GONE


def check_gone(quota: str, known: int, more: int, limit: int | None, whose: str) -> None:
    """Raises QuotaExceeded unless so many ``more`` names may be known, beside those that are known, gone or not."""
    if limit is not None and knows_too_many(known + more, limit):
        raise QuotaExceeded(
            f"{whose} knows {known} names of {quota}, those with them that are gone, and may know {limit * GONE}; nothing was "
            "done, use a name again, or have the topic made anew",
            quota=quota,
            limit=limit,
        )


class Counted:
    """About how many names there are: never fewer than there are, and all are looked at only where that may be too many.

    Each that comes is asked for first; they go without a word.
    """

    __slots__ = ("_at", "_most")

    def __init__(self, most: int) -> None:
        """``most``: as many as there are, or more."""
        self._most = most
        self._at: int | None = None

    def check(self, quota: str, more: int, limit: int, whose: str, gone: int, count: Callable[[], int]) -> None:
        """Raises QuotaExceeded unless there may be so many ``more``, which come now.

        ``gone``: how often some have gone. Until more have, whoever is refused again has nobody look at all of them.
        """
        if self._most + more > limit and self._at != gone:
            self._most, self._at = count(), gone
        check_names(quota, self._most, more, limit, whose)
        self._most, self._at = self._most + more, None


def check_held(owner: str | None, held: int, more: int, limit: int, quota: str, what: str, way_out: str, soon: bool) -> None:
    """Raises QuotaExceeded unless the owner may hold so much ``more``. None: nobody with a name, who is not counted.

    ``what``: how a refusal calls what is held; ``way_out``: what makes room; ``soon``: something does by
    itself, so that to come again helps.
    """
    if owner is not None and held + more > limit:
        raise QuotaExceeded(
            f"{owner} has {held} {what}, and one principal may have {limit}; nothing was done: {way_out}",
            quota=quota,
            limit=limit,
            retry_after_ms=_SOON_MS if soon else None,
        )


def check_transactions(owner: str | None, held: int, limit: int, what: str = "transactions") -> None:
    """Raises QuotaExceeded unless the owner may have one more in progress. None: nobody with a name, who is not counted."""
    check_held(owner, held, 1, limit, "transactions", f"{what} in progress", "end some", soon=True)


class Held:
    """How much each owner holds of one thing, and all together; what nobody with a name holds is in the total alone."""

    __slots__ = ("_of", "total")

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self.total = 0

    def of(self, owner: str | None) -> int:
        """Returns how much the owner holds."""
        return 0 if owner is None else self._of.get(owner, 0)

    def add(self, owner: str | None, amount: int) -> None:
        """Counts what an owner holds from now on; below 0: does not hold any more."""
        self.total += amount
        if owner is None:
            return
        held = self._of.get(owner, 0) + amount
        if held:
            self._of[owner] = held
        else:
            self._of.pop(owner, None)
