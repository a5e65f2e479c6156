"""The clients of a simulated world. Each tells the history what it is about to do, does it, and tells what was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from oncelog import AsyncClient, AsyncConsumer, AsyncProducer, AsyncReader
from oncelog.errors import (
    GroupProducerNotFound,
    InvalidMessageId,
    OncelogError,
    RollbackRefused,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.values.receipt import Receipts
from oncelog.wire.isolation import Isolation
from oncelog.wire.requests import PublishRequest, PublishResponse
from oncelog.wire.transaction import POINTERS_PER_MS, Transaction
from tests.model.history import Group, Place, Sent
from tests.simulation.guests import Guest
from tests.simulation.outbox import Shop
from tests.simulation.pipeline import Query, Source
from tests.simulation.removal import Keeper
from tests.simulation.worlds import LEDGER, RECORDS, TOPICS, Client, Outcome, World, found, simulate
from tests.world.disk import Database
from tests.world.virtual.loop import BEGAN_MS

FOREIGN = "tephra"


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


class Drafter(Client):
    """Publishes under a write pointer long before that is decided, or a stored group; reads as it sees; often undoes."""

    def __init__(self, world: World, name: str, rows: int) -> None:
        super().__init__(world, name)
        self.rows, self.at = rows, 0

    async def life(self) -> None:
        async with self.world.client() as client:
            while self.at < self.rows:
                self.at += 1
                await self._one(client, f"{self.name} {self.at}")
                await asyncio.sleep(self.random.expovariate(1))

    async def _one(self, client: AsyncClient, name: str) -> None:
        history, topic = self.world.history, self.random.choice(TOPICS)
        messages = [history.message(topic, payload(name, at)) for at in range(self.random.choice([1, 3]))]
        group = history.begin(name, messages, beside=True)
        transaction = await client.start_transaction(timeout=20)
        pointer = transaction.write_pointer
        history.pointers[pointer] = group
        response = await self._publish(client, group, pointer, stored=self.random.random() < 0.3)
        await self._look(client, topic, transaction, group)
        await asyncio.sleep(self.random.uniform(0, 4))
        if self.random.random() < 0.3:
            await client.rollback(topic, response)
            if len(self.world.instances) == 1:  # else the request may have gone to two of them, and come once more behind this
                del history.pointers[pointer]
                history.decided(group, "gone")
                await client.commit_transaction(pointer)
        elif self.random.random() < 0.5:
            await client.abort_transaction(pointer)
            history.decided(group, "gone")
        else:
            await client.commit_transaction(pointer)
            history.decided(group, "there")
            for each in group.messages:
                history.received(each, None, None)

    async def _publish(self, client: AsyncClient, group: Group, pointer: int, *, stored: bool = False) -> PublishResponse:
        """Its messages, under numbers, so that they are there once however often they are sent."""
        topic, said = group.messages[0].topic, [each.payload for each in group.messages]
        request = PublishRequest(said, write_pointer=pointer, sequence_ids=range(len(said)))
        if stored:
            await client.store(topic, request)
            return await client.publish_transactional(topic, PublishRequest([], write_pointer=pointer))
        response = await client.publish_transactional(topic, request)
        for sent, receipt in zip(group.messages, Receipts(response.receipts), strict=True):
            assert receipt.message_id is not None
            sent.place = Place(receipt.offset, bytes(receipt.message_id))
        return response

    async def _look(self, client: AsyncClient, topic: str, transaction: Transaction, group: Group) -> None:
        """Read to where the transaction sees; and ask that what it was given of others be rolled back."""
        own = {each.payload for each in group.messages}
        undecided = set(transaction.in_progress)

        def undone(said: bytes) -> bool:
            return said in own or said.startswith(FOREIGN.encode())

        def sees(pointer: int) -> bool:
            return pointer == transaction.write_pointer or (pointer <= transaction.read_pointer and pointer not in undecided)

        reading = self.world.history.reading(group.name, topic, undone=undone, sees=sees)
        async with AsyncReader(topic, client=client, start="earliest", transaction=transaction, timeout=0) as reader:
            async for message in reader:
                reading.receive(found(message))
        ours = [each for each in reading.given if each.payload in own]
        at = group.messages[0].place.offset
        if len(ours) < len(own) and (await client.transaction_status(transaction.write_pointer)).state == "in_progress":
            # Else it has timed out while this read, and its messages were rolled back.
            assert not ours, f"{group.name} sees {ours} of its {len(own)} messages"
            assert at is None or all(each.offset < at for each in reading.given), f"{group.name} does not see itself"
        others = [each for each in reading.given if each.payload not in own]
        if others:
            first, last = sorted(self.random.choices(others, k=2))
            start, end = (int.from_bytes(each.message_id[:10]) for each in (first, last))
            ends = start >> 16, start & 0xFFFF, end >> 16, end & 0xFFFF
            try:
                await client.rollback(topic, PublishResponse([], transaction.write_pointer, *ends))
            except RollbackRefused:
                return
            raise AssertionError(f"{self.name} has rolled back {first} to {last}, which are of others")


class Foreigner(Drafter):
    """Of another transaction service, which tells this one nothing: it rolls back itself, or an operator ends its pointer.

    Each step is asked for until it is answered. Should a request come once more behind its rollback, it is stored again: what is
    held back at the end is the operator's.
    """

    _response: PublishResponse | None = None

    async def life(self) -> None:
        async with self.world.client() as client:
            while self.at < self.rows:
                await self._one(client, f"{self.name} {self.at}")
                self.at, self._response = self.at + 1, None
                await asyncio.sleep(self.random.expovariate(1))

    async def _one(self, client: AsyncClient, name: str) -> None:
        history, topic = self.world.history, TOPICS[self.at % 2]
        group = history.begin(name, [history.message(topic, payload(name, 0))])
        pointer = BEGAN_MS * POINTERS_PER_MS + self.at  # as Tephra counts
        response = self._response = self._response or await self._publish(client, group, pointer)
        await asyncio.sleep(self.random.expovariate(1))
        committed = self.at % 3 == 0
        if self.at % 3 == 1:
            await client.rollback(topic, response)
        else:
            with suppress(TransactionNotFound):  # an answer was lost
                await client.settle_topic(topic, pointer, committed=committed)
        history.decided(group, "there" if committed else "gone")


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
                messages = await consumer.read(20, timeout=self.random.choice([3, 20]))
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
        self.reading = world.history.reading(name, topic, undone=lambda _: isolation == "uncommitted")
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
                for message in await reader.read(50, timeout=self.random.choice([3, 20])):
                    self.reading.receive(found(message))
                    self._last = message.message_id


def _stored(world: World, group: Group, sent: Sent, offset: int | None, message_id: object) -> None:
    world.history.decided(group, "there")
    world.history.received(sent, offset, None if message_id is None else bytes(message_id))  # type: ignore[call-overload]


def everyone(world: World) -> Sequence[Client]:
    """Those whose work ends."""
    return [
        *(Loader(world, f"loader{number}", 30) for number in range(2)),
        Loader(world, "recorder", 30, RECORDS),
        Keeper(world, "keeper", 6),
        Guest(world, "guest", 2),
        Query(world, "query", 6),
        Shop(world, "shop", 8),
        Nameless(world, "nameless", 8),
        Twice(world, "twice", 10),
        *(Transactor(world, f"transactor{number}", 6) for number in range(2)),
        *(Drafter(world, f"drafter{number}", 4) for number in range(2)),
        Foreigner(world, FOREIGN, 4),
        *(Committer(world, f"committer{number}", 7) for number in range(2)),
        *(Racer(world, f"racer{number}", 6) for number in range(2)),
    ]


def followers(world: World) -> Sequence[Client]:
    """Those that read on."""
    return [
        *(Follower(world, f"reader-of-{topic}", topic) for topic in (TOPICS[0], LEDGER, RECORDS)),
        Source(world, "source", TOPICS[1]),
        Follower(world, "dirty-reader", TOPICS[0], "uncommitted"),
        *(Worker(world, f"worker-on-{topic}", topic) for topic in TOPICS),
    ]


def run(seed: int, say: Callable[[str], None] | None = None, beside: Database | None = None) -> Outcome:
    """A seed of everything; in each eighth three instances share a database. ``beside``: of one, where an empty one is."""
    return simulate(seed, everyone, followers, say, 1 if seed % 8 else 3, beside)
