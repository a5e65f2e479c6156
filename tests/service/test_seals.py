"""A row that is not what was written there is damage, in every table that has no checksum of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Fence, StoreDamaged, StoreFenced, Table
from oncelog_service.storage.rows import TrimRow, encode_record
from oncelog_service.storage.seals import UNSEALED, SealedStore, seal, unseal

SEALED = [table for table in Table if table not in UNSEALED]
KEY, VALUE = b"default:t:\x00\x00\x00\x01loader", b'{"version":1}'


def written(table: Table) -> tuple[SealedStore, dict[bytes, bytes]]:
    """A store with one row, and that row as it stands on disk."""
    disk = Disk()
    store = SealedStore(MemoryStore(disk))
    batch = Batch()
    batch.put(table, KEY, VALUE)
    store.write([batch])
    store.write([batch])  # a batch may be handed in again, and is sealed once
    return SealedStore(MemoryStore(disk)), disk.tables[table]


def reads(store: SealedStore, table: Table) -> list[Callable[[], object]]:
    return [
        lambda: store.get(table, KEY),
        lambda: list(store.scan(table, b"", b"\xff")),
        lambda: list(store.scan(table, b"", b"\xff", reverse=True)),
    ]


@pytest.mark.parametrize("table", SEALED)
def test_a_sealed_row_reads_back(table: Table) -> None:
    store, rows = written(table)
    assert rows[KEY] == VALUE + rows[KEY][-4:]
    assert store.get(table, KEY) == VALUE
    assert list(store.scan(table, b"", b"\xff")) == [(KEY, VALUE)]


@pytest.mark.parametrize("table", SEALED)
def test_every_flipped_bit_of_a_row_is_noticed(table: Table) -> None:
    store, rows = written(table)
    intact = rows[KEY]
    for bit in range(len(intact) * 8):
        damaged = bytearray(intact)
        damaged[bit // 8] ^= 1 << bit % 8
        rows[KEY] = bytes(damaged)
        for read in reads(store, table):
            with pytest.raises(StoreDamaged, match=table.name):
                read()


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x00"])
def test_what_is_too_short_or_blank_is_noticed(data: bytes) -> None:
    with pytest.raises(StoreDamaged):
        unseal(Table.TOPIC, KEY, data)


def test_a_row_under_another_key_or_in_another_table_is_noticed() -> None:
    data = seal(Table.PRODUCER, KEY, VALUE)
    assert unseal(Table.PRODUCER, KEY, data) == VALUE
    for table, key in ((Table.SUBSCRIPTION, KEY), (Table.PRODUCER, KEY + b"s"), (Table.PRODUCER, b"")):
        with pytest.raises(StoreDamaged):
            unseal(table, key, data)


def test_every_table_is_sealed_but_for_those_whose_rows_bring_a_checksum_of_their_own() -> None:
    assert {table.name for table in UNSEALED} == {"MESSAGE", "PAYLOAD", "SNAPSHOT", "KEY_SNAPSHOT", "TRANSACTION_SNAPSHOT"}


@pytest.mark.parametrize("table", [Table.TOPIC, Table.MESSAGE])
def test_what_is_sealed_stands_on_the_same_leases(table: Table) -> None:
    disk, batch = Disk(), Batch()
    batch.put(table, KEY, VALUE)
    batch.fences.add(Fence(b"default:t", 1))
    disk.epochs[b"default:t"] = 2  # somebody else has it now
    with pytest.raises(StoreFenced):
        SealedStore(MemoryStore(disk)).write([batch])
    assert disk.tables[table] == {}


def test_rows_with_a_checksum_of_their_own_are_left_as_they_are() -> None:
    for table in UNSEALED:
        _, rows = written(table)
        assert rows == {KEY: VALUE}


def test_the_layout_of_a_seal_never_changes() -> None:
    golden = (Path(__file__).parent.parent / "golden" / "trim_v1_sealed.hex").read_text().strip()
    assert seal(Table.TRIM, b"default:t:\x00\x00\x00\x01", encode_record(TrimRow(336_776))).hex() == golden
