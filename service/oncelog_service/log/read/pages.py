"""What one poll answers: rows → visible to its transaction → payloads joined in → within its limits.

A place in a topic is a message id (20 bytes), or one with a zero byte behind it: after that message. The first 10 bytes are the
row's, the others lead into a stored group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from enum import Enum, auto
from itertools import islice, takewhile
from typing import NamedTuple

from oncelog.wire.transaction import Transaction
from oncelog_service.log.judgements import Judgements, judged_at
from oncelog_service.log.scan import Stored, rows_from, stored_in
from oncelog_service.storage.fields import GROUP, TTL, T
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, ROW_ID_SIZE, split_row_id
from oncelog_service.storage.payload_rows import payload_ttl_of, stored_message_of, tms_stored_message_of
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import WRITE_POINTER, message_of, offset_of, tms_message_of, ttl_of, write_pointer_of

_LAST_PAYLOAD_ID = b"\xff" * 10
_NO_HEAD = b"\xff"
"""Begins no row. What begins a row – its flags, where its payload is, its write pointer – is that of its neighbours mostly, and
looked at only where it differs: a transactional poll over committed messages costs what a plain one does."""


class Encoding(NamedTuple):
    """How messages become bytes of the answer."""

    row: Callable[[bytes], bytes]
    """From a row that holds its payload."""
    stored: Callable[[bytes, int, bytes], bytes]
    """From row id, offset and payload row of a message in a stored group."""
    max_messages: int | None = None
    """Of a page; None: as many as the settings allow."""
    max_bytes: int | None = None
    """Bytes of a page; None: as many as the settings allow."""
    note: Callable[[bytes, int], None] | None = None
    """Called with a row that stands for a group, and how many messages of it are answered."""


AS_ONCELOG = Encoding(message_of, stored_message_of)
AS_JSON = Encoding(message_of, stored_message_of, 2_000, 2**20)
"""As the other, to be turned into JSON: a parser and a printer that give nobody a turn, so 10 ms of them at a time."""
AS_TMS = Encoding(tms_message_of, tms_stored_message_of)


def noting_pointers(encoding: Encoding, pointers: list[tuple[int, int] | None]) -> Encoding:
    """Encode as ``encoding`` does, and note the write pointer and the offset of each message's row, None for one without.

    The pointer is negative once the row is rolled back.
    """

    def of(row: bytes) -> tuple[int, int] | None:
        return (write_pointer_of(row), offset_of(row)) if row[1] & T else None

    def one(row: bytes) -> bytes:
        pointers.append(of(row))
        return encoding.row(row)

    def group(row: bytes, messages: int) -> None:
        pointers.extend([of(row)] * messages)

    return encoding._replace(row=one, note=group)


SETTLED = Transaction(transaction_id=0, read_pointer=2**63 - 1)
"""What sees everything that is not rolled back. Of the stable part of a log, that is what is committed."""


class Lives(NamedTuple):
    """How long the messages of a page live, as it was when the page was made."""

    now_ms: int
    ttl_ms: int
    """Of the topic."""


class Page(NamedTuple):
    """What one poll found."""

    messages: list[bytes]
    """Encoded, ready to be joined into an answer."""
    last_id: bytes | None
    """Id of the last message looked at, delivered or not; None when there was none."""
    expired_at: int = 0
    """The latest millisecond at which the ttl of a message ended that was passed over for its own ttl; 0: none was."""
    upcoming: int | None = None
    """Where nothing was looked at, since the page begins behind the last message: the offset of the next one."""
    lives: Lives | None = None
    undecided: bool = False
    """It ended before a message whose transaction the reader's transaction takes for undecided: waiting would not help."""
    more: bool = False
    """It ended because it has looked at as many rows as it may. There is more behind ``last_id``, perhaps nothing that lives."""
    room: int = 0
    """Bytes that are left of its bound where there is more."""


class Bounds(NamedTuple):
    """What a page may hold."""

    limit: int
    """Messages delivered, never rows looked at."""
    max_bytes: int
    """A page ends after the message that reaches this; it always holds one."""
    now_ms: int
    rows: int = 2**62
    """Looked at, delivered or not: 2 at the least, or paging would not go on."""
    judgements: Judgements = ()


class Sight(Enum):
    """What a transaction makes of a message."""

    SEEN = auto()
    PASSED = auto()
    """Rolled back or invalid: as if it were not there."""
    UNDECIDED = auto()


def sight(transaction: Transaction, pointer: int) -> Sight:
    """What ``transaction`` makes of a message under ``pointer``: Tephra's visibility, and the TMS page's stop."""
    if pointer < 0:
        return Sight.PASSED
    if pointer in transaction.own:
        return Sight.SEEN
    if pointer in transaction.excluded:
        return Sight.PASSED
    if pointer > transaction.read_pointer or pointer in transaction.undecided:
        return Sight.UNDECIDED
    return Sight.SEEN


