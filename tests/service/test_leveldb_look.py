"""A LevelDB directory that is not whole is refused, and not touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreDamaged, StoreError, Table

M = Table.MESSAGE
END = b"\xff" * 8
OURS = ("LOG", "LOG.old", "LOCK")
"""What LevelDB writes for people and for its lock, at any attempt."""


def opened(path: Path) -> Store:
    return store_opener(f"leveldb://{path}")()


def write(store: Store, numbers: range, size: int = 600) -> None:
    for number in numbers:
        batch = Batch()
        batch.put(M, b"%06d" % number, b"v" * size)
        store.write([batch])


def files_of(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name not in OURS}


def keys_of(store: Store) -> list[int]:
    return [int(key) for key, _ in store.scan(M, b"", END)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 400 writes: 200 in a table, 200 in a log of several blocks; closed as SIGKILL leaves it."""
    path = tmp_path_factory.mktemp("kept") / "data"
    with closing(opened(path)) as store:
        write(store, range(200))
    with closing(opened(path)) as store:
        write(store, range(200, 400))
    return path


@pytest.fixture
def path(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "data"))


def log_of(path: Path) -> Path:
    return max(path.glob("*.log"))


def manifest_of(path: Path) -> Path:
    return path / (path / "CURRENT").read_text().strip()


