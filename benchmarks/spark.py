"""What Spark gets, beside what a plain Python program gets from the same service in the same run."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import PAYLOADS, Row, running
from oncelog import Client, Producer, Reader
from oncelog.spark import session
from oncelog.spark.reading.offsets import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

_BATCH = 500_000
"""Messages of a micro-batch: the overhead of one is paid once."""
_WARM = 20_000
_NEWS = 30
"""Single messages, one after another, each when the batch with the one before it has ended."""


def spark_rates(messages: int) -> list[Row]:
    """Source and sink, and the reader and producer of the SDK beside them."""
    folder = Path(tempfile.mkdtemp(prefix="oncelog-bench-"))
    spark = session("bench", master="local[2]", **{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    try:
        with running("oncelog") as server, Client(server.url) as client:
            produced = _produce(client, messages)
            read = _read(client, messages)
            runs = _Runs(spark, client, server.url, folder)
            runs.source(_WARM)
            runs.to_parquet(_WARM)
            runs.to_topic(_WARM)
            source, parquet, sink = runs.source(messages), runs.to_parquet(messages), runs.to_topic(messages)
            news_ms = runs.news() * 1000
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return [
        Row("Spark beside it: Producer.send_async", produced, "messages/s"),
        Row("Spark beside it: Reader", read, "messages/s"),
        Row("Spark source: topic to noop", source, "messages/s", "≥ 400,000", source >= 400_000),
        Row("Spark source: times the Reader", source / read, "×"),
        Row("Spark: topic to Parquet, a stream", parquet, "messages/s", "≥ 250,000", parquet >= 250_000),
        Row("Spark sink: Parquet to topic, a stream", sink, "messages/s", "≥ 200,000", sink >= 200_000),
        Row("Spark sink: times Producer.send_async", sink / produced, "×"),
        Row("Spark source: a new row to its finished batch, p50", news_ms, "ms", "< 500", news_ms < 500),
    ]


def _produce(client: Client, messages: int) -> float:
    client.create_topic("bench")
    began = time.perf_counter()
    with Producer("bench", name="bench", client=client) as producer:
        for payload in islice(cycle(PAYLOADS), messages):
            producer.send_async(payload)
    return messages / (time.perf_counter() - began)


def _read(client: Client, messages: int) -> float:
    began = time.perf_counter()
    with Reader("bench", client=client, timeout=0) as reader:
        count = sum(1 for _ in reader)
    assert count == messages
    return count / (time.perf_counter() - began)


class _Runs:
    """Each measures ``messages`` of the topic that was filled."""

    def __init__(self, spark: SparkSession, client: Client, url: str, folder: Path) -> None:
        self._spark = spark
        self._client = client
        self._url = url
        self._folder = folder

    def source(self, messages: int) -> float:
        """Topic → nothing, as one batch."""
        reader = self._spark.read.format("oncelog").option("url", self._url).option("topic", "bench")
        frame = reader.option("endingOffsets", f'{{"bench": {messages}}}').load()
        return messages / _seconds(lambda: frame.write.format("noop").mode("overwrite").save())

    def to_parquet(self, messages: int) -> float:
        """Topic → Parquet, as a stream."""
        frame = self._stream_of("bench").option("maxOffsetsPerTrigger", min(_BATCH, messages)).load()
        target = self._folder / f"parquet-{messages}"
        seconds = self._stream(frame, "parquet", {"path": str(target)}, f"out-{messages}")
        total = self._spark.read.parquet(str(target)).count()
        return total / seconds

    def to_topic(self, messages: int) -> float:
        """Parquet → topic, as a stream over what the last run wrote."""
        topic = f"copy-{messages}"
        self._client.create_topic(topic)
        source = self._folder / f"in-{messages}"
        frame = self._spark.read.parquet(str(self._folder / f"parquet-{messages}")).select("key", "value").limit(messages)
        frame.coalesce(2).write.parquet(str(source))
        frame = self._spark.readStream.schema("key binary, value binary").parquet(str(source))
        seconds = self._stream(frame, "oncelog", {"url": self._url, "topic": topic}, f"in-checkpoint-{messages}")
        return self._client.stats(topic).upcoming_offset / seconds

    def news(self) -> float:
        """Seconds from a publish until a waiting stream tells of the batch that held it; the median."""
        self._client.create_topic("news")
        writer = self._stream_of("news").load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(self._folder / "news")).start()
        try:
            with Producer("news", name="news", client=self._client) as producer:
                spans = [_seconds(lambda: _arrive(query, producer.send(PAYLOADS[0]).offset)) for _ in range(_NEWS)]
        finally:
            query.stop()
        return statistics.median(spans[_NEWS // 3 :])  # the first ones start Python's workers

    def _stream_of(self, topic: str) -> DataStreamReader:
        """A stream of the topic from its beginning."""
        options = {"url": self._url, "topic": topic, "startingOffsets": "earliest"}
        return self._spark.readStream.format("oncelog").options(**options)

    def _stream(self, frame: DataFrame, kind: str, options: dict[str, str], checkpoint: str) -> float:
        writer = frame.writeStream.format(kind).options(**options).option("checkpointLocation", str(self._folder / checkpoint))

        def run() -> None:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()

        return _seconds(run)


def _arrive(query: StreamingQuery, offset: int) -> None:
    """Return when a batch that went beyond the offset has ended. Raises what ended the query."""
    while (progress := query.lastProgress) is None or _reached(progress.sources[0].endOffset, "news") <= offset:
        query.awaitTermination(0.005)


def _reached(end: str | None, topic: str) -> int:
    """The offset that a query goes on at, from the end of a batch as its progress tells it."""
    positions = None if end is None else from_json(json.loads(end))
    return 0 if positions is None else positions[topic].pos


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
