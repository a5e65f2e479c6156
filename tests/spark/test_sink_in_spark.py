"""The sink in Spark itself, against the real service: batches and streams, restarted and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from oncelog import Client
from oncelog.wire.models import GroupProducer
from tests.patience import PATIENCE
from tests.spark.topics import values
from tests.world.service import RunningService

pytestmark = pytest.mark.real


@pytest.fixture
def topic(service: RunningService, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)[:200]
    with Client(service.url) as client:
        client.create_topic(name)
    return name


def lines(service: RunningService, topic: str) -> list[str]:
    return [value.decode() for value in values(service.url, topic)]


def group_producer(service: RunningService, name: str) -> GroupProducer:
    with Client(service.url) as client:
        return client.group_producer("spark", name)


class Files:
    """A stream of lines: one file, one micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        folder.mkdir()
        self._next = 0

    def add(self, *lines: str) -> None:
        (self._folder / f"{self._next:03}.txt").write_text("".join(line + "\n" for line in lines))
        self._next += 1

    def stream(self) -> DataFrame:
        return self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._folder))


def run(frame: DataFrame, service: RunningService, checkpoint: Path, **options: str) -> StreamingQuery:
    """To its end."""
    writer = frame.writeStream.format("oncelog").option("url", service.url).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE), query.status
    return query


def test_a_batch_is_appended_in_order_and_a_numbered_one_once(spark: SparkSession, service: RunningService, topic: str) -> None:
    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("oncelog").mode(mode).options(url=service.url, topic=topic, **options).save()

    write(spark.range(0, 5_000, 1, 3).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) AS key"))
    assert lines(service, topic) == [str(number) for number in range(5_000)]
    for partitions in (1, 2):
        rows = spark.range(0, 100, 1, partitions).selectExpr("CAST(id AS STRING) AS value")
        write(rows, producer=topic, sequenceId="1")
    assert group_producer(service, topic).messages == 100
    with pytest.raises(AnalysisException, match="never overwritten"):
        write(spark.sql("SELECT 'a' AS value"), "overwrite")
    assert len(lines(service, topic)) == 5_100


def test_a_stream_goes_on_behind_its_checkpoint_and_what_spark_brings_again_is_written_once(
    spark: SparkSession, service: RunningService, topic: str, tmp_path: Path
) -> None:
    files, checkpoint = Files(spark, tmp_path / "lines"), tmp_path / "checkpoint"
    files.add("a", "b")
    files.add()
    files.add("c")
    query = run(files.stream(), service, checkpoint, topic=topic)
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)  # as if the driver had died right behind the sink's commit
    files.add("d", "e")
    again = run(files.stream(), service, checkpoint, topic=topic)
    assert lines(service, topic) == ["a", "b", "c", "d", "e"]
    assert query.id == again.id
    known = group_producer(service, f"spark-{query.id}")
    assert (known.sequence_id, known.incarnation, known.messages) == (3, str(query.id), 2)
    with pytest.raises(StreamingQueryException, match=f"belongs to query {query.id}.*takeOver") as failure:
        run(files.stream(), service, tmp_path / "new", topic=topic, producer=f"spark-{query.id}", token="s3cret")
    assert "s3cret" not in str(failure.value)
    assert len(lines(service, topic)) == 5


def test_within_foreach_batch_a_numbered_batch_is_of_its_query(
    spark: SparkSession, service: RunningService, topic: str, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path / "lines")
    files.add("a")
    url = service.url

    def write(frame: DataFrame, batch: int) -> None:
        options = {"url": url, "topic": topic, "producer": topic, "sequenceId": str(batch)}
        for _ in range(2):
            frame.write.format("oncelog").mode("append").options(**options).save()

    writer: Any = files.stream().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    assert lines(service, topic) == ["a"]
    assert group_producer(service, topic).incarnation == str(query.id)
