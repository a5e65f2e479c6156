"""Ranges of offsets that hold the same messages whenever they are read, for readers that note offsets and come back: Spark.

A range is *stable* when every row of it is durable and the transaction of each is decided: then nothing is added to it, and
nothing is rolled back any more. What leaves it later is what expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oncelog.errors import InvalidRequest, MessagesExpired, OffsetOutOfRange
from oncelog.wire.columns import encode_message_columns
from oncelog.wire.models import TopicAsked, TopicOffsets
from oncelog_dedup import Run
from oncelog_service.clock import Clock
from oncelog_service.log.arrivals import Arrivals, Waiting
from oncelog_service.log.keep.expiry import Expiry, Living
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.read.columns import Range, end_within, read_columns
from oncelog_service.log.scan import find_offset, offset_from
from oncelog_service.reading import Scans, read
from oncelog_service.storage.keys import FIRST_ROW_ID, timestamp_prefix
from oncelog_service.storage.port import Store


class Ranges:
    """The stable ranges of one open topic. Works on the event loop that owns it."""

    __slots__ = ("_dedup", "_expiry", "_limits", "_prefix", "_scans", "_store", "_topic", "arrivals")

    def __init__(self, topic: OpenTopic, expiry: Expiry, scans: Scans) -> None:
        self._topic = topic
        self._prefix = topic.prefix
        self._store = topic.store
        self._dedup = topic.dedup
        self._limits = topic.limits
        self._expiry = expiry
        self._scans = scans
        self.arrivals = topic.stable_arrivals

    def check_open(self) -> None:
        """Raises StorageUnavailable once the topic takes nothing more."""
        self._topic.check_open()

    @property
    def stable(self) -> int:
        """Behind the last message before which everything is durable and decided."""
        return self._dedup.fold.stable.position.upcoming_offset

    @property
    def last_stable_id(self) -> bytes | None:
        """Id of that message; None if there is none."""
        return self._dedup.fold.stable.position.last_message_id

    @property
    def held_from(self) -> Run | None:
        """The first undecided messages, which end the stable part; None: nothing is held back."""
        return self._dedup.fold.oldest_unsettled

    async def offsets(self, asked: TopicAsked) -> TopicOffsets:
        """As :func:`offsets_of`, of this topic alone."""
        return (await offsets_of([(self, asked)]))[0]

    async def _look(self, asked: TopicAsked) -> _Look:
        """What is to be looked for in the store."""
        self._topic.check_open()
        stable = self.stable
        living = self._expiry.living()
        await self._expiry.hide(living)
        places = [living.begin]
        if asked.timestamp is not None:
            places.append(max(living.begin, timestamp_prefix(min(asked.timestamp, 2**63 - 1))))
        return _Look(self, asked, stable, places)

    async def _told(self, asked: TopicAsked, stable: int, earliest: int, at_timestamp: int | None) -> TopicOffsets:
        within = None
        if asked.after is not None and asked.max_bytes is not None:
            first, most = max(asked.after, earliest), min(asked.max_bytes, self._limits.max_sized_bytes)
            within = (
                stable if first >= stable else await self._scans.read(end_within, self._store, self._prefix, first, stable, most)
            )
        return TopicOffsets(
            generation=self._topic.generation, earliest=earliest, stable=stable, at_timestamp=at_timestamp, within=within
        )

    async def columns(
        self,
        first: int,
        upto: int,
        generation: int | None = None,
        limit: int | None = None,
        max_bytes: int | None = None,
        properties: bool = False,
        refuse_expired: bool = False,
    ) -> bytes:
        """The messages of a stable range, or the first of them, as the encoded ``MessageColumns``.

        Raises:
            MessagesExpired: with ``refuse_expired``; messages of the range have expired by the topic's ttl.
            InvalidRequest; StaleMessageId: the topic is of another generation. OffsetOutOfRange: the range is not stable up to
                its end, or retention has been beyond its beginning. TopicDamaged.
        """
        self._topic.check_open()
        self._check(first, upto, generation, limit, max_bytes)
        living, expired_at = self._expiry.living(), list[int]()
        await self._expiry.hide(living)
        if refuse_expired:
            await self._check_nothing_lost(first, upto, living)
        wanted = Range(
            first,
            upto,
            living.begin,
            living.now_ms,
            min(limit or self._limits.max_columns_messages, self._limits.max_columns_messages),
            min(max_bytes or self._limits.max_columns_bytes, self._limits.max_columns_bytes),
            properties,
            living.judgements,
            expired_at,
        )
        encoded, messages = await self._scans.read(_encoded_columns, self._store, self._prefix, wanted)
        if refuse_expired:
            self._check(first, upto, generation, limit, max_bytes)  # what was deleted while it was read may be left out
        if expired_at:
            await self._expiry.passed_over(max(expired_at), self.last_stable_id)
        self._topic.counts.handed_out(messages, len(encoded))
        return encoded

    async def _check_nothing_lost(self, first: int, upto: int, living: Living) -> None:
        """Raises MessagesExpired where messages of the range have expired by the topic's ttl; rows that were rolled back are no
        loss, nor is what expired by its own."""
        start = await self._scans.read(find_offset, self._store, self._prefix, first) if first else FIRST_ROW_ID
        if start is None:
            return
        behind = await self._expiry.behind(start, living, rolled_back=True)
        lost = first if behind.first is None else behind.first
        if behind.lost and lost < upto:
            stable = self.stable
            earliest = stable if behind.earliest is None else min(behind.earliest, stable)
            raise MessagesExpired(
                f"messages at offsets {lost} to {earliest - 1} have expired before they were asked for",
                first=lost,
                earliest=earliest,
                upcoming=self._dedup.fold.upcoming_offset,
            )

    def _check(self, first: int, upto: int, generation: int | None, limit: int | None, max_bytes: int | None) -> None:
        for name, value in (("limit", limit), ("maxBytes", max_bytes)):
            if value is not None and value <= 0:
                raise InvalidRequest(f"{name} is greater than 0, not {value}")
        if not 0 <= first <= upto:
            raise InvalidRequest(f"a range of offsets is from 0 on and rises, not {first} to {upto}")
        self._topic.check_generation(generation)
        stable, earliest = self.stable, self._topic.earliest_offset
        if upto > stable or first < earliest:
            what = f"end {upto} is not stable" if upto > stable else f"beginning {first} was deleted"
            raise OffsetOutOfRange(
                f"the range's {what}: the topic has offsets from {earliest} on and is stable up to {stable}",
                upcoming=self._dedup.fold.upcoming_offset,
                earliest=earliest,
                stable=stable,
            )


class _Look(NamedTuple):
    """A topic, and what is to be looked for."""

    ranges: Ranges
    asked: TopicAsked
    stable: int
    places: list[bytes]
    """Where its log begins, and where what is asked for a time does."""

    def found(self) -> list[int]:
        """The offset of the first row at or after each place; that of the stable end where none is stable."""
        offsets = (offset_from(self.ranges._store, self.ranges._prefix, place) for place in self.places)
        return [self.stable if offset is None else min(offset, self.stable) for offset in offsets]


_AT_ONCE = 25
"""Topics that are looked at in one step: half a millisecond."""


async def offsets_of(topics: Sequence[tuple[Ranges, TopicAsked]]) -> list[TopicOffsets]:
    """Where each log begins, up to where it is stable, and what else is asked. Raises TopicDamaged.

    Some at a time, with one way to the store for these; in between others have their turns.
    """
    answers: list[TopicOffsets] = []
    for at in range(0, len(topics), _AT_ONCE):
        looks = [await ranges._look(asked) for ranges, asked in topics[at : at + _AT_ONCE]]
        found = await read(lambda looks: [each.found() for each in looks], looks)
        for (ranges, asked, stable, _), (earliest, *at_timestamp) in zip(looks, found, strict=True):
            answers.append(await ranges._told(asked, stable, earliest, next(iter(at_timestamp), None)))
    return answers


def _encoded_columns(store: Store, prefix: bytes, wanted: Range) -> tuple[bytes, int]:
    """The columns, and how many messages they have."""
    found = read_columns(store, prefix, wanted)
    return encode_message_columns(found), found.messages


async def wait_for_more(topics: Sequence[tuple[Ranges, TopicAsked]], wait_ms: int, clock: Clock) -> None:
    """Return when one of them is stable beyond its ``after``, or was asked without one; else when the time is over. An arrival
    costs a look at the topics in which something has arrived.

    Raises StorageUnavailable: one was closed meanwhile.
    """
    end = clock.monotonic() + wait_ms / 1000
    of = {ranges.arrivals: (ranges, asked) for ranges, asked in topics}
    with Waiting(of) as waiting:
        woken: Iterable[Arrivals] = of
        while woken and not any(_has_more(*of[each]) for each in woken):
            left = end - clock.monotonic()
            woken = await waiting.woken(left) if left > 0 else ()


def _has_more(ranges: Ranges, asked: TopicAsked) -> bool:
    ranges.check_open()
    return asked.after is None or ranges.stable > asked.after
