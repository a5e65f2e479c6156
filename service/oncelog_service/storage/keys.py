"""Every key on disk. Big-endian, so that bytes sort as numbers do.

::

    topic key    = namespace ":" topic ":"          neither name can hold a colon, so no topic's key begins another's
    generation   = i32, counts the incarnations of a topic name, from 1

    MESSAGE      topic key · generation · publish timestamp i64 ms · seq_id u16
    PAYLOAD      topic key · generation · write pointer i64 · write timestamp i64 ms · payload seq_id u16
    TOPIC        topic key
    NAMESPACE    namespace
    PRODUCER     topic key · generation · name UTF-8
    SNAPSHOT     topic key · generation · slot u8 (0 or 1, written in turn)
    TRIM         topic key · generation
    GROUP        topic key · generation · write pointer i64
    STORE_ID     empty: one row, 32 hex digits that name this store among the participants of transactions
                 secret: 64 hex digits, what the instances over it show each other
                 restored: JSON, its incarnation; 32 hex digits where a former version began that
                 behind: JSON, it has gone back in time and is not served
    TRANSACTION_EDIT      number of the edit i64, from 1
    TRANSACTION_SNAPSHOT  slot u8 (0 or 1, written in turn)
    OUTCOME               write pointer i64
    KEY_SNAPSHOT  as SNAPSHOT
    CHUNK         topic key · generation · branch key i64 · chunk u32
    JOURNAL       partition u16 · position i64, from 0
    JOURNAL_META  empty: one row
    ATOMIC_ID             id of an atomic commit
    ATOMIC_OUTCOME        number of an atomic commit i64
    GROUP_PRODUCER        group · zero byte · producer name (either may hold a colon)
    GROUP_NOTE            as GROUP_PRODUCER
    SUBSCRIPTION  topic key · generation · name
    COPY          empty: one row, in a store that `oncelog copy` writes or has written
    EXPIRY        topic key · generation
    LOST          topic key · generation
    ENDED         topic key · generation · write pointer i64

A branch of an atomic commit lies in PAYLOAD and GROUP as what is stored under a write pointer does; its branch key, the
negative of its number, stands in the place of the pointer. No client can name it: write pointers are greater than 0.
"""

from __future__ import annotations

import struct

_GENERATION = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_ROW_ID = struct.Struct(">qH")
_CHUNK = struct.Struct(">I")
_RECORD = struct.Struct(">Hq")

ROW_ID_SIZE = _ROW_ID.size
"""10: publish timestamp and seq_id, which end a message's key and begin its message id."""
GENERATION_SIZE = _GENERATION.size
"""4: it follows the topic key."""
POINTER_SIZE = _TIMESTAMP.size
"""8: it follows the generation in a payload's key."""
FIRST_GENERATION = 1
"""Of a topic whose name is new."""
PAYLOAD_ID_SIZE = _ROW_ID.size
"""10: write timestamp and payload seq_id, which end a payload's key and its message's id."""
FIRST_ROW_ID = bytes(ROW_ID_SIZE)
FIRST_PAYLOAD_ID = bytes(PAYLOAD_ID_SIZE)
AFTER_ANY = b"\xff" * 12
"""Sorts after any row id, offset or name that can follow a topic key and generation (timestamps are not negative)."""

SEQ_BYTES = [struct.pack(">H", seq_id) for seq_id in range(65_536)]
"""Every seq_id as its two bytes: packing one costs three times a look-up, and each message needs one."""


def topic_key(namespace: str, topic: str) -> bytes:
    """What begins every key of a topic."""
    return f"{namespace}:{topic}:".encode("ascii")


def split_topic_key(key: bytes) -> tuple[str, str]:
    """(namespace, topic) of a topic key."""
    namespace, topic, _ = key.decode("ascii").split(":")
    return namespace, topic


def generation_key(topic: bytes, generation: int) -> bytes:
    """What begins every key of one generation of a topic; by itself the key of its TRIM row."""
    return topic + _GENERATION.pack(generation)


def generation_of(key: bytes) -> bytes:
    """What begins every key of the topic's generation that this key is of."""
    topic = key.index(b":", key.index(b":") + 1) + 1  # no name has a colon
    return key[: topic + GENERATION_SIZE]


def pointer_key(prefix: bytes, write_pointer: int) -> bytes:
    """What begins the keys of all payloads stored under a write pointer; by itself the key of its rows in GROUP and ENDED."""
    return prefix + _TIMESTAMP.pack(write_pointer)


def pointer_of(key: bytes) -> int:
    """Returns the write pointer that ends a key of ENDED."""
    [pointer] = _TIMESTAMP.unpack(key[-POINTER_SIZE:])
    return int(pointer)


def row_id(timestamp: int, seq_id: int) -> bytes:
    """The end of a message's key: the first half of its message id."""
    return _ROW_ID.pack(timestamp, seq_id)


def split_row_id(data: bytes) -> tuple[int, int]:
    """(timestamp, seq_id) from a row id or from the message id it begins."""
    timestamp, seq_id = _ROW_ID.unpack_from(data)
    return timestamp, seq_id


def is_beyond(message_id: bytes) -> bool:
    """Whether it sorts behind every id that there can be: timestamps are not negative."""
    return message_id[0] >= 0x80


def timestamp_prefix(timestamp: int) -> bytes:
    """The first 8 bytes of every row id of one millisecond."""
    return _TIMESTAMP.pack(timestamp)


SNAPSHOT_SLOTS = (b"\x00", b"\x01")
"""The ends of the two snapshots' keys: the newest and the one before it."""


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys that begin with ``prefix`` (which is not all 0xff)."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def edit_key(number: int) -> bytes:
    """The key of an edit of the transaction service."""
    return _TIMESTAMP.pack(number)


def outcome_key(pointer: int) -> bytes:
    """The key of a write pointer's outcome."""
    return _TIMESTAMP.pack(pointer)


def chunk_key(prefix: bytes, number: int, chunk: int) -> bytes:
    """The key of a chunk of the branch with this number; ``prefix`` begins every key of the topic's generation."""
    return pointer_key(prefix, -number) + _CHUNK.pack(chunk)


def split_chunk_key(key: bytes) -> tuple[bytes, int]:
    """(what begins every key of the topic's generation, the branch's number) of a chunk's key."""
    at = len(key) - _CHUNK.size
    branch, *_ = _TIMESTAMP.unpack_from(key, at - _TIMESTAMP.size)
    return key[: at - _TIMESTAMP.size], -branch


def journal_key(partition: int, position: int) -> bytes:
    """The key of a record of the journal."""
    return _RECORD.pack(partition, position)


def number_key(number: int) -> bytes:
    """The key of the outcome of an atomic commit."""
    return _TIMESTAMP.pack(number)


def group_producer_key(group: str, producer: str) -> bytes:
    """The key of a producer of atomic commits."""
    return f"{group}\x00{producer}".encode("ascii")


AFTER_NUMBERS = b"\x7f" + b"\xff" * 8
"""Sorts after any number of an edit and any write pointer (they are positive)."""
