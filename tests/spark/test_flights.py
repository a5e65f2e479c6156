"""The streams of the demo: what they write is what counting in Python says, and what a batch of the same queries gives."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from oncelog import Client, Producer
from oncelog.spark.jobs.progress import follow
from tests.world.service import RunningService

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def test_streams_that_are_continued_give_what_counting_and_a_batch_give(
    spark: SparkSession, service: RunningService, tmp_path: Path
) -> None:
    from flights import data, streams

    lines = {data.TOPIC: data.flights_by_hour(2_000)}
    lines[data.WEATHER_TOPIC] = data.weather_by_hour(lines[data.TOPIC][-1].hour)
    with Client(service.url) as client:
        for topic in (*lines, data.DELAYS_TOPIC):
            client.create_topic(topic)
    for begin, end in ((0.0, 0.6), (0.6, 1.0)):
        for topic, its in lines.items():
            with Producer(topic, url=service.url) as producer:
                for line in its[int(begin * len(its)) : int(end * len(its))]:
                    producer.send_async(line.payload)
        done = follow(streams.streams(spark, str(tmp_path), service.url, to_the_end=True, max_offsets=1_000))
    assert done["delays"].rows == 800
    rows, problems = streams.compare_with_batch(spark, str(tmp_path), service.url)
    assert problems == []
    hours = Counter((line.hour, line.airport) for line in lines[data.WEATHER_TOPIC])
    assert rows["weather-files"] == sum(hours[line.hour, line.airport] for line in lines[data.TOPIC]) > 1_900
    assert rows["delays"] == rows["delays-files"] > 60
    expected = counted(lines[data.TOPIC])
    for row in spark.read.parquet(f"{tmp_path}/delays").collect():
        counts = (row.flights, row.departures, row.late, row.delay_minutes)
        assert counts == expected[row.hour.astimezone(UTC), row.origin]


def counted(flown: list[Any]) -> dict[tuple[datetime, str], tuple[int, ...]]:
    sums: dict[tuple[datetime, str], tuple[int, ...]] = {}
    for line in flown:
        row = next(csv.reader([line.payload.decode()]))
        late = 0 if row[5] == "NA" else int(row[5])
        key = (datetime.fromisoformat(line.hour), line.airport)
        sums[key] = tuple(map(sum, zip(sums.get(key, (0, 0, 0, 0)), (1, row[3] != "NA", late >= 15, late), strict=True)))
    return sums


def test_a_difference_is_seen_row_by_row(spark: SparkSession) -> None:
    from flights.streams import difference

    def numbers(*values: int | None) -> DataFrame:
        return spark.createDataFrame([(value,) for value in values], "n INT")

    assert difference(numbers(1, 2, 2, None), numbers(2, None, 1, 2)) == (4, [])
    told = ["1 rows too many or other than in the batch", "1 rows of the batch that are not there"]
    assert difference(numbers(1, 2, 2), numbers(1, 2, 3)) == (2, told)


@pytest.mark.slow
def test_streams_that_are_killed_give_what_a_batch_gives() -> None:
    demo = [sys.executable, EXAMPLES / "demo.py", "--act", "3", "--streamed", "12000"]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 pipeline 1" in done.stdout
    assert "kill -9 service" in done.stdout
    assert "no row lost, none double" in done.stdout
