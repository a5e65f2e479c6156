"""The sink without Spark: its writers are called as Spark calls them, against the real service."""

from __future__ import annotations

import pickle
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from oncelog import Client, Message, Reader
from oncelog.errors import (
    BranchGone,
    ConnectionFailed,
    GroupProducerNotFound,
    InvalidRequest,
    OncelogError,
    ProducerFenced,
    RepeatDiffers,
    RequestTooLarge,
    SequenceReused,
    TopicNotFound,
    TransactionNotInProgress,
)
from oncelog.spark.writing import sink
from oncelog.spark.writing.refusals import explained
from oncelog.spark.writing.sink import BatchWriter, Staged, StreamWriter
from oncelog.spark.writing.write_options import WriteOptions
from tests.patience import until
from tests.support import RunningService, ServiceProcess, running_service

PLAIN = StructType().add("key", BinaryType()).add("value", BinaryType())
ROUTED = StructType().add("value", BinaryType()).add("topic", StringType())
NUMBERED = StructType().add("value", BinaryType()).add("producer", StringType()).add("sequence_id", LongType())


@pytest.fixture
def service(running: RunningService) -> RunningService:
    return running


@pytest.fixture
def topic(service: RunningService, request: pytest.FixtureRequest) -> str:
    name = request.node.name[:200].replace("[", "-").replace("]", "")
    with Client(service.url) as client:
        client.create_topic(name)
    return name


class Job:
    """A query or a batch as Spark runs it: a writer is made on the driver, pickled, and unpickled in every task attempt."""

    def __init__(self, url: str, query: str | None = "query-1", **options: str) -> None:
        sink._swept.clear()  # as in a new process
        self.query = query
        self.options = WriteOptions.parse({"url": url, "retryTimeoutMs": "3000", **options})
        self.schema = PLAIN

    def writer(self) -> Any:
        kind = StreamWriter if self.query is not None else BatchWriter
        return kind(self.options, self.schema, False)

    def task(self, writer: Any, batch: int, rows: Any, partition: int = 0, attempt: int = 0) -> Staged:
        """One attempt, in a process that has nothing but what was pickled."""
        arrived = pickle.loads(cloudpickle.dumps(writer))
        context = TaskContext()
        context._partitionId, context._attemptNumber = partition, attempt
        context._localProperties = {} if self.query is None else {
            "sql.streaming.queryId": self.query, "streaming.sql.batchId": str(batch)
        }  # fmt: skip
        TaskContext._setTaskContext(context)
        try:
            message: Staged = arrived.write(iter([rows] if isinstance(rows, pa.RecordBatch) else rows))
        finally:
            TaskContext._setTaskContext(None)
        return pickle.loads(pickle.dumps(message))

    def stage(self, batch: int, partitions: Sequence[Any]) -> tuple[Any, list[Staged]]:
        writer = self.writer()
        return writer, [self.task(writer, batch, rows, partition) for partition, rows in enumerate(partitions)]

    def commit(self, batch: int, messages: Sequence[Any]) -> None:
        """By a writer that knows nothing of the tasks but their messages."""
        self.writer().commit(list(messages), batch)

    def run(self, batch: int, *partitions: Any) -> None:
        _, messages = self.stage(batch, partitions)
        self.commit(batch, messages)


def rows(*values: bytes, keys: Sequence[bytes | None] | None = None) -> pa.RecordBatch:
    key = pa.array(keys or [None] * len(values), pa.binary())
    return pa.record_batch([key, pa.array(values, pa.binary())], names=["key", "value"])


def routed(*pairs: tuple[str | None, bytes]) -> pa.RecordBatch:
    topics, values = zip(*pairs, strict=True)
    return pa.record_batch([pa.array(values, pa.binary()), pa.array(topics, pa.string())], names=["value", "topic"])


