"""The store that nobody named: whichever Python comes, it goes on with what lies there or says why not, and begins no other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncelog_service.config import Settings, TransactionServiceSettings
from oncelog_service.storage.files.end_file import EndFile
from oncelog_service.storage.open import default_store, path_of, store_opener
from oncelog_service.storage.port import DriverMissing, StoreError
from tests.behaviours.cli.support import process, run
from tests.patience import PATIENCE
from tests.rest.talk import Topic
from tests.storage.stores import M, keys_of, write

OF_LEVELDB = [f"oncelog_service.storage.files.{each}" for each in ("leveldb", "leveldb_look", "leveldb_staged")]
HIDDEN = "import sys\nsys.modules['plyvel'] = None\n"
Hide = Callable[[], None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Has this process be one in which plyvel is not installed, from now on."""

    def hidden() -> None:
        monkeypatch.setitem(sys.modules, "plyvel", None)
        for name in OF_LEVELDB:
            monkeypatch.delitem(sys.modules, name, raising=False)

    return hidden


@pytest.fixture
def hidden(tmp_path: Path) -> dict[str, str]:
    """What the environment of a process has, in which plyvel is not installed."""
    place = tmp_path / "hidden"
    place.mkdir()
    (place / "sitecustomize.py").write_text(HIDDEN)
    return {"PYTHONPATH": str(place)}


def begun(path: Path) -> str:
    """A store at this path by default, with a row; the URL."""
    url = default_store(path)
    with closing(store_opener(url)()) as store:
        write(store, M, b"row")
    return url


def test_it_is_leveldb_and_without_plyvel_sqlite_under_the_same_name(tmp_path: Path, hide: Hide) -> None:
    pytest.importorskip("plyvel")
    assert default_store(tmp_path / "data") == f"leveldb://{tmp_path}/data"
    hide()
    assert begun(tmp_path / "data") == f"sqlite://{tmp_path}/data"
    assert (tmp_path / "data").is_file()


def test_a_directory_of_leveldb_is_refused_without_plyvel_and_stays_as_it_is(tmp_path: Path, hide: Hide) -> None:
    pytest.importorskip("plyvel")
    url = begun(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    hide()
    assert default_store(tmp_path / "data") == url
    with pytest.raises(DriverMissing, match=r'a store on LevelDB needs plyvel: pip install "oncelog\[leveldb\]"; or take SQLite'):
        store_opener(default_store(tmp_path / "data"))()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_database_of_sqlite_goes_on_where_plyvel_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hide: Hide) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "plyvel", None)
        url = begun(tmp_path / "data")
    assert url.startswith("sqlite:")
    assert default_store(tmp_path / "data") == url
    with closing(store_opener(url)()) as store:
        assert keys_of(store) == [b"row"]


@pytest.mark.parametrize("left", ["data.end", "data.creating", "data-wal"])
def test_of_a_database_that_is_gone_what_is_left_beside_keeps_leveldb_out(tmp_path: Path, left: str) -> None:
    if left == "data.end":
        EndFile(tmp_path / left, 7).close()
    else:
        (tmp_path / left).touch()
    assert default_store(tmp_path / "data") == f"sqlite://{tmp_path}/data"
    if left != "data.creating":  # then nothing was ever acknowledged
        with pytest.raises(StoreError):
            store_opener(default_store(tmp_path / "data"))()
        assert [each.name for each in tmp_path.iterdir() if not each.name.endswith(".lock")] == [left]


@pytest.mark.parametrize("first", ["leveldb", "sqlite"])
def test_of_two_that_begin_at_the_same_time_on_the_two_kinds_one_is_refused(tmp_path: Path, first: str) -> None:
    """Both have found nothing there, and chosen."""
    pytest.importorskip("plyvel")
    second = "sqlite" if first == "leveldb" else "leveldb"
    with closing(store_opener(f"{first}://{tmp_path}/data")()) as store:
        write(store, M, b"row")
        with pytest.raises(StoreError, match="data"):
            store_opener(f"{second}://{tmp_path}/data")()
    assert default_store(tmp_path / "data").startswith(first)
    with closing(store_opener(f"{first}://{tmp_path}/data")()) as store:
        assert keys_of(store) == [b"row"]


def test_its_path_may_hold_what_a_url_would_take_for_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "50%25 of what? #1"
    place.mkdir()
    monkeypatch.chdir(place)
    assert path_of(Settings().store) == place / "oncelog-data"
    assert path_of(TransactionServiceSettings().store) == place / "oncelog-transactions"
    begun(place / "oncelog-data")
    assert path_of(Settings().store) == place / "oncelog-data"


def test_what_is_installed_and_cannot_be_loaded_is_said_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hide: Hide
) -> None:
    hide()
    (tmp_path / "plyvel.py").write_text("raise ImportError('libleveldb.so.1d: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plyvel")
    with pytest.raises(DriverMissing, match=r"needs plyvel: .*libleveldb\.so\.1d"):
        store_opener(default_store(tmp_path / "data"))()
    assert not (tmp_path / "data").exists()


@pytest.mark.real
def test_a_service_says_in_one_line_that_it_is_on_sqlite_and_goes_on_there_later(tmp_path: Path, hidden: dict[str, str]) -> None:
    def served(sequence_id: int, **env: str) -> tuple[str, list[str], str]:
        with process("serve", "--port", "0", "--json", cwd=tmp_path, **env) as service:
            assert service.stdout is not None
            ready = json.loads(service.stdout.readline())
            topic = Topic(ready["url"])
            topic.send("p", sequence_id)
            payloads = topic.payloads()
            service.terminate()
            return ready["store"], payloads, service.communicate(timeout=PATIENCE)[1].decode()

    store, payloads, said = served(0, **hidden)
    assert (store, payloads) == (f"sqlite://{tmp_path}/oncelog-data", ["m0"])
    assert said.count("the store is on SQLite, as plyvel, for LevelDB, is not installed here; it stays on it") == 1
    store, payloads, said = served(1)
    assert (store, payloads) == (f"sqlite://{tmp_path}/oncelog-data", ["m0", "m1"])


@pytest.mark.real
def test_no_command_meets_a_missing_driver_with_more_than_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hide: Hide
) -> None:
    pytest.importorskip("plyvel")
    monkeypatch.chdir(tmp_path)
    url = begun(tmp_path / "oncelog-data")
    hide()
    needs = 'a store on LevelDB needs plyvel: pip install "oncelog[leveldb]"'
    for command in (
        ("serve", "--port", "0"),
        ("verify", "--store", url),
        ("copy", url, f"sqlite://{tmp_path}/new"),
        ("salvage", url, f"sqlite://{tmp_path}/saved"),
        ("token", "create", "ada", "--grant", "admin", "--store", url),
        ("backup", "create", str(tmp_path / "backup"), "--store", url),
    ):
        result = run(*command)
        assert result.exit_code == 1, (command, result.output)
        assert needs in result.stderr, (command, result.stderr)
        assert "Traceback" not in result.stderr
        assert result.stderr.count("\n") <= 2, (command, result.stderr)
    result = run("config", "check", "--json")
    told = [each["detail"] for each in json.loads(result.stdout) if each["outcome"] == "failed"]
    assert (result.exit_code, len(told), told[0].startswith(needs)) == (10, 1, True)
    result = run("doctor", "--store", url, "--json", url="http://127.0.0.1:9")
    assert "needs plyvel" in result.stdout
    assert "store_not_whole" not in result.stdout
