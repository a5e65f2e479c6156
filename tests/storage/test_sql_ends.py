"""A scan of a SQL database that ends before the log does is damage; so is a row of no log that SQLite does not find any more."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncelog_service.storage.keys import AFTER_ANY, edit_key, generation_key, journal_key, pointer_key, row_id, topic_key
from oncelog_service.storage.port import Store, StoreDamaged, Table
from tests.storage.stores import END, Place, delete, keys_of, opened, place_of, write

A, B = (generation_key(topic_key("default", name), 1) for name in ("a", "b"))
LOGS: dict[Table, tuple[bytes, Callable[[int], bytes]]] = {
    Table.MESSAGE: (A, lambda number: A + row_id(1_000 + number, 0)),
    Table.PAYLOAD: (pointer_key(A, 7), lambda number: pointer_key(A, 7) + row_id(1_000, number)),
    Table.CHUNK: (pointer_key(A, -7), lambda number: pointer_key(A, -7) + number.to_bytes(4, "big")),
    Table.JOURNAL: (b"\x00\x01", lambda number: journal_key(1, number)),
    Table.TRANSACTION_EDIT: (b"", edit_key),
}


def scans(store: Store, table: Table) -> list[Callable[[], object]]:
    log, key = LOGS[table]
    return [
        lambda: list(store.scan(table, log, log + AFTER_ANY)),
        lambda: list(store.scan(table, key(3), log + AFTER_ANY)),
        lambda: list(store.scan(table, log, log + AFTER_ANY, reverse=True)),
        lambda: next(store.scan(table, log, log + AFTER_ANY, reverse=True)),
        lambda: list(store.scan(table, b"", END)),
        lambda: list(store.scan(table, b"", END, reverse=True)),
    ]


@pytest.mark.parametrize("table", LOGS)
def test_a_log_whose_last_row_is_not_found_is_damaged(on_sql: Place, table: Table) -> None:
    store, (log, key) = on_sql.open(), LOGS[table]
    write(store, table, *map(key, reversed(range(6))))
    write(store, table, key(2))  # a row in the middle that is put anew moves no end
    for scan in scans(store, table):
        scan()
    on_sql.hide(table, key(5))
    for scan in scans(store, table):
        with pytest.raises(StoreDamaged, match="end before the last one"):
            scan()
    assert len(list(store.scan(table, log, key(5)))) == 5


@pytest.mark.parametrize("table", LOGS)
def test_a_log_that_was_deleted_from_its_beginning_to_its_end_is_not_damaged(on_sql: Place, table: Table) -> None:
    store, (_, key) = on_sql.open(), LOGS[table]
    write(store, table, *map(key, range(6)))
    for gone, left in ((range(3), 3), (range(3, 6), 0)):
        delete(store, table, *map(key, gone))
        assert len(keys_of(store, table)) == left
    write(store, table, key(6))
    assert keys_of(store, table) == [key(6)]
    on_sql.hide(table, key(6))
    with pytest.raises(StoreDamaged):
        keys_of(store, table)


def test_every_log_has_an_end_of_its_own(on_sql: Place) -> None:
    store = on_sql.open()
    first, second = ([prefix + row_id(number, 0) for number in range(3)] for prefix in (A, B))
    write(store, Table.MESSAGE, *first, *second)
    on_sql.hide(Table.MESSAGE, first[-1])
    assert [key for key, _ in store.scan(Table.MESSAGE, B, B + AFTER_ANY)] == second
    for start, stop in ((A, A + AFTER_ANY), (b"", END)):
        with pytest.raises(StoreDamaged):
            list(store.scan(Table.MESSAGE, start, stop))


# --- SQLite's rows of no log


def test_a_row_of_no_log_that_is_not_found_or_under_another_key_is_noticed_at_the_next_open(tmp_path: Path) -> None:
    """A producer's epochs would begin anew, and fence nobody."""
    keys = [A + name for name in (b"loader", b"other", b"third")]
    with place_of("sqlite", tmp_path) as place:
        store = place.open()
        write(store, Table.PRODUCER, *keys)
        delete(store, Table.PRODUCER, keys[2], A + b"never there")
        assert keys_of(place.reopen(), Table.PRODUCER) == keys[:2]
        place.close()
        there, elsewhere = (Table.PRODUCER.value + each for each in (keys[0], keys[0] + b"x"))
        move = "UPDATE oncelog_row SET key = ? WHERE key = ?"
        place.execute(move, (elsewhere, there))  # as many rows, and in the same order
        with pytest.raises(StoreDamaged, match="their keys differ"):
            place.open()
        place.execute(move, (there, elsewhere))
        for key in keys[:2]:
            place.hide(Table.PRODUCER, key)
            with pytest.raises(StoreDamaged, match="of no log"):
                place.open()


@pytest.mark.parametrize("value", [None, 7, "text", 1.5], ids=repr)
def test_a_value_whose_type_has_changed_is_damage(tmp_path: Path, value: object) -> None:
    """SQLite keeps the type beside each value, in a byte without a checksum. A NULL was taken for a row that is not there."""
    key = b"\0\0\0\0\0\0\0\1"
    with place_of("sqlite", tmp_path) as place:
        write(place.open(), Table.OUTCOME, key)
        place.close()
        place.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')", ())
        place.execute("UPDATE oncelog_row SET value = ? WHERE key = ?", (value, Table.OUTCOME.value + key))
        store = place.open()
        for read in (lambda: store.get(Table.OUTCOME, key), lambda: keys_of(store, Table.OUTCOME)):
            with pytest.raises(StoreDamaged, match="no bytes"):
                read()


@pytest.mark.real
def test_the_keys_of_a_database_are_looked_at_some_at_a_time(tmp_path: Path) -> None:
    with closing(opened("sqlite", tmp_path)) as store:
        write(store, Table.OUTCOME, *(number.to_bytes(8, "big") for number in range(80_000)))
    tracemalloc.start()
    try:
        opened("sqlite", tmp_path).close()
        assert tracemalloc.get_traced_memory()[1] < 4.5 * 2**20, "all of them are more than that"
    finally:
        tracemalloc.stop()
