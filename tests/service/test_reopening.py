"""A store is opened again after a failure: by then the disk may be gone, or another one be there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncelog_service.storage import leveldb, sql_sqlite
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreDamaged, StoreError, Table

KINDS = ("leveldb", "sqlite")


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    return store_opener(f"{request.param}://{tmp_path}/disk/data")


def write(store: Store, number: int) -> None:
    batch = Batch()
    batch.put(Table.SNAPSHOT, b"%d" % number, b"value")
    store.write([batch])


def keys_of(store: Store) -> list[bytes]:
    return [key for key, _ in store.scan(Table.SNAPSHOT, b"", b"\xff")]


@pytest.mark.parametrize("empty", [False, True], ids=["the directory is gone", "an empty one is there"])
def test_a_store_whose_disk_has_gone_is_not_made_anew(opener: Callable[[], Store], tmp_path: Path, empty: bool) -> None:
    """As when a file system is unmounted under a service: a new, empty store would give the same offsets again."""
    disk = tmp_path / "disk"
    with closing(opener()) as store:
        write(store, 1)
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
        assert keys_of(store) == [b"1"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("empty", [False, True], ids=["the directory is gone", "an empty one is there"])
def test_a_store_that_goes_while_it_is_opened_again_is_not_made_anew(
    kind: str, empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there at the first look, and is not when it is known to be locked."""
    disk = tmp_path / "disk" / "data"
    opener = store_opener(f"{kind}://{disk if kind == 'leveldb' else disk / 'data'}")
    with closing(opener()) as store:
        write(store, 1)
    module = leveldb if kind == "leveldb" else sql_sqlite
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


def test_an_attempt_that_fails_leaves_no_file_open(
    opener: Callable[[], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no end to the attempts: as long as a disk cannot sync, one is made every few seconds."""
    with closing(opener()) as store:
        write(store, 1)
    sync, broken = os.fsync, [".end"]

    def syncing(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")).suffix in broken:
            raise OSError(5, "planted")
        sync(handle)

    monkeypatch.setattr(os, "fsync", syncing)
    before = set(open_files(tmp_path))
    for _ in range(3):
        with pytest.raises(StoreError, match="planted"):
            opener()
    assert set(open_files(tmp_path)) == before
    broken.clear()
    with closing(opener()) as store:
        assert keys_of(store) == [b"1"]


def open_files(below: Path) -> list[tuple[str, str]]:
    links = [(each.name, os.readlink(each)) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [link for link in links if link[1].startswith(str(below))]


def test_a_store_is_never_behind_what_this_process_has_written_to_it(opener: Callable[[], Store], tmp_path: Path) -> None:
    """An older copy, put there while the service ran, is a whole store, file beside and all; only memory knows."""
    disk = tmp_path / "disk"
    with closing(opener()) as store:
        write(store, 1)
    shutil.copytree(disk, tmp_path / "copy")
    with closing(opener()) as store:
        write(store, 2)
    shutil.rmtree(disk)
    (tmp_path / "copy").rename(disk)
    with pytest.raises(StoreDamaged, match="the last 1 writes are gone"):
        opener()


def test_nothing_is_acknowledged_once_the_files_were_deleted(opener: Callable[[], Store], tmp_path: Path) -> None:
    """An open file can be written to when it has no name any more; at the end of the process it is gone."""
    with closing(opener()) as store:
        write(store, 1)
        for each in (tmp_path / "disk").rglob("*"):
            if each.is_file():
                each.unlink()
        with pytest.raises(StoreError, match="deleted"):
            write(store, 2)
