"""An archive holds every message once, with all its columns; a backfill puts rows into a topic once, wherever it was stopped."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from oncelog import Client, Message, Producer
from oncelog.errors import CommitGone, TopicNotFound
from oncelog.spark.jobs.archive import archive, utc_date
from oncelog.spark.jobs.backfill import BackfillOvertaken, backfill
from oncelog.spark.jobs.progress import Progress, follow, lag
from tests.model.log import read_log

pytestmark = pytest.mark.real


def create(client: Client, topic: str) -> str:
    client.create_topic(topic)
    return topic


def publish(client: Client, topic: str, name: str, numbers: range) -> None:
    with Producer(topic, name=name, url=client.url) as producer:
        for number in numbers:
            producer.send_async(b"%s %d" % (name.encode(), number), sequence_id=number, key=name, properties={"n": str(number)})


def of(producer: str, messages: list[Message]) -> list[tuple[Any, ...]]:
    own = [each for each in messages if each.producer == producer]
    return [(each.payload, each.key, each.sequence_id, each.properties) for each in own]


class Stopped(Exception):
    """In place of a kill."""


def stop_after(commits: int) -> Any:
    def told(progress: dict[str, Progress]) -> None:
        if sum(each.batches for each in progress.values()) >= commits:
            raise Stopped

    return told


# --- archive, and back into a topic


def test_an_archive_is_continued_holds_every_message_once_and_gives_the_topic_back(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    topic, path = create(client, "to-archive"), str(tmp_path / "archive")
    publish(client, topic, "p", range(70))
    publish(client, topic, "q", range(0, 60, 3))
    first = follow({"archive": archive(spark, topic, path, url=client.url, available_now=True, max_offsets=40)})["archive"]
    assert (first.rows, first.batches, first.lag) == (90, 3, 0)
    publish(client, topic, "p", range(70, 100))
    again = follow({"archive": archive(spark, topic, path, url=client.url, available_now=True, max_offsets=40)})["archive"]
    assert (again.rows, again.lag) == (30, 0)
    originals = read_log(client.url, topic)
    rows = spark.read.parquet(path).orderBy("offset").collect()
    assert [(bytes(row.message_id), row.offset) for row in rows] == [(bytes(each.message_id), each.offset) for each in originals]
    assert [(bytes(row.value), bytes(row.key), row.producer, row.sequence_id) for row in rows] == [
        (each.payload, each.key, each.producer, each.sequence_id) for each in originals
    ]
    assert [{header.key: bytes(header.value).decode() for header in row.headers} for row in rows] == [
        each.properties for each in originals
    ]
    assert {row.date for row in rows} == {each.message_id.published_at.date() for each in originals}
    _and_back(spark, client, path, originals)


def _and_back(spark: SparkSession, client: Client, path: str, originals: list[Message]) -> None:
    copy = create(client, "copy-of-archive")
    with pytest.raises(Stopped):
        backfill(spark, path, copy, url=client.url, rows=50, on_progress=stop_after(1))
    done = backfill(spark, path, copy, url=client.url, rows=45)
    assert (done.rows, done.resumed, done.kept_producers) == (70, True, True)
    copies = read_log(client.url, copy)
    for producer in ("p", "q"):
        assert of(producer, copies) == of(producer, originals)
    assert len(copies) == 120
    assert backfill(spark, path, copy, url=client.url).rows == 0


def test_the_day_of_a_message_is_that_of_utc_whatever_the_sessions_time_zone(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        moments = spark.sql("SELECT explode(array(timestamp_millis(1767225599999), timestamp_millis(1767225600000))) AS at")
        days = [str(row.day) for row in moments.select(utc_date(moments["at"]).alias("day")).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert days == ["2025-12-31", "2026-01-01"]


# --- rows that were never in a topic


def test_a_topic_that_was_made_anew_is_filled_again_once_the_name_is_forgotten(spark: SparkSession, client: Client) -> None:
    """A second disaster: the first backfill is known, what it wrote is gone."""
    topic, rows = create(client, "twice-lost"), numbers(spark, 100)

    def fill() -> None:
        assert backfill(spark, rows, topic, url=client.url, name="slices", position="id").rows == 100

    fill()
    client.delete_topic(topic)
    create(client, topic)
    with pytest.raises(CommitGone, match=f"published under the name slices.* went to topic default/{topic}") as gone:
        fill()
    client.forget_group_producer("spark", gone.value.producer)
    fill()
    assert len(read_log(client.url, topic)) == 100


def test_files_are_published_once_though_the_backfill_was_stopped(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    topic, path = create(client, "from-files"), str(tmp_path / "rows")
    numbers(spark, 400).repartition(8).write.parquet(path)
    with pytest.raises(ValueError, match="checkpoint"):
        backfill(spark, path, topic, url=client.url)
    where = {"checkpoint": str(tmp_path / "checkpoint"), "max_files": 2}
    with pytest.raises(Stopped):
        backfill(spark, path, topic, url=client.url, on_progress=stop_after(1), **where)  # type: ignore[arg-type]
    backfill(spark, path, topic, url=client.url, **where)  # type: ignore[arg-type]
    assert sorted(int(each.payload) for each in read_log(client.url, topic)) == list(range(400))
    assert backfill(spark, path, topic, url=client.url, **where).rows == 0  # type: ignore[arg-type]


def test_a_data_frame_is_published_once_under_its_name_whether_its_rows_name_a_topic_or_not(
    spark: SparkSession, client: Client
) -> None:
    topic = create(client, "from-a-frame")
    rows = numbers(spark, 100).selectExpr("value", "if(id % 2 = 0, 'named', NULL) AS topic")
    first, again = (backfill(spark, rows, topic, url=client.url, name=topic) for _ in range(2))
    assert (first.rows, first.resumed, again.rows, again.resumed) == (100, False, 0, True)
    assert sorted(int(each.payload) for each in read_log(client.url, topic)) == list(range(100))


def test_a_data_frame_with_positions_is_published_in_their_order(spark: SparkSession, client: Client) -> None:
    topic = create(client, "in-order")
    rows = numbers(spark, 300).repartition(5)
    with pytest.raises(Stopped):
        backfill(spark, rows, topic, url=client.url, name="ordered", position="id", rows=100, on_progress=stop_after(2))
    assert backfill(spark, rows, topic, url=client.url, name="ordered", position="id", rows=1_000).rows == 100
    assert [int(each.payload) for each in read_log(client.url, topic)] == list(range(300))


@pytest.mark.parametrize(("within", "others"), [(False, 1_000), (True, 200)])
def test_of_two_backfills_under_one_name_the_one_that_is_behind_ends(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch, within: bool, others: int
) -> None:
    """Between two slices, or ``within`` one: ours is answered as a duplicate."""
    topic, rows = create(client, f"overtaken-{within}-{others}"), numbers(spark, 300)
    module = sys.modules["oncelog.spark.jobs.backfill"]  # the name is that of the function, too
    write, slices = module._write, []

    def run(rows_each: int, told: Any = lambda _: None) -> None:
        backfill(spark, rows, topic, url=client.url, name=topic, position="id", rows=rows_each, on_progress=told)

    def other() -> None:
        with suppress(Stopped):
            run(others, stop_after(1))

    def overtaken(part: Any, sink: Any) -> int:
        slices.append(part)
        if within and len(slices) == 2:
            other()
        written = int(write(part, sink))
        if not within and len(slices) == 1:
            other()
        return written

    monkeypatch.setattr(module, "_write", overtaken)
    with pytest.raises(BackfillOvertaken, match="it has come to position"):
        run(100)
    run(100)
    assert [int(each.payload) for each in read_log(client.url, topic)] == list(range(300))


def test_what_cannot_be_kept_apart_or_sent_is_refused_before_anything_is_written(spark: SparkSession, client: Client) -> None:
    topic, rows = create(client, "not-alone"), numbers(spark, 10)
    to_both = rows.selectExpr("id AS offset", "value", f"if(id < 5, '{topic}', 'missing') AS topic")
    with pytest.raises(TopicNotFound, match="missing"):
        backfill(spark, to_both, url=client.url, name="to-both")
    with pytest.raises(ValueError, match="needs a name"):
        backfill(spark, rows, topic, url=client.url)
    with pytest.raises(ValueError, match="columns producer and sequence_id"):
        backfill(spark, rows, topic, url=client.url, name="n", position="id", keep_producers=True)
    unordered = rows.selectExpr("value", "'p' AS producer", "id AS sequence_id")
    with pytest.raises(ValueError, match="order"):
        backfill(spark, unordered, topic, url=client.url, name="n", keep_producers=True)
    with pytest.raises(ValueError, match="no positions"):
        backfill(spark, rows.selectExpr("value", "id - 1 AS offset"), topic, url=client.url, name="n")
    assert read_log(client.url, topic) == []


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("id", "CAST(id AS STRING) AS value")


# --- progress


def test_lag_is_what_is_stable_and_was_not_read() -> None:
    end = {"v": 1, "topics": {"t": {"base": 0, "pos": 7, "generation": 1}, "u": {"base": 0, "pos": 3, "generation": 1}}}
    latest = {"v": 1, "topics": {"t": {"base": 0, "pos": 10, "generation": 1}, "u": {"base": 0, "pos": 3, "generation": 1}}}
    assert lag({"sources": [{"endOffset": end, "latestOffset": latest}]}) == 3
    assert lag({"sources": [{"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}]}) == 3
    assert lag({"sources": [{"endOffset": {"logOffset": 3}, "latestOffset": None}]}) is None


def test_a_batch_that_is_told_of_again_does_not_count_again() -> None:
    told = [{"batchId": 4, "numInputRows": 10}, {"batchId": 5, "numInputRows": 20}]
    done = Progress().after(told).after([*told, {"batchId": 6, "numInputRows": 0}])
    assert (done.batch, done.batches, done.rows) == (6, 2, 30)
