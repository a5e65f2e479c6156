"""Knows among which write pointers lie all that were ever handed out: what is forgotten is told from what is lost.

Each opening of the store that hands pointers out notes its first one, and the last one that was handed out before it. Between the
two lies nothing that the store knows of: what was handed out there is lost, since the store was put back to an earlier time.

In the row, for each such opening, oldest first, in hex: the last pointer before it, i64 · its first one, i64. The newest
:data:`KEPT` are kept: what is older than they are counts as lost, which an operator looks at.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table

KEPT = 256
_KEY = b"pointers"
_EACH = struct.Struct(">qq")


class Opening(NamedTuple):
    """An opening of the store that has handed out write pointers."""

    before: int
    """The last one that was handed out before it, as far as the store knows."""
    first: int
    """The first one that it handed out."""


def find_openings(store: Store) -> list[Opening]:
    """Reads them back. Raises StoreDamaged, StoreError."""
    data = store.get(Table.STORE_ID, _KEY)
    try:
        return [Opening(*each) for each in _EACH.iter_unpack(bytes.fromhex((data or b"").decode("ascii")))]
    except (ValueError, struct.error) as error:
        raise StoreDamaged(f"{(data or b'')[:100]!r} does not say which write pointers were handed out: {error}") from error


def put_openings(batch: Batch, openings: Sequence[Opening]) -> None:
    """Adds the row to what is written with the first pointer of the newest opening."""
    batch.put(Table.STORE_ID, _KEY, b"".join(_EACH.pack(*each) for each in openings[-KEPT:]).hex().encode())


def may_know(openings: Sequence[Opening], last: int, pointer: int) -> bool:
    """Whether the pointer lies among those that were handed out, of which ``last`` is the last one."""
    at = bisect_right(openings, pointer, key=lambda each: each.first)
    return at > 0 and pointer <= (openings[at].before if at < len(openings) else last)