def without(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def without_log(path: Path) -> None:
    log_of(path).unlink()


def without_table(path: Path) -> None:
    next(path.glob("*.ldb")).unlink()


def without_manifest(path: Path) -> None:
    manifest_of(path).unlink()


def only_log(path: Path) -> None:
    for each in path.iterdir():
        if each.suffix != ".log":
            each.unlink()


def cut_log(path: Path) -> None:
    data = log_of(path).read_bytes()
    log_of(path).write_bytes(data[: len(data) - 40])


def cut_manifest(path: Path) -> None:
    """As it was before the table came into it: what LevelDB would take for an older state, in which the table is nobody's."""
    data = manifest_of(path).read_bytes()
    length = int.from_bytes(data[4:6], "little")
    assert len(data) > length + 7, "the manifest has one record"
    manifest_of(path).write_bytes(data[: length + 7])


def flip_length(path: Path) -> None:
    """In the head of a record in the last block, where LevelDB takes it for a write that was torn."""
    data = bytearray(log_of(path).read_bytes())
    begin = len(data) // 32_768 * 32_768
    tail = data.index(b"\x00end", begin) - 12 - 2 - 7  # head of the batch, of its first entry, of the record
    data[tail + 5] ^= 0x40
    log_of(path).write_bytes(data)


def zero_block(path: Path) -> None:
    """From one record's beginning to the end of its block: LevelDB takes that for room that was never used."""
    data = bytearray(log_of(path).read_bytes())
    begin = data.index(b"\x00end", 3 * 32_768) - 21
    end = begin // 32_768 * 32_768 + 32_768
    data[begin:end] = bytes(end - begin)
    log_of(path).write_bytes(data)


def blank_end(path: Path) -> None:
    (path / "oncelog.end").write_bytes(bytes(1024))


DAMAGES = [
    without("CURRENT"),
    without("oncelog.end"),
    without_log,
    without_table,
    without_manifest,
    only_log,
    cut_log,
    cut_manifest,
    flip_length,
    zero_block,
    blank_end,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__qualname__.partition(".")[0])
def test_a_directory_that_is_not_whole_is_refused_and_left_as_it_is(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    before = files_of(path)
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            opened(path)
        assert files_of(path) == before


def test_what_is_whole_opens_with_everything_in_it(path: Path) -> None:
    for _ in range(2):
        with closing(opened(path)) as store:
            assert keys_of(store) == list(range(400))


def test_a_write_that_nobody_was_told_of_may_be_torn(path: Path) -> None:
    """A power cut in the middle of a write: the file beside knows of the write before it."""
    with closing(opened(path)) as store:
        write(store, range(400, 402))
        told = (path / "oncelog.end").read_bytes()
        write(store, range(402, 403))
    (path / "oncelog.end").write_bytes(told)
    cut_log(path)
    with closing(opened(path)) as store:
        assert keys_of(store) == list(range(402))


def test_a_file_beside_that_lags_is_no_damage(path: Path, tmp_path: Path) -> None:
    early = tmp_path / "early"
    with closing(opened(early)) as store:
        write(store, range(3))
    shutil.copyfile(early / "oncelog.end", path / "oncelog.end")
    with closing(opened(path)) as store:
        assert keys_of(store) == list(range(400))


def test_one_damaged_slot_of_the_file_beside_is_no_damage(path: Path) -> None:
    data = bytearray((path / "oncelog.end").read_bytes())
    data[6] ^= 1
    (path / "oncelog.end").write_bytes(data)
    with closing(opened(path)) as store:
        assert keys_of(store) == list(range(400))


def test_a_directory_with_something_else_in_it_is_not_taken_for_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(StoreDamaged, match="empty directory"):
        opened(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]


def test_a_store_whose_making_was_broken_off_is_made(tmp_path: Path) -> None:
    path = tmp_path / "data"
    opened(path).close()
    (path / "CURRENT").unlink()
    (path / "oncelog.end").unlink()
    (path / "oncelog.creating").touch()
    with closing(opened(path)) as store:
        write(store, range(3))
    with closing(opened(path)) as store:
        assert keys_of(store) == [0, 1, 2]
    assert not (path / "oncelog.creating").exists()


@pytest.mark.parametrize("spoil", [Path.unlink, lambda each: each.write_bytes(b"")], ids=["gone", "empty"])
@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.log"])
def test_whatever_a_power_cut_leaves_of_a_making_a_store_is_made_of_it(
    tmp_path: Path, name: str, spoil: Callable[[Path], object]
) -> None:
    path = tmp_path / "data"
    opened(path).close()
    (path / "oncelog.end").unlink()
    (path / "oncelog.creating").touch()
    spoil(next(path.glob(name)))
    with closing(opened(path)) as store:
        write(store, range(3))
    with closing(opened(path)) as store:
        assert keys_of(store) == [0, 1, 2]


def test_a_backup_put_where_a_making_was_broken_off_is_a_store_like_any_other(path: Path) -> None:
    (path / "oncelog.creating").touch()
    current = (path / "CURRENT").read_bytes()
    (path / "CURRENT").unlink()
    with pytest.raises(StoreDamaged):
        opened(path)
    (path / "CURRENT").write_bytes(current)
    with closing(opened(path)) as store:
        assert keys_of(store) == list(range(400))
    assert not (path / "oncelog.creating").exists()


def test_a_log_of_somebody_else_in_the_directory_is_none_of_the_stores(path: Path) -> None:
    """Where the output of the service is sent to, for example."""
    (path / "service.log").write_text("started\n")
    with closing(opened(path)) as store:
        assert keys_of(store) == list(range(400))


def test_a_store_is_looked_at_where_no_temporary_file_can_be_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose root is read-only has no such place, and the disk of another one's is full."""
    monkeypatch.setattr(tempfile, "tempdir", str(path.parent / "none"))
    (path / "oncelog-look-of-a-process-that-was-killed").mkdir()
    with closing(opened(path)) as store:
        assert keys_of(store) == list(range(400))
    assert not list(path.glob("oncelog-look-*"))
    without_table(path)
    with pytest.raises(StoreDamaged):
        opened(path)


def test_what_a_process_that_was_killed_in_the_look_has_left_is_gone_after_the_next_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where temporary files go, but only what was made of this store: others are looked at meanwhile."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    (place / "oncelog-look-of-another-store").mkdir()
    killed = "import os, plyvel, sys; from pathlib import Path; from oncelog_service.storage.leveldb import LevelDBStore\n"
    killed += "plyvel.DB = lambda *_, **__: os._exit(9)\nLevelDBStore(Path(sys.argv[1]))"
    environment = {**os.environ, "TMPDIR": str(place)}
    assert subprocess.run([sys.executable, "-c", killed, path], env=environment, check=False).returncode == 9
    assert len(list(place.iterdir())) == 2
    link = tmp_path / "link"
    link.symlink_to(path)
    with closing(opened(link)) as store:
        assert keys_of(store) == list(range(400))
    assert [each.name for each in place.iterdir()] == ["oncelog-look-of-another-store"]


def test_a_store_in_use_is_not_looked_at(path: Path) -> None:
    with closing(opened(path)), pytest.raises(StoreError, match="in use by another process"):
        opened(path)
