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
