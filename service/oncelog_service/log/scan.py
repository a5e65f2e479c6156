"""Reading a log's rows from the store: checked, dense, in order. Nothing is skipped that should be there.

Every row's checksum is verified and its offset must follow on the row before it; the first row of a page is held against the row
before *it*. A hole is an error, never a shorter answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple, ParamSpec, TypeVar

from oncelog.errors import TopicDamaged
from oncelog.wire.avro_parts import decode_long, encode_long_run
from oncelog_service.storage.fields import GROUP, TTL, intact
from oncelog_service.storage.keys import AFTER_ANY, FIRST_PAYLOAD_ID, FIRST_ROW_ID, ROW_ID_SIZE, pointer_key, split_row_id
from oncelog_service.storage.payload_rows import payload_id_of, payload_index_of
from oncelog_service.storage.port import RowDamaged, Rows, Store, Table
from oncelog_service.storage.records import TrimRow, decode_record
from oncelog_service.storage.rows import (
    MESSAGE_AT,
    Row,
    decode_row,
    message_id_of,
    messages_of,
    offset_of,
    payloads_under,
    ttl_of,
)

P = ParamSpec("P")
R = TypeVar("R")

OFFSET_AT = 21
"""Where the offset lies in a message: behind its id."""
_RUN = 256


def read_back(decode: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What ``decode`` makes of a row or a record. Raises TopicDamaged for one that cannot be read."""
    try:
        return decode(*args, **kwargs)
    except RowDamaged as damage:
        raise TopicDamaged(str(damage)) from damage


def after(row_id: bytes) -> bytes:
    """The key that begins a scan of rows after ``row_id``; of messages, one after the message id ``row_id``."""
    return row_id + b"\x00"


def following(row_id: bytes) -> bytes:
    """The least key behind all messages of the row."""
    return (int.from_bytes(row_id, "big") + 1).to_bytes(ROW_ID_SIZE, "big")


def checked(rows: Iterable[tuple[bytes, bytes]], prefix: bytes, first_offset: int) -> Iterator[tuple[bytes, bytes]]:
    """(row id, row) of consecutive rows of the store, each held against its checksum and against ``first_offset``, +1, +2, …

    Raises:
        TopicDamaged: a row is damaged or missing.
    """
    cut = len(prefix)
    rows = iter(rows)
    while True:
        for (key, row), offset in zip(rows, _offsets(first_offset), strict=False):
            row_id = key[cut:]
            if not intact(row):
                raise _damaged(row_id)
            at = MESSAGE_AT[row[1]]
            if not row.startswith(offset, at + OFFSET_AT):
                expected, _ = decode_long(offset, 0)
                raise TopicDamaged(f"offset {expected} is missing: offset {offset_of(row)} follows on the one before it")
            if not row.startswith(row_id, at + 1):
                raise TopicDamaged(f"the row at {row_id.hex()} belongs somewhere else")
            yield row_id, row
            if row[1] & GROUP:  # it takes as many offsets as it holds messages: count on from behind it
                first_offset = end_of(row)
                break
        else:
            return


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
    offset, found = unchecked_from(store, prefix, start)
    with closing(found):
        yield from checked(found, prefix, offset)


def unchecked_from(store: Store, prefix: bytes, start: bytes) -> tuple[int, Rows]:
    """The offset that the first row must have, and (key, row) of the log from the key ``start`` on, still to be checked.

    The caller closes the rows: a scan that is left open would hold up the closing of the store.

    Raises:
        TopicDamaged: the row before the first is damaged or missing.
    """
    while True:
        before = None if start == FIRST_ROW_ID else row_before(store, prefix, start)
        if before is None:
            begin, earliest = start, earliest_offset(store, prefix)
        else:
            begin, earliest = before[0], 0
        with ExitStack() as scan:
            found = scan.enter_context(closing(store.scan(Table.MESSAGE, prefix + begin, prefix + AFTER_ANY)))
            first = next(found, None)
            if before is not None:
                # One row more than asked for: it says which offset the first one of the page must have.
                if first is None or first[0][len(prefix) :] != begin:
                    continue  # retention removed it between the two reads: look again
                if not intact(first[1]):
                    raise _damaged(begin)
                scan.pop_all()
                return end_of(first[1]), found
            if first is None:
                return earliest, found
            if intact(first[1]) and offset_of(first[1]) != earliest and earliest_offset(store, prefix) != earliest:
                continue
            scan.pop_all()
            return earliest, _all_of(first, found)


def _all_of(first: tuple[bytes, bytes], rest: Rows) -> Rows:
    with closing(rest):
        yield first
        yield from rest


def row_before(store: Store, prefix: bytes, start: bytes) -> tuple[bytes, bytes] | None:
    """(row id, row) of the last row before the key ``start``, unchecked; None if the log has none."""
    with closing(store.scan(Table.MESSAGE, prefix, prefix + start, reverse=True)) as rows:
        for key, row in rows:
            return key[len(prefix) :], row
    return None


