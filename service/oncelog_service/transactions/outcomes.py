"""What became of a write pointer, for as long as somebody may ask: one row per pointer, written with the end of its transaction.

A row of OUTCOME, version 1, big-endian; its key is the pointer::

    offset  size  field
    0       1     version = 1
    1       1     1 committed · 2 aborted · 3 invalid
    2       8     id of the transaction that the pointer belongs to, i64
    10      8     the pointer itself, i64
    18      4     CRC-32 of everything before it, little-endian
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

from oncelog.wire.models import TransactionState
from oncelog_service.storage.checksum import with_checksum
from oncelog_service.storage.keys import outcome_key
from oncelog_service.storage.port import Store, StoreDamaged, Table
from oncelog_service.transactions.edits import EditDamaged, check_checksum

VERSION = 1
_LAYOUT = struct.Struct(">BBqq")
_STATES: dict[int, TransactionState] = {1: "committed", 2: "aborted", 3: "invalid"}
_NUMBERS = {state: number for number, state in _STATES.items()}


class Outcome(NamedTuple):
    """How the transaction ``root`` ended."""

    root: int
    state: TransactionState


def encode_outcome(pointer: int, outcome: Outcome) -> bytes:
    """The row's value."""
    return with_checksum(_LAYOUT.pack(VERSION, _NUMBERS[outcome.state], outcome.root, pointer))


def decode_outcome(pointer: int, data: bytes) -> Outcome:
    """Read one back. Raises EditDamaged for anything but what :func:`encode_outcome` writes for this pointer."""
    check_checksum(data)
    if len(data) != _LAYOUT.size + 4 or data[0] != VERSION:
        raise EditDamaged(f"the outcome of {pointer} is of an unknown version")
    _, number, root, belongs_to = _LAYOUT.unpack_from(data)
    if belongs_to != pointer or number not in _STATES:
        raise EditDamaged(f"the outcome of {pointer} says {number} of pointer {belongs_to}")
    return Outcome(root, _STATES[number])


def read_outcomes(store: Store, pointers: Collection[int]) -> dict[int, Outcome]:
    """The outcomes of those that have one. Raises StoreDamaged, StoreError."""
    found = {}
    for pointer in pointers:
        data = store.get(Table.OUTCOME, outcome_key(pointer))
        if data is None:
            continue
        try:
            found[pointer] = decode_outcome(pointer, data)
        except EditDamaged as damage:
            raise StoreDamaged(str(damage)) from damage
    return found


def oldest_outcomes(store: Store, below: int, limit: int) -> list[bytes]:
    """The keys of at most ``limit`` outcomes of pointers below ``below``, oldest first."""
    keys: list[bytes] = []
    rows = store.scan(Table.OUTCOME, b"", outcome_key(below))
    try:
        for key, _ in rows:
            keys.append(key)
            if len(keys) == limit:
                break
    finally:
        rows.close()
    return keys
