"""Spark's source and sink as the calls that they make, in a simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from oncelog import AsyncClient
from oncelog.errors import BranchGone, TransactionNotInProgress
from oncelog.wire.columns import MessageColumns, unpack
from oncelog.wire.models import TopicAsked
from oncelog.wire.requests import CommitRequest, PublishRequest
from tests.model.history import Found, Sent
from tests.simulation.worlds import TOPICS, Client, World

_ID_BYTES = 20


class Source(Client):
    """Plans a range of what is stable, reads it, and only then notes that it has: one that is read again is the same."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        super().__init__(world, name)
        self.reading = world.history.reading(name, topic)
        self._done = self._planned = 0
        """What the checkpoint says, which outlives the process."""
        self._read: list[Found] | None = None

    async def life(self) -> None:
        topic = self.reading.topic
        async with self.world.client() as client:
            while True:
                if self._planned == self._done:
                    asked = {topic: TopicAsked(after=self._done)}
                    stable = (await client.offsets(asked, wait=self.random.choice([0, 20])))[topic].stable
                    if stable <= self._done:
                        continue  # below: a service that was started again may not know yet how transactions ended
                    self._planned = stable
                found = [each async for each in self._rows(client, self._done, self._planned)]
                assert self._read in (None, found), f"{self.name} reads {found} again, and has read {self._read}"
                self._read = found
                await asyncio.sleep(self.random.expovariate(2))
                for each in found:
                    self.reading.receive(each)
                self._done, self._read = self._planned, None

    async def _rows(self, client: AsyncClient, first: int, upto: int):  # type: ignore[no-untyped-def]
        while first < upto:
            page = await client.read_columns(self.reading.topic, first, upto, limit=self.random.choice([3, 100]))
            for each in rows(page):
                yield each
            first = page.next


def rows(page: MessageColumns) -> Iterator[Found]:
    """The messages of a page, one by one."""
    offsets = [offset for run in page.offsets for offset in range(run.first, run.first + run.count)]
    producers = [
        (run.producer, None if run.sequence_id is None else run.sequence_id + at)
        for run in page.producers
        for at in range(run.count)
    ]
    for at, (offset, said, payload) in enumerate(zip(offsets, producers, unpack(page.values), strict=True)):
        yield Found(offset, page.message_ids[at * _ID_BYTES : (at + 1) * _ID_BYTES], *said, payload or b"")


class Query(Client):
    """A micro-batch after the other under numbers without a hole, each staged by tasks, some of which are tried again."""

    def __init__(self, world: World, name: str, batches: int) -> None:
        super().__init__(world, name)
        self._batches, self._batch = batches, 0

    async def life(self) -> None:
        async with self.world.client() as client:
            while self._batch < self._batches:
                await self._one(client, self._batch)
                self._batch += 1
                await asyncio.sleep(self.random.expovariate(1))

    async def _one(self, client: AsyncClient, batch: int) -> None:
        history, name = self.world.history, f"{self.name} {batch}"
        sent = [history.message(TOPICS[at % 2], b"%s:%d" % (name.encode(), at)) for at in range(batch % 4)]
        group = history.begin(name, sent, order=self.name)
        commit = self._drawn(name)
        halves = [each for each in (group.messages[::2], group.messages[1::2]) if each]
        tasks = [self._task(client, commit, partition, half) for partition, half in enumerate(halves)]
        request = CommitRequest(
            self.name,
            branches=await asyncio.gather(*tasks),
            producer=self.name,
            sequence_id=batch,
            incarnation=self.name,
            refuses_gaps=True,
        )
        try:
            outcome = await client.commit_atomic(commit, request)
        except (BranchGone, TransactionNotInProgress):
            return await self._one(client, batch)  # it was too slow
        assert outcome.state in ("committed", "duplicate"), outcome
        history.decided(group, "there")
        for each in group.messages:
            history.received(each, None, None)
        return None

    async def _task(self, client: AsyncClient, commit: str, partition: int, messages: Sequence[Sent]) -> str:
        """The branch of the attempt that counts."""
        while True:
            branch = self._drawn(f"{commit}.{partition}")
            await client.begin_atomic(self.name, id=branch, timeout=20, of=commit)
            chunks: dict[str, int] = {}
            for each in messages:
                chunk = chunks[each.topic] = chunks.get(each.topic, -1) + 1
                await client.stage(branch, each.topic, chunk, PublishRequest([each.payload]))
            if self.random.random() < 0.8:
                return branch

    def _drawn(self, name: str) -> str:
        return f"{name.replace(' ', '.')}.{self.random.getrandbits(64):x}"
