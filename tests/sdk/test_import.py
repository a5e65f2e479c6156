"""What importing the SDK loads, and what it does not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import oncelog
from tests.patience import PATIENCE

HEAVY = ("sqlalchemy", "pyspark", "starlette", "uvicorn", "plyvel", "typer", "rich", "prometheus_client", "pydantic_settings")


def loaded_by(statement: str) -> set[str]:
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    return set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=PATIENCE).stdout))


def test_importing_the_sdk_loads_nothing_of_the_service_and_no_extra() -> None:
    loaded = loaded_by("import oncelog\noncelog.Producer, oncelog.Reader, oncelog.Client, oncelog.errors")
    assert "oncelog" in loaded
    assert not loaded & {*HEAVY, "oncelog_service", "oncelog_dedup"}


def test_a_service_over_leveldb_needs_no_sqlalchemy() -> None:
    serving = "import oncelog_service.app, oncelog_service.cli\nfrom oncelog_service.storage.open import store_opener\n"
    assert not loaded_by(f"{serving}store_opener('leveldb:///tmp/nothing')") & {"sqlalchemy", "psycopg", "pyspark"}


def test_importing_the_sdk_starts_no_thread() -> None:
    loaded_by("import oncelog, threading\nassert threading.active_count() == 1")


def test_what_needs_sqlalchemy_is_loaded_when_it_is_asked_for() -> None:
    pytest.importorskip("sqlalchemy")
    before = "from oncelog import TransactionAware, TransactionContext, TransactionalDict; assert 'sqlalchemy' not in sys.modules"
    for name in ("Checkpoint", "SqlParticipant"):
        assert "sqlalchemy" in loaded_by(f"{before}\nfrom oncelog import {name}")


def test_where_pyarrow_is_missing_spark_finds_no_source_and_no_error() -> None:
    """It looks into every package that is called like this one, and an error in one takes all of them."""
    there = "import pyspark_oncelog; assert {} hasattr(pyspark_oncelog, 'DefaultSource')"
    assert "pyspark" in loaded_by(there.format(""))
    loaded_by("sys.modules['pyarrow'] = None\n" + there.format("not"))


def test_every_public_name_is_there_and_no_other() -> None:
    for name in oncelog.__all__:
        assert getattr(oncelog, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = oncelog.no_such_name


def test_what_an_extra_is_missing_for_says_which_one() -> None:
    hide = "import sys; sys.modules['sqlalchemy'] = sys.modules['typer'] = None\n"
    for name in ("Checkpoint", "SqlParticipant"):
        line = [sys.executable, "-c", hide + f"from oncelog import {name}"]
        wanted = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert f"{name} needs SQLAlchemy: pip install 'oncelog[sql]'" in wanted.stderr
    command = subprocess.run(
        [sys.executable, "-c", hide + "from oncelog_service.__main__ import main; main()"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert command.returncode == 1
    assert command.stderr.startswith("oncelog: typer is not installed")
    assert "pip install 'oncelog[service]'" in command.stderr
