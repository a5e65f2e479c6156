"""What a topic's memory is rebuilt from: newest valid snapshot, the messages after it, the producers' rows.

Everything that is known of a topic while it is open is a fold over what is on disk; this module is that fold, after a crash,
after a failed write and after a clean stop alike. It refuses to open a topic rather than know half of it.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import TypeVar

from oncelog.errors import TopicDamaged
from oncelog.wire.avro_parts import decode_long, encode_long_run
from oncelog_dedup import Entry, LastEntry, Position, ReplayError, SequenceMap, Snapshot, SnapshotDamaged, replay
from oncelog_service.bounds.size import Size
from oncelog_service.log.groups.stored import last_entries_of
from oncelog_service.log.judgements import Judgements, judgements_of
from oncelog_service.log.key_index import KeyEntries, KeyIndex, group_key_entries, key_entries, key_name
from oncelog_service.log.names.assigned import counted_from
from oncelog_service.log.open_topic import Recovered
from oncelog_service.log.scan import (
    after,
    bytes_before,
    earliest_offset,
    last_id,
    read_back,
    run_before,
    runs_from,
    stored_payloads,
    trim_of,
)
from oncelog_service.storage.fields import decode_named
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, ROW_ID_SIZE, SNAPSHOT_SLOTS, pointer_of, prefix_end
from oncelog_service.storage.pieces import get_pieces
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.records import EndedRow, ExpiryRow, LostRow, ProducerRow, SubscriptionRow, decode_record
from oncelog_service.storage.rows import OFFSET_AT, Row, decode_row, decode_rows, message_id_of
from oncelog_service.storage.runs import GROUP, StoredRun

N = TypeVar("N", ProducerRow, SubscriptionRow)


def recover(store: Store, prefix: bytes, keyed: bool = False) -> Recovered:
    """Rebuild one generation of a topic; with the index of its keys, if it is ``keyed``.

    Raises:
        TopicDamaged: a row cannot be read, a message is missing, or older messages are gone and no snapshot covers them.
    """
    trim = trim_of(store, prefix)
    earliest = trim.earliest_offset
    producers = read_producers(store, prefix)
    snapshots = read_snapshots(store, prefix)
    snapshot = _newest(snapshots)
    begin = 0 if snapshot is None else snapshot.position.upcoming_offset
    if begin < earliest:
        raise TopicDamaged(
            f"messages below offset {earliest} are deleted and no valid snapshot covers them, so the producers' sequence ids "
            "are not known; restore the topic from a backup, or delete it"
        )
    last = _check_end(store, prefix, earliest, begin)
    try:
        size = Size(trim.bytes_below if last is None else last.upto_bytes, trim.bytes_below, trim.missing)
        with closing(_entries(store, prefix, _behind(snapshot), size)) as found:
            replayed = replay(snapshot, found, partial(counted_from, producers))
    except ReplayError as error:
        raise TopicDamaged(str(error)) from error
    keys, key_snapshots = recover_keys(store, prefix, replayed.fold.position.last_message_id) if keyed else (None, None)
    ended = read_ended(store, prefix)
    for pointer in (each for each, row in ended.items() if row.committed):
        for run in replayed.fold.unsettled.get(pointer, ()):
            size.decided(run.first_id[:ROW_ID_SIZE])
        replayed.fold.commit(pointer)
    if keys is not None:
        # A snapshot of the producers may be past what none of the keys is: what is settled there is settled here.
        for pointer in keys.fold.unsettled.keys() - replayed.fold.unsettled.keys():
            keys.commit(pointer)
    return Recovered(
        fold=replayed.fold,
        producers=producers,
        earliest_offset=earliest,
        snapshots=[None if each is None else each.position.upcoming_offset for each in snapshots],
        replayed=replayed.entries,
        keys=keys,
        key_snapshots=key_snapshots,
        subscriptions=read_subscriptions(store, prefix),
        trimmed_id=bytes.fromhex(trim.last_id or ""),
        hidden_below=trim.hidden_below,
        hidden_before=bytes.fromhex(trim.hidden_before or ""),
        lost=read_lost(store, prefix),
        ended_by_hand=ended,
        judgements=read_judgements(store, prefix),
        size=size,
    )


def recover_keys(store: Store, prefix: bytes, last_message_id: bytes | None) -> tuple[KeyIndex, list[int | None]]:
    """The index of a topic's keys, and the upcoming offset of its snapshot in each slot. ``last_message_id``: of the whole log.

    What was deleted while the topic did not check expectations is not in it: nobody looked at those keys. But what it has known
    once it never forgets: while it is kept nothing is deleted that its two snapshots do not cover.

    Raises:
        TopicDamaged: as :func:`recover`; there are two snapshots and neither can be read.
    """
    earliest = earliest_offset(store, prefix)
    snapshots = read_snapshots(store, prefix, Table.KEY_SNAPSHOT)
    snapshot = _newest(snapshots)
    if (snapshot is None or snapshot.position.upcoming_offset < earliest) and earliest:
        if all(store.get(Table.KEY_SNAPSHOT, prefix + slot) is not None for slot in SNAPSHOT_SLOTS):
            raise TopicDamaged(
                f"messages below offset {earliest} are deleted and no valid snapshot of the keys covers them, so the newest "
                "offsets of keys are not known; restore the topic from a backup, delete it, or switch check.expected.offsets off"
            )
        snapshot = Snapshot(SequenceMap(), Position(earliest, None))
    _check_end(store, prefix, earliest, 0 if snapshot is None else snapshot.position.upcoming_offset)
    try:
        with closing(rows(store, prefix, _behind(snapshot))) as found:
            fold = replay(snapshot, (_key_entry(store, prefix, row) for row in found if row.messages)).fold
    except ReplayError as error:
        raise TopicDamaged(str(error)) from error
    offsets = [None if each is None else each.position.upcoming_offset for each in snapshots]
    return KeyIndex(fold, last_message_id if fold.position.upcoming_offset else None), offsets


def _behind(snapshot: Snapshot | None) -> bytes:
    last_id = None if snapshot is None else snapshot.position.last_message_id
    return FIRST_ROW_ID if last_id is None else after(last_id[:ROW_ID_SIZE])


def rows(store: Store, prefix: bytes, start: bytes) -> Generator[Row]:
    """Every message, and what stands for a group, from the key ``start`` on, decoded; to be closed. Raises TopicDamaged."""
    with closing(runs_from(store, prefix, start)) as runs:
        for run in runs:
            yield from rows_of(run, start)


def rows_of(run: StoredRun, start: bytes = FIRST_ROW_ID) -> Iterator[Row]:
    """The same of one run. Raises TopicDamaged."""
    try:
        yield from decode_rows(run, run.index_from(start))
    except _UNREADABLE as error:
        raise _unreadable(run, error) from error


_UNREADABLE = IndexError, ValueError, struct.error


def _unreadable(run: StoredRun, error: Exception) -> TopicDamaged:
    return TopicDamaged(f"the row at {run.id.hex()} cannot be read: {error}")


def _entries(store: Store, prefix: bytes, start: bytes, size: Size) -> Generator[Entry]:
    """Every message from the key ``start`` on, as the fold of producers takes it; to be closed. Raises TopicDamaged.

    What may be undecided is noted in ``size``. Only what the fold needs is decoded: 100,000 names are 100,000 messages that are
    read before the topic's first answer.
    """
    before: int | None = None
    with closing(runs_from(store, prefix, start)) as runs:
        for run in runs:
            try:
                if run.write_pointer is not None and run.write_pointer > 0 and (run.flags & GROUP or 0 in run.begins):
                    before = _upto_bytes(store, prefix, run, size) if before is None else before
                    size.undecided(run.first_id, run.first, before)
                before = run.upto_bytes
                if run.flags & GROUP:
                    yield _group_entry(decode_row(run, 0))
                elif run.write_pointer is not None or len(run) < _FEW:
                    yield from _message_entries(run, run.index_from(start))
                else:
                    yield _plain_entry(run, run.index_from(start))
            except _UNREADABLE as error:
                raise _unreadable(run, error) from error


def _upto_bytes(store: Store, prefix: bytes, run: StoredRun, size: Size) -> int:
    """What the run before this one says."""
    before = bytes_before(store, prefix, run.first_id)
    return size.below if before is None else before[1]


_FEW = 6
"""Messages below which an entry for each of them is faster than one for all."""


def _plain_entry(run: StoredRun, begin: int) -> Entry:
    """All messages of a run that belong to no transaction, as one entry.

    Whether a message counts need not be known here: a producer is forgotten between two writes, so no run counts in part.
    """
    newest: dict[str, tuple[int, int]] = {}
    data, ids, first = run.data, run.ids(begin), run.first + begin
    places = [run.at(begin), *map(run.base.__add__, run.ends[begin:-1])]
    for index, (offset, place) in enumerate(zip(encode_long_run(first, len(ids)), places, strict=True)):
        if not data.startswith(offset, place + OFFSET_AT):
            raise ValueError(f"the message in the place of offset {first + index} says that it has another one")
        producer, sequence_id, _ = decode_named(data, place + OFFSET_AT + len(offset))
        if producer is not None and sequence_id is not None:
            present = newest.get(producer)
            # Without deduplication ids need not rise, and of equal ones the first counts.
            if present is None or sequence_id > present[0]:
                newest[producer] = sequence_id, index
    last_entries = [
        (producer, LastEntry(sequence_id, ids[index] + FIRST_PAYLOAD_ID, first + index))
        for producer, (sequence_id, index) in newest.items()
    ]
    return Entry(first, message_id_of(ids[0]), None, None, None, len(ids), tuple(last_entries), message_id_of(run.id))


def _message_entries(run: StoredRun, begin: int) -> Iterator[Entry]:
    begins, data = run.begins, run.data
    for index, row_id in enumerate(run.ids(begin), begin):
        offset, at = decode_long(data, run.at(index) + OFFSET_AT)
        producer, sequence_id, _ = decode_named(data, at)
        yield Entry(offset, message_id_of(row_id), producer, sequence_id, run.write_pointer, begins=index in begins)


def _group_entry(row: Row) -> Entry:
    assert row.group is not None
    last_id = row.row_id + row.group.last_payload_id
    last_entries = last_entries_of(row.group, row.row_id, row.offset)
    return Entry(row.offset, row.message_id, None, None, row.write_pointer, row.messages, last_entries, last_id, begins=True)


def _key_entry(store: Store, prefix: bytes, row: Row) -> Entry:
    """Make the entry for the fold of keys: the key in the place of the producer, the offset in that of the sequence id."""
    if row.group is None and row.write_pointer is None:
        name = None if row.key is None else key_name(row.key)
        return Entry(row.offset, row.message_id, name, row.offset)
    last_entries = key_entries_of(store, prefix, row)
    if row.group is None:
        begins = row.previous is not None
        return Entry(row.offset, row.message_id, None, None, row.write_pointer, last_entries=last_entries, begins=begins)
    last_id = row.row_id + row.group.last_payload_id
    return Entry(row.offset, row.message_id, None, None, row.write_pointer, row.messages, last_entries, last_id)


def key_entries_of(store: Store, prefix: bytes, row: Row) -> KeyEntries:
    """The newest message of each key among those that the row stands for; none of what was rolled back. Raises TopicDamaged."""
    if row.write_pointer is not None and row.write_pointer < 0:
        return ()
    if row.group is None:
        return key_entries([row.key], [row.row_id], row.offset)
    keys: dict[str, tuple[bytes, int]] = {}
    with closing(stored_payloads(store, prefix, row)) as stored:
        for payload in stored:
            if payload.key is not None:
                keys[key_name(payload.key)] = payload.payload_id, payload.group_index
    return group_key_entries(keys, row.row_id, row.offset)


def read_producers(store: Store, prefix: bytes) -> dict[str, ProducerRow]:
    """Every producer row of the topic. Raises TopicDamaged if one cannot be read."""
    return _by_name(store, prefix, Table.PRODUCER, ProducerRow)


def read_subscriptions(store: Store, prefix: bytes) -> dict[str, SubscriptionRow]:
    """Every subscription of the topic, deleted ones too. Raises TopicDamaged if one cannot be read."""
    return _by_name(store, prefix, Table.SUBSCRIPTION, SubscriptionRow)


def read_lost(store: Store, prefix: bytes) -> list[tuple[bytes, int]]:
    """The spans of ids that are lost, as an open topic has them. Raises TopicDamaged."""
    data = store.get(Table.LOST, prefix)
    spans = [] if data is None else read_back(decode_record, LostRow, data).spans
    return [(bytes.fromhex(str(before)), int(first_ms)) for before, first_ms in spans]


def read_ended(store: Store, prefix: bytes) -> dict[int, EndedRow]:
    """By write pointer, how an operator has ended it. Raises TopicDamaged."""
    with closing(store.scan(Table.ENDED, prefix, prefix_end(prefix))) as found:
        return {pointer_of(key): read_back(decode_record, EndedRow, data) for key, data in found}


def last_known(store: Store, prefix: bytes) -> bytes:
    """The id of the last message that is known of a log, in it or deleted from it; empty for none. Raises TopicDamaged."""
    run = run_before(store, prefix)
    found = [] if run is None else [run.id + FIRST_PAYLOAD_ID]
    if run is not None and run.flags & GROUP:
        row = read_back(decode_row, run, 0)
        found = [] if row.group is None else [row.row_id + row.group.last_payload_id]
    found += [each.position.last_message_id or b"" for each in read_snapshots(store, prefix) if each is not None]
    return max([*found, bytes.fromhex(trim_of(store, prefix).last_id or "")])


def read_judgements(store: Store, prefix: bytes) -> Judgements:
    """When the topic's rows were judged, as far as it is on disk. Raises TopicDamaged."""
    data = store.get(Table.EXPIRY, prefix)
    return () if data is None else read_back(lambda: judgements_of(decode_record(ExpiryRow, data)))


