"""A producer's own messages, from the newest to the oldest, along the chain that its requests form (rows.py: PREVIOUS).

This finds the original of a repeated message without an index row per message. The walk over the newest request is always
whole, so that an exact retry gets its original ids also after a restart; how much further it goes is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from oncelog.errors import TopicDamaged
from oncelog_service.log.groups import latest_stored
from oncelog_service.log.scan import after
from oncelog_service.storage.keys import FIRST_ROW_ID, pointer_key
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.rows import GroupProducer, Row, RowDamaged, decode_row


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


_LARGEST_PART = 100_000
"""Payloads of a stored group that are looked through."""


class Original(NamedTuple):
    """A stored message of a named producer."""

    sequence_id: int | None
    message_id: bytes
    offset: int
    payload: bytes
    write_pointer: int | None


def requests_of(store: Store, prefix: bytes, producer: str, newest: bytes) -> Iterator[list[Original]]:
    """The requests of the producer whose newest message lies in the row ``newest``, the newest first, and so within each.

    Those that were rolled back are passed over. Ends where the log begins or retention has been. Raises TopicDamaged.
    """
    row_id = newest
    while row_id != FIRST_ROW_ID:
        rows = _request_at(store, prefix, row_id)
        if not rows:
            return
        oldest = rows[-1]
        if oldest.write_pointer is None or oldest.write_pointer > 0:
            yield _stored_by(store, prefix, producer, oldest) if oldest.group else [_original(row) for row in rows]
        previous = oldest.previous if oldest.group is None else _part(oldest, producer).previous
        if previous is None:
            return  # its older rows are gone
        row_id = previous


def _request_at(store: Store, prefix: bytes, row_id: bytes) -> list[Row]:
    """The rows of the request whose last row is at ``row_id``, that one first; none if they are gone."""
    request: list[Row] = []
    with closing(store.scan(Table.MESSAGE, prefix, prefix + after(row_id), reverse=True)) as rows:
        for key, data in rows:
            row = _decode(key[len(prefix) :], data)
            if row.row_id != row_id if not request else row.offset != request[-1].offset - 1:
                # Retention deletes from the beginning: where an older row is still there, nothing newer may be missing.
                raise TopicDamaged(f"a message is missing between offset {row.offset} and the one at {row_id.hex()}")
            request.append(row)
            if row.previous is not None or row.group is not None:
                break
    return request


def _part(row: Row, producer: str) -> GroupProducer:
    assert row.group is not None
    for part in row.group.producers:
        if part.name == producer:
            return part
    raise TopicDamaged(f"the stored group at {row.row_id.hex()} should hold messages of producer {producer!r}")


def _stored_by(store: Store, prefix: bytes, producer: str, row: Row) -> list[Original]:
    """The producer's messages in a stored group, the newest first; of a large group the latest ones."""
    key = pointer_key(prefix, row.payloads_under)
    return [
        Original(each.sequence_id, row.row_id + each.payload_id, row.offset + each.place, each.payload, row.write_pointer)
        for each in latest_stored(store, key, _LARGEST_PART)
        if each.producer == producer
    ]


def _original(row: Row) -> Original:
    return Original(row.sequence_id, row.message_id, row.offset, row.payload, row.write_pointer)


def find_originals(
    store: Store,
    prefix: bytes,
    producer: str,
    newest: bytes,
    sequence_ids: Sequence[int],
    further: Further = FURTHER,
) -> dict[int, Original]:
    """sequence id → stored message, for those of the rising ``sequence_ids`` that are cheaply found. Raises TopicDamaged."""
    wanted = set(sequence_ids)
    found: dict[int, Original] = {}
    room = len(sequence_ids) + further.rows
    for number, request in enumerate(requests_of(store, prefix, producer, newest)):
        for original in request:
            if original.sequence_id in wanted:
                found.setdefault(original.sequence_id, original)
        room -= len(request) if number else 0
        oldest = request[-1].sequence_id if request else None
        if room <= 0 or number >= further.requests or len(found) == len(wanted) or oldest is None or oldest <= sequence_ids[0]:
            break
    return found


def _decode(row_id: bytes, data: bytes) -> Row:
    try:
        return decode_row(row_id, data)
    except RowDamaged as damage:
        raise TopicDamaged(str(damage)) from damage
