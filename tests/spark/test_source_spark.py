"""The source in Spark: real sessions, real queries, a real service."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from oncelog.client import Client
from oncelog.wire.requests import PublishRequest
from oncelog_service.log.read.ranges import wait_for_more
from tests.patience import PATIENCE, until
from tests.support import RunningService

pytestmark = pytest.mark.wide

TOKEN = "s3cret-token"


class Log:
    """A topic, and Spark's view of it."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.spark = spark
        self.client = Client(url)
        self.url = url
        self.topic = self.new_topic()

    def new_topic(self) -> str:
        name = f"t-{uuid4().hex[:8]}"
        self.client.create_topic(name)
        return name

    def publish(self, values: list[str], topic: str | None = None, **more: Any) -> None:
        self.client.publish(topic or self.topic, PublishRequest([value.encode() for value in values], **more))

    def batch(self, **options: str) -> DataFrame:
        return self.spark.read.format("oncelog").options(url=self.url, subscribe=self.topic).options(**options).load()

    def stream(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("oncelog").options(url=self.url, subscribe=self.topic).options(**options).load()


@pytest.fixture
def log(spark: SparkSession, service: RunningService) -> Iterator[Log]:
    made = Log(spark, service.url)
    yield made
    made.client.close()


def values(rows: DataFrame) -> list[str]:
    return [row.value.decode() for row in rows.orderBy("topic", "offset").collect()]


def run(frame: DataFrame, folder: Path) -> StreamingQuery:
    """To Parquet, with what there is now, from the checkpoint that lies beside it."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "rows"))
    assert query.awaitTermination(120)
    assert query.exception() is None
    return query


def batches(frame: DataFrame, checkpoint: Path) -> dict[int, list[str]]:
    """What comes in each batch, with what there is now."""
    seen: dict[int, list[str]] = {}

    def keep(rows: DataFrame, batch: int) -> None:
        seen[batch] = values(rows)

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return seen


def archived(log: Log, folder: Path) -> list[str]:
    return values(log.spark.read.parquet(str(folder / "rows")))


def test_a_batch_has_every_message_as_a_row(log: Log) -> None:
    other = log.new_topic()
    log.publish(["a", "b"], keys=[b"k", None], properties=[{"h": "1"}, None])
    log.publish(["c"], other)
    frame = log.batch(subscribe=f"{log.topic},{other}", includeHeaders="true", minPartitions="3")
    rows = {row.value: row for row in frame.collect()}
    assert sorted(rows) == [b"a", b"b", b"c"]
    first = rows[b"a"]
    assert (first.key, first.topic, first.partition, first.offset, first.producer) == (b"k", log.topic, 0, 0, None)
    assert [(header.key, header.value) for header in first.headers] == [("h", b"1")]
    assert (rows[b"b"].key, rows[b"b"].headers, len(rows[b"b"].message_id)) == (None, None, 20)
    assert abs(first.timestamp.timestamp() - time.time()) < 3600
    assert log.batch(startingOffsets=json.dumps({log.topic: 2})).count() == 0


def test_available_now_reads_in_batches_of_the_limit_and_a_batch_done_again_has_the_same_rows(log: Log, tmp_path: Path) -> None:
    other = log.new_topic()
    log.publish([f"a{index}" for index in range(8)])
    log.publish(["b0", "b1"], other)
    options = {"subscribe": f"{log.topic},{other}", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    first = batches(log.stream(**options), tmp_path)
    assert {batch: len(rows) for batch, rows in first.items()} == {0: 0, 1: 5, 2: 5}
    assert sorted(chain(*first.values())) == sorted([f"a{index}" for index in range(8)] + ["b0", "b1"])
    for commit in (tmp_path / "commits").glob("*2*"):
        commit.unlink()  # as if the driver had died before it was written
    log.publish(["a8"])
    again = batches(log.stream(**options, minPartitions="3"), tmp_path)
    assert again == {2: first[2], 3: ["a8"]}


def test_a_stream_from_latest_is_pinned_in_sparks_log_before_its_first_row(log: Log, tmp_path: Path) -> None:
    log.publish(["before"])
    run(log.stream(), tmp_path)
    logged = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(logged) == {"v": 1, "topics": {log.topic: {"base": 1, "pos": 1, "generation": 1}}}
    log.publish(["after"])
    run(log.stream(), tmp_path)
    assert archived(log, tmp_path) == ["after"]


def test_an_undecided_transaction_stops_a_stream_until_it_is_decided(log: Log, tmp_path: Path) -> None:
    log.publish(["first"])
    pointer = log.client.start_transaction().write_pointer
    log.client.publish_transactional(log.topic, PublishRequest([b"in it"], write_pointer=pointer))
    log.publish(["behind it"])
    frame = log.stream(startingOffsets="earliest")
    run(frame, tmp_path)
    assert archived(log, tmp_path) == ["first"]
    log.client.commit_transaction(pointer)
    until(lambda: log.client.offsets({log.topic: {"after": None}})[log.topic].settled == 3)  # type: ignore[dict-item]
    run(frame, tmp_path)
    assert archived(log, tmp_path) == ["first", "in it", "behind it"]


def test_an_idle_query_asks_once_a_second_has_a_new_message_in_a_moment_and_tells_its_lag(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = threading.Event()
    seen: list[float] = []
    asked: list[float] = []

    async def counted(*about: Any) -> None:
        asked.append(time.monotonic())
        await wait_for_more(*about)

    monkeypatch.setattr("oncelog_service.rest.ranges.wait_for_more", counted)

    def keep(rows: DataFrame, _: int) -> None:
        if rows.count():
            seen.append(time.monotonic())
            arrived.set()

    query = log.stream(token=TOKEN).writeStream.foreachBatch(keep).start()
    try:
        until(lambda: query.lastProgress is not None)
        log.publish(["warm"])
        assert arrived.wait(PATIENCE)
        arrived.clear()
        until(lambda: not query.status["isDataAvailable"])
        asked.clear()
        time.sleep(3)
        assert 1 <= len(asked) <= 4
        published = time.monotonic()
        log.publish(["news"])
        assert arrived.wait(PATIENCE)
        assert seen[-1] - published < 5, "0.3 s on a quiet machine"
        until(lambda: latest_offset(query, log.topic) == 2)
        assert TOKEN not in json.dumps([json.loads(progress.json) for progress in query.recentProgress])
    finally:
        query.stop()


def test_a_schema_of_the_callers_own_prunes_columns_of_batch_and_stream(log: Log, tmp_path: Path) -> None:
    log.publish(["a", "b"], properties=[{"h": "1"}, None])
    batch = log.spark.read.format("oncelog").schema("offset LONG, value BINARY").options(url=log.url, subscribe=log.topic)
    assert [tuple(row) for row in batch.load().orderBy("offset").collect()] == [(0, b"a"), (1, b"b")]
    headers = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, offset LONG, value BINARY"
    stream = log.spark.readStream.format("oncelog").schema(headers).options(url=log.url, subscribe=log.topic)
    run(stream.option("startingOffsets", "earliest").load(), tmp_path)
    assert archived(log, tmp_path) == ["a", "b"]
    with pytest.raises(Exception, match="column value is not of type string"):
        log.spark.read.format("oncelog").schema("value STRING").options(url=log.url, subscribe=log.topic).load().collect()


def test_an_option_that_is_none_is_refused_while_analysing(log: Log) -> None:
    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        log.batch(startingOfset="earliest")
    with pytest.raises(AnalysisException, match=r"maxoffsetpertriger .did you mean maxOffsetsPerTrigger"):
        log.stream(maxOffsetPerTriger="1")


def test_filters_are_pushed_down_where_the_option_says_so(log: Log) -> None:
    log.publish([str(index) for index in range(50)])
    frame = log.batch(pushdown="true", minPartitions="1").where("offset >= 10 and offset < 13 and length(value) = 2")
    assert values(frame) == ["10", "11", "12"]
    assert values(log.batch().where("offset >= 48")) == ["48", "49"], "and without it Spark filters"
    assert log.batch(pushdown="true").where("topic = 'another'").count() == 0


def test_the_token_is_in_no_plan_and_no_error(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    log.publish(["a"])
    frame = log.batch(token=TOKEN)
    frame.explain(True)
    plan = capsys.readouterr().out
    assert "oncelog" in plan
    assert TOKEN not in plan
    lost = log.batch(token=TOKEN, subscribe="nowhere")
    with pytest.raises(Exception, match="nowhere") as refused:
        lost.collect()
    assert TOKEN not in str(refused.value)


def latest_offset(query: StreamingQuery, topic: str) -> int | None:
    """As the progress shows it."""
    progress = query.lastProgress
    shown = progress and progress["sources"][0]["latestOffset"]
    if not shown:
        return None
    offset = json.loads(shown) if isinstance(shown, str) else shown
    return int(offset["topics"][topic]["pos"])
