"""Counts the openings of a name that one client at a time may hold; a nonce tells a late repeat of an open from a new one."""

from __future__ import annotations

from collections.abc import Sequence

Opens = Sequence[tuple[str, int]]
"""(nonce, the epoch that it began) of the latest opens, oldest first."""

_REMEMBERED = 16


def begun_by(opens: Opens, nonce: str) -> int | None:
    """The epoch that an open with this nonce began; None: it is a new one, or one of long ago."""
    return dict(opens).get(nonce)


def remembering(opens: Opens, nonce: str, epoch: int) -> list[tuple[str, int]]:
    """The latest opens with one more."""
    return [*opens, (nonce, epoch)][-_REMEMBERED:]
