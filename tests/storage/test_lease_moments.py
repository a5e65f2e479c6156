"""A lease ends between any two steps of an operation: nobody waits for ever, no hole is written over, a repeat is answered.

Whoever asks whether its lease stands is counted, and the n-th one is the last to hear yes, for every n that an operation has.
That is a process which is stopped for a moment between any two instructions of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from oncelog.errors import (
    OncelogError,
    StorageFailed,
    StorageUnavailable,
    StoredGroupPublished,
    TransactionNotInProgress,
    TransactionsUnavailable,
)
from oncelog.wire.codec import decode_polled, encode_consume_response
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.models import Acknowledge, NamespacePolicies, OpenSubscription
from oncelog.wire.requests import CommitRequest, ConsumeRequest, Part, PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.atomic.coordinator import AtomicCommits
from oncelog_service.atomic.limits import AtomicLimits
from oncelog_service.background import Background
from oncelog_service.cluster.leader import Leader
from oncelog_service.cluster.leases import ATOMIC_COMMITS, SETUP, TRANSACTIONS, Lease, topic_resource
from oncelog_service.group_commit import Writer
from oncelog_service.log.cache import RecentMessages
from oncelog_service.log.limits import Limits
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import verify_log
from oncelog_service.reading import Scans
from oncelog_service.storage.keys import generation_of
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Fence, Table
from oncelog_service.topics import Topics
from oncelog_service.transactions.leased import LeasedTransactions
from oncelog_service.transactions.manager import TransactionManager
from tests.patience import PATIENCE
from tests.world.clock import ManualClock

FOR_EVER = 10**9


class InPlace(ThreadPoolExecutor):
    """Makes calls where they are handed in: waiting for threads was nearly all that these tests did."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Spins(BaseException):
    """Somebody asks again and again."""