def row_at(store: Store, prefix: bytes, row_id: bytes) -> Row | None:
    """The row with this id, decoded; None if there is none (any more). Raises TopicDamaged."""
    row = store.get(Table.MESSAGE, prefix + row_id)
    return None if row is None else read_back(decode_row, row_id, row)


def earliest_offset(store: Store, prefix: bytes) -> int:
    """Offset at which the log begins: 0, or what retention left. Raises TopicDamaged."""
    return trim_of(store, prefix).earliest_offset


def trim_of(store: Store, prefix: bytes) -> TrimRow:
    """What retention has deleted. Raises TopicDamaged."""
    data = store.get(Table.TRIM, prefix)
    return TrimRow(0) if data is None else read_back(decode_record, TrimRow, data)


def end_of(row: bytes) -> int:
    """The offset behind the row's last message."""
    return offset_of(row) + messages_of(row)


# --- stored groups ------------------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A message of a stored group."""

    payload_id: bytes
    offset: int
    row: bytes
    """Of the Payload Table."""


def stored_in(store: Store, prefix: bytes, row: bytes, within: bytes = b"") -> Generator[Stored]:
    """The messages of the group that ``row`` stands for, from the payload id ``within`` on, all checked; none any more where
    retention has deleted the group since the row was read.

    Raises:
        TopicDamaged: one is damaged or missing.
    """
    at = MESSAGE_AT[row[1]] + 1
    return _stored(store, prefix, row[at : at + ROW_ID_SIZE], payloads_under(row), messages_of(row), offset_of(row), within)


def stored_under(store: Store, prefix: bytes, row: Row) -> Generator[Stored]:
    """The messages of the group that a decoded row stands for, all checked. Raises as :func:`stored_in`."""
    return _stored(store, prefix, row.row_id, row.payloads_under, row.messages, row.offset, b"")


def is_trimmed(store: Store, prefix: bytes, row_id: bytes) -> bool:
    """Whether a row that was read is not there any more: then its payloads, which go after it, may be missing."""
    return store.get(Table.MESSAGE, prefix + row_id) is None


def _stored(
    store: Store, prefix: bytes, row_id: bytes, under: int, total: int, first_offset: int, within: bytes
) -> Generator[Stored]:
    try:
        yield from _whole(store, prefix, under, total, first_offset, within)
    except TopicDamaged:
        if not is_trimmed(store, prefix, row_id):
            raise


def _whole(store: Store, prefix: bytes, under: int, total: int, first_offset: int, within: bytes) -> Generator[Stored]:
    index, payloads = _unchecked_stored(store, prefix, under, within)
    with closing(payloads):
        for payload_id, payload in payloads:
            if not intact(payload) or payload_id_of(payload) != payload_id or payload_index_of(payload) != index:
                raise _payload_damaged(index, under)
            yield Stored(payload_id, first_offset + index, payload)
            index += 1
    if index != total:
        raise TopicDamaged(f"{total} payloads were stored under {_named(under)}, {index} are there")


def unchecked_stored(store: Store, prefix: bytes, row: bytes, within: bytes = b"") -> tuple[int, Rows]:
    """The index that the first payload must have, and (payload id, payload) of the group from ``within`` on, to be checked.

    Raises:
        TopicDamaged: the payload before the first is damaged.
    """
    return _unchecked_stored(store, prefix, payloads_under(row), within)


def _unchecked_stored(store: Store, prefix: bytes, under: int, within: bytes) -> tuple[int, Rows]:
    base = pointer_key(prefix, under)
    index = 0
    if within.strip(b"\x00"):
        before = _last_payload(store, base, base + within)
        index = 0 if before is None else payload_index_of(before) + 1
    return index, _payloads(store, base, within)


def _payloads(store: Store, base: bytes, within: bytes) -> Rows:
    cut = len(base)
    with closing(store.scan(Table.PAYLOAD, base + within, base + AFTER_ANY)) as payloads:
        for key, payload in payloads:
            yield key[cut:], payload


def damaged_payload(index: int, row: bytes) -> TopicDamaged:
    """What is raised for the payload at ``index`` of the group that ``row`` stands for."""
    return _payload_damaged(index, payloads_under(row))


def _payload_damaged(index: int, under: int) -> TopicDamaged:
    return TopicDamaged(f"the payload {index} stored under {_named(under)} is damaged or missing")


def _named(under: int) -> str:
    return f"write pointer {under}" if under > 0 else f"branch {-under}"


def last_payload(store: Store, prefix: bytes, pointer: int) -> bytes | None:
    """The last row stored under a write pointer, checked; None if there is none. Raises TopicDamaged."""
    base = pointer_key(prefix, pointer)
    return _last_payload(store, base, base + AFTER_ANY)


def _last_payload(store: Store, base: bytes, stop: bytes) -> bytes | None:
    with closing(store.scan(Table.PAYLOAD, base, stop, reverse=True)) as payloads:
        for _, payload in payloads:
            if not intact(payload):
                raise TopicDamaged(f"the payload at {payload_id_of(payload).hex()} does not match its checksum")
            return payload
    return None


# --- by offset ----------------------------------------------------------------------------------------------------------


