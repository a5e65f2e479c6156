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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import Any, Generic, NamedTuple, TypeVar

from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table

VERSION = 1
MAX_TEXT_BYTES = 2**16 - 1
_LAST = 2**63 - 1
_HEAD = struct.Struct(">BB")

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])
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


def _fixed(layout: struct.Struct) -> Field[int]:
    def decode(source: Source) -> int:
        number: int
        (number,) = source.fields(layout)
        return number

    return Field(layout.pack, decode)


def _sized(length: Field[int]) -> Field[bytes]:
    """Bytes behind their length."""
    return Field(lambda data: length.encode(len(data)) + data, lambda source: source.take(length.decode(source)))


NUMBER = _fixed(struct.Struct(">q"))
_U8, _U16, _U32 = (_fixed(struct.Struct(">" + size)) for size in "BHI")
_TEXT, _KEY = _sized(_U16), _sized(_U32)


def many(field: Field[T]) -> Field[Collection[T]]:
    """Any number of the same: how many as u32, and each."""
    return Field(
        lambda values: _U32.encode(len(values)) + b"".join(map(field.encode, values)),
        lambda source: tuple(field.decode(source) for _ in range(_U32.decode(source))),
    )


TEXT: Field[str] = Field(lambda text: _TEXT.encode(text.encode()), lambda source: _TEXT.decode(source).decode())
OPTIONAL_TEXT: Field[str | None] = Field(lambda text: TEXT.encode(text or ""), lambda source: TEXT.decode(source) or None)
NUMBERS: Field[tuple[int, ...]] = Field(
    lambda numbers: struct.pack(f">I{len(numbers)}q", len(numbers), *numbers),
    lambda source: source.fields(struct.Struct(f">{_U32.decode(source)}q")),  # `many` takes ten times as long
)
_KEYS = many(_KEY)
KEYS: Field[frozenset[bytes]] = Field(lambda keys: _KEYS.encode(sorted(keys)), lambda source: frozenset(_KEYS.decode(source)))
"""Equal sets have equal bytes."""


def one_of(*values: T) -> Field[T]:
    """One of these, as u8 from 1 on."""

    def decode(source: Source) -> T:
        number = _U8.decode(source)
        if not 1 <= number <= len(values):
            raise EventDamaged(f"{number} is none of {len(values)} values")
        return values[number - 1]

    return Field({value: _U8.encode(number) for number, value in enumerate(values, 1)}.__getitem__, decode)


def record(kind: Callable[..., R], *fields: Field[Any]) -> Field[R]:
    """A tuple of these fields, one behind the other; ``kind`` makes it of them."""
    return Field(
        lambda values: b"".join([field.encode(value) for field, value in zip(fields, values, strict=True)]),
        lambda source: kind(*[field.decode(source) for field in fields]),
    )


class EventLog(Generic[E]):
    """The events of one table: their kinds, in the order of their numbers on disk, and the fields of each in their order."""

    def __init__(self, table: Table, what: str, kinds: Mapping[type[E], Sequence[Field[Any]]]) -> None:
        """``kinds``: only ever add at the end. ``what``: how damage calls an event."""
        self.kinds = tuple(kinds)
        self._table = table
        self._what = what
        fields = {kind: record(kind, *fields) for kind, fields in kinds.items()}
        self._written = {kind: (_HEAD.pack(VERSION, at), fields[kind].encode) for at, kind in enumerate(kinds, 1)}
        self._read = {at: fields[kind].decode for at, kind in enumerate(kinds, 1)}

    def encode(self, event: E) -> bytes:
        """Returns the event in the layout above."""
        head, encode = self._written[type(event)]
        return head + encode(event)

    def decode(self, data: bytes) -> E:
        """Reads an event back. Raises EventDamaged, whatever is wrong with the bytes."""
        source = Source(data)
        version, number = source.fields(_HEAD)
        if version != VERSION or number not in self._read:
            raise EventDamaged(f"version {version} and kind {number} are not known here")
        try:
            event = self._read[number](source)
        except ValueError as error:
            raise EventDamaged(str(error)) from error
        source.end()
        return event

    def put(self, batch: Batch, key: bytes, event: E, size: int = 0) -> None:
        """Adds the event to a batch. ``size``: about how many bytes it has, where they are to be made by the write."""
        if size:
            batch.put_later(self._table, key, size, lambda: ((b"", self.encode(event)),))
        else:
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