def _by_name(store: Store, prefix: bytes, table: Table, kind: type[N]) -> dict[str, N]:
    with closing(store.scan(table, prefix, prefix_end(prefix))) as found:
        return {key[len(prefix) :].decode(): read_back(decode_record, kind, data) for key, data in found}


def read_snapshots(store: Store, prefix: bytes, table: Table = Table.SNAPSHOT) -> list[Snapshot | None]:
    """The snapshot in each slot, None where there is none or it is damaged: the log says the same, only slower."""
    found: list[Snapshot | None] = []
    for slot in SNAPSHOT_SLOTS:
        data = get_pieces(store, table, prefix + slot)
        try:
            found.append(None if data is None else Snapshot.from_bytes(data))
        except SnapshotDamaged:
            found.append(None)
    return found


def _newest(snapshots: Iterable[Snapshot | None]) -> Snapshot | None:
    return max((each for each in snapshots if each is not None), key=lambda each: each.position.upcoming_offset, default=None)


def last_timestamp(store: Store, prefix: bytes) -> int:
    """The highest publish timestamp of a log that need not be readable otherwise; 0 if it never had a message."""
    ids = [last_id(store, prefix) or b""]
    ids += [each.position.last_message_id or b"" for each in read_snapshots(store, prefix) if each is not None]
    return max(int.from_bytes(row_id[:8], "big") for row_id in ids)


def _check_end(store: Store, prefix: bytes, earliest: int, snapshot_offset: int) -> StoredRun | None:
    last = run_before(store, prefix)
    end = earliest if last is None else last.end
    if end < snapshot_offset:
        raise TopicDamaged(f"the log ends before offset {end}, but a snapshot knows of messages up to offset {snapshot_offset}")
    return last
