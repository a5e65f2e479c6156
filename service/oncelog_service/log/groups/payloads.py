"""What of the Payload Table nobody needs any more. Reads the store; not for the event loop.

A stored group lives as long as the row that published it: cleaning up by each payload's own write time beheaded living groups
elsewhere. What was never published goes when its newest payload is older than the topic's ttl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.log.groups.stored import read_group_row
from oncelog_service.log.scan import last_payloads, next_keys
from oncelog_service.storage.keys import AFTER_ANY, generation_of, pointer_key, prefix_end, split_row_id
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.records import GroupRow


class Outdated(NamedTuple):
    """A group whose payloads may go."""

    pointer: int
    key: bytes
    unpublished: bool
    """It expired before it was published; that must be noted first, so that it cannot be published in part."""
    keep_row: bool
    """Its row in the table of groups stays: requests may still come under this write pointer."""


def generations_with_payloads(store: Store) -> set[bytes]:
    """What begins the keys of each generation of a topic that has payloads or groups; one seek for each.

    Asking every idle topic by itself took 10,000 of them minutes, where each question is a query to a database.
    """
    return {
        prefix for table in (Table.PAYLOAD, Table.GROUP) for prefix in _beginnings(store, table, b"", AFTER_ANY, generation_of)
    }


def outdated_groups(store: Store, prefix: bytes, live_from: int, oldest_pointer: int, trimmed: bool = False) -> list[Outdated]:
    """Groups that may go. ``live_from``: messages published before this time have expired, ms; write pointers below
    ``oldest_pointer`` are refused everywhere. ``trimmed``: younger groups may be gone from the log, too."""
    # No payload was written before its transaction began, so no younger pointer has anything that has expired.
    stop = pointer_key(prefix, 2**63 - 1 if trimmed else live_from * POINTERS_PER_MS)
    found = []
    for pointer in _pointers(store, prefix, pointer_key(prefix, 0), stop):
        row = read_group_row(store, prefix, pointer)
        if _is_outdated(store, prefix, pointer, row, live_from):
            found.append(Outdated(pointer, pointer_key(prefix, pointer), row is None, pointer >= oldest_pointer))
    return found


def _is_outdated(store: Store, prefix: bytes, pointer: int, row: GroupRow | None, live_from: int) -> bool:
    if row is None:
        last = last_payloads(store, prefix, pointer)
        return last is not None and split_row_id(last.id)[0] < live_from
    return not _is_in_log(store, prefix, row)


def _is_in_log(store: Store, prefix: bytes, row: GroupRow) -> bool:
    return row.row_id is not None and store.get(Table.MESSAGE, prefix + bytes.fromhex(row.row_id)) is not None


class OutdatedBranch(NamedTuple):
    """What an atomic commit has staged and may go, if the transaction has ended."""

    number: int
    key: bytes
    published: bool
    """Its messages were in the log and are not any more; otherwise it was never copied there."""


def outdated_branches(store: Store, prefix: bytes, live_from: int, trimmed: bool = False) -> list[OutdatedBranch]:
    """Branches that may go, the newest first; nothing of theirs was published at or after ``live_from``, ms, unless the topic was
    ``trimmed``."""
    # Their keys fall as their numbers rise, and no message is older than its transaction's number says.
    begin = -(2**63) if trimmed else -live_from * POINTERS_PER_MS
    start, stop = pointer_key(prefix, begin), prefix + AFTER_ANY
    found = []
    for pointer in _pointers(store, prefix, start, stop):
        row = read_group_row(store, prefix, pointer)
        if row is None or not _is_in_log(store, prefix, row):
            found.append(OutdatedBranch(-pointer, pointer_key(prefix, pointer), row is not None))
    return found


def branch_keys(store: Store, key: bytes, limit: int) -> list[tuple[Table, bytes]]:
    """The next keys to delete of what was staged under a branch key, at most ``limit``: its payloads first, its row last."""
    found: list[tuple[Table, bytes]] = []
    for table in (Table.PAYLOAD, Table.CHUNK, Table.GROUP):
        with closing(store.scan(table, key, key + AFTER_ANY)) as rows:
            found += ((table, each) for each in next_keys(rows, limit - len(found)))
            if next(rows, None) is not None:
                break
    return found


def payload_keys(store: Store, group: Outdated, limit: int) -> list[tuple[Table, bytes]]:
    """The next keys to delete of a group, at most ``limit``: its payloads first, its row last."""
    with closing(store.scan(Table.PAYLOAD, group.key, group.key + AFTER_ANY)) as rows:
        keys = [(Table.PAYLOAD, key) for key in next_keys(rows, limit)]
    if not keys and not group.keep_row and store.get(Table.GROUP, group.key) is not None:
        keys.append((Table.GROUP, group.key))
    return keys


def pointers_with_payloads(store: Store, prefix: bytes) -> list[int]:
    """All write pointers, and branch keys, that something is stored under or that are known to have been published."""
    return _pointers(store, prefix, prefix, prefix + AFTER_ANY)


def _pointers(store: Store, prefix: bytes, start: bytes, stop: bytes) -> list[int]:
    """The write pointers, or branch keys, with payloads or a row in the table of groups, rising; one seek for each."""
    return sorted({*_in(store, Table.PAYLOAD, prefix, start, stop), *_in(store, Table.GROUP, prefix, start, stop)})


def _in(store: Store, table: Table, prefix: bytes, start: bytes, stop: bytes) -> Iterator[int]:
    size = len(prefix) + 8
    for key in _beginnings(store, table, start, stop, lambda key: key[:size]):
        yield int.from_bytes(key[-8:], "big", signed=True)


def _beginnings(store: Store, table: Table, start: bytes, stop: bytes, beginning: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """How the keys of a range begin, each beginning once, rising; one seek for each."""
    while start < stop:
        with closing(store.scan(table, start, stop)) as rows:
            row = next(rows, None)
        if row is None:
            return
        found = beginning(row[0])
        yield found
        start = prefix_end(found)
