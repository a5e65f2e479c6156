"""Rows of files, or of any DataFrame, as messages of a topic, each once, however often it is begun again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from oncelog.errors import GroupProducerNotFound
from oncelog.spark.connection import Connection
from oncelog.spark.jobs.progress import Progress, follow, started
from oncelog.spark.options import service_options
from oncelog.spark.writing.refusals import target_made_anew
from oncelog.spark.writing.write_options import GROUP
from oncelog.wire.models import TopicAsked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 500_000
"""Of one commit: what a crash makes to be done again, seconds of work."""
MAX_FILES = 16
"""Of one commit, where rows have no positions."""
POSITION = "offset"
"""The column by which an archive's rows are in order."""
_KEPT = ("producer", "sequence_id")

OnProgress = Callable[[dict[str, Progress]], None]


class BackfillOvertaken(RuntimeError):
    """Another backfill publishes under the same name just now, and is ahead."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What one call has done."""

    name: str
    """Under which the position is kept."""
    rows: int
    """Read and committed by this call."""
    commits: int
    resumed: bool
    """Whether an earlier call had come some way."""
    kept_producers: bool
    """Whether the rows went under their own producers and sequence ids; then the service leaves out those it has."""


def backfill(
    spark: SparkSession,
    source: str | DataFrame,
    topic: str | None = None,
    *,
    name: str | None = None,
    url: str | None = None,
    namespace: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    keep_producers: bool | None = None,
    position: str | None = POSITION,
    checkpoint: str | None = None,
    rows: int = ROWS,
    max_files: int = MAX_FILES,
    options: Mapping[str, str] | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Backfilled:
    """Publish ``source``, a directory of Parquet files or a DataFrame, with the columns that the sink takes; returns when done.

    Every commit is atomic and deduplicated, so this may be killed anywhere and called again: it goes on where it was. Three ways,
    by what the rows have:

    * the column ``position``, whole numbers that rise, as the offsets of an archive: ``rows`` at a time, in its order, for each
      ``topic`` of the rows. How far it has come is what the service last committed under ``name``; there is no checkpoint.
    * files without it: as a stream of files, up to ``max_files`` at a time, with ``checkpoint``. Their order is Spark's. With
      another checkpoint, that would publish all of them again, it is refused under the same ``name``.
    * a DataFrame without it: all in one commit.

    What was written under a name is not looked at again: other rows need another name. The order of producers that are kept
    counts: what comes behind a higher sequence id of its producer is a repetition, and left out; rows of different producers may
    change places.

    Args:
        source: Directory of Parquet files, or a DataFrame.
        topic: Where all rows go; else where their column ``topic`` says.
        name: Under which the service keeps the position; else drawn from path and topic. A DataFrame needs one.
        url, namespace, token: Of the service; else ONCELOG_URL, ``default``, ONCELOG_TOKEN.
        token_file: Where the token is instead, on each machine; Spark is given no secret then.
        keep_producers: Whether rows keep their producer and sequence id; else if they have both, and positions.
        position: Column of whole numbers by which rows are in order.
        checkpoint: Where Spark keeps its position among files whose rows have none.
        rows: Rows of one commit, where they have positions.
        max_files: Files of one commit, where rows have no positions.
        options: Further ones of the sink.
        on_progress: Called with how far it is.

    One at a time under a name. Raises BackfillOvertaken when another one is found to be ahead; CommitGone when the topic was
    deleted and made anew since rows were published under the name; ValueError, OncelogError; whatever Spark raises.
    """
    frame = spark.read.parquet(source) if isinstance(source, str) else source
    ordered = position is not None and position in frame.columns
    keep = _keeps(frame, keep_producers, ordered)
    connection = Connection.chosen(url, namespace, token, token_file=token_file)
    sink = {
        **service_options(url, namespace, token, token_file),
        **({} if topic is None else {"topic": topic}),
        "keepProducers": str(keep).lower(),
        **dict(options or {}),
    }
    call = _Call(frame, name or _name(source, connection.namespace, topic), connection, sink, keep, on_progress)
    if ordered:
        assert position is not None
        return call.slices(position, rows)
    return call.files(spark, source, checkpoint, max_files) if isinstance(source, str) else call.whole()


def _keeps(frame: DataFrame, wanted: bool | None, ordered: bool) -> bool:
    there = all(column in frame.columns for column in _KEPT)
    if wanted and not there:
        raise ValueError(f"to keep producers, rows need the columns {' and '.join(_KEPT)}")
    if wanted and not ordered:
        raise ValueError("to keep producers, rows need a column that says their order: see `position`")
    return there and ordered if wanted is None else wanted


class _Call(NamedTuple):
    """One call of a backfill: what it reads and how it writes."""

    frame: DataFrame
    name: str
    connection: Connection
    sink: Mapping[str, str]
    """Options."""
    keep: bool
    on_progress: OnProgress

    # --- rows with positions

    def slices(self, position: str, rows: int) -> Backfilled:
        """The sequence id of a commit is the last position in it: so the next slice is known, whatever size the others had."""
        done, resumed = Progress(), False
        bounds = self._bounds(position)
        targets = [self.sink["topic"]] if "topic" in self.sink else [topic for topic, _, _ in bounds if topic is not None]
        self.connection.client().offsets(dict.fromkeys(targets, TopicAsked()), self.connection.namespace)  # or TopicNotFound
        for topic, first, last in bounds:
            producer, shown = (self.name, self.name) if topic is None else (f"{self.name}:{_plain(topic)}", topic)
            reached = self._committed(producer)
            resumed = resumed or reached is not None
            rest = self.frame.where(F.col("topic").eqNullSafe(F.lit(topic))) if "topic" in self.frame.columns else self.frame
            begin = max(first, 0 if reached is None else reached + 1)
            self.on_progress({shown: replace(done, lag=max(0, last - begin + 1))})
            while begin <= last:
                # Another backfill may have come here since the last slice; its slice, cut otherwise, would pass for ours.
                self._check_alone(producer, begin)
                end = min(begin + rows - 1, last)
                part = rest.where(F.col(position).between(begin, end)).orderBy(position)
                try:
                    written = _write(_sent(part, self.sink), {**self.sink, "producer": producer, "sequenceId": str(end)})
                except Exception:
                    self._check_alone(producer, begin, but=end)  # of two at once this may be the one that was refused
                    raise
                done = Progress(end, done.batches + (written > 0), done.rows + written, last - end)
                self.on_progress({shown: done})
                begin = end + 1
        return self._done(done, resumed)

    def _bounds(self, position: str) -> list[tuple[str | None, int, int]]:
        """Topic, lowest and highest position. Raises ValueError for positions that are none."""
        number = F.col(position).cast("long")
        wrong = F.count_if(number.isNull() | (number < 0))
        by_topic = "topic" in self.frame.columns
        grouped = self.frame.groupBy("topic") if by_topic else self.frame.groupBy()
        found = grouped.agg(F.min(number).alias("first"), F.max(number).alias("last"), wrong.alias("wrong")).collect()
        if any(row["wrong"] for row in found):
            raise ValueError(f"column {position} has values that are no positions: null, or below 0")
        rows = [(row["topic"] if by_topic else None, row["first"], row["last"]) for row in found if row["first"] is not None]
        return sorted(rows, key=lambda row: row[0] or "")

    def _committed(self, producer: str) -> int | None:
        """The highest position that was committed under this name. Raises CommitGone: to a topic that was made anew since."""
        group = self.sink.get("group", GROUP)
        try:
            known = self.connection.client().group_producer(group, producer)
        except GroupProducerNotFound:
            return None
        for each in known.topics:
            if each.current_generation not in (None, each.generation):
                raise target_made_anew(group, known, each)
        return known.sequence_id

    def _check_alone(self, producer: str, begin: int, *, but: int | None = None) -> None:
        """Whether the next position is still to be written; ``but``: where our own commit may end. Raises BackfillOvertaken."""
        reached = self._committed(producer)
        if reached is not None and reached >= begin and reached != but:
            raise BackfillOvertaken(
                f"another backfill publishes under the name {producer}: it has come to position {reached}, and this one, which "
                f"ends here, to {begin - 1}. When the other one has ended, this may be run again"
            )

    # --- rows without

    def whole(self) -> Backfilled:
        """All in one commit."""
        if self._committed(self.name) is not None:
            return self._done(Progress(), True)
        done = Progress(0, 1, _write(self.frame, {**self.sink, "producer": self.name, "sequenceId": "0"}))
        self.on_progress({self.name: done})
        return self._done(done, False)

    def files(self, spark: SparkSession, path: str, checkpoint: str | None, max_files: int) -> Backfilled:
        """As a stream, some files in each commit."""
        if checkpoint is None:
            raise ValueError("files whose rows have no positions need a checkpoint")
        self._committed(self.name)  # where the checkpoint knows all files, nothing else would ask
        files = spark.readStream.schema(self.frame.schema).option("maxFilesPerTrigger", max_files).parquet(path)
        sent = {**self.sink, "producer": self.name, "checkpointLocation": checkpoint}
        query = files.writeStream.format("oncelog").options(**sent)
        done = follow({self.name: started(query.trigger(availableNow=True).start)}, self.on_progress)[self.name]
        # Its first batch was not number 0, or it had none.
        return self._done(done, done.batch is None or done.batch >= done.batches)

    def _done(self, done: Progress, resumed: bool) -> Backfilled:
        return Backfilled(self.name, done.rows, done.batches, resumed, self.keep)


def _sent(part: DataFrame, sink: Mapping[str, str]) -> DataFrame:
    """Only the columns that are written: what else an archive has would be sorted and sent to Python for nothing."""
    names = ["key", "value", "headers"] + ["topic"] * ("topic" not in sink) + [*_KEPT] * (sink["keepProducers"] == "true")
    there = [name for name in names if name in part.columns]
    return part.select(*there) if "value" in there else part  # else the sink says what there is


def _write(part: DataFrame, sink: Mapping[str, str]) -> int:
    """One commit; how many rows it had. Counted while they are written: they are read once."""
    counted = Observation()
    part.observe(counted, F.count(F.lit(1)).alias("rows")).write.format("oncelog").options(**sink).mode("append").save()
    return int(counted.get["rows"])


# --- names


def _name(source: str | DataFrame, namespace: str, topic: str | None) -> str:
    """The same for the same files and target, wherever this is called from."""
    if not isinstance(source, str):
        raise ValueError("the backfill of a DataFrame needs a name: it says, when it is called again, what was written before")
    where = source if "://" in source else str(Path(source).resolve())
    drawn = hashlib.sha256("\n".join([where, namespace, topic or ""]).encode()).hexdigest()[:16]
    return f"backfill-{drawn}"


def _plain(topic: str) -> str:
    """A topic's name in what may be a producer's."""
    return topic if re.fullmatch(r"[A-Za-z0-9_.:@=-]{1,150}", topic) else hashlib.sha256(topic.encode()).hexdigest()[:32]
