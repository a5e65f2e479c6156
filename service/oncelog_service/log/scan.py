"""Reading a log: bound by TTL → rows → checked, dense → encoded. Nothing is skipped that should be there.

Every row's checksum is verified and its offset must follow on the row before it; the first row of a page is held against the row
before *it*. A hole is an error, never a shorter answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import NamedTuple

from oncelog.errors import TopicDamaged
from oncelog.wire.avro_parts import decode_long, encode_long_run
from oncelog_service.storage.keys import AFTER_ANY, FIRST_ROW_ID, ROW_ID_SIZE, split_row_id
from oncelog_service.storage.port import Rows, Store, Table
from oncelog_service.storage.rows import (
    MESSAGE_AT,
    TTL,
    Row,
    RowDamaged,
    TrimRow,
    decode_record,
    decode_row,
    intact,
    message_of,
    offset_of,
    tms_message_of,
    ttl_of,
)

Encode = Callable[[bytes], bytes]
"""From a row to the bytes of its message in the answer."""
AS_ONCELOG: Encode = message_of
AS_TMS: Encode = tms_message_of

_OFFSET_AT = 21
_RUN = 256


class Page(NamedTuple):
    """What one poll found."""

    messages: list[bytes]
    """Encoded, ready to be joined into an answer."""
    last_row_id: bytes | None
    """Of the last row looked at, delivered or not; None when there was none."""


class Bounds(NamedTuple):
    """What a page may hold."""

    limit: int
    """Messages delivered, never rows looked at."""
    max_bytes: int
    """A page ends after the message that reaches this; it always holds one."""
    now_ms: int


def after(row_id: bytes) -> bytes:
    """The key that begins an exclusive scan after ``row_id``."""
    return row_id + b"\x00"


def expired(row_id: bytes, row: bytes, live_from: int, now_ms: int) -> bool:
    """Whether the message may not be delivered any more: it is older than its topic allows, or than it does itself."""
    timestamp, _ = split_row_id(row_id)
    return timestamp < live_from or bool(row[1] & TTL and timestamp + ttl_of(row) * 1000 <= now_ms)


def collect(rows: Iterable[tuple[bytes, bytes]], bounds: Bounds, encode: Encode) -> Page:
    """The deliverable messages among ``rows``, which are checked already and younger than the topic's TTL."""
    messages: list[bytes] = []
    limit, room, now_ms = bounds.limit, bounds.max_bytes, bounds.now_ms
    row_id: bytes | None = None
    for row_id, row in rows:
        if row[1] & TTL and split_row_id(row_id)[0] + ttl_of(row) * 1000 <= now_ms:
            continue
        messages.append(encode(row))
        room -= len(row)
        if len(messages) >= limit or room <= 0:
            break
    return Page(messages, row_id)


def checked(rows: Iterable[tuple[bytes, bytes]], prefix: bytes, first_offset: int) -> Iterator[tuple[bytes, bytes]]:
    """(row id, row) of consecutive rows of the store, each held against its checksum and against ``first_offset``, +1, +2, …

    Raises:
        TopicDamaged: a row is damaged or missing.
    """
    cut = len(prefix)
    for (key, row), offset in zip(rows, _offsets(first_offset), strict=False):
        row_id = key[cut:]
        if not intact(row):
            raise _damaged(row_id)
        at = MESSAGE_AT[row[1]]
        if not row.startswith(offset, at + _OFFSET_AT):
            expected, _ = decode_long(offset, 0)
            raise TopicDamaged(f"offset {expected} is missing: offset {offset_of(row)} follows on the one before it")
        if not row.startswith(row_id, at + 1):
            raise TopicDamaged(f"the row at {row_id.hex()} belongs somewhere else")
        yield row_id, row


def _damaged(row_id: bytes) -> TopicDamaged:
    return TopicDamaged(f"the row at {row_id.hex()} does not match its checksum or is of an unknown version")


def _offsets(first: int) -> Iterator[bytes]:
    while True:
        yield from encode_long_run(first, _RUN)
        first += _RUN


