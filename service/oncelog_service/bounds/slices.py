"""Long work cut into slices, between which others have their turns. Pure: who works gives way (`await asyncio.sleep(0)`).

Slices are counted and not timed, so that the same work gives way at the same places each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut into lists of ``size``; the last one may be shorter."""
    left = iter(items)
    while found := list(islice(left, size)):
        yield found
