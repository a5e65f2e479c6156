"""Atomic commits, plain publishes, crashes and time in any order, against a model that is a page long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
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
from oncelog_service.atomic import coordinator, ledger
from oncelog_service.storage.memory import Disk
from tests.behaviours.atomics import House, copy_of, living, messages, refusal
from tests.support import ManualClock

TOPICS = ("a", "b")
NAMES = ("t", "u", "v", "t.1", "t.2", "u.1")
TIMEOUT_MS = 10_000
STEP_MS = 4_000

Named = tuple[str, int | None]
"""A payload and, of a message of the producer p, its sequence id."""


@pytest.fixture(autouse=True)
def _no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's rounds are run by the tests; it is trimmed often."""
    monkeypatch.setattr(coordinator, "_ROUND_SECONDS", 3_600)
    monkeypatch.setattr(ledger, "_TRIM_EVERY", 7)


@dataclass
class Staging:
    """A transaction of the model."""

    expires: int
    of: str | None
    state: str = "in_progress"
    chunks: dict[str, list[list[Named]]] = field(default_factory=lambda: {topic: [] for topic in TOPICS})
    carried: tuple[Sequence[str], bool] | None = None
    """The branches that its own commit named, and whether that brought messages."""

    def messages(self, topic: str) -> list[Named]:
        return [message for chunk in self.chunks[topic] for message in chunk]


@dataclass
class Model:
    """What must be."""

    logs: dict[str, list[str]] = field(default_factory=lambda: {topic: [] for topic in TOPICS})
    last: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, -1))
    transactions: dict[str, Staging] = field(default_factory=dict)
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
            each.expires = now + TIMEOUT_MS
        self.round(now)

    def round(self, now: int) -> None:
        """What a round of the journal gives up."""
        ended = {name for name, each in self.transactions.items() if each.state != "in_progress"}
        while lost := [
            each
            for each in self.transactions.values()
            if each.state == "in_progress" and (each.expires <= now or each.of in ended)
        ]:
            for each in lost:
                each.state = "aborted"
            ended = {name for name, each in self.transactions.items() if each.state != "in_progress"}

    def commit(self, name: str, branches: Sequence[str], inline: bool, now: int) -> type[Exception] | None:
        """What a commit of a transaction in progress is refused with; None: it is committed."""
        own = self.transactions[name]
        if own.expires <= now:
            own.state = "aborted"
            return TransactionNotInProgress
        for each in branches:
            branch = self.transactions.get(each)
            if branch is None or branch.state != "in_progress" or branch.of not in (None, name):
                return BranchGone
        named = [self.transactions[each] for each in branches]
        brought = Staging(0, None)
        if inline:
            brought.chunks["a"].append([(f"{name}:inline", None)])
        parts = [own, brought, *named]
        for topic in TOPICS:
            ids = [[number for _, number in part.messages(topic) if number is not None] for part in parts]
            held = [each for each in ids if each]
            if any(behind[0] <= before[-1] for before, behind in pairwise(held)):
                own.state = "aborted"
                return InvalidRequest
        for part in parts:
            part.state = "committed"
        own.carried = branches, inline
        for topic in TOPICS:
            self.append(topic, [message for part in parts for message in part.messages(topic)])
        return None


