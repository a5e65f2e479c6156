"""The clients of a simulated world. Each tells the history what it is about to do, does it, and tells what was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from oncelog import AsyncClient, AsyncConsumer, AsyncProducer, AsyncReader
from oncelog.api.options import Isolation
from oncelog.errors import GroupProducerNotFound, InvalidMessageId, OncelogError, TransactionInDoubt, TransactionNotInProgress
from oncelog.values.receipt import Receipts
from oncelog.wire.requests import PublishRequest
from tests.model.history import Group, Sent
from tests.simulation.guests import Guest
from tests.simulation.outbox import Shop
from tests.simulation.pipeline import Query, Source
from tests.simulation.removal import Keeper
from tests.simulation.worlds import LEDGER, RECORDS, TOPICS, Client, Outcome, World, found, simulate

SHARED = (8, 16, 24)
"""Seeds in which three instances share a database."""


def payload(who: str, number: int) -> bytes:
    """What a message says: it can pass for no other."""
    return f"{who}:{number}:".encode() + b"." * (number * 7919 % 150)


class Loader(Client):
    """A named producer: whenever it begins it goes on behind its last sequence id."""

    def __init__(self, world: World, name: str, rows: int, topic: str | None = None) -> None:
        super().__init__(world, name)
        self.topic = topic or world.random.choice(TOPICS)
        self.rows = rows

    async def life(self) -> None:
        random = self.random
        async with (
            self.world.client() as client,
            AsyncProducer(
                self.topic,
                name=self.name,
                client=client,
                linger=random.choice([0, 0.005]),
                batch_max_messages=random.choice([1, 7, 100]),
                delivery_timeout=120,
            ) as producer,
        ):
            last = producer.last_sequence_id
            at, most = 0 if last is None else last + 1, random.choice([1, 5, 40])
            while at < self.rows:
                numbers = range(at, min(at + most, self.rows))
                await asyncio.gather(*(self._send(producer, number) for number in numbers))
                at = numbers.stop
                if random.random() < 0.3:
                    await asyncio.sleep(random.expovariate(1))
        self.world.history.promised |= {f"{self.name} {number}" for number in range(self.rows)}

    async def _send(self, producer: AsyncProducer[bytes], number: int) -> None:
        history, said = self.world.history, payload(self.name, number)
        group = history.begin(f"{self.name} {number}", [history.message(self.topic, said, self.name, number)])
        receipt = await producer.send(said, sequence_id=number)
        _stored(self.world, group, group.messages[0], receipt.offset, receipt.message_id)


class Nameless(Client):
    """A producer without a name: what one process sends is there once, or perhaps not where it was killed."""

    def __init__(self, world: World, name: str, rows: int) -> None:
        super().__init__(world, name)
        self.rows, self.at = rows, 0

    async def life(self) -> None:
        history = self.world.history
        async with self.world.client() as client, AsyncProducer(TOPICS[0], client=client, delivery_timeout=120) as producer:
            while self.at < self.rows:
                said = payload(self.name, self.at)
                group = history.begin(f"{self.name} {self.at}", [history.message(TOPICS[0], said)])
                self.at += 1
                receipt = await producer.send(said)
                _stored(self.world, group, group.messages[0], receipt.offset, receipt.message_id)
                await asyncio.sleep(self.random.expovariate(1))


class Twice(Client):
    """Sends each request twice at the same time, under one number: it is stored once, and both are answered where."""

    def __init__(self, world: World, name: str, rows: int) -> None:
        super().__init__(world, name)
        self.topic, self.rows = world.random.choice(TOPICS), rows

    async def life(self) -> None:
        async with self.world.client() as client:
            opened = await client.open_producer(self.topic, self.name)
            last = opened.last_sequence_id
            at = 0 if last is None else last + 1
            while at < self.rows:
                at = await self._send(client, opened.epoch, at)
                await asyncio.sleep(self.random.expovariate(2))

    async def _send(self, client: AsyncClient, epoch: int, at: int) -> int:
        """One request; where the next one begins."""
        history, numbers = self.world.history, range(at, min(at + self.random.choice([1, 3]), self.rows))
        said = [payload(self.name, number) for number in numbers]
        request = PublishRequest(said, self.name, epoch, sequence_ids=numbers)
        groups = [
            history.begin(f"{self.name} {number}", [history.message(self.topic, said, self.name, number)])
            for number, said in zip(numbers, said, strict=True)
        ]
        answers = await asyncio.gather(*(client.publish(self.topic, request) for _ in range(2)), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                continue
            for group, receipt in zip(groups, Receipts(answer), strict=True):
                _stored(self.world, group, group.messages[0], receipt.offset, receipt.message_id)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return numbers.stop


class _Undone(Exception):
    """Ends the block of a transaction that is to be rolled back."""


class Transactor(Client):
    """Transactions over all topics; some are rolled back, and some lose their client."""

    def __init__(self, world: World, name: str, rows: int) -> None:
        super().__init__(world, name)
        self.rows, self.at = rows, 0

    async def life(self) -> None:
        async with self.world.client() as client:
            while self.at < self.rows:
                self.at += 1
                await self._one(client, f"{self.name} {self.at}", self.random.random() < 0.2)
                await asyncio.sleep(self.random.expovariate(1))

    async def _one(self, client: AsyncClient, name: str, undo: bool) -> None:
        history, random = self.world.history, self.random
        sent = [history.message(random.choice(TOPICS), payload(name, number)) for number in range(random.choice([1, 2, 2, 6]))]
        group = history.begin(name, sent)
        context = client.transaction(buffer_bytes=random.choice([0, 200, 1 << 20]), timeout=20)
        try:
            async with context as tx:
                history.pointers[tx.transaction_id] = group
                for each in sent:
                    await tx.send(each.topic, each.payload)
                if undo:
                    raise _Undone
        except _Undone:
            history.decided(group, "gone")
        except TransactionInDoubt:
            return
        except OncelogError as error:
            self.world.met(self.name, error)
            if context.state in ("aborted", "invalid"):
                history.decided(group, "gone")
        else:
            history.decided(group, "there")
            for each in sent:
                history.received(each, None, None)


class Committer(Client):
    """Atomic commits over all topics, numbered: one that lost its client is made again under another id, and is there once."""

    def __init__(self, world: World, name: str, rows: int) -> None:
        super().__init__(world, name)
        self.rows = rows

    async def life(self) -> None:
        async with self.world.client() as client:
            try:
                at = (await client.group_producer(self.name, self.name)).sequence_id + 1
            except GroupProducerNotFound:
                at = 0
            at = max(0, at - self.random.choice([0, 1]))  # not everybody looks
            while at < self.rows:
                await self._one(client, at)
                at += 1
                await asyncio.sleep(self.random.expovariate(1))

    async def _one(self, client: AsyncClient, at: int) -> None:
        history, name = self.world.history, f"{self.name} {at}"
        sent = [history.message(TOPICS[each % len(TOPICS)], payload(name, each)) for each in range(at % 5 + 1)]
        group = history.begin(name, sent, beside=True, order=self.name)
        buffer_bytes = self.random.choice([0, 1 << 20])
        batch = client.atomic(self.name, producer=self.name, sequence_id=at, timeout=20, buffer_bytes=buffer_bytes)
        try:
            async with batch:
                for each in group.messages:
                    await batch.send(each.topic, each.payload)
        except TransactionNotInProgress:
            return await self._one(client, at)  # it was too slow
        assert batch.outcome is not None
        assert batch.outcome.committed
        history.decided(group, "there")
        for each in group.messages:
            history.received(each, None, None)
        return None


class Racer(Client):
    """Publishes where it has seen the end: of those that expect one offset, one wins."""

    def __init__(self, world: World, name: str, rows: int) -> None:
        super().__init__(world, name)
        self.rows, self.at = rows, 0

    async def life(self) -> None:
        async with self.world.client() as client:
            while self.at < self.rows:
                offset = (await client.stats(LEDGER)).upcoming_offset
                await self._one(client, offset)
                await asyncio.sleep(self.random.expovariate(2))

    async def _one(self, client: AsyncClient, offset: int) -> None:
        history, said = self.world.history, payload(self.name, self.at)
        self.at += 1
        group = history.begin(f"{self.name} {self.at}", [history.message(LEDGER, said)])
        sent = group.messages[0]
        try:
            (receipt,) = Receipts(await client.publish(LEDGER, PublishRequest([said], expected_offset=offset)))
        except OncelogError as error:
            self.world.met(self.name, error)
            if error.definite:
                history.decided(group, "gone")
            else:
                sent.place = sent.place._replace(only=offset)
        else:
            assert receipt.offset == offset, receipt
            _stored(self.world, group, sent, receipt.offset, receipt.message_id)


class Worker(Client):
    """A durable consumer: what it has acknowledged does not come again, and nothing of another topic is acknowledged."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        super().__init__(world, name)
        self.reading = world.history.reading(name, topic, repeats=True)

    async def life(self) -> None:
        async with (
            self.world.client() as client,
            AsyncConsumer(self.reading.topic, self.name, client=client, page_size=self.random.choice([3, 100])) as consumer,
        ):
            while True:
                messages = await consumer.receive(20, timeout=self.random.choice([1, 20]))
                for message in messages:
                    self.reading.receive(found(message))
                    self.world.given[self.reading.topic] = message
                await self._refuses_others(consumer)
                if messages and self.random.random() < 0.7:
                    upto = self.random.choice(messages)
                    await consumer.ack(upto)
                    self.reading.acknowledged = max(self.reading.acknowledged, upto.offset)

    async def _refuses_others(self, consumer: AsyncConsumer[bytes]) -> None:
        for topic, message in self.world.given.items():
            if topic != self.reading.topic:
                try:
                    await consumer.ack(message)
                except InvalidMessageId:
                    continue
                raise AssertionError(f"{self.name} has acknowledged {message}, which is of {topic}")


