"""A store in which commits are prepared and none is applied: what a service leaves that dies at the worst moment, often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oncelog.wire.requests import CommitRequest
from oncelog_service.app import build_service
from oncelog_service.config import Settings
from oncelog_service.journal.records import Applied, ApplyCommit, decode, encode
from oncelog_service.journal.recovery import find
from oncelog_service.storage.keys import journal_key
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Rows, Store, Table
from oncelog_service.storage.rows import JournalMetaRow, decode_record, encode_record

_SNAPSHOTS = (Table.SNAPSHOT, Table.KEY_SNAPSHOT)


class NeverApplied:
    """A store that leaves out what follows on PrepareCommit, and closes the gaps that this makes in the journal.

    Left out are the batches that apply a commit, with the rows of the messages in them; snapshots of topics that have these
    messages; and what deletes records of the journal. A service goes on with it, for it does not read back what it wrote.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._positions: dict[bytes, int] = {}
        """Of each partition, where its next record goes."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._store.get(table, key)

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        return self._store.scan(table, start, stop, reverse=reverse)

    def write(self, batches: Sequence[Batch]) -> None:
        self._store.write([self._moved(batch) for batch in batches if not _comes_behind(batch)])

    def lease_table(self) -> None:
        return None

    def close(self) -> None:
        self._store.close()

    def _moved(self, batch: Batch) -> Batch:
        moved = Batch()
        moved.runs, moved.deletes = batch.runs, batch.deletes
        for table, key, value in batch.puts:
            if table is Table.JOURNAL:
                partition = key[:2]
                position = self._positions.get(partition, 0)
                self._positions[partition] = position + 1
                record = decode(int.from_bytes(key[2:], "big"), value)
                moved.put(table, journal_key(int.from_bytes(partition, "big"), position), encode(position, record))
            elif table is Table.JOURNAL_META:
                row = decode_record(JournalMetaRow, value)
                moved.put(table, key, encode_record(replace(row, begins=[0] * row.partitions)))
            else:
                moved.put(table, key, value)
        return moved


def _comes_behind(batch: Batch) -> bool:
    if any(table is Table.JOURNAL for table, _ in batch.deletes):
        return True
    for table, key, value in batch.puts:
        if table in _SNAPSHOTS:
            return True
        if table is Table.JOURNAL and isinstance(decode(int.from_bytes(key[2:], "big"), value), ApplyCommit | Applied):
            return True
    return False


def prepare(path: Path, topics: Sequence[str], requests: Sequence[CommitRequest]) -> None:
    """Make a store at ``path`` with these topics and commits, all prepared. Raises RuntimeError if they are not."""
    asyncio.run(_prepare(path, topics, requests))
    _check(path, len(requests))


def _check(path: Path, commits: int) -> None:
    """Raises RuntimeError unless so many are prepared and no topic has got a message."""
    store = store_opener(f"leveldb://{path}")()
    try:
        plans = find(store, Settings().journal_partitions).plans
        prepared = [
            each for plan in plans for each in plan.transactions.values() if each.prepared is not None and not each.applied
        ]
        messages = sum(1 for _ in store.scan(Table.MESSAGE, b"", b"\xff"))
    finally:
        store.close()
    if len(prepared) != commits or messages:
        raise RuntimeError(f"{len(prepared)} of {commits} commits are prepared, {messages} rows are in the topics")


async def _prepare(path: Path, topics: Sequence[str], requests: Sequence[CommitRequest]) -> None:
    url = f"leveldb://{path}"
    opener = store_opener(url)
    service = build_service(Settings(store=url), open_store=lambda: NeverApplied(opener()))
    await service.start()
    for topic in topics:
        await service.topics.create("default", topic, {})
    for number, request in enumerate(requests):
        await service.journal.commit(f"prepared-{number}", request)
    await service.stop()
