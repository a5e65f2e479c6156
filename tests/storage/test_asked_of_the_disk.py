"""What a store in files asks of the disk, and what it makes of a flipped bit.

No kill of a process shows a missing sync, only the next power cut: the pages of a process that was killed stay with the operating
system, and are found again. Here each call is noted instead.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plyvel
import pytest

from oncelog_service.storage.files import directory
from oncelog_service.storage.files.leveldb import LevelDBStore
from oncelog_service.storage.port import Batch, Store, StoreClosed, StoreDamaged, StoreError
from oncelog_service.storage.sql.sqlite import SqliteDatabase
from tests.storage.stores import END, IN_FILES, M, S, opened, run, write

KINDS = pytest.mark.parametrize("kind", IN_FILES)


class Noted:
    """What was asked, in order: ``("sync" or "write", path)``, and what LevelDB was asked for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        for name, called in (("fsync", "sync"), ("pwrite", "write")):
            patch.setattr(os, name, self._noting(called, getattr(os, name)))
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


@KINDS
def test_a_new_store_is_found_after_a_power_cut_however_deep_it_lies(kind: str, noted: Noted, tmp_path: Path) -> None:
    """The name of each directory that was made for it stands in the one above, which is synced."""
    place = tmp_path / "made" / "by" / "us"
    with closing(opened(kind, place)):
        synced = {path for called, path in noted.take() if called == "sync"}
        assert {tmp_path, place, *place.parents[:2]} <= synced
    there = tmp_path / "there"
    there.mkdir()  # by somebody else, a moment ago
    with closing(opened(kind, there)):
        assert {tmp_path, there} <= {path for called, path in noted.take() if called == "sync"}


@KINDS
def test_how_far_a_store_has_come_is_noted_beside_it_after_the_write_and_synced_when_it_is_closed(
    kind: str, noted: Noted, tmp_path: Path
) -> None:
    """Were it noted before, a power cut in between would have a store refused that is whole."""
    beside = tmp_path / ("oncelog.end" if kind == "leveldb" else "data.end")
    store = opened(kind, tmp_path)
    calls = noted.take()
    assert calls.count(("sync", beside)) == 1, "before anything is acknowledged"
    rows = [what for called, what in calls if called == "rows"]
    for _ in range(2):
        write(store, S, b"k")
        calls = [(called, what) for called, what in noted.take() if called == "rows" or what == beside]
        assert calls[-1] == ("write", beside)
        assert len(calls) == (2 if kind == "leveldb" else 1)
        rows += [what for called, what in calls if called == "rows"]
    store.close()
    assert ("sync", beside) in noted.take()
    assert rows == [{"transaction": True, "sync": True}] * (3 if kind == "leveldb" else 0), "the first one makes the store"


@pytest.mark.parametrize(("files", "seconds"), [(0, 0), (3, 0), (4, 0.001), (11, 0.064)])
def test_a_store_that_takes_more_than_leveldb_merges_says_so_before_it_is_stopped(
    files: int, seconds: float, tmp_path: Path
) -> None:
    with closing(LevelDBStore(tmp_path)) as store:
        real = store._db
        asked: Callable[[bytes], bytes] = {b"leveldb.num-files-at-level0": str(files).encode()}.__getitem__
        store._db = SimpleNamespace(write_batch=real.write_batch, get_property=asked, closed=False, close=real.close)
        batch = Batch()
        batch.put(S, b"k", bytes(400_000))
        batch.put_rows(M, b"m", [(b"1", bytes(300_000)), (b"2", bytes(300_000))])
        assert store.behind() == 0
        store.write([batch])
        assert store.behind() == pytest.approx(seconds)
        assert store.write_at_once([Batch()]) == (seconds == 0)


def test_a_write_that_may_not_wait_is_not_made_while_files_are_staged_nor_ever_by_sqlite(tmp_path: Path) -> None:
    batch = Batch()
    batch.put(S, b"k", b"v")
    with closing(LevelDBStore(tmp_path / "leveldb")) as store, closing(opened("sqlite", tmp_path / "sqlite")) as other:
        with store._paused():
            assert not store.write_at_once([batch])
            assert store.get(S, b"k") is None
        assert store.write_at_once([batch])
        assert store.get(S, b"k") == b"v"
        assert not other.write_at_once([batch])
        assert other.get(S, b"k") is None


def test_what_a_process_that_was_killed_has_left_in_sqlites_log_is_synced_when_it_is_read(noted: Noted, tmp_path: Path) -> None:
    live, killed = tmp_path / "live", tmp_path / "killed"
    with closing(opened("sqlite", live)) as store:
        write(store, S, b"k")
        shutil.copytree(live, killed)
    noted.take()
    with closing(opened("sqlite", killed)):
        assert ("sync", killed / "data-wal") in noted.take()


