"""Events in a table: how a value becomes a row, and how memory is folded from the rows again.

What is known of transactions and of atomic commits is a fold of such events, numbered without a gap. An event, version 1,
big-endian; its key ends with its number::

    offset  size  field
    0       1     version = 1
    1       1     kind: its number among the kinds of its table, from 1
    2       ...   its fields, one behind the other

    number         i64
    text           length u16 · UTF-8
    optional text  the same; empty for None
    numbers        count u32 · i64 each
    keys           count u32 · per key: length u32 · bytes; rising

An event says what was decided, never what was asked for: replaying it needs no clock and no setting. It has no checksum and does
not repeat its number, since every such row is sealed (seals.py): one that was changed, or lies under another number, never
gets here. A version or a kind that is not known here does, and is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table

VERSION = 1
MAX_TEXT_BYTES = 2**16 - 1
_LAST = 2**63 - 1
_HEAD = struct.Struct(">BB")
_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")

T = TypeVar("T")
E = TypeVar("E", bound=tuple[Any, ...])


class EventDamaged(ValueError):
    """The bytes are not what this version wrote: cut, of another layout, or with something left over."""


class Source:
    """Reads fields one after the other. Raises EventDamaged where the bytes end too soon."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Reads the fields of one fixed layout."""
        return layout.unpack(self.take(layout.size))

    def take(self, size: int) -> bytes:
        """Reads so many bytes."""
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise EventDamaged("the bytes end too soon")
        return self._data[begin : self._at]

    def end(self) -> None:
        """Raises EventDamaged if anything is left."""
        if self._at != len(self._data):
            raise EventDamaged(f"{len(self._data) - self._at} bytes are left over")


class Field(NamedTuple, Generic[T]):
    """How one field is written and read."""

    encode: Callable[[T], bytes]
    decode: Callable[[Source], T]


def _number_of(source: Source) -> int:
    number: int
    (number,) = _I64.unpack(source.take(8))
    return number


def _count_of(source: Source) -> int:
    count: int
    (count,) = _U32.unpack(source.take(4))
    return count


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return _U16.pack(len(data)) + data


def _text_of(source: Source) -> str:
    return source.take(*_U16.unpack(source.take(2))).decode()


def _encode_numbers(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">I{len(numbers)}q", len(numbers), *numbers)


def _numbers_of(source: Source) -> tuple[int, ...]:
    count = _count_of(source)
    return struct.unpack(f">{count}q", source.take(8 * count))


def _encode_keys(keys: frozenset[bytes]) -> bytes:
    parts = [_U32.pack(len(keys))]
    for key in sorted(keys):
        parts += (_U32.pack(len(key)), key)
    return b"".join(parts)


def _keys_of(source: Source) -> frozenset[bytes]:
    return frozenset(source.take(_count_of(source)) for _ in range(_count_of(source)))


NUMBER: Field[int] = Field(_I64.pack, _number_of)
COUNT: Field[int] = Field(_U32.pack, _count_of)
"""How many of something follow, in what is no event."""
TEXT: Field[str] = Field(_encode_text, _text_of)
OPTIONAL_TEXT: Field[str | None] = Field(lambda text: _encode_text(text or ""), lambda source: _text_of(source) or None)
NUMBERS: Field[tuple[int, ...]] = Field(_encode_numbers, _numbers_of)
KEYS: Field[frozenset[bytes]] = Field(_encode_keys, _keys_of)
"""Equal sets have equal bytes."""


def choice(of: type[IntEnum]) -> Field[Any]:
    """One of a few values, as u8."""
    return Field(_U8.pack, lambda source: of(*source.fields(_U8)))


class EventLog(Generic[E]):
    """The events of one table: their kinds, in the order of their numbers on disk, and the fields of each in their order."""

    def __init__(self, table: Table, what: str, kinds: Mapping[type[E], Sequence[Field[Any]]]) -> None:
        """``kinds``: only ever add at the end. ``what``: how damage calls an event."""
        self.kinds = tuple(kinds)
        self._table = table
        self._what = what
        self._written = {kind: (_HEAD.pack(VERSION, at), fields) for at, (kind, fields) in enumerate(kinds.items(), 1)}
        self._read = dict(enumerate(kinds.items(), 1))

    def encode(self, event: E) -> bytes:
        """Returns the event in the layout above."""
        head, fields = self._written[type(event)]
        return head + b"".join([field.encode(value) for field, value in zip(fields, event, strict=True)])

    def decode(self, data: bytes) -> E:
        """Reads an event back. Raises EventDamaged, whatever is wrong with the bytes."""
        source = Source(data)
        version, number = source.fields(_HEAD)
        if version != VERSION or number not in self._read:
            raise EventDamaged(f"version {version} and kind {number} are not known here")
        kind, fields = self._read[number]
        try:
            event = kind(*(field.decode(source) for field in fields))
        except ValueError as error:
            raise EventDamaged(str(error)) from error
        source.end()
        return event

    def put(self, batch: Batch, key: bytes, event: E) -> None:
        """Adds the event to a batch."""
        batch.put(self._table, key, self.encode(event))

    def replay(self, store: Store, key: Callable[[int], bytes], first: int, apply: Callable[[E], None]) -> None:
        """Applies every event from the number ``first`` on, in order. ``key``: number → its key.

        Raises:
            StoreDamaged: one is missing, cannot be read, or cannot follow those before it, which ``apply`` says by a ValueError.
                Half of what happened is never taken for all of it. StoreError.
        """
        with closing(store.scan(self._table, key(first), key(_LAST))) as rows:
            for number, (at, data) in enumerate(rows, first):
                if at != key(number):
                    raise StoreDamaged(
                        f"{self._what} {number} is missing: the next one stored is {int.from_bytes(at[-8:], 'big')}"
                    )
                try:
                    apply(self.decode(data))
                except ValueError as error:
                    raise StoreDamaged(f"{self._what} {number} cannot be read: {error}") from error
