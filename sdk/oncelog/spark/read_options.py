"""Options of the source. Pure but for the environment that :class:`Connection` looks at and the warning of unknown ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from oncelog.spark.connection import Connection
from oncelog.spark.offsets import EARLIEST, LATEST, AtOffsets, AtTime, Edge
from oncelog.spark.options import SHARED, boolean, connection, lower_cased, one_of, warn_of_unknown, whole_number

KNOWN = (
    *SHARED,
    "subscribe",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "pollWaitMs",
    "pushdown",
)
POLL_WAIT_MS = 1_000
"""How long an idle stream lets the service wait: about one call a second (a poll at once would be 75 a second)."""


@dataclass(frozen=True)
class ReadOptions:
    """What a source was told. Picklable; its text holds no token."""

    connection: Connection
    topics: tuple[str, ...]
    """Sorted."""
    start: Edge | None = None
    """None: a stream begins at the latest message, a batch at the earliest."""
    end: Edge = "latest"
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    poll_wait: float = POLL_WAIT_MS / 1000
    """Seconds."""
    pushdown: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Read them; warns of unknown ones. Raises ValueError, whose text names the option and never shows a token."""
        given = lower_cased(given)
        warn_of_unknown(given, KNOWN, "source")
        topics = _topics(given)
        poll_wait_ms = whole_number(given, "pollWaitMs", 0)
        return cls(
            connection(given),
            topics,
            _edge(given, "starting", topics),
            _edge(given, "ending", topics) or "latest",
            whole_number(given, "maxOffsetsPerTrigger", 1),
            whole_number(given, "maxBytesPerTrigger", 1),
            whole_number(given, "minPartitions", 1),
            boolean(given, "failOnDataLoss", True),
            boolean(given, "includeHeaders", False),
            (POLL_WAIT_MS if poll_wait_ms is None else poll_wait_ms) / 1000,
            boolean(given, "pushdown", False),
        )

    def check_stream(self) -> None:
        """Raises ValueError for what a stream has not: an end."""
        if self.end != "latest":
            raise ValueError("a stream has no end: endingOffsets and endingTimestamp are for batches; see Trigger.AvailableNow")


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    option = one_of(given, ("subscribe", "topic"))
    if option is None:
        raise ValueError("which topic? Option subscribe names one, or several with commas between them")
    text = given[option]
    topics = {name.strip() for name in (text.split(",") if option == "subscribe" else [text])} - {""}
    if not topics:
        raise ValueError(f"option {option} names no topic: {text!r}")
    return tuple(sorted(topics))


def _edge(given: Mapping[str, str], which: str, topics: tuple[str, ...]) -> Edge | None:
    """As in Kafka's source, a timestamp goes before offsets."""
    timestamp = whole_number(given, f"{which}Timestamp", 0)
    if timestamp is not None:
        return AtTime(timestamp)
    option = f"{which}Offsets"
    text = given.get(option.lower(), "").strip()
    if not text:
        return None
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    return AtOffsets(_offsets(option, text, topics))


def _offsets(option: str, text: str, topics: tuple[str, ...]) -> dict[str, int]:
    wanted = (
        f"option {option} is earliest, latest or an offset of each topic as JSON, such as {json.dumps(dict.fromkeys(topics, 0))}"
    )
    try:
        by_topic = json.loads(text)
    except ValueError:
        raise ValueError(f"{wanted}, not {text!r}") from None
    if not isinstance(by_topic, dict) or by_topic.keys() != set(topics):
        raise ValueError(f"{wanted}, for {', '.join(topics)} and no other; not {text!r}")
    offsets = {topic: _offset(value) for topic, value in sorted(by_topic.items())}
    if None in offsets.values():
        raise ValueError(f"{wanted} ({EARLIEST}: earliest, {LATEST}: latest), not {text!r}")
    return {topic: offset for topic, offset in offsets.items() if offset is not None}


def _offset(value: object) -> int | None:
    if isinstance(value, dict):  # Kafka's form; a topic here has one partition
        return _offset(value["0"]) if value.keys() == {"0"} and not isinstance(value["0"], dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= EARLIEST else None
