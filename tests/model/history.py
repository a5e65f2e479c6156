"""What the clients of a world asked for and were answered, and what must then hold of the logs. It knows no product.

A *group* is what is there as a whole or not at all: one message, the messages of a request, of a transaction, of an atomic
commit. Its payloads are its own: no other group has one of them. What is promised:

* offsets are dense, ids and timestamps rise, the sequence ids of a producer rise;
* what was acknowledged is there, once, where the receipt said; what was refused is not; of the rest all of a group or nothing;
* what was sent when another message was acknowledged already comes behind that;
* the messages of one request, or of one commit on a topic, lie side by side; commits have one order on all topics;
* what was trimmed, has expired or was erased is missing there, or is there empty, and nothing else;
* every reader is given the log itself: each message once, in its place, none before it is decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, Literal, NamedTuple, TypeAlias

Fate: TypeAlias = Literal["open", "there", "gone"]
"""What is known of a group: nothing, or what must be so for ever."""


class Found(NamedTuple):
    """A message as a reader is given it."""

    offset: int
    message_id: bytes
    producer: str | None
    sequence_id: int | None
    payload: bytes


class Place(NamedTuple):
    """Where a receipt says that a message is; None: it does not say."""

    offset: int | None
    message_id: bytes | None
    only: int | None = None
    """If it is there, then here."""


NOWHERE = Place(None, None)


@dataclass(eq=False)
class Sent:
    """A message, however often it is sent."""

    topic: str
    payload: bytes
    producer: str | None
    sequence_id: int | None
    begun: float
    """When it was sent first."""
    acknowledged: float | None = None
    """When it was acknowledged first, where that says that others see it."""
    place: Place = NOWHERE


@dataclass(eq=False)
class Group:
    """Messages that are all there or all not."""

    name: str
    messages: list[Sent]
    fate: Fate = "open"
    beside: bool = False
    """Those of one topic lie side by side."""
    order: str | None = None
    """Groups of the same order have it on all topics."""


@dataclass(eq=False)
class Reading:
    """What one reader was given."""

    name: str
    topic: str
    given: list[Found] = field(default_factory=list)
    repeats: bool = False
    """It may be given a message again, after all that came behind it."""
    undone: Callable[[bytes], bool] = lambda _: False
    """Whether it may be given this payload although that is rolled back."""
    sees: Callable[[int], bool] = lambda _: True
    """Whether it may be given what was written under this pointer."""
    acknowledged: int = -1
    """Up to here it is not given anything again."""

    def receive(self, found: Found) -> None:
        """It is given a message."""
        assert found.offset > self.acknowledged, f"{self.name} is given {found}, and has acknowledged {self.acknowledged}"
        self.given.append(found)


class History:
    """What happened so far."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.groups: dict[str, Group] = {}
        self.promised: set[str] = set()
        """Names of groups that must be there at the end."""
        self.pointers: dict[int, Group] = {}
        """Write pointer → the messages of its transaction; what became of it is asked for at the end."""
        self.trimmed: dict[str, float] = {}
        """Topic → below which offset its messages may be gone."""
        self.gone_below: dict[str, int] = {}
        """Topic → below which offset they are gone."""
        self.erased: set[tuple[str, int]] = set()
        """Topic and offset of what has been erased."""
        self._erased_perhaps: set[tuple[str, int]] = set()
        self.readings: list[Reading] = []
        self.errors: list[str] = []
        """What clients were answered that no client should be."""

    # --- what clients ask for, and are answered

    def begin(self, name: str, messages: Iterable[Sent], *, beside: bool = False, order: str | None = None) -> Group:
        """A group, from before the first of it is sent; the same name again is the same group."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Group(name, list(messages), beside=beside, order=order)
        return found

    def message(self, topic: str, payload: bytes, producer: str | None = None, sequence_id: int | None = None) -> Sent:
        """One that is about to be sent."""
        return Sent(topic, payload, producer, sequence_id, self._now())

    def decided(self, group: Group, fate: Fate) -> None:
        """An answer said so."""
        assert group.fate in ("open", fate), f"{group.name} was {group.fate}, and is answered {fate}"
        group.fate = fate

    def received(self, sent: Sent, offset: int | None, message_id: bytes | None) -> None:
        """A receipt came."""
        place = Place(offset, message_id)
        if sent.acknowledged is None:
            sent.acknowledged = self._now()
        if offset is not None:
            assert sent.place in (NOWHERE, place), f"{sent.payload!r} was at {sent.place}, and is answered {place}"
            sent.place = place

    def reading(self, name: str, topic: str, **how: Any) -> Reading:
        """A reader, whatever becomes of the processes in which it reads."""
        self.readings.append(Reading(name, topic, **how))
        return self.readings[-1]

    def trims(self, topic: str, before: int) -> None:
        """The messages below an offset are about to be removed."""
        self.trimmed[topic] = max(before, self.trimmed.get(topic, 0))

    def expires(self, topic: str) -> None:
        """Its messages are removed with time."""
        self.trimmed[topic] = inf

    def erases(self, topic: str, offset: int) -> None:
        """A message is about to be erased."""
        self._erased_perhaps.add((topic, offset))

    # --- what must hold

    def check(self, logs: Mapping[str, Sequence[Found]]) -> None:
        """Hold everything against the logs of all topics: what is committed, from offset 0."""
        assert not self.errors, self.errors[:5]
        places: dict[tuple[str, bytes], Found] = {}
        for topic, log in logs.items():
            assert not log or log[0].offset >= self.gone_below.get(topic, 0), f"{topic}: {log[0]} was trimmed"
            told = [(topic, found.offset) for found in log if found.payload]
            assert self.erased.isdisjoint(told), f"{topic}: {self.erased.intersection(told)} were erased"
        logs = {topic: self._unerased(topic, log) for topic, log in logs.items()}
        for topic, log in logs.items():
            check_log(topic, log)
            for found in log:
                assert (topic, found.payload) not in places, f"{topic}: {found.payload!r} is there twice"
                places[topic, found.payload] = found
        known = {(sent.topic, sent.payload) for group in self.groups.values() for sent in group.messages}
        stray = sorted(places.keys() - known)
        assert not stray, f"nobody sent {stray[:5]}"
        for group in self.groups.values():
            self._check_group(group, places)
        for name in sorted(self.promised):
            group = self.groups.get(name)
            assert group is not None, name
            there = all((sent.topic, sent.payload) in places or self._is_trimmed(sent) for sent in group.messages)
            assert there, f"{name} is not there, and its client is done"
        for topic in logs:
            self._check_precedence(topic, places)
        self._check_orders(places)
        for reading in self.readings:
            reading.given = self._unerased(reading.topic, reading.given)
            check_reading(reading, logs[reading.topic], self.trimmed.get(reading.topic, 0))
            given = {(reading.topic, each.payload) for each in reading.given}
            for pointer, group in self.pointers.items():
                early = given & {(sent.topic, sent.payload) for sent in group.messages}
                assert not early or reading.sees(pointer), f"{reading.name} was given {early}, decided after it began"

    def _is_trimmed(self, sent: Sent) -> bool:
        """Whether it may be gone."""
        return self.trimmed.get(sent.topic, 0) > (sent.place.offset or 0)

    def _unerased(self, topic: str, log: Sequence[Found]) -> list[Found]:
        """Messages with what was in those that may have been erased."""
        sent = {
            (each.producer, each.sequence_id): each
            for group in self.groups.values()
            for each in group.messages
            if each.topic == topic
        }
        return [
            found._replace(payload=sent[found.producer, found.sequence_id].payload)
            if not found.payload and (topic, found.offset) in self._erased_perhaps
            else found
            for found in log
        ]

    def _check_group(self, group: Group, places: Mapping[tuple[str, bytes], Found]) -> None:
        present = [places.get((sent.topic, sent.payload)) for sent in group.messages]
        there = [found for found in present if found is not None]
        assert len(there) in (0, len(present)), f"{group.name}: {len(there)} of {len(present)} messages are there"
        kept = [
            each for each, found in zip(group.messages, present, strict=True) if found is not None or not self._is_trimmed(each)
        ]
        assert group.fate != "there" or len(there) == len(kept), f"{group.name} was acknowledged, and is not there"
        assert group.fate != "gone" or not there, f"{group.name} was refused, and is there"
        for sent, found in zip(group.messages, present, strict=True):
            if found is None:
                continue
            assert found.producer == sent.producer or sent.producer is None, f"{sent} is there as {found}"
            assert found.sequence_id == sent.sequence_id or sent.sequence_id is None, f"{sent} is there as {found}"
            if sent.place.offset is not None:
                assert sent.place[:2] == (found.offset, found.message_id), f"{sent} is at {found}"
            assert sent.place.only in (None, found.offset), f"{sent} is at {found}"
        if group.beside and there:
            by_topic = defaultdict(list)
            for sent, found in zip(group.messages, there, strict=True):
                by_topic[sent.topic].append(found.offset)
            for topic, offsets in by_topic.items():
                expected = list(range(offsets[0], offsets[0] + len(offsets)))
                assert offsets == expected, f"{group.name} lies at {offsets} of {topic}"

    def _check_precedence(self, topic: str, places: Mapping[tuple[str, bytes], Found]) -> None:
        """Of two messages, one of which was sent when the other was acknowledged, that one comes behind the other."""
        sent = [each for group in self.groups.values() for each in group.messages if each.topic == topic]
        there = [(each, places[topic, each.payload].offset) for each in sent if (topic, each.payload) in places]
        answered = sorted((each.acknowledged, offset) for each, offset in there if each.acknowledged is not None)
        at, highest = 0, -1
        for each, offset in sorted(there, key=lambda pair: pair[0].begun):
            while at < len(answered) and answered[at][0] < each.begun:
                highest = max(highest, answered[at][1])
                at += 1
            assert offset > highest, f"{topic}: {each.payload!r} at {offset} was sent when {highest} was acknowledged"

    def _check_orders(self, places: Mapping[tuple[str, bytes], Found]) -> None:
        """Groups of one order follow each other in the same way on every topic that both are on."""
        first: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        for group in self.groups.values():
            for sent in group.messages if group.order is not None else ():
                found = places.get((sent.topic, sent.payload))
                if found is not None:
                    first[group.order or ""][sent.topic].setdefault(group.name, found.offset)
        for by_topic in first.values():
            ranked = [sorted(offsets, key=offsets.__getitem__) for offsets in by_topic.values()]
            for one, other in pairwise(ranked):
                both = set(one) & set(other)
                assert [each for each in one if each in both] == [each for each in other if each in both], (
                    "commits changed places"
                )


def check_log(topic: str, log: Sequence[Found]) -> None:
    """Offsets and ids rise, so do each producer's sequence ids."""
    last: dict[str, int] = {}
    for before, after in pairwise(log):
        assert before.offset < after.offset, f"{topic}: {after.offset} behind {before.offset}"
        assert before.message_id < after.message_id, f"{topic}: the id at {after.offset} does not rise"
    for found in log:
        if found.producer is not None and found.sequence_id is not None:
            assert last.get(found.producer, -1) < found.sequence_id, f"{topic}: {found} behind {last[found.producer]}"
            last[found.producer] = found.sequence_id


def check_reading(reading: Reading, log: Sequence[Found], trimmed: float = 0) -> None:
    """A reader is given the beginning of the log, each message once; one that begins anew goes on where it may. What is
    ``trimmed`` below that offset it may have been given before."""
    by_offset = {found.offset: at for at, found in enumerate(log)}
    upto = 0
    for given in reading.given:
        if given.offset not in by_offset and (reading.undone(given.payload) or given.offset < trimmed):
            continue  # it was rolled back, or is gone now
        assert given.offset in by_offset, f"{reading.name} was given {given}, which is not in {reading.topic}"
        at = by_offset[given.offset]
        assert log[at] == given, f"{reading.name} was given {given}, and {log[at]} is there"
        assert at == upto or (reading.repeats and at < upto), f"{reading.name} was given {given} behind {upto} messages"
        upto = at + 1
