"""Options of the source. Pure but for the environment that :class:`Connection` looks at."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from oncelog.spark.connection import Connection
from oncelog.spark.options import SHARED, boolean, choice, connection, lower_cased, one_of, refuse_unknown, whole_number
from oncelog.spark.reading.offsets import EARLIEST, LATEST, AtOffsets, AtTime, AtTimes, Edge
from oncelog.wire.names import SUBSCRIPTION_PATTERN

KNOWN = (
    *SHARED,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "pollWaitMs",
    "pushdown",
    "subscription",
)
POLL_WAIT_MS = 1_000
"""How long an idle stream lets the service wait: about one call a second (a poll at once would be 75 a second)."""


@dataclass(frozen=True)
class ReadOptions:
    """What a source is given. Picklable; its text holds no token."""

    connection: Connection
    topics: tuple[str, ...]
    """Sorted; none where there is a pattern."""
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
    pattern: str | None = None
    """Which topics, as a regular expression for the whole of a name."""
    time_strategy: str | None = None
    """Where nothing was published at the time to begin at or later: ``error``, ``latest``, or None for the default."""
    subscription: str | None = None
    """Under which name the service shows where a stream stands."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Read them. Raises ValueError, whose text names the option and never shows a token: also for one that is not known."""
        given = lower_cased(given, KNOWN)
        refuse_unknown(given, KNOWN, "source")
        topics, pattern = _topics(given)
        poll_wait_ms = whole_number(given, "pollWaitMs", 0)
        subscription = given.get("subscription")
        if subscription is not None and not SUBSCRIPTION_PATTERN.fullmatch(subscription):
            raise ValueError(f"option subscription is no name of a subscription: {subscription[:100]!r}")
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
            pattern,
            choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest")),
            subscription,
        )

    def check_batch(self) -> None:
        """Raises ValueError for what a batch has not: triggers, and a position that moves."""
        if self.subscription is not None:
            raise ValueError("option subscription shows where a stream stands; a batch has no position")
        if self.max_offsets is not None or self.max_bytes is not None:
            raise ValueError("a batch has no trigger, so maxOffsetsPerTrigger and maxBytesPerTrigger are for streams")

    def check_stream(self) -> None:
        """Raises ValueError for what a stream has not: an end."""
        if self.end != "latest":
            raise ValueError("a stream has no end: endingOffsets and endingTimestamp are for batches; see Trigger.AvailableNow")


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """Names, or a pattern."""
    option = one_of(given, ("subscribe", "topic", "subscribePattern", "assign"))
    if option is None:
        raise ValueError("which topic? Option subscribe names one, or several with commas between them")
    text = given[option.lower()]
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"option subscribePattern is a regular expression of Python, not {text!r}: {error}") from None
        return (), text
    names = _assigned(text) if option == "assign" else text.split(",") if option == "subscribe" else [text]
    topics = {name.strip() for name in names} - {""}
    if not topics:
        raise ValueError(f"option {option} names no topic: {text!r}")
    return tuple(sorted(topics)), None


def _assigned(text: str) -> list[str]:
    """Kafka's form, {"a": [0]}; a topic here has one partition."""
    with suppress(ValueError):
        partitions = json.loads(text)
        if isinstance(partitions, dict) and all(each == [0] for each in partitions.values()):
            return list(partitions)
    raise ValueError(f'option assign is JSON such as {{"readings": [0]}}: a topic has partition 0 and no other; not {text!r}')


def _edge(given: Mapping[str, str], which: str, topics: tuple[str, ...]) -> Edge | None:
    """As in Kafka's source, a timestamp goes before timestamps of each topic, and those before offsets."""
    timestamp = whole_number(given, f"{which}Timestamp", 0)
    if timestamp is not None:
        return AtTime(timestamp)
    example = json.dumps(dict.fromkeys(topics, 0))
    option = f"{which}OffsetsByTimestamp"
    if option.lower() in given:
        wanted = f"option {option} is a time of each topic in ms as JSON, such as {example}"
        return AtTimes(_by_topic(given[option.lower()], topics, wanted, 0))
    option = f"{which}Offsets"
    text = given.get(option.lower(), "").strip()
    match text.lower():
        case "":
            return None
        case "earliest" | "latest" as edge:
            return edge
    wanted = f"option {option} is earliest, latest or an offset of each topic as JSON, such as {example}"
    return AtOffsets(_by_topic(text, topics, f"{wanted} ({EARLIEST}: earliest, {LATEST}: latest)", EARLIEST))


def _by_topic(text: str, topics: tuple[str, ...], wanted: str, least: int) -> dict[str, int]:
    """A number of each topic. Raises ValueError, which begins with ``wanted``."""
    if not topics:
        raise ValueError(f"{wanted}: it needs the names of the topics, as in option subscribe; a pattern has none")
    try:
        by_topic = json.loads(text)
    except ValueError:
        raise ValueError(f"{wanted}, not {text!r}") from None
    if not isinstance(by_topic, dict) or by_topic.keys() != set(topics):
        raise ValueError(f"{wanted}, for {', '.join(topics)} and no other; not {text!r}")
    # Kafka's form has a number of each partition; a topic here has one.
    given = {topic: one["0"] if isinstance(one, dict) and one.keys() == {"0"} else one for topic, one in sorted(by_topic.items())}
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= least for number in given.values()):
        raise ValueError(f"{wanted}, not {text!r}")
    return given
