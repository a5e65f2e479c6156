"""What Spark makes of the flights: delays by airport and hour, and each flight beside its hour's weather.

The queries are functions from DataFrame to DataFrame: over a stream they give, piece by piece, what they give over a batch of the
same messages. That is what :func:`compare_with_batch` holds them to.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from flights.data import DELAYS_TOPIC, TOPIC, WEATHER_TOPIC
from oncelog import Client
from oncelog.spark import session
from oncelog.spark.jobs.progress import follow, started
from oncelog.spark.session import SMALL
from oncelog.wire.models import TopicAsked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LATE = "2 hours"
"""How much later than the newest one a flight may come; a window is closed when no more of it can."""

_FLIGHT = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, "
    "hour INT, minute INT, time_hour TIMESTAMP"
)
_WEATHER = (
    "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, wind_dir INT, "
    "wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP"
)
_CSV = {"nullValue": "NA", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ssX"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--to", required=True, help="directory of the files and checkpoints")
    parser.add_argument("--max-offsets", type=int, required=True, help="messages of one batch at most")
    parser.add_argument(
        "--to-the-end", action="store_true", help="end when all that is there now is read, and compare with a batch"
    )
    args = parser.parse_args()
    spark = session("flights", "local[2]", **SMALL)
    follow(streams(spark, args.to, args.url, to_the_end=args.to_the_end, max_offsets=args.max_offsets))
    if args.to_the_end:
        rows, problems = compare_with_batch(spark, args.to, args.url)
        print(json.dumps({"rows": rows, "problems": problems}), flush=True)
    spark.stop()


def streams(spark: SparkSession, path: str, url: str, *, to_the_end: bool, max_offsets: int) -> dict[str, StreamingQuery]:
    """Start the three queries; by name:

    * ``delays``: delays by airport and hour as messages of a topic, through the exactly-once sink, as soon as an hour is closed;
    * ``delays-files``: the same as Parquet under ``path/delays``;
    * ``weather-files``: each flight with the weather of its hour, a join of two streams, as Parquet under ``path/weather``.

    Their checkpoints lie under ``path/_checkpoints``: started again after whatever happened, they go on without a row twice or
    lost. ``to_the_end``: they end when what is there now was read. ``max_offsets``: of a batch.
    """

    def topic(name: str) -> DataFrame:
        source = spark.readStream.format("oncelog").option("url", url).option("subscribe", name)
        return source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", max_offsets).load()

    def start(name: str, frame: DataFrame, form: str, options: Mapping[str, str]) -> StreamingQuery:
        writer = frame.writeStream.format(form).options(**options).option("checkpointLocation", f"{path}/_checkpoints/{name}")
        return started((writer.trigger(availableNow=True) if to_the_end else writer.trigger(processingTime="0 seconds")).start)

    # Each query reads for itself: it has a position, and may be started alone.
    late = delays(parsed_flights(topic(TOPIC)))
    joined = with_weather(parsed_flights(topic(TOPIC)), parsed_weather(topic(WEATHER_TOPIC)))
    return {
        "delays": start("delays", as_messages(late), "oncelog", {"url": url, "topic": DELAYS_TOPIC}),
        "delays-files": start("delays-files", late, "parquet", {"path": f"{path}/delays"}),
        "weather-files": start("weather-files", joined, "parquet", {"path": f"{path}/weather"}),
    }


# --- the queries


def parsed_flights(messages: DataFrame) -> DataFrame:
    """The lines of ``flights.csv`` in ``value`` as columns; ``time_hour`` is the event time."""
    return _parsed(messages, _FLIGHT).withWatermark("time_hour", LATE)


def parsed_weather(messages: DataFrame) -> DataFrame:
    """The same of ``weather.csv``."""
    return _parsed(messages, _WEATHER).withWatermark("time_hour", LATE)


def delays(flights: DataFrame) -> DataFrame:
    """Of each airport and hour: flights, departures, those 15 minutes late or more, minutes of delay. Whole numbers only, which
    add up to the same in any order."""
    window = F.window("time_hour", "1 hour")
    sums = flights.groupBy(window.alias("hour"), "origin").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count("dep_time").alias("departures"),
        F.count_if(F.col("dep_delay") >= 15).alias("late"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_minutes"),
    )
    return sums.select(F.col("hour.start").alias("hour"), "origin", "flights", "departures", "late", "delay_minutes")


def with_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Each flight with the weather at its airport in its hour; those without any are left out."""
    at = weather.select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
    chosen = flights.select("origin", "time_hour", "carrier", "flight", "tailnum", "dest", "sched_dep_time", "dep_delay")
    return chosen.join(at, ["origin", "time_hour"])


