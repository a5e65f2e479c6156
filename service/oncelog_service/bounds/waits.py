"""Requests that wait for something to come hold their bodies for as long as that: so they have a share of the room for bodies.

The invariant: what waits holds no more than the share, all together; the rest of the room is for who comes and goes. Small bodies
do not count: the bound on connections bounds them. Pure. Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_SMALL_BYTES = 4 * 2**10
"""A poll without a transaction has less than a hundred."""


class Waits:
    """Counts the bodies of those that wait."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes``: of all together."""
        self.max_bytes = max_bytes
        self.bytes = 0

    @contextmanager
    def holding(self, size: int) -> Iterator[bool]:
        """Whether a request with a body of so many bytes may wait within."""
        counted = size if size > _SMALL_BYTES else 0
        if self.bytes + counted > self.max_bytes:
            yield False
            return
        self.bytes += counted
        try:
            yield True
        finally:
            self.bytes -= counted
