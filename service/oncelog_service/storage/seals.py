"""Seals each row that brings no checksum of its own: a checksum (checksum.py) of its place and its value.

Rows of messages and payloads carry a checksum of their place too (runs.py), snapshots carry theirs. All others – topics,
producers, subscriptions, outcomes – are sealed when they are written and checked when they are read, here and nowhere else. A row
whose bytes have changed, or that lies under another key or in another table than it was written to, is StoreDamaged: it is never
read as something else, and never taken for a row that is not there.

The place is the table's byte, the key's length (u32, big-endian) and the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing

from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.port import Batch, LeaseTable, Rows, Staged, Store, StoreDamaged, Table

UNSEALED = frozenset(
    (Table.MESSAGE, Table.PAYLOAD, Table.SNAPSHOT, Table.KEY_SNAPSHOT, Table.TRANSACTION_SNAPSHOT),
)
"""Tables whose rows carry a checksum of their own. Of a snapshot that is damaged the other one is taken."""


def seal(table: Table, key: bytes, value: bytes) -> bytes:
    """Seals a value for the place where it is to lie."""
    return with_checksum(value, _place(table, key))


def unseal(table: Table, key: bytes, data: bytes) -> bytes:
    """Returns the value again. Raises StoreDamaged: it is not what was written there."""
    if not matches(data, _place(table, key)):
        raise StoreDamaged(
            f"the row {key!r} of {table.name} is damaged, or was written somewhere else: its checksum does not match"
        )
    return data[:-SIZE]


def _place(table: Table, key: bytes) -> bytes:
    return table.value + len(key).to_bytes(4, "big") + key


class SealedStore:
    """Seals the rows of a store. See :class:`~oncelog_service.storage.port.Store`."""

    def __init__(self, inner: Store) -> None:
        """``inner``: the rows as they lie on disk, for commands that look for damage, or go on behind it."""
        self.inner = inner

    def get(self, table: Table, key: bytes) -> bytes | None:
        data = self.inner.get(table, key)
        return data if data is None or table in UNSEALED else unseal(table, key, data)

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        rows = self.inner.scan(table, start, stop, reverse=reverse)
        return rows if table in UNSEALED else _unsealed(table, rows)

    def write(self, batches: Sequence[Batch]) -> None:
        self.inner.write([_sealed(batch) for batch in batches])

    def write_at_once(self, batches: Sequence[Batch]) -> bool:
        return self.inner.write_at_once([_sealed(batch) for batch in batches])

    def behind(self) -> float:
        return self.inner.behind()

    def scrub(self, table: Table, key: bytes, *, written: bool) -> None:
        self.inner.scrub(table, key, written=written)

    def look(self) -> None:
        self.inner.look()

    def free_bytes(self) -> int | None:
        return self.inner.free_bytes()

    def size_bytes(self) -> int:
        return self.inner.size_bytes()

    def reclaim(self, thorough: bool, only_much: bool = False) -> None:
        self.inner.reclaim(thorough, only_much)

    def check_written(self) -> None:
        self.inner.check_written()

    def lease_table(self) -> LeaseTable | None:
        return self.inner.lease_table()

    def staged(self, least_free: int = 0) -> AbstractContextManager[Staged] | None:
        return self.inner.staged(least_free)

    def close(self) -> None:
        self.inner.close()


def raw(store: Store) -> Store:
    """Returns the store below, with its rows as they lie on disk."""
    return store.inner if isinstance(store, SealedStore) else store


def _unsealed(table: Table, rows: Rows) -> Rows:
    with closing(rows):
        for key, data in rows:
            yield key, unseal(table, key, data)


def _sealed(batch: Batch) -> Batch:
    """Seals the rows of a batch, in a new one: a batch may be handed in again."""
    if all(table in UNSEALED for table in (*(table for table, *_ in batch.puts), *(laid.table for laid in batch.laid))):
        return batch
    made = Batch()
    made.fences, made.deletes, made.rewritten = batch.fences, batch.deletes, batch.rewritten
    for table, key, value in batch.puts:
        made.put(table, key, value if table in UNSEALED else seal(table, key, value))
    for laid in batch.laid:
        if laid.table in UNSEALED:
            made.put_laid(laid)
        else:
            rows = [(end, seal(laid.table, laid.prefix + end, value)) for end, value in laid.rows()]
            made.put_rows(laid.table, laid.prefix, rows)
    return made