def numbered(*each: tuple[bytes, str | None, int | None]) -> pa.RecordBatch:
    values, producers, ids = zip(*each, strict=True)
    columns = [pa.array(values, pa.binary()), pa.array(producers, pa.string()), pa.array(ids, pa.int64())]
    return pa.record_batch(columns, names=["value", "producer", "sequence_id"])


def log(url: str, topic: str) -> list[Message]:
    with Reader(topic, url=url, timeout=0) as reader:
        return list(reader)


def values(url: str, topic: str) -> list[bytes]:
    return [message.payload for message in log(url, topic)]


def in_progress(url: str, group: str = "spark") -> list[str]:
    with Client(url) as client:
        return [each.id for each in client.atomic_transactions(group=group)]


# --- a batch lands whole, in order, once


def test_partitions_follow_each_other_by_their_numbers_and_rows_as_they_came(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic)
    writer = job.writer()
    second = job.task(writer, 0, [rows(b"d"), rows(b"e", b"f")], partition=1)
    first = job.task(writer, 0, rows(b"a", b"b", b"c"), partition=0)
    assert values(service.url, topic) == []  # nobody sees what is staged
    job.commit(0, [first, second])
    assert values(service.url, topic) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_keys_are_kept_and_no_key_is_none(service: RunningService, topic: str) -> None:
    Job(service.url, topic=topic).run(0, rows(b"a", b"b", b"c", keys=[b"k", None, b""]))
    assert [message.key for message in log(service.url, topic)] == [b"k", None, b""]


