"""The three readers of the source. Each holds options and nothing that cannot be pickled; a client is made where it is used."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from oncelog.errors import TopicNotFound
from oncelog.spark.options import logger, warn
from oncelog.spark.reading import offsets
from oncelog.spark.reading.columns import arrow_schema, check_schema, read_schema
from oncelog.spark.reading.offsets import EARLIEST, LATEST, AtOffsets, AtTime, AtTimes, Edge, Json, Positions, Range
from oncelog.spark.reading.pushdown import LEAST, MOST, Window, push
from oncelog.spark.reading.read_options import ReadOptions
from oncelog.spark.reading.standing import Standing
from oncelog.spark.reading.task import batches, report
from oncelog.wire.models import TopicAsked, TopicOffsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Known = Mapping[str, TopicOffsets]


class _Reading:
    """What batches and streams have in common."""

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        """``schema``: columns of the source; None: what the options say. Raises ValueError for other columns."""
        self._schema = read_schema(options.include_headers) if schema is None else schema
        check_schema(self._schema)
        self._options = replace(options, include_headers="headers" in self._schema.fieldNames())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in order."""
        if partition.value is None:  # what Spark makes of "no partitions"
            return iter(())
        return batches(self._options, partition.value, arrow_schema(self._schema))

    def _topics(self) -> tuple[str, ...]:
        """Those that are named, or those that there are now of a pattern."""
        pattern = self._options.pattern
        if pattern is None:
            return self._options.topics
        return tuple(topic for topic in self._existing() if re.fullmatch(pattern, topic))

    def _existing(self) -> list[str]:
        connection = self._options.connection
        return connection.client().topics(connection.namespace)

    def _ask(self, asked: Mapping[str, TopicAsked], wait: float = 0) -> dict[str, TopicOffsets]:
        connection = self._options.connection
        return connection.client().offsets(asked, connection.namespace, wait=wait) if asked else {}

    def _partitions(self, whole: Sequence[Range]) -> list[InputPartition]:
        return [InputPartition(part) for part in offsets.split(whole, self._options.min_partitions)]


class BatchReader(_Reading, DataSourceReader):
    """A range of each topic, from ``startingOffsets`` to ``endingOffsets``, as they are when the reader is planned."""

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        """Raises ValueError for a batch that would begin at the latest message or end at the earliest, and for ``schema``."""
        super().__init__(options, schema)
        options.check_batch()
        self._start: Edge = options.start or "earliest"
        if _names(self._start, "latest", LATEST):
            raise ValueError("option startingOffsets: a batch cannot begin at latest")
        if _names(options.end, "earliest", EARLIEST):
            raise ValueError("option endingOffsets: a batch cannot end at earliest")
        self._window = Window()
        """What the query's filters leave; of a reader that is given none, everything."""
        self._planned: list[Range] | None = None

    def partitions(self) -> list[InputPartition]:
        """One for each topic, or ``minPartitions``. Planned once: what comes later is not in this batch."""
        if self._planned is None:
            chosen = self._window.topics
            self._planned = self._plan([topic for topic in self._topics() if chosen is None or topic in chosen])
        return self._partitions(self._planned)

    def _plan(self, topics: Iterable[str]) -> list[Range]:
        """Raises DataLost, TopicNotFound, ValueError."""
        window = self._window
        known = self._ask({topic: _asked(self._start, topic) for topic in topics})
        at_end = self._ask({topic: _asked(self._options.end, topic) for topic in known}) if _is_time(self._options.end) else known
        since = self._at(known, window.since) if window.since > LEAST else {}
        before = self._at(known, window.before) if window.before < MOST else {}
        chosen = []
        for topic, of_topic in known.items():
            begin = self._first(topic, of_topic)
            first = max(begin, window.first, since.get(topic, 0))
            upto = min(self._upto(topic, at_end[topic]), of_topic.stable, window.upto, before.get(topic, MOST))
            is_oldest = first == begin and offsets.place(self._start, topic) == EARLIEST
            chosen.append(Range(topic, first, upto, of_topic.generation, is_oldest))
        return [one for one in chosen if one.first < one.upto]

    def _first(self, topic: str, known: TopicOffsets) -> int:
        at = offsets.place(self._start, topic)
        first = offsets.offset_of(at, known)
        if isinstance(at, AtTime) and first >= known.stable and self._options.time_strategy == "error":
            raise offsets.no_match(at, topic)
        first = self._within("startingOffsets", topic, first, known)
        loss = offsets.loss_at(topic, first, None, known)
        if loss is None:
            return first
        report([loss], self._options.fail_on_data_loss)
        return loss.earliest

    def _upto(self, topic: str, known: TopicOffsets) -> int:
        end = self._options.end
        upto = self._within("endingOffsets", topic, offsets.offset_of(offsets.place(end, topic), known), known)
        begin = offsets.place(self._start, topic)
        if isinstance(end, AtOffsets) and isinstance(begin, int) and begin > upto:
            raise ValueError(f"startingOffsets: {begin} of topic {topic} is behind its endingOffsets, {upto}")
        return upto

    def _within(self, option: str, topic: str, offset: int, known: TopicOffsets) -> int:
        """An offset that there is. Raises ValueError for one beyond the end, unless lost messages are no failure."""
        if offset <= known.stable or offset == known.earliest:
            return offset
        problem = f"{option}: {offset} of topic {topic}, whose messages go up to {known.stable} yet"
        if self._options.fail_on_data_loss:
            raise ValueError(problem)
        warn(f"oncelog source: {problem}; going on without those (failOnDataLoss is false)")
        return known.stable

    def _at(self, known: Known, time: int) -> dict[str, int]:
        """A time as offsets."""
        at = AtTime(max(0, time))
        answers = self._ask({topic: _asked(at, topic) for topic in known})
        return {topic: offsets.offset_of(at, one) for topic, one in answers.items()}


