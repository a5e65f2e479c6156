"""A store in files that is not whole is refused, and not touched; a making that was broken off is no damage."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from oncelog_service.storage.files.end_file import ROW_KEY, EndRow
from oncelog_service.storage.files.leveldb_log import end_of_log, records
from oncelog_service.storage.format import KEY as FORMAT_KEY
from oncelog_service.storage.format import put_format
from oncelog_service.storage.port import Batch, StoreDamaged, StoreError
from tests.storage.stores import IN_FILES, M, S, check_refused, files_of, keys_of, log_of, opened, write

KEYS = [b"%06d" % number for number in range(400)]
Spoil = Callable[[Path], object]
KINDS = pytest.mark.parametrize("kind", IN_FILES)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A store of each kind, of 400 writes as SIGKILL leaves them: the last ones are in a log only, of several blocks."""

    @cache
    def made(kind: str) -> Path:
        live, killed = tmp_path_factory.mktemp(kind) / "live", tmp_path_factory.mktemp(kind) / "killed"
        live.mkdir()
        for half in (KEYS[:200], KEYS[200:]):
            with closing(opened(kind, live)) as store:
                for key in half:
                    write(store, S, key, value=b"v" * 600)
                if half[-1] == KEYS[-1]:
                    shutil.copytree(live, killed)
        return killed

    return made


@pytest.fixture
def leveldb(stores: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores("leveldb"), tmp_path / "data"))


@pytest.fixture
def path(kind: str, stores: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores(kind), tmp_path / "data"))


def without(name: str) -> Spoil:
    return lambda path: max(path.glob(name)).unlink()


def empty(name: str) -> Spoil:
    return lambda path: max(path.glob(name)).write_bytes(b"")


def only_log(path: Path) -> None:
    for each in path.iterdir():
        if each.suffix != ".log":
            each.unlink()


def cut_log(path: Path) -> None:
    os.truncate(log_of(path), log_of(path).stat().st_size - 40)


def cut_manifest(path: Path) -> None:
    """As it was before the table came into it: what LevelDB would take for an older state, in which the table is nobody's."""
    manifest = path / (path / "CURRENT").read_text().strip()
    data = manifest.read_bytes()
    length = int.from_bytes(data[4:6], "little")
    assert len(data) > length + 7, "the manifest has one record"
    manifest.write_bytes(data[: length + 7])


def zeros(begin: int, end: int, data: bytearray) -> None:
    data[begin:end] = bytes(end - begin)


