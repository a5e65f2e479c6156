"""The *plan* of an outbox: the number under which each row is published, as a relay keeps it in the database. Pure.

It is written in the transaction that numbers the rows and before any of them is published, and a row leaves it in the transaction
that deletes the row. So the relay that follows one that died repeats exactly what that one may have begun.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple


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


def number(rows: Iterable[tuple[int, int]], first: int) -> list[Planned]:
    """Numbers rows, each given as (id, token), in their order."""
    return [Planned(first + at, row, token) for at, (row, token) in enumerate(rows)]


def taken(sizes: Sequence[int], limit: int) -> int:
    """Counts the first rows that have no more than ``limit`` bytes together; at least one, if there is any."""
    total = 0
    for at, size in enumerate(sizes):
        total += size
        if at and total > limit:
            return at
    return len(sizes)
