"""What an audit has found: pieces put together, held against the service's own maps, and judged. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any

from oncelog.spark.jobs.audit_pass import MINUTE_MS, MINUTES, OFFSETS, PRODUCERS
from oncelog.wire.models import Producer

Piece = Mapping[str, Any]


@dataclass(slots=True)
class ProducerFindings:
    """One producer on one topic."""

    topic: str
    producer: str
    messages: int = 0
    first_sequence_id: int = 0
    last_sequence_id: int = 0
    """The highest one among the messages."""
    duplicates: int = 0
    """Messages whose sequence id had been there before."""
    gaps: int = 0
    """Places at which sequence ids were passed over."""
    missing: int = 0
    """How many ids were."""
    disorder: int = 0
    """Messages with a lower offset than the one before them in their producer's order."""
    refuses_gaps: bool = False
    """Whether the service is to refuse this producer's gaps."""


@dataclass(slots=True)
class TopicFindings:
    """One topic."""

    topic: str
    messages: int = 0
    unnamed: int = 0
    """Messages without a producer: nothing can be said about their repetition."""
    producers: int = 0
    first_offset: int = 0
    last_offset: int = 0
    """Of what was looked at; below the first where there was nothing."""
    duplicates: int = 0
    gaps: int = 0
    missing: int = 0
    disorder: int = 0
    offsets_twice: int = 0
    holes: int = 0
    """Places at which offsets were passed over."""
    missing_offsets: int = 0
    ids_not_rising: int = 0
    per_minute: dict[int, int] = field(default_factory=dict, repr=False)
    """Messages by the minute, in ms since 1970, in which they were published."""


@dataclass(slots=True)
class Audit:
    """The outcome: ``ok`` only if there is no violation."""

    of: str
    """What was audited, in words."""
    topics: list[TopicFindings]
    producers: list[ProducerFindings]
    """By topic and name."""
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and violates nothing."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Some of the messages with which something is wrong."""
    maps_compared: bool = False
    """Whether the service's own maps were held against it."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether everything is there once and in order."""
        return not self.violations

    @property
    def messages(self) -> int:
        """Over all topics."""
        return sum(topic.messages for topic in self.topics)

    def as_json(self) -> dict[str, Any]:
        """All but the messages per minute, for machines."""
        value = asdict(self)
        for topic in value["topics"]:
            del topic["per_minute"]
        return {"ok": self.ok, "messages": self.messages, **value}


def put_together(of: str, pieces: Iterable[Piece]) -> Audit:
    """The findings over all pieces, what lies between two stretches included."""
    kinds: dict[str, dict[tuple[str, ...], list[Piece]]] = {kind: defaultdict(list) for kind in (PRODUCERS, OFFSETS, MINUTES)}
    for piece in pieces:
        key = (piece["topic"], piece["producer"]) if piece["kind"] == PRODUCERS else (piece["topic"],)
        kinds[piece["kind"]][key].append(piece)
    topics = {topic: _topic(topic, stretches) for (topic,), stretches in sorted(kinds[OFFSETS].items())}
    producers = []
    for (topic, name), stretches in sorted(kinds[PRODUCERS].items(), key=lambda each: (each[0][0], each[0][1] or "")):
        if name is None:
            topics[topic].unnamed += sum(stretch["messages"] for stretch in stretches)
        else:
            producers.append(_producer(topic, name, stretches))
    for found in producers:
        of_topic = topics[found.topic]
        of_topic.producers += 1
        for count in ("duplicates", "gaps", "missing", "disorder"):
            setattr(of_topic, count, getattr(of_topic, count) + getattr(found, count))
    for (topic,), minutes in kinds[MINUTES].items():
        topics[topic].per_minute = {piece["minute"] * MINUTE_MS: piece["messages"] for piece in minutes}
    return Audit(of, list(topics.values()), producers)


def _topic(name: str, stretches: list[Piece]) -> TopicFindings:
    stretches.sort(key=itemgetter("first_offset"))
    passed_over = [after["first_offset"] - before["last_offset"] - 1 for before, after in pairwise(stretches)]
    falls = [after["first_ms"] < before["last_ms"] for before, after in pairwise(stretches)]
    return TopicFindings(
        name,
        messages=_sum(stretches, "messages"),
        first_offset=stretches[0]["first_offset"],
        last_offset=stretches[-1]["last_offset"],
        offsets_twice=_sum(stretches, "twice"),
        holes=_sum(stretches, "holes") + sum(each > 0 for each in passed_over),
        missing_offsets=_sum(stretches, "missing_offsets") + sum(passed_over),
        ids_not_rising=_sum(stretches, "id_falls") + sum(falls),
    )


