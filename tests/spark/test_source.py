"""The readers of the source without Spark: called as Spark calls them, against a real service."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from oncelog.client import Client
from oncelog.errors import ConnectionFailed, DataLost, TopicNotFound
from oncelog.spark.reading.read_options import ReadOptions
from oncelog.spark.reading.source import BatchReader, PushdownReader, StreamReader
from oncelog.spark.reading.task import ahead
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE, until
from tests.support import ManualClock, RunningService, running_service

Json = dict[str, Any]
Place = tuple[str, int]


class Log:
    """Topics of one test."""

    def __init__(self, url: str) -> None:
        self.client = Client(url)
        self.url = url
        self.topic = f"t-{uuid4().hex[:8]}"
        self.client.create_topic(self.topic)

    def publish(self, count: int, topic: str | None = None, value: bytes = b"v", **more: Any) -> None:
        self.client.publish(topic or self.topic, PublishRequest([value] * count, **more))

    def other(self) -> str:
        name = f"u-{uuid4().hex[:8]}"
        self.client.create_topic(name)
        return name

    def options(self, **given: str) -> ReadOptions:
        base = {"url": self.url, "subscribe": self.topic, "pollWaitMs": "50", "retryTimeoutMs": "3000"}
        return ReadOptions.parse({name: value for name, value in {**base, **given}.items() if value})


@pytest.fixture
def log(service: RunningService) -> Iterator[Log]:
    made = Log(service.url)
    yield made
    made.client.close()


def through_spark(offset: Json) -> Json:
    """As Spark logs it and hands it back."""
    read: Json = json.loads(json.dumps(offset))
    return read


def rows_of(reader: Any, partitions: list[InputPartition]) -> list[dict[str, Any]]:
    """What executors read, each with a reader and a partition of its own."""
    rows = []
    for partition in partitions:
        there, wanted = pickle.loads(pickle.dumps((reader, partition)))
        for batch in there.read(wanted):
            assert isinstance(batch, pa.RecordBatch)
            rows += batch.to_pylist()
    return rows


def places(rows: list[dict[str, Any]]) -> list[Place]:
    return [(row["topic"], row["offset"]) for row in rows]


class Query:
    """A streaming query as Spark drives it, with what stands in its checkpoint."""

    def __init__(self, options: ReadOptions) -> None:
        self.reader = StreamReader(options)
        self.offsets = [through_spark(self.reader.initialOffset())]

    def restarted(self, options: ReadOptions) -> Query:
        after = Query(options)
        after.offsets += self.offsets[1:]
        return after

    def step(self, limit: ReadLimit | None = None) -> list[Place] | None:
        """One micro-batch; None where there was nothing to do."""
        end = through_spark(self.reader.latestOffset(self.offsets[-1], limit or self.reader.getDefaultReadLimit()))
        if end == self.offsets[-1]:
            return None
        self.offsets.append(end)
        return self.replay(len(self.offsets) - 2)

    def replay(self, batch: int) -> list[Place]:
        return places(self.rows(batch))

    def rows(self, batch: int) -> list[dict[str, Any]]:
        return rows_of(self.reader, self.reader.partitions(*self.offsets[batch : batch + 2]))

    def steps(self) -> list[list[Place]]:
        """Batches until there is nothing to do."""
        return list(iter(self.step, None))


# --- streams


def test_the_first_batch_is_empty_and_pins_where_the_stream_begins(log: Log) -> None:
    log.publish(3)
    query = Query(log.options())
    log.publish(2)
    assert query.step() == [], "latest is what it is when the first batch is planned"
    log.publish(2)
    assert query.steps() == [[(log.topic, 5), (log.topic, 6)]]


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 3), ('{"%s": 2}', 2), ('{"%s": -2}', 0)])
def test_a_stream_killed_in_its_first_batches_goes_on_where_it_was_pinned(log: Log, start: str, first: int) -> None:
    log.publish(3)
    options = log.options(startingOffsets=start.replace("%s", log.topic))
    query = Query(options)
    query.step()
    log.publish(4)
    again = query.restarted(options)  # what Spark does: the first offset is asked for anew, the logged end is kept
    assert again.replay(0) == []
    assert again.steps() == [[(log.topic, offset) for offset in range(first, 7)]]
    assert again.restarted(options).replay(1) == [(log.topic, offset) for offset in range(first, 7)]


def test_a_stream_may_begin_at_a_time(log: Log) -> None:
    log.publish(3)
    time.sleep(0.005)
    now = int(time.time() * 1000)
    time.sleep(0.002)
    log.publish(2)
    query = Query(log.options(startingTimestamp=str(now)))
    assert query.steps() == [[], [(log.topic, 3), (log.topic, 4)]]


def test_a_replayed_batch_holds_the_same_messages_whatever_came_and_whatever_the_options_say_now(log: Log) -> None:
    log.publish(5)
    query = Query(log.options(startingOffsets="earliest", maxOffsetsPerTrigger="2"))
    batches = query.steps()
    assert [len(batch) for batch in batches] == [0, 2, 2, 1]
    first = query.rows(1)
    log.publish(7)
    changed = query.restarted(log.options(subscribe=log.other(), minPartitions="2"))
    assert [changed.replay(batch) for batch in range(4)] == batches
    assert changed.rows(1) == first


def test_a_limit_is_shared_by_topics_and_a_batch_of_all_available_ignores_it(log: Log) -> None:
    other = log.other()
    log.publish(90)
    log.publish(10, other)
    query = Query(log.options(subscribe=f"{log.topic},{other}", startingOffsets="earliest", maxOffsetsPerTrigger="20"))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    query.step()
    batch = query.step()
    assert batch is not None
    assert [topic for topic, _ in batch].count(log.topic) == 18
    assert [topic for topic, _ in batch].count(other) == 2
    assert len(query.step(ReadAllAvailable()) or ()) == 80


def test_a_batch_may_be_limited_by_bytes_and_moves_on_by_one_message_at_least(log: Log) -> None:
    log.publish(10, value=b"x" * 1_000)
    query = Query(log.options(startingOffsets="earliest", maxBytesPerTrigger="3500"))
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(3500)
    sizes = [len(batch) for batch in query.steps()]
    assert sum(sizes) == 10
    assert 4 <= len(sizes) <= 6
    tiny = Query(log.options(startingOffsets="earliest", maxBytesPerTrigger="1"))
    assert [len(batch) for batch in tiny.steps()] == [0] + [1] * 10


def test_where_both_limits_are_given_both_hold(log: Log) -> None:
    log.publish(4, value=b"x" * 1_000)
    log.publish(6, value=b"x")
    query = Query(log.options(startingOffsets="earliest", maxBytesPerTrigger="2500", maxOffsetsPerTrigger="4"))
    sizes = [len(batch) for batch in query.steps()]
    assert sum(sizes) == 10
    assert max(sizes) == 4
    assert 0 < sizes[1] < 4


def test_available_now_ends_at_what_there_was_when_it_began(log: Log) -> None:
    log.publish(5)
    query = Query(log.options(startingOffsets="earliest", maxOffsetsPerTrigger="3", pollWaitMs="20000"))
    query.reader.prepareForTriggerAvailableNow()
    log.publish(5)
    began = time.monotonic()
    assert [len(batch) for batch in query.steps()] == [0, 3, 2]
    log.publish(5)
    assert query.step() is None
    assert time.monotonic() - began < 15, "nothing is waited for"
    again = query.restarted(log.options(startingOffsets="earliest"))
    again.reader.prepareForTriggerAvailableNow()
    assert [len(batch) for batch in again.steps()] == [10]


def test_an_idle_stream_asks_once_and_waits_at_the_service(log: Log) -> None:
    query = Query(log.options(pollWaitMs="400"))
    query.step()
    began = time.monotonic()
    assert query.step() is None
    assert time.monotonic() - began > 0.35


def test_a_new_message_ends_the_wait(log: Log) -> None:
    query = Query(log.options(pollWaitMs="20000"))
    query.step()
    timer = threading.Timer(0.2, log.publish, [1])
    timer.start()
    began = time.monotonic()
    assert query.step() == [(log.topic, 0)]
    assert time.monotonic() - began < 15
    timer.join()


def test_the_lag_is_told_without_asking(log: Log) -> None:
    with running_service() as short:
        there = Log(short.url)
        query = Query(there.options(startingOffsets="earliest", maxOffsetsPerTrigger="2", retryTimeoutMs="100"))
        assert query.reader.reportLatestOffset() is None
        there.publish(5)
        query.step()
        query.step()
        there.client.close()
    assert query.offsets[-1]["topics"][there.topic]["pos"] == 2
    latest = query.reader.reportLatestOffset()
    assert latest is not None
    assert latest["topics"][there.topic]["pos"] == 5
    assert [latest[f"{which}OffsetsBehindLatest"] for which in ("avg", "max", "min")] == [3, 3, 3]
    with pytest.raises(ConnectionFailed):
        query.step()


def test_an_undecided_transaction_ends_the_batch_and_nothing_appears_before_its_end_later(log: Log) -> None:
    query = Query(log.options(startingOffsets="earliest"))
    log.publish(2)
    transaction = log.client.start_transaction()
    log.client.publish_transactional(log.topic, PublishRequest([b"tx"] * 3, write_pointer=transaction.write_pointer))
    log.publish(2)
    assert query.steps() == [[], [(log.topic, 0), (log.topic, 1)]]
    log.client.commit_transaction(transaction.write_pointer)
    assert list(chain(*until(query.steps))) == [(log.topic, offset) for offset in range(2, 7)]


def test_what_is_rolled_back_is_in_no_batch(log: Log) -> None:
    query = Query(log.options(startingOffsets="earliest"))
    transaction = log.client.start_transaction()
    log.client.publish_transactional(log.topic, PublishRequest([b"tx"] * 3, write_pointer=transaction.write_pointer))
    log.publish(2)
    assert query.steps() == [[]]
    log.client.abort_transaction(transaction.write_pointer)
    assert until(query.steps) == [[(log.topic, 3), (log.topic, 4)]]


def test_a_topic_subscribed_to_later_is_read_from_its_oldest_message(log: Log) -> None:
    other = log.other()
    log.publish(1)
    log.publish(2, other)
    query = Query(log.options())
    query.step()
    more = query.restarted(log.options(subscribe=f"{other},{log.topic}"))
    log.publish(1)
    assert sorted(chain(*more.steps())) == [(log.topic, 1), (other, 0), (other, 1)]
    fewer = more.restarted(log.options())
    log.publish(1, other)
    log.publish(1)
    assert fewer.steps() == [[(log.topic, 2)]]
    assert fewer.restarted(log.options(subscribe=f"{other},{log.topic}")).steps() == [[(other, 2)]]


def test_a_topic_that_is_not_there_is_named(log: Log) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"):
        Query(log.options(subscribe="nowhere")).step()


def test_a_stream_that_would_begin_at_a_time_to_come_is_refused_unless_told_otherwise(log: Log) -> None:
    """It would begin behind the newest message, and read what is published before that time."""
    log.publish(1)
    later = json.dumps({log.topic: int(time.time() * 1000) + 3_600_000})
    with pytest.raises(ValueError, match=r"no message of topic .* startingOffsetsByTimestampStrategy=latest"):
        Query(log.options(startingOffsetsByTimestamp=later)).step()
    query = Query(log.options(startingOffsetsByTimestamp=later, startingOffsetsByTimestampStrategy="latest"))
    query.step()
    log.publish(1)
    assert query.steps() == [[(log.topic, 1)]]


def test_a_pattern_names_topics_also_those_that_come_later(log: Log) -> None:
    log.publish(1)
    query = Query(log.options(subscribe="", subscribePattern=f"{log.topic}|{log.topic}-.*", startingOffsets="earliest"))
    assert query.steps() == [[], [(log.topic, 0)]]
    log.client.create_topic(f"{log.topic}-more")
    log.publish(2, f"{log.topic}-more")
    log.client.create_topic(f"other-{log.topic}")
    assert query.steps() == [[(f"{log.topic}-more", 0), (f"{log.topic}-more", 1)]]
    log.client.delete_topic(log.topic)
    with pytest.raises(DataLost, match=f"topic {log.topic} was deleted"):
        query.step()
    batch = log.options(subscribe="", subscribePattern=f"{log.topic}-.*")
    assert read_batch(batch) == [(f"{log.topic}-more", 0), (f"{log.topic}-more", 1)]


def test_where_a_stream_stands_is_shown_on_the_service(log: Log) -> None:
    log.publish(5)
    options = log.options(startingOffsets="earliest", maxOffsetsPerTrigger="2", subscription="spark-job")
    query = Query(options)
    cursors = []
    while query.step() is not None:
        cursors += [(each.name, each.cursor, each.lag) for each in log.client.subscriptions(log.topic)]
    assert cursors == [("spark-job", 0, 5), ("spark-job", 2, 3), ("spark-job", 4, 1)]
    [done] = log.client.subscriptions(log.topic)
    assert (done.cursor, done.lag) == (5, 0)
    wound_back = query.restarted(options)
    del wound_back.offsets[3:]
    wound_back.step()
    assert log.client.subscription(log.topic, "spark-job").cursor == 2
    log.publish(1)
    query.steps()  # the one that is fenced goes on, and shows no more
    assert query.offsets[-1]["topics"][log.topic]["pos"] == 6
    assert log.client.subscription(log.topic, "spark-job").cursor == 2


def test_a_stream_goes_on_where_it_cannot_show_where_it_stands(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.publish(1)
    query = Query(log.options(startingOffsets="earliest", subscription=".."))
    assert query.steps() == [[], [(log.topic, 0)]]
    assert "is not moved" in caplog.text


# --- what is lost


@pytest.mark.filterwarnings("ignore:oncelog source")
def test_a_topic_that_is_gone_ends_the_query_unless_told_otherwise(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    other = log.other()
    log.publish(3)
    log.publish(1, other)
    both = {"subscribe": f"{log.topic},{other}", "startingOffsets": "earliest"}
    query = Query(log.options(**both))
    query.steps()
    log.publish(2)
    log.publish(1, other)
    end = through_spark(query.reader.latestOffset(query.offsets[-1], ReadAllAvailable()))
    partitions = query.reader.partitions(query.offsets[-1], end)
    log.client.delete_topic(log.topic)
    for read in (query.step, query.restarted(log.options(**both)).step, lambda: rows_of(query.reader, partitions)):
        with pytest.raises(DataLost, match=f"topic {log.topic} was deleted: .*offset 3 .*failOnDataLoss"):
            read()
    lenient = query.restarted(log.options(**both, failOnDataLoss="false"))
    caplog.clear()
    assert places(rows_of(lenient.reader, partitions)) == [(other, 1)]
    assert lenient.steps() == [[(other, 1)]]
    log.publish(1, other)
    assert lenient.steps() == [[(other, 2)]]
    said = f"topic {log.topic} was deleted"
    assert caplog.text.count(said) == 2, "once by the task, once by the driver, and not again with each micro-batch"
    at_once = lenient.restarted(log.options(**both, failOnDataLoss="false"))
    log.publish(1, other)
    at_once.reader.prepareForTriggerAvailableNow()
    assert at_once.steps() == [[(other, 3)]]


class Expiring(Log):
    """A topic whose messages live for an hour, and a clock."""

    def __init__(self, service: RunningService, clock: ManualClock) -> None:
        super().__init__(service.url)
        self.client.update_topic(self.topic, {"ttl": "3600"})
        self.clock = clock

    def options(self, **given: str) -> ReadOptions:
        return super().options(**{"pollWaitMs": "0", **given})  # its time stands still

    def expire(self) -> None:
        self.clock.advance(3_600_001)


@pytest.fixture
def expiring(clock: ManualClock) -> Iterator[Expiring]:
    with running_service(clock=clock) as service:
        log = Expiring(service, clock)
        yield log
        log.client.close()


def test_messages_that_expired_before_they_were_read_are_a_loss(expiring: Expiring) -> None:
    log = expiring
    log.publish(3)
    query = Query(log.options(startingOffsets="earliest", maxOffsetsPerTrigger="1"))
    assert query.step() == []
    assert query.step() == [(log.topic, 0)]
    log.expire()
    log.publish(2)
    with pytest.raises(DataLost, match="offset 1 to 2 are not there any more") as lost:
        query.step()
    assert (lost.value.topic, lost.value.first, lost.value.earliest) == (log.topic, 1, 3)
    lenient = query.restarted(log.options(failOnDataLoss="false"))
    with pytest.warns(UserWarning, match="offset 1 to 2 are not there any more"):
        assert lenient.steps() == [[(log.topic, 3), (log.topic, 4)]]


def test_messages_that_expired_between_planning_and_reading_are_a_loss_too(expiring: Expiring) -> None:
    log = expiring
    log.publish(2)
    query = Query(log.options())
    query.step()
    log.publish(3)
    end = query.reader.latestOffset(query.offsets[-1], ReadAllAvailable())
    log.expire()
    [partition] = query.reader.partitions(query.offsets[-1], end)
    with pytest.raises(DataLost, match="offset 2 to 4"):
        rows_of(query.reader, [partition])
    lenient = StreamReader(log.options(failOnDataLoss="false"))
    with pytest.warns(UserWarning, match="offset 2 to 4"):
        assert rows_of(lenient, [partition]) == []


def test_what_expires_before_a_stream_from_the_oldest_message_read_anything_is_not_missed(expiring: Expiring) -> None:
    log = expiring
    log.publish(3)
    query = Query(log.options(startingOffsets="earliest"))
    query.step()
    log.expire()
    log.publish(2)
    end = query.reader.latestOffset(query.offsets[-1], ReadAllAvailable())
    query.offsets.append(through_spark(end))
    assert query.replay(1) == [(log.topic, 3), (log.topic, 4)]
    log.expire()
    assert query.replay(1) == []
    log.publish(1)
    assert query.steps() == [[(log.topic, 5)]]


# --- batches


def read_batch(options: ReadOptions) -> list[Place]:
    reader = BatchReader(options)
    partitions = reader.partitions()
    assert type(partitions) is list, "Spark takes nothing else"
    return places(rows_of(reader, partitions))


def test_a_batch_is_everything_there_is(log: Log) -> None:
    log.publish(5)
    assert read_batch(log.options()) == [(log.topic, offset) for offset in range(5)]


def test_a_batch_is_planned_once(log: Log) -> None:
    log.publish(2)
    reader = BatchReader(log.options())
    reader.partitions()
    log.publish(2)
    assert len(rows_of(reader, reader.partitions())) == 2


def test_a_batch_has_as_many_partitions_as_asked_for_and_the_same_rows(log: Log) -> None:
    other = log.other()
    log.publish(10)
    log.publish(5, other)
    reader = BatchReader(log.options(subscribe=f"{log.topic},{other}", minPartitions="4"))
    partitions = reader.partitions()
    assert len(partitions) == 4
    wanted = [(topic, offset) for topic, count in ((log.topic, 10), (other, 5)) for offset in range(count)]
    assert places(rows_of(reader, partitions)) == wanted


def test_a_batch_may_begin_and_end_at_offsets_and_times(log: Log) -> None:
    log.publish(3)
    time.sleep(0.005)
    middle = str(int(time.time() * 1000))
    time.sleep(0.002)
    log.publish(3)

    def offsets(**given: str) -> list[int]:
        return [
            offset
            for _, offset in read_batch(log.options(**{name: text.replace("%s", log.topic) for name, text in given.items()}))
        ]

    assert offsets(startingOffsets='{"%s": 1}', endingOffsets='{"%s": {"0": 4}}') == [1, 2, 3]
    assert offsets(startingTimestamp=middle) == [3, 4, 5]
    assert offsets(endingTimestamp=middle) == [0, 1, 2]
    assert offsets(startingOffsets='{"%s": -2}', endingOffsets='{"%s": -1}') == [0, 1, 2, 3, 4, 5]
    assert offsets(startingOffsets='{"%s": 4}', endingOffsets='{"%s": 4}') == []
    assert offsets(startingOffsetsByTimestamp=f'{{"%s": {middle}}}') == [3, 4, 5]
    assert offsets(endingOffsetsByTimestamp=f'{{"%s": {{"0": {middle}}}}}') == [0, 1, 2]
    later = str(int(middle) + 3_600_000)
    assert offsets(startingTimestamp=later) == []
    with pytest.raises(ValueError, match=r"no message of topic .* was published at"):
        offsets(startingTimestamp=later, startingOffsetsByTimestampStrategy="error")


def test_a_batch_beyond_the_end_is_refused_unless_told_otherwise(log: Log) -> None:
    log.publish(6)

    def offsets(**given: str) -> list[int]:
        places = read_batch(log.options(**{name: text.replace("%s", log.topic) for name, text in given.items()}))
        return [offset for _, offset in places]

    assert offsets(startingOffsets='{"%s": 6}') == []
    for edge in ("startingOffsets", "endingOffsets"):
        with pytest.raises(ValueError, match=f"{edge}: 7 of topic .* up to 6"):
            offsets(**{edge: '{"%s": 7}'})
    with pytest.raises(ValueError, match=r"startingOffsets: 4 .* is behind its endingOffsets, 2"):
        offsets(startingOffsets='{"%s": 4}', endingOffsets='{"%s": 2}')
    with pytest.warns(UserWarning, match="endingOffsets: 7"):
        assert offsets(startingOffsets='{"%s": 4}', endingOffsets='{"%s": 7}', failOnDataLoss="false") == [4, 5]


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t": -1}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"t": -2}'},
    ],
)
def test_a_batch_that_begins_at_the_end_or_ends_at_the_beginning_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        BatchReader(ReadOptions.parse({"topic": "t", **given}))


def test_a_batch_from_an_offset_that_is_gone_is_refused_unless_told_otherwise(expiring: Expiring) -> None:
    log = expiring
    log.publish(3)
    log.expire()
    log.publish(2)
    given = {"startingOffsets": json.dumps({log.topic: 1})}
    with pytest.raises(DataLost, match="offset 1 to 2"):
        BatchReader(log.options(**given)).partitions()
    with pytest.warns(UserWarning, match="offset 1 to 2"):
        assert read_batch(log.options(failOnDataLoss="false", **given)) == [(log.topic, 3), (log.topic, 4)]
    assert read_batch(log.options()) == [(log.topic, 3), (log.topic, 4)], "the oldest, whichever that is"


def test_filters_shrink_what_is_read(log: Log) -> None:
    other = log.other()
    log.publish(100)
    log.publish(100, other)
    reader = PushdownReader(log.options(subscribe=f"{log.topic},{other}"))
    filters = [
        EqualTo(("topic",), other),
        GreaterThanOrEqual(("offset",), 10),
        LessThan(("offset",), 30),
        EqualTo(("key",), b"k"),
    ]
    assert reader.pushFilters(filters) == filters[-1:]
    [partition] = reader.partitions()
    assert partition.value[:3] == (other, 10, 30)
    nothing = PushdownReader(log.options())
    nothing.pushFilters([EqualTo(("topic",), "elsewhere")])
    assert nothing.partitions() == []


def test_filters_on_the_time_are_exact(log: Log) -> None:
    for _ in range(4):
        log.publish(2)
        time.sleep(0.003)
    all_rows = rows_of(BatchReader(log.options()), BatchReader(log.options()).partitions())
    at = all_rows[4]["timestamp"]
    for kind, keeps in ((GreaterThanOrEqual, at.__le__), (LessThan, at.__gt__), (EqualTo, at.__eq__)):
        reader = PushdownReader(log.options())
        assert reader.pushFilters([kind(("timestamp",), at)]) == []
        rows = rows_of(reader, reader.partitions())
        assert rows == [row for row in all_rows if keeps(row["timestamp"])]
        assert 0 < len(rows) < 8


# --- rows, pages, and what is pickled


def test_every_column_is_what_was_published(log: Log) -> None:
    producer = log.client.open_producer(log.topic, "p")
    log.publish(
        2,
        producer="p",
        epoch=producer.epoch,
        sequence_ids=[7, 9],
        keys=[b"k", None],
        properties=[{"a": "ä"}, None],
    )
    [receipt] = log.client.publish(log.topic, PublishRequest([b"plain"]))
    reader = BatchReader(log.options(includeHeaders="true"))
    first, second, third = rows_of(reader, reader.partitions())
    assert first["timestampType"] == 1, "the log gives the time"
    assert (first["key"], first["value"], first["producer"], first["sequence_id"]) == (b"k", b"v", "p", 7)
    assert first["headers"] == [{"key": "a", "value": "ä".encode()}]
    assert (second["key"], second["headers"], second["sequence_id"]) == (None, None, 9)
    assert (third["value"], third["producer"], third["sequence_id"]) == (b"plain", None, None)
    assert third["message_id"] == receipt.message_id
    assert abs(third["timestamp"].timestamp() - time.time()) < 60


def test_a_range_of_many_pages_is_read_whole_and_in_order(log: Log) -> None:
    for _ in range(4):
        log.publish(5_000, value=b"x" * 1_000)
    assert read_batch(log.options()) == [(log.topic, offset) for offset in range(20_000)]


def test_no_partition_at_all_is_no_row() -> None:
    assert list(BatchReader(ReadOptions.parse({"topic": "t"})).read(InputPartition(None))) == []


def test_a_reader_is_pickled_without_a_client_and_shows_no_token(log: Log) -> None:
    log.publish(1)
    for reader in (BatchReader(log.options(token="s3cret")), PushdownReader(log.options(token="s3cret"))):
        partitions = reader.partitions()
        assert len(rows_of(reader, partitions)) == 1
        assert "s3cret" not in repr(partitions)
        assert b"s3cret" not in pickle.dumps(partitions)
        assert pickle.loads(pickle.dumps(reader)).partitions()[0].value == partitions[0].value
    query = Query(log.options(startingOffsets="earliest", token="s3cret"))
    query.steps()
    assert "s3cret" not in json.dumps([query.offsets, query.reader.reportLatestOffset()])


def test_one_item_is_made_ahead_and_not_more() -> None:
    made = []

    def items() -> Iterator[int]:
        for item in range(5):
            made.append(item)
            yield item

    reading = ahead(items())
    assert next(reading) == 0
    time.sleep(0.05)
    assert made == [0, 1]
    assert list(reading) == [1, 2, 3, 4]


def test_a_failure_comes_after_what_was_made_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise DataLost("gone")

    reading = ahead(items())
    assert next(reading) == 1
    with pytest.raises(DataLost):
        next(reading)


def test_who_has_enough_does_not_wait_for_what_is_under_way() -> None:
    held = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        held.wait(PATIENCE)
        yield 2

    reading = ahead(items())
    assert next(reading) == 1
    began = time.monotonic()
    reading.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < PATIENCE / 2
    held.set()
