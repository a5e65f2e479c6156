"""The fields of a message that a body in the Message Table and one in the Payload Table encode in the same way.

They lie between the offset and the payload of the Avro record `oncelog.v1.Message`: producer, sequence id, key, properties, ttl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oncelog.wire.avro_parts import VALUE_BRANCH, decode_long, encode_length, encode_map
from oncelog.wire.erasure import ERASED


class Fields(NamedTuple):
    """Holds what a message says beside its id, its offset and its payload."""

    producer: str | None
    sequence_id: int | None
    key: bytes | None
    properties: dict[str, str] | None
    ttl: int | None
    sequence_at: int
    """Where the sequence id itself begins; where there is none, where the key does."""
    key_at: int


@dataclass(slots=True)
class Columns:
    """Messages of one request that are about to be stored. A column that is None holds nothing for any of them."""

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


def decode_fields(body: bytes, at: int) -> Fields:
    """Decodes the fields between offset and payload, which begin at ``at``."""
    sequence_at = _skip_optional_bytes(body, at)
    producer, sequence_id, key_at = decode_named(body, at)
    sequence_at = key_at if sequence_id is None else sequence_at + 1
    key, at = decode_key(body, key_at), _skip_optional_bytes(body, key_at)
    properties = None
    if body[at] == 2:
        properties, at = _decode_map(body, at + 1)
    else:
        at += 1
    ttl = decode_long(body, at + 1)[0] if body[at] == 2 else None
    return Fields(producer, sequence_id, key, properties, ttl, sequence_at, key_at)


def _decode_map(body: bytes, at: int) -> tuple[dict[str, str], int]:
    """Decodes a map of strings as :func:`~oncelog.wire.avro_parts.encode_map` writes it; returns its end too."""
    count, at = decode_long(body, at)
    texts = []
    for _ in range(2 * count):
        length, at = decode_long(body, at)
        texts.append(body[at : at + length].decode())
        at += length
    return dict(zip(texts[::2], texts[1::2], strict=True)), at + 1 if count else at


def decode_named(body: bytes, at: int) -> tuple[str | None, int | None, int]:
    """Decodes producer and sequence id, which begin at ``at``; returns their end too."""
    producer = sequence_id = None
    if body[at] == 2:
        length, start = body[at + 1], at + 2
        if length < 0x80:  # most names are so short, and this is asked of every message that is recovered
            at = start + (length >> 1)
        else:
            length, start = decode_long(body, at + 1)
            at = start + length
        producer = body[start:at].decode()
    else:
        at += 1
    if body[at] == 2:
        sequence_id, at = decode_long(body, at + 1)
    else:
        at += 1
    return producer, sequence_id, at


def decode_key(body: bytes, at: int) -> bytes | None:
    """Decodes the key, which begins at ``at``."""
    if body[at] != 2:
        return None
    length, at = decode_long(body, at + 1)
    return body[at : at + length]


def decode_ttl(body: bytes, at: int) -> int | None:
    """Reads the message's own ttl in seconds; its fields begin at ``at``."""
    at = _skip_optional_bytes(body, at)
    at = decode_long(body, at + 1)[1] if body[at] == 2 else at + 1
    at = _skip_optional_bytes(body, at)
    at = _skip_map(body, at + 1) if body[at] == 2 else at + 1
    return decode_long(body, at + 1)[0] if body[at] == 2 else None


def erased_ms(body: bytes, at: int) -> int | None:
    """Reads when the message was erased, in ms; its fields begin at ``at``. None: it was not."""
    mark = (decode_fields(body, at).properties or {}).get(ERASED)
    return None if mark is None else int(mark)


def erased_body(body: bytes, at: int, payload_at: int, since_ms: int) -> tuple[bytes, int]:
    """Makes the body of a message that is erased; tells where its payload begins, which is empty. Fields begin at ``at``.

    Properties make room for the mark. What the log is folded from stays: producer, sequence id, key and ttl.
    """
    properties_at = _skip_optional_bytes(body, decode_named(body, at)[2])
    ttl_at = _skip_map(body, properties_at + 1) if body[properties_at] == 2 else properties_at + 1
    head = body[:properties_at] + VALUE_BRANCH + encode_map({ERASED: str(since_ms)}) + body[ttl_at:payload_at]
    return head + encode_length(0), len(head)


def _skip_optional_bytes(body: bytes, at: int) -> int:
    """Finds the end of a ``["null", "bytes"]`` or ``["null", "string"]``."""
    if body[at] != 2:
        return at + 1
    length, at = decode_long(body, at + 1)
    return at + length


def _skip_map(body: bytes, at: int) -> int:
    count, at = decode_long(body, at)
    for _ in range(2 * count):
        length, at = decode_long(body, at)
        at += length
    return at + 1 if count else at