def as_messages(delays: DataFrame) -> DataFrame:
    """For a topic: the airport as key, the rest as JSON, hours in seconds since 1970."""
    body = F.struct(F.unix_seconds("hour").alias("hour"), "origin", "flights", "departures", "late", "delay_minutes")
    return delays.select(F.col("origin").alias("key"), F.to_json(body).alias("value"))


def from_messages(messages: DataFrame) -> DataFrame:
    """Back from :func:`as_messages`."""
    form = "hour LONG, origin STRING, flights LONG, departures LONG, late LONG, delay_minutes LONG"
    body = messages.select(F.from_json(F.col("value").cast("string"), form).alias("body")).select("body.*")
    return body.withColumn("hour", F.timestamp_seconds("hour"))


def _parsed(messages: DataFrame, form: str) -> DataFrame:
    line = F.from_csv(F.col("value").cast("string"), form, _CSV)
    return messages.select(line.alias("line")).select("line.*")


# --- the proof


def closed(delays: DataFrame, flights: DataFrame) -> DataFrame:
    """Of delays computed over a batch, the hours that a stream has closed: no flight of them may come any more."""
    newest = flights.agg(F.max("time_hour").alias("newest"))
    end = F.col("hour") + F.expr("INTERVAL 1 HOUR")
    return delays.join(newest).where(end <= F.col("newest") - F.expr(f"INTERVAL {LATE}")).drop("newest")


def compare_with_batch(spark: SparkSession, path: str, url: str) -> tuple[dict[str, int], list[str]]:
    """Hold what :func:`streams` has written, once it has read everything, against the same queries over the topics as a batch.

    How many rows agree, by query, and what differs, in words: rows that are missing, too many or there twice.
    """
    with Client(url) as client:
        known = client.offsets({name: TopicAsked() for name in (TOPIC, WEATHER_TOPIC, DELAYS_TOPIC)})

    def topic(name: str) -> DataFrame:
        source = spark.read.format("oncelog").option("url", url).option("subscribe", name)
        return source.option("endingOffsets", json.dumps({name: known[name].stable})).load()

    all_flights = parsed_flights(topic(TOPIC))
    expected_delays = closed(delays(all_flights), all_flights).cache()
    expected_weather = with_weather(all_flights, parsed_weather(topic(WEATHER_TOPIC)))
    written = {
        "delays": (from_messages(topic(DELAYS_TOPIC)), expected_delays),
        "delays-files": (spark.read.parquet(f"{path}/delays"), expected_delays),
        "weather-files": (spark.read.parquet(f"{path}/weather"), expected_weather),
    }
    rows, problems = {}, []
    for name, (found, expected) in written.items():
        rows[name], told = difference(found, expected)
        problems += [f"{name}: {each}" for each in told]
    expected_delays.unpersist()
    return rows, problems


def difference(found: DataFrame, expected: DataFrame) -> tuple[int, list[str]]:
    """How many rows both have, and what differs, in words. Each row counts as often as it is there."""
    columns = expected.columns
    sides = found.select(*columns, F.lit(1).alias("there")).unionAll(expected.select(*columns, F.lit(-1).alias("there")))
    surplus = sides.groupBy(*columns).agg(F.sum("there").alias("surplus"), F.count_if(F.col("there") > 0).alias("found"))
    sums = surplus.agg(
        F.sum(F.col("found") - F.greatest(F.col("surplus"), F.lit(0))).alias("same"),
        F.sum(F.greatest(F.col("surplus"), F.lit(0))).alias("more"),
        F.sum(F.greatest(-F.col("surplus"), F.lit(0))).alias("less"),
    ).first()
    assert sums is not None
    counts = {"rows too many or other than in the batch": sums["more"], "rows of the batch that are not there": sums["less"]}
    return int(sums["same"] or 0), [f"{count:,} {what}" for what, count in counts.items() if count]


if __name__ == "__main__":
    main()
