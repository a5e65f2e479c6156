"""The readers of the source without Spark: called as Spark calls them, against a real service.

What is pure of them is proved elsewhere: where batches begin and end in test_offsets, what a task reads in test_task.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from oncelog import Consumer
from oncelog.errors import ConnectionFailed, DataLost, TopicNotFound
from oncelog.spark.reading.read_options import ReadOptions
from oncelog.spark.reading.source import BatchReader, PushdownReader, StreamReader
from oncelog.wire.requests import PublishRequest
from tests.patience import until
from tests.spark.topics import Topics
from tests.world.clock import ManualClock
from tests.world.service import RunningService, running_service

Json = dict[str, Any]
Place = tuple[str, int]


class Log(Topics):
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


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 3), ('{"%s": 2}', 2), ('{"%s": -2}', 0)])
def test_a_stream_is_pinned_by_its_first_batch_which_is_empty_wherever_it_is_killed(log: Log, start: str, first: int) -> None:
    options = log.options(startingOffsets=start.replace("%s", log.topic))
    query = Query(options)
    log.publish(3)
    assert query.step() == [], "what latest means is known when the first batch is planned"
    log.publish(4)
    again = query.restarted(options)  # what Spark does: the first offset is asked for anew, the logged end is kept
    assert again.replay(0) == []
    assert again.steps() == [[(log.topic, offset) for offset in range(first, 7)]]
    assert again.restarted(options).replay(1) == [(log.topic, offset) for offset in range(first, 7)]
    end = again.offsets[-1]
    assert again.reader.partitions(end, end) == [], "nothing is read twice where Spark asks for a batch of nothing"


def test_a_stream_may_begin_at_a_time_and_not_at_one_to_come_unless_told_so(log: Log) -> None:
    """It would begin behind the newest message, and read what is published before that time."""
    log.publish(3)
    time.sleep(0.005)
    now = int(time.time() * 1000)
    time.sleep(0.002)
    log.publish(2)
    query = Query(log.options(startingTimestamp=str(now)))
    assert query.steps() == [[], [(log.topic, 3), (log.topic, 4)]]
    later = json.dumps({log.topic: now + 3_600_000})
    with pytest.raises(ValueError, match=r"no message of topic .* startingOffsetsByTimestampStrategy=latest"):
        Query(log.options(startingOffsetsByTimestamp=later)).step()
    query = Query(log.options(startingOffsetsByTimestamp=later, startingOffsetsByTimestampStrategy="latest"))
    query.step()
    log.publish(1)
    assert query.steps() == [[(log.topic, 5)]]


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


@pytest.mark.parametrize(
    ("options", "limit", "most", "first"),
    [
        ({}, ReadAllAvailable(), 10, {10}),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5), 5, {5}),
        ({"maxBytesPerTrigger": "2500"}, ReadMaxBytes(2500), 8, {1, 2, 3}),
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes(1), 1, {1}),
        ({"maxBytesPerTrigger": "2500", "maxOffsetsPerTrigger": "4"}, ReadMaxRows(4), 4, {1, 2, 3}),
    ],
)
def test_a_batch_keeps_all_limits_and_moves_on(
    log: Log, options: dict[str, str], limit: ReadLimit, most: int, first: set[int]
) -> None:
    log.publish(4, value=b"x" * 1_000)
    log.publish(6, value=b"x")
    query = Query(log.options(startingOffsets="earliest", **options))
    assert query.reader.getDefaultReadLimit() == limit
    sizes = [len(batch) for batch in query.steps()]
    assert (sizes[0], sum(sizes), max(sizes) <= most, sizes[1] in first) == (0, 10, True, True), sizes
    log.publish(7)
    assert len(query.step(ReadAllAvailable()) or ()) == 7


def test_available_now_ends_at_what_there_was_when_it_began_and_waits_for_nothing(log: Log) -> None:
    log.publish(5)
    query = Query(log.options(startingOffsets="earliest", maxOffsetsPerTrigger="3", pollWaitMs="20000"))
    query.reader.prepareForTriggerAvailableNow()
    began = time.monotonic()
    assert [len(batch) for batch in query.steps()] == [0, 3, 2]
    log.publish(5)
    assert query.step() is None
    assert time.monotonic() - began < 15
    again = query.restarted(log.options(startingOffsets="earliest"))
    again.reader.prepareForTriggerAvailableNow()
    assert [len(batch) for batch in again.steps()] == [5]


def test_an_idle_stream_asks_once_and_waits_at_the_service_until_something_comes(log: Log) -> None:
    query = Query(log.options(pollWaitMs="400"))
    query.step()
    began = time.monotonic()
    assert query.step() is None
    assert time.monotonic() - began > 0.35
    patient = query.restarted(log.options(pollWaitMs="20000"))
    timer = threading.Timer(0.2, log.publish, [1])
    timer.start()
    assert patient.step() == [(log.topic, 0)]
    assert time.monotonic() - began < 15
    timer.join()


def test_the_lag_is_known_without_asking(log: Log) -> None:
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


@pytest.mark.parametrize(("commits", "then"), [(True, range(2, 7)), (False, range(5, 7))])
def test_an_undecided_transaction_ends_the_batch_and_then_it_is_there_or_not(log: Log, commits: bool, then: range) -> None:
    query = Query(log.options(startingOffsets="earliest"))
    log.publish(2)
    pointer = log.client.start_transaction().write_pointer
    log.client.publish_transactional(log.topic, PublishRequest([b"tx"] * 3, write_pointer=pointer))
    log.publish(2)
    assert query.steps() == [[], [(log.topic, 0), (log.topic, 1)]]
    (log.client.commit_transaction if commits else log.client.abort_transaction)(pointer)
    assert list(chain(*until(query.steps))) == [(log.topic, offset) for offset in then]


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
    with pytest.raises(TopicNotFound, match="nowhere"):
        Query(log.options(subscribe="nowhere")).step()
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


def test_a_stream_goes_on_where_it_cannot_show_where_it_stands(caplog: pytest.LogCaptureFixture) -> None:
    with running_service(max_subscriptions_per_topic=1) as service:
        log = Log(service.url)
        log.publish(1)
        Consumer(log.topic, "other", client=log.client).close()
        query = Query(log.options(startingOffsets="earliest", subscription="spark-job"))
        assert query.steps() == [[], [(log.topic, 0)]]
        assert "is not moved" in caplog.text
        log.client.close()


# --- what is lost


@pytest.mark.filterwarnings("ignore:oncelog source")
def test_a_topic_that_is_gone_ends_the_query_unless_told_otherwise(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    other = log.other()
    log.publish(3)
    log.publish(1, other)
    both = {"subscribe": f"{log.topic},{other}", "startingOffsets": "earliest"}
    query = Query(log.options(**both))
    query.steps()
    log.publish(1, other)
    log.client.delete_topic(log.topic)
    for each in (query, query.restarted(log.options(**both))):
        with pytest.raises(DataLost, match=f"topic {log.topic} was deleted: .*offset 3 .*failOnDataLoss"):
            each.step()
    lenient = query.restarted(log.options(**both, failOnDataLoss="false"))
    caplog.clear()
    assert lenient.steps() == [[(other, 1)]]
    log.publish(1, other)
    assert lenient.steps() == [[(other, 2)]]
    assert caplog.text.count(f"topic {log.topic} was deleted") == 1, "and not again with each micro-batch"
    at_once = lenient.restarted(log.options(**both, failOnDataLoss="false"))
    log.publish(1, other)
    at_once.reader.prepareForTriggerAvailableNow()
    assert at_once.steps() == [[(other, 3)]]


def test_what_expired_before_it_was_read_is_a_loss(clock: ManualClock) -> None:
    with running_service(clock=clock) as service:
        log = Log(service.url)
        log.client.update_topic(log.topic, {"ttl": "3600"})
        log.publish(3)
        at_once = {"pollWaitMs": "0"}  # the service's time stands still
        query = Query(log.options(startingOffsets="earliest", maxOffsetsPerTrigger="1", **at_once))
        assert [query.step(), query.step()] == [[], [(log.topic, 0)]]
        clock.advance(3_600_001)
        log.publish(2)
        batch = {"startingOffsets": json.dumps({log.topic: 1}), **at_once}
        for plan in (query.step, BatchReader(log.options(**batch)).partitions):
            with pytest.raises(DataLost, match="offset 1 to 2 are not there any more") as lost:
                plan()
            assert (lost.value.topic, lost.value.first, lost.value.earliest) == (log.topic, 1, 3)
        left = [(log.topic, 3), (log.topic, 4)]
        with pytest.warns(UserWarning, match="offset 1 to 2 are not there any more"):
            assert query.restarted(log.options(failOnDataLoss="false", **at_once)).steps() == [left]
        with pytest.warns(UserWarning, match="offset 1 to 2") as said:
            assert read_batch(log.options(failOnDataLoss="false", **batch)) == left
        assert len(said) == 1, "by the driver, and not again by a task"
        assert read_batch(log.options()) == left, "the oldest, whichever that is"
        log.client.close()


# --- batches


def read_batch(options: ReadOptions) -> list[Place]:
    reader = BatchReader(options)
    partitions = reader.partitions()
    assert type(partitions) is list, "Spark takes nothing else"
    return places(rows_of(reader, partitions))


def test_a_batch_is_what_there_is_when_it_is_planned_in_as_many_partitions_as_asked_for(log: Log) -> None:
    other = log.other()
    log.publish(10)
    log.publish(5, other)
    reader = BatchReader(log.options(subscribe=f"{log.topic},{other}", minPartitions="4"))
    assert len(reader.partitions()) == 4
    log.publish(2)
    wanted = [(topic, offset) for topic, count in sorted({log.topic: 10, other: 5}.items()) for offset in range(count)]
    assert places(rows_of(reader, reader.partitions())) == wanted
    assert list(reader.read(InputPartition(None))) == [], "what Spark makes of no partitions"


def test_a_batch_may_begin_and_end_at_offsets_and_times_that_there_are(log: Log) -> None:
    log.publish(3)
    time.sleep(0.005)
    middle = int(time.time() * 1000)
    time.sleep(0.002)
    log.publish(3)
    later = middle + 3_600_000

    def offsets(**given: str) -> list[int]:
        options = {name: text.replace("%s", f'"{log.topic}"') for name, text in given.items()}
        return [offset for _, offset in read_batch(log.options(**options))]

    for given, found in (
        ({"startingOffsets": "{%s: 1}", "endingOffsets": '{%s: {"0": 4}}'}, [1, 2, 3]),
        ({"startingTimestamp": str(middle)}, [3, 4, 5]),
        ({"endingTimestamp": str(middle)}, [0, 1, 2]),
        ({"startingOffsets": "{%s: -2}", "endingOffsets": "{%s: -1}"}, [0, 1, 2, 3, 4, 5]),
        ({"startingOffsets": "{%s: 4}", "endingOffsets": "{%s: 4}"}, []),
        ({"startingOffsets": "{%s: 6}"}, []),
        ({"startingOffsetsByTimestamp": f"{{%s: {middle}}}"}, [3, 4, 5]),
        ({"endingOffsetsByTimestamp": f'{{%s: {{"0": {middle}}}}}'}, [0, 1, 2]),
        ({"startingTimestamp": str(later)}, []),
    ):
        assert offsets(**given) == found, given
    for given, problem in (
        ({"startingTimestamp": str(later), "startingOffsetsByTimestampStrategy": "error"}, "no message of topic .* was publ"),
        ({"startingOffsets": "{%s: 7}"}, "startingOffsets: 7 of topic .* up to 6"),
        ({"endingOffsets": "{%s: 7}"}, "endingOffsets: 7 of topic .* up to 6"),
        ({"startingOffsets": "{%s: 4}", "endingOffsets": "{%s: 2}"}, "startingOffsets: 4 .* is behind its endingOffsets, 2"),
    ):
        with pytest.raises(ValueError, match=problem):
            offsets(**given)
    with pytest.warns(UserWarning, match="endingOffsets: 7"):
        assert offsets(startingOffsets="{%s: 4}", endingOffsets="{%s: 7}", failOnDataLoss="false") == [4, 5]


def test_filters_shrink_what_is_read(log: Log) -> None:
    other = log.other()
    log.publish(100)
    log.publish(100, other)
    its, window = EqualTo(("topic",), other), [GreaterThanOrEqual(("offset",), 10), LessThan(("offset",), 30)]
    key, nowhere = EqualTo(("key",), b"k"), EqualTo(("topic",), "elsewhere")
    for filters, left, found in (
        ([its, *window, key], [key], [(other, 10, 30, 1, False)]),
        ([its, window[1]], [], [(other, 0, 30, 1, True)]),  # only this one begins with the oldest message, whichever that is
        ([its, nowhere], [], []),
    ):
        reader = PushdownReader(log.options(subscribe=f"{log.topic},{other}"))
        assert reader.pushFilters(filters) == left
        assert [partition.value for partition in reader.partitions()] == found


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


def test_a_reader_is_pickled_without_a_client_and_shows_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELOG_TOKEN", "s3cret")
    with running_service(token="s3cret") as service:
        log = Log(service.url)
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
        log.client.close()
