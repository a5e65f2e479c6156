"""The rows of a log decoded and folded anew, with none of the service's reading or folding; and its maps beside that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from oncelog_dedup import LastEntry, Snapshot
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.storage.keys import SNAPSHOT_SLOTS, generation_key, pointer_key, topic_key
from oncelog_service.storage.payload_rows import decode_payloads
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import Row, decode_rows
from oncelog_service.storage.runs import StoredRun, decode_run

Tables: TypeAlias = Mapping[Table, Mapping[bytes, bytes]]
NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a log, of a stored group too."""

    row_id: bytes
    message_id: bytes
    offset: int
    producer: str | None
    sequence_id: int | None
    payload: bytes
    pointer: int | None
    """As in the T field: negative once it was rolled back."""
    key: bytes | None = None

    @property
    def counts(self) -> bool:
        return self.pointer is None or self.pointer > 0

    @property
    def root(self) -> int | None:
        """The write pointer, whatever became of it."""
        return None if self.pointer is None else abs(self.pointer)

    @property
    def placed(self) -> tuple[int, str | None, int | None, bytes, int | None]:
        """What never changes of it."""
        return self.offset, self.producer, self.sequence_id, self.payload, self.root

    @property
    def delivered(self) -> tuple[bytes, int, bytes]:
        """As a reader is given it."""
        return self.message_id, self.offset, self.payload


def prefix_of(topic: str) -> bytes:
    """What begins every key of the topic's first generation."""
    return generation_key(topic_key(NAMESPACE, topic), 1)


def entries(tables: Tables, topic: str) -> list[Entry]:
    """Every message in log order; the offsets are dense, the ids rise, and each group has as many payloads as its row says."""
    prefix, found = prefix_of(topic), list[Entry]()
    upcoming = 0
    for row in _rows(tables, prefix):
        assert row.offset == upcoming, f"{topic}: offset {row.offset} follows where {upcoming} must"
        messages = _of_group(tables, prefix, row.row_id, row.offset, row.write_pointer) if row.group is not None else None
        if messages is None:
            messages = [
                Entry(
                    row.row_id, row.message_id, row.offset, row.producer, row.sequence_id, row.payload, row.write_pointer, row.key
                )
            ]
        assert len(messages) == row.messages, f"{topic}: the group at {row.row_id.hex()} has {len(messages)} payloads"
        found += messages
        upcoming += row.messages
    ids = [each.message_id for each in found]
    assert all(before < behind for before, behind in pairwise(ids)), f"{topic}: ids do not rise"
    return found


def empty_groups(tables: Tables, topic: str) -> list[Entry]:
    """The rows of stored groups without messages: a reader stops before one that is undecided all the same."""
    return [
        Entry(row.row_id, row.message_id, row.offset, None, None, b"", row.write_pointer)
        for row in _rows(tables, prefix_of(topic))
        if row.group is not None and not row.messages
    ]


def _rows(tables: Tables, prefix: bytes) -> list[Row]:
    return [row for run in _runs(tables[Table.MESSAGE], prefix) for row in decode_rows(run)]


def _runs(table: Mapping[bytes, bytes], prefix: bytes) -> list[StoredRun]:
    keys = sorted(key for key in table if key.startswith(prefix))
    return [decode_run(key[:-10], key[-10:], table[key]) for key in keys]


def _of_group(tables: Tables, prefix: bytes, row_id: bytes, offset: int, pointer: int | None) -> list[Entry]:
    assert pointer is not None
    runs = _runs(tables[Table.PAYLOAD], pointer_key(prefix, abs(pointer)))
    payloads = [payload for run in runs for payload in decode_payloads(run)]
    return [
        Entry(row_id, row_id + each.payload_id, offset + place, each.producer, each.sequence_id, each.payload, pointer, each.key)
        for place, each in enumerate(payloads)
    ]


def stored(tables: Tables, topic: str) -> set[bytes]:
    """Every payload in the Payload Table."""
    runs = _runs(tables[Table.PAYLOAD], prefix_of(topic))
    return {payload.payload for run in runs for payload in decode_payloads(run)}


def fold(log: Iterable[Entry]) -> dict[str, LastEntry]:
    """producer → its highest message; the sequence ids of what counts rise."""
    last_entries: dict[str, LastEntry] = {}
    for each in log:
        if each.counts and each.producer is not None and each.sequence_id is not None:
            before = last_entries.get(each.producer)
            assert before is None or before.sequence_id < each.sequence_id, f"{each} is stored behind {before}"
            last_entries[each.producer] = LastEntry(each.sequence_id, each.message_id, each.offset)
    return last_entries


def newest_of_key(log: Iterable[Entry], key: bytes) -> Entry | None:
    """The newest message with this key that counts."""
    return max((each for each in log if each.counts and each.key == key), key=lambda each: each.offset, default=None)


def snapshots(tables: Tables, topic: str) -> list[Snapshot]:
    """Those on disk, each readable."""
    keys = (prefix_of(topic) + slot for slot in SNAPSHOT_SLOTS)
    return [Snapshot.from_bytes(tables[Table.SNAPSHOT][key]) for key in keys if key in tables[Table.SNAPSHOT]]


# --- the service beside it


def check_map(topic: str, log: TopicLog, found: Sequence[Entry]) -> None:
    """The live map is the fold of the whole log, and nothing is in flight."""
    expected = fold(found)
    live = dict(log.dedup.fold.items())
    assert live == expected, f"{topic}: live {_shown(live)}, the log says {_shown(expected)}"
    assert not any(log.dedup.in_flight(producer) for producer in live)
    assert log.position.upcoming_offset == (found[-1].offset + 1 if found else 0)


def check_snapshots(tables: Tables, topic: str, log: Sequence[Entry], settled: Callable[[Entry], bool]) -> None:
    """A snapshot on disk is the fold of the log up to its position, and nothing there is undecided."""
    for snapshot in snapshots(tables, topic):
        below = [each for each in log if each.offset < snapshot.position.upcoming_offset]
        undecided = [each for each in below if not settled(each)]
        assert not undecided, f"{topic}: a snapshot at {snapshot.position.upcoming_offset} has passed {undecided[0]}"
        expected, held = fold(below), dict(snapshot.last_entries.items())
        assert held == expected, f"{topic}: a snapshot holds {_shown(held)}, the log up to it {_shown(expected)}"


def _shown(last_entries: dict[str, LastEntry]) -> dict[str, tuple[int, int]]:
    return {producer: (last_entry.sequence_id, last_entry.offset) for producer, last_entry in last_entries.items()}
