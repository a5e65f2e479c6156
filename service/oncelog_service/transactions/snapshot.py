"""Writes the state of all transactions as checksummed bytes, with the number of the last edit it holds.

Layout, version 1, big-endian; texts, keys and numbers as storage/events.py draws them::

    offset  size  field
    0       4     magic "OLTX"
    4       1     version = 1
    5       8     number of the last edit in it, i64: every edit up to it, none above
    13      8     highest pointer handed out, i64
    21      8     read pointer, i64
    29      4     late_limit u32
    33      ...   invalid   numbers: the transactions that are invalid, without checkpoints, and acknowledged; rising
            ...   open      count u32 · each: id i64 · type u8 · phase u8 (1 open, 2 committing, 3 prepared) · read pointer i64 ·
                            first short i64 · lifetime i64 ms · resource optional text · keys · checkpoints numbers · participants
            ...   ended     count u32 · each: id i64 · phase u8 (4 committed, 5 aborted, 6 invalid) · checkpoints numbers ·
                            unacknowledged participants; every ended transaction that is not in `invalid`
            ...   committed count u32 · each: commit pointer i64 · id i64 · keys; in the order of the commits
            ...   late      numbers: pointer, commit pointer, pointer, …; in the order of the commits
    end-4   4     CRC-32 of everything before it, little-endian

    participants   count u32 · each: pointer i64 · text

Most of a large state is invalid transactions and nothing else about them: they are one run of numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain

from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.events import COUNT, KEYS, NUMBER, NUMBERS, OPTIONAL_TEXT, TEXT, EventDamaged, Source
from oncelog_service.transactions.state import (
    CommittedChanges,
    EndedPhase,
    EndedTransaction,
    LateCommit,
    OpenTransaction,
    Participant,
    Phase,
    TransactionsState,
)

_MAGIC = int.from_bytes(b"OLTX", "big")
VERSION = 1
_HEAD = struct.Struct(">IBqqqI")
_OPEN = struct.Struct(">qBBqqq")
_ENDED = struct.Struct(">qB")
_COMMITTED = struct.Struct(">qq")

_OPEN_PHASES = {1: Phase.OPEN, 2: Phase.COMMITTING, 3: Phase.PREPARED}
_ENDED_PHASES: dict[int, EndedPhase] = {4: Phase.COMMITTED, 5: Phase.ABORTED, 6: Phase.INVALID}
_NUMBER_OF: dict[Phase, int] = {phase: number for number, phase in [*_OPEN_PHASES.items(), *_ENDED_PHASES.items()]}


def encode_snapshot(state: TransactionsState) -> bytes:
    """Returns the state in the layout above. Equal states have equal bytes."""
    ended = sorted(state.ended.values())
    bare = tuple(each.pointer for each in ended if _is_bare(each))
    others = [each for each in ended if not _is_bare(each)]
    parts = [
        _HEAD.pack(_MAGIC, VERSION, state.number, state.last, state.read_pointer, state.late_limit),
        NUMBERS.encode(bare),
        COUNT.encode(len(state.open)),
        *map(_encode_open, state.open.values()),
        COUNT.encode(len(others)),
        *map(_encode_ended, others),
        COUNT.encode(len(state.committed)),
        *(_COMMITTED.pack(each.commit_pointer, each.pointer) + KEYS.encode(each.changes) for each in state.committed),
        NUMBERS.encode(tuple(chain.from_iterable(state.late))),
    ]
    return with_checksum(b"".join(parts))


def _is_bare(ended: EndedTransaction) -> bool:
    return ended.phase is Phase.INVALID and not ended.checkpoints and not ended.unacknowledged


def _encode_open(transaction: OpenTransaction) -> bytes:
    head = _OPEN.pack(
        transaction.pointer,
        transaction.kind,
        _NUMBER_OF[transaction.phase],
        transaction.read_pointer,
        transaction.first_short,
        transaction.lifetime_ms,
    )
    return b"".join(
        (
            head,
            OPTIONAL_TEXT.encode(transaction.resource),
            KEYS.encode(transaction.changes),
            NUMBERS.encode(transaction.checkpoints),
            _encode_participants(transaction.participants),
        )
    )


def _encode_ended(ended: EndedTransaction) -> bytes:
    head = _ENDED.pack(ended.pointer, _NUMBER_OF[ended.phase])
    return head + NUMBERS.encode(ended.checkpoints) + _encode_participants(ended.unacknowledged)


def _encode_participants(participants: Sequence[Participant]) -> bytes:
    parts = [NUMBER.encode(pointer) + TEXT.encode(name) for pointer, name in participants]
    return COUNT.encode(len(parts)) + b"".join(parts)


def decode_snapshot(data: bytes) -> TransactionsState:
    """Reads a snapshot back.

    Raises:
        EventDamaged: whatever is wrong with the bytes. Never half a state.
    """
    if not matches(data):
        raise EventDamaged(f"the checksum of {len(data)} bytes does not match them")
    try:
        return _decode(Source(data[:-SIZE]))
    except (ValueError, KeyError) as error:
        raise EventDamaged(f"the snapshot cannot be read: {error}") from error


def _decode(source: Source) -> TransactionsState:
    state = TransactionsState()
    magic, version, state.number, state.last, state.read_pointer, state.late_limit = source.fields(_HEAD)
    if magic != _MAGIC or version != VERSION:
        raise EventDamaged(f"not a snapshot of layout version {VERSION}: magic {magic:#x}, version {version}")
    bare = [EndedTransaction(pointer, Phase.INVALID, (), ()) for pointer in NUMBERS.decode(source)]
    opened = [_decode_open(source) for _ in range(COUNT.decode(source))]
    state.track(opened, bare + [_decode_ended(source) for _ in range(COUNT.decode(source))])
    state.recall([_decode_committed(source) for _ in range(COUNT.decode(source))])
    late = NUMBERS.decode(source)
    state.late = [LateCommit(*pair) for pair in zip(late[::2], late[1::2], strict=True)]
    source.end()
    return state


def _decode_open(source: Source) -> OpenTransaction:
    pointer, kind, phase, read_pointer, first_short, lifetime_ms = source.fields(_OPEN)
    resource, changes = OPTIONAL_TEXT.decode(source), KEYS.decode(source)
    return OpenTransaction(
        pointer,
        TransactionType(kind),
        _OPEN_PHASES[phase],
        read_pointer,
        first_short,
        lifetime_ms,
        resource,
        changes,
        NUMBERS.decode(source),
        _decode_participants(source),
    )


def _decode_ended(source: Source) -> EndedTransaction:
    pointer, phase = source.fields(_ENDED)
    return EndedTransaction(pointer, _ENDED_PHASES[phase], NUMBERS.decode(source), _decode_participants(source))


def _decode_committed(source: Source) -> CommittedChanges:
    commit_pointer, pointer = source.fields(_COMMITTED)
    return CommittedChanges(commit_pointer, pointer, KEYS.decode(source))


def _decode_participants(source: Source) -> tuple[Participant, ...]:
    return tuple((NUMBER.decode(source), TEXT.decode(source)) for _ in range(COUNT.decode(source)))
