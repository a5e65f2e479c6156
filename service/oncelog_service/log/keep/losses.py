"""What a salvaged store lacks, and how it becomes one that opens: holes in logs are filled with rows that no reader is given.

A filler is an empty message without a name whose own time to live is over: offsets stay dense, ids go on rising, and the fold
counts nothing. What the lost messages' sequence ids were is not known: of a producer with later messages, or in a snapshot, they
count as published, of others they do not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from oncelog.errors import TopicDamaged
from oncelog_service.log.keep.recovery import read_snapshots
from oncelog_service.log.scan import after, bytes_in, earliest_offset, run_before, runs_from, stored_in, trim_of
from oncelog_service.properties import MAX_TTL, TTL
from oncelog_service.storage.events import EventDamaged
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import (
    AFTER_ANY,
    AFTER_NUMBERS,
    FIRST_ROW_ID,
    GENERATION_SIZE,
    ROW_ID_SIZE,
    SNAPSHOT_SLOTS,
    split_chunk_key,
    split_topic_key,
)
from oncelog_service.storage.pieces import get_pieces
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import JournalMetaRow, TopicRow, decode_record, encode_record
from oncelog_service.storage.rows import FILLER_TTL, encode_messages
from oncelog_service.storage.runs import GROUP, Laying, StoredRun
from oncelog_service.transactions.edits import EDITS
from oncelog_service.transactions.snapshot import decode_snapshot

_END = b"\xff" * 64
_AT_ONCE = 2_000
_SKIPPED = 2**32
"""Numbers of atomic commits that may have been handed out, and are not known."""


class Hole(NamedTuple):
    """Messages of a topic that are not there."""

    prefix: bytes
    """What begins every key of the topic's generation."""
    first: int
    end: int
    """The offset behind the last of them."""
    after: bytes
    """Id of the row before, zeros for none."""
    before: bytes | None
    """Id of the row behind; None: they are the last ones that a snapshot knows of."""
    instead_of: bytes | None = None
    """A row that stands for a group whose payloads are not all there."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{_name(self.prefix)}: offsets {self.first} to {self.end - 1}"


def prefixes(store: Store) -> Iterator[bytes]:
    """What begins the keys of each log of messages: topic key and generation."""
    start = b""
    while True:
        with closing(store.scan(Table.MESSAGE, start, _END)) as rows:
            found = next(rows, None)
        if found is None:
            return
        prefix = found[0][:-ROW_ID_SIZE]
        yield prefix
        start = prefix + AFTER_ANY


def lost_topics(store: Store) -> Iterator[tuple[bytes, TopicRow]]:
    """(key, row made up) of every topic that has messages and no row: its properties are not known."""
    newest: dict[bytes, tuple[int, int]] = {}
    for prefix in prefixes(store):
        topic, generation = prefix[:-GENERATION_SIZE], int.from_bytes(prefix[-GENERATION_SIZE:], "big")
        with closing(store.scan(Table.MESSAGE, prefix, prefix + AFTER_ANY)) as rows:
            created = int.from_bytes(next(rows)[0][len(prefix) :][:8], "big")
        newest[topic] = generation, created
    for topic, (generation, created) in newest.items():
        if store.get(Table.TOPIC, topic) is None:
            yield topic, TopicRow(generation, created, {TTL: str(MAX_TTL)})


def holes(store: Store) -> Iterator[Hole]:
    """Finds the holes of every topic that is not deleted, in the order of keys. Rows must be intact. Raises StoreError."""
    for prefix in _present(store):
        yield from _holes_in(store, prefix)


def _present(store: Store) -> Iterator[bytes]:
    """:func:`prefixes`, of topics that are not deleted and of their newest generations."""
    for prefix in prefixes(store):
        data = store.get(Table.TOPIC, prefix[:-GENERATION_SIZE])
        row = None if data is None else decode_record(TopicRow, data)
        if row is None or (not row.deleted and row.generation == int.from_bytes(prefix[-GENERATION_SIZE:], "big")):
            yield prefix


def _holes_in(store: Store, prefix: bytes) -> Iterator[Hole]:
    trim = trim_of(store, prefix)
    upcoming = trim.earliest_offset
    last = bytes(ROW_ID_SIZE) if trim.last_id is None else bytes.fromhex(trim.last_id)[:ROW_ID_SIZE]
    with closing(store.scan(Table.MESSAGE, prefix, prefix + AFTER_ANY)) as rows:
        for key, row in rows:
            run = StoredRun(key[len(prefix) :], row)
            if run.end <= trim.earliest_offset:
                continue  # deleted before; it came again, and goes again
            if run.first > upcoming:
                yield Hole(prefix, upcoming, run.first, last, run.first_id)
            if run.flags & GROUP and not _whole(store, prefix, run):
                yield Hole(prefix, run.first, run.end, last, run.id, run.id)
            upcoming, last = max(upcoming, run.end), run.id
    known = [each.position for each in read_snapshots(store, prefix) if each is not None]
    newest = max(known, default=None)
    if newest is not None and newest.upcoming_offset > upcoming:
        yield Hole(prefix, upcoming, newest.upcoming_offset, last, None)


def _whole(store: Store, prefix: bytes, run: StoredRun) -> bool:
    try:
        with closing(stored_in(store, prefix, run)) as found:
            for _ in found:
                pass
    except (TopicDamaged, struct.error, IndexError):
        return False
    return True


def fill(store: Store, hole: Hole) -> None:
    """Have fillers stand where messages were. Raises TopicDamaged: there is no room for them. StoreError."""
    count, first = hole.end - hole.first, int.from_bytes(hole.after, "big") + 1
    before = run_before(store, hole.prefix, after(hole.after))
    upto = trim_of(store, hole.prefix).bytes_below if before is None else before.upto_bytes
    behind = 2**79 if hole.before is None else int.from_bytes(hole.before, "big") + (hole.instead_of is not None)
    if count > behind - first:
        raise TopicDamaged(f"{hole.name}: there are more of them than ids; delete the topic, or leave it out")
    ids = [(first + number).to_bytes(ROW_ID_SIZE, "big") for number in range(count)]
    for at in range(0, count, _AT_ONCE):
        some, batch, instead = ids[at : at + _AT_ONCE], Batch(), Batch()
        if at == 0 and hole.instead_of is not None:
            instead.delete(Table.MESSAGE, hole.prefix + hole.instead_of)
        columns = Columns([b""] * len(some), ttls=[FILLER_TTL] * len(some))
        laying = Laying(Table.MESSAGE, hole.prefix, hole.first + at, before_bytes=upto)
        laying.add(some, encode_messages(columns, some, hole.first + at))
        upto = laying.upto_bytes
        batch.put_laid(laying)
        store.write([instead, batch])


def count_bytes(store: Store) -> None:
    """Have TRIM say of every log that is not deleted what its messages take, as they are now. Raises TopicDamaged, StoreError."""
    for prefix in list(_present(store)):
        trim = trim_of(store, prefix)
        below, missing = _counted(store, prefix, max(trim.earliest_offset, trim.hidden_below))
        if (below, missing) != (trim.bytes_below, trim.missing):
            batch = Batch()
            batch.put(Table.TRIM, prefix, encode_record(replace(trim, bytes_below=below, missing=missing)))
            store.write([batch])


def _counted(store: Store, prefix: bytes, begin: int) -> tuple[int, list[list[int]]]:
    """What TRIM says of bytes, of a log that begins at this offset for readers (bounds/size.py)."""
    below: int | None = None
    before, missing = 0, list[list[int]]()
    with closing(runs_from(store, prefix, FIRST_ROW_ID)) as runs:
        for run in runs:
            if run.end <= begin:
                below = run.upto_bytes
            elif run.count:
                there = bytes_in(store, prefix, run) or 0
                if below is None:
                    below = before = run.upto_bytes - there
                if run.upto_bytes - before - there:
                    missing.append([run.end, run.upto_bytes - before - there])
            before = run.upto_bytes
    return below or 0, missing


def restore_topic(store: Store, key: bytes, row: TopicRow) -> None:
    """Give a topic whose row is lost one that keeps everything. Raises StoreError."""
    batch = Batch()
    batch.put(Table.TOPIC, key, encode_record(row))
    store.write([batch])


def _name(prefix: bytes) -> str:
    namespace, topic = split_topic_key(prefix[:-GENERATION_SIZE])
    return f"{namespace}/{topic}"


def drop_trimmed(store: Store) -> None:
    """Delete messages that were deleted before, and came again. Raises StoreError."""
    for prefix in prefixes(store):
        earliest, batch = earliest_offset(store, prefix), Batch()
        with closing(store.scan(Table.MESSAGE, prefix, prefix + AFTER_ANY)) as rows:
            for key, row in rows:
                if StoredRun(key[len(prefix) :], row).end > earliest:
                    break
                batch.delete(Table.MESSAGE, key)
        if batch.deletes:
            store.write([batch])


def restart_transactions(store: Store) -> None:
    """Forget what happened to transactions from the first edit on that is missing. Raises StoreError."""
    states = [None if data is None else _transactions_in(data) for data in _slots(store)]
    upcoming = max((state for state in states if state is not None), default=0) + 1
    batch = Batch()
    with closing(store.scan(Table.TRANSACTION_EDIT, b"", AFTER_NUMBERS)) as rows:
        for key, data in rows:
            number = int.from_bytes(key, "big")
            if number == upcoming and _is_edit(data):
                upcoming += 1
            elif number >= upcoming or upcoming == 1:
                batch.delete(Table.TRANSACTION_EDIT, key)
    store.write([batch])


def _slots(store: Store) -> list[bytes | None]:
    return [get_pieces(store, Table.TRANSACTION_SNAPSHOT, slot) for slot in SNAPSHOT_SLOTS]


def _transactions_in(data: bytes) -> int | None:
    try:
        return decode_snapshot(data).number
    except EventDamaged:
        return None


def _is_edit(data: bytes) -> bool:
    try:
        EDITS.decode(data)
    except EventDamaged:
        return False
    return True


def lacks_numbers(store: Store) -> bool:
    """Whether there were atomic commits, and nothing says any more which numbers they have: one would be given twice."""
    if store.get(Table.JOURNAL_META, b"") is not None:
        return False
    for table in (Table.JOURNAL, Table.ATOMIC_OUTCOME, Table.CHUNK):
        with closing(store.scan(table, b"", _END)) as rows:
            if next(rows, None) is not None:
                return True
    return False


def restart_atomic(store: Store) -> None:
    """Begins the journal anew: what was staged and not committed is gone. No number is handed out again. Raises StoreError."""
    batch, numbers = Batch(), 0
    with closing(store.scan(Table.ATOMIC_OUTCOME, b"", AFTER_NUMBERS, reverse=True)) as rows:
        for key, _ in rows:
            numbers = int.from_bytes(key, "big")
            break
    data = store.get(Table.JOURNAL_META, b"")
    meta = None if data is None else decode_record(JournalMetaRow, data)
    with closing(store.scan(Table.JOURNAL, b"", _END)) as rows:
        for key, _ in rows:
            batch.delete(Table.JOURNAL, key)
    with closing(store.scan(Table.CHUNK, b"", _END)) as rows:
        for key, _ in rows:
            numbers = max(numbers, split_chunk_key(key)[1])
    partitions = 1 if meta is None else meta.partitions
    numbers = max(numbers, 0 if meta is None else meta.numbers) + _SKIPPED
    batch.put(Table.JOURNAL_META, b"", encode_record(JournalMetaRow(partitions, numbers, [0] * partitions)))
    store.write([batch])
