"""When who waits for an answer asks another instance who serves this. Pure: it is told the time, and asks nobody.

A process that is stopped keeps its connections: nothing says that it will not answer but that nothing comes. Others serve what
it had once its leases have ended, after three seconds unless it is set otherwise: from then on it is of use to ask. A service
that is slow serves it still, and is waited for.
"""

from __future__ import annotations

from typing import NamedTuple

SILENT_SECONDS = 3.0
"""Without a byte; for what the service may hold, behind that."""
AGAIN_SECONDS = 2.0
"""Between two questions, and what one may take."""


class Again(NamedTuple):
    """How long a request is waited for that its caller sends again if it fails, which does nothing twice."""

    timeout: float | None = None
    """Seconds until all of the answer must have come; None: as its client says."""
    held: float = 0.0
    """Seconds for which the service may have nothing to say."""
    served: str | None = None
    """Address of what it is about, where its own does not say it."""
    asks_others: bool = True
    """Whether it is not waited for in silence; else its caller sends it once."""


class Silence:
    """Of one request."""

    __slots__ = ("_asks_at",)

    def __init__(self, now: float, held: float = 0.0) -> None:
        """``held``: as of :class:`Again`."""
        self._asks_at = now + held + SILENT_SECONDS

    def left(self, now: float) -> float:
        """Seconds until somebody else is asked; 0 or less: now."""
        return self._asks_at - now

    def heard(self, now: float) -> None:
        """A byte came, or one more went."""
        self._asks_at = max(self._asks_at, now + SILENT_SECONDS)

    def asked(self, now: float) -> None:
        """Somebody else was, and knew of nobody else."""
        self._asks_at = now + AGAIN_SECONDS
