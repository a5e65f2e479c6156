"""The machine's clock, which a test moves: time that passes, and a clock that is set."""

from __future__ import annotations

from oncelog_service.clock import SystemClock


class MovedClock(SystemClock):
    """The machine's clock, and what it was moved by. It is moved on the event loop that reads it, or while nothing does.

    It outlives the service, as a machine's does: after :meth:`begin_anew` a clock that was set back shows it.
    """

    def __init__(self) -> None:
        self._passed_seconds = 0.0
        self._set_by_ms = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets what it has answered: another process asks."""
        super().__init__()

    def pass_by(self, seconds: float) -> None:
        """Lets so much time pass, on both clocks. Raises ValueError: time does not go back."""
        if seconds < 0:
            raise ValueError("time that passes does not go back; a clock that is set may")
        self._passed_seconds += seconds

    def set_by(self, seconds: float) -> None:
        """Sets the clock by so much, forward or back; no time passes."""
        self._set_by_ms += round(seconds * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self._passed_seconds

    def _machine_ms(self) -> int:
        return super()._machine_ms() + self._set_by_ms + round(self._passed_seconds * 1000)