def test_sqlite_syncs_its_log_before_a_commit_returns_on_each_of_its_connections(tmp_path: Path) -> None:
    """``synchronous`` is of a connection, and SQLite's own default may be another."""
    opened("sqlite", tmp_path).close()
    with (
        closing(SqliteDatabase(tmp_path / "data")) as database,
        database.engine.connect() as one,
        database.engine.connect() as other,
    ):
        for each in (one, other):
            assert each.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
            assert each.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
            for name in ("fullfsync", "checkpoint_fullfsync"):
                assert each.exec_driver_sql(f"PRAGMA {name}").scalar_one() == 1


@pytest.mark.parametrize(("failure", "falls_back"), [(None, False), (errno.ENOTSUP, True), (errno.EIO, None)])
def test_where_the_drive_is_to_empty_its_cache_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: int | None, falls_back: bool | None
) -> None:
    """As on macOS, whose F_FULLFSYNC is taken for another number here."""
    asked, synced = [], []

    def told(handle: int, what: int) -> None:
        asked.append(what)
        if failure is not None:
            raise OSError(failure, os.strerror(failure))

    monkeypatch.setattr(directory, "_FULL_SYNC", 51)
    monkeypatch.setattr("fcntl.fcntl", told)
    monkeypatch.setattr(os, "fsync", synced.append)
    if falls_back is None:
        with pytest.raises(OSError, match="Input/output"):
            directory.sync_directory(tmp_path)
    else:
        directory.sync_directory(tmp_path)
    assert (asked, len(synced)) == ([51], int(bool(falls_back)))


def test_files_of_ours_are_synced_in_one_place() -> None:
    service = Path(directory.__file__).parents[2]
    assert [each.name for each in service.rglob("*.py") if "os.fsync(" in each.read_text()] == ["directory.py"]


@pytest.mark.parametrize(("error", "told"), [(plyvel.CorruptionError, StoreDamaged), (plyvel.IOError, StoreError)])
def test_a_write_that_fails_of_a_damaged_table_is_told_apart_from_a_full_disk(
    error: type[Exception], told: type[StoreError], tmp_path: Path
) -> None:
    """LevelDB meets the damage while it merges tables; from then on each write is refused, also after a reopening."""
    with closing(LevelDBStore(tmp_path / "data")) as store:

        def fails(**_: Any) -> Any:
            raise error("planted")

        real, store._db = store._db, type("Failing", (), {"closed": False, "write_batch": fails, "close": lambda: real.close()})
        with pytest.raises(StoreError) as failed:
            write(store, M, b"k")
        assert type(failed.value) is told
        with pytest.raises(StoreClosed):
            write(store, M, b"k")


# --- flipped bits

ROWS = [(b"%06d" % number, (b"%06d" % number) * 20) for number in range(400)]


def read_right_or_not_at_all(kind: str, path: Path) -> bool:
    """Whether damage was noticed; whatever is answered is right."""
    noticed = False

    def check(read: Callable[[], object], expected: object) -> None:
        nonlocal noticed
        try:
            assert read() == expected
        except StoreDamaged:
            noticed = True

    def first(start: bytes, stop: bytes, reverse: bool) -> tuple[bytes, bytes] | None:
        with closing(store.scan(M, start, stop, reverse=reverse)) as rows:
            return next(rows, None)

    try:
        store: Store = opened(kind, path)
    except StoreDamaged:
        return True
    with closing(store):
        check(lambda: list(store.scan(M, b"", END)), ROWS)
        check(lambda: list(store.scan(M, b"", END, reverse=True)), ROWS[::-1])
        for key, value in ROWS[::19]:
            check(lambda key=key: store.get(M, key), value)  # type: ignore[misc]
            # The first row of a scan: a damaged block must not be stepped over to the next one.
            check(lambda key=key: first(key, END, False), (key, value))  # type: ignore[misc]
            check(lambda key=key: first(b"", key + b"\x00", True), (key, value))  # type: ignore[misc]
    return noticed


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


@KINDS
def test_damage_of_a_table_is_never_answered_as_if_a_row_were_missing(kind: str, tmp_path: Path) -> None:
    with closing(opened(kind, tmp_path)) as store:
        store.write([run(*ROWS)])
    opened(kind, tmp_path).close()  # opening moves what is in a log into a table
    (file,) = tmp_path.glob("*.ldb") if kind == "leveldb" else [tmp_path / "data"]
    intact = file.read_bytes()
    if kind == "leveldb":
        damaged = [flipped(intact, at) for at in range(3, len(intact), len(intact) // 15)]
    else:  # the head of each page: where SQLite can notice; damage inside of rows is found by their own checksums
        damaged = [intact[:at] + b"\xff" * 16 + intact[at + 16 :] for at in range(0, len(intact), 4_096)]
    noticed = 0
    for data in damaged:
        file.write_bytes(data)
        noticed += read_right_or_not_at_all(kind, tmp_path)
    assert noticed > len(damaged) * 3 // 4, "nearly all of the file is data"
    file.write_bytes(intact)
    assert not read_right_or_not_at_all(kind, tmp_path)