def _producer(topic: str, name: str, stretches: list[Piece]) -> ProducerFindings:
    stretches.sort(key=itemgetter("first_sequence_id"))
    passed_over = [after["first_sequence_id"] - before["last_sequence_id"] - 1 for before, after in pairwise(stretches)]
    falls = [after["first_original"] < before["last_original"] for before, after in pairwise(stretches)]
    return ProducerFindings(
        topic,
        name,
        messages=_sum(stretches, "messages"),
        first_sequence_id=stretches[0]["first_sequence_id"],
        last_sequence_id=stretches[-1]["last_sequence_id"],
        duplicates=_sum(stretches, "repeats"),
        gaps=_sum(stretches, "gaps") + sum(each > 0 for each in passed_over),
        missing=_sum(stretches, "missing") + sum(passed_over),
        disorder=_sum(stretches, "disorder") + sum(falls),
    )


def _sum(stretches: list[Piece], count: str) -> int:
    return sum(stretch[count] or 0 for stretch in stretches)


def stretch(audit: Audit, name: str, earliest: int, stable: int, *, exact: bool) -> TopicFindings:
    """Hold what was found of a topic against where the service says that it begins and is stable; adds violations and notes.

    ``exact``: all of that was read, so what is not there at an end is missing. Else what was audited may have begun later and
    have ended before; but where the topic has something, something must be there.
    """
    found = next((topic for topic in audit.topics if topic.topic == name), None)
    if found is None:
        found = TopicFindings(name, first_offset=earliest, last_offset=earliest - 1)
        audit.topics.append(found)
    ends = (found.first_offset - earliest, stable - 1 - found.last_offset)
    if exact:
        found.missing_offsets += sum(ends)
        found.holes += sum(end > 0 for end in ends)
        found.first_offset, found.last_offset = earliest, stable - 1
    elif found.messages == 0 and stable > earliest:
        audit.violations.append(f"{name}: nothing of it is there, and the service has offsets {earliest:,} to {stable - 1:,}")
    else:
        if ends[0] > 0:
            audit.notes.append(f"{name}: the service has {ends[0]:,} offsets before the first one that was audited")
        if ends[1] > 0:
            audit.notes.append(f"{name}: the service has {ends[1]:,} offsets behind the last one that was audited")
    return found


def compare(audit: Audit, topic: TopicFindings, maps: Iterable[Producer], *, allow_holes: bool) -> None:
    """Hold the producers found on a topic against the service's live map of it; adds violations and notes.

    ``allow_holes``: a newest message that is not there may have expired, where other offsets are not there either.
    """
    known = {producer.name: producer for producer in maps}
    lost = audit.notes if allow_holes and topic.missing_offsets else audit.violations
    audit.maps_compared = True
    for found in audit.producers:
        if found.topic != topic.topic:
            continue
        live = known.pop(found.producer, None)
        found.refuses_gaps = live is not None and live.gaps == "refuse"
        last = None if live is None else live.last_persisted
        if last is None or last < found.last_sequence_id:
            audit.violations.append(
                f"{topic.topic}: {found.producer} has sequence id {found.last_sequence_id} in the log, and the service knows "
                f"{'none' if last is None else f'only up to {last}'}: it would store it again"
            )
        elif live is not None and last > found.last_sequence_id and _within(live, topic):
            lost.append(_lost(topic, live, f"ends with {found.last_sequence_id}"))
    lost += [_lost(topic, live, "has nothing of it") for live in known.values() if _within(live, topic)]


def _within(live: Producer, topic: TopicFindings) -> bool:
    """Whether a producer's newest message lies where messages were looked at."""
    return (
        live.last_persisted is not None
        and live.last_offset is not None
        and topic.first_offset <= live.last_offset <= topic.last_offset
    )


def _lost(topic: TopicFindings, live: Producer, instead: str) -> str:
    return (
        f"{topic.topic}: the service has sequence id {live.last_persisted} of {live.name} at offset {live.last_offset}; "
        f"what was audited {instead}"
    )


def judge(audit: Audit, *, no_gaps: bool, allow_holes: bool) -> None:
    """Say what of the findings is a violation and what is only worth knowing."""
    for topic in audit.topics:
        counts = (
            (topic.duplicates, "messages whose sequence id had been there before"),
            (topic.disorder, "messages out of their producer's order"),
            (topic.offsets_twice, "messages at an offset that another one has"),
            (topic.ids_not_rising, "messages whose id is not above the one before"),
        )
        audit.violations += [f"{topic.topic}: {count:,} {what}" for count, what in counts if count]
        if topic.missing_offsets:
            said = audit.notes if allow_holes else audit.violations
            said.append(f"{topic.topic}: {topic.missing_offsets:,} offsets are not there, at {topic.holes:,} places")
        if topic.unnamed:
            audit.notes.append(
                f"{topic.topic}: {topic.unnamed:,} messages have no producer: whether one was sent twice is not known"
            )
    for producer in audit.producers:
        if producer.missing:
            said = audit.violations if no_gaps or producer.refuses_gaps else audit.notes
            said.append(
                f"{producer.topic}: {producer.producer} passed over {producer.missing:,} sequence ids at {producer.gaps:,} places"
                + (", although its gaps are refused" if producer.refuses_gaps else "")
            )
