"""How often the store failed, whether that is so since it is damaged, and how long to wait before it is opened again. Pure."""

from __future__ import annotations

from oncelog_service.storage.port import StoreDamaged

_REOPEN_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses before each attempt to reopen a store that failed; the last one repeats."""
_DAMAGED_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The same where writes fail since what is stored is damaged: reading it again does not help, and each attempt costs a replay."""
_HELD_SECONDS = 300.0
"""A store that was open for so long without a failure is not taken for damaged any more."""


class Failures:
    """Those of one store, as long as the process lives. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self.count = 0
        """How often the store had to be reopened."""
        self._damages = 0
        """How often in a row a write failed since what is stored is damaged."""
        self._opened_at: float | None = None

    def opened(self, now: float) -> None:
        """The store is open."""
        self._opened_at = now

    def failed(self, error: Exception, now: float) -> None:
        """The store has failed, and is open no more."""
        if isinstance(error, StoreDamaged):
            self._damages = self._damages + 1 if self.damaged(now) else 1
        self.count += 1
        self._opened_at = None

    def damaged(self, now: float) -> bool:
        """Tells whether writes fail again and again since rows are damaged."""
        held = self._opened_at is not None and now - self._opened_at > _HELD_SECONDS
        return self._damages > 0 and not held

    def pause(self, attempt: int, now: float) -> float:
        """Returns the seconds before an attempt to reopen the store, the first one being 0."""
        pause = _REOPEN_SECONDS[min(attempt, len(_REOPEN_SECONDS) - 1)]
        if not self.damaged(now):
            return pause
        return max(pause, _DAMAGED_SECONDS[min(self._damages, len(_DAMAGED_SECONDS)) - 1])
