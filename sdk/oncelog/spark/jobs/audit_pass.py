"""The one pass of an audit: each message beside its neighbours, summed up in pieces that are few however many messages there are.

Within a topic a message has two neighbours: the one before it by offset, and the one before it by its producer's sequence id.
Both are looked at in stretches of :data:`SPAN` numbers, so that a topic of one producer is worked on by all cores; what lies
between two stretches is found when the pieces are put together (``audit_findings``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPAN = 1_000_000
"""Numbers in one stretch: about as many rows as a task sorts in a second."""
COLUMNS = ("topic", "offset", "message_id", "timestamp", "producer", "sequence_id")
"""What an audit looks at."""
MINUTE_MS = 60_000

PRODUCERS, OFFSETS, MINUTES = "producers", "offsets", "minutes"
"""Kinds of pieces: (topic, producer, stretch of sequence ids), (topic, stretch of offsets), (topic, minute)."""


def flagged(messages: DataFrame, span: int = SPAN) -> DataFrame:
    """Each message with what is wrong between it and its neighbours.

    ``repeats``: its sequence id was there at a lower offset. ``missing``: sequence ids passed over before it. ``disorder``: it
    has a lower offset than the message before it in its producer's order. ``hole``: offsets passed over before it. ``twice``: its
    offset is there twice. ``id_falls``: its message id is not above that of the offset before.
    """
    narrow = messages.select(
        *COLUMNS,
        # Messages without a producer are not in its order: they are spread by their offsets.
        F.coalesce(_stretch("sequence_id", span), _stretch("offset", span)).alias("sequences"),
        _stretch("offset", span).alias("offsets"),
    )
    by_sequence = Window.partitionBy("topic", "producer", "sequences").orderBy("sequence_id", "offset")
    by_offset = Window.partitionBy("topic", "offsets").orderBy("offset", "message_id")
    before = F.col("sequence_id_before")
    named = F.col("producer").isNotNull() & F.col("sequence_id").isNotNull()
    return (
        narrow.withColumn("sequence_id_before", F.lag("sequence_id").over(by_sequence))
        .withColumn("repeats", F.coalesce(named & (F.col("sequence_id") == before), F.lit(False)))
        # Of a sequence id that is there twice, the first one counts: a repetition far behind puts nothing else out of order.
        .withColumn("original", F.when(named & ~F.col("repeats"), F.col("offset")))
        .withColumn(
            "original_before", F.last("original", ignorenulls=True).over(by_sequence.rowsBetween(Window.unboundedPreceding, -1))
        )
        .withColumn("missing", F.when(named, F.greatest(F.col("sequence_id") - before - 1, F.lit(0))))
        .withColumn("disorder", F.coalesce(F.col("original") < F.col("original_before"), F.lit(False)))
        .withColumn("offset_before", F.lag("offset").over(by_offset))
        .withColumn("message_id_before", F.lag("message_id").over(by_offset))
        .withColumn("hole", F.greatest(F.col("offset") - F.col("offset_before") - 1, F.lit(0)))
        .withColumn("twice", F.coalesce(F.col("offset") == F.col("offset_before"), F.lit(False)))
        .withColumn("id_falls", F.coalesce(F.col("message_id") <= F.col("message_id_before"), F.lit(False)))
        .withColumn("minute", _stretch("unix_millis(timestamp)", MINUTE_MS))
    )


def pieces(messages: DataFrame, span: int = SPAN) -> DataFrame:
    """The messages summed up: a row for each piece of each kind."""
    keys = [F.col(name) for name in ("topic", "producer", "sequences", "offsets", "minute")]
    topic, producer, sequences, offsets, minute = keys
    kind = (
        F.when(F.grouping("sequences") == 0, PRODUCERS).when(F.grouping("offsets") == 0, OFFSETS).otherwise(MINUTES).alias("kind")
    )
    numbered = F.when(F.col("original").isNotNull(), F.col("sequence_id"))
    ms = F.unix_millis("timestamp")
    sums = flagged(messages, span).groupingSets([[topic, producer, sequences], [topic, offsets], [topic, minute]], *keys)
    return sums.agg(
        kind,
        F.count(F.lit(1)).alias("messages"),
        _count("repeats"),
        F.sum("missing").alias("missing"),
        _count("missing > 0", "gaps"),
        _count("disorder"),
        F.sum("hole").alias("missing_offsets"),
        _count("hole > 0", "holes"),
        _count("twice"),
        _count("id_falls"),
        F.min("sequence_id").alias("first_sequence_id"),
        F.max("sequence_id").alias("last_sequence_id"),
        F.min_by("original", numbered).alias("first_original"),
        F.max_by("original", numbered).alias("last_original"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.min_by(ms, "offset").alias("first_ms"),
        F.max_by(ms, "offset").alias("last_ms"),
    )


def wrong(messages: DataFrame, span: int = SPAN) -> DataFrame:
    """The messages with which something is wrong, gaps of producers aside: for the few that a report shows."""
    return flagged(messages, span).where("repeats OR disorder OR twice OR id_falls OR hole > 0")


def _stretch(number: str, span: int) -> Column:
    return F.expr(f"{number} div {span}")


def _count(condition: str, name: str = "") -> Column:
    return F.count_if(F.expr(condition)).alias(name or condition)