def find_offset(store: Store, prefix: bytes, offset: int) -> bytes | None:
    """The key of the first message at or above ``offset``: a row id, or in a stored group a message id. None if there is none.

    By bisection over the ids, which rise as the offsets do: about 30 seeks and no index that could be wrong.
    """
    found = _first_where(store, Table.MESSAGE, prefix, lambda row: end_of(row) > offset)
    if found is None:
        return None
    row_id, row = found
    index = offset - offset_of(row)
    if not row[1] & GROUP or index <= 0:
        return row_id
    base = pointer_key(prefix, payloads_under(row))
    payload = _first_where(store, Table.PAYLOAD, base, lambda payload: payload_index_of(payload) >= index)
    if payload is None and is_trimmed(store, prefix, row_id):
        return find_offset(store, prefix, offset)
    if payload is None:
        raise TopicDamaged(f"payload {index} of the group at {row_id.hex()} is missing")
    return row_id + payload[0]


def offset_behind(store: Store, prefix: bytes, message_id: bytes) -> tuple[int, bool]:
    """The offset behind all messages up to this id, and whether there is a message with it. Raises TopicDamaged.

    Of an id that sorts before all that is there: the offset at which the log begins.
    """
    row_id, within = message_id[:ROW_ID_SIZE], message_id[ROW_ID_SIZE:]
    found = row_before(store, prefix, following(row_id))
    if found is None:
        return earliest_offset(store, prefix), False
    at, row = found
    if not intact(row):
        raise _damaged(at)
    if at != row_id or not row[1] & GROUP:
        return end_of(row), at == row_id and within == FIRST_PAYLOAD_ID
    base = pointer_key(prefix, payloads_under(row))
    payload = _last_payload(store, base, base + after(within))
    if payload is None:
        return offset_of(row), False
    return offset_of(row) + payload_index_of(payload) + 1, payload_id_of(payload) == within


def _first_where(store: Store, table: Table, prefix: bytes, holds: Callable[[bytes], bool]) -> tuple[bytes, bytes] | None:
    """(the end of the key, row) of the first row for which ``holds``, as it does for all behind it; None if there is none."""
    with closing(store.scan(table, prefix, prefix + AFTER_ANY, reverse=True)) as rows:
        last = next(rows, None)
    with closing(store.scan(table, prefix, prefix + AFTER_ANY)) as rows:
        first = next(rows, None)
    if last is None or first is None or not _holds(holds, prefix, last):
        return None
    low, high = int.from_bytes(first[0][len(prefix) :], "big"), int.from_bytes(last[0][len(prefix) :], "big")
    while low < high:  # the row wanted is the first one at or after some key in [low, high]
        middle = (low + high) // 2
        found = _row_from(store, table, prefix, middle)
        if found is None or _holds(holds, prefix, found):
            high = middle
        else:
            low = int.from_bytes(found[0][len(prefix) :], "big") + 1
    found = _row_from(store, table, prefix, low)
    return None if found is None else (found[0][len(prefix) :], found[1])


def _row_from(store: Store, table: Table, prefix: bytes, number: int) -> tuple[bytes, bytes] | None:
    with closing(store.scan(table, prefix + number.to_bytes(ROW_ID_SIZE, "big"), prefix + AFTER_ANY)) as rows:
        return next(rows, None)


def _holds(holds: Callable[[bytes], bool], prefix: bytes, found: tuple[bytes, bytes]) -> bool:
    if not intact(found[1]):
        raise _damaged(found[0][len(prefix) :])
    return holds(found[1])


# --- what has expired ---------------------------------------------------------------------------------------------------


class Expired(NamedTuple):
    """A row that retention may delete."""

    row_id: bytes
    end: int
    """The offset behind it."""
    last_id: bytes
    """Id of the last message in it."""


def expired(row_id: bytes, row: bytes, live_from: int, now_ms: int) -> bool:
    """Whether the message may not be delivered any more: it is older than its topic allows, or than it does itself.

    A stored group has no time of its own: it lives and dies as a whole.
    """
    timestamp, _ = split_row_id(row_id)
    return timestamp < live_from or bool(row[1] & TTL and timestamp + ttl_of(row) * 1000 <= now_ms)


def expired_rows(store: Store, prefix: bytes, live_from: int, now_ms: int, limit: int) -> list[Expired]:
    """The oldest rows, in order, as long as they are expired; at most ``limit``.

    Messages behind one that still lives stay: offsets are dense, so only the beginning of a log can go. Raises TopicDamaged.
    """
    found: list[Expired] = []
    with closing(rows_from(store, prefix, FIRST_ROW_ID)) as rows:
        for row_id, row in rows:
            if len(found) == limit or not expired(row_id, row, live_from, now_ms):
                break
            found.append(Expired(row_id, end_of(row), _last_id(row_id, row)))
    return found


def _last_id(row_id: bytes, row: bytes) -> bytes:
    group = decode_row(row_id, row).group if row[1] & GROUP else None
    return message_id_of(row_id) if group is None else row_id + group.last_payload_id
