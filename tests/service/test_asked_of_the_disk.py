"""What a store in files asks of the disk: what no kill of the process shows, and the next power cut would.

The pages of a process that was killed stay with the operating system, so whatever was written is found again, synced or not. Here
each call is noted instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import plyvel
import pytest

from oncelog_service.storage.leveldb import LevelDBStore
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreClosed, StoreDamaged, StoreError, Table

KINDS = ("leveldb", "sqlite")


class Noted:
    """What was asked, in order: ``("sync" or "write", path)``, and what LevelDB was asked for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        for module, name, called in ((os, "fsync", "sync"), (os, "pwrite", "write")):
            patch.setattr(module, name, self._noting(called, getattr(module, name)))
        patch.setattr(plyvel, "DB", self._database())

    def _noting(self, called: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def noting(handle: int, *more: Any) -> Any:
            done = real(handle, *more)
            self.calls.append((called, Path(os.readlink(f"/proc/self/fd/{handle}"))))
            return done

        return noting

    def _database(self) -> Callable[..., Any]:
        noted, real = self, plyvel.DB

        class Database:
            def __init__(self, *given: Any, **options: Any) -> None:
                self._real = real(*given, **options)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._real, name)

            @contextmanager
            def write_batch(self, **options: Any) -> Any:
                with self._real.write_batch(**options) as rows:
                    yield rows
                noted.calls.append(("rows", options))

        return Database

    def take(self) -> list[tuple[str, Any]]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def opened(kind: str, path: Path) -> Store:
    return store_opener(f"{kind}://{path}")()


def put(store: Store, value: bytes) -> None:
    batch = Batch()
    batch.put(Table.TOPIC, b"key", value)
    store.write([batch])


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_store_is_found_after_a_power_cut_however_deep_it_lies(kind: str, noted: Noted, tmp_path: Path) -> None:
    """The name of each directory that was made for it stands in the one above, which is synced."""
    place = tmp_path / "made" / "by" / "us" / "data"
    with closing(opened(kind, place)):
        synced = {path for called, path in noted.take() if called == "sync"}
        assert {tmp_path, *place.parents[:3]} <= synced
        assert kind == "sqlite" or place in synced


@pytest.mark.parametrize("kind", KINDS)
def test_how_far_a_store_has_come_is_noted_beside_it_after_the_write_and_synced_when_it_is_closed(
    kind: str, noted: Noted, tmp_path: Path
) -> None:
    """Were it noted before, a power cut in between would have a store refused that is whole."""
    path = tmp_path / "data"
    beside = path / "oncelog.end" if kind == "leveldb" else path.with_name("data.end")
    store = opened(kind, path)
    assert noted.take().count(("sync", beside)) == 1, "before anything is acknowledged"
    put(store, b"1")
    calls = [(called, what) for called, what in noted.take() if called == "rows" or what == beside]
    assert calls[-1] == ("write", beside)
    assert len(calls) == (2 if kind == "leveldb" else 1)
    store.close()
    assert ("sync", beside) in noted.take()


def test_every_write_to_leveldb_is_one_synced_transaction(noted: Noted, tmp_path: Path) -> None:
    with closing(opened("leveldb", tmp_path / "data")) as store:
        for value in (b"1", b"2"):
            put(store, value)
        asked = [what for called, what in noted.take() if called == "rows"]
        assert asked == [{"transaction": True, "sync": True}] * 3, "the first one makes the store"


@pytest.mark.parametrize(("error", "told"), [(plyvel.CorruptionError, StoreDamaged), (plyvel.IOError, StoreError)])
def test_a_write_that_fails_of_a_damaged_table_is_told_apart_from_a_full_disk(
    error: type[Exception], told: type[StoreError], noted: Noted, tmp_path: Path
) -> None:
    """What is refused then is refused again after every reopening. A slow test has LevelDB meet a real one."""
    with closing(LevelDBStore(tmp_path / "data")) as store:

        def fails(**_: Any) -> Any:
            raise error("planted")

        store._db.write_batch = fails
        with pytest.raises(StoreError) as failed:
            put(store, b"1")
        assert type(failed.value) is told
        with pytest.raises(StoreClosed):
            put(store, b"2")


def test_sqlite_syncs_its_log_before_a_commit_returns_on_each_of_its_connections(tmp_path: Path) -> None:
    """``synchronous`` is of a connection, and SQLite's own default may be another."""
    from oncelog_service.storage.sql_sqlite import SqliteDatabase

    database = SqliteDatabase(tmp_path / "data")
    with closing(database), database.engine.connect() as one, database.engine.connect() as other:
        assert [each.exec_driver_sql("PRAGMA synchronous").scalar_one() for each in (one, other)] == [2, 2]
