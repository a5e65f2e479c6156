"""The sink: tasks stage their rows where no reader finds them, and one atomic commit makes a whole batch appear, once.

Each attempt of a task stages into a branch of its own, so that of an attempt that failed, was repeated or lives on after its
driver nothing ever counts: the commit names the branches of the attempts that Spark has chosen, in the order of its partitions.
A micro-batch is committed under the producer's name with the number that Spark has given to it, also one without rows: so the
numbers have no hole, and a service that has lost some is found out. A batch that Spark brings again
after a crash is answered as a duplicate, and compared: with other rows it is no repeat, and ends the query. The incarnation is
the id of the query, so that a new checkpoint, whose numbers begin again, is refused instead of being taken for repeats.
Decision 0019 says why, 0016 what the service does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from oncelog.errors import GroupProducerNotFound, OncelogError
from oncelog.spark.options import logger, warn
from oncelog.spark.writing.refusals import explained, repeat_differs
from oncelog.spark.writing.rows import Chunks, check_columns, checksum, checksum_text, split
from oncelog.spark.writing.staging import Branch, abort_quietly
from oncelog.wire.requests import CommitRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from oncelog.client import Client
    from oncelog.spark.writing.write_options import WriteOptions
    from oncelog.wire.models import AtomicOutcome

SWEEP_SECONDS = 60.0
"""How often at most a driver looks for what earlier attempts of its query have left."""

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_swept: dict[str, float] = {}


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged; all that the driver learns of it."""

    commit: str
    """Id of the atomic commit that may name its branch."""
    branch: str | None
    """None: it had no rows, and has begun none."""
    rows: int
    checksum: int
    query: str | None
    """Id of the streaming query that it ran in."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Of micro-batches, one atomic commit each. In output mode ``complete`` every batch appends the whole result."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises ValueError: an option or a column does not fit."""
        options.check_stream()
        check_columns(schema, options.topic, options.keep_producers)
        self.options = options
        self.id = uuid4().hex
        """Of this attempt of the batch: made on the driver, it travels with the writer to every task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition. Raises ValueError for a row that cannot be written; OncelogError."""
        query, batch = _local(_QUERY), _local(_BATCH)
        if query is None or batch is None:
            raise RuntimeError(f"Spark does not tell the task its {_QUERY} and {_BATCH}")
        return _stage(self.options, iterator, f"spark-{self.id}.{batch}", f"{query}.{batch}", query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make the batch appear, whole. Raises OncelogError, which ends the query: it did not, or that is not known.

        RepeatDiffers: another one was committed under its number. RuntimeError: the executors' oncelog is older than this one.
        """
        staged = _staged(messages)
        _check_told(staged)
        query = staged[0].query
        assert query is not None  # write sees to it
        options = replace(self.options, producer=self.options.producer or f"spark-{query}")
        outcome = _commit(options, staged, batchId, query, refuses_gaps=True)
        if outcome.state == "duplicate":
            _compare(options, outcome, staged, batchId, f"micro-batch {batchId} of query {query}")
        _sweep(options, query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop what was staged; what is committed stays. What the service does not hear of now is dropped in time."""
        _swept.clear()  # the next commit of this process looks for what is left
        abort_quietly(self.options, _branches(_staged(messages)))


class BatchWriter(DataSourceArrowWriter):
    """Of a batch: one atomic commit. With options ``producer`` and ``sequenceId`` a repeated one writes nothing."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises ValueError: an option or a column does not fit, or the topic is to be overwritten."""
        options.check_batch(overwrite)
        check_columns(schema, options.topic, options.keep_producers)
        self.options = options
        self.id = uuid4().hex
        """Of this batch; the writer that commits is the one that has travelled to the tasks."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition. Raises ValueError for a row that cannot be written; OncelogError."""
        return _stage(self.options, iterator, f"spark-{self.id}", f"batch-{self.id}", _local(_QUERY))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the batch appear, whole. Raises RepeatDiffers, or another OncelogError: it did not, or that is not known.

        RuntimeError: the executors' oncelog is older than this one.
        """
        staged = _staged(messages)
        if self.options.producer is None and not _branches(staged):
            return
        _check_told(staged)
        # Within foreachBatch, where numbers begin again with a new checkpoint, the query's id keeps them apart.
        incarnation = staged[0].query if self.options.producer is not None else None
        number = self.options.sequence_id
        outcome = _commit(self.options, staged, number, incarnation)
        if outcome.state == "duplicate" and number is not None:
            _compare(self.options, outcome, staged, number, f"batch {number} of producer {self.options.producer}")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged, also by tasks that Spark says nothing of; what is committed stays."""
        abort_quietly(self.options, _branches(_staged(messages)), f"batch-{self.id}.")


def _local(name: str) -> str | None:
    """A local property of the job that this task is part of."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [each for each in messages if isinstance(each, Staged)]


def _check_told(staged: Sequence[Staged]) -> None:
    """Also a batch without rows has a task, and its message says of which query it is. An older oncelog says that only of rows;
    without it there is no commit, and to leave the commit out leaves a hole in the numbers. Raises RuntimeError."""
    if not staged:
        raise RuntimeError(
            "no task says what it has staged: the executors run an older oncelog than the driver. Nothing of this batch was "
            "written; bring executors and driver to one version, and run it again"
        )


def _branches(staged: Sequence[Staged]) -> list[str]:
    return [each.branch for each in staged if each.branch is not None]


def _stage(
    options: WriteOptions, iterator: Iterator[pa.RecordBatch], commit: str, prefix: str, query: str | None
) -> WriterCommitMessage:
    """The rows of a partition as a branch of ``commit``, whose id is drawn anew for each attempt of the task."""
    context = TaskContext.get()
    partition, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
    branch = f"{prefix}.{partition}.{attempt}.{uuid4().hex}"
    chunks = Chunks(options.chunk_messages)
    rows = total = 0
    with Branch.filled(options, branch, commit) as staging:
        for batch in iterator:
            for target, found in split(batch, options.topic, options.keep_producers):
                for topic, request in chunks.add(target, found):
                    staging.send(topic, request)
                rows += len(found.payloads)
                total += checksum(target, found)
        for topic, request in chunks.rest():
            staging.send(topic, request)
    return Staged(commit, branch if rows else None, rows, total, query)


def _commit(
    options: WriteOptions,
    staged: Sequence[Staged],
    sequence_id: int | None,
    incarnation: str | None,
    *,
    refuses_gaps: bool = False,
) -> AtomicOutcome:
    client = options.connection.client()
    request = CommitRequest(
        group=options.group,
        branches=_branches(staged),
        producer=options.producer,
        sequence_id=sequence_id,
        incarnation=incarnation,
        checksum=_checksum(staged),
        refuses_gaps=refuses_gaps,
    )
    try:
        _take_over(client, options, incarnation)
        return client.commit_atomic(staged[0].commit, request)
    except OncelogError as error:
        raise explained(error, options) from error


def _take_over(client: Client, options: WriteOptions, incarnation: str | None) -> None:
    """Have the service forget the query that had the name, if it is the one that the option names."""
    old, producer = options.take_over, options.producer
    if old is None or producer is None or old == incarnation:
        return
    try:
        # Another one's: the commit is refused as fenced. Our own: it was taken over before, and must not be forgotten again.
        if client.group_producer(options.group, producer).incarnation != old:
            return
        client.forget_group_producer(options.group, producer, incarnation=old)
    except GroupProducerNotFound:
        return
    logger.info("producer %s of group %s is taken over from query %s", producer, options.group, old)


def _compare(options: WriteOptions, outcome: AtomicOutcome, staged: Sequence[Staged], number: int, what: str) -> None:
    """See that what comes again is what was committed before. Raises RepeatDiffers; else its rows would be in no topic."""
    newest = number
    if outcome.original is None:
        with suppress(GroupProducerNotFound):  # forgotten meanwhile
            newest = options.connection.client().group_producer(options.group, str(options.producer)).sequence_id
    error = repeat_differs(options, outcome, _checksum(staged), number, what, newest)
    if error is None:
        logger.info("%s was committed before, with the same rows; nothing was written", what)
        return
    if not options.warns_of_other_rows:
        raise error
    warn(f"oncelog sink: {error.detail}")


def _checksum(staged: Sequence[Staged]) -> str:
    return checksum_text(sum(each.rows for each in staged), sum(each.checksum for each in staged))


def _sweep(options: WriteOptions, query: str, batch: int) -> None:
    """Drop what earlier attempts of this query have staged and no driver will commit: those of batches up to this one."""
    now = time.monotonic()
    if now - _swept.get(query, -SWEEP_SECONDS) < SWEEP_SECONDS:
        return
    _swept[query] = now
    # Not beyond this batch: a newer driver of the query may be staging the next one.
    abort_quietly(options, (), f"{query}.", upto_batch=batch)