def test_headers_are_the_properties_of_a_message(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": "é".encode()}], None, []], header)
    job.run(0, pa.record_batch([pa.array([b"1", b"2", b"3"], pa.binary()), headers], names=["value", "headers"]))
    assert [dict(message.properties or {}) for message in log(service.url, topic)] == [{"a": "1", "b": "é"}, {}, {}]


def test_many_chunks_are_one_batch(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, chunkMessages="7")
    wanted = [b"%d" % number for number in range(500)]
    job.run(0, [rows(*wanted[at : at + 30]) for at in range(0, 300, 30)], rows(*wanted[300:]))
    assert values(service.url, topic) == wanted


def test_a_row_of_any_size_that_the_service_takes_is_written(service: RunningService, topic: str) -> None:
    wanted = [b"a", b"b" * (5 << 20), b"c" * (3 << 20), b"d" * (3 << 20), b"e"]
    Job(service.url, topic=topic).run(0, rows(*wanted))
    assert values(service.url, topic) == wanted


def test_several_topics_get_their_rows_in_one_commit(service: RunningService, topic: str) -> None:
    with Client(service.url) as client:
        client.create_topic(topic + "-other")
    job = Job(service.url)
    job.schema = ROUTED
    job.run(0, routed((topic, b"a"), (topic + "-other", b"b"), (topic, b"c")), routed((topic + "-other", b"d")))
    assert values(service.url, topic) == [b"a", b"c"]
    assert values(service.url, topic + "-other") == [b"b", b"d"]


def test_one_topic_that_is_missing_keeps_the_rows_from_all(service: RunningService, topic: str) -> None:
    job = Job(service.url)
    job.schema = ROUTED
    with pytest.raises(TopicNotFound, match="creates no topics: create missing in namespace default first"):
        job.run(0, routed((topic, b"a"), ("missing", b"b")))
    assert values(service.url, topic) == []
    assert in_progress(service.url) == []


# --- attempts


def test_of_two_attempts_of_a_task_only_the_chosen_one_counts(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic)
    writer = job.writer()
    job.task(writer, 0, rows(b"a", b"b"), attempt=0)  # whose message is lost
    chosen = job.task(writer, 0, rows(b"a", b"b"), attempt=1)
    job.commit(0, [chosen])
    assert values(service.url, topic) == [b"a", b"b"]
    until(lambda: in_progress(service.url) == [])  # the other one is dropped by the commit


def test_a_task_that_lives_on_after_the_commit_is_refused(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic)
    writer, messages = job.stage(0, [rows(b"a")])
    job.commit(0, messages)
    with pytest.raises(TransactionNotInProgress, match="nothing that this task has staged counts"):
        job.task(writer, 0, rows(b"late"))
    assert values(service.url, topic) == [b"a"]


def test_a_task_that_lives_on_through_the_commit_is_refused_there(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, chunkMessages="1")
    writer, messages = job.stage(0, [rows(b"a")])

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(b"b")
        job.commit(0, messages)
        until(lambda: in_progress(service.url) == [])
        yield rows(b"c")

    with pytest.raises(TransactionNotInProgress):
        job.task(writer, 0, slow())
    assert values(service.url, topic) == [b"a"]
    assert in_progress(service.url) == []


def test_a_task_that_fails_leaves_nothing(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, chunkMessages="1")

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(b"a", b"b", b"c", b"d")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.task(job.writer(), 0, failing())
    assert in_progress(service.url) == []


def test_a_partition_without_rows_is_not_told_to_the_service(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic)
    _, messages = job.stage(0, [rows(), rows(b"a"), []])
    assert [each.branch is None for each in messages] == [True, False, True]
    job.commit(0, messages)
    assert values(service.url, topic) == [b"a"]


def test_an_empty_batch_asks_the_service_nothing() -> None:
    job = Job("http://127.0.0.1:1", topic="nobody-is-asked")
    _, messages = job.stage(0, [rows(), []])
    job.commit(0, messages)


# --- batches that come again


def test_a_batch_that_comes_again_is_not_written_again(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, producer=topic)
    job.run(0, rows(b"a"), rows(b"b"))
    job.run(1, rows(b"c"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing to warn of
        job.run(1, rows(b"c"))
    job.run(2, rows(b"d"))
    assert values(service.url, topic) == [b"a", b"b", b"c", b"d"]
    until(lambda: in_progress(service.url) == [])


def test_a_batch_that_comes_again_cut_otherwise_is_the_same(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, producer=topic)
    job.run(0, rows(b"a", b"b", keys=[b"k", None]), rows(b"c"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job.run(0, rows(b"a", keys=[b"k"]), rows(), rows(b"c", b"b"))
    assert values(service.url, topic) == [b"a", b"b", b"c"]


def test_the_same_commit_sent_twice_is_one(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, producer=topic)
    _, messages = job.stage(0, [rows(b"a")])
    job.commit(0, messages)
    job.commit(0, messages)
    assert values(service.url, topic) == [b"a"]


def test_a_rewound_checkpoint_that_brings_other_rows_ends_the_query(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, producer=topic)
    job.run(0, rows(b"a"))
    with pytest.raises(
        RepeatDiffers, match="micro-batch 0 of query query-1 was committed before, with other rows: 1:"
    ) as refusal:
        job.run(0, rows(b"b"))
    assert (refusal.value.producer, refusal.value.sequence_id, refusal.value.newest) == (topic, 0, 0)
    assert refusal.value.definite, "nothing of it was written"
    for way in ("another option producer", f'forget_group_producer("spark", "{topic}")', "onDifferentRows=warn"):
        assert way in str(refusal.value)
    job.run(1, rows(b"c"))
    with pytest.raises(RepeatDiffers, match=r"micro-batch 0 .*comes when number 1 .* is committed") as refusal:
        job.run(0, rows(b"a"))
    assert (refusal.value.sequence_id, refusal.value.newest) == (0, 1)
    assert values(service.url, topic) == [b"a", b"c"]
    until(lambda: in_progress(service.url) == [])


def test_rows_that_differ_are_passed_over_where_the_option_says_so(
    service: RunningService, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(service.url, topic=topic, producer=topic, onDifferentRows="warn")
    job.run(1, rows(b"a"))
    for batch, value in ((0, b"a"), (1, b"b")):
        with pytest.warns(UserWarning, match=f"micro-batch {batch} of query query-1 (comes when|was committed before)"):
            job.run(batch, rows(value))
    assert "checkpoint was restored" in caplog.text
    job.run(2, rows(b"c"))
    assert values(service.url, topic) == [b"a", b"c"]


def test_a_copied_checkpoint_ends_the_query_that_is_behind(service: RunningService, topic: str) -> None:
    """Two drivers with one query's id: of each number the first counts, and the other one notices."""
    ours, theirs = (Job(service.url, query="copied", topic=topic) for _ in range(2))
    ours.run(0, rows(b"a"))
    theirs.run(0, rows(b"a"))
    theirs.run(1, rows(b"b", b"c"))
    with pytest.raises(RepeatDiffers):
        ours.run(1, rows(b"b"))
    assert values(service.url, topic) == [b"a", b"b", b"c"]


def test_an_emptied_checkpoint_ends_the_query_until_its_name_is_forgotten(service: RunningService, topic: str) -> None:
    """Offsets and commits are deleted, the query's id is left: its numbers begin again."""
    job = Job(service.url, query="emptied", topic=topic)
    for batch, value in enumerate((b"a", b"b", b"c")):
        job.run(batch, rows(value))
    with pytest.raises(RepeatDiffers, match="forget_group_producer") as refusal:
        job.run(0, rows(b"a", b"b", b"c"))
    with Client(service.url) as client:
        client.forget_group_producer("spark", refusal.value.producer)
    job.run(0, rows(b"a", b"b", b"c"))
    assert values(service.url, topic) == [b"a", b"b", b"c"] * 2


def test_the_default_producer_is_the_query(service: RunningService, topic: str) -> None:
    Job(service.url, query="one", topic=topic).run(0, rows(b"a"))
    Job(service.url, query="two", topic=topic).run(0, rows(b"b"))
    assert values(service.url, topic) == [b"a", b"b"]
    with Client(service.url) as client:
        known = client.group_producer("spark", "spark-one")
    assert (known.sequence_id, known.incarnation, known.messages) == (0, "one", 1)


def test_groups_do_not_know_each_other(service: RunningService, topic: str) -> None:
    Job(service.url, topic=topic, producer=topic, group="left").run(0, rows(b"a"))
    Job(service.url, query="other", topic=topic, producer=topic, group="right").run(0, rows(b"b"))
    assert values(service.url, topic) == [b"a", b"b"]


# --- a new checkpoint under an old name


def test_a_new_checkpoint_under_an_old_name_is_refused(service: RunningService, topic: str) -> None:
    Job(service.url, query="old", topic=topic, producer=topic).run(7, rows(b"a"))
    with pytest.raises(ProducerFenced, match=r"belongs to query old, and this is query new.*set option takeOver") as refusal:
        Job(service.url, query="new", topic=topic, producer=topic).run(0, rows(b"b"))
    assert (refusal.value.current_incarnation, refusal.value.definite) == ("old", True)
    assert values(service.url, topic) == [b"a"]


def test_a_new_checkpoint_that_takes_over_goes_on_under_the_name(service: RunningService, topic: str) -> None:
    old = Job(service.url, query="old", topic=topic, producer=topic)
    old.run(7, rows(b"a"))
    new = Job(service.url, query="new", topic=topic, producer=topic, takeOver="old")
    new.run(0, rows(b"b"))
    new.run(0, rows(b"b"))
    new.run(1, rows(b"c"))
    assert values(service.url, topic) == [b"a", b"b", b"c"]
    with pytest.raises(ProducerFenced):
        old.run(8, rows(b"zombie"))


def test_only_the_query_that_is_named_is_taken_over(service: RunningService, topic: str) -> None:
    Job(service.url, query="old", topic=topic, producer=topic).run(7, rows(b"a"))
    with pytest.raises(ProducerFenced, match="belongs to query old"):
        Job(service.url, query="new", topic=topic, producer=topic, takeOver="older").run(0, rows(b"b"))


def test_a_query_does_not_take_over_itself(service: RunningService, topic: str) -> None:
    job = Job(service.url, query="own", topic=topic, producer=topic, takeOver="own")
    job.run(0, rows(b"a"))
    job.run(0, rows(b"a"))
    assert values(service.url, topic) == [b"a"]


def test_a_name_that_nobody_has_needs_no_taking_over(service: RunningService, topic: str) -> None:
    Job(service.url, topic=topic, producer=topic, takeOver="old").run(0, rows(b"a"))
    assert values(service.url, topic) == [b"a"]


# --- what goes wrong


def test_abort_leaves_nothing_and_the_batch_can_come_again(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic)
    _, messages = job.stage(3, [rows(b"a"), rows(b"b")])
    job.writer().abort([messages[0], None, messages[1]], 3)
    assert in_progress(service.url) == []
    with pytest.raises(BranchGone):
        job.commit(3, messages)
    job.run(3, rows(b"a"), rows(b"b"))
    assert values(service.url, topic) == [b"a", b"b"]


def test_abort_does_not_touch_what_is_committed(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic)
    _, messages = job.stage(0, [rows(b"a"), rows(b"b")])
    job.commit(0, messages)  # whose answer Spark has not got
    job.writer().abort(messages, 0)
    assert values(service.url, topic) == [b"a", b"b"]
    job.run(0, rows(b"a"), rows(b"b"))
    assert values(service.url, topic) == [b"a", b"b"]


def test_abort_is_quiet_where_the_service_is_gone() -> None:
    job = Job("http://127.0.0.1:1", topic="t", retryTimeoutMs="0")
    job.writer().abort([Staged("c", "b", 1, 1, "q"), None], 0)


def test_a_commit_that_does_not_arrive_raises() -> None:
    job = Job("http://127.0.0.1:1", topic="t", retryTimeoutMs="0")
    with pytest.raises(ConnectionFailed):
        job.commit(0, [Staged("c", "b", 1, 1, "q")])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, r"Whether the batch is committed is not known; with options producer and sequenceId it can be written again"),
        ({"producer": "p"}, r"Whether the batch is committed is not known; the same batch again is written only if it is not"),
    ],
)
def test_a_commit_whose_answer_is_lost_says_what_is_known(given: dict[str, str], says: str) -> None:
    lost = ConnectionFailed("the connection broke")
    error = explained(lost, WriteOptions.parse({"retryTimeoutMs": "3000", **given}))
    assert isinstance(error, ConnectionFailed)
    assert not error.definite
    assert str(error) == f"the connection broke. It was tried again for retryTimeoutMs = 3000. {says}."


def test_what_was_staged_too_long_ago_is_refused_with_the_option_to_raise(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, stagingTimeoutMs="1")
    with Client(service.url) as client:
        client.begin_atomic("spark", id="staged-long-ago", timeout=0.001, of="spark-x.0")
    messages = [Staged("spark-x.0", "staged-long-ago", 1, 1, "query-1")]
    until(lambda: "staged-long-ago" not in in_progress(service.url))
    with pytest.raises(BranchGone, match=r"stagingTimeoutMs = 1,.*raise it"):
        job.commit(0, messages)


def test_what_earlier_attempts_left_is_dropped_by_the_next_commit(service: RunningService, topic: str) -> None:
    job = Job(service.url, query="left", topic=topic)
    job.stage(4, [rows(b"a")])  # the driver dies
    job.stage(5, [rows(b"b")])  # and again
    later = job.task(job.writer(), 6, rows(b"d"))
    Job(service.url, query="left-other", topic=topic).stage(4, [rows(b"c")])
    job.run(5, rows(b"b"))
    assert [each.partition(".")[0] for each in in_progress(service.url)] == ["left", "left-other"]  # batch 6, and not its own
    job.commit(6, [later])
    assert values(service.url, topic) == [b"b", b"d"]


def test_an_error_holds_no_token_and_no_writer_shows_it(topic: str) -> None:
    job = Job("http://127.0.0.1:1", topic="t", retryTimeoutMs="0", token="s3cret")
    with pytest.raises(OncelogError) as failure:
        job.run(0, rows(b"a"))
    assert "s3cret" not in "".join(traceback.format_exception(failure.value)) + repr(job.options) + repr(failure.value)


def test_no_client_travels_with_a_writer(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic)
    writer, _ = job.stage(0, [rows(b"a")])
    job.options.connection.client()
    assert b"Client" not in cloudpickle.dumps(writer)


def test_a_row_that_is_too_large_says_so(topic: str) -> None:
    with running_service(max_request_bytes=1 << 20) as small:
        with Client(small.url) as client:
            client.create_topic(topic)
        with pytest.raises(RequestTooLarge, match="one row, with a value of 2097152 bytes"):
            Job(small.url, topic=topic).run(0, rows(b"a" * (2 << 20)))
        with pytest.raises(RequestTooLarge, match="2 rows, the longest value has 1048576 bytes: lower option chunkMessages"):
            Job(small.url, topic=topic).run(0, rows(b"a" * (1 << 20), b"b"))


def test_without_sparks_word_on_the_batch_nothing_is_written(service: RunningService, topic: str) -> None:
    writer = StreamWriter(WriteOptions.parse({"url": service.url, "topic": topic}), PLAIN, False)
    with pytest.raises(RuntimeError, match=r"streaming\.sql\.batchId"):
        writer.write(iter([rows(b"a")]))


# --- producers that are kept


def test_producers_are_kept_and_repeats_are_left_out(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, keepProducers="true")
    job.schema = NUMBERED
    job.run(0, numbered((b"a0", "a", 0), (b"b5", "b", 5), (b"x", None, None), (b"a1", "a", 1)))
    job.run(1, numbered((b"a1", "a", 1), (b"a2", "a", 2), (b"b5", "b", 5)))
    kept = [(each.producer, each.sequence_id, each.payload) for each in log(service.url, topic)]
    assert [each for each in kept if each[0] == "a"] == [("a", 0, b"a0"), ("a", 1, b"a1"), ("a", 2, b"a2")]
    assert [each for each in kept if each[0] != "a"] == [("b", 5, b"b5"), (None, None, b"x")]


def test_a_producers_number_with_another_value_is_refused(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, keepProducers="true")
    job.schema = NUMBERED
    job.run(0, numbered((b"a0", "a", 0)))
    with pytest.raises(SequenceReused, match="keepProducers=true"):
        job.run(1, numbered((b"other", "a", 0)))
    assert values(service.url, topic) == [b"a0"]


def test_a_producers_rows_out_of_order_are_refused_with_what_to_do(service: RunningService, topic: str) -> None:
    job = Job(service.url, topic=topic, keepProducers="true")
    job.schema = NUMBERED
    with pytest.raises(InvalidRequest, match="sortWithinPartitions"):
        job.run(0, numbered((b"a1", "a", 1), (b"a0", "a", 0)))
    with pytest.raises(InvalidRequest, match="sortWithinPartitions"):
        job.run(0, numbered((b"a1", "a", 1)), numbered((b"a0", "a", 0)))
    assert values(service.url, topic) == []


# --- batches


def test_a_batch_appends_whenever_it_is_written(service: RunningService, topic: str) -> None:
    for _ in range(2):
        job = Job(service.url, query=None, topic=topic)
        writer, messages = job.stage(0, [rows(b"a"), rows(b"b")])
        writer.commit(messages)
        writer.commit(messages)  # twice is as once
    assert values(service.url, topic) == [b"a", b"b"] * 2


def test_a_numbered_batch_is_written_once(service: RunningService, topic: str) -> None:
    for value, number in ((b"a", "3"), (b"a", "3"), (b"b", "4")):
        job = Job(service.url, query=None, topic=topic, producer=topic, sequenceId=number)
        writer, messages = job.stage(0, [rows(value)])
        writer.commit(messages)
    job = Job(service.url, query=None, topic=topic, producer=topic, sequenceId="4")
    writer, messages = job.stage(0, [rows(b"c")])
    with pytest.raises(RepeatDiffers, match=r"batch 4 of producer .* with other rows.*corrected batch has a number of its own"):
        writer.commit(messages)
    job = Job(service.url, query=None, topic=topic, producer=topic, sequenceId="3")
    writer, messages = job.stage(0, [rows(b"a")])
    with pytest.raises(RepeatDiffers, match=r"comes when number 4 .* is committed"):
        writer.commit(messages)
    assert values(service.url, topic) == [b"a", b"b"]


def test_an_aborted_batch_leaves_nothing_also_of_tasks_that_nobody_names(service: RunningService, topic: str) -> None:
    job = Job(service.url, query=None, topic=topic)
    writer, _ = job.stage(0, [rows(b"a"), rows(b"b")])
    writer.abort([None, None])
    assert in_progress(service.url) == []


def in_query(url: str, topic: str, query: str | None, number: int, value: bytes) -> None:
    """A numbered batch that is written within a query's foreachBatch, or outside of any query."""
    job = Job(url, query=query)
    job.options = WriteOptions.parse({"url": url, "topic": topic, "producer": "shared", "sequenceId": str(number)})
    writer = BatchWriter(job.options, PLAIN, False)
    writer.commit([job.task(writer, number, rows(value))])


@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("one", None), (None, "one")])
def test_a_numbered_batch_of_another_query_or_of_none_is_never_taken_for_a_repeat(
    service: RunningService, topic: str, first: str | None, second: str | None
) -> None:
    with Client(service.url) as client, suppress(GroupProducerNotFound):
        client.forget_group_producer("spark", "shared")
    in_query(service.url, topic, first, 5, b"a")
    for number in (0, 5, 6):
        with pytest.raises(ProducerFenced, match="belongs to " + (f"query {first}" if first else "a batch outside")):
            in_query(service.url, topic, second, number, b"a")
    assert values(service.url, topic) == [b"a"]


def test_two_writes_of_one_micro_batch_under_one_name_end_the_query(service: RunningService, topic: str) -> None:
    """As in one foreachBatch: nothing tells the second one from a repeat but its rows."""
    other = topic + "-other"
    with Client(service.url) as client:
        client.create_topic(other)
        with suppress(GroupProducerNotFound):
            client.forget_group_producer("spark", "shared")
    in_query(service.url, topic, "query", 0, b"a")
    with pytest.raises(RepeatDiffers, match="each write within foreachBatch has a producer of its own"):
        in_query(service.url, other, "query", 0, b"a")
    assert (values(service.url, topic), values(service.url, other)) == ([b"a"], [])


def test_a_topic_is_never_overwritten(service: RunningService) -> None:
    options = WriteOptions.parse({"url": service.url, "topic": "t"})
    with pytest.raises(ValueError, match=r'\.mode\("append"\)'):
        BatchWriter(options, PLAIN, True)
    StreamWriter(options, PLAIN, True)  # output mode complete: each batch appends the whole result


# --- the service in between


def test_a_service_that_restarts_while_tasks_stage_loses_nothing(topic: str, tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as process:
        with Client(process.url) as client:
            client.create_topic(topic)
        job = Job(process.url, topic=topic, chunkMessages="10", retryTimeoutMs="60000")
        wanted = [b"%d" % number for number in range(200)]

        def interrupted() -> Iterator[pa.RecordBatch]:
            for at in range(0, 200, 20):
                if at == 100:
                    process.kill()
                    process.start()
                yield rows(*wanted[at : at + 20])

        job.commit(0, [job.task(job.writer(), 0, interrupted())])
        assert values(process.url, topic) == wanted
