"""A producer's own messages, from the newest to the oldest, along the chain that its requests form (rows.py: PREVIOUS).

This finds the original of a repeated message without an index row per message. The walk over the newest request is always
whole, so that an exact retry gets its original ids also after a restart; how much further it goes is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from oncelog.errors import TopicDamaged
from oncelog_service.log.scan import after
from oncelog_service.storage.keys import FIRST_ROW_ID
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.rows import Row, RowDamaged, decode_row


class Further(NamedTuple):
    """How far beyond the newest request the walk goes."""

    rows: int
    """And as many as were asked for."""
    requests: int
    """Each costs a seek."""


FURTHER = Further(1_000, 64)
"""A repeat of old messages should not cost more than storing them did."""
MOST_RECENT = Further(100_000, 100_000)
"""For what may be the most recent request again: all that it repeats is looked up, some tenths of a second at the most."""


def requests_of(store: Store, prefix: bytes, newest: bytes) -> Iterator[list[Row]]:
    """The requests of the producer whose newest message has the row id ``newest``, the newest first, and so within each.

    Ends where the log begins or retention has been. Raises TopicDamaged.
    """
    row_id = newest
    while row_id != FIRST_ROW_ID:
        request: list[Row] = []
        with closing(store.scan(Table.MESSAGE, prefix, prefix + after(row_id), reverse=True)) as rows:
            for key, data in rows:
                row = _decode(key[len(prefix) :], data)
                if row.row_id != row_id if not request else row.offset != request[-1].offset - 1:
                    # Retention deletes from the beginning: where an older row is still there, nothing newer may be missing.
                    raise TopicDamaged(f"a message is missing between offset {row.offset} and the one at {row_id.hex()}")
                request.append(row)
                if row.previous is not None:
                    break
        if not request or request[-1].previous is None:
            if request:
                yield request  # its older rows are gone
            return
        yield request
        row_id = request[-1].previous


def find_originals(
    store: Store,
    prefix: bytes,
    newest: bytes,
    sequence_ids: Sequence[int],
    further: Further = FURTHER,
) -> dict[int, Row]:
    """sequence id → stored row, for those of the rising ``sequence_ids`` that are cheaply found. Raises TopicDamaged."""
    wanted = set(sequence_ids)
    found: dict[int, Row] = {}
    room = len(sequence_ids) + further.rows
    for number, request in enumerate(requests_of(store, prefix, newest)):
        for row in request:
            if row.sequence_id in wanted:
                found.setdefault(row.sequence_id, row)
        room -= len(request) if number else 0
        oldest = request[-1].sequence_id
        if room <= 0 or number >= further.requests or len(found) == len(wanted) or oldest is None or oldest <= sequence_ids[0]:
            break
    return found


def _decode(row_id: bytes, data: bytes) -> Row:
    try:
        return decode_row(row_id, data)
    except RowDamaged as damage:
        raise TopicDamaged(str(damage)) from damage
