"""What a store and its tools leave on a disk is its user's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Client, Producer
from oncelog_service.engine import Engine
from oncelog_service.storage.files.directory import locked, make_directory, open_to_others, private
from tests.patience import PATIENCE
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


def oncelog(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oncelog_service", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.mark.real
@pytest.mark.parametrize("kind", KINDS)
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
    (room / "log").unlink()

    target = "sqlite" if kind == "leveldb" else "leveldb"
    for command in (
        ("copy", service.store, f"{target}://{room / 'copies' / 'copy'}"),
        ("verify", "--store", service.store),
        ("verify", "--store", service.store, "--same-as", f"{target}://{room / 'copies' / 'copy'}"),
        ("salvage", service.store, f"{target}://{room / 'salvaged' / 'copy'}"),
    ):
        done = oncelog(*command)
        assert done.returncode in (0, 10), done
        assert others_may_read(room) == [], command
    assert (room / "salvaged" / "copy").exists()


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


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "wide"),
    [
        ("leveldb", "above/data"),
        pytest.param("sqlite", "above/data", marks=pytest.mark.real),
        pytest.param("sqlite", "above/data.end", marks=pytest.mark.real),
    ],
)
def test_a_store_that_others_may_look_into_is_served_with_a_warning_that_says_how_to_close_it(
    room: Path, kind: str, wide: str
) -> None:
    service = served(room, kind)
    with service:
        pass
    (room / "above").chmod(0o755)
    (room / wide).chmod(0o755 if (room / wide).is_dir() else 0o640)
    (room / "log").unlink()
    with service:
        assert service.stop() == 0
    warned = [line for line in (room / "log").read_text().splitlines() if "WARNING" in line]
    assert len(warned) == 1
    assert f"may look into {room / wide}," in warned[0]
    subprocess.run(warned[0].partition("close it: ")[2], shell=True, check=True)
    (room / "log").unlink()
    with service:
        assert service.stop() == 0
    assert "WARNING" not in (room / "log").read_text()


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
