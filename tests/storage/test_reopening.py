"""A store is opened again after a failure: by then the disk may be gone or full, or another store be there."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from oncelog import Client
from oncelog_service.renewal import begin_incarnation
from oncelog_service.storage.incarnation import KEY, check_not_behind
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreBehind, StoreDamaged, StoreError, Table
from oncelog_service.storage.seals import SealedStore, raw
from oncelog_service.storage.sql import sqlite
from tests.patience import until
from tests.storage.stores import IN_FILES, S, keys_of, opened, write
from tests.world.service import running_service

Opener = Callable[[], Store]
GONE = pytest.mark.parametrize("empty", [False, True], ids=["the directory is gone", "an empty one is there"])


@pytest.fixture(params=IN_FILES)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    opener = store_opener(f"{request.param}://{tmp_path}/disk/data")
    with closing(opener()) as store:
        write(store, S, b"1")
    return opener


@GONE
def test_a_store_whose_disk_has_gone_is_not_made_anew(opener: Opener, tmp_path: Path, empty: bool) -> None:
    """As when a file system is unmounted under a service: a new, empty store would give the same offsets again."""
    disk = tmp_path / "disk"
    disk.rename(tmp_path / "unmounted")
    if empty:
        disk.mkdir()
    for _ in range(2):
        with pytest.raises(StoreError, match="any more"):
            opener()
        assert not disk.exists() or not [each for each in disk.rglob("*") if each.suffix != ".lock"]
    shutil.rmtree(disk, ignore_errors=True)
    (tmp_path / "unmounted").rename(disk)
    with closing(opener()) as store:
        assert keys_of(store, S) == [b"1"]


@pytest.mark.parametrize("kind", IN_FILES)
@GONE
def test_a_store_that_goes_while_it_is_opened_again_is_not_made_anew(
    kind: str, empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there at the first look, and is not when it is known to be locked."""
    disk = tmp_path / "disk" / "data"
    opener = store_opener(f"{kind}://{disk if kind == 'leveldb' else disk / 'data'}")
    with closing(opener()) as store:
        write(store, S, b"1")
    module = import_module(f"oncelog_service.storage.{'files.leveldb' if kind == 'leveldb' else 'sql.sqlite'}")
    there = module.check_there

    def then_gone(path: Path, reached: int) -> None:
        there(path, reached)
        disk.rename(tmp_path / "unmounted")
        if empty:
            disk.mkdir()

    monkeypatch.setattr(module, "check_there", then_gone)
    with pytest.raises(StoreError):
        opener()
    assert disk.exists() is empty
    assert not [each for each in (tmp_path / "disk").rglob("*") if each.is_file() and each.suffix != ".lock"]


