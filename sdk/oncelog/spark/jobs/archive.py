"""Topics as Parquet files, by the day on which each message was published (UTC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from oncelog.spark.jobs.progress import started
from oncelog.spark.options import service_options, topic_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVERY = "30 seconds"
"""Each batch writes files: seldom enough that they are not tiny, often enough that an archive is not stale."""
MAX_OFFSETS = 2_000_000
"""Of one batch: what its tasks hold is bounded, and so is what is done again after a crash."""
_DAY_MS = 86_400_000


def archive(
    spark: SparkSession,
    topics: str | Sequence[str],
    path: str,
    *,
    url: str | None = None,
    namespace: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    checkpoint: str | None = None,
    available_now: bool = False,
    every: str = EVERY,
    starting: str = "earliest",
    max_offsets: int = MAX_OFFSETS,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Keep Parquet files, by day, a copy of topics: each message once, whatever is killed. The query, which has begun.

    All columns of the source are kept, headers too, under ``date=…`` directories. Spark readers of ``path`` see each message
    exactly once, whatever was killed when. Others may see files of a batch that was not finished: they are not named in
    ``path/_spark_metadata``.

    Args:
        topics: Topics to copy.
        path: Directory of Parquet files.
        url, namespace, token: Of the service; else ONCELOG_URL, ``default``, ONCELOG_TOKEN.
        token_file: Where the token is instead, on each machine; Spark is given no secret then.
        checkpoint: Where Spark keeps its position, else in _checkpoint there; the two belong together for ever.
        available_now: End when what is there now is done; else go on.
        every: Time between two batches.
        starting: Of a new archive: ``earliest``, ``latest`` or JSON, as the option ``startingOffsets``.
        max_offsets: Messages of one batch at most.
        options: Further ones of the source.
    """
    messages = (
        spark.readStream.format("oncelog")
        .options(**service_options(url, namespace, token, token_file))
        .option("subscribe", ",".join(topic_names(topics)))
        .option("includeHeaders", "true")
        .option("startingOffsets", starting)
        .option("maxOffsetsPerTrigger", max_offsets)
        .options(**dict(options or {}))
        .load()
    )
    writer = (
        dated(messages)
        .writeStream.format("parquet")
        .partitionBy("date")
        .option("path", path)
        .option("checkpointLocation", checkpoint or f"{path.rstrip('/')}/_checkpoint")
    )
    trigger = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=every)
    return started(trigger.start)


def dated(messages: DataFrame) -> DataFrame:
    """With the column ``date`` that an archive is partitioned by."""
    return messages.withColumn("date", utc_date(F.col("timestamp")))


def utc_date(timestamp: Column) -> Column:
    """The day in UTC, whatever the session's time zone is."""
    return F.date_from_unix_date(F.floor(F.unix_millis(timestamp) / _DAY_MS).cast("int"))
