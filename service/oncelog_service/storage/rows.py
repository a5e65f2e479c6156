"""Rows of the Message Table.

A row of the Message Table, version 1, big-endian::

    offset  size  field
    0       1     version = 1
    1       1     flags: 1 T, 2 PREVIOUS, 4 TTL, 8 GROUP
    2       4     payload_at u32: from the beginning of the message to its payload
    6       8     only with T: write pointer of the transaction, i64; negative once rolled back
    ..      10    only with PREVIOUS: row id of the same producer's message before this request; zeros when there is none
    ..      ...   the message exactly as a poll answers it: the Avro record `oncelog.v1.Message`
    end-4   4     CRC-32 of everything before it, little-endian

* The message is encoded once, when it is published, and its bytes are reused by cache and poll.
* The checksum is the row's own: deduplication makes a hole permanent, so one must never go unnoticed. Stored little-endian
  behind its own bytes, the CRC of the whole row is one constant, so that checking needs no slice.
* PREVIOUS stands on the first row of each request of a named producer: with it the requests of a producer form a chain from
  the newest to the oldest, which finds the original of a repeated message without an index row per message. It stands on the
  first row of each transactional request too, named or not, so that requests can be told apart when one is rolled back.
* TTL says that the message has a time to live of its own.
* GROUP: the row stands for all messages that were stored in the Payload Table under its write pointer (what the TMS page calls a
  row without `p`). Its offset is that of the first; what takes the place of the payload is the group's summary::

    0       4     count u32: how many messages, each with an offset of its own; 0 for an empty group
    4       10    payload id of the last message; zeros for an empty group
    14      4     number of named producers u32
    18      ...   per producer: name length u16, name UTF-8, first sequence id i64, last sequence id i64, payload id of the
                  last 10, its index u32, row id of the producer's message before the group 10 (zeros for none)

  GROUP without T: the messages were staged under a branch of an atomic commit and are committed; before the count stands
  the number of the branch, i64.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from oncelog.wire.avro_parts import decode_long, encode_length, encode_long_run
from oncelog_service.storage.checksum import with_checksum
from oncelog_service.storage.fields import (
    GROUP,
    ID_LENGTH,
    PREVIOUS,
    TTL,
    VERSION,
    Columns,
    T,
    decode_key,
    decode_named,
    decode_ttl,
    encode_named,
    encode_rest,
    intact,
    skip_named,
)
from oncelog_service.storage.keys import FIRST_ROW_ID, ROW_ID_SIZE
from oncelog_service.storage.port import RowDamaged

_HEAD = struct.Struct(">BBI")
_POINTER = struct.Struct(">q")
_NO_PAYLOAD_ID = bytes(10)
_ID_AND_LENGTH = 21

WRITE_POINTER = slice(_HEAD.size, _HEAD.size + _POINTER.size)
"""The bytes of the write pointer in a row with the flag T."""
MESSAGE_AT = [_HEAD.size + (_POINTER.size if flags & T else 0) + (ROW_ID_SIZE if flags & PREVIOUS else 0) for flags in range(16)]
"""Where the message begins, by the row's flags."""


class GroupProducer(NamedTuple):
    """Says of a named producer what it has in a stored group."""

    name: str
    first_sequence_id: int
    last_sequence_id: int
    last_payload_id: bytes
    last_index: int
    previous: bytes
    """Row id of the producer's message before the group; zeros when there is none."""


class GroupSummary(NamedTuple):
    """Stands in the row of a stored group, for its messages in the Payload Table."""

    messages: int
    last_payload_id: bytes
    producers: tuple[GroupProducer, ...]
    branch: int | None = None
    """Number of the branch of an atomic commit; None: it was stored under a write pointer."""


FILLER_TTL = 0
"""Of a row that a salvage puts where a message was, in seconds: it is over when it is written (log/keep/losses.py)."""


class Row(NamedTuple):
    """A decoded row of the Message Table."""

    row_id: bytes
    offset: int
    producer: str | None
    sequence_id: int | None
    ttl: int | None
    """Seconds, or None when only the topic's applies."""
    payload: bytes
    write_pointer: int | None
    """Negative once rolled back."""
    previous: bytes | None
    """Row id that the PREVIOUS field names, zeros for none; None on rows that do not begin a named or transactional request."""
    group: GroupSummary | None = None
    """Of a row that stands for a stored group."""
    key: bytes | None = None

    @property
    def message_id(self) -> bytes:
        """Returns the 20 bytes of the message's id; of a group: its row's."""
        return self.row_id + _NO_PAYLOAD_ID

    @property
    def fills_a_hole(self) -> bool:
        """Tells whether it stands where a salvage found no message. No publish takes a ttl of 0."""
        return self.ttl == FILLER_TTL

    @property
    def messages(self) -> int:
        """Counts the messages, and offsets, that the row stands for."""
        return 1 if self.group is None else self.group.messages

    @property
    def payloads_under(self) -> int:
        """Returns what precedes the payload ids in the keys of a group's payloads."""
        branch = None if self.group is None else self.group.branch
        return abs(self.write_pointer or 0) if branch is None else -branch


