"""An archive: what a backup brings, what it refuses, and that nothing half passes for whole."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock

import pytest

from oncelog_service.storage.backup import archive as archive_module
from oncelog_service.storage.backup.archive import Archive, Backup, BackupDamaged, BackupError, BackupHasNoRoom
from oncelog_service.storage.backup.layout import check_whole, lay_out
from oncelog_service.storage.backup.restoring import Restoring, check_position
from oncelog_service.storage.backup.taking import Progress, take
from oncelog_service.storage.files import directory
from oncelog_service.storage.files.directory import sync_directory
from oncelog_service.storage.files.leveldb_manifest import version_of
from oncelog_service.storage.files.leveldb_staged import staged_leveldb
from oncelog_service.storage.incarnation import FIRST, put_incarnation
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Staged, Store, StoreClosed, StoreDamaged, StoreError, Table
from oncelog_service.storage.seals import raw
from tests.behaviours.cli.support import ONCELOG, process, run, value
from tests.patience import PATIENCE, until
from tests.storage.stores import IN_FILES

ID = "0123456789abcdef" * 2
END = b"\xff" * 64


def put(store: Store, first: int, rows: int, size: int = 1_000) -> None:
    batch = Batch()
    batch.put(Table.STORE_ID, b"", ID.encode())
    batch.put_rows(Table.JOURNAL, b"", [(each.to_bytes(8, "big"), os.urandom(size)) for each in range(first, first + rows)])
    store.write([batch])


def rows_of(store: Store) -> dict[tuple[Table, bytes], bytes]:
    return {(table, key): data for table in (Table.JOURNAL, Table.STORE_ID) for key, data in store.scan(table, b"", END)}


def backup(archive: Archive, store: Store, store_id: str = ID) -> Backup:
    *_, found = take(archive, store, store_id, 0)
    assert isinstance(found, Backup)
    return found


@contextmanager
def restored(archive: Archive, of: Backup, path: Path) -> Iterator[Store]:
    path.mkdir()
    url = lay_out(archive, of, path)
    check_position(url, of)
    with closing(store_opener(url)()) as store:
        yield store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(store_opener(f"leveldb://{tmp_path}/data")()) as opened:
        yield opened


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


def merged(store: Store) -> None:
    """What was written is in tables."""
    store.inner._db.compact_range()  # type: ignore[attr-defined]


# --- what is brought


@pytest.mark.parametrize("kind", IN_FILES)
def test_each_backup_is_the_store_as_it_was_then(kind: str, tmp_path: Path, archive: Archive) -> None:
    with closing(store_opener(f"{kind}://{tmp_path}/data")()) as store:
        found = []
        for first in range(0, 300, 100):
            put(store, first, 100)
            found.append((backup(archive, store), rows_of(store)))
        put(store, 300, 100)
    assert [each.number for each, _ in found] == archive.numbers() == [1, 2, 3]
    for each, rows in found:
        with restored(archive, each, tmp_path / f"r{each.number}") as again:
            assert rows_of(again) == rows


def test_a_further_backup_writes_what_is_new_and_nothing_else(store: Store, archive: Archive) -> None:
    put(store, 0, 5_000)
    merged(store)
    first = backup(archive, store)
    assert first.new_bytes == first.bytes == sum(each.stat().st_size for each in archive.files.iterdir()) > 5_000_000
    put(store, 5_000, 10)
    second = backup(archive, store)
    assert second.bytes > first.bytes
    assert 10_000 < second.new_bytes < 20_000
    third = backup(archive, store)
    assert (third.position, third.new_bytes) == (second.position, 0)
    assert sum(each.stat().st_size for each in archive.files.iterdir()) == first.new_bytes + second.new_bytes


def test_what_never_changes_is_not_read_again(store: Store, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, 0, 5_000)
    merged(store)
    tables = [each for each in backup(archive, store).files if each.inode]
    assert tables
    read, bring = list[str](), Archive.bring
    monkeypatch.setattr(Archive, "bring", lambda self, source, size: read.append(source.name) or bring(self, source, size))
    assert backup(archive, store).new_bytes == 0
    assert not {each.name for each in tables}.intersection(read)
    (archive.files / tables[0].sha256).unlink()
    assert backup(archive, store).new_bytes == tables[0].bytes, "what is gone is brought anew"
    assert tables[0].name in read


def test_a_table_of_the_same_name_and_other_content_is_another_one(tmp_path: Path, archive: Archive) -> None:
    """As in a store that was restored and goes its own way, and after a crash, when LevelDB gives a number again."""
    taken = []
    for name in ("one", "two"):
        with closing(store_opener(f"leveldb://{tmp_path}/{name}")()) as store:
            put(store, 0, 1_000)
            merged(store)
            taken.append((backup(archive, store), rows_of(store)))
    names = [{each.name for each in found.files if each.inode} for found, _ in taken]
    assert names[0] == names[1] != set()
    for found, rows in taken:
        with restored(archive, found, tmp_path / f"r{found.number}") as again:
            assert rows_of(again) == rows


def test_prune_takes_away_what_nobody_needs_and_the_rest_is_whole(tmp_path: Path, store: Store, archive: Archive) -> None:
    rows = {}
    for first in range(0, 1_000, 200):
        put(store, first, 200)
        merged(store)
        rows[backup(archive, store).number] = rows_of(store)
    (archive.files / ("0" * 64)).write_bytes(b"left by a backup that was killed")
    before = sum(each.stat().st_size for each in archive.files.iterdir())
    with archive.kept():
        assert archive.delete(2)[0] == [1, 2, 3]
    left = [archive.read(number) for number in archive.numbers()]
    assert {each.name for each in archive.files.iterdir()} == {file.sha256 for each in left for file in each.files}
    assert sum(each.stat().st_size for each in archive.files.iterdir()) < before
    for each in left:
        with restored(archive, each, tmp_path / f"r{each.number}") as again:
            assert rows_of(again) == rows[each.number]
    assert backup(archive, store).number == 6


def test_prune_deletes_nothing_where_a_note_is_damaged(store: Store, archive: Archive) -> None:
    for first in range(3):
        put(store, first, 1)
        backup(archive, store)
    note = archive.notes / "000003.json"
    note.write_bytes(note.read_bytes().replace(b"1", b"2", 1))
    before = sorted(archive.path.rglob("*"))
    with pytest.raises(BackupDamaged, match=r"000003\.json"), archive.kept():
        archive.delete(1)
    assert sorted(archive.path.rglob("*")) == before
    assert run("backup", "prune", str(archive.path), "--keep", "1", "--yes").exit_code == 10
    assert run("backup", "prune", str(archive.path), "--keep", "1", "--json").exit_code == 1, "it asks first"


def test_it_is_readable_by_its_owner_alone(tmp_path: Path, store: Store, archive: Archive) -> None:
    put(store, 0, 10)
    before = os.umask(0)
    try:
        backup(archive, store)
        with Restoring("leveldb", tmp_path / "new") as restoring:
            restoring.lay(archive, archive.newest(), lambda store: None, lambda size: None)
            restoring.finish()
    finally:
        os.umask(before)
    for root in (archive.path, tmp_path / "new"):
        for path in (root, *root.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


# --- what is refused


def test_only_an_archive_of_the_same_store_is_written_to(tmp_path: Path, store: Store) -> None:
    put(store, 0, 10)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter").write_text("dear")
    with pytest.raises(BackupError, match="not empty"):
        backup(Archive(other), store)
    with pytest.raises(BackupError, match="not empty"):
        backup(Archive(tmp_path / "data"), store)
    assert [each.name for each in other.iterdir()] == ["letter"]
    archive = Archive(tmp_path / "archive")
    backup(archive, store)
    with pytest.raises(BackupError, match="another store"):
        backup(archive, store, "f" * 32)
    assert archive.numbers() == [1]


def test_one_writes_at_a_time(store: Store, archive: Archive) -> None:
    put(store, 0, 10)
    with closing(take(archive, store, ID, 0)) as first:
        assert isinstance(next(first), Progress)
        with pytest.raises(BackupError, match="in use"):
            backup(archive, store)
        with pytest.raises(BackupError, match="in use"), archive.kept():
            pass
    assert archive.numbers() == []
    assert backup(archive, store).number == 1


def test_a_backup_that_is_left_early_leaves_nothing(tmp_path: Path, store: Store, archive: Archive) -> None:
    put(store, 0, 5_000)
    merged(store)
    steps = take(archive, store, ID, 0)
    next(steps)
    next(steps)
    steps.close()
    assert archive.numbers() == []
    assert list(archive.files.iterdir()) == []
    assert not list((tmp_path / "data").glob("oncelog-backup-*"))


@pytest.mark.parametrize("how", ["ended", "not synced", "neither synced nor withdrawn"])
def test_a_backup_that_goes_wrong_once_it_is_noted_is_whole_or_not_there(
    how: str, tmp_path: Path, store: Store, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 0, 10)
    first = backup(archive, store)
    put(store, 10, 10)
    add, sync = Archive.add, sync_directory

    def ended(self: Archive, of: Backup) -> None:
        add(self, of)
        raise KeyboardInterrupt

    def not_synced(path: Path) -> None:
        if path == archive.notes and (how != "not synced" or (archive.notes / "000002.json").exists()):
            raise OSError("not synced")
        sync(path)

    with monkeypatch.context() as patched:
        if how == "ended":
            patched.setattr(Archive, "add", ended)
        else:
            patched.setattr(archive_module, "sync_directory", not_synced)
        with pytest.raises(KeyboardInterrupt if how == "ended" else BackupError):
            backup(archive, store)
    for each in map(archive.read, archive.numbers()):
        for file in each.files:
            archive.copy_out(file, None)
    assert archive.numbers() == [first.number]
    brought = {each.name for each in archive.files.iterdir()} - {each.sha256 for each in first.files}
    assert bool(brought) == (how == "neither synced nor withdrawn"), "its note may come back"
    assert backup(archive, store).number == 2


def test_a_store_that_fails_meanwhile_makes_no_backup_or_a_whole_one(store: Store, archive: Archive) -> None:
    put(store, 0, 10)
    store.close()
    with pytest.raises(BackupError):
        backup(archive, store)
    assert not archive.path.exists() or archive.numbers() == []


# --- damage


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "how"),
    [(".ldb", _flip), (".log", Path.unlink), ("MANIFEST", lambda path: os.truncate(path, path.stat().st_size - 1))],
)
def test_a_damaged_file_is_named_and_restores_nothing(
    kind: str, how: Callable[[Path], None], tmp_path: Path, store: Store, archive: Archive
) -> None:
    put(store, 0, 100)
    merged(store)
    put(store, 100, 100)
    found = backup(archive, store)
    file = next(each for each in found.files if kind in each.name)
    how(archive.files / file.sha256)
    for arguments in (
        ("backup", "verify", str(archive.path)),
        ("restore", str(archive.path), "--store", f"leveldb://{tmp_path}/new"),
    ):
        result = run(*arguments)
        assert result.exit_code == 10
        assert file.sha256 in result.stderr
        assert file.name in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_damaged_note_is_named_and_the_others_are_there(store: Store, archive: Archive) -> None:
    put(store, 0, 10)
    backup(archive, store)
    put(store, 10, 10)
    backup(archive, store)
    _flip(archive.notes / "000001.json")
    listed = run("backup", "list", str(archive.path), "--json")
    assert (listed.exit_code, '"number": 2' in listed.stdout) == (10, True)
    assert run("backup", "verify", str(archive.path), "--backup", "1").exit_code == 10
    check_whole(archive, archive.newest())
    missing = run("backup", "verify", str(archive.path), "--backup", "3")
    assert (missing.exit_code, "there is no backup 3" in missing.stderr) == (1, True)


def test_files_that_do_not_fit_together_are_no_backup(store: Store, archive: Archive, tmp_path: Path) -> None:
    put(store, 0, 100)
    merged(store)
    put(store, 100, 100)
    found = backup(archive, store)
    for left_out in found.files:
        if "MANIFEST" not in left_out.name:
            less = Backup(**{**vars(found), "files": tuple(each for each in found.files if each is not left_out)})
            with pytest.raises(BackupDamaged):
                check_whole(archive, less)
    with pytest.raises(BackupDamaged):
        check_whole(archive, Backup(**{**vars(found), "position": found.position + 1}))


class Lacking:
    """A store that leaves a file out of what it holds."""

    def __init__(self, inner: Store, suffix: str) -> None:
        self._inner, self._suffix = inner, suffix

    @contextmanager
    def staged(self, least_free: int = 0) -> Iterator[Staged]:
        held = self._inner.staged()
        assert held is not None
        with held as whole:
            yield whole._replace(files=[each for each in whole.files if not each.name.endswith(self._suffix)])


@pytest.mark.parametrize("suffix", [".ldb", ".log"])
def test_what_was_brought_is_looked_at_before_it_is_a_backup(suffix: str, store: Store, archive: Archive) -> None:
    put(store, 0, 100)
    merged(store)
    put(store, 100, 100)
    with pytest.raises(BackupError):
        backup(archive, Lacking(store, suffix))  # type: ignore[arg-type]
    assert archive.numbers() == []
    assert list(archive.files.iterdir()) == []


def test_a_backup_is_noted_when_all_of_it_is_synced(store: Store, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, 0, 100)
    merged(store)
    done: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(
        os, "fsync", lambda handle: done.append(("sync", os.readlink(f"/proc/self/fd/{handle}"))) or fsync(handle)
    )

    def renamed(path: Path, target: Path) -> Path:
        done.append(("rename", str(target)))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    found = backup(archive, store)
    part, files, notes = (str(archive.path / name) for name in (".part", "files", "backups"))
    for each in found.files:
        at = done.index(("rename", f"{files}/{each.sha256}"))
        assert done[at - 1] == ("sync", part)
    noted = done.index(("rename", f"{notes}/000001.json"))
    last = max(at for at, each in enumerate(done) if each[1].startswith(files + "/"))
    assert ("sync", files) in done[last:noted]
    assert done[noted - 1] == ("sync", part)
    assert ("sync", notes) in done[noted:]


# --- the moment


def test_a_manifest_names_the_tables_that_leveldb_counts(tmp_path: Path, store: Store) -> None:
    for first in range(0, 40_000, 1_000):
        put(store, first * 7_919 % 40_000, 1_000)
    merged(store)
    (manifest,) = (tmp_path / "data").glob("MANIFEST-*")
    data = manifest.read_bytes()
    version = version_of(data)
    assert {f"{number:06}.ldb" for number in version.tables} == store.inner._counting_tables()  # type: ignore[attr-defined]
    assert len(version.tables) > 10
    for number, size in version.tables.items():
        assert (tmp_path / "data" / f"{number:06}.ldb").stat().st_size == size
    ends = {version_of(data[:end]).end for end in range(0, len(data), 7)}
    assert max(ends) <= version.end == len(data)


def test_a_manifest_that_leveldb_would_not_write_is_damaged() -> None:
    from oncelog_service.storage.files.leveldb_log import masked_crc32c

    for edit in (b"\x08\x01", b"\x07\x00\x05", b"\x02\x80"):
        head = masked_crc32c(b"\x01" + edit).to_bytes(4, "little") + len(edit).to_bytes(2, "little") + b"\x01"
        with pytest.raises(StoreDamaged):
            version_of(head + edit)


def test_a_table_that_goes_between_manifest_and_link_is_noticed_and_all_is_done_again(tmp_path: Path, store: Store) -> None:
    """What a merge does that ends while the links are made."""
    put(store, 0, 1_000)
    merged(store)
    number = store.inner.number  # type: ignore[attr-defined]
    store.close()
    data = tmp_path / "data"
    table, aside = next(data.glob("*.ldb")), tmp_path / "aside"
    pauses: list[int] = []

    @contextmanager
    def paused() -> Iterator[int]:
        pauses.append(number)
        if len(pauses) < 3:
            (next(data.glob("oncelog-backup-*")) / table.name).unlink()
            table.rename(aside)
        yield number
        if aside.exists():
            aside.rename(table)

    with staged_leveldb(data, paused) as staged:
        assert len(pauses) == 3
        assert table.name in {each.name for each in staged.files}
        assert all(each.path.stat().st_size >= each.size for each in staged.files)
    assert not list(data.glob("oncelog-backup-*"))
    table.unlink()
    with pytest.raises(StoreError, match="try again"), staged_leveldb(data, paused):
        pass


def test_what_is_written_while_a_backup_is_copied_is_not_in_it(tmp_path: Path, store: Store, archive: Archive) -> None:
    put(store, 0, 1_000)
    before = rows_of(store)
    steps = take(archive, store, ID, 0)
    next(steps)
    put(store, 1_000, 10_000)  # the log that was linked grows, is left, and merged into tables
    merged(store)
    *_, found = steps
    assert isinstance(found, Backup)
    with restored(archive, found, tmp_path / "new") as again:
        assert rows_of(again) == before


@pytest.mark.real
def test_no_write_is_under_way_while_files_are_linked(store: Store) -> None:
    from threading import Thread

    put(store, 0, 1)
    with store.inner._paused() as number:  # type: ignore[attr-defined]
        writing = Thread(target=put, args=(store, 1, 1))
        writing.start()
        writing.join(0.3)
        assert writing.is_alive()
        assert store.inner.number == number  # type: ignore[attr-defined]
    writing.join(PATIENCE)
    assert store.inner.number == number + 1  # type: ignore[attr-defined]


# --- a full disk, a kill


def test_between_a_write_that_fails_and_the_end_of_the_store_no_files_are_linked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 0, 10)
    inner, told = raw(store), list[str]()

    class Noticed:
        """Whoever waits for the end of a write comes in between its end and the next step of who wrote."""

        def __enter__(self) -> None:
            assert lock.acquire(blocking=False)

        def __exit__(self, *_: object) -> None:
            lock.release()
            monkeypatch.setattr(inner, "_writing", lock)
            with pytest.raises(StoreClosed), staged_leveldb(tmp, inner._paused):  # type: ignore[attr-defined]
                told.append("linked")

    lock, tmp, write = Lock(), inner._path, inner._write  # type: ignore[attr-defined]
    monkeypatch.setattr(inner, "_writing", Noticed())

    def failing(batches: Sequence[Batch]) -> int:
        write(batches)  # it is in the log, and that it is synced is not known
        raise OSError("not synced")

    monkeypatch.setattr(inner, "_write", failing)
    with pytest.raises(StoreError, match="not synced"):
        put(store, 10, 10)
    assert not told


@pytest.mark.parametrize("kind", IN_FILES)
def test_what_a_backup_that_was_killed_has_left_beside_the_store_goes_when_it_is_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s" / "data"
    before = store_opener(f"{kind}://{path}")()
    put(before, 0, 10)
    own = path.parent / "data.backup-of-yesterday"
    own.mkdir()
    staged = before.staged()
    assert staged is not None
    with staged as now:  # it is never left properly: the directory is there as it was
        left = shutil.copytree(now.files[0].path.parent, tmp_path / "left")
        place = now.files[0].path.parent
    before.close()
    shutil.move(left, place)
    assert any(place.iterdir())
    store_opener(f"{kind}://{path}")().close()
    assert not place.exists()
    assert own.is_dir(), "nobody else's"


@pytest.mark.real
def test_a_full_disk_ends_a_backup_and_leaves_those_before(tmp_path: Path, store: Store, archive: Archive) -> None:
    put(store, 0, 10)
    first = backup(archive, store)
    put(store, 10, 5_000)
    store.close()
    before = {each: each.stat().st_size for each in archive.path.rglob("*")}

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    words = ("backup", "create", str(archive.path), "--store", f"leveldb://{tmp_path}/data", "--json")
    failed = subprocess.run([*ONCELOG, *words], capture_output=True, preexec_fn=small, check=False, timeout=PATIENCE)
    assert failed.returncode == 1, failed
    assert {each: each.stat().st_size for each in archive.path.rglob("*")} == before
    assert archive.newest() == first
    assert value(run(*words))["number"] == 2


@pytest.mark.parametrize("left", [0, 3])
def test_a_backup_leaves_what_is_to_stay_free_or_ends_and_takes_away_what_it_brought(
    left: int, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``left``: pieces that are written before others fill the disk. What an earlier backup has brought needs no room."""
    floor = 10**12
    archive = Archive(tmp_path / "archive", floor)
    free = [10**13]
    monkeypatch.setattr(directory, "free_bytes", lambda path: free[0])
    put(store, 0, 5_000)
    merged(store)
    first = backup(archive, store)
    put(store, 5_000, 5_000)
    before = {each: each.stat().st_size for each in archive.path.rglob("*")}
    asked = 0

    def fewer(path: Path) -> int:
        nonlocal asked
        asked += 1
        return floor + 2 * first.bytes if asked <= 1 + left else floor - 1

    monkeypatch.setattr(directory, "free_bytes", fewer)
    with pytest.raises(BackupHasNoRoom, match="min_free_bytes"):
        backup(archive, store)
    assert asked == 2 + left
    assert {each: each.stat().st_size for each in archive.path.rglob("*")} == before
    merged(store)
    monkeypatch.setattr(directory, "free_bytes", lambda path: free[0])
    backup(archive, store)
    free[0] = floor + first.bytes // 2
    assert backup(archive, store).number == 3, "nearly all of it is there"
    free[0] = floor + 1
    with pytest.raises(BackupHasNoRoom):
        backup(archive, store)


