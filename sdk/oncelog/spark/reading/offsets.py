"""Where a stream stands, and how far its next batch goes. Pure: given what the service answered, asking nothing.

What is in Spark's log is read by later versions: every text carries its version. An end offset says where its batch begins
(``base``), too: Spark's log holds ends alone, and a beginning like "latest" would be another one after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from oncelog.wire.models import TopicOffsets

VERSION = 1
EARLIEST, LATEST = -2, -1
"""Instead of an offset, as Kafka's source has them."""

Json = dict[str, Any]


# --- where to begin or to end -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtTime:
    """At the first message published at this time, in ms, or later."""

    timestamp: int


@dataclass(frozen=True)
class AtTimes:
    """At a time of each topic."""

    timestamps: Mapping[str, int]


@dataclass(frozen=True)
class AtOffsets:
    """At an offset of each topic, or at EARLIEST or LATEST."""

    offsets: Mapping[str, int]


Edge = Literal["earliest", "latest"] | AtTime | AtTimes | AtOffsets


def place(edge: Edge, topic: str) -> int | AtTime:
    """What ``edge`` means on one topic: an offset, EARLIEST, LATEST or a time."""
    if isinstance(edge, AtOffsets):
        return edge.offsets[topic]
    if isinstance(edge, AtTimes):
        return AtTime(edge.timestamps[topic])
    return edge if isinstance(edge, AtTime) else EARLIEST if edge == "earliest" else LATEST


def offset_of(at: int | AtTime, known: TopicOffsets) -> int:
    """The offset of a place. ``known`` was asked with its time. It may lie before the oldest message or be unsettled."""
    if isinstance(at, AtTime):
        first = known.stable if known.at_timestamp is None else known.at_timestamp
        return max(known.earliest, min(first, known.stable))
    return {EARLIEST: known.earliest, LATEST: known.stable}.get(at, at)


# --- where a stream stands --------------------------------------------------------------------------------------------


class Position(NamedTuple):
    """Of one topic."""

    base: int
    """Where the batch began that ended here."""
    pos: int
    """Where the next one begins."""
    generation: int
    """Of the topic."""
    oldest: bool = False
    """``base`` was the oldest message, whichever that is: what expires before anything was read is not missed."""

    @property
    def is_at_oldest(self) -> bool:
        """Nothing was read yet, and whatever is oldest then is to be the first."""
        return self.oldest and self.pos == self.base


Positions = Mapping[str, Position]
"""By topic."""


def unresolved(edge: Edge) -> Json:
    """The first offset of a stream: what the options say. What it means is in the end offset of the first batch."""
    return {"v": VERSION, "start": edge if isinstance(edge, str) else asdict(edge)}


def to_json(positions: Positions) -> Json:
    """What Spark logs."""
    fields = {topic: positions[topic]._asdict() for topic in sorted(positions)}
    for one in fields.values():
        if not one["oldest"]:
            del one["oldest"]
    return {"v": VERSION, "topics": fields}


def from_json(offset: Json) -> Positions | None:
    """The positions; None for what is unresolved. Raises ValueError for an offset of another version."""
    version = offset.get("v")
    if version != VERSION:
        raise ValueError(f"the checkpoint holds an offset of version {version}; this oncelog reads version {VERSION}: {offset}")
    if "start" in offset:
        return None
    return {topic: Position(**position) for topic, position in offset["topics"].items()}


# --- how far the next batch goes --------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """What cannot be read any more."""

    topic: str
    first: int
    """Where reading should have gone on."""
    earliest: int
    """Where it can."""
    anew: bool = False
    """The topic was deleted and created anew."""
    gone: bool = False
    """The topic was deleted."""

    def __str__(self) -> str:
        if self.gone:
            return f"topic {self.topic} was deleted: what was left of it behind offset {self.first} is lost"
        if self.anew:
            return (
                f"topic {self.topic} was deleted and created anew: what was left of the old one behind offset {self.first} is "
                f"lost; the new one begins at {self.earliest}"
            )
        return (
            f"topic {self.topic}: the messages from offset {self.first} to {self.earliest - 1} are not there any more "
            "(expired, or deleted by retention)"
        )


def pinned(edge: Edge, known: Mapping[str, TopicOffsets], *, or_latest: bool = False) -> dict[str, Position]:
    """An empty batch where the stream begins. Raises ValueError where that lies beyond what is stable.

    ``or_latest``: where nothing was published at the time of ``edge`` or later, behind the last message; else that is refused,
    as by Kafka's source: of a time in the future, what is published before it would be read.
    """
    positions = {}
    for topic, offsets in known.items():
        at = place(edge, topic)
        begin = offset_of(at, offsets)
        if isinstance(edge, AtOffsets) and begin > offsets.stable:
            raise ValueError(f"startingOffsets: {begin} of topic {topic}, whose messages go up to {offsets.stable} yet")
        if isinstance(at, AtTime) and begin >= offsets.stable and not or_latest:
            raise no_match(at, topic)
        positions[topic] = Position(begin, begin, offsets.generation, at == EARLIEST)
    return positions


def no_match(at: AtTime, topic: str) -> ValueError:
    """What is raised where a time to begin at lies behind the last message."""
    return ValueError(
        f"startingTimestamp: no message of topic {topic} was published at {at.timestamp} ms or later; "
        "startingOffsetsByTimestampStrategy=latest begins behind the last one"
    )


