"""Every value on disk.

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

  GROUP without T: the messages were staged under a branch of a journaled transaction and are committed; before the count stands
  the number of the branch, i64.

A row of the Payload Table, version 1, big-endian::

    offset  size  field
    0       1     version = 1
    1       1     flags: 4 TTL
    2       4     payload_at u32: from the beginning of the row to the payload
    6       10    payload id: write timestamp i64 · payload seq_id u16, as in the key
    16      4     index u32: 0, 1, 2, … within the write pointer
    20      ...   the fields of `oncelog.v1.Message` behind its offset
    end-4   4     CRC-32 of everything before it, little-endian

The other tables hold JSON objects with a `version`, except SNAPSHOT (oncelog_dedup/snapshot.py draws it)::

    TOPIC      {"version": 1, "generation": int, "created": ms, "last_timestamp": ms, "expired_before": ms,
                "epoch_floor": int, "deleted": bool, "properties": {str: str}}
    NAMESPACE  {"version": 1, "policies": {"deduplication": bool | null}}
    PRODUCER   {"version": 1, "epoch": int | null, "opens": [[nonce, epoch], ...], "gaps": "allow" | "refuse",
                "forgotten_below": offset, "assigned_ms": ms | null}
    TRIM       {"version": 1, "earliest_offset": int, "last_id": hex | null}
    EXPIRY     {"version": 1, "judgements": [[ms, hex of a row id or more], ...]}
    GROUP      {"version": 1, "row_id": hex | null, "producer": str | null}
    CHUNK      {"version": 1, "first_place": int, "messages": int, "digest": hex, "producer": str | null, "epoch": int | null,
                "expected_offset": int | null, "expected_last_message_id": hex | null,
                "expected_key_offsets": {key: int | null} | null, "key_places": {key: int}}
    JOURNAL_META    {"version": 1, "partitions": int, "numbers": int, "begins": [int, ...]}
    SUBSCRIPTION    {"version": 1, "epoch": int, "opens": [[nonce, epoch], ...], "cursor": offset | null}
    GROUP_PRODUCER  {"version": 1, "sequence_id": int, "incarnation": str | null, "transaction": str, "messages": int,
                     "checksum": str | null}
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pydantic_core import to_json

from oncelog.wire.avro_parts import (
    NULL_BRANCH,
    VALUE_BRANCH,
    decode_long,
    encode_length,
    encode_long,
    encode_long_run,
    encode_longs,
    encode_string,
    encode_tails,
)
from oncelog_service.storage.checksum import all_match, matches, with_checksum
from oncelog_service.storage.keys import FIRST_ROW_ID, ROW_ID_SIZE

VERSION = 1
T, PREVIOUS, TTL, GROUP = 1, 2, 4, 8

_HEAD = struct.Struct(">BBI")
_POINTER = struct.Struct(">q")
_ID_LENGTH = encode_length(20)
_NO_PAYLOAD_ID = bytes(10)
_ID_AND_LENGTH = 21

WRITE_POINTER = slice(_HEAD.size, _HEAD.size + _POINTER.size)
"""The bytes of the write pointer in a row with the flag T."""
MESSAGE_AT = [_HEAD.size + (_POINTER.size if flags & T else 0) + (ROW_ID_SIZE if flags & PREVIOUS else 0) for flags in range(16)]
"""Where the message begins, by the row's flags."""


class RowDamaged(ValueError):
    """The bytes are not a row that this version wrote: cut, flipped, or of another layout."""


class GroupProducer(NamedTuple):
    """A named producer's part in a stored group."""

    name: str
    first_sequence_id: int
    last_sequence_id: int
    last_payload_id: bytes
    last_index: int
    previous: bytes
    """Row id of the producer's message before the group; zeros when there is none."""


class GroupSummary(NamedTuple):
    """What the row of a stored group says about the messages that lie in the Payload Table."""

    messages: int
    last_payload_id: bytes
    producers: tuple[GroupProducer, ...]
    branch: int | None = None
    """Number of the branch of a journaled transaction; None: it was stored under a write pointer."""