class EndingLeases:
    """Leases of which all end after so many questions, and may be taken anew."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.asked = 0
        self.standing_questions = FOR_EVER
        self.fallen_questions = 0
        self.held: dict[bytes, Lease] = {}

    def end_after(self, questions: int, for_questions: int) -> None:
        """This many are still answered yes, then so many no."""
        self.asked, self.standing_questions, self.fallen_questions = 0, questions, for_questions

    def _standing(self) -> bool:
        self.asked += 1
        if self.asked > 200_000:
            raise Spins
        return not self.standing_questions < self.asked <= self.standing_questions + self.fallen_questions

    @property
    def has_ended(self) -> bool:
        return self.asked > self.standing_questions

    async def take(self, resource: bytes, *, claim: bool = False) -> Lease:
        lease = self.held.get(resource)
        if lease is None or not lease.is_valid:
            if lease is not None:
                lease.lost = True
            epoch = self.disk.epochs[resource] = self.disk.epochs.get(resource, 0) + 1
            lease = self.held[resource] = Lease(resource, Fence(resource, epoch), self._standing)
        return lease

    def belongs_here(self, resource: bytes) -> bool:
        return True

    def keep(self, resource: bytes) -> None:
        """Nothing is moved."""

    async def pass_on(self, resource: bytes, to: str | None) -> None:
        """To nobody."""

    def lost(self, fences: frozenset[Fence]) -> None:
        for fence in fences:
            lease = self.held.get(fence.resource)
            if lease is not None and lease.fence == fence:
                lease.lost = True
                del self.held[fence.resource]


_OF_TRANSACTIONS = (Table.TRANSACTION_EDIT, Table.TRANSACTION_SNAPSHOT, Table.OUTCOME)
_OF_COMMITS = (Table.JOURNAL, Table.JOURNAL_META, Table.ATOMIC_ID, Table.ATOMIC_OUTCOME, Table.GROUP_PRODUCER)
ONCE = {**dict.fromkeys(_OF_TRANSACTIONS, TRANSACTIONS), **dict.fromkeys(_OF_COMMITS, ATOMIC_COMMITS), Table.NAMESPACE: SETUP}
"""The tables of what the whole store has once, and the lease under which each is written."""


def check_fenced(batches: Sequence[Batch]) -> None:
    """Every write names the leases of what it changes: a process that was stopped before it, and replaced, changes nothing."""
    for batch in batches:
        rows = [*batch.puts, *((table, key, b"") for table, key, *_ in batch.runs), *((*each, b"") for each in batch.deletes)]
        held = {fence.resource for fence in batch.fences}
        for table, key, _ in rows:
            of = ONCE.get(table) or topic_resource(generation_of(key + bytes(4))[:-4])
            assert of in held, f"{table} is written under {held}"


class House:
    """What a service has over a shared store, but for HTTP."""

    def __init__(self, disk: Disk) -> None:
        self.clock = ManualClock()
        self.pointer: int | None = None
        self.failures: list[Exception] = []
        disk.before_sync = check_fenced
        store = MemoryStore(disk)
        self.leases = EndingLeases(disk)
        self.writer = Writer(store, self.failures.append, self.leases.lost)
        self.store = store

        async def recover_transactions(lease: Lease) -> TransactionManager:
            return await TransactionManager.recover(store, self.writer.under(lease), self.clock, store_id="0")

        async def recover_atomic(lease: Lease) -> AtomicCommits:
            return await AtomicCommits.recover(
                store, self.writer.under(lease), self.topics, self.clock, AtomicLimits(4, 60_000, 600_000, 1_000)
            )

        self.led_transactions = Leader(TRANSACTIONS, self.leases, recover_transactions, Background(self.clock))
        self.transactions = LeasedTransactions(self.led_transactions, None, "0", self.clock)
        self.led_atomic = Leader(ATOMIC_COMMITS, self.leases, recover_atomic, Background(self.clock))
        limits = Limits(snapshot_messages=1)
        self.topics = Topics(
            store,
            self.writer,
            self.clock,
            RecentMessages(2**20),
            limits,
            self.transactions,
            "0",
            leases=self.leases,
            scans=Scans(),
        )

    async def lead(self) -> None:
        """What the service does in the background."""
        for leader in (self.led_transactions, self.led_atomic):
            if leader.present is None:
                await leader.begin()

    async def topic(self, name: str = "a") -> TopicLog:
        return await self.topics.open("default", name)

    async def payloads(self, name: str) -> list[bytes]:
        page = await (await self.topic(name)).poll(ConsumeRequest(limit=1_000), AS_ONCELOG)
        records, *_ = decode_polled(encode_consume_response(ONCELOG_AVRO, page.messages, page.last_id))
        assert [each["offset"] for each in records] == list(range(len(records)))
        return [each["payload"] for each in records]


def named(*payloads: bytes, first: int = 0, pointer: int | None = None, producer: str = "p") -> PublishRequest:
    ids = list(range(first, first + len(payloads)))
    return PublishRequest(list(payloads), producer, sequence_ids=ids, write_pointer=pointer)


Step = Callable[[House], Awaitable[object]]


async def _publish(house: House) -> None:
    for first in (0, 2):
        await (await house.topic()).publish(named(b"%d" % first, b"%d" % (first + 1), first=first))


async def _begun(house: House) -> tuple[int, bool]:
    """The pointer of the house's transaction, which is begun once, and whether it is in progress."""
    if house.pointer is None:
        house.pointer = (await house.transactions.start(TransactionType.SHORT)).write_pointer
    return house.pointer, (await house.transactions.states([house.pointer]))[house.pointer] == "in_progress"


async def _transaction(house: House) -> None:
    pointer, in_progress = await _begun(house)
    if in_progress:
        with suppress(StoredGroupPublished):  # it is there
            await (await house.topic()).store(named(b"0", b"1", pointer=pointer))
        await (await house.topic()).publish(PublishRequest([], "p", write_pointer=pointer))
        await (await house.topic("b")).publish(named(b"0", b"1", pointer=pointer))
        await house.transactions.commit(pointer)
    for name in "ab":
        await (await house.topic(name)).settle(pointer, True)


