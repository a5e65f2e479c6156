"""A scan of a SQL database that ends before the log does is damage; and a SQLite file that is not whole is refused untouched."""

from __future__ import annotations

import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncelog_service.storage.keys import AFTER_ANY, edit_key, generation_key, journal_key, pointer_key, row_id, topic_key
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreDamaged, StoreError, Table
from tests.postgres import postgres_server
from tests.service.test_sql_store import Place, postgresql_place, sqlite_place

A, B = (generation_key(topic_key("default", name), 1) for name in ("a", "b"))
LOGS: dict[Table, tuple[bytes, Callable[[int], bytes]]] = {
    Table.MESSAGE: (A, lambda number: A + row_id(1_000 + number, 0)),
    Table.PAYLOAD: (pointer_key(A, 7), lambda number: pointer_key(A, 7) + row_id(1_000, number)),
    Table.CHUNK: (pointer_key(A, -7), lambda number: pointer_key(A, -7) + number.to_bytes(4, "big")),
    Table.JOURNAL: (b"\x00\x01", lambda number: journal_key(1, number)),
    Table.TRANSACTION_EDIT: (b"", edit_key),
}
END = b"\xff" * 64


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = sqlite_place(tmp_path) if request.param == "sqlite" else postgresql_place(postgres_server())
    with made as place:
        yield place


def hide(place: Place, table: Table, key: bytes) -> None:
    """Have an index lose the row."""
    if place.url.startswith("sqlite"):
        with closing(sqlite3.connect(place.url.removeprefix("sqlite://"))) as file, file:
            assert file.execute("DELETE FROM oncelog_row WHERE key = ?", (table.value + key,)).rowcount == 1
    else:
        with place.connect() as connection:
            assert connection.execute("DELETE FROM oncelog_row WHERE key = %s", (table.value + key,)).rowcount == 1


def write(store: Store, table: Table, *keys: bytes) -> None:
    batch = Batch()
    for key in keys:
        batch.put(table, key, b"value")
    store.write([batch])


def delete(store: Store, table: Table, *keys: bytes) -> None:
    batch = Batch()
    for key in keys:
        batch.delete(table, key)
    store.write([batch])


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
def test_a_log_whose_last_row_is_not_found_is_damaged(place: Place, table: Table) -> None:
    store, (log, key) = place.open(), LOGS[table]
    write(store, table, *map(key, range(6)))
    write(store, table, key(2))  # a row in the middle that is put anew moves no end
    for scan in scans(store, table):
        scan()
    hide(place, table, key(5))
    for scan in scans(store, table):
        with pytest.raises(StoreDamaged, match="end before the last one"):
            scan()
    assert len(list(store.scan(table, log, key(5)))) == 5


@pytest.mark.parametrize("table", LOGS)
def test_a_log_that_was_deleted_from_its_beginning_to_its_end_is_not_damaged(place: Place, table: Table) -> None:
    store, (_, key) = place.open(), LOGS[table]
    write(store, table, *map(key, range(6)))
    delete(store, table, *map(key, range(3)))
    assert list(store.scan(table, b"", END)) != []
    delete(store, table, *map(key, range(3, 6)))
    assert list(store.scan(table, b"", END)) == []
    write(store, table, key(6))
    assert len(list(store.scan(table, b"", END))) == 1
    hide(place, table, key(6))
    with pytest.raises(StoreDamaged):
        list(store.scan(table, b"", END))


def test_every_log_has_an_end_of_its_own(place: Place) -> None:
    store = place.open()
    first, second = ([prefix + row_id(number, 0) for number in range(3)] for prefix in (A, B))
    write(store, Table.MESSAGE, *first, *second)
    hide(place, Table.MESSAGE, first[-1])
    assert [key for key, _ in store.scan(Table.MESSAGE, B, B + AFTER_ANY)] == second
    for start, stop in ((A, A + AFTER_ANY), (b"", END)):
        with pytest.raises(StoreDamaged):
            list(store.scan(Table.MESSAGE, start, stop))


# --- SQLite's own


def files_of(path: Path) -> dict[str, bytes]:
    """But for the lock and the memory that connections share, which SQLite makes anew."""
    return {each.name: each.read_bytes() for each in path.iterdir() if not each.name.endswith((".lock", "-shm"))}


