"""Messages in rows of the Payload Table (runs.py).

A body is what `oncelog.v1.Message` has behind the offset: the message's row id, and so its id and its offset, come with
publishing. The run's numbers are the indexes 0, 1, 2, … of the messages within their write pointer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from oncelog.wire.avro_parts import decode_long
from oncelog_service.storage.bodies import encode_bodies, texts
from oncelog_service.storage.fields import Columns, decode_key, decode_named, decode_ttl, erased_body, erased_ms
from oncelog_service.storage.rows import ID_LENGTH
from oncelog_service.storage.runs import TTL, Bodies, StoredRun, with_body


class Payload(NamedTuple):
    """A message of the Payload Table, decoded."""

    payload_id: bytes
    group_index: int
    """0, 1, 2, … within the write pointer."""
    producer: str | None
    sequence_id: int | None
    ttl: int | None
    payload: bytes
    key: bytes | None = None
    erased: bool = False


def encode_payloads(columns: Columns) -> Bodies:
    """Encodes a body for each message, in the same order."""
    return encode_bodies(columns)


def decode_payloads(run: StoredRun, begin: int = 0, end: int | None = None) -> Iterator[Payload]:
    """Decodes some messages of a row of the Payload Table, one after the other."""
    for index in range(begin, len(run) if end is None else end):
        yield decode_payload(run, index)


def decode_payload(run: StoredRun, index: int) -> Payload:
    """Decodes one message of a row of the Payload Table."""
    return payload_of(run.id_at(index), run.first + index, run.data[run.at(index) : run.at(index + 1)], run.payload_place(index))


def payload_of(payload_id: bytes, index: int, body: bytes, place: int) -> Payload:
    """Decodes a body whose payload, with its length, begins at ``place``."""
    producer, sequence_id, key_at = decode_named(body, 0)
    payload = body[decode_long(body, place)[1] :]
    erased = not payload and erased_ms(body, 0) is not None
    return Payload(payload_id, index, producer, sequence_id, decode_ttl(body, 0), payload, decode_key(body, key_at), erased)


def erased_payloads(prefix: bytes, run: StoredRun, index: int, now_ms: int) -> tuple[StoredRun, int]:
    """Makes the run anew with one of its messages erased now, and tells since when it is: it may be already."""
    body = run.data[run.at(index) : run.at(index + 1)]
    since = erased_ms(body, 0)
    if since is None:
        since = now_ms
    return with_body(prefix, run, index, *erased_body(body, 0, run.payload_place(index), since)), since


def own_ttl(run: StoredRun, index: int) -> int | None:
    """Reads the own ttl, in seconds, of a message; None: it has none."""
    return decode_ttl(run.data, run.at(index)) if run.flags & TTL else None


def tails_of(run: StoredRun) -> list[bytes]:
    """Cuts out key, properties and ttl of each message, as they are encoded."""
    return [body[decode_named(body, 0)[2] : run.payload_place(index)] for index, body in enumerate(run.bodies())]


def stored_messages_of(row_id: bytes, first_offset: int, run: StoredRun, begin: int, end: int) -> list[bytes]:
    """Joins the Avro bytes, as `oncelog.v1.Message`, of messages in the Payload Table, the first of which has this offset."""
    heads = texts(end - begin, ID_LENGTH + row_id, run.ids(begin, end), first_offset)
    return [*map(b"".join, zip(heads, run.bodies(begin, end), strict=True))]


def tms_stored_messages_of(row_id: bytes, run: StoredRun, begin: int, end: int) -> list[bytes]:
    """Joins the Avro bytes, as the TMS page's `Message`, of messages in the Payload Table."""
    places: int | Sequence[int] = run.payload_places(begin, end)
    each = [places] * (end - begin) if isinstance(places, int) else places
    payloads = (body[place:] for body, place in zip(run.bodies(begin, end), each, strict=True))
    return [*map(b"".join, zip(repeat(ID_LENGTH + row_id), run.ids(begin, end), payloads, strict=False))]
