"""Looks after one process: samples it now and then, and says what is wrong when somebody asks.

Alarms are judged when they are asked for, at most once in a second, however many ask. Nothing here is on the way of a request but
one look at each refusal.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isinf
from typing import NamedTuple

import oncelog
from oncelog.errors import ConsumerFenced, NotServedHere, NotSupported, ProducerFenced, SequenceGap, StorageUnavailable
from oncelog.wire.overview import Alarm, Overview, Sample, TopicActivity
from oncelog_service.cluster.membership import Membership
from oncelog_service.counting.topics import Tally, TopicCounts
from oncelog_service.health import reading, stalled_seconds, status
from oncelog_service.log.arrivals import Arrivals
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.service import Service
from oncelog_service.storage.open import path_of, shown
from oncelog_service.topics.directory import TopicName
from oncelog_service.traffic import Traffic
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.watch.around import OF_THE_STORE, Around, Ask, look_around
from oncelog_service.watch.facts import Thresholds
from oncelog_service.watch.gather import Published, gather, open_logs
from oncelog_service.watch.refusals import Refusals
from oncelog_service.watch.rules import LATELY_MS, about_members, alarms, by_severity
from oncelog_service.watch.samples import EVERY_SECONDS, KEPT, Samples, Totals, busiest, part

_log = logging.getLogger(__name__)

_FRESH_SECONDS = 1.0
"""So long what was judged is answered again."""
_BUSIEST = 20
_COUNTED: Mapping[type[BaseException], Callable[[TopicCounts], None]] = {
    ProducerFenced: TopicCounts.fenced,
    ConsumerFenced: TopicCounts.fenced_consumer,
    SequenceGap: TopicCounts.left_out,
}


class _Counted(NamedTuple):
    """What was counted so far, at one moment."""

    at: float
    all: Totals
    writes: int
    cpu: float
    topics: Mapping[TopicName, Totals]
    """What is counted of one may begin anew when it is opened anew."""


@dataclass(slots=True)
class _Seen:
    """The open topics, as each was when it was looked at."""

    totals: dict[TopicName, Totals] = field(default_factory=dict)
    lags: dict[TopicName, int] = field(default_factory=dict)
    held: set[TopicName] = field(default_factory=set)

    def add(self, name: TopicName, log: TopicLog) -> None:
        self.totals[name] = _totals(log.topic.counts.own)
        self.lags[name] = log.subscriptions.largest_lag
        if log.ranges.held_from is not None:
            self.held.add(name)


class _SeenFirst:
    """Of alarms that do not know it themselves: when they were seen first, as long as they are."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], int] = {}

    def dated(self, found: Sequence[Alarm], now_ms: int) -> list[Alarm]:
        """All that there are now, with since when."""
        before = self._since
        self._since = {(each.code, each.subject): before.get((each.code, each.subject), now_ms) for each in found}
        return [
            each if each.since_ms is not None else each.model_copy(update={"since_ms": self._since[each.code, each.subject]})
            for each in found
        ]


