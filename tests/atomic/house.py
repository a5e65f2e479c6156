"""A service over a disk, for tests of atomic commits: crashed behind any batch, and asked what every reader sees."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from oncelog.errors import OncelogError
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest, Part, PublishRequest, PublishResponse
from oncelog.wire.transaction import Transaction
from oncelog_service.app import build_service
from oncelog_service.atomic import ledger, upkeep
from oncelog_service.atomic.coordinator import AtomicCommits
from oncelog_service.config import Settings
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import verify_log
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.workers import Workers
from tests.patience import PATIENCE
from tests.world.clock import ManualClock
from tests.world.disk import crashed
from tests.world.polls import Delivered, read_all

E = TypeVar("E", bound=OncelogError)

CHECKED = {"check_expected_offsets": "true"}
"""For :meth:`House.create`."""
SEES_ALL = Transaction(2**62, 2**62, write_pointer=2**62)
"""That of a reader for whom every transaction has been committed."""


class BatchByBatch(MemoryStore):
    """Writes each batch of a group by itself, and remembers the disk as it was before the first and after each of them."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.disks = [crashed(disk)]

    def write(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            super().write([batch])
            if batch.puts or batch.deletes or batch.laid:
                self.disks.append(crashed(self.disk))


class Stalling(MemoryStore):
    """Its writes can be held up; who reads is not."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.entered, self.goes = threading.Event(), threading.Event()
        self.goes.set()

    def stall(self) -> None:
        self.goes.clear()
        self.entered.clear()

    def write(self, batches: Sequence[Batch]) -> None:
        self.entered.set()
        assert self.goes.wait(PATIENCE)
        super().write(batches)


def messages(*payloads: str, **fields: Any) -> PublishRequest:
    """A request with these payloads; a ``producer`` without ids numbers them from ``first``, 0 if it is not given."""
    first = fields.pop("first", None)
    if first is not None:
        fields["sequence_ids"] = list(range(first, first + len(payloads)))
    return PublishRequest([each.encode() for each in payloads], **fields)


def commit_of(parts: Mapping[str, PublishRequest] | None = None, **fields: Any) -> CommitRequest:
    """A commit that carries these parts, topic → request."""
    carried = [Part("default", topic, request) for topic, request in (parts or {}).items()]
    return CommitRequest(parts=carried, **fields)


class House:
    """One life of a service."""

    def __init__(self, service: Service, store: Store, clock: ManualClock) -> None:
        self.service = service
        self.store = store
        self.clock = clock

    @property
    def atomic(self) -> AtomicCommits:
        return self.service.opening.atomic

    async def topic(self, name: str) -> TopicLog:
        return await self.service.opening.topics.logs.open("default", name)

    async def create(self, *names: str, **properties: str) -> None:
        for name in names:
            await self.service.opening.topics.changes.create(
                "default", name, {key.replace("_", "."): value for key, value in properties.items()}
            )

    async def delete(self, name: str) -> None:
        await self.service.opening.topics.changes.delete("default", name)

    async def begin(self, id: str, of: str | None = None, group: str = "g", timeout_ms: int | None = None) -> AtomicOutcome:  # noqa: A002
        return await self.atomic.begin(id, group, timeout_ms, of)

    async def stage(self, id: str, topic: str, chunk: int, request: PublishRequest) -> None:  # noqa: A002
        await self.atomic.stage(id, "default", topic, chunk, request)

    async def commit(
        self,
        id: str,  # noqa: A002
        parts: Mapping[str, PublishRequest] | None = None,
        **fields: Any,
    ) -> AtomicOutcome:
        return await self.atomic.commit(id, commit_of(parts, **fields))

    async def state(self, id: str) -> str:  # noqa: A002
        """Its state; of an aborted one why."""
        outcome = await self.atomic.show(id)
        return outcome.reason or outcome.state

    async def publish(self, topic: str, request: PublishRequest) -> PublishResponse:
        return await (await self.topic(topic)).publish(request)

    async def read(self, topic: str, transaction: Transaction | None = None) -> list[Delivered]:
        return await read_all(await self.topic(topic), transaction=transaction)

    async def shown(self, topic: str) -> list[str]:
        """The payloads that every reader is given: one without a transaction, and one within; the offsets are dense."""
        plain = await self.read(topic)
        within = await self.read(topic, SEES_ALL)
        assert plain == within, f"{topic}: a transaction sees something else"
        offsets = [each.offset for each in plain]
        assert not offsets or offsets == list(range(offsets[0], offsets[0] + len(plain))), f"{topic}: {offsets}"
        ids = [each.message_id for each in plain]
        assert ids == sorted(set(ids)), f"{topic}: ids do not rise"
        return [each.payload.decode() for each in plain]

    async def verify(self, *topics: str) -> None:
        """Refold each log and compare it with the live maps."""
        for name in topics:
            log = await self.topic(name)
            await self.service.opening.writer.synced()
            *_, findings = verify_log(self.store, log)
            assert not findings.problems, f"{name}: {findings.problems}"

    async def dropped(self) -> None:
        """Return when what nobody will see is deleted."""
        await self.atomic.close()
        await self.service.opening.writer.synced()

    def keys(self, table: Table) -> list[bytes]:
        """Of every row on disk."""
        return [key for key, _ in self.store.scan(table, b"", b"\xff" * 20)]

    def rows(self, table: Table) -> int:
        return len(self.keys(table))


@asynccontextmanager
async def living(
    disk: Disk | None = None,
    clock: ManualClock | None = None,
    store: Store | None = None,
    topics: str = "",
    checked: bool = False,
    trim_every: int = 1_000,
    workers: Workers | None = None,
    **settings: Any,
) -> AsyncIterator[House]:
    """A service on this disk, or this opening of a store, with these topics, stopped cleanly at the end; take :func:`crashed` the
    disk before that for a crash. What runs in the background is run by the tests."""
    clock = clock or ManualClock()
    opened = store or MemoryStore(disk)
    chosen = {"retention_seconds": 3_600, **settings}
    service = build_service(Settings(store="memory://", **chosen), clock, lambda: opened, workers=workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "_ROUND_SECONDS", 3_600)
        patch.setattr(ledger, "_TRIM_EVERY", trim_every)
        await service.start()
        try:
            house = House(service, opened, clock)
            await house.create(*topics, **CHECKED if checked else {})
            yield house
        finally:
            if isinstance(opened, Stalling):
                opened.goes.set()  # of a test that failed: nobody waits for it
            await service.stop()


async def refused(kind: type[E], call: Awaitable[object]) -> E:
    """The refusal of the call, which must be of this kind."""
    try:
        answer = await call
    except kind as error:
        return error
    raise AssertionError(f"it was not refused: {answer}")


async def refusal(call: Awaitable[object]) -> OncelogError:
    """What the call raises."""
    return await refused(OncelogError, call)
