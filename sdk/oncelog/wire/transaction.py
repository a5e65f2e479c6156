"""A transaction as its readers need it: what it sees, as a value and as the Thrift bytes that travel (CONTRACT §8.4).

Tephra's ``TTransaction``, TBinaryProtocol: fields of one struct, each a type byte, an id (i16) and a value, then a stop byte::

    1 i64 transactionId · 2 i64 readPointer · 3 list<i64> invalids · 4 list<i64> inProgress · 5 i64 firstShort ·
    6 i32 type · 7 i64 writePointer · 8 list<i64> checkpointWritePointers · 9 i32 visibilityLevel

The lists come from clients too and may be unsorted; Tephra searches them by bisection, and an unsorted one leaked messages.
Here they are sets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from oncelog.errors import InvalidTransaction

NO_SHORT = 2**63 - 1
"""``firstShort`` where no short transaction is in progress (Tephra's NO_TX_IN_PROGRESS)."""
POINTERS_PER_MS = 1_000_000
"""Ids of transactions begin with the time, so a pointer's age is in it: ``max(last + 1, now_ms * 1_000_000 + 500_000)``."""
_OWN_FROM = 500_000
"""Of each millisecond the upper half is ours. Tephra counts up from its beginning: ``max(last + 1, now_ms * 1_000_000)``."""


def is_own(pointer: int) -> bool:
    """Whether the pointer lies where our transaction service hands them out, and Tephra gets only while its clock is behind."""
    return pointer % POINTERS_PER_MS >= _OWN_FROM


def next_own(pointer: int) -> int:
    """The first pointer from this one on that is ours to hand out."""
    return pointer if is_own(pointer) else pointer - pointer % POINTERS_PER_MS + _OWN_FROM


class TransactionType(IntEnum):
    """Short transactions time out soon and detect conflicts; long ones do neither."""

    SHORT = 1
    LONG = 2


class VisibilityLevel(IntEnum):
    """Says which of its own writes a transaction sees."""

    SNAPSHOT = 1
    """All of them."""
    SNAPSHOT_EXCLUDE_CURRENT = 2
    """Those before its latest checkpoint. What it has written since is undecided for it, as in Tephra: a topic ends before it."""
    SNAPSHOT_ALL = 3
    """All of them, in every version."""


@dataclass(frozen=True)
class Transaction:
    """A transaction, as of its start or its latest checkpoint. Immutable."""

    transaction_id: int
    read_pointer: int
    """The highest pointer that may be visible at all."""
    invalids: Sequence[int] = ()
    """Pointers never to be seen."""
    in_progress: Sequence[int] = ()
    """Pointers that were undecided when the transaction began, checkpoints included."""
    first_short: int = NO_SHORT
    """The first short transaction among ``in_progress``."""
    type: TransactionType = TransactionType.SHORT
    write_pointer: int = 0
    """What its writes carry; the latest checkpoint's pointer where there is one."""
    checkpoint_write_pointers: Sequence[int] = ()
    visibility_level: VisibilityLevel = VisibilityLevel.SNAPSHOT

    @cached_property
    def own(self) -> frozenset[int]:
        """The pointers whose writes it sees as its own."""
        if self.visibility_level is VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT:
            return frozenset({self.transaction_id, *self.checkpoint_write_pointers} - {self.write_pointer})
        return frozenset({self.transaction_id, self.write_pointer, *self.checkpoint_write_pointers})

    @cached_property
    def excluded(self) -> frozenset[int]:
        """The pointers whose writes it passes over."""
        return frozenset(self.invalids) - self.own

    @cached_property
    def undecided(self) -> frozenset[int]:
        """The pointers at or below ``read_pointer`` whose outcome it does not know."""
        return frozenset(self.in_progress) - self.own - self.excluded

    def to_bytes(self) -> bytes:
        """The Thrift bytes."""
        fields = (_encode_field(number, kind, getattr(self, name)) for number, (name, kind) in _FIELDS.items())
        return b"".join(fields) + b"\x00"

    @classmethod
    def from_bytes(cls, data: bytes) -> Transaction:
        """Read Thrift bytes: each field at most once, in any order; lists, type and visibility may be left out.

        Raises:
            InvalidTransaction: whatever is wrong with the bytes, also one too many.
        """
        values: dict[str, Any] = {}
        at = 0
        try:
            while data[at]:
                kind, number = _FIELD.unpack_from(data, at)
                at += _FIELD.size
                name, expected = _FIELDS.get(number, ("", 0))
                if kind != expected or name in values:
                    raise InvalidTransaction(f"field {number} of type {kind} does not belong into a transaction, or not twice")
                values[name], at = _decode_value(kind, data, at)
            if at + 1 != len(data):
                raise InvalidTransaction(f"{len(data) - at - 1} bytes follow the transaction")
            for name, one_of in (("type", TransactionType), ("visibility_level", VisibilityLevel)):
                if name in values:
                    values[name] = one_of(values[name])
            return cls(**values)
        except InvalidTransaction:
            raise
        except (IndexError, struct.error, ValueError, TypeError) as error:
            raise InvalidTransaction(f"these {len(data)} bytes are not a transaction in Thrift's binary protocol") from error


SETTLED = Transaction(transaction_id=0, read_pointer=2**63 - 1)
"""What sees everything that is not rolled back. Of the stable part of a log, that is what is committed."""

_TYPE_I32, _TYPE_I64, _TYPE_LIST = 8, 10, 15
_FIELD = struct.Struct(">Bh")
_NUMBER = {_TYPE_I32: struct.Struct(">i"), _TYPE_I64: struct.Struct(">q")}
_LIST = struct.Struct(">Bi")

_FIELDS = {
    1: ("transaction_id", _TYPE_I64),
    2: ("read_pointer", _TYPE_I64),
    3: ("invalids", _TYPE_LIST),
    4: ("in_progress", _TYPE_LIST),
    5: ("first_short", _TYPE_I64),
    6: ("type", _TYPE_I32),
    7: ("write_pointer", _TYPE_I64),
    8: ("checkpoint_write_pointers", _TYPE_LIST),
    9: ("visibility_level", _TYPE_I32),
}


def _encode_field(number: int, kind: int, value: Any) -> bytes:
    if kind != _TYPE_LIST:
        return _FIELD.pack(kind, number) + _NUMBER[kind].pack(value)
    return _FIELD.pack(kind, number) + _LIST.pack(_TYPE_I64, len(value)) + struct.pack(f">{len(value)}q", *value)


def _decode_value(kind: int, data: bytes, at: int) -> tuple[int | tuple[int, ...], int]:
    if kind == _TYPE_LIST:
        of, count = _LIST.unpack_from(data, at)
        at += _LIST.size
        # Held against the bytes that are there before anything is made: a count is four bytes of a stranger's.
        if of != _TYPE_I64 or not 0 <= count <= (len(data) - at) // 8:
            raise InvalidTransaction(f"a list of {count} values of type {of} does not fit into {len(data) - at} bytes")
        return struct.unpack_from(f">{count}q", data, at), at + 8 * count
    (value,) = _NUMBER[kind].unpack_from(data, at)
    return value, at + _NUMBER[kind].size
