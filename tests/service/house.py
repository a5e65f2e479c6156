"""One topic's log over the memory store: filled, opened, closed, crashed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.bounds.size import MaxBytes
from oncelog_service.clock import Clock
from oncelog_service.group_commit import Writer
from oncelog_service.log.cache import RecentMessages
from oncelog_service.log.keep.recovery import recover
from oncelog_service.log.limits import Limits
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import Expired, expired_rows
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.properties import Rules
from oncelog_service.reading import Scans
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import generation_key, row_id, topic_key
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import TopicRow
from oncelog_service.storage.rows import chain_of, encode_messages, message_id_of
from oncelog_service.storage.runs import Laying, StoredRun
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.workers import ThreadWorkers
from tests.world.clock import ManualClock
from tests.world.disk import crashed as crashed
from tests.world.disk import flip as flip

PREFIX = generation_key(topic_key("default", "orders"), 1)
OTHER = generation_key(topic_key("default", "orders-2"), 1)
BEGIN = 1_790_000_000_000
PARTICIPANT = "0:default/orders/1"
T = TypeVar("T")


@dataclass
class House:
    log: TopicLog
    store: MemoryStore
    writer: Writer
    transactions: TransactionManager

    async def start(self, kind: TransactionType = TransactionType.SHORT) -> int:
        """The write pointer of a new transaction."""
        return (await self.transactions.start(kind)).write_pointer


@asynccontextmanager
async def opened(
    disk: Disk,
    clock: Clock | None = None,
    limits: Limits | None = None,
    deduplication: bool = True,
    clean: bool = True,
    keyed: bool = False,
    store: MemoryStore | None = None,
    writing: Callable[..., Writer] = Writer,
    max_bytes: MaxBytes | None = None,
) -> AsyncIterator[House]:
    """The log recovered from ``disk``, closed at the end; without ``clean`` as if the process had gone. ``keyed``: it checks
    expectations. ``store``: the opening of the disk, if it is a special one."""
    store = store or MemoryStore(disk)
    clock = clock or ManualClock()
    writer = writing(store, lambda _: None, clock=clock, workers=ThreadWorkers())
    cache = RecentMessages(2**20).topic()
    row = TopicRow(1, 0, {"ttl": str(10**9)})
    try:
        recovered = recover(store, PREFIX, keyed)
        transactions = await TransactionManager.recover(store, writer, clock)
        topic = OpenTopic(
            prefix=PREFIX,
            row=row,
            store=store,
            writer=writer,
            clock=clock,
            limits=limits or Limits(),
            transactions=transactions,
            participant=PARTICIPANT,
            rules_of=lambda _: Rules(deduplication, max_bytes=max_bytes),
            cache=cache,
            recovered=recovered,
        )
        log = TopicLog(topic, recovered, Scans(ThreadWorkers()))
        log.trimming.begin_if_due()
        yield House(log, store, writer, transactions)
        if clean:
            await log.close()
    finally:
        if not clean:
            store.close()
        await writer.close()
        store.close()


async def turns(count: int = 20) -> None:
    """Let everything go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


def numbered(payloads: Iterable[bytes], producer: str, first: int) -> PublishRequest:
    """A request whose sequence ids leave nothing out."""
    bodies = list(payloads)
    return PublishRequest(bodies, producer, sequence_ids=list(range(first, first + len(bodies))))


def fill(disk: Disk, requests: Sequence[Columns], prefix: bytes = PREFIX, step_ms: int = 1) -> list[bytes]:
    """Write the requests as a log would, a run for each, ``step_ms`` apart; returns the row ids of the messages."""
    store, offset, ids, upto = MemoryStore(disk), 0, [], 0
    for number, columns in enumerate(requests):
        run = [row_id(BEGIN + number * step_ms, each) for each in range(len(columns.payloads))]
        batch = Batch()
        laying = Laying(Table.MESSAGE, prefix, offset, columns.write_pointer, upto)
        laying.add(run, encode_messages(columns, run, offset), chain_of(columns))
        batch.put_laid(laying)
        store.write([batch])
        upto = laying.upto_bytes
        offset += len(run)
        ids += run
    return ids


def told_of(runs: Iterable[StoredRun]) -> list[Expired]:
    """What retention is told of these rows, which stand for no groups."""
    return [Expired(run.id, run.end, message_id_of(run.id), run.upto_bytes) for run in runs]


def oldest(disk: Disk, count: int = 10_000) -> list[Expired]:
    """So many messages of the log on disk, the oldest first, as retention is told of those that have expired."""
    return expired_rows(MemoryStore(disk), PREFIX, 2**62, 0, count)