class Payload(NamedTuple):
    """A decoded row of the Payload Table."""

    payload_id: bytes
    place: int
    """0, 1, 2, … within the write pointer."""
    producer: str | None
    sequence_id: int | None
    ttl: int | None
    payload: bytes
    key: bytes | None = None


class Fields(NamedTuple):
    """What a message says beside its id, its offset and its payload."""

    producer: str | None
    sequence_id: int | None
    key: bytes | None
    properties: dict[str, str] | None
    ttl: int | None
    sequence_at: int
    """Where the sequence id itself begins; where there is none, where the key does."""
    key_at: int


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
        """The 20 bytes of the message's id; of a group: its row's."""
        return self.row_id + _NO_PAYLOAD_ID

    @property
    def fills_a_hole(self) -> bool:
        """Whether it stands where a salvage found no message. No publish takes a ttl of 0."""
        return self.ttl == FILLER_TTL

    @property
    def messages(self) -> int:
        """How many messages, and offsets, the row stands for."""
        return 1 if self.group is None else self.group.messages

    @property
    def payloads_under(self) -> int:
        """Of a group: what stands before its payloads' ids in their keys."""
        branch = None if self.group is None else self.group.branch
        return abs(self.write_pointer or 0) if branch is None else -branch


def message_id_of(row_id: bytes) -> bytes:
    """The message id of a message whose payload lies in its row."""
    return row_id + _NO_PAYLOAD_ID


@dataclass(slots=True)
class Columns:
    """Messages of one request that are about to become rows. A column that is None holds nothing for any of them."""

    payloads: Sequence[bytes]
    producer: str | None = None
    sequence_ids: Sequence[int] | None = None
    keys: Sequence[bytes | None] | None = None
    properties: Sequence[Mapping[str, str] | None] | None = None
    ttls: Sequence[int | None] | None = None
    previous: bytes | None = None
    """Row id of the producer's newest message before these, if it is a named producer that has one."""
    write_pointer: int | None = None
    tails: Sequence[bytes] | None = None
    """Keys, properties and ttls, if they are encoded already."""


_heads: dict[int, bytes] = {}


def _head(flags: int, payload_at: int) -> bytes:
    """Fixed fields up to the id of the message; nearly all rows of a topic share a handful of them."""
    key = flags << 32 | payload_at
    head = _heads.get(key)
    if head is None:
        head = _HEAD.pack(VERSION, flags, payload_at) + _ID_LENGTH
        if len(_heads) < 4096:
            _heads[key] = head
    return head


def _transactional_heads(write_pointer: int) -> tuple[dict[int, bytes], Callable[[int, int], bytes]]:
    """The same for rows of one transaction: the heads made so far, and what makes another."""
    pointer = _POINTER.pack(write_pointer) + _ID_LENGTH
    heads: dict[int, bytes] = {}

    def head(flags: int, payload_at: int) -> bytes:
        made = heads[flags << 32 | payload_at] = _HEAD.pack(VERSION, flags | T, payload_at) + pointer
        return made

    return heads, head