async def _roll_back(house: House) -> None:
    pointer, in_progress = await _begun(house)
    if in_progress:
        await (await house.topic()).publish(named(b"0", b"1", pointer=pointer))
        await house.transactions.abort(pointer)
    await (await house.topic()).settle(pointer, False)


async def _atomic(house: House) -> None:
    journal = house.led_atomic.here
    await journal.begin("x", "g", None, None)
    for name in "ab":
        with suppress(TransactionNotInProgress):  # its commit was heard
            await journal.stage("x", "default", name, 0, named(b"0", b"1"))
    parts = [Part("default", name, named(b"2", first=2)) for name in "ab"]
    await journal.commit("x", CommitRequest(parts=parts, producer="driver", sequence_id=0))


async def _open_producer(house: House) -> None:
    opened = await (await house.topic()).producers.open("p", "nonce", "allow")
    assert opened.epoch == 1
    await (await house.topic()).publish(replace(named(b"0"), epoch=1))


async def _acknowledge(house: House) -> None:
    await (await house.topic()).publish(named(b"0", b"1"))
    subscriptions = (await house.topic()).subscriptions
    opened = await subscriptions.open(OpenSubscription(name="s", nonce="nonce"))
    subscriptions = (await house.topic()).subscriptions
    answer = await subscriptions.acknowledge("s", Acknowledge(epoch=opened.epoch, generation=1, offset=1))
    assert answer.cursor == 2


OPERATIONS: dict[str, tuple[Step, dict[str, list[bytes]]]] = {
    "publish": (_publish, {"a": [b"0", b"1", b"2", b"3"]}),
    "transaction": (_transaction, {"a": [b"0", b"1"], "b": [b"0", b"1"]}),
    "roll back": (_roll_back, {"a": [b"0", b"1"]}),
    "atomic commit": (_atomic, {"a": [b"0", b"1", b"2"], "b": [b"0", b"1", b"2"]}),
    "open a producer": (_open_producer, {"a": [b"0"]}),
    "acknowledge": (_acknowledge, {"a": [b"0", b"1"]}),
}


async def _until_answered(house: House, step: Step) -> None:
    """As a client does: again and again, whatever it was refused with, if that may pass."""
    for _ in range(10):
        with suppress(StorageFailed, StorageUnavailable, TransactionsUnavailable):
            await house.lead()
            await asyncio.wait_for(step(house), PATIENCE)
            return
    raise AssertionError("it is never answered")


async def _whole(house: House, expected: dict[str, list[bytes]]) -> None:
    for name, payloads in expected.items():
        assert await house.payloads(name) == payloads
        for findings in verify_log(house.store, await house.topic(name)):
            assert findings.problems == []


@pytest.mark.parametrize("no_longer", [1, FOR_EVER], ids=["for one question", "until it is taken anew"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_lease_that_ends_between_any_two_steps_loses_and_doubles_nothing(operation: str, no_longer: int) -> None:
    step, expected = OPERATIONS[operation]

    async def reaches(moment: int) -> bool:
        """Whether the operation goes on beyond this moment, at which the leases end."""
        house = House(Disk())
        await house.lead()
        await house.topics.set_policies("space", NamespacePolicies(deduplication=False))
        for name in "ab":
            await house.topics.create("default", name, {})
            await house.topic(name)
        house.leases.end_after(moment, no_longer)
        failed = False
        try:
            await asyncio.wait_for(step(house), PATIENCE)
        except OncelogError:
            failed = True
        reached = house.leases.has_ended
        assert reached or not failed
        house.leases.end_after(FOR_EVER, 0)
        await _until_answered(house, step)
        await _whole(house, expected)
        assert house.failures == []
        await house.topics.close()
        await house.writer.close()
        again = House(house.store.disk)
        again.clock.advance(1)
        await again.lead()
        await _whole(again, expected)
        await again.writer.close()
        return reached

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(InPlace())
        moment = 0
        while await reaches(moment):
            moment += 1
        assert moment > 3

    asyncio.run(scenario())
