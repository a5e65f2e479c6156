"""Consumers, operators, transactions and crashes in any order, against a model that is a page long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import ConsumerFenced, OffsetOutOfRange, SubscriptionNotFound
from oncelog.message_id import MessageId
from oncelog.wire.models import Acknowledge, OpenSubscription, ReceiveMessages, SeekSubscription, StartPosition
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.storage.memory import Disk
from tests.examples import examples
from tests.service.house import House, crashed, opened
from tests.service.undecided import Undecided
from tests.world.clock import ManualClock
from tests.world.polls import decoded

NAMES = ("a", "b")


@dataclass
class Written:
    """One message of the log."""

    id: bytes
    pointer: int | None


@dataclass
class Taken:
    """A consumer, as it knows itself."""

    name: str
    epoch: int
    nonce: str
    start: int
    """The cursor that it was opened at, or has moved itself to."""
    given: list[int] = field(default_factory=list)
    """Offsets that it was delivered."""


@dataclass
class Model(Undecided[Written]):
    """What must be."""

    cursors: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    consumers: list[Taken] = field(default_factory=list)

    def deliverable(self, first: int, stable: int) -> list[int]:
        return [offset for offset in range(first, stable) if self.log[offset].pointer not in self.rolled_back]

    def holds(self, consumer: Taken) -> bool:
        return consumer.name in self.cursors and self.epochs[consumer.name] == consumer.epoch


class Run:
    """Does the same to the log and to the model, and compares what they answer."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.clock = ManualClock()
        self.model = Model()
        self.nonces = 0
        self.delivered = 0
        """Messages, so that it is known that something happens."""

    async def through(self, lives: Sequence[Sequence[Any]]) -> None:
        for life in lives:
            *steps, end = life
            async with opened(self.disk, self.clock, clean=end == "stop") as self.house:
                await self._compare()
                for name, *rest in steps:
                    await getattr(self, f"_{name}")(*rest)
                await self._compare()
            if end == "crash":
                self.disk = crashed(self.disk)

    @property
    def _house(self) -> House:
        return self.house

    async def _compare(self) -> None:
        subscriptions = self._house.log.subscriptions
        assert subscriptions.names("", 100) == sorted(self.model.cursors)
        for shown in await subscriptions.show_all(subscriptions.names("", 100)):
            end = len(self.model.log)
            cursor = self.model.cursors[shown.name]
            assert (shown.cursor, shown.epoch) == (cursor, self.model.epochs[shown.name])
            assert (shown.lag, shown.lost, shown.upcoming_offset) == (end - cursor, 0, end)

    # --- the log

    async def _publish(self, count: int, transactional: bool = False) -> None:
        self.clock.advance(1)
        pointer = None
        if transactional:
            pointer = (await self._house.transactions.start(TransactionType.SHORT)).write_pointer
            self.model.undecided.add(pointer)
        response = await self._house.log.publish(PublishRequest([b"x"] * count, write_pointer=pointer))
        first = response.start_timestamp, response.start_sequence_id
        self.model.log += [Written(bytes(MessageId(first[0], first[1] + step)), pointer) for step in range(count)]

    async def _end(self, at: int, commit: bool) -> None:
        await self.model.end(self._house, at, commit)

    # --- consumers

    def _consumer(self, at: int) -> Taken | None:
        consumers = self.model.consumers
        return consumers[at % len(consumers)] if consumers else None

    def _nonce(self) -> str:
        self.nonces += 1
        return str(self.nonces)

    async def _open(self, name: str, again: int) -> None:
        """A new consumer, or a late repeat of what opened one of the latest."""
        model, subscriptions = self.model, self._house.log.subscriptions
        repeated = [each for each in model.consumers[-5:] if model.holds(each)]
        if again < len(repeated):
            consumer = repeated[again]
            shown = await subscriptions.open(OpenSubscription(name=consumer.name, nonce=consumer.nonce))
            assert shown.epoch == consumer.epoch
            return
        nonce = self._nonce()
        shown = await subscriptions.open(OpenSubscription(name=name, nonce=nonce))
        model.cursors.setdefault(name, 0)
        model.epochs[name] = model.epochs.get(name, 0) + 1
        assert (shown.cursor, shown.epoch) == (model.cursors[name], model.epochs[name])
        model.consumers.append(Taken(name, shown.epoch, nonce, shown.cursor))

    async def _receive(self, at: int, limit: int) -> None:
        consumer = self._consumer(at)
        if consumer is None:
            return
        behind = MessageId.from_bytes(self.model.log[consumer.given[-1]].id) if consumer.given else None
        asked = ReceiveMessages(epoch=consumer.epoch, generation=1, after=behind, limit=limit)
        if not self.model.holds(consumer):
            await fenced(self._house.log.subscriptions.receive(consumer.name, asked, AS_ONCELOG))
            return
        page = await self._house.log.subscriptions.receive(consumer.name, asked, AS_ONCELOG)
        records, *_ = decoded(page)
        # After a restart nobody may have said yet how transactions ended: less is stable then than could be.
        stable = self._house.log.ranges.stable
        assert stable <= self.model.stable
        first = consumer.given[-1] + 1 if consumer.given else max(consumer.start, self.model.cursors[consumer.name])
        offsets = [record["offset"] for record in records]
        assert offsets == self.model.deliverable(first, stable)[:limit]
        assert [record["id"] for record in records] == [self.model.log[offset].id for offset in offsets]
        consumer.given += offsets
        self.delivered += len(offsets)

    async def _ack(self, at: int, back: int, by_id: bool) -> None:
        """Of what it was given, now or before."""
        consumer = self._consumer(at)
        if consumer is None or not consumer.given:
            return
        offset = consumer.given[-1 - back % len(consumer.given)]
        if by_id:
            asked = Acknowledge(epoch=consumer.epoch, message_id=MessageId.from_bytes(self.model.log[offset].id))
        else:
            asked = Acknowledge(epoch=consumer.epoch, generation=1, offset=offset)
        acknowledging = self._house.log.subscriptions.acknowledge(consumer.name, asked)
        if not self.model.holds(consumer):
            await fenced(acknowledging)
            return
        cursor = max(self.model.cursors[consumer.name], offset + 1)
        assert (await acknowledging).cursor == cursor
        self.model.cursors[consumer.name] = cursor

    async def _overreach(self, at: int, beyond: int) -> None:
        """Acknowledge what nobody can have been given."""
        consumer = self._consumer(at)
        if consumer is None or not self.model.holds(consumer):
            return
        asked = Acknowledge(epoch=consumer.epoch, generation=1, offset=self.model.stable + beyond)
        with pytest.raises(OffsetOutOfRange) as refused:
            await self._house.log.subscriptions.acknowledge(consumer.name, asked)
        assert (refused.value.stable or 0) <= self.model.stable

    async def _seek(self, at: int, place: int, operator: bool) -> None:
        consumer = self._consumer(at)
        if consumer is None:
            return
        to, model = place % (len(self.model.log) + 1), self.model
        nonce = self._nonce()
        asked = SeekSubscription(to=StartPosition(offset=to), nonce=nonce, epoch=None if operator else consumer.epoch)
        if consumer.name not in model.cursors if operator else not model.holds(consumer):
            await fenced(self._house.log.subscriptions.seek(consumer.name, asked))
            return
        for _ in range(2):  # the second time it is a repeat
            shown = await self._house.log.subscriptions.seek(consumer.name, asked)
            assert (shown.cursor, shown.epoch) == (to, model.epochs[consumer.name] + 1)
        model.cursors[consumer.name] = to
        model.epochs[consumer.name] += 1
        if not operator:
            model.consumers.append(Taken(consumer.name, shown.epoch, nonce, to))

    async def _delete(self, name: str) -> None:
        if name in self.model.cursors:
            await self._house.log.subscriptions.delete(name)
            del self.model.cursors[name]
            self.model.epochs[name] += 1
        else:
            await fenced(self._house.log.subscriptions.delete(name))


