"""What a relay has in hand: the *plan*, which is the number of each row as it stands in the database; and what waits. Pure.

The plan is written in the transaction that numbers the rows and before any of them is published, and a row leaves it in the
transaction that deletes the row. So the relay that follows one that died repeats exactly what that one may have begun.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from oncelog.errors import OncelogError


class Name(NamedTuple):
    """The name of a topic."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"


class Planned(NamedTuple):
    """A row and its number. Id and token together say which row it is."""

    number: int
    row: int
    token: int


def encode(plan: Iterable[Planned]) -> str:
    """Writes a plan as it is in the database: ``[[number, row, token], …]``."""
    return json.dumps(list(plan), separators=(",", ":"))


def decode(text: str) -> list[Planned]:
    """Reads a plan. Raises ValueError for what :func:`encode` did not write."""
    try:
        plan = [Planned(*map(int, entry)) for entry in json.loads(text)]
    except (TypeError, ValueError) as error:
        raise ValueError(f"not the plan of an outbox's relay: {text[:100]!r}") from error
    return sorted(plan)


def taken(sizes: Sequence[int], limit: int) -> int:
    """Counts the first rows that have no more than ``limit`` bytes together; at least one, if there is any."""
    return max(bisect_right(list(accumulate(sizes)), limit), min(1, len(sizes)))


# --- rows that are numbered, and topics that refuse theirs

BLOCKED_TOPICS = 100
BLOCKED_ROWS = 10_000
"""With more topics, or rows of theirs, that cannot be published, all others wait too: the plan is written with every batch."""
BLOCKED_SECONDS = 30.0
"""Longest pause between two tries of a topic that refuses."""


@dataclass(slots=True)
class Blocked:
    """A topic whose next row is refused."""

    error: OncelogError
    planned: list[Planned]
    """Its rows that have a number, the refused one first."""
    row: int | None
    """The id of its first row, where none may get a number yet; else None."""
    tries: int
    due: float
    """When it is tried again, by the clock of the caller."""


class Backlog:
    """Holds the rows that have a number and may not be published yet. A topic that refuses one holds up its own rows only."""

    def __init__(self, plan: Iterable[Planned] = ()) -> None:
        self._pending = list(plan)
        self.blocked: dict[Name, Blocked] = {}

    def due(self, now: float) -> list[Planned]:
        """The rows to be tried now, by number."""
        again = (planned for blocked in self.blocked.values() if blocked.due <= now for planned in blocked.planned)
        return sorted((*self._pending, *again))

    def unnumbered(self, now: float) -> list[Name]:
        """The topics to be asked now whether their rows may get numbers."""
        return [name for name, blocked in self.blocked.items() if blocked.row is not None and blocked.due <= now]

    def block(
        self,
        name: Name,
        error: OncelogError,
        planned: list[Planned],
        now: float,
        *,
        progress: bool = False,
        row: int | None = None,
    ) -> bool:
        """Notes that a topic refuses the first of these rows; answers whether that is news.

        ``progress``: it has taken others just now, so that it is tried again soon. ``row``: instead of rows, the id of its first
        one, where none may get a number.
        """
        before = self.blocked.get(name)
        tries = 0 if before is None or progress else before.tries + 1
        wait = min(BLOCKED_SECONDS, 0.5 * 2.0 ** min(tries, 16))
        self.blocked[name] = Blocked(error, planned, row, tries, now + wait)
        return before is None or before.error.code != error.code

    def drop(self, done: Collection[Planned]) -> None:
        """Forgets rows that are published, or not in the outbox any more."""
        gone = set(done)
        for blocked in self.blocked.values():
            blocked.planned = [planned for planned in blocked.planned if planned not in gone]
        self.blocked = {name: blocked for name, blocked in self.blocked.items() if blocked.planned or blocked.row is not None}
        gone |= self._held()
        self._pending = [planned for planned in self._pending if planned not in gone]

    def has_room(self) -> bool:
        """Whether further rows may be numbered."""
        return not self._pending and len(self.blocked) <= BLOCKED_TOPICS and len(self._held()) <= BLOCKED_ROWS

    def add(self, planned: Sequence[Planned]) -> bool:
        """Adds rows that have been numbered; answers whether any wait to be published."""
        self._pending += planned
        return bool(self._pending)

    def _held(self) -> set[Planned]:
        return {planned for blocked in self.blocked.values() for planned in blocked.planned}


class Watch:
    """Tells whether the holder of an outbox has died. No clocks are compared: its version rises while it lives."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._heard: tuple[str, int] | None = None
        self._since = 0.0

    def is_silent(self, holder: str, version: int, now: float) -> bool:
        """Whether it has shown this version for longer than a relay that lives does."""
        if self._heard != (holder, version):
            self._heard, self._since = (holder, version), now
        return now - self._since >= self._patience
