"""What deleted rows take is given back to the disk, also by a store that nobody writes to."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from oncelog_service.storage.files import leveldb
from oncelog_service.storage.files.leveldb import LevelDBStore
from oncelog_service.storage.keys import generation_key, pointer_key, row_id, topic_key
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Table
from tests.storage.stores import END, Hasty

KIB, MIB = 2**10, 2**20
PREFIX, KEPT = (generation_key(topic_key("default", name), 1) for name in ("deleted", "kept"))
LARGE = {Table.MESSAGE: (PREFIX, KEPT), Table.PAYLOAD: (pointer_key(PREFIX, 7), pointer_key(KEPT, 7))}
ROWS = 100


def used(path: Path) -> int:
    size = 0
    for each in path.iterdir():
        with suppress(FileNotFoundError):  # LevelDB deletes some in the background
            size += each.stat().st_size
    return size


def filled(path: Path, table: Table) -> LevelDBStore:
    """A store with 10 MB in one log, and 1 MB in another that lies behind it."""
    store = LevelDBStore(path)
    for prefix, rows in zip(LARGE[table], (ROWS, ROWS // 10), strict=True):
        for at in range(rows):
            batch = Batch()
            batch.put(table, prefix + row_id(at, 0), os.urandom(100 * KIB))
            store.write([batch])
    store._db.compact_range()  # LevelDB lays it down when it comes to it, and what is in memory yet has no size
    return store


def delete(store: LevelDBStore, table: Table) -> None:
    for begin in range(0, ROWS, 50):
        batch = Batch()
        for at in range(begin, begin + 50):
            batch.delete(table, LARGE[table][0] + row_id(at, 0))
        store.write([batch])


@pytest.mark.parametrize(("table", "part"), [(Table.MESSAGE, leveldb._MERGED_AT_ONCE), (Table.PAYLOAD, MIB)])
def test_what_was_deleted_is_given_back_and_what_was_not_stays(
    tmp_path: Path, table: Table, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leveldb, "_MERGED_AT_ONCE", part)
    with closing(filled(tmp_path / "data", table)) as store:
        delete(store, table)
        assert used(tmp_path / "data") > 5 * MIB
        store.reclaim(False)
        assert used(tmp_path / "data") < 3 * MIB
        with closing(store.scan(table, b"", END)) as rows:
            assert [key for key, _ in rows] == [LARGE[table][1] + row_id(at, 0) for at in range(ROWS // 10)]


def test_what_holds_up_reading_is_given_back_wherever_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever looks at the log before it passes over all that was deleted, with every look."""
    with closing(filled(tmp_path / "data", Table.MESSAGE)) as store:
        delete(store, Table.MESSAGE)
        batch = Batch()
        for at in range(ROWS // 10):
            batch.rewrite(Table.MESSAGE, KEPT + row_id(at, 0), b"rolled back")  # while the log is as large as it likes
        store.write([batch])
        store.reclaim(False, only_much=True)
        assert used(tmp_path / "data") > 5 * MIB, "that is not much"
        monkeypatch.setattr(leveldb, "_MUCH", 5 * MIB)
        store.reclaim(False, only_much=True)
        assert used(tmp_path / "data") > 5 * MIB, "nothing more was deleted"
        delete(store, Table.MESSAGE)
        store.reclaim(False, only_much=True)
        assert used(tmp_path / "data") < 3 * MIB
        with closing(store.scan(Table.MESSAGE, b"", END)) as rows:
            assert [key for key, _ in rows] == [KEPT + row_id(at, 0) for at in range(ROWS // 10)]


def test_what_lay_deeper_than_leveldb_looked_is_given_back(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "data", Table.MESSAGE)) as store:
        delete(store, Table.MESSAGE)
        store._db = Hasty(store._db)
        store.reclaim(False)
        assert used(tmp_path / "data") < 3 * MIB


def test_what_rows_were_before_they_were_rewritten_is_given_back(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "data", Table.MESSAGE)) as store:
        for begin in range(0, ROWS, 50):
            batch = Batch()
            for at in range(begin, begin + 50):
                batch.rewrite(Table.MESSAGE, PREFIX + row_id(at, 0), os.urandom(100 * KIB))
            store.write([batch])
        assert used(tmp_path / "data") > 17 * MIB
        store.reclaim(False)
        assert used(tmp_path / "data") < 13 * MIB


def test_files_that_somebody_reads_are_given_back_once_nobody_does(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "data", Table.MESSAGE)) as store:
        with closing(store.scan(Table.MESSAGE, b"", END)) as rows:
            next(rows)
            delete(store, Table.MESSAGE)
            for _ in range(5):
                store.reclaim(False)
            assert used(tmp_path / "data") > 5 * MIB
        store.reclaim(False)
        assert used(tmp_path / "data") < 3 * MIB