def test_the_copy_that_is_made_beside_a_database_leaves_what_is_to_stay_free_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what lies in its write-ahead log alone."""
    archive, floor = Archive(tmp_path / "archive", 10**12), 10**12
    free = {tmp_path / "data": floor + 500_000}
    monkeypatch.setattr(directory, "free_bytes", lambda path: free.get(path, 10**13))
    with closing(store_opener(f"sqlite://{tmp_path}/data/database")()) as store:
        put(store, 0, 1_000)
        with pytest.raises(BackupHasNoRoom, match="min_free_bytes"):
            backup(archive, store)
        free.clear()
        backup(archive, store)


@pytest.mark.real
@pytest.mark.parametrize("files", [0, 3])
def test_a_command_that_is_killed_leaves_no_backup_and_the_next_one_is_whole(
    files: int, tmp_path: Path, store: Store, archive: Archive
) -> None:
    put(store, 0, 10)
    backup(archive, store)
    put(store, 10, 20_000)
    merged(store)
    rows = rows_of(store)
    store.close()
    with process("backup", "create", str(archive.path), "--store", f"leveldb://{tmp_path}/data") as running:
        until(lambda: len(list(archive.files.iterdir())) >= 2 + files or running.poll() is not None, every=0.0)
        running.kill()
        running.wait(PATIENCE)
    assert archive.numbers() in ([1], [1, 2])
    for number in archive.numbers():
        check_whole(archive, archive.read(number))
    with closing(store_opener(f"leveldb://{tmp_path}/data")()) as again:
        assert not list((tmp_path / "data").glob("oncelog-backup-*")), "links of a killed process are taken away"
        found = backup(archive, again)
    with restored(archive, found, tmp_path / "new") as whole:
        assert rows_of(whole) == rows
    shutil.rmtree(tmp_path / "new")


# --- restoring


def begun(store: Store) -> None:
    batch = Batch()
    put_incarnation(batch, FIRST._replace(began_ms=0))
    store.write([batch])


@pytest.mark.parametrize("kind", IN_FILES)
def test_a_restore_that_is_broken_off_is_no_store(kind: str, tmp_path: Path, archive: Archive) -> None:
    with closing(store_opener(f"{kind}://{tmp_path}/data")()) as store:
        put(store, 0, 10)
        found = backup(archive, store)
    restoring = Restoring(kind, tmp_path / "new").__enter__()
    url = f"{kind}://{tmp_path}/new"
    with pytest.raises(StoreError):
        store_opener(url)()
    restoring.lay(archive, found, begun, lambda size: None)
    with pytest.raises(StoreError):
        store_opener(url)()
    result = run("restore", str(archive.path), "--store", url)
    assert (result.exit_code, "not empty" in result.stderr) == (1, True)
    restoring.finish()
    with closing(store_opener(url)()) as again:
        assert len(rows_of(again)) == 12
    result = run("restore", str(archive.path), "--store", url)
    assert (result.exit_code, "not empty" in result.stderr) == (1, True)


def test_a_backup_becomes_a_store_of_its_own_kind(tmp_path: Path, store: Store, archive: Archive) -> None:
    put(store, 0, 10)
    backup(archive, store)
    result = run("restore", str(archive.path), "--store", f"sqlite://{tmp_path}/new")
    assert (result.exit_code, "one of a leveldb store" in result.stderr) == (1, True)
    assert run("restore", str(archive.path), "--store", "postgresql://h/d").exit_code == 2
    result = run("restore", str(tmp_path / "nothing"), "--store", f"leveldb://{tmp_path}/new")
    assert (result.exit_code, "there are no backups" in result.stderr) == (1, True)