class Watch:
    """Belongs to one event loop, and to one process over all openings of its store."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.refusals = Refusals()
        self.samples = Samples()
        self._started_ms = service.clock.now_ms()
        self._seen_first, self._members_seen_first = _SeenFirst(), _SeenFirst()
        self._judging = asyncio.Lock()
        self._judged: tuple[float, list[Alarm]] | None = None
        self.ask: Ask | None = None
        """Asks another instance; None: nobody is asked."""
        self._looking = asyncio.Lock()
        self._around: tuple[float, Around] | None = None
        self._published: Published = {}
        self._sampled = Arrivals()
        self._last: _Counted | None = None
        """What was counted when the newest sample was taken."""
        self._topics: list[TopicActivity] = []
        self._shed_at: deque[tuple[int, Counter[str]]] = deque(maxlen=KEPT)
        """What was shed up to each of the latest samples."""
        self._released = False
        self._stalled = False
        """The log has said so of the store."""

    # --- refusals

    def refused(self, error: BaseException, names: Mapping[str, str], who: str) -> None:
        """A handler has refused something, or failed: what is of a kind that matters is counted on its topic, and remembered.

        ``names``: of the address, which names no topic where a commit goes over several; ``who``: was refused.
        """
        count = _COUNTED.get(type(error))
        if count is not None and "topic" in names:
            counts = self._service.counts.topics.find((names["namespace"], names["topic"]))
            if counts is not None:  # else it was closed meanwhile
                count(counts)
        self.refusals.note(error, self._service.clock.now_ms(), names, who)

    # --- alarms

    async def alarms(self, *, here: bool = False) -> tuple[list[Alarm], int]:
        """What is wrong, the most severe first, and how many topics were seen. ``here``: of this instance only."""
        own, seen = await self._own(), self._topics_open
        try:
            membership = self._service.opening.membership
        except (NotSupported, StorageUnavailable):
            return own, seen
        if here or self.ask is None:
            return own, seen
        around = await self._others(membership, self.ask)
        ours = [each.model_copy(update={"instance": self._service.url}) for each in own]
        same = {each.subject for each in own if each.code in OF_THE_STORE}
        theirs = [each for each in around.alarms if each.code not in OF_THE_STORE or each.subject not in same]
        missing = self._members_seen_first.dated(about_members(around.members), self._service.clock.now_ms())
        return by_severity([*ours, *theirs, *missing]), seen + around.topics_seen

    async def _own(self) -> list[Alarm]:
        async with self._judging:
            now = self._service.clock.monotonic()
            if self._judged is None or not 0 <= now - self._judged[0] < _FRESH_SECONDS:
                self._judged = now, await self._judge()
            return self._judged[1]

    async def _others(self, membership: Membership, ask: Ask) -> Around:
        async with self._looking:
            now = self._service.clock.monotonic()
            if self._around is None or not 0 <= now - self._around[0] < _FRESH_SECONDS:
                around = Around()
                with suppress(StorageUnavailable, TimeoutError):
                    async with reading(self._service):
                        around = await look_around(membership, ask, self._service.clock)
                self._around = now, around
            return self._around[1]

    async def _judge(self) -> list[Alarm]:
        settings = self._service.settings
        thresholds = Thresholds(
            settings.alarm_lag_messages, round(settings.alarm_lag_seconds * 1000), round(settings.alarm_held_seconds * 1000)
        )
        facts = await gather(self._service, self.refusals, self._shed(), thresholds, self._published)
        return self._seen_first.dated(alarms(facts, thresholds), facts.now_ms)

    def _shed(self) -> Mapping[str, int]:
        """What was shed since the oldest sample of the last minutes; before the first one, all."""
        begin_ms = self._service.clock.now_ms() - LATELY_MS
        while self._shed_at and self._shed_at[0][0] < begin_ms:
            self._shed_at.popleft()
        return _shed_so_far(self._service.traffic) - (self._shed_at[0][1] if self._shed_at else Counter())

    @property
    def _topics_open(self) -> int:
        try:
            return len(self._service.opening.topics.logs.opened)
        except StorageUnavailable:
            return 0

    # --- samples

    async def run(self) -> None:
        """Takes a sample each few seconds, until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(EVERY_SECONDS)

    async def sample(self) -> None:
        """Takes a sample now."""
        self._say_whether_it_stalls()
        service, before = self._service, self._last
        seen = _Seen()
        with suppress(StorageUnavailable):
            async for name, log in open_logs(service):
                seen.add(name, log)
        counts = service.counts
        now = _Counted(service.clock.monotonic(), _totals(counts.topics.all), counts.sync.count, _cpu_seconds(), seen.totals)
        seconds = 0.0 if before is None else max(now.at - before.at, 0.001)
        known = {} if before is None else before.topics
        since = {name: each.since(known.get(name, Totals())) for name, each in seen.totals.items()}
        # Of one that was closed it is still counted, if it has a series: opened again it would seem to have come all at once.
        closed = {name: each for name, each in known.items() if name not in seen.totals and counts.topics.find(name)}
        self._last = now._replace(topics={**closed, **seen.totals})
        self._topics = [
            TopicActivity(
                namespace=name[0], name=name[1], lag=seen.lags[name], held=name in seen.held, **since[name].rates(seconds)
            )
            for name in busiest(since, _BUSIEST)
        ]
        syncs = self._take_times()
        transactions, atomic = self._in_progress()
        rates = (now.all.since(before.all) if before is not None else Totals()).rates(seconds)
        self.samples.add(
            Sample(
                number=self.samples.next_number,
                at_ms=service.clock.now_ms(),
                writes=None if before is None else round((now.writes - before.writes) / seconds, 3),
                sync_p50_ms=_ms(part(syncs, 0.5)),
                sync_p99_ms=_ms(part(syncs, 0.99)),
                connections=service.traffic.connections,
                open_topics=len(seen.totals),
                transactions=transactions,
                atomic_commits=atomic,
                held_topics=len(seen.held),
                largest_lag=max(seen.lags.values(), default=0),
                disk_free_bytes=None if isinf(service.room.free) else int(service.room.free),
                memory_bytes=_memory_bytes(),
                cpu=None if before is None else round((now.cpu - before.cpu) / seconds, 3),
                **rates,
            )
        )
        self._shed_at.append((service.clock.now_ms(), _shed_so_far(service.traffic)))
        self._sampled.wake()

    def _say_whether_it_stalls(self) -> None:
        seconds = stalled_seconds(self._service)
        if bool(seconds) != self._stalled:
            self._stalled = bool(seconds)
            if seconds:
                _log.error("the store has not answered for %.0f s: what is written or read waits for it", seconds)
            else:
                _log.warning("the store answers again")

    def _take_times(self) -> list[float]:
        try:
            return self._service.opening.writer.take_times()
        except StorageUnavailable:
            return []

    def _in_progress(self) -> tuple[int | None, int | None]:
        transactions = atomic = None
        with suppress(NotServedHere, StorageUnavailable):
            found = self._service.opening.transactions
            transactions = len(found.state.open) if isinstance(found, TransactionManager) else None
        with suppress(NotServedHere, StorageUnavailable):
            atomic = len(self._service.opening.atomic.ledger.open)
        return transactions, atomic

    # --- the first page

    async def overview(self, after: int, wait_ms: int) -> Overview:
        """What a first page shows; with samples behind ``after``. Where there is none yet it waits so long for one."""
        service = self._service
        end = service.clock.monotonic() + wait_ms / 1000
        while not self._released and not self.samples.behind(after):
            left = end - service.clock.monotonic()
            if left <= 0:
                break
            await Arrivals.wait([self._sampled], left)
        return Overview(
            url=service.url,
            store=_where(service.settings.store),
            version=oncelog.__version__,
            status=status(service),
            now_ms=service.clock.now_ms(),
            started_ms=self._started_ms,
            instances=self._instances(),
            every_ms=round(EVERY_SECONDS * 1000),
            sample=self.samples.newest,
            history=self.samples.behind(after),
            disk_min_free_bytes=service.room.floor,
            topics=self._topics,
            alarms=(await self.alarms())[0],
        )

    def _instances(self) -> int:
        try:
            return len(self._service.opening.membership.alive[1])
        except (NotSupported, StorageUnavailable):
            return 1

    def release(self) -> None:
        """Tells callers that wait to go, before a stop."""
        self._released = True
        self._sampled.wake()


def _totals(tally: Tally) -> Totals:
    return Totals(tally.messages, tally.bytes, tally.delivered, tally.delivered_bytes, tally.duplicates)


def _shed_so_far(traffic: Traffic) -> Counter[str]:
    """That a connection which is idle gives way to a new one is no sign of anything."""
    return Counter({reason: often for reason, often in traffic.refused.items() if reason != "idle"})


def _where(store: str) -> str:
    """The URL of a store, whoever reads it: without a password, and of files with the whole path."""
    path = path_of(store)
    return shown(store) if path is None else f"{store.partition(':')[0]}://{path.absolute()}"


def _cpu_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system


def _memory_bytes() -> int | None:
    """Resident; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
