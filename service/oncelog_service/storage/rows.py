"""Messages in rows of the Message Table (runs.py).

The body of a message is exactly what a poll answers: the Avro record `oncelog.v1.Message`. It is encoded once, when it is
published, and its bytes are reused by cache and poll.

What takes the place of the payload in the body of a group is the group's summary::

    0       10    payload id of the last message; zeros for an empty group
    10      4     number of named producers u32
    14      ...   per producer: name length u16, name UTF-8, first sequence id i64, last sequence id i64, payload id of the
                  last 10, its index u32, row id of the producer's message before the group 10 (zeros for none)

A group without a write pointer was staged under a branch of an atomic commit and is committed; before all that stands the number
of the branch, i64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from oncelog.wire.avro_parts import decode_long, encode_length
from oncelog_service.storage.bodies import encode_bodies, encode_few
from oncelog_service.storage.fields import Columns, decode_key, decode_named, decode_ttl, erased_body, erased_ms
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID
from oncelog_service.storage.port import RowDamaged
from oncelog_service.storage.runs import GROUP, TTL, Bodies, StoredRun, lay_group, with_body

ID_LENGTH = encode_length(20)
"""What begins the Avro bytes of a message: the length of its id."""
OFFSET_AT = 21
"""Where the offset lies in a body: behind the message's id."""
FILLER_TTL = 0
"""Of a message that a salvage puts where one was lost, in seconds: it is over when it is written (log/keep/losses.py)."""
_POINTER = struct.Struct(">q")
_SUMMARY = struct.Struct(">10sI")
_NAME = struct.Struct(">H")
_PART = struct.Struct(">qq10sI10s")


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


class Row(NamedTuple):
    """A message of the log, decoded, or what stands for a stored group."""

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
    """Of the first message of a request that can be found again: the row id of the producer's message before, zeros for none."""
    group: GroupSummary | None = None
    """Of what stands for a stored group."""
    key: bytes | None = None
    erased: bool = False
    """Its payload and its properties are gone, and stand for nothing."""

    @property
    def message_id(self) -> bytes:
        """Returns the 20 bytes of the message's id; of a group: its row's."""
        return self.row_id + FIRST_PAYLOAD_ID

    @property
    def fills_a_hole(self) -> bool:
        """Tells whether it stands where a salvage found no message. No publish takes a ttl of 0."""
        return self.ttl == FILLER_TTL

    @property
    def messages(self) -> int:
        """Counts the messages, and offsets, that it stands for."""
        return 1 if self.group is None else self.group.messages

    @property
    def payloads_under(self) -> int:
        """Returns what precedes the payload ids in the keys of a group's payloads."""
        branch = None if self.group is None else self.group.branch
        return abs(self.write_pointer or 0) if branch is None else -branch


def message_id_of(row_id: bytes) -> bytes:
    """Returns the message id of a message whose payload lies in the log."""
    return row_id + FIRST_PAYLOAD_ID


def encode_messages(columns: Columns, row_ids: Sequence[bytes], first_offset: int) -> Bodies:
    """Encodes a body for each message, in the same order."""
    parts = ID_LENGTH, row_ids, FIRST_PAYLOAD_ID, first_offset
    return encode_few(columns, *parts) or encode_bodies(columns, *parts)


def chain_of(columns: Columns) -> bytes | None:
    """Returns what the request's entry in the chain says; None: it needs none."""
    if columns.producer is None and columns.write_pointer is None:
        return None
    return columns.previous or FIRST_ROW_ID


def decode_rows(run: StoredRun, begin: int = 0, end: int | None = None) -> Iterator[Row]:
    """Decodes some messages of a row of the Message Table, one after the other.

    Raises RowDamaged: one says another id or offset than its place.
    """
    begins = run.begins
    end = len(run) if end is None else end
    for index in range(begin, end):
        yield _decoded(run, index, begins.get(index))


def decode_row(run: StoredRun, index: int, begins: Mapping[int, bytes] | None = None) -> Row:
    """Decodes one message of a row of the Message Table; ``begins``: the run's, if they are at hand."""
    return _decoded(run, index, (run.begins if begins is None else begins).get(index))


