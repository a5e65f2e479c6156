"""Measures how long transactions in progress have lived, on a clock that nobody sets. Pure: it is told the time.

The wall clock numbers pointers and shows times to people; it never ends a transaction. A clock that is set forward by a day
would end all of them at once, one that is set back would end none for as long, and so would a process with another clock that
takes over. What is kept on disk is how long each one may live. How long a service was away is not known, so after a restart,
a take-over or a failed write each transaction is given its whole lifetime anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelog_service.transactions.state import OpenTransaction


class Lifetimes:
    """Knows how long each transaction in progress may live. Times are seconds of a monotonic clock."""

    def __init__(self, open_transactions: Mapping[int, OpenTransaction], now: float) -> None:
        """``open_transactions``: id → transaction; the mapping is watched, and the state moves it."""
        self._open = open_transactions
        self._began = dict.fromkeys(open_transactions, now)

    def begin(self, pointer: int, now: float) -> None:
        """Notes that a transaction begins to live."""
        self._began[pointer] = now

    def end(self, pointer: int) -> None:
        """Notes that a transaction is not in progress any more."""
        self._began.pop(pointer, None)

    def lived_ms(self, pointer: int, now: float) -> float:
        """Returns how long a transaction has lived, as far as this process knows."""
        return (now - self._began[pointer]) * 1000

    def left_seconds(self, pointer: int, now: float) -> float:
        """Returns how long a transaction may live from now on; 0 or less: it is to end."""
        return self._began[pointer] + self._open[pointer].lifetime_ms / 1000 - now

    def due(self, now: float) -> list[int]:
        """Returns the ids of transactions that have lived too long, rising."""
        return [pointer for pointer in self._open if self.left_seconds(pointer, now) <= 0]

    def next_seconds(self, now: float, at_most: float) -> float:
        """Returns how long it takes until the next one has, at most ``at_most``."""
        return min((self.left_seconds(pointer, now) for pointer in self._open), default=at_most)
