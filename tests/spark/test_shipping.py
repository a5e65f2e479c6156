"""The data source brings its code along: to processes in which oncelog cannot be imported."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import oncelog
from oncelog import Client
from oncelog.spark.shipping import packed, shipped
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE
from tests.spark.strangers import stranger
from tests.world.service import RunningService

pytestmark = pytest.mark.real

PLAN = """
import importlib.util, pickle, sys
from pathlib import Path
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType
assert importlib.util.find_spec("oncelog") is None, "a stranger has it not"
options, here = eval(sys.argv[1]), Path(sys.argv[2])
kind = pickle.loads((here / "source").read_bytes())
assert issubclass(kind, DataSource) and kind.name() == "oncelog"
source = pickle.loads(cloudpickle.dumps(kind(options)))
reader = source.reader(source.schema())
assert isinstance(reader, DataSourceReader)
(here / "partitions").write_bytes(cloudpickle.dumps(reader.partitions()))
(here / "reader").write_bytes(cloudpickle.dumps(reader))
for name, part in (
    ("stream", source.streamReader(source.schema())),
    ("writer", source.writer(StructType().add("value", "binary"), False)),
    ("stream_writer", source.streamWriter(StructType().add("value", "binary"), False)),
):
    (here / name).write_bytes(cloudpickle.dumps(part))
"""

READ = """
import pickle, sys
from pathlib import Path
assert "oncelog" not in sys.modules
here = Path(sys.argv[1])
reader = pickle.loads((here / "reader").read_bytes())
values = []
for partition in pickle.loads((here / "partitions").read_bytes()):
    for batch in reader.read(partition):
        values += batch.column("value").to_pylist()
import oncelog
from oncelog.errors import OncelogError
from tests.patience import PATIENCE
again = pickle.loads((here / "reader").read_bytes())
assert type(again) is type(reader), "one class, however many tasks"
try:
    from oncelog.client import Client
    Client(reader._options.connection.url).topic("nowhere")
except OncelogError as error:
    print(type(error).__name__)
for name in ("stream", "writer", "stream_writer"):
    print(type(pickle.loads((here / name).read_bytes())).__name__)
print(len(oncelog.__file__.split(".zip/")), b"".join(values).decode())
"""


LACKING = """
import pickle, sys
from pathlib import Path
sys.modules["fastavro"] = None  # as if it were not installed
for name in ("reader", "stream_writer", "source"):
    try:
        there = pickle.loads((Path(sys.argv[1]) / name).read_bytes())
        there({}).installed()
    except ImportError as error:
        print(type(error).__name__, "=", error)
"""


def printed(command: list[Any], **environment: str) -> list[str]:
    """What it prints, in words; it must end well."""
    run = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_the_package_travels_whole_and_always_as_the_same_bytes() -> None:
    root = Path(oncelog.__file__).parent
    found = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {path.relative_to(root.parent).as_posix() for path in found}
    assert set(zipfile.ZipFile(io.BytesIO(packed())).namelist()) == files
    assert packed() == packed()
    assert len(packed()) < 400_000, "it is in every task that Spark sends"


def test_readers_and_writers_work_where_oncelog_is_not_and_say_so_where_a_package_is_missing(
    tmp_path: Path, running: RunningService
) -> None:
    python = stranger(tmp_path)
    with Client(running.url) as client:
        client.create_topic("letters")
        client.publish("letters", PublishRequest([b"a", b"b", b"c"]))
    (tmp_path / "source").write_bytes(cloudpickle.dumps(shipped()))
    options = {"url": running.url, "topic": "letters"}
    printed([python, "-c", PLAN, repr(options), tmp_path], TMPDIR=str(tmp_path))
    words = printed([python, "-c", READ, tmp_path], TMPDIR=str(tmp_path))
    assert words == ["TopicNotFound", "StreamReader", "BatchWriter", "StreamWriter", "2", "abc"]
    assert len(list(tmp_path.glob("oncelog-*.zip"))) == 1, "one file for all processes of a host"
    said = " ".join(printed([python, "-c", LACKING, tmp_path], TMPDIR=str(tmp_path))).split("ImportError = ")[1:]
    assert len(said) == 3
    for sentence in said:
        assert "needs the package fastavro wherever Spark's Python runs" in sentence
        assert "pip install httptools certifi fastavro pydantic pyarrow" in sentence


ARRIVE = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import oncelog
pickle.load(open(sys.argv[2], "rb"))({}).installed()
import oncelog, oncelog.client
print(oncelog.__version__, oncelog.__file__)
"""


@pytest.mark.parametrize("theirs", ["0.0.1", None, oncelog.__version__])
def test_what_is_installed_gives_way_to_the_drivers_unless_it_is_of_the_same_version(tmp_path: Path, theirs: str | None) -> None:
    root = Path(oncelog.__file__).parent.parent if theirs == oncelog.__version__ else tmp_path
    if root is tmp_path:
        (tmp_path / "oncelog").mkdir()
        if theirs is not None:  # None: a directory of that name, by chance
            (tmp_path / "oncelog" / "__init__.py").write_text(f"__version__ = {theirs!r}")
    (tmp_path / "source").write_bytes(cloudpickle.dumps(shipped()))
    version, file = printed([stranger(tmp_path), "-c", ARRIVE, root, tmp_path / "source"], TMPDIR=str(tmp_path))
    assert version == oncelog.__version__
    assert (".zip" in file, len(list(tmp_path.glob("oncelog-*.zip")))) == ((True, 1) if root is tmp_path else (False, 0))
