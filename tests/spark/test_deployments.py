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
from pathlib import Path
from typing import Any

import pyspark
import pytest

from oncelog import Client, Reader
from oncelog.wire.requests import PublishRequest
from tests.spark.strangers import stranger
from tests.support import ServiceProcess

LETTERS = [b"letter %d" % number for number in range(300)]
PYSPARK = Path(pyspark.__file__).parent
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
    whole = {"conf": {}, "url": service.url, "checkpoint": str(tmp_path / "checkpoint"), "by": by, **plan}
    environment = {**os.environ, "PYSPARK_PYTHON": str(python or sys.executable)}
    command = [sys.executable, DRIVER, json.dumps(whole)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    ) as driver:
        try:
            out, errors = driver.communicate(timeout=300)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, errors[-6000:]
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def check(service: ServiceProcess, told: dict[str, Any]) -> None:
    assert values(service.url, "out") == LETTERS, "each once, in order"
    assert told["rows"] == len(LETTERS)
    assert told["batches"][0] >= 3
    numbers = [b"%d" % number for number in range(20)]
    assert sorted(values(service.url, "numbers"), key=int) == numbers, "a repeated batch writes nothing"
    nothing_left(service)


def nothing_left(service: ServiceProcess) -> None:
    with Client(service.url) as client:
        assert [each.id for each in client.atomic_transactions("in_progress", "spark")] == []


def test_on_one_machine_with_workers_that_do_not_have_oncelog(service: ServiceProcess, tmp_path: Path) -> None:
    check(service, driven(service, tmp_path, "session", stranger(tmp_path), master="local[2]"))
