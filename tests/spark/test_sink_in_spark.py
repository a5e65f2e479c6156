"""The sink in Spark itself, against the real service: batches and streams, restarted and repeated."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from oncelog import Client, Reader
from oncelog.wire.models import GroupProducer
from tests.patience import PATIENCE
from tests.support import RunningService

pytestmark = pytest.mark.wide


@pytest.fixture
def topic(service: RunningService, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)[:200]
    with Client(service.url) as client:
        client.create_topic(name)
    return name


def values(service: RunningService, topic: str) -> list[str]:
    with Reader(topic, url=service.url, timeout=0) as reader:
        return [message.payload.decode() for message in reader]


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


def numbers(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def test_a_batch_is_appended_partition_by_partition(spark: SparkSession, service: RunningService, topic: str) -> None:
    frame = spark.range(0, 20_000, 1, 3).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) AS key")
    frame.write.format("oncelog").mode("append").option("url", service.url).option("topic", topic).save()
    assert values(service, topic) == numbers(0, 20_000)


def test_a_numbered_batch_is_written_once(spark: SparkSession, service: RunningService, topic: str) -> None:
    options = {"url": service.url, "topic": topic, "producer": topic, "sequenceId": "1"}
    for partitions in (1, 2):
        frame = spark.range(0, 100, 1, partitions).selectExpr("CAST(id AS STRING) AS value")
        frame.write.format("oncelog").mode("append").options(**options).save()
    assert len(values(service, topic)) == 100
    assert group_producer(service, topic).messages == 100


def test_what_cannot_be_written_is_refused_before_anything_is(spark: SparkSession, service: RunningService, topic: str) -> None:
    def write(frame: DataFrame, mode: str) -> None:
        frame.write.format("oncelog").mode(mode).option("url", service.url).option("topic", topic).save()

    with pytest.raises(AnalysisException, match="never overwritten"):
        write(spark.sql("SELECT 'a' AS value"), "overwrite")
    with pytest.raises(AnalysisException, match=r"there is no column value.*there are id"):
        write(spark.range(1).toDF("id"), "append")
    assert values(service, topic) == []


def test_a_stream_goes_on_behind_its_checkpoint(spark: SparkSession, service: RunningService, topic: str, tmp_path: Path) -> None:
    files = Files(spark, tmp_path / "lines")
    files.add("a", "b")
    files.add()
    files.add("c")
    query = run(files.stream(), service, tmp_path / "checkpoint", topic=topic)
    files.add("d", "e")
    again = run(files.stream(), service, tmp_path / "checkpoint", topic=topic)
    assert values(service, topic) == ["a", "b", "c", "d", "e"]
    assert query.id == again.id
    known = group_producer(service, f"spark-{query.id}")
    assert (known.sequence_id, known.incarnation, known.messages) == (3, str(query.id), 2)


def test_a_micro_batch_that_spark_brings_again_is_written_once(
    spark: SparkSession, service: RunningService, topic: str, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path / "lines")
    files.add("a", "b")
    files.add("c")
    run(files.stream(), service, tmp_path / "checkpoint", topic=topic)
    forget(tmp_path / "checkpoint" / "commits" / "1")  # as if the driver had died right behind the sink's commit
    files.add("d")
    run(files.stream(), service, tmp_path / "checkpoint", topic=topic)
    assert values(service, topic) == ["a", "b", "c", "d"]


def forget(commit: Path) -> None:
    """Spark's note that it has finished a micro-batch."""
    commit.unlink()
    commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)


def test_a_restored_checkpoint_ends_the_query_and_no_row_vanishes(
    spark: SparkSession, service: RunningService, topic: str, tmp_path: Path
) -> None:
    files, checkpoint, backup = Files(spark, tmp_path / "lines"), tmp_path / "checkpoint", tmp_path / "backup"
    files.add("a")
    run(files.stream(), service, checkpoint, topic=topic)
    shutil.copytree(checkpoint, backup)
    files.add("b")
    run(files.stream(), service, checkpoint, topic=topic)
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    files.add("c")
    together = spark.readStream.text(str(tmp_path / "lines"))  # in one micro-batch, under the number that b has
    with pytest.raises(StreamingQueryException, match=r"with other rows.*three ways on"):
        run(together, service, checkpoint, topic=topic)
    assert values(service, topic) == ["a", "b"]
    run(together, service, checkpoint, topic=topic, producer=f"{topic}-anew")
    assert sorted(values(service, topic)) == ["a", "b", "b", "c"]


def test_a_stream_fills_several_topics_each_batch_in_one_commit(
    spark: SparkSession, service: RunningService, topic: str, tmp_path: Path
) -> None:
    other = topic + "-other"
    with Client(service.url) as client:
        client.create_topic(other)
    files = Files(spark, tmp_path / "lines")
    files.add("1", "2", "3")
    files.add("4")
    routed = files.stream().selectExpr("value", f"IF(value % 2 = 0, '{other}', '{topic}') AS topic")
    query = run(routed, service, tmp_path / "checkpoint")
    assert (values(service, topic), values(service, other)) == (["1", "3"], ["2", "4"])
    with Client(service.url) as client:
        commit = client.atomic_outcome(group_producer(service, f"spark-{query.id}").transaction)
    assert commit.messages == 1
    assert [each.topic for each in commit.topics] == [other]


def test_a_new_checkpoint_under_an_old_name_ends_the_query_unless_it_takes_over(
    spark: SparkSession, service: RunningService, topic: str, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path / "lines")
    files.add("a")
    old = run(files.stream(), service, tmp_path / "first", topic=topic, producer=topic)
    with pytest.raises(StreamingQueryException, match=f"belongs to query {old.id}.*takeOver") as failure:
        run(files.stream(), service, tmp_path / "second", topic=topic, producer=topic, token="s3cret")
    assert "s3cret" not in str(failure.value)
    assert values(service, topic) == ["a"]
    run(files.stream(), service, tmp_path / "second", topic=topic, producer=topic, takeOver=str(old.id))
    assert values(service, topic) == ["a", "a"]


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
    assert values(service, topic) == ["a"]
    assert group_producer(service, topic).incarnation == str(query.id)
