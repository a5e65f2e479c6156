"""What Spark keeps of a job, and shows in its UI: with the token in a file, it holds no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog import Client
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE
from tests.world.service import running_service

pytestmark = pytest.mark.slow

DRIVER = """
import os, sys
from pyspark.sql import SparkSession
from oncelog.spark import register
from oncelog.spark.session import SMALL, prepare
by, url, file, log = sys.argv[1:]
prepare(os.environ, "local")
builder = SparkSession.builder.remote("local[2]") if by == "connect" else SparkSession.builder.master("local[2]")
kept = {"enabled": "true", "dir": "file://" + log, "compress": "false", "rolling.enabled": "false"}
for name, value in {**SMALL, **{"spark.eventLog." + name: value for name, value in kept.items()}}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
register(spark)
given = {"url": url, "topic": "t", "tokenFile": file}
rows = spark.read.format("oncelog").options(**given).load()
assert rows.count() == 1
rows.write.format("oncelog").options(**given, producer="p", sequenceId="1").mode("append").save()
for told in ({"token": "sh0wn"}, {**given, "tpoic": "x"}, {**given, "tokne": "sh0wn"}):
    try:
        spark.read.format("oncelog").options(**{"url": url, "topic": "t", **told}).load().count()
    except Exception as error:
        print(error)
    else:
        raise SystemExit("it was not refused")
spark.stop()
"""


@pytest.mark.parametrize("by", ["session", "connect"])
def test_a_token_in_a_file_is_in_no_event_of_spark_and_in_no_error(tmp_path: Path, by: str) -> None:
    """One that is an option is: Connect keeps each request as it came."""
    log, file = tmp_path / "log", tmp_path / "token"
    log.mkdir()
    file.write_text("s3cret\n")
    with running_service(token="s3cret") as service:
        with Client(service.url, token="s3cret") as client:
            client.create_topic("t")
            client.publish("t", PublishRequest([b"v"]))
        command = [sys.executable, "-c", DRIVER, by, service.url, file, log]
        environment = {**os.environ, "SPARK_TRACEBACK_WITH_LOCALS": "1", "PYSPARK_PYTHON": sys.executable}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)
        assert ended.returncode == 0, ended.stderr[-3000:]
    kept = "".join(each.read_text() for each in log.rglob("*") if each.is_file())
    assert "SparkListenerApplicationEnd" in kept
    assert "unknown option tpoic" in ended.stdout
    assert "s3cret" not in kept + ended.stdout + ended.stderr
    assert ("sh0wn" in kept) is (by == "connect")