async def fenced(call: Awaitable[object]) -> None:
    with pytest.raises((ConsumerFenced, SubscriptionNotFound)):
        await call


small = st.integers(0, 7)
acks = st.tuples(st.just("ack"), small, small, st.booleans())
receives = st.tuples(st.just("receive"), small, st.integers(1, 5))
steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("end"), small, st.booleans()),
    st.tuples(st.just("open"), st.sampled_from(NAMES), small),
    receives,
    receives,
    acks,
    acks,
    st.tuples(st.just("overreach"), small, small),
    st.tuples(st.just("seek"), small, st.integers(0, 30), st.booleans()),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
)
lives = st.tuples(st.lists(steps, max_size=25), st.sampled_from(["stop", "crash"])).map(lambda life: [*life[0], life[1]])
BEGIN = [("publish", 3, False), ("publish", 2, True), ("publish", 1, False), ("open", "a", 7), ("overreach", 0, 0), "crash"]


@examples(12)
@given(st.lists(lives, min_size=1, max_size=4))
def test_whatever_happens_a_cursor_moves_by_its_consumer_or_a_seek_and_by_nothing_else(found: list[Any]) -> None:
    asyncio.run(Run().through([BEGIN, *found]))


def test_what_was_given_before_a_restart_can_be_acknowledged_before_it_is_told_how_its_transaction_ended() -> None:
    run = Run()
    first = [("publish", 2, True), ("end", 0, True), ("open", "a", 7), ("receive", 0, 5), "crash"]
    second = [("receive", 0, 5), ("ack", 0, 0, False), "crash"]
    asyncio.run(run.through([first, second]))
    assert (run.delivered, run.model.cursors) == (2, {"a": 2})
