"""A snapshot of any size is rows of a bounded size, and is whole or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.pieces import get_pieces, intact_piece, put_pieces
from oncelog_service.storage.port import Batch, Table

S, KEY = Table.SNAPSHOT, b"default:t:\x00\x00\x00\x01\x00"


def written(value: bytes, size: int, disk: Disk | None = None) -> tuple[MemoryStore, dict[bytes, bytes]]:
    disk = disk or Disk()
    store, batch = MemoryStore(disk), Batch()
    put_pieces(batch, S, KEY, value, size)
    store.write([batch])
    return store, disk.tables[S]


@given(st.binary(max_size=200), st.integers(1, 50))
def test_a_value_reads_back_whatever_its_size(value: bytes, size: int) -> None:
    store, rows = written(value, size)
    assert get_pieces(store, S, KEY) == value
    assert len(rows) == max(1, -(-len(value) // size))
    assert all(intact_piece(row) and len(row) <= size + 20 for row in rows.values()) if len(rows) > 1 else rows == {KEY: value}


def test_a_piece_that_is_damaged_or_missing_or_of_another_value_makes_it_none() -> None:
    for number in range(4):
        store, rows = written(b"0123456789abcdef", 4)
        key = KEY + number.to_bytes(4, "big") if number else KEY
        whole, other = rows[key], written(b"0123456789abcdeF", 4)[1][key]
        for at in range(16 if number else 4, len(whole)):
            rows[key] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            assert get_pieces(store, S, KEY) == b""
        rows[key] = other
        assert get_pieces(store, S, KEY) == b""
        del rows[key]
        assert not get_pieces(store, S, KEY)


def test_what_a_larger_value_left_behind_is_not_read() -> None:
    disk = Disk()
    written(b"0123456789abcdef", 4, disk)
    store, _ = written(b"01234567", 4, disk)
    assert get_pieces(store, S, KEY) == b"01234567"
