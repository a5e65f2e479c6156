"""The flights pipeline: its queries say what counting in Python says, and streams of them give what a batch gives."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from oncelog import Client, Producer
from oncelog.spark.jobs.flights import (
    as_messages,
    compare_with_batch,
    delays,
    difference,
    flights,
    from_messages,
    parsed_flights,
    parsed_weather,
    with_weather,
)
from oncelog.spark.jobs.progress import follow
from tests.support import RunningService

pytestmark = pytest.mark.wide

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[Client]:
    with Client(service.url) as made:
        yield made


@pytest.fixture(scope="module")
def lines() -> Iterator[Any]:
    """What the demo publishes."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        from flights import data

        yield data
    finally:
        sys.path.remove(str(EXAMPLES))


def as_values(spark: SparkSession, lines: list[Any]) -> DataFrame:
    return spark.createDataFrame([(bytearray(line.payload),) for line in lines], "value BINARY")


def test_the_queries_say_what_counting_says(spark: SparkSession, lines: Any) -> None:
    flown = lines.flights_by_hour(1_500)
    found = delays(parsed_flights(as_values(spark, flown)))
    assert {
        (row.hour.astimezone(UTC), row.origin): (row.flights, row.departures, row.late, row.delay_minutes)
        for row in found.collect()
    } == counted(flown)
    assert difference(from_messages(as_messages(found)), found) == (len(counted(flown)), [])
    weather = lines.weather_by_hour(flown[-1].hour)
    hours = Counter((line.hour, line.airport) for line in weather)
    joined = with_weather(parsed_flights(as_values(spark, flown)), parsed_weather(as_values(spark, weather)))
    assert joined.count() == sum(hours[line.hour, line.airport] for line in flown)
    assert joined.where("temp IS NULL AND wind_speed IS NULL").count() < 10


def counted(flown: list[Any]) -> dict[tuple[datetime, str], tuple[int, int, int, int]]:
    sums: dict[tuple[datetime, str], list[int]] = {}
    for line in flown:
        row = next(csv.reader([line.payload.decode()]))
        counts = sums.setdefault((datetime.fromisoformat(line.hour), line.airport), [0, 0, 0, 0])
        counts[0] += 1
        counts[1] += row[3] != "NA"
        if row[5] != "NA":
            counts[2] += int(row[5]) >= 15
            counts[3] += int(row[5])
    return {key: (a, b, c, d) for key, (a, b, c, d) in sums.items()}


def test_a_difference_is_seen_row_by_row(spark: SparkSession) -> None:
    def numbers(*values: int | None) -> DataFrame:
        return spark.createDataFrame([(value,) for value in values], "n INT")

    assert difference(numbers(1, 2, 2, None), numbers(2, None, 1, 2)) == (4, [])
    twice = ["1 rows too many or other than in the batch"]
    assert difference(numbers(1, 2, 2), numbers(1, 2)) == (2, twice)
    assert difference(numbers(1, 3), numbers(1, 2)) == (1, [*twice, "1 rows of the batch that are not there"])


def test_streams_that_are_continued_give_what_a_batch_gives(
    spark: SparkSession, client: Client, lines: Any, tmp_path: Path
) -> None:
    for topic in ("flights", "weather", "delays"):
        client.create_topic(topic)
    flown = lines.flights_by_hour(2_000)
    weather = lines.weather_by_hour(flown[-1].hour)
    for part in (slice(0, 1_200), slice(1_200, None)):
        for topic, its in (("flights", flown), ("weather", weather)):
            share = slice(part.start * len(its) // len(flown), None if part.stop is None else part.stop * len(its) // len(flown))
            with Producer(topic, url=client.url) as producer:
                for line in its[share]:
                    producer.send_async(line.payload)
        done = follow(flights(spark, str(tmp_path), url=client.url, available_now=True, max_offsets=1_000))
    assert done["delays"].rows == 800
    rows, problems = compare_with_batch(spark, str(tmp_path), url=client.url)
    assert problems == []
    assert rows["delays"] == rows["delays-files"] > 60
    assert rows["weather-files"] > 1_900


@pytest.mark.slow
def test_streams_that_are_killed_give_what_a_batch_gives() -> None:
    demo = [sys.executable, EXAMPLES / "demo.py", "--act", "3", "--streamed", "12000"]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 pipeline 1" in done.stdout
    assert "kill -9 service" in done.stdout
    assert "no row lost, none double" in done.stdout
