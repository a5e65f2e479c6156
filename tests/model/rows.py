"""The rows of a log on disk, decoded with none of the service's reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from oncelog_service.storage.keys import generation_key, pointer_key, topic_key
from oncelog_service.storage.payload_rows import decode_payloads
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import decode_rows
from oncelog_service.storage.runs import StoredRun, decode_run

Tables: TypeAlias = Mapping[Table, Mapping[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a log, of a stored group too."""

    message_id: bytes
    payload: bytes
    pointer: int | None
    """As in the T field: negative once it was rolled back."""

    @property
    def counts(self) -> bool:
        return self.pointer is None or self.pointer > 0


def entries(tables: Tables, topic: str) -> Sequence[Entry]:
    """Every message in log order; the offsets are dense, the ids rise, and each group has as many payloads as its row says."""
    prefix, found = generation_key(topic_key("default", topic), 1), list[Entry]()
    upcoming = 0
    for row in (row for run in _runs(tables[Table.MESSAGE], prefix) for row in decode_rows(run)):
        assert row.offset == upcoming, f"{topic}: offset {row.offset} follows where {upcoming} must"
        messages = [Entry(row.message_id, row.payload, row.write_pointer)]
        if row.group is not None:
            assert row.write_pointer is not None
            runs = _runs(tables[Table.PAYLOAD], pointer_key(prefix, abs(row.write_pointer)))
            payloads = [payload for run in runs for payload in decode_payloads(run)]
            messages = [Entry(row.row_id + each.payload_id, each.payload, row.write_pointer) for each in payloads]
        assert len(messages) == row.messages, f"{topic}: the group at {row.row_id.hex()} has {len(messages)} payloads"
        found += messages
        upcoming += row.messages
    ids = [each.message_id for each in found]
    assert all(before < behind for before, behind in pairwise(ids)), f"{topic}: ids do not rise"
    return found


def _runs(table: Mapping[bytes, bytes], prefix: bytes) -> list[StoredRun]:
    keys = sorted(key for key in table if key.startswith(prefix))
    return [decode_run(key[:-10], key[-10:], table[key]) for key in keys]
