"""CONTRACT §4: a prepared transaction is ended by its database, whatever anybody else does at the same time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from oncelog.errors import ProducerInTransaction, TransactionNotInProgress
from oncelog.wire.models import OpenedProducer
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.service import Service
from oncelog_service.transactions.port import Transactions
from tests.behaviours.conftest import Machine
from tests.rest.talk import Topic
from tests.support import RunningService, running_service

Between = Callable[[], Awaitable[None]]
"""What happens before and after each call of the transaction service."""


class Interrupted:
    """The transaction service as a topic sees it, with something else happening around each call that awaits."""

    def __init__(self, port: Transactions, between: Between) -> None:
        self._port = port
        self._between = between

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            await self._between()
            try:
                return await method(*args, **options)
            finally:
                await self._between()

        return call


class Opening:
    """A producer with a message in a transaction, that is opened anew while something else happens."""

    def __init__(self, log: TopicLog, transactions: Transactions, name: str, pointer: int) -> None:
        self.log, self.transactions, self.name, self.pointer = log, transactions, name, pointer
        self.prepared = False
        self.opened: OpenedProducer | None = None

    @classmethod
    async def begin(cls, service: Service, name: str) -> Opening:
        log = await service.topics.open("default", "t")
        pointer = (await service.transactions.start(TransactionType.SHORT)).write_pointer
        await log.publish(PublishRequest([b"m"], producer=name, sequence_ids=[0], write_pointer=pointer))
        return cls(log, service.transactions, name, pointer)

    async def prepare(self) -> None:
        try:
            await self.transactions.can_commit(self.pointer, (), "database")
        except TransactionNotInProgress:
            return
        self.prepared = True

    async def open(self, between: Between) -> None:
        self.log._transactions = Interrupted(self.transactions, between)  # type: ignore[assignment]
        try:
            self.opened = await self.log.producers.open(self.name, "nonce", "allow")
        except ProducerInTransaction:
            self.opened = None
        finally:
            self.log._transactions = self.transactions

    async def judge(self) -> None:
        """Whoever prepared it and whoever opened the producer were told the same."""
        state = (await self.transactions.show(self.pointer)).state
        if self.prepared:
            assert (state, self.opened) == ("in_progress", None), "the database may have committed: only it decides"
            await self.transactions.commit(self.pointer)
        else:
            assert state == "aborted"
            assert self.opened is not None
            assert self.opened.last_sequence_id is None


@pytest.fixture(params=["here", "elsewhere"])
def service(machine: Machine, request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """With its transaction service in it, and with another one behind a URL."""
    with ExitStack() as stack:
        settings = {}
        if request.param == "elsewhere":
            settings["transactions_url"] = stack.enter_context(running_service(clock=machine.clock)).url
        service = stack.enter_context(machine.run(**settings))
        topic = Topic(service.url)
        yield service
        assert topic.verify()["ok"]


def test_opening_a_producer_never_aborts_a_transaction_that_is_prepared_at_any_moment_of_it(service: RunningService) -> None:
    async def prepared_at(moment: int) -> bool:
        """Whether there was such a moment."""
        opening = await Opening.begin(service.service, f"p{moment}")
        passed = 0

        async def between() -> None:
            nonlocal passed
            if passed == moment:
                await opening.prepare()
            passed += 1

        await opening.open(between)
        await opening.judge()
        return passed > moment

    moment = 0
    while service.on_loop(lambda _, at=moment: prepared_at(at)):  # type: ignore[misc]
        moment += 1
    assert moment >= 4, "the state was asked for and the transaction ended, each with a before and an after"


def test_opening_a_producer_while_its_transaction_prepares_ends_one_way_for_both(service: RunningService) -> None:
    random = Random(seed := 20)

    async def some_turns() -> None:
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)

    async def at_once(number: int) -> bool:
        opening = await Opening.begin(service.service, f"p{number}")
        moments, begin = random.randrange(7), asyncio.Event()

        async def between() -> None:
            nonlocal moments
            moments -= 1
            if moments <= 0:
                begin.set()
            await some_turns()

        async def prepare() -> None:
            await begin.wait()
            await some_turns()
            await opening.prepare()

        preparing = asyncio.ensure_future(prepare())
        await opening.open(between)
        begin.set()
        await preparing
        await opening.judge()
        return opening.prepared

    async def rounds(_: Service) -> list[bool]:
        return [await at_once(number) for number in range(60)]

    outcomes = service.on_loop(rounds)
    assert {True, False} == set(outcomes), f"both happen under seed {seed}"
