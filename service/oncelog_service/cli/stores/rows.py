"""Rows of every table as a stopped store holds them: read as what they are, and named; for `verify` and `salvage`."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping

from oncelog_dedup.snapshot import Snapshot
from oncelog_service.atomic.outcomes import decode_ended
from oncelog_service.atomic.records import RECORDS
from oncelog_service.storage import records
from oncelog_service.storage.incarnation import decode_row
from oncelog_service.storage.keys import GENERATION_SIZE, PAYLOAD_ID_SIZE, ROW_ID_SIZE
from oncelog_service.storage.pieces import intact_piece, is_piece
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import decode_record
from oncelog_service.storage.runs import decode_run
from oncelog_service.storage.seals import UNSEALED, unseal
from oncelog_service.transactions.edits import EDITS
from oncelog_service.transactions.outcomes import decode_outcome
from oncelog_service.transactions.snapshot import decode_snapshot

_TOPIC_KEY = re.compile(rb"([!-9;-~]+):([!-9;-~]+):", re.DOTALL)


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big", signed=True)


def _whole(read: Callable[[bytes], object], value: bytes) -> object:
    """What a row of a snapshot says, or that it is a piece of one that is intact. Raises ValueError."""
    if not is_piece(value):
        return read(value)
    if not intact_piece(value):
        raise ValueError("the piece does not match its checksum")
    return value


def _record(kind: type[records.Record]) -> Callable[[bytes, bytes], object]:
    return lambda _, value: decode_record(kind, value)


READ: Mapping[Table, Callable[[bytes, bytes], object]] = {
    Table.MESSAGE: lambda key, value: decode_run(key[:-ROW_ID_SIZE], key[-ROW_ID_SIZE:], value),
    Table.PAYLOAD: lambda key, value: decode_run(key[:-PAYLOAD_ID_SIZE], key[-PAYLOAD_ID_SIZE:], value),
    Table.TOPIC: _record(records.TopicRow),
    Table.NAMESPACE: _record(records.NamespaceRow),
    Table.PRODUCER: _record(records.ProducerRow),
    Table.SNAPSHOT: lambda _, value: _whole(Snapshot.from_bytes, value),
    Table.TRIM: _record(records.TrimRow),
    Table.EXPIRY: _record(records.ExpiryRow),
    Table.GROUP: _record(records.GroupRow),
    Table.TRANSACTION_EDIT: lambda _, value: EDITS.decode(value),
    Table.TRANSACTION_SNAPSHOT: lambda _, value: _whole(decode_snapshot, value),
    Table.OUTCOME: lambda _, value: decode_outcome(value),
    Table.STORE_ID: decode_row,
    Table.KEY_SNAPSHOT: lambda _, value: _whole(Snapshot.from_bytes, value),
    Table.CHUNK: _record(records.ChunkRow),
    Table.JOURNAL: lambda _, value: RECORDS.decode(value),
    Table.JOURNAL_META: _record(records.JournalMetaRow),
    Table.ATOMIC_ID: lambda _, value: struct.unpack(">q", value),
    Table.ATOMIC_OUTCOME: lambda _, value: decode_ended(value),
    Table.GROUP_PRODUCER: _record(records.GroupProducerRow),
    Table.GROUP_NOTE: _record(records.GroupNoteRow),
    Table.SUBSCRIPTION: _record(records.SubscriptionRow),
    Table.TOKEN: _record(records.TokenRow),
    Table.LOST: _record(records.LostRow),
    Table.ENDED: _record(records.EndedRow),
}
"""How each table's rows are read, without their seals; that checks their form, and the checksums of those that have no seal."""


def _unsealing(table: Table, read: Callable[[bytes, bytes], object]) -> Callable[[bytes, bytes], object]:
    return lambda key, value: read(key, unseal(table, key, value))


ON_DISK: Mapping[Table, Callable[[bytes, bytes], object]] = {
    table: read if table in UNSEALED else _unsealing(table, read) for table, read in READ.items()
}
"""The same for rows as they stand on disk."""


def shown_key(key: bytes) -> str:
    """A key for people: topic, generation, and what follows as hex digits or, where it is a name, as text."""
    topic = _TOPIC_KEY.match(key)
    if topic is None or topic.end() == len(key):
        return _text(key.removesuffix(b":").replace(b":", b"/"))
    name, rest = f"{topic[1].decode()}/{topic[2].decode()}", key[topic.end() :]
    if len(rest) < GENERATION_SIZE:
        return _text(key)
    generation, end = _number(rest[:GENERATION_SIZE]), rest[GENERATION_SIZE:]
    return f"{name} generation {generation}" + (f" {_text(end)}" if end else "")


def _text(key: bytes) -> str:
    if not key:
        return "(one row)"
    text = key.decode("ascii", "replace")
    return text if text.isprintable() and "\ufffd" not in text else key.hex()