def opened(path: Path) -> Store:
    return store_opener(f"sqlite://{path}/data")()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A database as SIGKILL leaves it: the last writes are in its write-ahead log only."""
    live, kept = tmp_path / "live", tmp_path / "kept"
    live.mkdir()
    with closing(opened(live)) as store:
        write(store, Table.MESSAGE, *(A + row_id(number, 0) for number in range(50)))
        write(store, Table.PRODUCER, A + b"loader", A + b"other")
    with closing(opened(live)) as store:
        for number in range(50, 60):
            write(store, Table.MESSAGE, A + row_id(number, 0))
        shutil.copytree(live, kept)
    return kept


def gone(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def empty(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(b"")


def flipped(path: Path) -> None:
    """In the write before the last one, where SQLite takes it for the end of the log."""
    data = bytearray((path / "data-wal").read_bytes())
    data[-9_000] ^= 1
    (path / "data-wal").write_bytes(data)


DAMAGES = {
    "the database is gone": gone("data"),
    "the database is empty": empty("data"),
    "the write-ahead log is gone": gone("data-wal"),
    "the write-ahead log is empty": empty("data-wal"),
    "a bit of the write-ahead log": flipped,
    "the file beside is gone": gone("data.end"),
    "the file beside is empty": empty("data.end"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_database_that_is_not_whole_is_refused_and_left_as_it_is(kept: Path, damage: Callable[[Path], None]) -> None:
    damage(kept)
    before = files_of(kept)
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            opened(kept)
        assert files_of(kept) == before


def test_a_database_that_is_whole_opens_with_everything_in_it(kept: Path) -> None:
    for _ in range(2):
        with closing(opened(kept)) as store:
            assert len(list(store.scan(Table.MESSAGE, A, A + AFTER_ANY))) == 60


@pytest.mark.parametrize("key", [A + b"loader", A + b"other"])
def test_a_producers_row_that_is_not_found_is_noticed_at_the_next_open(kept: Path, key: bytes) -> None:
    """Its epochs would begin anew, and fence nobody."""
    opened(kept).close()
    hide(Place(f"sqlite://{kept}/data", None), Table.PRODUCER, key)
    with pytest.raises(StoreDamaged, match="of no log"):
        opened(kept)


@pytest.mark.parametrize("value", [None, 7, "text", 1.5], ids=repr)
def test_a_value_whose_type_has_changed_is_damage(tmp_path: Path, value: object) -> None:
    """SQLite keeps the type beside each value, in a byte without a checksum. A NULL was taken for a row that is not there."""
    key = b"\0\0\0\0\0\0\0\1"
    with closing(opened(tmp_path)) as store:
        write(store, Table.OUTCOME, key)
    with closing(sqlite3.connect(tmp_path / "data")) as file, file:
        file.execute("PRAGMA writable_schema = ON")
        file.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    with closing(sqlite3.connect(tmp_path / "data")) as file, file:
        file.execute("UPDATE oncelog_row SET value = ? WHERE key = ?", (value, Table.OUTCOME.value + key))
    with closing(opened(tmp_path)) as store:
        with pytest.raises(StoreDamaged, match="no bytes"):
            store.get(Table.OUTCOME, key)
        with pytest.raises(StoreDamaged, match="no bytes"):
            list(store.scan(Table.OUTCOME, b"", END))


def test_a_database_whose_making_was_broken_off_is_made(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "data.end").unlink()
    (tmp_path / "data.creating").touch()
    with closing(opened(tmp_path)) as store:
        write(store, Table.PRODUCER, A + b"loader")
    with closing(opened(tmp_path)) as store:
        assert store.get(Table.PRODUCER, A + b"loader") == b"value"
    assert not (tmp_path / "data.creating").exists()


def test_a_link_to_a_database_is_the_database(kept: Path, tmp_path: Path) -> None:
    """SQLite follows it and keeps the write-ahead log beside the file that it leads to."""
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "other"
    link.symlink_to(kept / "data")
    with closing(store_opener(f"sqlite://{link}")()) as store:
        assert len(list(store.scan(Table.MESSAGE, A, A + AFTER_ANY))) == 60
        with pytest.raises(StoreError, match="in use"):
            opened(kept)
    assert [each.name for each in link.parent.iterdir()] == ["other"]


def test_a_database_whose_file_beside_cannot_be_written_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "data.end").symlink_to(tmp_path / "gone" / "data.end")
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(tmp_path)


def test_the_keys_of_a_database_are_looked_at_some_at_a_time(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as store:
        write(store, Table.OUTCOME, *(number.to_bytes(8, "big") for number in range(120_000)))
    tracemalloc.start()
    try:
        opened(tmp_path).close()
        assert tracemalloc.get_traced_memory()[1] < 6 * 2**20, "all of them are more than that"
    finally:
        tracemalloc.stop()


def test_a_backup_put_where_a_making_was_broken_off_is_a_database_like_any_other(kept: Path) -> None:
    (kept / "data.creating").touch()
    for _ in range(2):
        with closing(opened(kept)) as store:
            assert store.get(Table.PRODUCER, A + b"loader") == b"value"
    assert not (kept / "data.creating").exists()