class Run:
    """The service and the model, side by side."""

    def __init__(self) -> None:
        self.model = Model()
        self.clock = ManualClock()
        self.house: House

    async def begin(self, name: str) -> None:
        of = name.partition(".")[0] if "." in name else None
        parent = self.model.transactions.get(of or "")
        call = self.house.begin(name, of=of, timeout_ms=TIMEOUT_MS)
        if name not in self.model.transactions and parent is not None and parent.state != "in_progress":
            assert isinstance(await refusal(call), TransactionNotInProgress)
            return
        known = self.model.transactions.get(name)
        if known is not None and of not in (None, known.of):
            assert isinstance(await refusal(call), TransactionExists)
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
            assert isinstance(await refusal(call), TransactionNotFound)
        elif staging.state != "in_progress":
            assert isinstance(await refusal(call), TransactionNotInProgress)
        else:
            before = [sequence_id for _, sequence_id in staging.messages(topic) if sequence_id is not None]
            if request.producer is not None and before and request.sequence_ids[0] <= before[-1]:
                assert isinstance(await refusal(call), InvalidRequest)
                return
            await call
            staging.chunks[topic].append(chunk)
            await self.house.stage(name, topic, number, request)

    def _request(self, body: Sequence[int | None]) -> tuple[Any, list[Named]]:
        """``body``: one None is a plain message; sequence ids are those of the producer p, whose payloads follow from them."""
        self.model.steps += 1
        ids = [each for each in body if each is not None]
        if not ids:
            return messages(f"m{self.model.steps}"), [(f"m{self.model.steps}", None)]
        request = messages(*(f"p{each}" for each in ids), producer="p", sequence_ids=ids)
        return request, [(f"p{each}", each) for each in ids]

    async def commit(self, name: str, branches: Sequence[str], inline: bool) -> None:
        transactions, now = self.model.transactions, self.clock.now_ms()
        named = [each for each in dict.fromkeys(branches) if each != name]
        parts = {"a": messages(f"{name}:inline")} if inline else {}
        call = self.house.commit(name, parts, group="g", branches=named)
        own = transactions.get(name)
        if own is not None and own.state == "committed":
            if (named, inline) in (([], False), own.carried):
                assert (await call).state == "committed"
            else:
                assert isinstance(await refusal(call), TransactionNotInProgress)
        elif own is not None and own.state == "aborted":
            assert isinstance(await refusal(call), OncelogError)
        elif own is not None and own.of is not None:
            assert isinstance(await refusal(call), InvalidRequest)
        else:
            if own is None:
                own = transactions[name] = Staging(now + 60_000, None)
            refused = self.model.commit(name, named, inline, now)
            if refused is None:
                assert (await call).state == "committed"
            else:
                assert isinstance(await refusal(call), refused)

    async def abort(self, name: str) -> None:
        own = self.model.transactions.get(name)
        if own is not None and own.state == "in_progress":
            own.state = "aborted"
        with suppress(TransactionNotFound, TransactionNotInProgress):
            assert (await self.house.journal.abort(name)).state == "aborted"

    async def publish(self, topic: str, body: Sequence[int | None]) -> None:
        request, chunk = self._request(body)
        await self.house.publish(topic, request)
        self.model.append(topic, chunk)

    async def advance(self) -> None:
        self.clock.advance(STEP_MS)
        await self.house.journal.once()
        self.model.round(self.clock.now_ms())

    async def check(self) -> None:
        for topic in TOPICS:
            assert await self.house.shown(topic) == self.model.logs[topic]
        for name, staging in self.model.transactions.items():
            assert (await self.house.journal.show(name)).state == staging.state, name
        await self.house.verify(*TOPICS)

    async def run(self, steps: Sequence[tuple[Any, ...]]) -> None:
        disk, left = Disk(), iter(steps)
        async with living(disk, self.clock) as self.house:
            await self.house.create(*TOPICS)
        while True:
            async with living(disk, self.clock, journal_partitions=1 + len(steps) % 2) as self.house:
                self.model.begin_anew(self.clock.now_ms())
                crashed = await self._until_crash(left)
                await self.check()
                survivor = copy_of(disk)
            if crashed is None:
                return
            disk = survivor if crashed else disk

    async def _until_crash(self, steps: Iterator[tuple[Any, ...]]) -> bool | None:
        """Whether it ended with a crash, or with a clean stop; None: there are no steps any more."""
        for what, *values in steps:
            if what in ("crash", "stop"):
                return bool(what == "crash")
            await getattr(self, what)(*values)
        return None


names = st.sampled_from(NAMES)
bodies = st.just([None]) | st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True).map(sorted)
topics = st.sampled_from(TOPICS)
branches = st.lists(st.sampled_from(NAMES[2:]), max_size=3)
step = (
    st.tuples(st.just("begin"), names)
    | st.tuples(st.just("stage"), names, topics, bodies)
    | st.tuples(st.just("stage"), names, topics, bodies)
    | st.tuples(st.just("commit"), names, branches, st.booleans())
    | st.tuples(st.just("abort"), names)
    | st.tuples(st.just("publish"), topics, bodies)
    | st.tuples(st.sampled_from(["advance", "crash", "stop"]))
)
began = st.sets(names, min_size=2).map(lambda chosen: [("begin", name) for name in NAMES if name in chosen])


@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(began, st.lists(step, min_size=10, max_size=40))
def test_any_history_shows_what_the_model_shows(begun: list[tuple[Any, ...]], steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(Run().run([*begun, *steps]))
