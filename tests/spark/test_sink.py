"""The sink without Spark: its writers are called as Spark calls them, against the real service."""

from __future__ import annotations

import pickle
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from oncelog import Client
from oncelog.errors import (
    BranchGone,
    CommitGone,
    ConnectionFailed,
    InvalidRequest,
    ProducerFenced,
    RepeatDiffers,
    RequestTooLarge,
    SequenceGap,
    SequenceReused,
    TopicNotFound,
    TransactionNotInProgress,
)
from oncelog.spark.writing import sink
from oncelog.spark.writing.refusals import explained
from oncelog.spark.writing.sink import BatchWriter, Staged, StreamWriter
from oncelog.spark.writing.write_options import WriteOptions
from oncelog.wire.requests import CommitRequest
from oncelog_service.storage.memory import Disk, MemoryStore
from tests.model.log import read_log
from tests.patience import until
from tests.spark.topics import Topics, values
from tests.world.disk import crashed
from tests.world.service import RunningService, running_service

PLAIN = StructType().add("key", BinaryType()).add("value", BinaryType())
ROUTED = StructType().add("value", BinaryType()).add("topic", StringType())
NUMBERED = StructType().add("value", BinaryType()).add("producer", StringType()).add("sequence_id", LongType())


class Log(Topics):
    """A topic, others, and jobs that write into them."""

    def job(self, query: str | None = "query-1", topic: str | None = "", **options: str) -> Job:
        """``topic``: None: where each row says."""
        return Job(self.url, query, **({} if topic is None else {"topic": topic or self.topic}), **options)

    def values(self, topic: str = "") -> list[bytes]:
        return values(self.url, topic or self.topic)

    def staged(self) -> list[str]:
        """Ids of what is neither committed nor dropped."""
        return [each.id for each in self.client.atomic_transactions("spark")]


@pytest.fixture
def log(running: RunningService) -> Iterator[Log]:
    """Of a service for each test: queries have the same ids."""
    made = Log(running.url)
    yield made
    made.client.close()


class Job:
    """A query or a batch as Spark runs it: a writer is made on the driver, pickled, and unpickled in every task attempt."""

    def __init__(self, url: str, query: str | None = "query-1", **options: str) -> None:
        sink._swept.clear()  # as in a new process
        self.query = query
        self.options = WriteOptions.parse({"url": url, "retryTimeoutMs": "3000"} | options)
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

    def write(self, *partitions: Any) -> None:
        """A batch that no query writes."""
        writer, messages = self.stage(0, partitions)
        writer.commit(messages)


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


# --- a batch lands whole, in order, once


def test_partitions_follow_each_other_by_their_numbers_and_rows_as_they_came(log: Log) -> None:
    job = log.job(chunkMessages="7")
    writer, wanted = job.writer(), [b"%d" % number for number in range(200)]
    second = job.task(writer, 0, [rows(*wanted[at : at + 30]) for at in range(60, 200, 30)], partition=1)
    first = job.task(writer, 0, rows(*wanted[:60], keys=[b"k", None, b"", *wanted[3:60]]), partition=0)
    assert log.values() == []  # nobody sees what is staged
    job.commit(0, [first, second])
    assert log.values() == wanted
    assert [message.key for message in read_log(log.url, log.topic)[:4]] == [b"k", None, b"", b"3"]


def test_several_topics_get_their_rows_in_one_commit_or_none_of_them_any(log: Log) -> None:
    topic, other, job = log.topic, log.other(), log.job(topic=None)
    job.schema = ROUTED
    with pytest.raises(TopicNotFound, match="creates no topics: create missing in namespace default first"):
        job.run(0, routed((topic, b"a"), ("missing", b"b")))
    assert (log.values(), log.staged()) == ([], [])
    job.run(0, routed((topic, b"a"), (other, b"b"), (topic, b"c")), routed((other, b"d")))
    assert (log.values(), log.values(other)) == ([b"a", b"c"], [b"b", b"d"])


