"""Spark and a service that speaks TLS and asks for certificates: source and sink, driver and workers, options and environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from oncelog import Client
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE
from tests.spark.processes import command
from tests.world.certificates import Authority, Issued
from tests.world.service import RunningService, running_service

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def worker(ca: Authority) -> Issued:
    return ca.issue("worker", uris=["spiffe://example.org/spark"])


@pytest.fixture(scope="module")
def asking(ca: Authority) -> Iterator[RunningService]:
    with running_service(**ca.service().tls, tls_client_ca=ca.file, token="s3cret") as service:
        with Client(service.url, token="s3cret", verify=ca.file) as client:
            client.create_token("cert:spiffe://example.org/spark", ["read:default/*", "write:default/*"])
            client.create_topic("lines")
            client.create_topic("copy")
        yield service


def values(frame: DataFrame) -> list[str]:
    return [row.value.decode() for row in frame.orderBy("offset").collect()]


def test_source_and_sink_show_a_certificate_and_trust_a_ca_of_their_own(
    spark: SparkSession, asking: RunningService, ca: Authority, worker: Issued, tmp_path: Path
) -> None:
    options = {"url": asking.url, "ca": ca.file, "cert": worker.certificate, "key": worker.key}
    rows = spark.range(0, 500, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("oncelog").mode("append").options(topic="lines", **options).save()
    stream = spark.readStream.format("oncelog").options(subscribe="lines", startingOffsets="earliest", **options).load()
    writer = stream.select("value").writeStream.format("oncelog").options(topic="copy", **options)
    assert writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(PATIENCE)
    copied = spark.read.format("oncelog").options(subscribe="copy", **options).load()
    assert sorted(values(copied)) == sorted(str(number) for number in range(500))


def test_who_is_not_trusted_and_who_is_not_taken_are_named_in_a_sentence(
    spark: SparkSession, asking: RunningService, ca: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    bad = stranger.issue("bad", common_names=["worker"])
    for options, says in (
        ({"ca": stranger.file}, "name the CA that signed it"),
        ({"ca": ca.file, "cert": bad.certificate, "key": bad.key}, "does not take the certificate of this client"),
    ):
        with pytest.raises(Exception, match=says):
            spark.read.format("oncelog").options(subscribe="lines", url=asking.url, **options).load().collect()


@pytest.mark.slow
def test_a_pipeline_of_the_command_line_is_told_by_its_options_as_spark_is_by_its_environment(
    asking: RunningService, ca: Authority, worker: Issued, tmp_path: Path
) -> None:
    options = ("--ca", ca.file, "--cert", worker.certificate, "--cert-key", worker.key)
    with Client(asking.url, token="s3cret", verify=ca.file) as client:
        client.create_topic("archived")
        client.publish("archived", PublishRequest([b"v"] * 500))
    archive = ("archive", "archived", "--to", tmp_path / "a", "--available-now", "--json")
    with command(asking.url, tmp_path / "log", *archive, *options) as running:
        assert json.loads(running.result())["rows"] == 500
