"""CONTRACT §5.2: atomic commits, plain publishes, time, and crashes behind any write of any of them and of the recovery, in any
order, against a model that is a page long.

A step that is torn has happened wholly or not at all; but that a commit may have begun its transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from oncelog.errors import (
    BranchGone,
    InvalidRequest,
    OncelogError,
    TransactionExists,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import PublishRequest
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from tests.atomic.house import BatchByBatch, House, living, messages, refused
from tests.world.clock import ManualClock
from tests.world.disk import crashed

TOPICS = ("a", "b")
NAMES = ("t", "u", "v", "t.1", "t.2", "u.1")
TIMEOUT_MS = 10_000
STEP_MS = 5_000

Brought = dict[str, Sequence[int | None]]
"""Topic → what a commit brings to it: one None is a plain message; sequence ids are those of the producer p."""
Carried = tuple[Sequence[str], Brought, int | None]
"""The branches that a commit names, what it brings, and its sequence id."""
Named = tuple[str, int | None]
"""A payload and, of a message of the producer p, its sequence id."""


@dataclass
class Staging:
    """A transaction of the model."""

    expires: int
    of: str | None
    lifetime_ms: int = TIMEOUT_MS
    state: str = "in_progress"
    chunks: dict[str, list[list[Named]]] = field(default_factory=lambda: {topic: [] for topic in TOPICS})
    carried: Carried | None = None
    """What its own commit carried."""
    answer: AtomicOutcome | None = None
    """What its client was told when it ended."""

    def messages(self, topic: str) -> list[Named]:
        return [message for chunk in self.chunks[topic] for message in chunk]


@dataclass
class Model:
    """What must be."""

    logs: dict[str, list[str]] = field(default_factory=lambda: {topic: [] for topic in TOPICS})
    last: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, -1))
    transactions: dict[str, Staging] = field(default_factory=dict)
    number: int = -1
    """The sequence id of the newest numbered commit."""
    steps: int = 0

    def append(self, topic: str, body: Sequence[Named]) -> None:
        known = self.last[topic]
        for payload, sequence_id in body:
            if sequence_id is None or sequence_id > known:
                self.logs[topic].append(payload)
                self.last[topic] = max(self.last[topic], -1 if sequence_id is None else sequence_id)

    def begin_anew(self, now: int) -> None:
        """A restart: each transaction has its whole time anew."""
        for each in self.transactions.values():
            each.expires = now + each.lifetime_ms
        self.round(now)

    def round(self, now: int) -> None:
        """Gives up what a round does."""
        ended = {name for name, each in self.transactions.items() if each.state != "in_progress"}
        while lost := [
            each
            for each in self.transactions.values()
            if each.state == "in_progress" and (each.expires <= now or each.of in ended)
        ]:
            for each in lost:
                each.state = "aborted"
            ended = {name for name, each in self.transactions.items() if each.state != "in_progress"}

    def commit(self, name: str, carried: Carried, now: int) -> type[Exception] | None:
        """What a commit of a transaction in progress is refused with; None: it has ended well."""
        own, (branches, brings, number) = self.transactions[name], carried
        if own.expires <= now:
            own.state = "aborted"
            return TransactionNotInProgress
        if number is not None and number <= self.number:
            own.state, own.carried = "duplicate", carried
            return None
        for each in branches:
            branch = self.transactions.get(each)
            if branch is None or branch.state != "in_progress" or branch.of not in (None, name):
                return BranchGone
        named = [self.transactions[each] for each in branches]
        brought = Staging(0, None)
        for topic, body in brings.items():
            brought.chunks[topic].append(brought_by(name, body))
        parts = [own, brought, *named]
        for topic in TOPICS:
            ids = [[number for _, number in part.messages(topic) if number is not None] for part in parts]
            held = [each for each in ids if each]
            if any(behind[0] <= before[-1] for before, behind in pairwise(held)):
                own.state = "aborted"
                return InvalidRequest
        for part in parts:
            part.state = "committed"
        for part in named:
            part.of = name
        own.carried, self.number = carried, self.number if number is None else number
        for topic in TOPICS:
            self.append(topic, [message for part in parts for message in part.messages(topic)])
        return None


def brought_by(name: str, body: Sequence[int | None]) -> list[Named]:
    """What the commit of this name brings to a topic."""
    return [(f"{name}:inline" if each is None else f"p{each}", each) for each in body]


def _request_of(chunk: Sequence[Named]) -> PublishRequest:
    payloads, ids = [payload for payload, _ in chunk], [each for _, each in chunk if each is not None]
    return messages(*payloads, producer="p", sequence_ids=ids) if ids else messages(*payloads)


class Run:
    """The service and the model, side by side."""

    def __init__(self) -> None:
        self.model = Model()
        self.clock = ManualClock()
        self.house: House
        self.store: BatchByBatch
        self.begun: Model | None = None
        """After a commit that began its transaction: the model between the two."""

    async def begin(self, name: str) -> None:
        of = name.partition(".")[0] if "." in name else None
        parent = self.model.transactions.get(of or "")
        call = self.house.begin(name, of=of, timeout_ms=TIMEOUT_MS)
        if name not in self.model.transactions and parent is not None and parent.state != "in_progress":
            await refused(TransactionNotInProgress, call)
            return
        known = self.model.transactions.get(name)
        if known is not None and of not in (None, known.of):
            await refused(TransactionExists, call)
            return
        outcome = await call
        staging = self.model.transactions.setdefault(name, Staging(self.clock.now_ms() + TIMEOUT_MS, of))
        assert outcome.state == staging.state

    async def stage(self, name: str, topic: str, body: Sequence[int | None]) -> None:
        staging = self.model.transactions.get(name)
        request, chunk = self._request(body)
        number = 0 if staging is None else len(staging.chunks[topic])
        call = self.house.stage(name, topic, number, request)
        if staging is None:
            await refused(TransactionNotFound, call)
        elif staging.state != "in_progress":
            await refused(TransactionNotInProgress, call)
        else:
            before = [sequence_id for _, sequence_id in staging.messages(topic) if sequence_id is not None]
            if request.producer is not None and before and request.sequence_ids[0] <= before[-1]:
                await refused(InvalidRequest, call)
                return
            await call
            staging.chunks[topic].append(chunk)
            await self.house.stage(name, topic, number, request)

    def _request(self, body: Sequence[int | None]) -> tuple[PublishRequest, list[Named]]:
        """``body``: one None is a plain message; sequence ids are those of the producer p, whose payloads follow from them."""
        self.model.steps += 1
        chunk = [(f"m{self.model.steps}" if each is None else f"p{each}", each) for each in body]
        return _request_of(chunk), chunk

    async def commit(self, name: str, branches: Sequence[str], brings: Brought, number: int | None) -> None:
        transactions, now = self.model.transactions, self.clock.now_ms()
        named = [each for each in dict.fromkeys(branches) if each != name]
        parts = {topic: _request_of(brought_by(name, body)) for topic, body in brings.items()}
        producer = None if number is None else "loader"
        call = self.house.commit(name, parts, group="g", branches=named, producer=producer, sequence_id=number)
        own, carried = transactions.get(name), (named, brings, number)
        if own is not None and own.state in ("committed", "duplicate"):
            if carried in (([], {}, None), own.carried):
                assert (await call).state == own.state
            else:
                await refused(TransactionNotInProgress, call)
        elif own is not None and own.state == "aborted":
            await refused(OncelogError, call)
        elif own is not None and own.of is not None:
            await refused(InvalidRequest, call)
        else:
            if own is None:
                own = transactions[name] = Staging(now + 60_000, None, 60_000)
                self.begun = deepcopy(self.model)
            reason = self.model.commit(name, carried, now)
            if reason is None:
                own.answer = await call
                assert own.answer.state == own.state
                for each in own.answer.topics if own.state == "committed" else ():
                    placed = [message.message_id for message in await self.house.read(each.topic)][each.first_offset :][
                        : each.messages
                    ]
                    assert placed[:1] == ([] if each.first_message_id is None else [bytes(each.first_message_id)])
                    assert len(placed) == each.messages
            else:
                await refused(reason, call)

    async def abort(self, name: str) -> None:
        own = self.model.transactions.get(name)
        if own is not None and own.state == "in_progress":
            own.state = "aborted"
        with suppress(TransactionNotFound, TransactionNotInProgress):
            assert (await self.house.atomic.abort(name)).state == "aborted"

    async def publish(self, topic: str, body: Sequence[int | None]) -> None:
        request, chunk = self._request(body)
        answer = await self.house.publish(topic, request)
        self.model.append(topic, chunk)
        found, at = await self.house.read(topic), 0
        for run in answer.receipts:
            if run.offset is not None:
                assert found[run.offset].message_id == run.message_id
                placed = [each.payload.decode() for each in found[run.offset :][: run.count]]
                assert placed == [payload for payload, _ in chunk][at:][: run.count]
            at += run.count
        assert at == len(chunk)

    async def advance(self) -> None:
        self.clock.advance(STEP_MS)
        await self.house.atomic.upkeep.once()
        self.model.round(self.clock.now_ms())

    # --- lives

    async def torn(self, step: tuple[Any, ...]) -> tuple[list[Disk], list[Model]]:
        """Takes a step; what a crash behind any write of it leaves, and what may be the model then."""
        before, self.begun = deepcopy(self.model), None
        await self.house.service.opening.writer.synced()
        from_here = len(self.store.disks) - 1
        await getattr(self, step[0])(*step[1:])
        await self.house.dropped()
        possible = [each for each in (before, self.begun, self.model) if each is not None]
        return self.store.disks[from_here:], possible

    async def recovered(self, disk: Disk, cut: int) -> Disk:
        """What a crash behind any write of the recovery leaves, counted from its end; 0: it came through."""
        store = BatchByBatch(crashed(disk))
        async with living(None, self.clock, store) as house:
            await house.dropped()
            return store.disks[-1 - cut % len(store.disks)]

    async def difference(self, model: Model) -> str:
        """How what the service shows, and what is staged, is not what is in a model; empty: it is."""
        await self.house.dropped()
        in_progress = [each for each in model.transactions.values() if each.state == "in_progress"]
        staged = sum(len(chunks) for each in in_progress for chunks in each.chunks.values())
        if self.house.rows(Table.CHUNK) != staged:
            return f"{self.house.rows(Table.CHUNK)} chunks, not {staged}"
        for topic in TOPICS:
            if (shown := await self.house.shown(topic)) != model.logs[topic]:
                return f"{topic}: {shown}, not {model.logs[topic]}"
        for name in NAMES:
            staging = model.transactions.get(name)
            try:
                outcome = await self.house.atomic.show(name)
            except TransactionNotFound:
                outcome = None
            if (outcome and outcome.state) != (staging and staging.state):
                return f"{name}: {outcome}, not {staging}"
            if staging is not None and staging.answer not in (None, outcome):
                return f"{name}: {outcome}, answered {staging.answer}"
        return ""

    async def check(self) -> None:
        assert not await self.difference(self.model)
        await self.house.verify(*TOPICS)

    async def live(self, disk: Disk, trim_every: int, steps: Iterator[tuple[Any, ...]], possible: list[Model]) -> Disk | None:
        """One life, up to a crash or a stop; None: there are no steps any more."""
        self.store = BatchByBatch(disk)
        async with living(disk, self.clock, self.store, trim_every=trim_every) as self.house:
            for each in possible:
                each.begin_anew(self.clock.now_ms())
            differences = [await self.difference(each) for each in possible]
            assert "" in differences, differences
            self.model = possible[differences.index("")]
            possible[:] = [self.model]
            await self.check()
            for what, *values in steps:
                if what == "stop":
                    break
                if what == "crash":
                    cut, again, step = values
                    disks, possible[:] = await self.torn(step)
                    return await self.recovered(disks[cut % len(disks)], again)
                await getattr(self, what)(*values)
            else:
                await self.check()
                return None
            await self.check()
        return disk

    async def run(self, steps: Sequence[tuple[Any, ...]], trim_every: int) -> None:
        disk: Disk | None = Disk()
        async with living(disk, self.clock) as self.house:
            await self.house.create(*TOPICS)
        left, possible = iter(steps), [self.model]
        while disk is not None:
            disk = await self.live(disk, trim_every, left, possible)


names = st.sampled_from(NAMES)
bodies = st.just([None]) | st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True).map(sorted)
topics = st.sampled_from(TOPICS)
branches = st.lists(st.sampled_from(NAMES[2:]), max_size=3)
step = (
    st.tuples(st.just("begin"), names)
    | st.tuples(st.just("stage"), names, topics, bodies)
    | st.tuples(st.just("stage"), names, topics, bodies)
    | st.tuples(st.just("commit"), names, branches, st.dictionaries(topics, bodies), st.none() | st.integers(0, 3))
    | st.tuples(st.just("abort"), names)
    | st.tuples(st.just("publish"), topics, bodies)
)
life = (
    step
    | st.tuples(st.sampled_from(["advance", "stop"]))
    | st.tuples(st.just("crash"), st.integers(0, 9), st.integers(0, 3), step)
)
began = st.sets(names, min_size=2).map(lambda chosen: [("begin", name) for name in NAMES if name in chosen])
Steps = list[tuple[Any, ...]]


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(began, st.lists(life, min_size=8, max_size=20), st.sampled_from([1, 3, 7]))
def test_any_history_shows_what_the_model_shows(begun: Steps, steps: Steps, trim_every: int) -> None:
    asyncio.run(Run().run([*begun, *steps], trim_every))
