"""Puts rows into a topic's log beside those of a publish: the one that makes a stored group appear, for transactions and atomic
commits alike, and those of messages that an atomic commit brings itself.
"""

from __future__ import annotations

from oncelog_dedup import LastEntry, Run
from oncelog_service.log.groups.stored import StoredGroup, last_entries_of
from oncelog_service.log.key_index import group_key_entries, key_entries
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, ROW_ID_SIZE
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import GroupRow, encode_record
from oncelog_service.storage.rows import chain_of, encode_group, encode_messages, message_id_of
from oncelog_service.storage.runs import Laying


class Appearances:
    """The caller hands the batch to the writer in the same step, and tells memory of both runs when it is written."""

    __slots__ = ("_clock", "_dedup", "_keys", "_prefix", "_size", "_stamps")

    def __init__(self, topic: OpenTopic) -> None:
        self._prefix = topic.prefix
        self._clock = topic.clock
        self._dedup = topic.dedup
        self._stamps = topic.stamps
        self._keys = topic.keys
        self._size = topic.size

    def put(self, batch: Batch, group: StoredGroup, producer: str | None = None) -> tuple[Run, Run | None, int]:
        """Add to ``batch`` the group's row and the note that it is published, by ``producer``.

        Returns the run for the producers, whose first id begins with the id of the row, the one for the keys, and the row's
        ``upto_bytes``.
        """
        summary = group.summary(self._dedup)
        pointer = group.pointer if summary.branch is None else None
        at, offset = self._stamps.take_row(summary.messages, self._clock.now_ms())
        last_entries = last_entries_of(summary, at, offset)
        run = Run(offset, summary.messages, at + FIRST_PAYLOAD_ID, at + summary.last_payload_id, last_entries, pointer)
        group.row = GroupRow(at.hex(), producer)
        if pointer is not None:
            self._size.undecided(at, offset, self._size.handed_over)
        upto = self._size.handed_over = self._size.handed_over + group.bytes
        row = encode_group(self._prefix, at, offset, pointer, summary, upto)
        batch.put_rows(Table.MESSAGE, self._prefix, [(at, row.data)])
        batch.put(Table.GROUP, group.key, encode_record(group.row))
        for name, last_entry in last_entries:
            self._dedup.push(name, last_entry)
        if self._keys is None:
            return run, None, upto
        return run, self._keys.push(run._replace(last_entries=group_key_entries(group.keys, at, offset))), upto

    def put_messages(self, batch: Batch, columns: Columns) -> tuple[Run, Run | None, Laying]:
        """Add to ``batch`` messages that are all new and in no transaction; ``columns.previous`` is found here.

        Returns the run for the producers, the one for the keys, and what is laid.
        """
        producer, sequence_ids = columns.producer, columns.sequence_ids
        newest = None if producer is None else self._dedup.last_pushed(producer)
        columns.previous = None if newest is None else newest.message_id[:ROW_ID_SIZE]
        row_ids, offset = self._stamps.take(len(columns.payloads), self._clock.now_ms())
        laying = Laying(Table.MESSAGE, self._prefix, offset, before_bytes=self._size.handed_over)
        laying.add(row_ids, encode_messages(columns, row_ids, offset), chain_of(columns))
        self._size.handed_over = laying.upto_bytes
        batch.put_laid(laying)
        first_id, last_id = message_id_of(row_ids[0]), message_id_of(row_ids[-1])
        last_entries: tuple[tuple[str, LastEntry], ...] = ()
        if producer is not None and sequence_ids is not None:
            last_entries = ((producer, LastEntry(sequence_ids[-1], last_id, offset + len(row_ids) - 1)),)
            self._dedup.push(*last_entries[0])
        run = Run(offset, len(row_ids), first_id, last_id, last_entries)
        if self._keys is None:
            return run, None, laying
        return run, self._keys.push(run._replace(last_entries=key_entries(columns.keys, row_ids, offset))), laying
