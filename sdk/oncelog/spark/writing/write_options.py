"""What a DataFrame is written with: the options of ``write`` and ``writeStream``, read and checked. Asks the service nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oncelog.producing.cutting import REQUEST
from oncelog.spark.connection import Connection
from oncelog.spark.options import SHARED, boolean, choice, connection, lower_cased, refuse_unknown, whole_number
from oncelog.wire.names import ATOMIC_ID_PATTERN, PRODUCER_PATTERN

GROUP = "spark"
STAGING_SECONDS = 3_600.0
"""Longer than a batch takes; what a driver that died has staged is gone after it."""

NAMES = (
    *SHARED,
    "producer",
    "sequenceId",
    "takeOver",
    "onDifferentRows",
    "group",
    "stagingTimeoutMs",
    "keepProducers",
    "chunkMessages",
)
"""As they are documented."""
_NAME = "1 to 249 of the characters A-Z a-z 0-9 _ . : @ = -, but not . or .."


@dataclass(frozen=True)
class WriteOptions:
    """Of one write. Picklable; its text holds no token."""

    connection: Connection
    topic: str | None = None
    """Where all rows go; None: where their column ``topic`` says."""
    producer: str | None = None
    """Under which name commits are deduplicated; None: a stream has one of its own, a batch has none."""
    sequence_id: int | None = None
    """Of a batch, whose repetition writes nothing."""
    take_over: str | None = None
    """Id of the query that had the producer's name before, and will not run again."""
    warns_of_other_rows: bool = False
    """Whether a batch that comes again with other rows is left out with a warning, and does not end the query."""
    group: str = GROUP
    """Of atomic commits: those of one group appear in one order on all topics."""
    staging_timeout: float = STAGING_SECONDS
    """Seconds until what a task has staged is dropped, if it is not committed by then."""
    keep_producers: bool = False
    """Whether the columns ``producer`` and ``sequence_id`` go with the messages."""
    chunk_messages: int = REQUEST.messages
    """Most messages in one request."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """From what Spark hands over. Raises ValueError, which names the option: it is unknown, or its value cannot be meant."""
        given = lower_cased(given, NAMES)
        refuse_unknown(given, NAMES, "sink")
        staging_ms = whole_number(given, "stagingTimeoutMs", 1)
        parsed = cls(
            connection(given),
            topic=given.get("topic") or None,
            producer=given.get("producer"),
            sequence_id=whole_number(given, "sequenceId", 0),
            take_over=given.get("takeover"),
            warns_of_other_rows=choice(given, "onDifferentRows", ("fail", "warn")) == "warn",
            group=given.get("group", GROUP),
            staging_timeout=STAGING_SECONDS if staging_ms is None else staging_ms / 1000,
            keep_producers=boolean(given, "keepProducers", False),
            chunk_messages=whole_number(given, "chunkMessages", 1) or REQUEST.messages,
        )
        if parsed.producer is not None and not PRODUCER_PATTERN.fullmatch(parsed.producer):
            raise ValueError(f"option producer is {_NAME}, not {parsed.producer[:100]!r}")
        if not ATOMIC_ID_PATTERN.fullmatch(parsed.group):
            raise ValueError(f"option group is {_NAME}, not {parsed.group[:100]!r}")
        if parsed.take_over is not None and parsed.producer is None:
            raise ValueError("option takeOver takes over the name in option producer: give it, too")
        return parsed

    def check_batch(self, overwrite: bool) -> None:
        """What holds for a batch only. Raises ValueError."""
        if overwrite:
            raise ValueError('a topic is appended to, never overwritten: write with .mode("append")')
        if (self.producer is None) != (self.sequence_id is None):
            raise ValueError("options producer and sequenceId go together: a batch that is written once has both")

    def check_stream(self) -> None:
        """What holds for a stream only. Raises ValueError."""
        if self.sequence_id is not None:
            raise ValueError("option sequenceId is for batches: Spark numbers the micro-batches of a stream")