def test_partitions_without_rows_stage_nothing_and_an_empty_batch_takes_its_number_all_the_same(log: Log) -> None:
    job = log.job(producer=log.topic)
    _, messages = job.stage(0, [rows(), rows(b"a"), []])
    assert [each.branch is None for each in messages] == [True, False, True]
    job.commit(0, messages)
    for _ in range(2):
        job.run(1, rows(), [])
    known = log.client.group_producer("spark", log.topic)
    assert (known.sequence_id, known.incarnation, known.messages) == (1, "query-1", 0)
    assert (log.values(), log.staged()) == ([b"a"], [])


def test_a_batch_without_rows_and_without_a_number_asks_the_service_nothing() -> None:
    Job("http://127.0.0.1:1", None, topic="nobody-is-asked").write(rows(), [])


def test_executors_of_an_older_version_end_a_batch_without_rows_with_a_word_for_it(log: Log) -> None:
    older = [WriterCommitMessage(), WriterCommitMessage()]  # it said nothing else where it had no rows
    with pytest.raises(RuntimeError, match="bring executors and driver to one version"):
        log.job(producer=log.topic).commit(0, older)
    numbered, unnamed = log.job(None, producer=log.topic, sequenceId="1").writer(), log.job(None).writer()
    with pytest.raises(RuntimeError, match="bring executors and driver to one version"):
        numbered.commit(older)
    unnamed.commit(older)
    for writer in (numbered, unnamed):
        writer.abort(older)
    log.job(producer=log.topic).run(0, rows(b"a"), [])
    assert log.values() == [b"a"]


# --- attempts


def test_of_two_attempts_of_a_task_only_the_chosen_one_counts(log: Log) -> None:
    job = log.job()
    writer = job.writer()
    job.task(writer, 0, rows(b"a"), attempt=0)  # it got other rows, and its message is lost
    chosen = job.task(writer, 0, rows(b"a", b"b"), attempt=1)
    job.commit(0, [chosen])
    assert log.values() == [b"a", b"b"]
    until(lambda: log.staged() == [])  # the other one is dropped by the commit


def test_a_task_that_lives_on_through_the_commit_is_refused_there(log: Log) -> None:
    job = log.job(chunkMessages="1")
    writer, messages = job.stage(0, [rows(b"a")])

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(b"b")
        job.commit(0, messages)
        until(lambda: log.staged() == [])
        yield rows(b"c")

    for late in (slow(), rows(b"late")):
        with pytest.raises(TransactionNotInProgress, match="nothing that this task has staged counts"):
            job.task(writer, 0, late)
    assert log.values() == [b"a"]
    assert log.staged() == []


def test_a_task_that_fails_leaves_nothing(log: Log) -> None:
    job = log.job(chunkMessages="1")

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(b"a", b"b", b"c", b"d")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.task(job.writer(), 0, failing())
    assert log.staged() == []


# --- batches that come again


