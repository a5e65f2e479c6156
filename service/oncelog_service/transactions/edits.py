"""What happened to transactions, as values and as the checksummed bytes of the edit log.

The state of all transactions is the fold of the edits (state.py). An edit on disk, version 1, big-endian; its key is its number::

    offset  size  field
    0       1     version = 1
    1       1     kind: 1 started … 9 settled, as listed in `KINDS`
    2       8     number of the edit, i64: the same as in its key
    10      8     pointer i64; of `pruned` 0
    18      ...   started         type u8 (1 short, 2 long) · lifetime i64 ms
                  handed_in       lifetime i64 ms · resource string (empty: not prepared) · keys
                  committed       keys (those that commit itself brought)
                  aborted         nothing
                  invalidated     nothing
                  checkpointed    checkpoint i64
                  pruned          pointers
                  enlisted        participant string
                  settled         participant string
    end-4   4     CRC-32 of everything before it, little-endian

    string    length u16 · UTF-8
    keys      count u32 · per key: length u32 · bytes; rising
    pointers  count u32 · i64 each

An edit says what was decided, never what was asked for: replaying it needs no clock and no setting.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.checksum import SIZE, matches, with_checksum


class Started(NamedTuple):
    """A transaction began."""

    pointer: int
    kind: TransactionType
    lifetime_ms: int
    """How long it may live. A duration: no clock can make it end sooner, or later."""


class HandedIn(NamedTuple):
    """can-commit was granted: its keys and, when it is prepared, the database that decides it."""

    pointer: int
    lifetime_ms: int
    resource: str | None
    changes: frozenset[bytes]


class Committed(NamedTuple):
    """It committed; ``changes`` are the keys that commit brought beyond those handed in."""

    pointer: int
    changes: frozenset[bytes]


class Aborted(NamedTuple):
    """It was undone."""

    pointer: int


class Invalidated(NamedTuple):
    """It timed out, or was given up."""

    pointer: int


class Checkpointed(NamedTuple):
    """It got a further write pointer."""

    pointer: int
    checkpoint: int


class Pruned(NamedTuple):
    """These transactions left the list of invalid ones."""

    pointers: tuple[int, ...]


class Enlisted(NamedTuple):
    """A participant is about to hold something under this pointer (of the transaction or of a checkpoint)."""

    pointer: int
    participant: str


class Settled(NamedTuple):
    """That participant has dealt with the end of the transaction."""

    pointer: int
    participant: str


Edit: TypeAlias = Started | HandedIn | Committed | Aborted | Invalidated | Checkpointed | Pruned | Enlisted | Settled

KINDS: tuple[type[Edit], ...] = (
    Started,
    HandedIn,
    Committed,
    Aborted,
    Invalidated,
    Checkpointed,
    Pruned,
    Enlisted,
    Settled,
)
"""The kinds in the order of their numbers on disk, from 1. Only ever add at the end."""

VERSION = 1
MAX_STRING_BYTES = 2**16 - 1
_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS, 1)}
_HEAD = struct.Struct(">BBqq")
_STARTED = struct.Struct(">Bq")
_I64 = struct.Struct(">q")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")


class EditDamaged(ValueError):
    """The bytes are not what this version wrote: cut, flipped, misplaced, or of another layout."""


def encode_edit(number: int, edit: Edit) -> bytes:
    """The edit in the layout above."""
    pointer = 0 if isinstance(edit, Pruned) else edit.pointer
    body = _HEAD.pack(VERSION, _NUMBER_OF[type(edit)], number, pointer) + _encode_rest(edit)
    return with_checksum(body)


def _encode_rest(edit: Edit) -> bytes:
    if isinstance(edit, Started):
        return _STARTED.pack(edit.kind, edit.lifetime_ms)
    if isinstance(edit, Committed):
        return encode_keys(edit.changes)
    if isinstance(edit, HandedIn):
        return _I64.pack(edit.lifetime_ms) + encode_string(edit.resource or "") + encode_keys(edit.changes)
    if isinstance(edit, (Enlisted, Settled)):
        return encode_string(edit.participant)
    if isinstance(edit, Checkpointed):
        return _I64.pack(edit.checkpoint)
    if isinstance(edit, Pruned):
        return encode_pointers(edit.pointers)
    return b""


def decode_edit(number: int, data: bytes) -> Edit:
    """Read an edit back.

    Raises:
        EditDamaged: whatever is wrong with the bytes, also when they belong to another number.
    """
    check_checksum(data)
    try:
        version, kind, belongs_to, pointer = _HEAD.unpack_from(data)
        if version != VERSION or not 1 <= kind <= len(KINDS):
            raise EditDamaged(f"an edit of version {version} and kind {kind} is not known here")
        if belongs_to != number:
            raise EditDamaged(f"the edit at number {number} says that it is number {belongs_to}")
        source = Source(data, _HEAD.size)
        edit: Edit = _DECODE[kind - 1](pointer, source)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise EditDamaged(f"edit {number} cannot be read: {error}") from error
    source.end()
    return edit


# --- the parts that the snapshot is made of, too


def check_checksum(data: bytes) -> None:
    """Raises EditDamaged unless the last four bytes are the CRC-32 of those before."""
    if len(data) < SIZE or not matches(data):
        raise EditDamaged(f"the checksum of {len(data)} bytes does not match them")


def encode_string(text: str) -> bytes:
    """Length and UTF-8, at most MAX_STRING_BYTES of it."""
    data = text.encode()
    return _U16.pack(len(data)) + data


def encode_keys(keys: frozenset[bytes]) -> bytes:
    """A set of keys, in rising order so that equal sets have equal bytes."""
    if not keys:
        return _NOTHING
    parts = [_U32.pack(len(keys))]
    for key in sorted(keys):
        parts += (_U32.pack(len(key)), key)
    return b"".join(parts)


def encode_pointers(pointers: Sequence[int]) -> bytes:
    """Pointers in the order given."""
    return struct.pack(f">I{len(pointers)}q", len(pointers), *pointers)


_NOTHING = _U32.pack(0)


class Source:
    """Reads the parts one after the other. Every method raises struct.error or ValueError where the bytes end too soon."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._end = len(data) - 4

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """The fields of one fixed layout."""
        fields: tuple[int, ...] = layout.unpack_from(self._data, self._at)
        self._move(layout.size)
        return fields

    def i64(self) -> int:
        """One pointer or time."""
        return self.fields(_I64)[0]

    def count(self) -> int:
        """How many of something follow."""
        return self.fields(_U32)[0]

    def string(self) -> str:
        """A string."""
        (length,) = self.fields(_U16)
        return self._take(length).decode()

    def keys(self) -> frozenset[bytes]:
        """A set of keys."""
        return frozenset(self._take(self.count()) for _ in range(self.count()))

    def pointers(self) -> tuple[int, ...]:
        """A run of pointers."""
        count = self.count()
        begin = self._at
        self._move(8 * count)
        return struct.unpack_from(f">{count}q", self._data, begin)

    def end(self) -> None:
        """Raises EditDamaged if anything but the checksum is left."""
        if self._at != self._end:
            raise EditDamaged(f"{self._end - self._at} bytes are left over")

    def _take(self, length: int) -> bytes:
        begin = self._at
        self._move(length)
        return self._data[begin : self._at]

    def _move(self, length: int) -> None:
        self._at += length
        if self._at > self._end:
            raise EditDamaged("the bytes end too soon")


def _started(pointer: int, source: Source) -> Edit:
    kind, lifetime_ms = source.fields(_STARTED)
    return Started(pointer, TransactionType(kind), lifetime_ms)


def _handed_in(pointer: int, source: Source) -> Edit:
    return HandedIn(pointer, source.i64(), source.string() or None, source.keys())


_DECODE: tuple[Callable[[int, Source], Edit], ...] = (
    _started,
    _handed_in,
    lambda pointer, source: Committed(pointer, source.keys()),
    lambda pointer, _: Aborted(pointer),
    lambda pointer, _: Invalidated(pointer),
    lambda pointer, source: Checkpointed(pointer, source.i64()),
    lambda _, source: Pruned(source.pointers()),
    lambda pointer, source: Enlisted(pointer, source.string()),
    lambda pointer, source: Settled(pointer, source.string()),
)


def total_bytes(keys: Iterable[bytes]) -> int:
    """How much a set of keys weighs."""
    return sum(map(len, keys))
