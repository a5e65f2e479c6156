"""A URL names a store; what is printed of it holds no password, and no driver is loaded that it does not need."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from oncelog_service.config import Settings
from oncelog_service.storage.open import shown, store_opener
from oncelog_service.storage.port import StoreError
from tests.patience import PATIENCE
from tests.postgres import PASSWORD, PostgresServer
from tests.storage.stores import M, Place, write


def test_a_memory_url_opens_the_same_rows_again() -> None:
    open_store = store_opener("memory://")
    write(open_store(), M, b"k")
    assert open_store().get(M, b"k") == b"value"
    assert store_opener("memory://")().get(M, b"k") is None


@pytest.mark.parametrize("kind", ["leveldb", "sqlite"])
def test_a_url_names_a_path_that_may_hold_spaces(kind: str, tmp_path: Path) -> None:
    store_opener(f"{kind}://{tmp_path}/my%20data")().close()
    assert (tmp_path / "my data").exists()
    with closing(store_opener(f"{kind}:///{tmp_path}/my%20data")()), pytest.raises(StoreError, match="in use"):  # as SQLAlchemy's
        store_opener(f"{kind}://{tmp_path}/my%20data")()


@pytest.mark.parametrize("place", ["leveldb:///", "leveldb:///data", "sqlite:///data"])
def test_a_store_lies_in_a_directory_of_its_own_beside_which_nothing_may_be_read(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in /var/lib/private, where systemd puts the state of a service that has a user of its own."""
    home, opens = tmp_path / "private" / "home", os.open
    home.mkdir(parents=True)

    def guarded(path: Path | str, *arguments: Any, **named: Any) -> int:
        if Path(path) == home.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return opens(path, *arguments, **named)

    monkeypatch.setattr(os, "open", guarded)
    kind, _, name = place.partition(":///")
    for _ in ("new", "again"):
        store_opener(f"{kind}://{home / name}")().close()


UNKNOWN = (
    *("", "oncelog-data", "leveldb://", "leveldb:///data?sync=no", "leveldb:///data#x", "memory://x", "memory:///x", "redis://h"),
    *("sqlite://", "sqlite:///data?mode=ro", "postgresql://h", "postgresql://h:x/d", "postgresql+asyncpg://h/d"),
)


@pytest.mark.parametrize("url", UNKNOWN)
def test_a_url_that_names_no_store_is_refused_with_the_ones_that_do(url: str) -> None:
    with pytest.raises(ValueError, match="leveldb:///absolute/path"):
        store_opener(url)


# --- passwords

SECRET, QUOTED = "s3cret/of:mine", "s3cret%2Fof%3Amine"


def texts_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_a_password_is_not_in_what_is_said_of_a_url() -> None:
    texts = [shown(f"postgresql://u:{QUOTED}@h/d"), shown(f"postgresql://h/d?password={SECRET}")]
    hosts = ("postgresql://u:{}@h", "postgresql://u:{}@h:x/d", "postgres://u:{}@h/d", "mysql://u:{}@h/d")
    for form in (*hosts, "postgresql://h?password={}", "leveldb:///u:{}@h/d?x"):
        with pytest.raises(ValueError, match="names no store") as refused:
            store_opener(form.format(SECRET))
        with pytest.raises(ValidationError) as invalid:
            Settings(store=form.format(QUOTED))
        texts += [texts_of(refused.value), texts_of(invalid.value), shown(form.format(SECRET))]
    assert not [text for text in texts if "s3cret" in text]


def test_a_password_is_neither_in_errors_of_the_database_nor_in_logs(
    postgres: PostgresServer, shared: Place, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.url().replace("only-for%3Atests", QUOTED)
    assert QUOTED in url
    texts = []
    with caplog.at_level(logging.DEBUG):
        for wrong in (url, url.replace(str(postgres.port), "1"), f"{url}?options=-cnonsense%3D1"):
            with pytest.raises(StoreError) as raised:
                store_opener(wrong)()
            texts.append(texts_of(raised.value).replace("only-for", ""))
        store = shared.open()
        postgres.kill()
        with pytest.raises(StoreError) as raised:
            write(store, M, b"k")
        texts += [texts_of(raised.value), caplog.text]
    assert not [text for text in texts if "s3cret" in text or PASSWORD in text]


def test_serve_tells_where_the_data_is_without_the_password(shared: Place) -> None:
    command = [sys.executable, "-m", "oncelog_service", "serve", "--port", "0", "--json"]
    environment = {**os.environ, "ONCELOG_STORE": shared.url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as service:
        assert service.stdout is not None
        ready = service.stdout.readline()
        service.terminate()
        out, err = service.communicate(timeout=PATIENCE)
    assert service.returncode == 0, err
    assert json.loads(ready)["data"] == json.loads(ready)["store"] == shown(shared.url)
    assert b"only-for" not in ready + out + err


# --- drivers


def printed(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


WITHOUT = """
    import sys
    sys.modules[sys.argv[1]] = None
    from oncelog_service.storage.open import store_opener
    from oncelog_service.storage.port import StoreError
    try:
        store_opener(sys.argv[2])()
    except StoreError as error:
        print(error)
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("missing", "url", "extras"),
    [
        ("sqlalchemy", "sqlite:///tmp/never", "service"),
        ("psycopg", "postgresql://h/d", "service,postgresql"),
    ],
)
def test_an_extra_that_is_not_installed_is_named(missing: str, url: str, extras: str) -> None:
    assert f'pip install "oncelog[{extras}]"' in printed(WITHOUT, missing, url)


@pytest.mark.real
def test_a_store_of_another_kind_loads_no_driver() -> None:
    program = """
        import sys
        from oncelog_service.storage.open import store_opener
        store_opener("memory://")()
        store_opener("postgresql://h/d")
        store_opener("sqlite:///d")
        print(sorted({"psycopg", "sqlalchemy"} & set(sys.modules)))
    """
    assert printed(program) == "[]\n"