class PushdownReader(BatchReader):
    """A batch that reads only the offsets, times and topics that the query's filters ask for."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Those that Spark has to look at itself."""
        self._window, left = push(filters)
        return left


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches, each an immutable range of stable offsets: replayed, it holds the same messages."""

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        """Raises ValueError for ``schema``."""
        super().__init__(options, schema)
        self._edge: Edge = options.start or "latest"
        self._target: Known | None = None
        self._newest: Known | None = None
        self._end: Positions = {}
        self._behind: set[str] = set()
        self._gone: set[str] = set()
        self._standing = None if options.subscription is None else Standing(options.connection, options.subscription)

    def initialOffset(self) -> Json:  # noqa: N802  # Spark's name, as those that follow
        """Only a name: what it means is decided by the end of the first batch, which is empty and is in Spark's log."""
        return offsets.unresolved(self._edge)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options say. Where there are both limits, the other one is kept too."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on this stream sees nothing newer."""
        self._target = self._ask_those_there(dict.fromkeys(self._topics(), TopicAsked()))

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """The end of the next batch; ``start`` itself when there is nothing new after the wait of an idle stream.

        Raises:
            DataLost: what comes next is not there any more. TopicNotFound. ValueError: an offset of another version, or a
                beginning that is none.
        """
        positions = offsets.from_json(start)
        if positions is None:
            known = self._noted(self._ask({topic: _asked(self._edge, topic) for topic in self._topics()}), {})
            self._end = offsets.pinned(self._edge, known, or_latest=self._options.time_strategy == "latest")
            return offsets.to_json(self._end)
        if self._standing is not None:
            self._standing.tell(positions)
        known = self._news(positions)
        at, losses = offsets.begins(positions, known)
        report(losses, self._options.fail_on_data_loss)
        max_offsets, max_bytes = None, None
        if isinstance(limit, ReadMaxRows):
            max_offsets, max_bytes = limit.max_rows, self._options.max_bytes
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        if max_bytes is not None:
            known = self._weighed(at, known, max_bytes)
        moved = offsets.advanced(positions, at, known, max_offsets)
        self._end = positions if moved is None else moved
        return start if moved is None else offsets.to_json(moved)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Up to where messages are stable, and how far this stream is behind, as far as is known without asking."""
        if self._newest is None:
            return None
        stable = {topic: offsets.Position(one.stable, one.stable, one.generation) for topic, one in self._newest.items()}
        return {**offsets.to_json(stable), **offsets.behind(self._end, self._newest)}

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """What the batch holds; said by its end alone, whatever the options say today."""
        positions = offsets.from_json(end)
        # Where nothing is new, Spark may ask from an end to itself; the end says what the batch before held.
        return [] if start == end or positions is None else self._partitions(offsets.ranges(positions))

    def _news(self, positions: Positions) -> Known:
        topics = self._topics()
        if self._options.pattern is not None:
            self._note_what_is_gone(positions, topics)
        asked = {topic: TopicAsked(after=positions[topic].pos if topic in positions else None) for topic in topics}
        is_idle = self._target is None and all(topic in positions for topic in topics)
        return self._noted(self._ask_those_there(asked, self._options.poll_wait if is_idle else 0, positions), positions)

    def _noted(self, newest: Known, reached: Positions) -> Known:
        """An answer, for the progress; and what of it this stream is to see."""
        self._newest = newest
        # A service that was restarted may not know yet how transactions ended; one with an old copy of its data never will.
        both = [(topic, one, newest[topic]) for topic, one in reached.items() if topic in newest]
        behind = {topic for topic, one, now in both if now.generation == one.generation and now.stable < one.pos}
        for topic in sorted(behind - self._behind):
            stable, pos = newest[topic].stable, reached[topic].pos
            logger.warning("oncelog source: topic %s is stable up to %d, though %d was reached; waiting", topic, stable, pos)
        self._behind = behind
        return newest if self._target is None else offsets.capped(newest, self._target)

    def _ask_those_there(
        self, asked: Mapping[str, TopicAsked], wait: float = 0, reached: Positions | None = None
    ) -> dict[str, TopicOffsets]:
        """Without topics that were deleted since they were read, where that is no failure. Raises TopicNotFound, DataLost.

        ``reached``: what was read of each; None: not known yet, and asked again when it is.
        """
        try:
            return self._ask(asked, wait)
        except TopicNotFound:
            there = set(self._existing())
            gone = asked.keys() - there
            if not gone or (reached is not None and not gone <= reached.keys()):
                raise
        self._note_what_is_gone(reached or {}, asked.keys() - gone)
        rest = {topic: each for topic, each in asked.items() if topic in there}
        if not rest:
            time.sleep(wait)  # there is nothing that the service could wait for
        return self._ask(rest, wait)

    def _note_what_is_gone(self, reached: Positions, there: Collection[str]) -> None:
        """Raises DataLost, or warns once, for topics that are read and that are not among those ``there``."""
        pattern, named = self._options.pattern, self._options.topics
        missing = reached.keys() - set(there)
        gone = {topic for topic in missing if (topic in named if pattern is None else re.fullmatch(pattern, topic))}
        losses = [offsets.Loss(topic, reached[topic].pos, reached[topic].pos, gone=True) for topic in sorted(gone - self._gone)]
        report(losses, self._options.fail_on_data_loss)
        self._gone = gone

    def _weighed(self, at: Mapping[str, int], known: Known, max_bytes: int) -> Known:
        """How far the messages go that fit in: each topic with something new has the same part."""
        new = {topic: begin for topic, begin in at.items() if known[topic].stable > begin}
        if not new:
            return known
        part = max(1, max_bytes // len(new))
        answers = self._ask({topic: TopicAsked(after=begin, max_bytes=part) for topic, begin in new.items()})
        return offsets.fitting(at, known, answers)


def _names(edge: Edge, name: str, number: int) -> bool:
    return edge == name or (isinstance(edge, AtOffsets) and number in edge.offsets.values())


def _is_time(edge: Edge) -> bool:
    return isinstance(edge, AtTime | AtTimes)


def _asked(edge: Edge, topic: str) -> TopicAsked:
    at = offsets.place(edge, topic)
    return TopicAsked(timestamp=at.timestamp if isinstance(at, AtTime) else None)
