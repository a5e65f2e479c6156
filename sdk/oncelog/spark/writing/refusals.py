"""What to do about a refusal, in the words of Spark's options; and whether a batch that comes again is the one of then. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.errors import (
    BranchGone,
    CommitGone,
    InvalidRequest,
    OncelogError,
    ProducerFenced,
    RepeatDiffers,
    RequestTooLarge,
    SequenceGap,
    SequenceReused,
    TopicNotFound,
    TransactionNotInProgress,
    Unauthorized,
)

if TYPE_CHECKING:
    from oncelog.spark.writing.write_options import WriteOptions
    from oncelog.wire.models import AtomicOutcome, GroupProducer, GroupTopic
    from oncelog.wire.requests import PublishRequest

_NOTHING = "Nothing of this batch was written"


def explained(
    error: OncelogError, options: WriteOptions, topic: str | None = None, request: PublishRequest | None = None
) -> OncelogError:
    """The same error, whose text goes on with what it means here and which option changes it. The token is in none.

    ``topic``, ``request``: what was being staged; None: the commit.
    """
    advice = _advice(error, options, topic, request)
    if advice is None:
        return error
    values = {name: getattr(error, name) for name in error.values}
    return type(error)(f"{error.detail.rstrip('.')}. {advice}.", definite=error.definite, **values)


def _advice(error: OncelogError, options: WriteOptions, topic: str | None, request: PublishRequest | None) -> str | None:
    if isinstance(error, ProducerFenced):
        return _fenced(error)
    if isinstance(error, CommitGone):
        return _gone(options.group, str(error.producer))
    if isinstance(error, BranchGone) or (isinstance(error, TransactionNotInProgress) and error.reason == "timed_out"):
        return (
            f"What a task has staged is dropped after option stagingTimeoutMs = {options.staging_timeout * 1000:.0f}, if the "
            f"batch is not committed by then: raise it, or make the batches smaller. {_NOTHING}; run it again"
        )
    if isinstance(error, TransactionNotInProgress):
        return "Another attempt of this batch was committed or given up meanwhile; nothing that this task has staged counts"
    if isinstance(error, TopicNotFound):
        if topic is None:
            return f"It was deleted while the batch was being staged. {_NOTHING}; run it again once the topic is there"
        return f"The sink creates no topics: create {topic} in namespace {options.connection.namespace} first. {_NOTHING}"
    if isinstance(error, RequestTooLarge):
        return _too_large(request)
    if isinstance(error, Unauthorized):
        return "Give the token in a file that option tokenFile names, as option token, or as ONCELOG_TOKEN where the driver runs"
    if isinstance(error, SequenceGap) and error.producer == options.producer:
        return _hole(options, error)
    if options.keep_producers and (advice := _of_kept_producers(error)) is not None:
        return advice
    return None if error.definite else _unknown(options, request)


def _of_kept_producers(error: OncelogError) -> str | None:
    if isinstance(error, SequenceReused):
        return (
            "With keepProducers=true a message is known by its producer and sequence_id; these came before, with another value. "
            f"{_NOTHING}. New rows need numbers of their own, or keepProducers=false"
        )
    if isinstance(error, SequenceGap):
        return f"That producer was opened with gaps refused: the rows that are missing must come first. {_NOTHING}"
    if isinstance(error, InvalidRequest) and "sequence" in error.detail:
        return (
            "With keepProducers=true the rows of a producer come in the order of their sequence_id, each once: write them from "
            'one partition, sorted, as with .repartition("producer").sortWithinPartitions("producer", "sequence_id")'
        )
    return None


def _fenced(error: ProducerFenced) -> str:
    if error.generation is not None:
        return f"Whatever was opened on the topic that was deleted is of no use on the new one. {_NOTHING}; run it again"
    holder, own = error.current_incarnation, error.incarnation
    return (
        f"The producer's name belongs to {_query(holder)}, and this is {_query(own)}. A new checkpoint numbers its batches from "
        f"0 again: under the old name they would be taken for repeats, and lost. {_NOTHING}. Use another option producer; "
        f"or, if {_query(holder)} will never write again and this goes on in its place, set option takeOver to its id"
    )


def _gone(group: str, producer: str) -> str:
    return (
        "There are two ways on, and by both everything from here on is appended: another option producer, or the same once the "
        f"service has forgotten it: {_forget(group, producer)}"
    )


def _hole(options: WriteOptions, error: SequenceGap) -> str:
    producer, expected = str(options.producer), error.expected
    return (
        "Spark numbers the micro-batches of a query without a hole, and each of them is committed. So the service has lost "
        f"{expected} to {error.received - 1}: its store was put back from a backup, or the query wrote somewhere else "
        f"meanwhile, or ran under an older oncelog, which commits none without rows. {_NOTHING}. There "
        f"are two ways on. To write what is missing, stop the query, delete the files numbered {expected} and "
        f"above from offsets and commits in its checkpoint, and run it again: it reads on from where number {expected} began, as "
        "far as its source still has that. To go on behind the hole, whose rows are lost then, have the service forget the "
        f"producer: {_forget(options.group, producer)}"
    )


def _forget(group: str, producer: str) -> str:
    return f'oncelog atomic forget {group} {producer}, or Client.forget_group_producer("{group}", "{producer}")'


def target_made_anew(group: str, known: GroupProducer, topic: GroupTopic) -> CommitGone:
    """What to raise for a backfill whose position is one in a topic that was deleted and made anew: it would write nothing."""
    name, producer = f"{topic.namespace}/{topic.topic}", known.producer
    return CommitGone(
        f"what was published under the name {producer} went to topic {name} as it was before it was deleted; generation "
        f"{topic.current_generation}, made anew, has nothing of that, and nothing was written now. To publish all of it again, "
        f"have the service forget the name: {_forget(group, producer)}; or give another name. Files that were published with "
        "a checkpoint need a new one, too",
        producer=producer,
        transaction=known.transaction,
        topic=name,
        generation=topic.generation,
        current_generation=topic.current_generation,
    )


def _query(incarnation: str | None) -> str:
    return "a batch outside of any query" if incarnation is None else f"query {incarnation}"


def _too_large(request: PublishRequest | None) -> str:
    if request is None:
        return f"A commit names a branch for each partition that has rows: coalesce to fewer partitions. {_NOTHING}"
    rows, longest = len(request.payloads), max(map(len, request.payloads))
    if rows == 1:
        return f"It holds one row, with a value of {longest} bytes: the service must take larger requests. {_NOTHING}"
    return f"It holds {rows} rows, the longest value has {longest} bytes: lower option chunkMessages. {_NOTHING}"


def _unknown(options: WriteOptions, request: PublishRequest | None) -> str:
    tried = f"It was tried again for retryTimeoutMs = {options.connection.retry_seconds * 1000:.0f}"
    if request is not None:
        return f"{tried}. {_NOTHING}"
    if options.producer is None:
        return (
            f"{tried}. Whether the batch is committed is not known; with options producer and sequenceId it can be written again"
        )
    return f"{tried}. Whether the batch is committed is not known; the same batch again is written only if it is not"


def repeat_differs(
    options: WriteOptions, outcome: AtomicOutcome, checksum: str, number: int, what: str, newest: int
) -> RepeatDiffers | None:
    """What to raise for a batch that was answered as a duplicate and is another one than that of then; None: it is the same.

    Spark repeats only its newest micro-batch, and a numbered batch that is repeated means the same rows. Both are known by the
    checksum that goes with each commit. Whatever else comes under a taken number is no repeat, and its rows are in no topic.

    Args:
        options: ``producer`` is named.
        checksum: Of its rows.
        number: Its micro-batch, or its option ``sequenceId``.
        what: The batch, in words.
        newest: The producer's highest number.
    """
    producer = str(options.producer)
    if outcome.original is None:
        difference = f"comes when number {newest} of producer {outcome.producer} is committed"
    elif outcome.checksum != checksum:
        difference = f"was committed before, with other rows: {outcome.checksum} then, {checksum} now (rows:checksum)"
    else:
        return None
    why = (
        "A producer's number is written once: a corrected batch has a number of its own, above all earlier ones, and each write "
        "within foreachBatch has a producer of its own"
    )
    if options.sequence_id is None:
        why = (
            "Spark repeats only its newest micro-batch, with the same rows: so the checkpoint was restored, copied or emptied, "
            "the query was changed, or the same input gives other rows each time"
        )
    return RepeatDiffers(
        f"{what} {difference}. Nothing of it was written now. {why}. There are three ways on. Under another option producer "
        f"everything from here on is appended, also what the topic has already under {producer}. The same happens under the old "
        f"name once the service has forgotten it: {_forget(options.group, producer)}. With option onDifferentRows=warn the rows "
        f"of this batch, and of each that differs up to number {newest}, are left out: they are lost unless the topic has them",
        producer=producer,
        sequence_id=number,
        newest=newest,
    )
