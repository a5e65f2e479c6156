"""Whether a batch that comes again is the one that was committed under its number. Pure: what was and what is in, a verdict out.

Spark repeats only its newest micro-batch, and a numbered batch that is repeated means the same rows. Both are known by the
checksum that goes with each commit. Whatever else comes under a number that is taken is no repeat, and its rows are in no topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.errors import RepeatDiffers

if TYPE_CHECKING:
    from oncelog.spark.writing.write_options import WriteOptions
    from oncelog.wire.models import AtomicOutcome


def difference(outcome: AtomicOutcome, checksum: str, newest: int) -> str | None:
    """In which way a batch that was answered as a duplicate is another one than that of then; None: it is the same.

    Args:
        checksum: Of its rows.
        newest: The producer's highest number.
    """
    if outcome.original is None:
        return f"comes when number {newest} of producer {outcome.producer} is committed"
    if outcome.checksum != checksum:
        return f"was committed before, with other rows: {outcome.checksum} then, {checksum} now (rows:checksum)"
    return None


def refusal(options: WriteOptions, number: int, problem: str, newest: int) -> RepeatDiffers:
    """What happened to this batch, and the three ways on.

    Args:
        options: ``producer`` is named.
        number: Its micro-batch, or its option ``sequenceId``.
        problem: What it is, and its difference.
        newest: The producer's highest number.
    """
    producer = str(options.producer)
    return RepeatDiffers(
        f"{problem}. Nothing of it was written now. {_why(options)}. There are three ways on. Under another option producer "
        f"everything from here on is appended, also what the topic has already under {producer}. The same happens under the old "
        f"name once the service has forgotten it: oncelog atomic forget {options.group} {producer}, or "
        f'Client.forget_group_producer("{options.group}", "{producer}"). With option onDifferentRows=warn the rows of this '
        f"batch, and of each that differs up to number {newest}, are left out: they are lost unless the topic has them",
        producer=producer,
        sequence_id=number,
        newest=newest,
    )


def _why(options: WriteOptions) -> str:
    if options.sequence_id is None:
        return (
            "Spark repeats only its newest micro-batch, with the same rows: so the checkpoint was restored, copied or emptied, "
            "the query was changed, or the same input gives other rows each time"
        )
    return (
        "A producer's number is written once: a corrected batch has a number of its own, above all earlier ones, and each write "
        "within foreachBatch has a producer of its own"
    )
