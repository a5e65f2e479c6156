"""Writes the state of all transactions as checksummed bytes, with the number of the last edit it holds.

Layout, version 2, big-endian; texts, keys and numbers as storage/events.py draws them::

    offset  size  field
    0       4     magic "OLTX"
    4       1     version = 2
    5       8     number of the last edit in it, i64: every edit up to it, none above
    13      8     highest pointer handed out, i64
    21      8     read pointer, i64
    29      4     late_limit u32
    33      ...   invalid   count u32 · each: owner optional text · numbers, rising; the transactions that are invalid, without
                            checkpoints, and acknowledged, by owner
            ...   open      count u32 · each: id i64 · type u8 · phase u8 (1 open, 2 committing, 3 prepared) · read pointer i64 ·
                            first short i64 · lifetime i64 ms · resource optional text · keys · checkpoints numbers ·
                            participants · owner optional text
            ...   ended     count u32 · each: id i64 · phase u8 (4 committed, 5 aborted, 6 invalid) · checkpoints numbers ·
                            unacknowledged participants · owner optional text; every ended transaction that is not in `invalid`
            ...   committed count u32 · each: commit pointer i64 · id i64 · keys; in the order of the commits
            ...   late      numbers: pointer, commit pointer, pointer, …; in the order of the commits
            ...   unjudged  numbers, rising: the ids of those short ones in progress that change sets were dropped under
    end-4   4     CRC-32 of everything before it, little-endian

    participants   count u32 · each: pointer i64 · text

Version 1 ends before `unjudged`. It is still what is written where there are none of those: so a version that knows no other goes
on with the store until change sets are dropped, and again once those transactions have ended.

Most of a large state is invalid transactions and nothing else about them: they are one run of numbers for each owner.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.events import (
    KEYS,
    NUMBER,
    NUMBERS,
    OPTIONAL_TEXT,
    TEXT,
    EventDamaged,
    Source,
    many,
    one_of,
    record,
)
from oncelog_service.transactions.state import (
    EndedTransaction,
    LateCommit,
    OpenTransaction,
    Participant,
    Phase,
    TransactionsState,
    committed_changes,
)

_MAGIC = int.from_bytes(b"OLTX", "big")
_VERSION, _WITHOUT_UNJUDGED = 2, 1
_HEAD = struct.Struct(">IBqqqI")


class _Bare(NamedTuple):
    """The invalid transactions of one owner of which there is nothing else to say."""

    owner: str | None
    pointers: tuple[int, ...]


class _Changes(NamedTuple):
    """A change set that committed."""

    commit_pointer: int
    pointer: int
    changes: frozenset[bytes]


_KIND = one_of(*TransactionType)
_PHASE = one_of(Phase.OPEN, Phase.COMMITTING, Phase.PREPARED, Phase.COMMITTED, Phase.ABORTED, Phase.INVALID)
_PARTICIPANTS = many(record(Participant, NUMBER, TEXT))
_BARE = many(record(_Bare, OPTIONAL_TEXT, NUMBERS))
_OPEN = many(
    record(
        *(OpenTransaction, NUMBER, _KIND, _PHASE, NUMBER, NUMBER, NUMBER, OPTIONAL_TEXT, KEYS, NUMBERS, _PARTICIPANTS),
        OPTIONAL_TEXT,
    )
)
_ENDED = many(record(EndedTransaction, NUMBER, _PHASE, NUMBERS, _PARTICIPANTS, OPTIONAL_TEXT))
_COMMITTED = many(record(_Changes, NUMBER, NUMBER, KEYS))


def encode_snapshot(state: TransactionsState) -> bytes:
    """Returns the state in the layout above. Equal states have equal bytes."""
    ended = sorted(state.ended.values())
    parts = [
        _HEAD.pack(
            _MAGIC,
            _VERSION if state.unjudged else _WITHOUT_UNJUDGED,
            state.number,
            state.last,
            state.read_pointer,
            state.late_limit,
        ),
        _BARE.encode(_bare(filter(_is_bare, ended))),
        _OPEN.encode(state.open.values()),
        _ENDED.encode([each for each in ended if not _is_bare(each)]),
        _COMMITTED.encode([_Changes(*each[:3]) for each in state.committed]),
        NUMBERS.encode(tuple(chain.from_iterable(state.late))),
        NUMBERS.encode(tuple(state.unjudged)) if state.unjudged else b"",
    ]
    return with_checksum(b"".join(parts))


def _bare(ended: Iterable[EndedTransaction]) -> list[_Bare]:
    pointers: dict[str, list[int]] = {}
    for each in ended:
        pointers.setdefault(each.owner or "", []).append(each.pointer)
    return [_Bare(owner or None, tuple(pointers[owner])) for owner in sorted(pointers)]


def _is_bare(ended: EndedTransaction) -> bool:
    return ended.phase is Phase.INVALID and not ended.checkpoints and not ended.unacknowledged


def decode_snapshot(data: bytes) -> TransactionsState:
    """Reads a snapshot back.

    Raises:
        EventDamaged: whatever is wrong with the bytes. Never half a state.
    """
    if not matches(data):
        raise EventDamaged(f"the checksum of {len(data)} bytes does not match them")
    source, state = Source(data[:-SIZE]), TransactionsState()
    try:
        magic, version, state.number, state.last, state.read_pointer, state.late_limit = source.fields(_HEAD)
        if magic != _MAGIC or version not in (_VERSION, _WITHOUT_UNJUDGED):
            raise EventDamaged(f"not a snapshot of layout version {_VERSION} or 1: magic {magic:#x}, version {version}")
        # Rising over all owners: each that came between others would move all of these.
        bare = sorted(
            EndedTransaction(pointer, Phase.INVALID, (), (), owner)
            for owner, pointers in _BARE.decode(source)
            for pointer in pointers
        )
        state.track(_OPEN.decode(source), [*bare, *_ENDED.decode(source)])
        state.recall([committed_changes(*each) for each in _COMMITTED.decode(source)])
        late = NUMBERS.decode(source)
        state.late = [LateCommit(*pair) for pair in zip(late[::2], late[1::2], strict=True)]
        state.leave_unjudged(NUMBERS.decode(source) if version == _VERSION else ())
        source.end()
    except ValueError as error:
        raise EventDamaged(f"the snapshot cannot be read: {error}") from error
    return state