def rows_from(store: Store, prefix: bytes, start: bytes) -> Rows:
    """(row id, row) of the log from the key ``start`` (a row id, or :func:`after` one) to its end, all checked.

    Raises:
        TopicDamaged: a row is damaged or missing, the one before the first included.
    """
    while True:
        before = row_before(store, prefix, start)
        if before is None:
            begin, earliest = start, earliest_offset(store, prefix)
        else:
            begin, earliest = before[0], 0
        found = store.scan(Table.MESSAGE, prefix + begin, prefix + AFTER_ANY)
        first = next(found, None)
        if before is not None:
            # One row more than asked for: it says which offset the first one of the page must have.
            if first is None or first[0][len(prefix) :] != begin:
                continue  # retention removed it between the two reads: look again
            if not intact(first[1]):
                raise _damaged(begin)
            yield from checked(found, prefix, offset_of(first[1]) + 1)
        elif first is not None:
            if intact(first[1]) and offset_of(first[1]) != earliest and earliest_offset(store, prefix) != earliest:
                continue
            yield from checked(chain((first,), found), prefix, earliest)
        return


def row_before(store: Store, prefix: bytes, start: bytes) -> tuple[bytes, bytes] | None:
    """(row id, row) of the last row before the key ``start``, unchecked; None if the log has none."""
    with closing(store.scan(Table.MESSAGE, prefix, prefix + start, reverse=True)) as rows:
        for key, row in rows:
            return key[len(prefix) :], row
    return None


def row_at(store: Store, prefix: bytes, row_id: bytes) -> Row | None:
    """The row with this id, decoded; None if there is none (any more). Raises TopicDamaged."""
    row = store.get(Table.MESSAGE, prefix + row_id)
    try:
        return None if row is None else decode_row(row_id, row)
    except RowDamaged as damage:
        raise TopicDamaged(str(damage)) from damage


def earliest_offset(store: Store, prefix: bytes) -> int:
    """Offset at which the log begins: 0, or what retention left. Raises TopicDamaged."""
    data = store.get(Table.TRIM, prefix)
    try:
        return 0 if data is None else decode_record(TrimRow, data).earliest_offset
    except RowDamaged as damage:
        raise TopicDamaged(str(damage)) from damage


def find_offset(store: Store, prefix: bytes, offset: int) -> bytes | None:
    """Row id of the first row at or above ``offset``, None if there is none.

    By bisection over the ids, which rise as the offsets do: about 30 seeks and no index that could be wrong.
    """
    last = row_before(store, prefix, AFTER_ANY)
    with closing(store.scan(Table.MESSAGE, prefix, prefix + AFTER_ANY)) as rows:
        first = next(rows, None)
    if last is None or first is None or _offset_checked(*last) < offset:
        return None
    low, high = int.from_bytes(first[0][len(prefix) :], "big"), int.from_bytes(last[0], "big")
    while low < high:  # the row wanted is the first one at or after some key in [low, high]
        middle = (low + high) // 2
        with closing(store.scan(Table.MESSAGE, prefix + middle.to_bytes(ROW_ID_SIZE, "big"), prefix + AFTER_ANY)) as rows:
            key, row = next(rows, (b"", b""))
        row_id = key[len(prefix) :]
        if not row_id or _offset_checked(row_id, row) >= offset:
            high = middle
        else:
            low = int.from_bytes(row_id, "big") + 1
    with closing(store.scan(Table.MESSAGE, prefix + low.to_bytes(ROW_ID_SIZE, "big"), prefix + AFTER_ANY)) as rows:
        found = next(rows, None)
    return None if found is None else found[0][len(prefix) :]


def _offset_checked(row_id: bytes, row: bytes) -> int:
    if not intact(row):
        raise _damaged(row_id)
    return offset_of(row)


def read_page(store: Store, prefix: bytes, start: bytes, bounds: Bounds, encode: Encode) -> Page:
    """The deliverable messages from the key ``start`` on, read from the store. Raises TopicDamaged."""
    with closing(rows_from(store, prefix, start)) as rows:
        return collect(rows, bounds, encode)


def expired_row_ids(store: Store, prefix: bytes, live_from: int, now_ms: int, limit: int) -> list[bytes]:
    """Row ids of the oldest messages, in order, as long as they are expired; at most ``limit``.

    Messages behind one that still lives stay: offsets are dense, so only the beginning of a log can go. Raises TopicDamaged.
    """
    row_ids: list[bytes] = []
    with closing(rows_from(store, prefix, FIRST_ROW_ID)) as rows:
        for row_id, row in rows:
            if len(row_ids) == limit or not expired(row_id, row, live_from, now_ms):
                break
            row_ids.append(row_id)
    return row_ids