def encode_rows(columns: Columns, row_ids: Sequence[bytes], first_offset: int) -> list[bytes]:
    """One row per message; ``row_ids`` and dense offsets from ``first_offset`` in the same order.

    The hot path: per message one join, one checksum, nothing else.
    """
    payloads = columns.payloads
    named, sequence_ids = _named(columns)
    offsets = encode_long_run(first_offset, len(payloads))
    tails, flags = _tails(columns)
    around = _ID_AND_LENGTH + len(named)
    rows: list[bytes] = []
    append, join = rows.append, b"".join
    heads: Mapping[int, bytes]
    head: Callable[[int, int], bytes]
    if columns.write_pointer is None:
        heads, head = _heads, _head
    else:
        heads, head = _transactional_heads(columns.write_pointer)
    for row_id, offset, sequence_id, tail, flag, payload in zip(
        row_ids, offsets, sequence_ids, tails, flags, payloads, strict=False
    ):
        payload_at = around + len(offset) + len(sequence_id) + len(tail)
        body = join(
            (
                heads.get(flag << 32 | payload_at) or head(flag, payload_at),
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
    if columns.producer is not None or columns.write_pointer is not None:
        rows[0] = _with_previous(rows[0], columns.previous or FIRST_ROW_ID)
    return rows


def _named(columns: Columns) -> tuple[bytes, Iterable[bytes]]:
    """What all messages share of the producer's fields, and each one's sequence id, encoded."""
    named = VALUE_BRANCH + encode_string(columns.producer) if columns.producer is not None else NULL_BRANCH
    if columns.sequence_ids is None:
        return named + NULL_BRANCH, repeat(b"")
    return named + VALUE_BRANCH, encode_longs(columns.sequence_ids)


def _tails(columns: Columns) -> tuple[Iterable[bytes], Iterable[int]]:
    """Key, properties and ttl of each message, encoded, and the flags they bring."""
    if columns.keys is None and columns.properties is None and columns.ttls is None:
        return repeat(NULL_BRANCH * 3), repeat(0)
    tails = columns.tails
    if tails is None:
        tails = encode_tails(len(columns.payloads), columns.keys, columns.properties, columns.ttls)
    return tails, repeat(0) if columns.ttls is None else [0 if ttl is None else TTL for ttl in columns.ttls]


def _with_previous(row: bytes, previous: bytes) -> bytes:
    version, flags, payload_at = _HEAD.unpack_from(row)
    at = _HEAD.size + (_POINTER.size if flags & T else 0)
    return with_checksum(_HEAD.pack(version, flags | PREVIOUS, payload_at) + row[_HEAD.size : at] + previous + row[at:-4])


def rolled_back(row: bytes) -> bytes:
    """The row with its write pointer made negative; a row that has no positive one is a caller's bug."""
    (pointer,) = _POINTER.unpack_from(row, _HEAD.size)
    assert row[1] & T
    assert pointer > 0
    return with_checksum(row[: _HEAD.size] + _POINTER.pack(-pointer) + row[_HEAD.size + _POINTER.size : -4])


def write_pointer_of(row: bytes) -> int:
    """The write pointer of a row with the flag T; negative once rolled back."""
    pointer: int = _POINTER.unpack_from(row, _HEAD.size)[0]
    return pointer


def intact(row: bytes) -> bool:
    """Whether the row's checksum holds and this version can read it."""
    return matches(row) and row[0] == VERSION and row[1] < 16


def all_intact(rows: Iterable[bytes]) -> bool:
    """Whether the checksum of every row holds; that this version can read them is for the caller to see."""
    return all_match(rows)


def decode_row(row_id: bytes, row: bytes) -> Row:
    """A row with its fields apart.

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
    producer, sequence_id, at = _decode_named(row, at)
    ttl = _ttl_before(row, at) if flags & TTL else None
    _, payload_begin = decode_long(row, message_at + payload_at)
    payload = row[payload_begin:-4]
    group = decode_summary(payload, flags) if flags & GROUP else None
    return Row(row_id, offset, producer, sequence_id, ttl, payload, write_pointer, previous, group, _key_at(row, at))


def decode_fields(row: bytes, at: int) -> Fields:
    """The fields between offset and payload, which begin at ``at``."""
    sequence_at = _skip_optional_bytes(row, at)
    producer, sequence_id, key_at = _decode_named(row, at)
    sequence_at = key_at if sequence_id is None else sequence_at + 1
    key, at = _key_at(row, key_at), _skip_optional_bytes(row, key_at)
    properties = None
    if row[at] == 2:
        properties, at = _decode_map(row, at + 1)
    else:
        at += 1
    ttl = decode_long(row, at + 1)[0] if row[at] == 2 else None
    return Fields(producer, sequence_id, key, properties, ttl, sequence_at, key_at)


def _decode_map(row: bytes, at: int) -> tuple[dict[str, str], int]:
    """A map of strings as :func:`~oncelog.wire.avro_parts.encode_map` writes it, and where it ends."""
    count, at = decode_long(row, at)
    texts = []
    for _ in range(2 * count):
        length, at = decode_long(row, at)
        texts.append(row[at : at + length].decode())
        at += length
    return dict(zip(texts[::2], texts[1::2], strict=True)), at + 1 if count else at


def _decode_named(row: bytes, at: int) -> tuple[str | None, int | None, int]:
    """Producer and sequence id that begin at ``at``, and where they end."""
    producer = sequence_id = None
    if row[at] == 2:
        length, at = decode_long(row, at + 1)
        producer, at = row[at : at + length].decode(), at + length
    else:
        at += 1
    if row[at] == 2:
        sequence_id, at = decode_long(row, at + 1)
    else:
        at += 1
    return producer, sequence_id, at


def _skip_named(row: bytes, at: int) -> int:
    """Where the producer and the sequence id end that begin at ``at``."""
    at = _skip_optional_bytes(row, at)
    return decode_long(row, at + 1)[1] if row[at] == 2 else at + 1


def _key_at(row: bytes, at: int) -> bytes | None:
    """The message's key, which begins at ``at``."""
    if row[at] != 2:
        return None
    length, at = decode_long(row, at + 1)
    return row[at : at + length]


def _ttl_before(row: bytes, at: int) -> int:
    """The ttl, which stands behind the key and the properties that begin at ``at``."""
    at = _skip_optional_bytes(row, at)
    at = _skip_map(row, at + 1) if row[at] == 2 else at + 1
    ttl, _ = decode_long(row, at + 1)
    return ttl


def _skip_optional_bytes(row: bytes, at: int) -> int:
    """Where a ``["null", "bytes"]`` or ``["null", "string"]`` ends."""
    if row[at] != 2:
        return at + 1
    length, at = decode_long(row, at + 1)
    return at + length


def _skip_map(row: bytes, at: int) -> int:
    count, at = decode_long(row, at)
    for _ in range(2 * count):
        length, at = decode_long(row, at)
        at += length
    return at + 1 if count else at


def ttl_of(row: bytes) -> int:
    """The message's own ttl in seconds, of a row with the flag TTL."""
    _, at = decode_long(row, MESSAGE_AT[row[1]] + _ID_AND_LENGTH)
    return _ttl_before(row, _skip_named(row, at))


def offset_of(row: bytes) -> int:
    """The message's offset."""
    offset, _ = decode_long(row, MESSAGE_AT[row[1]] + _ID_AND_LENGTH)
    return offset


def message_of(row: bytes) -> bytes:
    """The Avro bytes of the message as `oncelog.v1.Message`."""
    return row[MESSAGE_AT[row[1]] : -4]


def payload_of(row: bytes) -> bytes:
    """The payload of a row that stands for one message."""
    at = MESSAGE_AT[row[1]] + int.from_bytes(row[2:6], "big")
    while row[at] & 0x80:  # over its length, which the row's own says again
        at += 1
    return row[at + 1 : -4]


def tms_message_of(row: bytes) -> bytes:
    """The Avro bytes of the message as the TMS page's `Message`: id and payload."""
    at = MESSAGE_AT[row[1]]
    return row[at : at + _ID_AND_LENGTH] + row[at + int.from_bytes(row[2:6], "big") : -4]


def messages_of(row: bytes) -> int:
    """How many messages the row stands for."""
    if not row[1] & GROUP:
        return 1
    at = _summary_at(row) + (0 if row[1] & T else _POINTER.size)
    return int.from_bytes(row[at : at + 4], "big")


def payloads_under(row: bytes) -> int:
    """What stands before the payloads' ids in the keys of a group's payloads: its write pointer, or the key of its branch."""
    if row[1] & T:
        return abs(write_pointer_of(row))
    (branch,) = _POINTER.unpack_from(row, _summary_at(row))
    return -int(branch)


def _summary_at(row: bytes) -> int:
    return decode_long(row, MESSAGE_AT[row[1]] + int.from_bytes(row[2:6], "big"))[1]


# --- stored groups ------------------------------------------------------------------------------------------------------

_SUMMARY = struct.Struct(">I10sI")
_NAME = struct.Struct(">H")
_PART = struct.Struct(">qq10sI10s")
_PAYLOAD_HEAD = struct.Struct(">BBI10sI")


def encode_group_row(row_id: bytes, offset: int, write_pointer: int | None, summary: GroupSummary) -> bytes:
    """The row that makes a stored group appear; without a write pointer, the summary names a branch."""
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
    """What stands in the place of the payload of a group's row with these flags."""
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


def encode_payload_rows(columns: Columns, payload_ids: Sequence[bytes], first_place: int) -> list[bytes]:
    """One row of the Payload Table per message, in the same order."""
    named, sequence_ids = _named(columns)
    tails, flags = _tails(columns)
    rows: list[bytes] = []
    for place, (payload_id, sequence_id, tail, flag, payload) in enumerate(
        zip(payload_ids, sequence_ids, tails, flags, columns.payloads, strict=False), first_place
    ):
        fields = named + sequence_id + tail
        head = _PAYLOAD_HEAD.pack(VERSION, flag, _PAYLOAD_HEAD.size + len(fields), payload_id, place)
        rows.append(with_checksum(b"".join((head, fields, encode_length(len(payload)), payload))))
    return rows


def decode_payload_row(payload_id: bytes, row: bytes) -> Payload:
    """A row of the Payload Table with its fields apart. Raises RowDamaged."""
    if not intact(row) or payload_id_of(row) != payload_id:
        raise RowDamaged(f"the payload at {payload_id.hex()} does not match its checksum, its place or is of an unknown version")
    producer, sequence_id, at = _decode_named(row, _PAYLOAD_HEAD.size)
    ttl = _ttl_before(row, at) if row[1] & TTL else None
    _, payload_begin = decode_long(row, int.from_bytes(row[2:6], "big"))
    return Payload(payload_id, payload_place_of(row), producer, sequence_id, ttl, row[payload_begin:-4], _key_at(row, at))


def moved_payload(row: bytes, payload_id: bytes, place: int) -> bytes:
    """The same message with another id and place."""
    version, flags, payload_at, _, _ = _PAYLOAD_HEAD.unpack_from(row)
    return with_checksum(_PAYLOAD_HEAD.pack(version, flags, payload_at, payload_id, place) + row[_PAYLOAD_HEAD.size : -4])


def payload_id_of(row: bytes) -> bytes:
    """The payload id that the row itself says it has."""
    return row[6:16]


def payload_place_of(row: bytes) -> int:
    """The payload's place within its write pointer."""
    return int.from_bytes(row[16:20], "big")


def payload_ttl_of(row: bytes) -> int:
    """The message's own ttl in seconds, of a payload row with the flag TTL."""
    return _ttl_before(row, _skip_named(row, _PAYLOAD_HEAD.size))


def stored_message_of(row_id: bytes, offset: int, row: bytes) -> bytes:
    """The Avro bytes, as `oncelog.v1.Message`, of a message whose payload lies in the Payload Table."""
    return b"".join((_ID_LENGTH, row_id, row[6:16], encode_long(offset), row[_PAYLOAD_HEAD.size : -4]))


def tms_stored_message_of(row_id: bytes, offset: int, row: bytes) -> bytes:
    """The same as the TMS page's `Message`."""
    return b"".join((_ID_LENGTH, row_id, row[6:16], row[int.from_bytes(row[2:6], "big") : -4]))


# --- the small tables ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicRow:
    """What is kept of a topic name, also after its deletion: generations and timestamps must go on rising."""

    generation: int
    created: int
    """Milliseconds; no message id of this generation is older, every id of an earlier generation is."""
    properties: dict[str, str] = field(default_factory=dict)
    deleted: bool = False
    last_timestamp: int = 0
    """Of a deleted generation: no message id of it is younger."""
    expired_before: int = 0
    """Milliseconds; what was published before this had expired when the ttl was changed, and stays so under a longer one."""
    epoch_floor: int = 0
    """No epoch of an older generation, of a producer or of a consumer, was above it; those of this one are."""


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """Policies of a namespace."""

    policies: dict[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """A producer on one generation of a topic. It outlives forgetting: a fenced epoch stays fenced for ever."""

    epoch: int | None = None
    opens: list[tuple[str, int]] = field(default_factory=list)
    """(nonce, epoch) of the latest opens, oldest first: a repeated open is told from a new one."""
    gaps: str = "allow"
    forgotten_below: int = 0
    assigned_ms: int | None = None
    """Of a name that the service assigned: when it was opened last. Its row goes when it ends."""


@dataclass(frozen=True, slots=True)
class TrimRow:
    """Where the log begins, now that older messages are deleted; without the row it begins at 0."""

    earliest_offset: int
    last_id: str | None = None
    """Hex, of the last message that was deleted."""


@dataclass(frozen=True, slots=True)
class ExpiryRow:
    """At which milliseconds, and up to which rows, a topic's messages were judged when some were found to have expired."""

    judgements: list[list[int | str]]
    """(ms, hex of what sorts after the rows that were judged), the milliseconds falling."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A stored group that was published, or expired before it could be: nothing can be added, nor published twice."""

    row_id: str | None
    """Hex, of the row that stands for it; None: it expired."""
    producer: str | None = None
    """Who published it, if that was a named producer: its retry is told from another's second attempt."""


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A chunk of what a journaled transaction has staged on a topic, and what its messages expect of that."""

    first_place: int
    """Of its first message within what the transaction has staged there."""
    messages: int
    digest: str
    """Of the request that brought it: a repeated chunk is told from another one."""
    producer: str | None = None
    epoch: int | None = None
    expected_offset: int | None = None
    expected_last_message_id: str | None = None
    """Hex."""
    expected_key_offsets: dict[str, int | None] | None = None
    key_places: dict[str, int] = field(default_factory=dict)
    """Of those keys that the transaction itself had staged before: the place of the newest message."""


@dataclass(frozen=True, slots=True)
class JournalMetaRow:
    """What the journal must not forget when its older records are deleted."""

    partitions: int
    numbers: int
    """No number above this one was handed out; they are reserved in blocks."""
    begins: list[int]
    """Position of the first record of each partition."""


@dataclass(frozen=True, slots=True)
class GroupProducerRow:
    """The newest atomic commit under a producer's name."""

    sequence_id: int
    incarnation: str | None
    transaction: str
    """Its id."""
    messages: int
    checksum: str | None


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A subscription on one generation of a topic. It outlives being deleted: a fenced epoch stays fenced for ever."""

    epoch: int
    opens: list[tuple[str, int]] = field(default_factory=list)
    """(nonce, epoch) of the latest opens and seeks, oldest first: a repeated one is told from a new one."""
    cursor: int | None = None
    """Every message below this offset is acknowledged; None: the subscription is deleted."""


@dataclass(frozen=True, slots=True)
class CopyRow:
    """That a store is a copy, or is to become one."""

    of: str
    """The name among participants of the store that it was copied from, 32 hex digits."""
    source: str
    """Where that store lay; for people."""
    finished: bool


Record: TypeAlias = (
    TopicRow
    | NamespaceRow
    | ProducerRow
    | TrimRow
    | ExpiryRow
    | GroupRow
    | ChunkRow
    | JournalMetaRow
    | GroupProducerRow
    | SubscriptionRow
    | CopyRow
)
R = TypeVar(
    "R",
    TopicRow,
    NamespaceRow,
    ProducerRow,
    TrimRow,
    ExpiryRow,
    GroupRow,
    ChunkRow,
    JournalMetaRow,
    GroupProducerRow,
    SubscriptionRow,
    CopyRow,
)


def encode_record(record: Record) -> bytes:
    """Any of them as a JSON object with a version, its members sorted."""
    fields: dict[str, object] = {"version": VERSION}
    for name in record.__slots__:
        value = getattr(record, name)
        fields[name] = dict(sorted(value.items())) if type(value) is dict else value
    return to_json(dict(sorted(fields.items())))


def decode_record(kind: type[R], data: bytes) -> R:
    """Read one back. Raises RowDamaged for anything but what :func:`encode_record` writes."""
    try:
        values: dict[str, Any] = json.loads(data)
        if values.pop("version") != VERSION:
            raise ValueError("unknown version")
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RowDamaged(f"not a {kind.__name__}: {data[:100]!r}") from error
