"""Outcomes of write pointers, kept for as long as they may be asked for: one row per pointer, written with the end of its
transaction.

A row of OUTCOME, version 1, big-endian; its key is the pointer, and it is sealed (storage/seals.py)::

    offset  size  field
    0       1     version = 1
    1       1     1 committed · 2 aborted · 3 invalid
    2       8     id of the transaction that the pointer belongs to, i64
    10      ...   its owner, UTF-8; nothing: nobody with a name
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from oncelog.wire.models import TransactionState
from oncelog_service.storage.keys import outcome_key
from oncelog_service.storage.port import Store, StoreDamaged, Table

VERSION = 1
_LAYOUT = struct.Struct(">BBq")
_STATES: dict[int, TransactionState] = {1: "committed", 2: "aborted", 3: "invalid"}
_NUMBERS = {state: number for number, state in _STATES.items()}


class Outcome(NamedTuple):
    """The way in which the transaction ``root`` ended."""

    root: int
    state: TransactionState
    owner: str | None = None


def encode_outcome(outcome: Outcome) -> bytes:
    """Returns the row's value."""
    return _LAYOUT.pack(VERSION, _NUMBERS[outcome.state], outcome.root) + (outcome.owner or "").encode()


def decode_outcome(data: bytes) -> Outcome:
    """Reads one back. Raises StoreDamaged."""
    if len(data) < _LAYOUT.size or data[0] != VERSION or data[1] not in _STATES:
        raise StoreDamaged(f"{data[:20]!r} is no outcome of a transaction")
    _, number, root = _LAYOUT.unpack_from(data)
    try:
        owner = data[_LAYOUT.size :].decode()
    except UnicodeDecodeError as error:
        raise StoreDamaged(f"{data[:20]!r} is no outcome of a transaction: {error}") from error
    return Outcome(root, _STATES[number], owner or None)


def read_outcomes(store: Store, pointers: Collection[int]) -> dict[int, Outcome]:
    """Returns the outcomes of those that have one. Raises StoreDamaged, StoreError."""
    found = {pointer: store.get(Table.OUTCOME, outcome_key(pointer)) for pointer in pointers}
    return {pointer: decode_outcome(data) for pointer, data in found.items() if data is not None}


def oldest_outcomes(store: Store, below: int, limit: int) -> list[bytes]:
    """Returns the keys of at most ``limit`` outcomes of pointers below ``below``, oldest first."""
    with closing(store.scan(Table.OUTCOME, b"", outcome_key(below))) as rows:
        return [key for key, _ in islice(rows, limit)]