def flip_length(path: Path) -> None:
    """In the head of a record in the last block, where LevelDB takes it for a write that was torn."""
    data = bytearray(log_of(path).read_bytes())
    tail = data.index(ROW_KEY, len(data) // 32_768 * 32_768) - 12 - 2 - 7
    data[tail + 5] ^= 0x40
    log_of(path).write_bytes(data)


def zero_block(path: Path) -> None:
    """From one record's beginning to the end of its block: LevelDB takes that for room that was never used."""
    data = bytearray(log_of(path).read_bytes())
    begin = data.index(ROW_KEY, 3 * 32_768) - 21
    zeros(begin, begin // 32_768 * 32_768 + 32_768, data)
    log_of(path).write_bytes(data)


def flip_in_wal(path: Path) -> None:
    """In the write before the last one, where SQLite takes it for the end of the log."""
    data = bytearray((path / "data-wal").read_bytes())
    data[-9_000] ^= 1
    (path / "data-wal").write_bytes(data)


LEVELDB: dict[str, Spoil] = {
    **{f"without {name}": without(name) for name in ("CURRENT", "oncelog.end", "*.log", "*.ldb", "MANIFEST-*")},
    **{each.__name__: each for each in (only_log, cut_log, cut_manifest, flip_length, zero_block)},
    "a blank end": lambda path: (path / "oncelog.end").write_bytes(bytes(1024)),
}
SQLITE: dict[str, Spoil] = {
    **{f"{what.__name__} {name}": what(name) for what in (without, empty) for name in ("data", "data-wal", "data.end")},
    "a bit of the write-ahead log": flip_in_wal,
}
DAMAGES = [("leveldb", each) for each in LEVELDB] + [("sqlite", each) for each in SQLITE]


@pytest.mark.parametrize(("kind", "damage"), DAMAGES)
def test_a_store_that_is_not_whole_is_refused_and_left_as_it_is(kind: str, damage: str, path: Path) -> None:
    {**LEVELDB, **SQLITE}[damage](path)
    check_refused(kind, path)


def test_damage_where_the_format_lies_is_found_before_leveldb_lays_anything_down(tmp_path: Path) -> None:
    with closing(opened("leveldb", tmp_path)) as store:
        batch = Batch()
        put_format(batch)
        for table in (M, S):
            batch.put(table, KEYS[0], b"v" * 10_000)  # whatever table comes before and behind, the format has a block of its own
        store.write([batch])
    with closing(opened("leveldb", tmp_path)) as store:  # it is in a table now
        write(store, S, KEYS[0])
    file = max(tmp_path.glob("*.ldb"))
    data = bytearray(file.read_bytes())
    data[data.index(FORMAT_KEY)] ^= 1
    file.write_bytes(data)
    check_refused("leveldb", tmp_path)


def test_writes_that_are_missing_within_a_log_are_damage(leveldb: Path) -> None:
    data = log_of(leveldb).read_bytes()
    whole = list(records(data[:32_768]))
    gone = data[: whole[3].start] + bytes(whole[5].start - whole[3].start) + data[whole[5].start :]
    assert end_of_log(data, EndRow(201), 0)[0].number == 401, "half of the writes and the first one of all are in a table"
    older = data[: whole[9].end] + data[whole[2].start : whole[4].end]  # of a file that lay there before
    assert end_of_log(older, EndRow(201), 0) == (end_of_log(data[: whole[9].end], EndRow(201), 0)[0], whole[9].end)
    for log in (data[whole[1].start : whole[9].end], data[whole[5].start : whole[9].end], gone):
        with pytest.raises(StoreDamaged, match=r"missing|damaged"):
            end_of_log(log, EndRow(201), 0)


def overwrite_a_slot(path: Path) -> None:
    (end,) = path.glob("*.end")
    data = bytearray(end.read_bytes())
    data[6] ^= 1
    end.write_bytes(data)


def lag(path: Path) -> None:
    kind = "leveldb" if (path / "CURRENT").exists() else "sqlite"
    early = path.parent / "early"
    early.mkdir()
    with closing(opened(kind, early)) as store:
        write(store, M, b"k")
    (end,) = path.glob("*.end")
    shutil.copyfile(early / end.name, end)


HARMLESS: dict[str, Spoil] = {
    "nothing": lambda _: None,
    "the file beside lags": lag,
    "one slot of it is damaged": overwrite_a_slot,
    "somebody else's log": lambda path: (path / "service.log").write_text("started\n"),
    "a backup where a making was broken off": lambda path: (path / f"{next(path.glob('*.end')).stem}.creating").touch(),
}


@KINDS
@pytest.mark.parametrize("change", HARMLESS)
def test_a_store_that_is_whole_opens_with_everything_in_it(kind: str, change: str, path: Path) -> None:
    HARMLESS[change](path)
    for _ in range(2):
        with closing(opened(kind, path)) as store:
            assert keys_of(store, S) == KEYS
    assert not list(path.glob("*.creating"))


def test_a_directory_with_something_else_in_it_is_not_taken_for_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    check_refused("leveldb", tmp_path, "empty directory")
    with pytest.raises(StoreError):
        opened("leveldb", tmp_path / "letter.txt")
    assert files_of(tmp_path) == {"letter.txt": b"mine"}


# --- makings that were broken off


@pytest.mark.parametrize("begun", [True, False])
def test_a_database_whose_making_was_broken_off_is_made(begun: bool, tmp_path: Path) -> None:
    opened("sqlite", tmp_path).close()
    (tmp_path / "data.end").rename(tmp_path / "data.creating")
    if begun:
        (tmp_path / "data").unlink()
    for before in ([], [b"k"]):
        with closing(opened("sqlite", tmp_path)) as store:
            assert keys_of(store) == before
            write(store, M, b"k")
    assert not list(tmp_path.glob("*.creating"))


def test_a_backup_without_its_beginning_is_refused_where_a_making_was_broken_off(leveldb: Path) -> None:
    (leveldb / "oncelog.creating").touch()
    (leveldb / "CURRENT").unlink()
    check_refused("leveldb", leveldb)


def test_a_database_without_the_file_beside_where_a_making_was_broken_off_loses_nothing(
    stores: Callable[[str], Path], tmp_path: Path
) -> None:
    """As sqlite3's .backup makes one."""
    path = Path(shutil.copytree(stores("sqlite"), tmp_path / "data"))
    (path / "data.end").rename(path / "data.creating")
    with closing(opened("sqlite", path)) as store:
        assert keys_of(store, S) == KEYS


# --- links, locks, the place for the look


def test_a_link_to_a_database_is_the_database(stores: Callable[[str], Path], tmp_path: Path) -> None:
    """SQLite follows it and keeps the write-ahead log beside the file that it leads to."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "data").symlink_to(Path(shutil.copytree(stores("sqlite"), tmp_path / "data")) / "data")
    with closing(opened("sqlite", tmp_path / "links")) as store:
        assert keys_of(store, S) == KEYS
        with pytest.raises(StoreError, match="in use"):
            opened("sqlite", tmp_path / "data")
    assert [each.name for each in (tmp_path / "links").iterdir()] == ["data"]


@KINDS
def test_a_store_is_one_processs_at_a_time(kind: str, path: Path) -> None:
    with closing(opened(kind, path)), pytest.raises(StoreError, match=r"data.* is in use by another process"):
        opened(kind, path)
    opened(kind, path).close()


def cannot(number: int) -> Callable[..., None]:
    def flock(*_: object) -> None:
        raise OSError(number, "not here")

    return flock


@KINDS
@pytest.mark.parametrize(
    ("flock", "told"),
    [
        *((cannot(number), r"cannot be locked \(not here\).* local disk") for number in (errno.ENOLCK, errno.EBADF)),
        (lambda *_: None, "keep nobody out"),
    ],
)
def test_a_file_system_without_locks_that_hold_is_refused(
    kind: str, flock: Callable[..., None], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError, match=told):
        opened(kind, tmp_path)
    monkeypatch.undo()
    opened(kind, tmp_path).close()


def test_a_store_is_looked_at_where_no_temporary_file_can_be_made(leveldb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose root is read-only has no such place, and the disk of another one's is full."""
    monkeypatch.setattr(tempfile, "tempdir", str(leveldb.parent / "none"))
    (leveldb / "oncelog-look-of-a-process-that-was-killed").mkdir()
    with closing(opened("leveldb", leveldb)) as store:
        assert keys_of(store, S) == KEYS
    assert not list(leveldb.glob("oncelog-look-*"))
    without("*.ldb")(leveldb)
    check_refused("leveldb", leveldb)


@pytest.mark.real
def test_a_copy_that_a_process_killed_in_the_look_has_left_is_gone_after_the_next_one(
    leveldb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where temporary files go, but only what was made of this store: others are looked at meanwhile."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    (place / "oncelog-look-of-another-store").mkdir()
    killed = "import os, plyvel, sys; from pathlib import Path; from oncelog_service.storage.files.leveldb import LevelDBStore\n"
    killed += "plyvel.DB = lambda *_, **__: os._exit(9)\nLevelDBStore(Path(sys.argv[1]))"
    environment = {**os.environ, "TMPDIR": str(place)}
    assert subprocess.run([sys.executable, "-c", killed, leveldb], env=environment, check=False).returncode == 9
    assert len(list(place.iterdir())) == 2
    (tmp_path / "link").symlink_to(leveldb)
    with closing(opened("leveldb", tmp_path / "link")) as store:
        assert keys_of(store, S) == KEYS
    assert [each.name for each in place.iterdir()] == ["oncelog-look-of-another-store"]
