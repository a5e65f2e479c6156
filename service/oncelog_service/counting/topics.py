"""What is counted of topics: of each that is in use, and which of them are shown each by itself.

A series that is watched must not fall, and the number of series must not grow with that of topics. So the rules are:

* What happens is counted once in the series of its topic, if that has one at that moment, and else in that of all others. So the
  rates of all series add up to the rate of everything; none falls, whoever gets a series or loses it.
* As long as fewer than the most allowed have one, a topic gets it when it is first used. From then on one whose topic is not in
  use any more, or has had less than half the traffic, may make place for a busier one of the others; that is looked at when the
  metrics are read, at most every ten minutes. The series that ends says its last then, and the new one begins with 0.
* What a series has counted that ended is in none of the others. Added there it would be a burst that never was.

What is counted of a topic lives as long as the topic is open, or has a series.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import nlargest
from weakref import WeakValueDictionary

TopicName = tuple[str, str]
"""(namespace, topic)."""

REVIEW_SECONDS = 600.0
"""A series that ends and one that begins are both kept by whoever reads the metrics: so not often."""


@dataclass(slots=True)
class Tally:
    """What happened, on one topic or on several."""

    messages: int = 0
    """That were stored."""
    bytes: int = 0
    """That were taken in: payloads, keys and properties, as quotas count them."""
    duplicates: int = 0
    """Messages that were answered as duplicates."""
    fenced: int = 0
    """Requests refused as ``producer_fenced``."""
    fenced_consumers: int = 0
    """Requests refused as ``consumer_fenced``."""
    gaps: int = 0
    """Requests refused as ``sequence_gap``."""
    delivered: int = 0
    """Messages that were handed to readers and consumers."""
    delivered_bytes: int = 0
    """Of the answers that had them."""

    def add(self, other: Tally, times: int = 1) -> None:
        """Adds another one so many times; -1: takes it away."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))

    def without(self, others: Iterable[Tally]) -> Tally:
        """Returns what is left of it."""
        left = replace(self)
        for each in others:
            left.add(each, -1)
        return left


class TopicCounts:
    """Counts what happens on one topic, and on all of them."""

    __slots__ = ("__weakref__", "_all", "own", "reviewed")

    def __init__(self, all_: Tally) -> None:
        self._all = all_
        self.own = Tally()
        """Since this topic was first used, or used again."""
        self.reviewed = 0
        """Its traffic as of the last review."""

    @property
    def traffic(self) -> int:
        """Messages that came and went."""
        return self.own.messages + self.own.duplicates + self.own.delivered

    def stored(self, messages: int) -> None:
        """Notes that so many are on disk."""
        self.own.messages += messages
        self._all.messages += messages

    def taken_in(self, size: int) -> None:
        """Notes so many bytes that are handed over to be written."""
        self.own.bytes += size
        self._all.bytes += size

    def repeated(self, messages: int) -> None:
        """Notes so many duplicates."""
        self.own.duplicates += messages
        self._all.duplicates += messages

    def handed_out(self, messages: int, size: int) -> None:
        """Notes so many messages, in an answer of so many bytes."""
        self.own.delivered += messages
        self.own.delivered_bytes += size
        self._all.delivered += messages
        self._all.delivered_bytes += size

    def fenced(self) -> None:
        """Notes a request under an epoch of before."""
        self.own.fenced += 1
        self._all.fenced += 1

    def fenced_consumer(self) -> None:
        """Notes a request of a consumer under an epoch of before."""
        self.own.fenced_consumers += 1
        self._all.fenced_consumers += 1

    def left_out(self) -> None:
        """Notes a request that leaves out sequence ids, of a producer that refuses gaps."""
        self.own.gaps += 1
        self._all.gaps += 1


class _Series:
    """A topic's own, since it has one."""

    __slots__ = ("base", "counts")

    def __init__(self, counts: TopicCounts) -> None:
        self.counts = counts
        self.base = replace(counts.own)

    @property
    def shown(self) -> Tally:
        return self.counts.own.without([self.base])


class TopicsCounted:
    """All topics of one process, over all openings of its store. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        """``most``: how many have a series of their own."""
        self.all = Tally()
        """Of every topic, also those that are not in use any more."""
        self._most = most
        self._counted: WeakValueDictionary[TopicName, TopicCounts] = WeakValueDictionary()
        self._series: dict[TopicName, _Series] = {}
        self._ended = Tally()
        """What the series have counted that ended."""
        self._reviewed_at = -REVIEW_SECONDS

    def of(self, name: TopicName) -> TopicCounts:
        """Returns what is counted of a topic from now on, by whoever holds it."""
        counts = self._counted.get(name)
        if counts is None:
            counts = self._counted[name] = TopicCounts(self.all)
            if len(self._series) < self._most:
                self._series[name] = _Series(counts)
        return counts

    def find(self, name: TopicName) -> TopicCounts | None:
        """The same for a topic that may not be in use; None: it is not."""
        return self._counted.get(name)

    def series(self, now: float, in_use: Collection[TopicName]) -> Iterator[tuple[TopicName, Tally]]:
        """Yields what each series says: first of those that end with this, then of all that go on.

        ``now``: seconds of a clock that is never set back. ``in_use``: topics that are open.
        """
        if now - self._reviewed_at >= REVIEW_SECONDS:
            self._reviewed_at = now
            yield from self._review(in_use)
        for name, series in self._series.items():
            yield name, series.shown

    @property
    def others(self) -> Tally:
        """What was counted of topics while they had no series."""
        return self.all.without([self._ended, *(series.shown for series in self._series.values())])

    def _review(self, in_use: Collection[TopicName]) -> list[tuple[TopicName, Tally]]:
        """Lets the busiest of the others have the place of who is less busy; returns what the series say that end."""
        counted = dict(self._counted)
        recent = {name: counts.traffic - counts.reviewed for name, counts in counted.items()}
        for counts in counted.values():
            counts.reviewed = counts.traffic
        others = ((traffic, name) for name, traffic in recent.items() if traffic and name not in self._series)
        busiest = nlargest(self._most, others)
        idlest = sorted((recent[name] if name in in_use else -1, name) for name in self._series)
        ended = list[tuple[TopicName, Tally]]()
        for (traffic, name), (least, idle) in zip(busiest, idlest, strict=False):
            if traffic <= 2 * least:
                break
            last = self._series.pop(idle).shown
            self._ended.add(last)
            self._series[name] = _Series(counted[name])
            ended.append((idle, last))
        return ended