def read_page(
    store: Store,
    prefix: bytes,
    start: bytes,
    bounds: Bounds,
    encoding: Encoding,
    transaction: Transaction | None,
    last_row: bytes | None = None,
) -> Page:
    """The deliverable messages from the place ``start`` on, read from the store. Raises TopicDamaged.

    ``last_row``: id of the last row that counts, None for all.
    """
    with closing(rows_from(store, prefix, start[:ROW_ID_SIZE])) as rows:
        upto = through(rows, last_row)
        return collect(upto, start, bounds, encoding, transaction, lambda row, within: stored_in(store, prefix, row, within))


def through(rows: Iterable[tuple[bytes, bytes]], last_row: bytes | None) -> Iterable[tuple[bytes, bytes]]:
    """The rows up to the one with this id, or all."""
    return rows if last_row is None else takewhile(lambda each: each[0] <= last_row, rows)


def collect(
    rows: Iterable[tuple[bytes, bytes]],
    start: bytes,
    bounds: Bounds,
    encoding: Encoding,
    transaction: Transaction | None = None,
    stored: Callable[[bytes, bytes], Iterator[Stored]] | None = None,
) -> Page:
    """The deliverable messages among ``rows``, from ``start`` on; the rows are checked and younger than the topic's TTL.

    ``stored`` joins in the payloads of a group from a payload id on; without it there may be none.
    """
    messages: list[bytes] = []
    limit, room, now_ms, judgements = bounds.limit, bounds.max_bytes, bounds.now_ms, bounds.judgements
    expired_at = 0
    encode = encoding.row
    last: bytes | None = None
    pointer, seen = b"", Sight.SEEN
    first, within = start[:ROW_ID_SIZE], start[ROW_ID_SIZE:]
    known = _NO_HEAD
    rows = iter(rows)
    for row_id, row in islice(rows, bounds.rows):
        if not row.startswith(known):
            flags = row[1]
            if row_id == first and within > (_LAST_PAYLOAD_ID if flags & GROUP else FIRST_PAYLOAD_ID):
                continue  # the one to start after; a position that was given is not answered again, or paging would not end
            if transaction is not None and flags & T:
                if row[WRITE_POINTER] != pointer:
                    pointer = row[WRITE_POINTER]
                    seen = sight(transaction, write_pointer_of(row))
                if seen is Sight.UNDECIDED:
                    return Page(messages, _completed(last), expired_at, undecided=True)
                if seen is Sight.PASSED:
                    last = row_id + _LAST_PAYLOAD_ID
                    continue
            if flags & GROUP:
                assert stored is not None
                judged_ms = judged_at(judgements, row_id, now_ms)
                group = Bounds(limit - len(messages), room, judged_ms, bounds.rows)
                found, last, room, more, expired = _collect_stored(
                    row_id, stored(row, within if row_id == first else b""), group, encoding
                )
                messages += found
                expired_at = max(expired_at, expired)
                if encoding.note is not None:
                    encoding.note(row, len(found))
                if more:
                    return Page(messages, last, expired_at, more=True, room=room)
                if len(messages) >= limit or room <= 0:
                    break
                last = row_id + _LAST_PAYLOAD_ID
                continue
            if flags & TTL:
                end = split_row_id(row_id)[0] + ttl_of(row) * 1000
                if end <= judged_at(judgements, row_id, now_ms):
                    last, expired_at = row_id, max(expired_at, end)
                    continue
            else:
                known = row[: WRITE_POINTER.stop if flags & T else WRITE_POINTER.start]
        last = row_id
        messages.append(encode(row))
        room -= len(row)
        if len(messages) >= limit or room <= 0:
            break
    else:
        more = next(rows, None) is not None
        return Page(messages, _completed(last), expired_at, more=more, room=room if more else 0)
    return Page(messages, _completed(last), expired_at)


def _collect_stored(
    row_id: bytes, stored: Iterator[Stored], bounds: Bounds, encoding: Encoding
) -> tuple[list[bytes], bytes | None, int, bool, int]:
    """Messages of one group, the id of the last one looked at, the room that is left, whether it ended at the rows' bound, and
    when a ttl ended at the latest."""
    messages: list[bytes] = []
    expired_at = 0
    room, last = bounds.max_bytes, None
    timestamp, _ = split_row_id(row_id)
    for payload_id, offset, row in islice(stored, bounds.rows):
        last = row_id + payload_id
        if row[1] & TTL and (end := timestamp + payload_ttl_of(row) * 1000) <= bounds.now_ms:
            expired_at = max(expired_at, end)
            continue
        messages.append(encoding.stored(row_id, offset, row))
        room -= len(row)
        if len(messages) >= bounds.limit or room <= 0:
            break
    else:
        return messages, last, room, next(stored, None) is not None, expired_at
    return messages, last, room, False, expired_at


def _completed(last: bytes | None) -> bytes | None:
    """A message id from one, or from the id of a row that holds its payload."""
    return last + FIRST_PAYLOAD_ID if last is not None and len(last) == ROW_ID_SIZE else last
