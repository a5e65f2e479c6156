"""The source in Spark: real sessions, real queries, a real service."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.patience import PATIENCE
from tests.spark.topics import Topics
from tests.world.service import RunningService

pytestmark = pytest.mark.real

TOKEN = "s3cret-token"


class Log(Topics):
    """A topic, and Spark's view of it."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        super().__init__(url)
        self.spark = spark

    def batch(self, **options: str) -> DataFrame:
        return self.spark.read.format("oncelog").options(url=self.url, subscribe=self.topic).options(**options).load()

    def stream(self, **options: str) -> DataFrame:
        """With a schema of the caller's own, in the caller's order."""
        stream = self.spark.readStream.format("oncelog").schema("topic STRING, offset LONG, value BINARY")
        return stream.options(url=self.url, **options).load()


@pytest.fixture
def log(spark: SparkSession, service: RunningService) -> Iterator[Log]:
    made = Log(spark, service.url)
    yield made
    made.client.close()


def values(rows: DataFrame) -> list[str]:
    return [row.value.decode() for row in rows.orderBy("topic", "offset").collect()]


def batches(frame: DataFrame, checkpoint: Path) -> dict[int, list[str]]:
    """What comes in each batch, with what there is now."""
    seen: dict[int, list[str]] = {}

    def keep(rows: DataFrame, batch: int) -> None:
        seen[batch] = values(rows)

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    return seen


def test_a_batch_has_every_message_as_a_row(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    other = log.other()
    log.publish([b"a", b"b"], keys=[b"k", None], properties=[{"h": "1"}, None], producer="p", sequence_ids=[7, 9])
    log.publish([b"c"], other)
    frame = log.batch(subscribe=f"{log.topic},{other}", includeHeaders="true", minPartitions="3", token=TOKEN)
    rows = {row.value: row for row in frame.collect()}
    assert sorted(rows) == [b"a", b"b", b"c"]
    first = rows[b"a"]
    assert (first.key, first.topic, first.partition, first.offset, first.producer) == (b"k", log.topic, 0, 0, "p")
    assert [(header.key, header.value) for header in first.headers] == [("h", b"1")]
    assert (rows[b"b"].key, rows[b"b"].headers, len(rows[b"b"].message_id), rows[b"b"].sequence_id) == (None, None, 20, 9)
    assert abs(first.timestamp.timestamp() - time.time()) < 3600
    frame.explain(True)
    plan = capsys.readouterr().out
    assert ("oncelog" in plan, TOKEN in plan) == (True, False)
    pushed = log.batch(pushdown="true", minPartitions="1").where("offset >= 1 and offset < 13 and length(value) = 1")
    assert values(pushed) == ["b"]
    with pytest.raises(Exception, match="nowhere") as refused:
        log.batch(token=TOKEN, subscribe="nowhere").collect()
    assert TOKEN not in str(refused.value)


def test_available_now_reads_in_batches_of_the_limit_and_a_batch_done_again_has_the_same_rows(log: Log, tmp_path: Path) -> None:
    other = log.other()
    log.publish([b"a%d" % index for index in range(8)])
    log.publish([b"b0", b"b1"], other)
    options = {"subscribe": f"{log.topic},{other}", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    first = batches(log.stream(**options), tmp_path)
    pinned = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    assert pinned["topics"][log.topic] == {"base": 0, "pos": 0, "generation": 1, "oldest": True}, "before its first row"
    assert {batch: len(rows) for batch, rows in first.items()} == {0: 0, 1: 5, 2: 5}
    assert sorted(chain(*first.values())) == sorted([f"a{index}" for index in range(8)] + ["b0", "b1"])
    for commit in (tmp_path / "commits").glob("*2*"):
        commit.unlink()  # as if the driver had died before it was written
    log.publish([b"a8"])
    again = batches(log.stream(**options, minPartitions="3"), tmp_path)
    assert again == {2: first[2], 3: ["a8"]}
