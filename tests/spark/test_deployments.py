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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from oncelog import Client, Reader
from oncelog.spark import java_home
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE
from tests.scenarios.spark_proxy import FaultProxy
from tests.spark.strangers import stranger
from tests.support import ServiceProcess, free_port

LETTERS = [b"letter %d" % number for number in range(300)]
PYSPARK = Path(pyspark.__file__).parent
ON_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
}
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


def values(url: str, topic: str) -> list[bytes]:
    with Client(url) as client, Reader(topic, timeout=0, client=client) as reader:
        return [message.payload for message in reader]


def driven(service: ServiceProcess, tmp_path: Path, by: str, python: Path | None = None, **plan: Any) -> dict[str, Any]:
    """What the driver tells when it has ended well. ``python``: of Spark's workers."""
    whole = {"conf": {}, "url": service.url, "checkpoint": str(tmp_path / "checkpoint"), "by": by, "thorough": True, **plan}
    environment = {**os.environ, "PYSPARK_PYTHON": str(python or sys.executable)}
    command = [sys.executable, DRIVER, json.dumps(whole)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    ) as driver:
        try:
            out, errors = driver.communicate(timeout=560)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, errors[-6000:]
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def check(service: ServiceProcess, told: dict[str, Any]) -> None:
    assert values(service.url, "out") == LETTERS, "each once, in order"
    assert told["rows"] == len(LETTERS)
    assert told["batches"] >= 2
    numbers = [b"%d" % number for number in range(20)]
    assert sorted(values(service.url, "numbers"), key=int) == numbers, "a repeated batch writes nothing"
    nothing_left(service)


def nothing_left(service: ServiceProcess) -> None:
    with Client(service.url) as client:
        assert [each.id for each in client.atomic_transactions("spark")] == []


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


@pytest.mark.slow
def test_on_one_machine_with_workers_that_do_not_have_oncelog(service: ServiceProcess, tmp_path: Path) -> None:
    driven(service, tmp_path, "session", stranger(tmp_path), master="local[2]", thorough=False)
    assert values(service.url, "out") == LETTERS, "each once, in order"
    nothing_left(service)


@pytest.mark.slow
def test_on_a_local_cluster(service: ServiceProcess, tmp_path: Path) -> None:
    check(service, driven(service, tmp_path, "register", stranger(tmp_path), master="local-cluster[2,1,1024]"))


@pytest.mark.slow
def test_on_a_standalone_cluster_of_two_hosts(service: ServiceProcess, tmp_path: Path) -> None:
    with standalone(tmp_path) as master:
        check(service, driven(service, tmp_path, "session", stranger(tmp_path), master=master, conf=ON_LOOPBACK))


@pytest.mark.slow
def test_a_slow_task_that_spark_runs_twice_writes_once(service: ServiceProcess, tmp_path: Path) -> None:
    with standalone(tmp_path) as master, FaultProxy(service.url) as proxy:
        plan = {"conf": ON_LOOPBACK | SPECULATION, "marks": str(tmp_path), "thorough": False, "to": proxy.url}
        driven(service, tmp_path, "session", stranger(tmp_path), master=master, **plan)
        staged = [request.path.partition("/stage/")[2].split("/")[0] for request, _ in proxy.answered if request.is_stage]
    assert (tmp_path / "attempt-0-1").exists(), "Spark has run a copy of the slow task"
    batches, partitions = 2, 2
    assert len(set(staged)) > batches * partitions, "the slow one had staged something: a sink that publishes would show it twice"
    assert values(service.url, "out") == LETTERS
    nothing_left(service)


@pytest.mark.slow
def test_through_spark_connect(service: ServiceProcess, tmp_path: Path) -> None:
    check(service, driven(service, tmp_path, "register", stranger(tmp_path), remote="local[2]"))


@pytest.mark.slow
def test_where_the_package_is_installed_no_call_is_needed(service: ServiceProcess, tmp_path: Path) -> None:
    check(service, driven(service, tmp_path, "itself", master="local[2]"))