def begins(start: Positions, known: Mapping[str, TopicOffsets]) -> tuple[dict[str, int], list[Loss]]:
    """Where the next batch begins on each topic, and what is lost before that.

    A topic that the stream has not met begins at its oldest message, as Kafka's new partitions do.
    """
    at, losses = {}, []
    for topic, offsets in known.items():
        before = start.get(topic)
        loss = None if before is None else loss_at(topic, before.pos, before.generation, offsets)
        at[topic] = offsets.earliest if before is None or loss is not None else before.pos
        # A topic made anew is a loss even where nothing was read yet: what the old one had was promised by its pin.
        if before is not None and loss is not None and (loss.anew or not before.is_at_oldest):
            losses.append(loss)
    return at, losses


def loss_at(topic: str, first: int, generation: int | None, known: TopicOffsets) -> Loss | None:
    """What is lost for one who goes on at ``first``."""
    anew = generation is not None and known.generation != generation
    return Loss(topic, first, known.earliest, anew) if anew or first < known.earliest else None


def advanced(
    start: Positions,
    at: Mapping[str, int],
    known: Mapping[str, TopicOffsets],
    max_offsets: int | None = None,
) -> dict[str, Position] | None:
    """The end of the next batch; None where it would be empty and nothing else is to be noted either.

    It never goes beyond what is stable, so that it holds the same messages whenever it is read.

    Args:
        at: Where it begins, by topic (:func:`begins`).
        max_offsets: At most so many offsets, shared in proportion to what is waiting.
    """
    waiting = {topic: max(0, known[topic].stable - begin) for topic, begin in at.items()}
    taken = waiting if max_offsets is None else share(max_offsets, waiting)
    moved = {
        topic: Position(begin, begin + taken[topic], known[topic].generation, topic not in start or start[topic].is_at_oldest)
        for topic, begin in at.items()
    }
    if all(topic in start and (one.pos, one.generation) == start[topic][1:3] for topic, one in moved.items()):
        return None
    # A topic that is not subscribed any more keeps its position: with it again, the stream misses nothing.
    kept = {topic: Position(old.pos, old.pos, old.generation, old.is_at_oldest) for topic, old in start.items()}
    return {**kept, **moved}


def capped(known: Mapping[str, TopicOffsets], target: Mapping[str, TopicOffsets]) -> dict[str, TopicOffsets]:
    """``known`` as if nothing had come since ``target`` was answered."""
    found = {}
    for topic, now in known.items():
        then = target.get(topic)
        upto = now.earliest if then is None or then.generation != now.generation else min(now.stable, then.stable)
        found[topic] = now.model_copy(update={"stable": upto})
    return found


def fitting(
    at: Mapping[str, int], known: Mapping[str, TopicOffsets], asked: Mapping[str, TopicOffsets]
) -> dict[str, TopicOffsets]:
    """``known``, but no further than what fits ``within``, as ``asked`` says of some topics: behind what begins ``at`` there."""
    found = dict(known)
    for topic, answer in asked.items():
        # Between the two answers a topic may have been made anew: how far the new one's bytes go says nothing of this one.
        within = answer.within if answer.generation == known[topic].generation else at[topic]
        if within is not None and within < known[topic].stable:
            found[topic] = known[topic].model_copy(update={"stable": within})
    return found


def behind(positions: Positions, newest: Mapping[str, TopicOffsets]) -> Json:
    """How many offsets each topic is stable beyond its position: numbers named as the metrics of Kafka's source."""
    lags = [max(0, newest[topic].stable - positions[topic].pos) for topic in sorted(positions.keys() & newest.keys())]
    if not lags:
        return {}
    return {
        "avgOffsetsBehindLatest": sum(lags) / len(lags),
        "maxOffsetsBehindLatest": max(lags),
        "minOffsetsBehindLatest": min(lags),
    }


# --- sharing and splitting --------------------------------------------------------------------------------------------


def share(total: int, wishes: Mapping[str, int]) -> dict[str, int]:
    """``total`` in proportion to the wishes, no one more than wished; each something, where there is enough for that.

    What is handed out is ``total`` or all the wishes, whichever is less.
    """
    if sum(wishes.values()) <= total:
        return dict(wishes)
    shares = dict.fromkeys(wishes, 0)
    served = sorted((name for name in wishes if wishes[name]), key=lambda name: (wishes[name], name))[-total:] if total else []
    rest, still = total, sum(wishes[name] for name in served)
    for name in served:  # the smallest first: what is rounded down goes to the others, so that the parts sum up exactly
        shares[name] = max(1, rest * wishes[name] // still)
        rest, still = rest - shares[name], still - wishes[name]
    return shares


class Range(NamedTuple):
    """Offsets of one topic from ``first`` to below ``upto``."""

    topic: str
    first: int
    upto: int
    generation: int | None
    oldest: bool = False
    """``first`` was the oldest message, whichever that is."""


def ranges(end: Positions) -> list[Range]:
    """What a batch holds that ends there."""
    return [Range(topic, *position) for topic, position in sorted(end.items()) if position.pos > position.base]


def split(whole: Sequence[Range], parts: int | None) -> list[Range]:
    """The same offsets in the same order, in at least ``parts`` ranges of about the same size if there are so many offsets."""
    if parts is None or parts <= len(whole):
        return list(whole)
    sizes = {str(index): one.upto - one.first for index, one in enumerate(whole)}
    return [part for pieces, one in zip(share(parts, sizes).values(), whole, strict=True) for part in _cut(one, pieces)]


def _cut(whole: Range, pieces: int) -> list[Range]:
    size = whole.upto - whole.first
    # Only the first piece may begin later than planned: behind it every offset was there when the batch was planned.
    bounds = [whole.first + size * piece // pieces for piece in range(pieces + 1)]
    return [
        whole._replace(first=first, upto=upto, oldest=whole.oldest and first == whole.first) for first, upto in pairwise(bounds)
    ]
