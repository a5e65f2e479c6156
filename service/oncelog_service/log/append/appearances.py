"""Puts the one row that makes a stored group appear in a topic's log, for transactions and for atomic commits alike."""

from __future__ import annotations

from oncelog_dedup import Run
from oncelog_service.log.groups.stored import StoredGroup, last_entries_of
from oncelog_service.log.key_index import group_key_entries
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import GroupRow, encode_record
from oncelog_service.storage.rows import encode_group_row


class Appearances:
    """The caller hands the batch to the writer in the same step, and tells memory of both runs when it is written."""

    def __init__(self, topic: OpenTopic) -> None:
        self._prefix = topic.prefix
        self._clock = topic.clock
        self._dedup = topic.dedup
        self._stamps = topic.stamps
        self._keys = topic.keys

    def put(self, batch: Batch, group: StoredGroup, producer: str | None = None) -> tuple[Run, Run | None]:
        """Add to ``batch`` the group's row and the note that it is published, by ``producer``.

        Returns the run for the producers, whose first id begins with the id of the row, and the one for the keys.
        """
        summary = group.summary(self._dedup)
        pointer = group.pointer if summary.branch is None else None
        at, offset = self._stamps.take_row(summary.messages, self._clock.now_ms())
        last_entries = last_entries_of(summary, at, offset)
        run = Run(offset, summary.messages, at + FIRST_PAYLOAD_ID, at + summary.last_payload_id, last_entries, pointer)
        group.row = GroupRow(at.hex(), producer)
        batch.put_run(Table.MESSAGE, self._prefix, [at], [encode_group_row(at, offset, pointer, summary)])
        batch.put(Table.GROUP, group.key, encode_record(group.row))
        for name, last_entry in last_entries:
            self._dedup.push(name, last_entry)
        if self._keys is None:
            return run, None
        return run, self._keys.push(run._replace(last_entries=group_key_entries(group.keys, at, offset)))