def test_an_attempt_that_fails_leaves_no_file_open(opener: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no end to the attempts: as long as a disk cannot sync, one is made every few seconds."""
    sync, broken = os.fsync, [".end"]

    def syncing(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")).suffix in broken:
            raise OSError(5, "planted")
        sync(handle)

    def open_files() -> set[str]:
        links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return {link for link in links if link.startswith(str(tmp_path))}

    monkeypatch.setattr(os, "fsync", syncing)
    before = open_files()
    for _ in range(3):
        with pytest.raises(StoreError, match="planted"):
            opener()
    assert open_files() == before
    broken.clear()
    with closing(opener()) as store:
        assert keys_of(store, S) == [b"1"]


def test_a_store_is_never_behind_what_this_process_has_written_to_it(
    opener: Opener, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An older copy, put there while the service ran, is a whole store, file beside and all; only memory knows."""
    disk = tmp_path / "disk"
    shutil.copytree(disk, tmp_path / "copy")
    with closing(opener()) as store:
        for key in (b"2", b"3", b"4"):
            write(store, S, key)
    shutil.rmtree(disk)
    (tmp_path / "copy").rename(disk)
    for _ in range(3):
        with pytest.raises(StoreBehind, match="ends at write"):
            opener()
    kind = request.node.callspec.params["opener"]
    with closing(store_opener(f"{kind}://{disk}/data")()) as store:  # as a process does that knows nothing
        with pytest.raises(StoreError, match="oncelog renew"):
            check_not_behind(store)
        begin_incarnation(store, 0)
    with closing(opener()) as store:
        check_not_behind(store)
        assert keys_of(store, S) == [b"1"]


@pytest.mark.parametrize("replaced", [False, True], ids=["moved", "replaced by an older one"])
def test_no_write_is_acknowledged_to_a_store_that_no_longer_lies_where_it_was_opened(
    opener: Opener, tmp_path: Path, replaced: bool
) -> None:
    """Whoever has its files open could write to them for hours, and the next process at this path would know nothing of it."""
    disk, moved = tmp_path / "disk", tmp_path / "moved"
    shutil.copytree(disk, tmp_path / "copy")
    with closing(opener()) as store:
        write(store, S, b"2")
        disk.rename(moved)
        if replaced:
            (tmp_path / "copy").rename(disk)
        with pytest.raises(StoreError, match=r"No such file|any more"):
            store.free_bytes()
        with pytest.raises(StoreError, match=r"No such file|any more"):
            write(store, S, b"3")
    with pytest.raises(StoreBehind if replaced else StoreError, match="ends at write" if replaced else "any more"):
        opener()
    shutil.rmtree(disk, ignore_errors=True)
    moved.rename(disk)
    with closing(opener()) as store:
        assert keys_of(store, S)[:2] == [b"1", b"2"]


@pytest.mark.parametrize("kind", IN_FILES)
def test_a_store_that_was_moved_under_an_idle_service_is_no_fault_of_the_service(kind: str, tmp_path: Path) -> None:
    disk, moved = tmp_path / "disk", tmp_path / "moved"
    with running_service(f"{kind}://{disk}/data") as service, Client(service.url) as client:
        client.create_topic("t")
        disk.rename(moved)
        until(lambda: not client.healthy(), "it has noticed")
        told = [(each.code, "disk/data" in each.what) for each in client.alarms().alarms]
        assert told == [("store_closed", True)]
        shutil.rmtree(disk, ignore_errors=True)
        moved.rename(disk)
        until(client.healthy, "it goes on")
        assert client.topics() == ["t"]


def test_a_read_of_a_database_that_was_moved_makes_no_empty_one(tmp_path: Path) -> None:
    with closing(opened("sqlite", tmp_path)) as store:
        write(store, S, b"1")
        (tmp_path / "data").rename(tmp_path / "moved")
        raw(store)._database.engine.dispose()  # type: ignore[attr-defined]  # as where more read than connections are there
        with pytest.raises(StoreError, match="unable to open database file"):
            keys_of(store, S)
        assert not (tmp_path / "data").exists()


def test_a_store_that_was_put_back_damaged_is_let_go_of_for_whoever_mends_it(opener: Opener, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with closing(opener()) as store:
        assert isinstance(store, SealedStore)
        batch = Batch()
        batch.put(Table.STORE_ID, KEY, b"no incarnation")
        store.inner.write([batch])
    shutil.copytree(disk, tmp_path / "copy")
    with closing(opener()) as store:
        write(store, S, b"2")
    shutil.rmtree(disk)
    (tmp_path / "copy").rename(disk)
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            opener()


def test_nothing_is_acknowledged_once_the_files_were_deleted(opener: Opener, tmp_path: Path) -> None:
    """An open file can be written to when it has no name any more; at the end of the process it is gone."""
    with closing(opener()) as store:
        write(store, S, b"2")
        for each in (tmp_path / "disk").rglob("*"):
            if each.is_file():
                each.unlink()
        with pytest.raises(StoreError, match="deleted"):
            write(store, S, b"3")


def test_a_database_whose_file_beside_cannot_be_written_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "data.end").symlink_to(tmp_path / "gone" / "data.end")
    with pytest.raises(StoreError, match="cannot be opened"):
        opened("sqlite", tmp_path)


def test_a_tool_that_reads_for_hours_does_not_keep_a_database_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy, or a shell that somebody has left at a prompt."""
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 120)
    with closing(opened("sqlite", tmp_path)) as store, closing(sqlite3.connect(tmp_path / "data")) as tool:
        write(store, S, b"first")
        tool.execute("BEGIN")
        (rows,) = tool.execute("SELECT count(*) FROM oncelog_row").fetchone()
        write(store, S, b"last")
        store.close()
        begin = time.monotonic()
        with closing(opened("sqlite", tmp_path)) as again:
            assert time.monotonic() - begin < 100
            assert keys_of(again, S) == [b"first", b"last"]
            write(again, S, b"next")
        assert tool.execute("SELECT count(*) FROM oncelog_row").fetchone() == (rows,)
    with closing(opened("sqlite", tmp_path)) as store:
        assert keys_of(store, S) == [b"first", b"last", b"next"]


def test_two_that_write_to_one_database_never_both_go_on(tmp_path: Path) -> None:
    """Somebody has deleted the lock file, since it looked stale."""
    with closing(opened("sqlite", tmp_path)) as first:
        write(first, S, b"first")
        (tmp_path / "data.lock").unlink()
        with closing(opened("sqlite", tmp_path)) as second:
            write(second, S, b"second")
            with pytest.raises(StoreError, match="another process has written"):
                write(first, S, b"third")
            assert keys_of(second, S) == [b"first", b"second"]
            write(second, S, b"fourth")


# --- full disks


FULL_DISK = """
    import os, resource, sys
    from pathlib import Path
    from oncelog_service.storage.open import store_opener
    from oncelog_service.storage.port import Batch, StoreClosed, StoreError, Table

    def put(number):
        batch = Batch()
        batch.put(Table.SNAPSHOT, b"%06d" % number, os.urandom(20_000))
        store.write([batch])

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    kind, path = sys.argv[1:]
    opener = store_opener(f"{kind}://{path}/data")
    store, number = opener(), 0
    if kind == "leveldb":
        limit(1_000_000)  # on the size of a file
    try:
        while True:
            put(number)
            number += 1
    except StoreClosed:
        sys.exit("it must say that this write failed, not that it was closed")
    except StoreError:
        assert 20 < number < 1_000, number
    if kind == "leveldb":
        limit(resource.RLIM_INFINITY)
    for _ in range(100):
        try:
            put(number + 10)
        except StoreClosed:
            continue
        sys.exit("written behind a failed write")
    store.close()
    store = opener()  # what is in SQLite's write-ahead log has no room in the database
    assert kind == "leveldb" or Path(path, "data-wal").stat().st_size > 2**20
    found = [int(key) for key, _ in store.scan(Table.SNAPSHOT, b"", b"\\xff")]
    assert found[:number] == list(range(number)) and len(found) <= number + (kind == "leveldb"), found
    store.close()
    Path(path, "filler").unlink(missing_ok=True)
    store = opener()
    put(number)
"""


@pytest.mark.real
def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """LevelDB's write of its log fails, and later ones would not."""
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), "leveldb", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.real
def test_a_database_on_a_full_disk_loses_nothing_and_opens_there(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=6m none "$0" && head -c 3000000 /dev/zero > "$0/filler"'
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-ec"]
    if shutil.which("unshare") is None or subprocess.run([*alone, mount, tmp_path], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    command = [*alone, f'{mount}; "$1" -c "$2" sqlite "$0"', tmp_path, sys.executable, textwrap.dedent(FULL_DISK)]
    subprocess.run(command, check=True)
