"""A seal on every row that brings no checksum of its own: four bytes behind the value, over table, key and value.

Rows of messages and payloads carry a checksum and their own place (rows.py), snapshots carry theirs. All others – topics,
producers, subscriptions, what a transaction came to – are sealed when they are written and looked at when they are read, here and
nowhere else. A row whose bytes have changed, or that stands under another key or in another table than it was written to, is
StoreDamaged: never read as something else, never taken for a row that is not there.

The seal is the CRC-32 of the table's byte, the key's length (u32, big-endian), the key and the value; little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from zlib import crc32

from oncelog_service.storage.port import Batch, LeaseTable, Rows, Store, StoreDamaged, Table

UNSEALED = frozenset(
    (Table.MESSAGE, Table.PAYLOAD, Table.SNAPSHOT, Table.KEY_SNAPSHOT, Table.TRANSACTION_SNAPSHOT),
)
"""What carries a checksum of its own. Of messages there are many; of a snapshot that is damaged the other one is taken."""
_SIZE = 4


def seal(table: Table, key: bytes, value: bytes) -> bytes:
    """The value as it stands on disk."""
    return value + _checksum(table, key, value).to_bytes(_SIZE, "little")


def unseal(table: Table, key: bytes, data: bytes) -> bytes:
    """The value again. Raises StoreDamaged: it is not what was written there."""
    value = data[:-_SIZE]
    if len(data) < _SIZE or _checksum(table, key, value).to_bytes(_SIZE, "little") != data[-_SIZE:]:
        raise StoreDamaged(
            f"the row {key!r} of {table.name} is damaged, or was written somewhere else: its checksum does not match"
        )
    return value


def _checksum(table: Table, key: bytes, value: bytes) -> int:
    return crc32(value, crc32(table.value + len(key).to_bytes(4, "big") + key))


class SealedStore:
    """A store whose rows are sealed. See :class:`~oncelog_service.storage.port.Store`."""

    def __init__(self, inner: Store) -> None:
        """``inner``: the rows as they stand on disk; for whoever looks for damage, or goes on behind it."""
        self.inner = inner

    def get(self, table: Table, key: bytes) -> bytes | None:
        data = self.inner.get(table, key)
        return data if data is None or table in UNSEALED else unseal(table, key, data)

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        rows = self.inner.scan(table, start, stop, reverse=reverse)
        return rows if table in UNSEALED else _unsealed(table, rows)

    def write(self, batches: Sequence[Batch]) -> None:
        self.inner.write([_sealed(batch) for batch in batches])

    def lease_table(self) -> LeaseTable | None:
        return self.inner.lease_table()

    def close(self) -> None:
        self.inner.close()


def raw(store: Store) -> Store:
    """The store below: its rows as they stand on disk."""
    return store.inner if isinstance(store, SealedStore) else store


def _unsealed(table: Table, rows: Rows) -> Rows:
    with closing(rows):
        for key, data in rows:
            yield key, unseal(table, key, data)


def _sealed(batch: Batch) -> Batch:
    """The batch with its rows sealed. A new one: whoever handed it in may hand it in again."""
    if all(table in UNSEALED for table, *_ in (*batch.puts, *batch.runs)):
        return batch
    made = Batch()
    made.fences, made.deletes = batch.fences, batch.deletes
    for table, key, value in batch.puts:
        made.put(table, key, value if table in UNSEALED else seal(table, key, value))
    for table, prefix, suffixes, values in batch.runs:
        if table not in UNSEALED:
            values = [seal(table, prefix + suffix, value) for suffix, value in zip(suffixes, values, strict=True)]
        made.put_run(table, prefix, suffixes, values)
    return made
