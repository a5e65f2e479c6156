"""What one write adds to a topic's log: the messages of a request, and of all plain ones that come before the writer takes them.

Each request is judged, stamped, encoded and pushed by itself, at once; from there on those that wait share what does not depend
on whose messages they are: one batch, runs on disk, one note in memory, one moment in which their callers awake. A stored
group is added by the one row with which it appears.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oncelog_dedup import LastEntry, Run
from oncelog_service.log.key_index import KeyEntries
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import GroupRow
from oncelog_service.storage.rows import GroupSummary, message_id_of
from oncelog_service.storage.runs import Bodies, Laying


class Addition:
    """Messages that lie side by side, in the order of their stamps. It grows until the writer takes it (``Writer.join``)."""

    __slots__ = (
        "_count",
        "_first_id",
        "_first_offset",
        "_keys",
        "_last_entries",
        "_last_id",
        "_write_pointer",
        "batch",
        "laying",
    )

    def __init__(self, prefix: bytes, first_offset: int, write_pointer: int | None, before_bytes: int = 0) -> None:
        """``before_bytes``: of all that was handed over before (bounds/size.py)."""
        self._first_offset = first_offset
        self._count = 0
        self._first_id = self._last_id = b""
        self._write_pointer = write_pointer
        self._last_entries: dict[str, LastEntry] = {}
        self._keys: dict[str, LastEntry] = {}
        self.laying = Laying(Table.MESSAGE, prefix, first_offset, write_pointer, before_bytes)
        self.batch = Batch()
        self.batch.put_laid(self.laying)

    def add(
        self,
        row_ids: Sequence[bytes],
        messages: Bodies,
        previous: bytes | None,
        last_entry: tuple[str, LastEntry] | None,
        keys: KeyEntries,
    ) -> None:
        """Add the next request, with its entry in the chain, its producer's newest message and that of each of its keys."""
        self.laying.add(row_ids, messages, previous)
        self._count += len(row_ids)
        self._first_id = self._first_id or row_ids[0]
        self._last_id = row_ids[-1]
        if last_entry is not None:
            producer, newest = last_entry
            present = self._last_entries.get(producer)
            # As the fold adds them one by one: without deduplication ids need not rise, and of equal ones the first counts.
            if present is None or newest.sequence_id > present.sequence_id:
                self._last_entries[producer] = newest
        if keys:
            self._keys.update(keys)

    @property
    def run(self) -> Run:
        """All of it, for the fold of the producers."""
        return self._run(self._last_entries)

    @property
    def keyed(self) -> Run:
        """All of it, for the index of keys."""
        return self._run(self._keys)

    def _run(self, last_entries: dict[str, LastEntry]) -> Run:
        first_id, last_id = message_id_of(self._first_id), message_id_of(self._last_id)
        return Run(self._first_offset, self._count, first_id, last_id, tuple(last_entries.items()), self._write_pointer)


class Appeared(NamedTuple):
    """A stored group that appears with the next write."""

    run: Run
    """For the producers; its first id begins with the id of the row."""
    keyed: Run | None
    """For the keys."""
    upto_bytes: int
    """Of the row."""
    at: bytes
    """Its id."""
    summary: GroupSummary
    key: bytes
    """Of the note that it is published."""
    row: GroupRow
