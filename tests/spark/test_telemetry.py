"""A trace goes on through a job of Spark: what a message carries is in the column of headers, from the source to the sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from pyspark.sql import SparkSession

from oncelog import Client, Producer, Reader, telemetry
from tests.patience import PATIENCE
from tests.world.service import RunningService

pytestmark = pytest.mark.real


def test_what_comes_out_of_a_job_goes_on_in_the_trace_of_what_went_in(
    spark: SparkSession, service: RunningService, client: Client, tmp_path: Path
) -> None:
    client.create_topic("traced-in")
    client.create_topic("traced-out")
    telemetry.instrument(TracerProvider())
    try:
        with Producer("traced-in", client=client) as producer:
            producer.send_batch([b"a", b"b"], properties=[{"x": "1"}, None])
            producer.send(b"c")
    finally:
        telemetry.uninstrument()
    source = spark.readStream.format("oncelog").option("url", service.url).option("includeHeaders", "true")
    rows = source.option("subscribe", "traced-in").option("startingOffsets", "earliest").load()
    writer = rows.selectExpr("upper(CAST(value AS STRING)) AS value", "headers").writeStream.format("oncelog")
    writer = writer.option("url", service.url).option("topic", "traced-out").option("checkpointLocation", str(tmp_path / "at"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE), query.status
    with (
        Reader("traced-in", client=client, timeout=0) as before,
        Reader("traced-out", client=client, timeout=0) as after,
    ):
        went_in, came_out = list(before), list(after)
    assert [each.payload for each in came_out] == [b"A", b"B", b"C"]
    assert [each.properties for each in came_out] == [each.properties for each in went_in]
    assert all("traceparent" in each.properties for each in came_out)
