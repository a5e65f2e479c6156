"""What a store and its tools leave on a disk is its user's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Client, Producer
from oncelog_service.app import warn_of_files
from oncelog_service.engine import Engine
from oncelog_service.storage.files.directory import locked, make_directory, open_to_others, private
from oncelog_service.storage.open import store_opener
from tests.behaviours.cli.support import run
from tests.rest.talk import Topic
from tests.world.service import ServiceProcess

KINDS = ("leveldb", "sqlite")


@pytest.fixture(params=[0o000, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of this process, and of those that it starts."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A directory that others may look into, made before the umask is changed."""
    tmp_path.chmod(0o755)
    return tmp_path


def others_may_read(room: Path) -> list[str]:
    """Everything below that is another's to read, write or enter."""
    found = list(room.rglob("*"))
    assert found
    return [f"{stat.filemode(each.lstat().st_mode)} {each}" for each in found if each.lstat().st_mode & 0o077]


def served(room: Path, kind: str) -> ServiceProcess:
    service = ServiceProcess(room / "above" / "data")
    service.store = f"{kind}://{room / 'above' / 'data'}"
    service.log_to = room / "log"
    return service


@pytest.mark.real
@pytest.mark.parametrize(("kind", "umask"), [("leveldb", 0o000), ("sqlite", 0o777)], indirect=["umask"])
def test_what_a_service_writes_is_its_users_alone(room: Path, kind: str, umask: int) -> None:
    (room / "log").touch(0o600)
    with private():
        (room / "log").unlink()
        (room / "log").touch()
    service = served(room, kind)
    with service:
        topic = Topic(service.url)
        for part in range(3):
            topic.send("p", part)
        assert others_may_read(room) == []
        service.kill()
        service.start()  # LevelDB begins another log, and a table of the one before
        topic.send("p", 3)
        assert others_may_read(room) == []
        assert service.stop() == 0
    assert others_may_read(room) == []
    assert "close it: chmod" not in (room / "log").read_text()
    target = "sqlite" if kind == "leveldb" else "leveldb"
    for command in (
        ("copy", service.store, f"{target}://{room / 'copies' / 'copy'}"),
        ("verify", "--store", service.store),
        ("verify", "--store", service.store, "--same-as", f"{target}://{room / 'copies' / 'copy'}"),
        ("salvage", service.store, f"{target}://{room / 'salvaged' / 'copy'}"),
    ):
        done = run(*command)
        assert done.exit_code in (0, 10), done.output
        assert others_may_read(room) == [], command
    assert (room / "salvaged" / "copy").exists()
    (room / "above").chmod(0o755)
    (room / "above" / "data").chmod(0o755 if kind == "leveldb" else 0o640)
    with service:
        assert service.stop() == 0
    assert (room / "log").read_text().count("close it: chmod") == 1


@pytest.mark.real
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("umask", [0o000], indirect=True)
def test_what_an_engine_makes_is_its_users_alone_and_the_umask_stays(room: Path, kind: str, umask: int) -> None:
    above = room / "above"
    engine = Engine(f"{kind}://{above / 'data'}")
    for end in (engine.abandon, engine.stop):
        engine.start()
        with Client(engine.url) as client:
            client.create_topic("t", exist_ok=True)
            with Producer("t", name="p", client=client) as producer:
                producer.send(b"x")
            if kind == "sqlite":
                assert {each.name for each in above.iterdir()} == {f"data{end}" for end in ("", "-wal", "-shm", ".end", ".lock")}
                assert others_may_read(room) == []
            else:
                assert others_may_read(above)
                made = (above, above / "data", above / "data" / "oncelog.end")
                assert [each for each in made if each.stat().st_mode & 0o077] == []
            end()
    assert os.umask(umask) == umask


@pytest.mark.parametrize(("kind", "wide"), [("leveldb", "data"), ("sqlite", "data"), ("sqlite", "data.end")])
def test_where_others_may_look_into_a_store_a_warning_says_how_to_close_it(
    room: Path, kind: str, wide: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"{kind}://{room}/data"
    store_opener(store)().close()
    (room / wide).chmod(0o755 if (room / wide).is_dir() else 0o640)
    warn_of_files(store)
    assert f"may look into {room / wide}," in caplog.text
    words = caplog.messages[0].partition("close it: ")[2].split()
    assert words[:2] + words[-1:] == (["chmod", "-R", f"{room}/data"] if kind == "leveldb" else ["chmod", "go=", f"{room}/data*"])


def test_files_in_a_directory_that_is_closed_are_closed(room: Path) -> None:
    home = room / "home"
    home.mkdir(0o700)
    (home / "data").touch()
    (home / "data").chmod(0o666)
    assert open_to_others(home / "data") is None
    home.chmod(0o710)
    assert open_to_others(home / "data") == home / "data"


def test_a_directory_and_a_lock_are_made_for_their_user_alone_without_a_umask_too(room: Path) -> None:
    before = os.umask(0)
    try:
        make_directory(room / "a" / "b")
        os.close(locked(room / "a", room / "a" / "lock", os.O_RDWR | os.O_CREAT))
    finally:
        os.umask(before)
    assert others_may_read(room) == []


def test_the_umask_is_as_it_was_behind_it() -> None:
    before = os.umask(0o022)
    try:
        with pytest.raises(ZeroDivisionError), private():
            _ = 1 / 0
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
