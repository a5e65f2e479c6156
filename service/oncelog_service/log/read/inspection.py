"""Reads the rows of a topic as they lie in its tables, for whoever looks for what became of something. Not for the event loop.

Bounded in rows, and of a payload only the beginning: this is to be looked at, not to be processed.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice

from oncelog.message_id import MessageId
from oncelog.wire.models import InspectedGroup, InspectedPayload, InspectedRow
from oncelog_service.log.groups.payloads import pointers_with_payloads
from oncelog_service.log.groups.stored import payloads, read_group_row
from oncelog_service.log.scan import last_payload, rows_from
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, ROW_ID_SIZE, pointer_key
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import decode_row, payload_place_of

SHOWN_BYTES = 100
"""Of each payload."""


def inspected_rows(store: Store, prefix: bytes, start: bytes, limit: int) -> list[InspectedRow]:
    """Returns the rows of the Message Table from the key ``start`` on. Raises TopicDamaged."""
    found = []
    with closing(rows_from(store, prefix, start[:ROW_ID_SIZE])) as rows:
        for row_id, data in islice(rows, limit):
            row = decode_row(row_id, data)
            found.append(
                InspectedRow(
                    message_id=MessageId.from_bytes(row.message_id),
                    offset=row.offset,
                    messages=row.messages,
                    group=row.group is not None,
                    producer=row.producer,
                    sequence_id=row.sequence_id,
                    key=_text(row.key),
                    ttl=row.ttl,
                    write_pointer=None if row.write_pointer is None else abs(row.write_pointer),
                    marked=row.write_pointer is not None and row.write_pointer < 0,
                    payload_bytes=len(row.payload),
                    payload=_text(row.payload[:SHOWN_BYTES]) or "",
                )
            )
    return found


def inspected_groups(store: Store, prefix: bytes, limit: int) -> list[InspectedGroup]:
    """Returns what is stored apart from the log, by write pointer. Raises TopicDamaged."""
    found = []
    for pointer in pointers_with_payloads(store, prefix)[:limit]:
        row, last = read_group_row(store, prefix, pointer), last_payload(store, prefix, pointer)
        published = None if row is None or row.row_id is None else bytes.fromhex(row.row_id) + FIRST_PAYLOAD_ID
        found.append(
            InspectedGroup(
                write_pointer=pointer if pointer > 0 else None,
                atomic_number=-pointer if pointer < 0 else None,
                messages=0 if last is None else payload_place_of(last) + 1,
                published=None if published is None else MessageId.from_bytes(published),
                expired=row is not None and row.row_id is None,
                producer=None if row is None else row.producer,
            )
        )
    return found


def inspected_payloads(store: Store, prefix: bytes, pointer: int, limit: int) -> list[InspectedPayload]:
    """Returns the payloads stored under one write pointer, in the order of storing. Raises TopicDamaged."""
    return [
        InspectedPayload(
            payload_id=each.payload_id.hex(),
            place=each.place,
            producer=each.producer,
            sequence_id=each.sequence_id,
            payload_bytes=len(each.payload),
            payload=_text(each.payload[:SHOWN_BYTES]) or "",
        )
        for each in islice(payloads(store, pointer_key(prefix, pointer)), limit)
    ]


def _text(data: bytes | None) -> str | None:
    """As text; bytes that are none are shown as escapes."""
    return None if data is None else data.decode("utf-8", "backslashreplace")