def message_id_of(row_id: bytes) -> bytes:
    """Returns the message id of a message whose payload lies in its row."""
    return row_id + _NO_PAYLOAD_ID


_heads: dict[int, bytes] = {}


def _head(flags: int, payload_at: int) -> bytes:
    """Encodes the fixed fields up to the id of the message; nearly all rows of a topic share a handful of them."""
    key = flags << 32 | payload_at
    head = _heads.get(key)
    if head is None:
        head = _HEAD.pack(VERSION, flags, payload_at) + ID_LENGTH
        if len(_heads) < 4096:
            _heads[key] = head
    return head


def _transactional_heads(write_pointer: int) -> tuple[dict[int, bytes], Callable[[int, int], bytes]]:
    """Returns the heads made so far for rows of one transaction, and a function that makes another."""
    pointer = _POINTER.pack(write_pointer) + ID_LENGTH
    heads: dict[int, bytes] = {}

    def head(flags: int, payload_at: int) -> bytes:
        made = heads[flags << 32 | payload_at] = _HEAD.pack(VERSION, flags | T, payload_at) + pointer
        return made

    return heads, head


def encode_rows(columns: Columns, row_ids: Sequence[bytes], first_offset: int) -> list[bytes]:
    """Encodes a row for each message; ``row_ids`` and dense offsets from ``first_offset`` are in the same order.

    The hot path: per message one join, one checksum, nothing else.
    """
    payloads = columns.payloads
    named, sequence_ids = encode_named(columns)
    offsets = encode_long_run(first_offset, len(payloads))
    tails, flags = encode_rest(columns)
    around = _ID_AND_LENGTH + len(named)
    rows: list[bytes] = []
    append, join = rows.append, b"".join
    heads: Mapping[int, bytes]
    head: Callable[[int, int], bytes]
    if columns.write_pointer is None:
        heads, head = _heads, _head
    else:
        heads, head = _transactional_heads(columns.write_pointer)
    of_chain = columns.producer is not None or columns.write_pointer is not None
    previous = columns.previous or FIRST_ROW_ID if of_chain else b""
    for row_id, offset, sequence_id, tail, flag, payload in zip(
        row_ids, offsets, sequence_ids, tails, flags, payloads, strict=False
    ):
        payload_at = around + len(offset) + len(sequence_id) + len(tail)
        begin = heads.get(flag << 32 | payload_at) or head(flag, payload_at)
        if previous:  # stands on the first row alone
            begin, previous = _with_previous(begin, previous), b""
        body = join(
            (
                begin,
                row_id,
                _NO_PAYLOAD_ID,
                offset,
                named,
                sequence_id,
                tail,
                encode_length(len(payload)),
                payload,
            )
        )
        append(with_checksum(body))
    return rows


def _with_previous(head: bytes, previous: bytes) -> bytes:
    version, flags, payload_at = _HEAD.unpack_from(head)
    return _HEAD.pack(version, flags | PREVIOUS, payload_at) + head[_HEAD.size : -len(ID_LENGTH)] + previous + ID_LENGTH


def rolled_back(row: bytes) -> bytes:
    """Makes the write pointer of a row negative; a row that has no positive one is a caller's bug."""
    (pointer,) = _POINTER.unpack_from(row, _HEAD.size)
    assert row[1] & T
    assert pointer > 0
    return with_checksum(row[: _HEAD.size] + _POINTER.pack(-pointer) + row[_HEAD.size + _POINTER.size : -4])


def write_pointer_of(row: bytes) -> int:
    """Reads the write pointer of a row with the flag T; negative once rolled back."""
    pointer: int = _POINTER.unpack_from(row, _HEAD.size)[0]
    return pointer