@pytest.mark.parametrize("thorough", [False, True])
def test_what_was_deleted_before_the_store_was_opened_is_given_back_when_it_must_be(tmp_path: Path, thorough: bool) -> None:
    store = filled(tmp_path / "data", Table.MESSAGE)
    delete(store, Table.MESSAGE)
    store.close()
    with closing(LevelDBStore(tmp_path / "data", store.number)) as store:
        store.reclaim(thorough)
        store.reclaim(False)
        assert (used(tmp_path / "data") < 3 * MIB) == thorough


def test_a_range_is_cut_into_parts_that_follow_on_one_another() -> None:
    def size(start: bytes, stop: bytes) -> int:
        return (int.from_bytes(stop.ljust(8, b"\0"), "big") - int.from_bytes(start.ljust(8, b"\0"), "big")) >> 16

    whole = (b"Ma", b"Mb")
    parts = list(leveldb._parts(*whole, lambda start, stop: size(start[:8], stop[:8])))
    assert (parts[0][0], parts[-1][1]) == whole
    assert len(parts) > 10
    assert all(before[1] == after[0] and before[0] < before[1] for before, after in pairwise(parts))


@pytest.mark.parametrize("kind", ["leveldb", "sqlite"])
def test_the_room_on_the_disk_is_what_its_file_system_has_and_what_the_store_can_use_again(tmp_path: Path, kind: str) -> None:
    def fake(path: Path) -> int:
        assert path.exists()
        return 1_000

    with pytest.MonkeyPatch.context() as patch:
        module: Callable[..., object] = fake
        patch.setattr(f"oncelog_service.storage.{'files.leveldb' if kind == 'leveldb' else 'sql.sqlite'}.free_bytes", module)
        with closing(store_opener(f"{kind}://{tmp_path}/data")()) as store:
            assert store.free_bytes() == 1_000
            put, gone = Batch(), Batch()
            put.put(Table.MESSAGE, PREFIX + row_id(1, 1), bytes(MIB))
            gone.delete(Table.MESSAGE, PREFIX + row_id(1, 1))
            store.write([put])
            assert store.free_bytes() == 1_000
            store.write([gone])
            free = store.free_bytes()
            assert free == 1_000 if kind == "leveldb" else free is not None and free > MIB


@pytest.mark.parametrize("rewritten", [False, True])
def test_what_is_noted_as_gone_is_gone_by_then_so_that_no_merge_comes_too_early(
    tmp_path: Path, rewritten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reclaims runs on another thread, and takes what is noted at any moment."""
    key, seen = PREFIX + row_id(1, 0), list[bytes | None]()
    with closing(LevelDBStore(tmp_path / "data")) as store:
        batch = Batch()
        batch.put(Table.MESSAGE, key, b"before")
        store.write([batch])
        monkeypatch.setattr(store, "_note_gone", lambda *keys: seen.extend(store.get(*each) for some in keys for each in some))
        batch = Batch()
        if rewritten:
            batch.rewrite(Table.MESSAGE, key, b"behind")
        else:
            batch.delete(Table.MESSAGE, key)
        store.write([batch])
    assert seen == [b"behind" if rewritten else None]
