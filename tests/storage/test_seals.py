"""A row that is not what was written there is damage, in every table that has no checksum of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Fence, StoreDamaged, StoreFenced, Table
from oncelog_service.storage.records import TrimRow, encode_record
from oncelog_service.storage.seals import UNSEALED, SealedStore, seal, unseal

KEY, VALUE = b"default:t:\x00\x00\x00\x01loader", b'{"version":1}'
WITH_THEIR_OWN = {"MESSAGE", "PAYLOAD", "SNAPSHOT", "KEY_SNAPSHOT", "TRANSACTION_SNAPSHOT"}


@pytest.mark.parametrize("table", Table)
def test_a_row_is_read_as_it_was_written_or_not_at_all_but_where_it_has_a_checksum_of_its_own(table: Table) -> None:
    disk, batch = Disk(), Batch()
    store = SealedStore(MemoryStore(disk))
    batch.put(table, KEY, VALUE)
    for _ in range(2):
        store.write([batch])  # a batch may be handed in again, and is sealed once
    rows = disk.tables[table]
    reads: list[Callable[[], object]] = [
        lambda: [(KEY, store.get(table, KEY))],
        lambda: list(store.scan(table, b"", b"\xff")),
        lambda: list(store.scan(table, b"", b"\xff", reverse=True)),
    ]
    assert [read() for read in reads] == [[(KEY, VALUE)]] * 3
    assert (rows == {KEY: VALUE}) == (table in UNSEALED) == (table.name in WITH_THEIR_OWN)
    intact = rows[KEY]
    for bit in range(len(intact) * 8 if table not in UNSEALED else 0):
        damaged = bytearray(intact)
        damaged[bit // 8] ^= 1 << bit % 8
        rows[KEY] = bytes(damaged)
        for read in reads:
            with pytest.raises(StoreDamaged, match=table.name):
                read()


def test_a_row_that_is_cut_or_lies_elsewhere_is_noticed() -> None:
    data = seal(Table.PRODUCER, KEY, VALUE)
    assert unseal(Table.PRODUCER, KEY, data) == VALUE
    for table, key in ((Table.SUBSCRIPTION, KEY), (Table.PRODUCER, KEY + b"s"), (Table.PRODUCER, b"")):
        with pytest.raises(StoreDamaged):
            unseal(table, key, data)
    for cut in (b"", bytes(3), bytes(4), data[:-1]):
        with pytest.raises(StoreDamaged):
            unseal(Table.PRODUCER, KEY, cut)


@pytest.mark.parametrize("table", [Table.TOPIC, Table.MESSAGE])
def test_what_is_sealed_stands_on_the_same_leases(table: Table) -> None:
    disk, batch = Disk(), Batch()
    batch.put(table, KEY, VALUE)
    batch.fences.add(Fence(b"default:t", 1))
    disk.epochs[b"default:t"] = 2  # somebody else has it now
    with pytest.raises(StoreFenced):
        SealedStore(MemoryStore(disk)).write([batch])
    assert disk.tables[table] == {}


def test_the_layout_of_a_seal_never_changes() -> None:
    golden = (Path(__file__).parent.parent / "golden" / "trim_v1_sealed.hex").read_text().strip()
    assert seal(Table.TRIM, b"default:t:\x00\x00\x00\x01", encode_record(TrimRow(336_776))).hex() == golden