def decode_row(row_id: bytes, row: bytes) -> Row:
    """Decodes a row of the Message Table.

    Raises:
        RowDamaged: the checksum does not hold, the layout is unknown, or the row does not belong to this key.
    """
    if not intact(row):
        raise RowDamaged(f"the row at {row_id.hex()} does not match its checksum or is of an unknown version")
    flags = row[1]
    at = _HEAD.size
    write_pointer = None
    if flags & T:
        (write_pointer,) = _POINTER.unpack_from(row, at)
        at += _POINTER.size
    previous = row[at : at + ROW_ID_SIZE] if flags & PREVIOUS else None
    at = MESSAGE_AT[flags]
    (payload_at,) = struct.unpack_from(">I", row, 2)
    if row[at + 1 : at + 1 + ROW_ID_SIZE] != row_id:
        raise RowDamaged(f"the row at {row_id.hex()} says that it belongs at {row[at + 1 : at + 1 + ROW_ID_SIZE].hex()}")
    message_at, at = at, at + _ID_AND_LENGTH
    offset, at = decode_long(row, at)
    producer, sequence_id, at = decode_named(row, at)
    ttl = decode_ttl(row, at) if flags & TTL else None
    _, payload_begin = decode_long(row, message_at + payload_at)
    payload = row[payload_begin:-4]
    group = decode_summary(payload, flags) if flags & GROUP else None
    return Row(row_id, offset, producer, sequence_id, ttl, payload, write_pointer, previous, group, decode_key(row, at))


def ttl_of(row: bytes) -> int:
    """Reads the message's own ttl in seconds, of a row with the flag TTL."""
    _, at = decode_long(row, MESSAGE_AT[row[1]] + _ID_AND_LENGTH)
    return decode_ttl(row, skip_named(row, at))


def offset_of(row: bytes) -> int:
    """Reads the message's offset."""
    offset, _ = decode_long(row, MESSAGE_AT[row[1]] + _ID_AND_LENGTH)
    return offset


def message_of(row: bytes) -> bytes:
    """Cuts out the Avro bytes of the message as `oncelog.v1.Message`."""
    return row[MESSAGE_AT[row[1]] : -4]


def payload_of(row: bytes) -> bytes:
    """Cuts out the payload of a row that stands for one message."""
    at = MESSAGE_AT[row[1]] + int.from_bytes(row[2:6], "big")
    while row[at] & 0x80:  # over its length, which the row's own says again
        at += 1
    return row[at + 1 : -4]


def tms_message_of(row: bytes) -> bytes:
    """Joins the Avro bytes of the message as the TMS page's `Message`: id and payload."""
    at = MESSAGE_AT[row[1]]
    return row[at : at + _ID_AND_LENGTH] + row[at + int.from_bytes(row[2:6], "big") : -4]


def messages_of(row: bytes) -> int:
    """Counts the messages that a row stands for."""
    if not row[1] & GROUP:
        return 1
    at = _summary_at(row) + (0 if row[1] & T else _POINTER.size)
    return int.from_bytes(row[at : at + 4], "big")


def payloads_under(row: bytes) -> int:
    """Reads what precedes the payload ids in the keys of a group's payloads: its write pointer, or the key of its branch."""
    if row[1] & T:
        return abs(write_pointer_of(row))
    (branch,) = _POINTER.unpack_from(row, _summary_at(row))
    return -int(branch)


def _summary_at(row: bytes) -> int:
    return decode_long(row, MESSAGE_AT[row[1]] + int.from_bytes(row[2:6], "big"))[1]


# --- stored groups

_SUMMARY = struct.Struct(">I10sI")
_NAME = struct.Struct(">H")
_PART = struct.Struct(">qq10sI10s")


def encode_group_row(row_id: bytes, offset: int, write_pointer: int | None, summary: GroupSummary) -> bytes:
    """Encodes the row that makes a stored group appear; without a write pointer, the summary names a branch."""
    parts = [] if summary.branch is None else [_POINTER.pack(summary.branch)]
    parts.append(_SUMMARY.pack(summary.messages, summary.last_payload_id, len(summary.producers)))
    for each in summary.producers:
        name = each.name.encode()
        parts += (_NAME.pack(len(name)), name, _PART.pack(*each[1:]))
    columns = Columns([b"".join(parts)], write_pointer=write_pointer)
    (row,) = encode_rows(columns, [row_id], offset)
    version, flags, payload_at = _HEAD.unpack_from(row)
    return with_checksum(_HEAD.pack(version, flags | GROUP, payload_at) + row[_HEAD.size : -4])


def decode_summary(data: bytes, flags: int = T) -> GroupSummary:
    """Decodes the summary, which takes the place of the payload in a group's row with these flags."""
    branch, at = (None, 0) if flags & T else (_POINTER.unpack_from(data)[0], _POINTER.size)
    count, last_payload_id, producers = _SUMMARY.unpack_from(data, at)
    at += _SUMMARY.size
    parts = []
    for _ in range(producers):
        (length,) = _NAME.unpack_from(data, at)
        at += _NAME.size
        name = data[at : at + length].decode()
        at += length
        parts.append(GroupProducer(name, *_PART.unpack_from(data, at)))
        at += _PART.size
    return GroupSummary(count, last_payload_id, tuple(parts), branch)