def test_a_batch_that_comes_again_is_not_written_again_however_it_is_cut(log: Log) -> None:
    job = log.job(producer=log.topic)
    job.run(0, rows(b"x"))
    _, messages = job.stage(1, [rows(b"a", b"b", keys=[b"k", None]), rows(b"c")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing to warn of
        for _ in range(2):
            job.commit(1, messages)
        job.run(1, rows(b"a", keys=[b"k"]), rows(), rows(b"c", b"b"))
    job.run(2, rows(b"d"))
    assert log.values() == [b"x", b"a", b"b", b"c", b"d"]
    until(lambda: log.staged() == [])


def test_a_number_that_comes_with_other_rows_ends_the_query_until_its_name_is_forgotten(log: Log) -> None:
    """Of a checkpoint that was rewound, or emptied, or copied: two drivers with one query's id."""
    job, copy = (log.job(producer=log.topic) for _ in range(2))
    job.run(0, rows(b"a"))
    with pytest.raises(
        RepeatDiffers, match="micro-batch 0 of query query-1 was committed before, with other rows: 1:"
    ) as refusal:
        copy.run(0, rows(b"b"))
    assert (refusal.value.producer, refusal.value.sequence_id, refusal.value.newest) == (log.topic, 0, 0)
    assert refusal.value.definite, "nothing of it was written"
    for way in ("another option producer", f'forget_group_producer("spark", "{log.topic}")', "onDifferentRows=warn"):
        assert way in str(refusal.value)
    copy.run(1, rows(b"c"))
    with pytest.raises(RepeatDiffers, match=r"micro-batch 0 .*comes when number 1 .* is committed") as refusal:
        job.run(0, rows(b"a"))
    assert (refusal.value.sequence_id, refusal.value.newest) == (0, 1)
    assert log.values() == [b"a", b"c"]
    until(lambda: log.staged() == [])
    log.client.forget_group_producer("spark", log.topic)
    job.run(0, rows(b"a", b"c"))
    assert log.values() == [b"a", b"c"] * 2


def test_rows_that_differ_are_passed_over_where_the_option_says_so(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    job = log.job(producer=log.topic, onDifferentRows="warn")
    job.run(1, rows(b"a"))
    for batch, value in ((0, b"a"), (1, b"b")):
        with pytest.warns(UserWarning, match=f"micro-batch {batch} of query query-1 (comes when|was committed before)"):
            job.run(batch, rows(value))
    assert "checkpoint was restored" in caplog.text
    job.run(2, rows(b"c"))
    assert log.values() == [b"a", b"c"]


def test_commits_are_known_by_the_query_and_groups_do_not_know_each_other(log: Log) -> None:
    log.job("one").run(0, rows(b"a"))
    log.job("two").run(0, rows(b"b"))
    known = log.client.group_producer("spark", "spark-one")
    assert (known.sequence_id, known.incarnation, known.messages) == (0, "one", 1)
    for group, value in (("left", b"c"), ("right", b"d")):
        log.job(group, producer=log.topic, group=group).run(0, rows(value))
    assert log.values() == [b"a", b"b", b"c", b"d"]


def test_a_repeat_without_rows_where_there_were_some_is_none_and_the_other_way_round(log: Log) -> None:
    job = log.job(producer=log.topic)
    for first, second in ((rows(b"a"), rows()), (rows(), rows(b"a"))):
        log.client.forget_group_producer("spark", log.topic) if log.values() else None
        job.run(0, first)
        with pytest.raises(RepeatDiffers, match="micro-batch 0 of query query-1 was committed before, with other rows"):
            job.run(0, second)
    assert log.values() == [b"a"]


# --- a target that is not the one of then


def made_anew(log: Log, *topics: str) -> None:
    for name in topics:
        log.client.delete_topic(name)
        log.client.create_topic(name)


def test_a_query_that_begins_again_into_a_target_that_was_made_anew_is_told_that_its_rows_are_not_there(log: Log) -> None:
    """A stream whose checkpoint was emptied but for its id, its one batch repeated."""
    job = log.job(producer=log.topic)
    job.run(0, rows(b"a"))
    made_anew(log, log.topic)
    for _ in range(2):
        with pytest.raises(CommitGone, match=r"generation 2, made anew, has nothing of that.*another option producer") as gone:
            job.run(0, rows(b"a"))
    assert (gone.value.definite, gone.value.producer, gone.value.current_generation) == (True, log.topic, 2)
    assert f'Client.forget_group_producer("spark", "{log.topic}")' in str(gone.value)
    log.client.forget_group_producer("spark", log.topic)
    job.run(0, rows(b"a"))
    assert log.values() == [b"a"]


def test_a_numbered_batch_into_several_topics_is_told_of_the_one_that_was_made_anew(log: Log) -> None:
    topic, other = log.topic, log.other()

    def write(number: str) -> None:
        job = log.job(None, None, producer=topic, sequenceId=number)
        job.schema = ROUTED
        job.write(routed((topic, b"a"), (other, b"b")))

    write("1")
    made_anew(log, other)
    with pytest.raises(CommitGone, match=f"default/{other}"):
        write("1")
    write("2")
    with pytest.raises(CommitGone, match=f"default/{other}"):  # below the newest one
        write("1")
    assert (log.values(), log.values(other)) == ([b"a"] * 2, [b"b"])


def test_a_target_that_is_made_anew_between_stage_and_commit_gets_the_batch_when_it_is_run_again(log: Log) -> None:
    job = log.job(producer=log.topic)
    _, messages = job.stage(0, [rows(b"a")])
    made_anew(log, log.topic)
    with pytest.raises(TopicNotFound, match=r"deleted while the batch was being staged.*run it again"):
        job.commit(0, messages)
    job.run(0, rows(b"a"))
    assert log.values() == [b"a"]


def test_a_query_whose_target_was_put_back_from_a_backup_ends_and_goes_on_by_either_way(tmp_path: Path) -> None:
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as running:
        log = Log(running.url)
        job = log.job(producer="sink")
        job.run(0, rows(b"0"))
        job.run(1, rows())  # what has no rows counts, too
    backup = crashed(disk)
    with running_service(open_store=lambda: MemoryStore(disk)) as running:
        for number in (2, 3):
            Job(running.url, topic=log.topic, producer="sink").run(number, rows(b"%d" % number))
    for way in ("back", "on"):
        with running_service(open_store=lambda: MemoryStore(crashed(backup))) as running:
            job, client = Job(running.url, topic=log.topic, producer="sink"), Client(running.url)
            for empty in (rows(), rows(b"4")):
                with pytest.raises(SequenceGap, match=r"So the service has lost 2 to 3: .*There are two ways on") as hole:
                    job.run(4, empty)
            assert (hole.value.producer, hole.value.expected, hole.value.received) == ("sink", 2, 4)
            assert values(running.url, log.topic) == [b"0"]
            if way == "on":
                client.forget_group_producer("spark", "sink")
            else:
                job.run(2, rows(b"2"))
                job.run(3, rows(b"3"))
            job.run(4, rows(b"4"))
            assert values(running.url, log.topic) == ([b"0", b"4"] if way == "on" else [b"0", b"2", b"3", b"4"])
            client.close()


def test_a_query_goes_on_behind_batches_of_a_version_that_counted_none_without_rows(log: Log) -> None:
    job = log.job(producer=log.topic)
    job.run(2, rows(b"a"))  # all before it had none
    log.client.forget_group_producer("spark", log.topic)
    log.client.commit_atomic("as-before", CommitRequest("spark", (), (), log.topic, 0, "query-1"))
    job.run(5, rows(b"b"))
    with pytest.raises(SequenceGap):
        job.run(7, rows(b"c"))
    assert log.values() == [b"a", b"b"]


def test_numbers_that_are_given_by_hand_may_leave_holes(log: Log) -> None:
    for number in (3, 20130101, 20130105):
        log.job(None, producer=log.topic, sequenceId=str(number)).write(rows(b"%d" % number) if number != 20130101 else rows())
    assert log.values() == [b"3", b"20130105"]


# --- a new checkpoint under an old name


def test_a_new_checkpoint_is_refused_under_an_old_name_unless_it_takes_over_from_that_query(log: Log) -> None:
    old = log.job("old", producer=log.topic, takeOver="old")  # what nobody has, and oneself
    for _ in range(2):
        old.run(7, rows(b"a"))
    for options in ({}, {"takeOver": "older"}):
        with pytest.raises(ProducerFenced, match=r"belongs to query old, and this is query new.*set option takeOver") as refusal:
            log.job("new", producer=log.topic, **options).run(0, rows(b"b"))
        assert (refusal.value.current_incarnation, refusal.value.definite) == ("old", True)
    assert log.values() == [b"a"]
    new = log.job("new", producer=log.topic, takeOver="old")
    for batch, value in ((0, b"b"), (0, b"b"), (1, b"c")):
        new.run(batch, rows(value))
    assert log.values() == [b"a", b"b", b"c"]
    with pytest.raises(ProducerFenced):
        old.run(8, rows(b"zombie"))


# --- what goes wrong


def test_abort_leaves_nothing_but_what_is_committed_and_the_batch_can_come_again(log: Log) -> None:
    job = log.job()
    _, messages = job.stage(3, [rows(b"a"), rows(b"b")])
    job.writer().abort([messages[0], None, messages[1]], 3)
    assert log.staged() == []
    with pytest.raises(BranchGone):
        job.commit(3, messages)
    _, messages = job.stage(3, [rows(b"a"), rows(b"b")])
    job.commit(3, messages)  # whose answer Spark has not got
    job.writer().abort(messages, 3)
    job.run(3, rows(b"a"), rows(b"b"))
    assert log.values() == [b"a", b"b"]


def test_where_the_service_is_gone_abort_is_quiet_commit_raises_and_none_shows_the_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job("http://127.0.0.1:1", topic="t", retryTimeoutMs="0", token="s3cret")
    staged = Staged("c", "b", 1, 1, "q")
    job.writer().abort([staged, None], 0)
    with pytest.raises(ConnectionFailed) as failure:
        job.commit(0, [staged])
    shown = "".join(traceback.format_exception(failure.value)) + repr(failure.value) + repr(job.options) + caplog.text
    assert "s3cret" not in shown


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


def test_what_was_staged_too_long_ago_is_refused_with_the_option_to_raise(log: Log) -> None:
    job = log.job(stagingTimeoutMs="1")
    log.client.begin_atomic("spark", id="staged-long-ago", timeout=0.001, of="spark-x.0")
    messages = [Staged("spark-x.0", "staged-long-ago", 1, 1, "query-1")]
    until(lambda: "staged-long-ago" not in log.staged())
    with pytest.raises(BranchGone, match=r"stagingTimeoutMs = 1,.*raise it"):
        job.commit(0, messages)


def test_what_earlier_attempts_left_is_dropped_by_the_next_commit(log: Log) -> None:
    job = log.job("left")
    job.stage(4, [rows(b"a")])  # the driver dies
    job.stage(5, [rows(b"b")])  # and again
    later = job.task(job.writer(), 6, rows(b"d"))
    log.job("left-other").stage(4, [rows(b"c")])
    job.run(5, rows(b"b"))
    assert [each.partition(".")[0] for each in log.staged()] == ["left", "left-other"]  # batch 6, and not its own
    job.commit(6, [later])
    assert log.values() == [b"b", b"d"]
    job.stage(7, [rows(b"e")])
    job.writer().abort([None], 7)  # Spark does not say what was staged
    job.run(7, rows(b"e"))
    assert [each.partition(".")[0] for each in log.staged()] == ["left-other"]


def test_no_client_travels_with_a_writer(log: Log) -> None:
    job = log.job()
    writer, _ = job.stage(0, [rows(b"a")])
    job.options.connection.client()
    assert b"Client" not in cloudpickle.dumps(writer)


def test_a_row_that_is_too_large_says_so() -> None:
    with running_service(max_request_bytes=1 << 20) as small:
        job = Log(small.url).job()
        with pytest.raises(RequestTooLarge, match="one row, with a value of 2097152 bytes"):
            job.run(0, rows(b"a" * (2 << 20)))
        with pytest.raises(RequestTooLarge, match="2 rows, the longest value has 1048576 bytes: lower option chunkMessages"):
            job.run(0, rows(b"a" * (1 << 20), b"b"))


def test_without_sparks_word_on_the_batch_nothing_is_written(log: Log) -> None:
    with pytest.raises(RuntimeError, match=r"streaming\.sql\.batchId"):
        log.job().writer().write(iter([rows(b"a")]))


# --- producers that are kept


def test_producers_are_kept_in_order_and_repeats_are_left_out(log: Log) -> None:
    job = log.job(keepProducers="true")
    job.schema = NUMBERED
    for wrong in ([numbered((b"a1", "a", 1), (b"a0", "a", 0))], [numbered((b"a1", "a", 1)), numbered((b"a0", "a", 0))]):
        with pytest.raises(InvalidRequest, match="sortWithinPartitions"):
            job.run(0, *wrong)
    job.run(0, numbered((b"a0", "a", 0), (b"b5", "b", 5), (b"x", None, None), (b"a1", "a", 1)))
    job.run(1, numbered((b"a1", "a", 1), (b"a2", "a", 2), (b"b5", "b", 5)))
    with pytest.raises(SequenceReused, match="keepProducers=true"):
        job.run(2, numbered((b"other", "a", 0)))
    kept = [(each.producer, each.sequence_id, each.payload) for each in read_log(log.url, log.topic)]
    assert [each for each in kept if each[0] == "a"] == [("a", 0, b"a0"), ("a", 1, b"a1"), ("a", 2, b"a2")]
    assert [each for each in kept if each[0] != "a"] == [("b", 5, b"b5"), (None, None, b"x")]


# --- batches


def test_a_batch_appends_whenever_it_is_written(log: Log) -> None:
    for _ in range(2):
        job = log.job(None)
        writer, messages = job.stage(0, [rows(b"a"), rows(b"b")])
        writer.commit(messages)
        writer.commit(messages)  # idempotent
    assert log.values() == [b"a", b"b"] * 2


def test_a_numbered_batch_is_written_once(log: Log) -> None:
    def write(value: bytes, number: str) -> None:
        log.job(None, producer=log.topic, sequenceId=number).write(rows(value))

    for value, number in ((b"a", "3"), (b"a", "3"), (b"b", "4")):
        write(value, number)
    with pytest.raises(RepeatDiffers, match=r"batch 4 of producer .* with other rows.*corrected batch has a number of its own"):
        write(b"c", "4")
    with pytest.raises(RepeatDiffers, match=r"comes when number 4 .* is committed"):
        write(b"a", "3")
    assert log.values() == [b"a", b"b"]


def test_an_aborted_batch_leaves_nothing_also_of_tasks_that_nobody_names(log: Log) -> None:
    job = log.job(None)
    writer, _ = job.stage(0, [rows(b"a"), rows(b"b")])
    writer.abort([None, None])
    assert log.staged() == []


def in_query(log: Log, topic: str, query: str | None, number: int, value: bytes) -> None:
    """A numbered batch that is written within a query's foreachBatch, or outside of any query."""
    job = log.job(query, topic, producer=log.topic, sequenceId=str(number))
    writer = BatchWriter(job.options, PLAIN, False)
    writer.commit([job.task(writer, number, rows(value))])


@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("one", None), (None, "one")])
def test_a_numbered_batch_of_another_query_or_of_none_is_never_taken_for_a_repeat(
    log: Log, first: str | None, second: str | None
) -> None:
    in_query(log, log.topic, first, 5, b"a")
    for number in (0, 5, 6):
        with pytest.raises(ProducerFenced, match="belongs to " + (f"query {first}" if first else "a batch outside")):
            in_query(log, log.topic, second, number, b"a")
    assert log.values() == [b"a"]


def test_two_writes_of_one_micro_batch_under_one_name_end_the_query(log: Log) -> None:
    """As in one foreachBatch: nothing tells the second one from a repeat but its rows."""
    other = log.other()
    in_query(log, log.topic, "query", 0, b"a")
    with pytest.raises(RepeatDiffers, match="each write within foreachBatch has a producer of its own"):
        in_query(log, other, "query", 0, b"a")
    assert (log.values(), log.values(other)) == ([b"a"], [])


def test_in_output_mode_complete_each_batch_appends_the_whole_result(log: Log) -> None:
    StreamWriter(log.job().options, PLAIN, True)