def _decoded(run: StoredRun, index: int, previous: bytes | None) -> Row:
    body = run.data[run.at(index) : run.at(index + 1)]
    offset, fields_at = decode_long(body, OFFSET_AT)
    if offset != run.first + index or not body.startswith(run.id_at(index), 1):
        raise RowDamaged(f"the message at {run.id_at(index).hex()}, offset {run.first + index}, says that it is another one")
    producer, sequence_id, key_at = decode_named(body, fields_at)
    ttl = decode_ttl(body, fields_at) if run.flags & TTL else None
    payload = body[decode_long(body, run.payload_place(index))[1] :]
    group = _decode_summary(run, payload) if run.flags & GROUP else None
    return Row(
        run.id_at(index),
        offset,
        producer,
        sequence_id,
        ttl,
        payload,
        run.write_pointer,
        previous,
        group,
        decode_key(body, key_at),
        not payload and erased_ms(body, fields_at) is not None,
    )


def erased_run(prefix: bytes, run: StoredRun, index: int, now_ms: int) -> tuple[StoredRun, int]:
    """Makes the run anew with one of its messages erased now, and tells since when it is: it may be already."""
    body = run.data[run.at(index) : run.at(index + 1)]
    fields_at = decode_long(body, OFFSET_AT)[1]
    since = erased_ms(body, fields_at)
    if since is None:
        since = now_ms
    # Laid anew in any case: a copy of an erased message may have been given properties beside the mark.
    return with_body(prefix, run, index, *erased_body(body, fields_at, run.payload_place(index), since)), since


def own_ttl(run: StoredRun, index: int) -> int | None:
    """Reads the own ttl, in seconds, of a message of a run with the flag TTL; None: it has none."""
    return decode_ttl(run.data, decode_long(run.data, run.at(index) + OFFSET_AT)[1])


def tms_messages_of(run: StoredRun, begin: int, end: int) -> list[bytes]:
    """Joins the Avro bytes of messages as the TMS page's `Message`: id and payload."""
    bodies, places = run.bodies(begin, end), run.payload_places(begin, end)
    if isinstance(places, int):
        return [body[:OFFSET_AT] + body[places:] for body in bodies]
    return [body[:OFFSET_AT] + body[place:] for body, place in zip(bodies, places, strict=True)]


# --- stored groups


def encode_group(
    prefix: bytes, row_id: bytes, offset: int, write_pointer: int | None, summary: GroupSummary, upto_bytes: int = 0
) -> StoredRun:
    """Encodes the row that makes a stored group appear; without a write pointer, the summary names a branch.

    ``upto_bytes``: of the log, with the group's payloads (runs.py).
    """
    parts = [] if summary.branch is None else [_POINTER.pack(summary.branch)]
    parts.append(_SUMMARY.pack(summary.last_payload_id, len(summary.producers)))
    for each in summary.producers:
        name = each.name.encode()
        parts += (_NAME.pack(len(name)), name, _PART.pack(*each[1:]))
    body = encode_messages(Columns([b"".join(parts)]), [row_id], offset)
    return lay_group(prefix, row_id, offset, summary.messages, body, write_pointer, upto_bytes)


def payloads_under(run: StoredRun) -> int:
    """Reads what precedes the payload ids in the keys of a group's payloads: its write pointer, or the key of its branch."""
    if run.write_pointer is not None:
        return abs(run.write_pointer)
    (branch,) = _POINTER.unpack_from(run.data, decode_long(run.data, run.base + run.payload_at)[1])
    return -int(branch)


def summary_of(run: StoredRun) -> GroupSummary:
    """Decodes the summary of a group."""
    return _decode_summary(run, run.data[decode_long(run.data, run.base + run.payload_at)[1] :])


def _decode_summary(run: StoredRun, data: bytes) -> GroupSummary:
    branch, at = (_POINTER.unpack_from(data)[0], _POINTER.size) if run.write_pointer is None else (None, 0)
    last_payload_id, producers = _SUMMARY.unpack_from(data, at)
    at += _SUMMARY.size
    parts = []
    for _ in range(producers):
        (length,) = _NAME.unpack_from(data, at)
        at += _NAME.size
        name = data[at : at + length].decode()
        at += length
        parts.append(GroupProducer(name, *_PART.unpack_from(data, at)))
        at += _PART.size
    return GroupSummary(run.count, last_payload_id, tuple(parts), branch)
