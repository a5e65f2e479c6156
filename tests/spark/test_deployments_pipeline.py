"""Source and sink in a declarative pipeline (``spark-pipelines run``), with no call that registers them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from oncelog import Client, Reader
from oncelog.spark.session import prepare
from oncelog.wire.requests import PublishRequest
from tests.support import ServiceProcess

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


def run(directory: Path) -> None:
    """One update of the pipeline: all that is there now."""
    environment = dict(os.environ)
    prepare(environment, "local")
    command = [Path(sys.executable).with_name("spark-pipelines"), "run", "--spec", directory / "spark-pipeline.yml"]
    # The tables of a pipeline outlive it only in a catalog that does.
    command += ["--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]
    log = directory / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=file, stderr=file, start_new_session=True)
        try:
            process.wait(500)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, log.read_text()[-6000:]


@pytest.mark.slow
def test_each_update_of_a_pipeline_writes_what_is_new_once(tmp_path: Path) -> None:
    (tmp_path / "transformations").mkdir()
    (tmp_path / "storage").mkdir()
    with ServiceProcess(tmp_path / "data") as service, Client(service.url) as client:
        (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(directory=tmp_path))
        (tmp_path / "transformations" / "copy.py").write_text(FLOWS.format(url=service.url))
        written = []
        for topic in ("in", "out"):
            client.create_topic(topic)
        for number in range(2):
            more = [b"letter %d of %d" % (letter, number) for letter in range(100)]
            written += more
            client.publish("in", PublishRequest(more))
            run(tmp_path)
            with Reader("out", timeout=0, client=client) as reader:
                assert [message.payload for message in reader] == written
        files = (tmp_path / "spark-warehouse" / "letters").glob("*.parquet")
        assert sorted(value for file in files for value in pq.read_table(file)["value"].to_pylist()) == sorted(written)
