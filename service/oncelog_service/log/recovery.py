"""What a topic's memory is rebuilt from: newest valid snapshot, the messages after it, the producers' rows.

Everything that is known of a topic while it is open is a fold over what is on disk; this module is that fold, after a crash,
after a failed write and after a clean stop alike. It refuses to open a topic rather than know half of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from oncelog.errors import TopicDamaged
from oncelog_dedup import Entry, Fold, ReplayError, Snapshot, SnapshotDamaged, replay
from oncelog_service.log.groups import marks_of
from oncelog_service.log.scan import after, earliest_offset, end_of, row_before, rows_from
from oncelog_service.storage.keys import AFTER_ANY, FIRST_ROW_ID, ROW_ID_SIZE, SNAPSHOT_SLOTS, prefix_end
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.rows import ProducerRow, Row, RowDamaged, decode_record, decode_row, intact


@dataclass(slots=True)
class Recovered:
    """All that memory holds of a topic when it is opened."""

    fold: Fold
    producers: dict[str, ProducerRow]
    earliest_offset: int
    snapshots: list[int | None]
    """The upcoming offset of the snapshot in each slot; None where there is no valid one."""
    replayed: int


def recover(store: Store, prefix: bytes) -> Recovered:
    """Rebuild one generation of a topic.

    Raises:
        TopicDamaged: a row cannot be read, a message is missing, or older messages are gone and no snapshot covers them.
    """
    earliest = earliest_offset(store, prefix)
    producers = read_producers(store, prefix)
    snapshots = read_snapshots(store, prefix)
    snapshot = max((each for each in snapshots if each is not None), key=lambda each: each.position.upcoming_offset, default=None)
    begin = 0 if snapshot is None else snapshot.position.upcoming_offset
    if begin < earliest:
        raise TopicDamaged(
            f"messages below offset {earliest} are deleted and no valid snapshot covers them, so the producers' sequence ids "
            "are not known; restore the topic from a backup, or delete it"
        )
    _check_end(store, prefix, earliest, begin)
    try:
        replayed = replay(snapshot, entries(store, prefix, snapshot), forgotten(producers))
    except ReplayError as error:
        raise TopicDamaged(str(error)) from error
    return Recovered(
        fold=replayed.fold,
        producers=producers,
        earliest_offset=earliest,
        snapshots=[None if each is None else each.position.upcoming_offset for each in snapshots],
        replayed=replayed.entries,
    )


def entries(store: Store, prefix: bytes, snapshot: Snapshot | None) -> Iterator[Entry]:
    """Every row after the snapshot, as the fold wants it. Raises TopicDamaged."""
    last_id = None if snapshot is None else snapshot.position.last_message_id
    return map(_entry, rows(store, prefix, FIRST_ROW_ID if last_id is None else after(last_id[:ROW_ID_SIZE])))


def rows(store: Store, prefix: bytes, start: bytes) -> Iterator[Row]:
    """Every row from the key ``start`` on, decoded. Raises TopicDamaged."""
    for row_id, data in rows_from(store, prefix, start):
        try:
            yield decode_row(row_id, data)
        except (RowDamaged, IndexError, ValueError, struct.error) as error:
            raise TopicDamaged(f"the row at {row_id.hex()} cannot be read: {error}") from error


def _entry(row: Row) -> Entry:
    if row.write_pointer is None and row.group is None:
        return Entry(row.offset, row.message_id, row.producer, row.sequence_id)
    if row.group is None:
        begins = row.previous is not None
        return Entry(row.offset, row.message_id, row.producer, row.sequence_id, row.write_pointer, begins=begins)
    last_id = row.row_id + row.group.last_payload_id
    marks = marks_of(row.group, row.row_id, row.offset)
    return Entry(row.offset, row.message_id, None, None, row.write_pointer, row.messages, marks, last_id, begins=True)


def forgotten(producers: Mapping[str, ProducerRow]) -> dict[str, int]:
    """producer → offset below which nothing of it counts, for those that an operator had forgotten."""
    return {name: row.forgotten_below for name, row in producers.items() if row.forgotten_below}


def read_producers(store: Store, prefix: bytes) -> dict[str, ProducerRow]:
    """Every producer row of the topic. Raises TopicDamaged if one cannot be read."""
    try:
        return {
            key[len(prefix) :].decode(): decode_record(ProducerRow, data)
            for key, data in store.scan(Table.PRODUCER, prefix, prefix_end(prefix))
        }
    except RowDamaged as damage:
        raise TopicDamaged(str(damage)) from damage


def read_snapshots(store: Store, prefix: bytes) -> list[Snapshot | None]:
    """The snapshot in each slot, None where there is none or it is damaged: the log says the same, only slower."""
    found: list[Snapshot | None] = []
    for slot in SNAPSHOT_SLOTS:
        data = store.get(Table.SNAPSHOT, prefix + slot)
        try:
            found.append(None if data is None else Snapshot.from_bytes(data))
        except SnapshotDamaged:
            found.append(None)
    return found


def last_timestamp(store: Store, prefix: bytes) -> int:
    """The highest publish timestamp of a log that need not be readable otherwise; 0 if it never had a message."""
    last = row_before(store, prefix, AFTER_ANY)
    ids = [last[0]] if last is not None else []
    ids += [each.position.last_message_id or b"" for each in read_snapshots(store, prefix) if each is not None]
    return max((int.from_bytes(row_id[:8], "big") for row_id in ids), default=0)


def _check_end(store: Store, prefix: bytes, earliest: int, snapshot_offset: int) -> None:
    last = row_before(store, prefix, AFTER_ANY)
    if last is not None and not intact(last[1]):
        raise TopicDamaged(f"the row at {last[0].hex()}, the last one, does not match its checksum or is of an unknown version")
    end = earliest if last is None else end_of(last[1])
    if end < snapshot_offset:
        raise TopicDamaged(f"the log ends before offset {end}, but a snapshot knows of messages up to offset {snapshot_offset}")