class Follower(Client):
    """A reader that goes on where it stood."""

    def __init__(self, world: World, name: str, topic: str, isolation: Isolation = "committed") -> None:
        super().__init__(world, name)
        self.isolation: Isolation = isolation
        self.reading = world.history.reading(name, topic, committed=isolation == "committed")
        self._last: object = None

    async def life(self) -> None:
        start = "earliest" if self._last is None else self._last
        async with (
            self.world.client() as client,
            AsyncReader(
                self.reading.topic,
                client=client,
                start=start,
                isolation=self.isolation,
                page_size=self.random.choice([3, 100]),
            ) as reader,
        ):
            while True:
                for message in await reader.read(50, timeout=self.random.choice([1, 20])):
                    self.reading.receive(found(message))
                    self._last = message.message_id


def _stored(world: World, group: Group, sent: Sent, offset: int | None, message_id: object) -> None:
    world.history.decided(group, "there")
    world.history.received(sent, offset, None if message_id is None else bytes(message_id))  # type: ignore[call-overload]


def everyone(world: World) -> Sequence[Client]:
    """Those whose work ends."""
    return [
        *(Loader(world, f"loader{number}", 60) for number in range(2)),
        Loader(world, "recorder", 60, RECORDS),
        Keeper(world, "keeper", 8),
        Guest(world, "guest", 3),
        Query(world, "query", 10),
        Shop(world, "shop", 15),
        Nameless(world, "nameless", 15),
        Twice(world, "twice", 30),
        *(Transactor(world, f"transactor{number}", 10) for number in range(2)),
        *(Committer(world, f"committer{number}", 12) for number in range(2)),
        *(Racer(world, f"racer{number}", 10) for number in range(2)),
    ]


def followers(world: World) -> Sequence[Client]:
    """Those that read on."""
    return [
        *(Follower(world, f"reader-of-{topic}", topic) for topic in (TOPICS[0], LEDGER, RECORDS)),
        Source(world, "source", TOPICS[1]),
        Follower(world, "dirty-reader", TOPICS[0], "uncommitted"),
        *(Worker(world, f"worker-on-{topic}", topic) for topic in TOPICS),
    ]


def run(seed: int, say: Callable[[str], None] | None = None) -> Outcome:
    """A seed of everything."""
    return simulate(seed, everyone, followers, say, 3 if seed in SHARED else 1)
