"""Source and sink, wherever Spark runs: rows that go through it are in the topic once, in order.

Wherever code can be shipped, it has to be: Spark's workers run a Python in which oncelog cannot be imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from oncelog import Client
from oncelog.spark import java_home
from oncelog.spark.session import prepare
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE
from tests.spark.strangers import stranger
from tests.spark.topics import values
from tests.world.service import ServiceProcess, free_port

pytestmark = pytest.mark.slow

LETTERS = [b"letter %d" % number for number in range(300)]
PYSPARK = Path(pyspark.__file__).parent
ON_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
DRIVER = Path(__file__).with_name("deployment_driver.py")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """One with letters in the topic ``in``."""
    with ServiceProcess(tmp_path / "data") as process:
        with Client(process.url) as client:
            for topic in ("in", "out", "numbers"):
                client.create_topic(topic)
            client.publish("in", PublishRequest(LETTERS))
        yield process


def driven(service: ServiceProcess, folder: Path, python: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """What the driver tells when it has ended well. ``python``: of Spark's workers."""
    whole = {"conf": {}, "url": service.url, "checkpoint": str(folder / "checkpoint"), **plan}
    out = ended([sys.executable, DRIVER, json.dumps(whole)], folder, {**os.environ, "PYSPARK_PYTHON": str(python)})
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def ended(command: list[Any], folder: Path, environment: dict[str, str]) -> str:
    """What a command prints that ends well; else nothing of it is left."""
    errors = folder / "errors"
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        ) as process,
    ):
        try:
            out, _ = process.communicate(timeout=560)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out[-3000:] + errors.read_text()[-6000:]
    return out


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and a worker on each of two addresses of this machine, which Spark takes for two hosts; the master's URL."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    web = ["--webui-port", "0"]
    with ExitStack() as stack:
        stack.enter_context(daemon(directory, "master.Master", "127.0.0.1", "--host", "127.0.0.1", "--port", str(port), *web))
        for host in ("127.0.0.1", "127.0.0.2"):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / host)]
            stack.enter_context(daemon(directory, "worker.Worker", host, "--host", host, *web, *size, url))
        yield url


@contextmanager
def daemon(directory: Path, name: str, address: str, *arguments: str) -> Iterator[None]:
    environment = {**os.environ, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": address, "SPARK_HOME": str(PYSPARK)}
    command = [PYSPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments]
    with (directory / f"{name}-{address}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()  # a worker ends its executors
        try:
            process.wait(PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("by", "plan"),
    [
        ("session", {"master": "local[2]"}),
        ("register", {"master": "local-cluster[2,1,1024]"}),
        ("session", {"master": "of two hosts", "conf": ON_LOOPBACK}),
        ("register", {"remote": "local[2]"}),
        ("itself", {"master": "local[2]"}),
    ],
    ids=["one machine", "local cluster", "standalone cluster of two hosts", "Spark Connect", "installed: no call is needed"],
)
def test_where_workers_do_not_have_oncelog_it_is_sent(
    service: ServiceProcess, tmp_path: Path, by: str, plan: dict[str, Any]
) -> None:
    python = Path(sys.executable) if by == "itself" else stranger(tmp_path)
    with standalone(tmp_path) if plan.get("master") == "of two hosts" else nullcontext(plan.get("master")) as master:
        told = driven(service, tmp_path, python, {"by": by, **plan, "master": master})
    assert values(service.url, "out") == LETTERS, "each once, in order"
    assert told["rows"] == len(LETTERS)
    assert told["batches"] >= 2
    numbers = [b"%d" % number for number in range(20)]
    assert sorted(values(service.url, "numbers"), key=int) == numbers, "a repeated batch writes nothing"
    with Client(service.url) as client:
        assert [each.id for each in client.atomic_transactions("spark")] == []


# --- in a declarative pipeline (``spark-pipelines run``), with no call that registers anything

SPEC = """\
name: copy
storage: file://{directory}/storage
libraries:
  - glob:
      include: transformations/**
"""

FLOWS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


def letters_of_the_topic():
    options = {{"url": "{url}", "subscribe": "in", "startingOffsets": "earliest", "minPartitions": "2"}}
    return spark.readStream.format("oncelog").options(**options).load()


@dp.table
def letters():
    return letters_of_the_topic()


dp.create_sink("out", "oncelog", {{"url": "{url}", "topic": "out"}})


@dp.append_flow(target="out")
def copied():
    return letters_of_the_topic().select("key", "value")
"""


def update(directory: Path) -> None:
    """One update of a declarative pipeline: all that is there now."""
    environment = dict(os.environ)
    prepare(environment, "local")
    command = [Path(sys.executable).with_name("spark-pipelines"), "run", "--spec", directory / "spark-pipeline.yml"]
    # The tables of a pipeline outlive it only in a catalog that does.
    command += ["--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]
    ended(command, directory, environment)


def test_each_update_of_a_pipeline_writes_what_is_new_once(service: ServiceProcess, tmp_path: Path) -> None:
    (tmp_path / "transformations").mkdir()
    (tmp_path / "storage").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(directory=tmp_path))
    (tmp_path / "transformations" / "copy.py").write_text(FLOWS.format(url=service.url))
    update(tmp_path)
    assert values(service.url, "out") == LETTERS
    more = [b"letter %d, later" % number for number in range(100)]
    with Client(service.url) as client:
        client.publish("in", PublishRequest(more))
    update(tmp_path)
    assert values(service.url, "out") == LETTERS + more
    files = (tmp_path / "spark-warehouse" / "letters").glob("*.parquet")
    assert sorted(value for file in files for value in pq.read_table(file)["value"].to_pylist()) == sorted(LETTERS + more)
