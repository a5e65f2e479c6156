"""Where every log in a SQL database ends: a row for each, so that a scan that ends early is noticed.

A database finds rows through an index whose pages have no checksums (SQLite) or need not have (PostgreSQL): one flipped bit
in one and a scan ends before the last row, without a word. So the key of the newest row of each log is kept in a row of its
own, written in the same transaction::

    key     01 · the table's byte · what begins every key of the log
    value   the rest of the newest row's key · checksum of both

The middle of a log needs none: its rows count on by themselves (offsets, places, positions, numbers of edits).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.keys import PAYLOAD_ID_SIZE, ROW_ID_SIZE, generation_of
from oncelog_service.storage.port import StoreDamaged, Table

TAIL = {
    Table.MESSAGE.value: ROW_ID_SIZE,
    Table.PAYLOAD.value: PAYLOAD_ID_SIZE,
    Table.JOURNAL.value: 8,
    Table.TRANSACTION_EDIT.value: 8,
    Table.CHUNK.value: 4,
}
"""The tables that hold logs, and how many bytes of a key count within one."""
_LOG_SIZE = {Table.JOURNAL.value: 3, Table.TRANSACTION_EDIT.value: 1}
_PREFIX = b"\x01"


def log_of(key: bytes) -> bytes | None:
    """Returns what begins every key of the log that a row is of, the table's byte included; None: it is of none."""
    tail = TAIL.get(key[:1])
    return None if tail is None or len(key) <= tail else key[:-tail]


def newest_of(keys: Iterable[bytes]) -> dict[bytes, bytes]:
    """Maps each log to its last key among these."""
    newest: dict[bytes, bytes] = {}
    for key in keys:
        log = log_of(key)
        if log is not None and newest.get(log, b"") < key:
            newest[log] = key
    return newest


def end_key(log: bytes) -> bytes:
    """Returns the key of the row that says where a log ends."""
    return _PREFIX + log


def encode_end(log: bytes, key: bytes) -> bytes:
    """Encodes its value, which sorts as the ends of one log do."""
    return with_checksum(key[len(log) :], _PREFIX + log)


def decode_end(row_key: bytes, data: bytes) -> bytes:
    """Decodes it to the key of the log's last row. Raises StoreDamaged."""
    log = row_key[len(_PREFIX) :]
    if not matches(data, row_key):
        raise StoreDamaged(f"the row that says where {log!r} ends is damaged")
    return log + data[:-SIZE]


def log_of_range(start: bytes, stop: bytes) -> bytes | None:
    """Returns the one log that holds all rows with start <= key < stop; None: several may. Keys have the table's byte."""
    table = start[:1]
    if table not in TAIL:
        return None
    try:
        size = _LOG_SIZE[table] if table in _LOG_SIZE else 1 + len(generation_of(start[1:]))
    except ValueError:
        return None
    if table in (Table.PAYLOAD.value, Table.CHUNK.value):
        size += 8
    return start[:size] if len(start) >= size and stop.startswith(start[:size]) else None


def ends_between(start: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
    """Returns the range of end rows of all logs that may have a row with start <= key < stop; None: the table has no logs."""
    tail = TAIL.get(start[:1])
    if tail is None:
        return None
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(start, stop, strict=False)))
    return _PREFIX + start[: max(1, shared - tail)], _PREFIX + stop
