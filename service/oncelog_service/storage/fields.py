"""The fields of a message that its row in the Message Table and one in the Payload Table encode in the same way.

They lie between the offset and the payload of the Avro record `oncelog.v1.Message`: producer, sequence id, key, properties, ttl.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from oncelog.wire.avro_parts import (
    NULL_BRANCH,
    VALUE_BRANCH,
    decode_long,
    encode_length,
    encode_longs,
    encode_string,
    encode_tails,
)
from oncelog_service.storage.checksum import matches

VERSION = 1
T, PREVIOUS, TTL, GROUP = 1, 2, 4, 8
"""The flags of a row."""
ID_LENGTH = encode_length(20)
"""What begins the Avro bytes of a message: the length of its id."""


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


def encode_named(columns: Columns) -> tuple[bytes, Iterable[bytes]]:
    """Encodes the producer's fields that all messages share, and the sequence id of each."""
    named = VALUE_BRANCH + encode_string(columns.producer) if columns.producer is not None else NULL_BRANCH
    if columns.sequence_ids is None:
        return named + NULL_BRANCH, repeat(b"")
    return named + VALUE_BRANCH, encode_longs(columns.sequence_ids)


def encode_rest(columns: Columns) -> tuple[Iterable[bytes], Iterable[int]]:
    """Encodes key, properties and ttl of each message, and returns the flags they bring."""
    if columns.keys is None and columns.properties is None and columns.ttls is None:
        return repeat(NULL_BRANCH * 3), repeat(0)
    tails = columns.tails
    if tails is None:
        tails = encode_tails(len(columns.payloads), columns.keys, columns.properties, columns.ttls)
    return tails, repeat(0) if columns.ttls is None else [0 if ttl is None else TTL for ttl in columns.ttls]


def intact(row: bytes) -> bool:
    """Tells whether a row matches its checksum and this version can read it."""
    return matches(row) and row[0] == VERSION and row[1] < 16


def decode_fields(row: bytes, at: int) -> Fields:
    """Decodes the fields between offset and payload, which begin at ``at``."""
    sequence_at = _skip_optional_bytes(row, at)
    producer, sequence_id, key_at = decode_named(row, at)
    sequence_at = key_at if sequence_id is None else sequence_at + 1
    key, at = decode_key(row, key_at), _skip_optional_bytes(row, key_at)
    properties = None
    if row[at] == 2:
        properties, at = _decode_map(row, at + 1)
    else:
        at += 1
    ttl = decode_long(row, at + 1)[0] if row[at] == 2 else None
    return Fields(producer, sequence_id, key, properties, ttl, sequence_at, key_at)


def _decode_map(row: bytes, at: int) -> tuple[dict[str, str], int]:
    """Decodes a map of strings as :func:`~oncelog.wire.avro_parts.encode_map` writes it; returns its end too."""
    count, at = decode_long(row, at)
    texts = []
    for _ in range(2 * count):
        length, at = decode_long(row, at)
        texts.append(row[at : at + length].decode())
        at += length
    return dict(zip(texts[::2], texts[1::2], strict=True)), at + 1 if count else at


def decode_named(row: bytes, at: int) -> tuple[str | None, int | None, int]:
    """Decodes producer and sequence id, which begin at ``at``; returns their end too."""
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


def skip_named(row: bytes, at: int) -> int:
    """Finds the end of producer and sequence id, which begin at ``at``."""
    at = _skip_optional_bytes(row, at)
    return decode_long(row, at + 1)[1] if row[at] == 2 else at + 1


def decode_key(row: bytes, at: int) -> bytes | None:
    if row[at] != 2:
        return None
    length, at = decode_long(row, at + 1)
    return row[at : at + length]


def decode_ttl(row: bytes, at: int) -> int:
    """Reads the ttl behind the key and the properties, which begin at ``at``."""
    at = _skip_optional_bytes(row, at)
    at = _skip_map(row, at + 1) if row[at] == 2 else at + 1
    ttl, _ = decode_long(row, at + 1)
    return ttl


def _skip_optional_bytes(row: bytes, at: int) -> int:
    """Finds the end of a ``["null", "bytes"]`` or ``["null", "string"]``."""
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
