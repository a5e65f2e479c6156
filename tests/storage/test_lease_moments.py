"""A lease ends between any two steps of an operation: nobody waits for ever, no hole is written over, a repeat is answered.

Whoever asks whether its lease stands is counted, and the n-th one is the last to hear yes, for every n that an operation has.
That is a process which is stopped for a moment between any two instructions of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace

import pytest

from oncelog.errors import (
    OncelogError,
    StorageFailed,
    StorageUnavailable,
    StoredGroupPublished,
    TransactionNotInProgress,
    TransactionsUnavailable,
)
from oncelog.wire.models import Acknowledge, NamespacePolicies, OpenSubscription
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.cluster.leader import Leader
from oncelog_service.cluster.leases import ATOMIC_COMMITS, SETUP, TRANSACTIONS, topic_resource
from oncelog_service.cluster.membership import Membership
from oncelog_service.storage.keys import generation_of
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from tests.atomic.house import House, living
from tests.patience import PATIENCE
from tests.service.house import numbered
from tests.world.clock import ManualClock
from tests.world.leases import LeasesInMemory
from tests.world.workers import InPlace, LoopWorkers

pytestmark = pytest.mark.real

FOR_EVER = 10**9


class Spins(BaseException):
    """Somebody asks again and again."""


class Questions:
    """All leases end after so many questions, and may be taken anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end_after(FOR_EVER, 0)
        monkeypatch.setattr(Membership, "_standing", lambda _: self._standing())

    def end_after(self, questions: int, for_questions: int) -> None:
        """This many are still answered yes, then so many no."""
        self.asked, self._standing_questions, self._fallen_questions = 0, questions, for_questions

    def _standing(self) -> bool:
        self.asked += 1
        if self.asked > 200_000:
            raise Spins
        return not self._standing_questions < self.asked <= self._standing_questions + self._fallen_questions

    @property
    def have_ended(self) -> bool:
        return self.asked > self._standing_questions


_OF_TRANSACTIONS = (Table.TRANSACTION_EDIT, Table.TRANSACTION_SNAPSHOT, Table.OUTCOME)
_OF_COMMITS = (
    *(Table.JOURNAL, Table.JOURNAL_META, Table.ATOMIC_ID, Table.ATOMIC_OUTCOME),
    *(Table.GROUP_PRODUCER, Table.GROUP_NOTE),
)
_OF_ALL = (Table.NAMESPACE, Table.STORE_ID)
_OPENINGS = b"pointers"
"""Of the rows that name the store, the one that goes with the first edit of each opening of the transactions."""
ONCE = {
    **dict.fromkeys(_OF_TRANSACTIONS, TRANSACTIONS), **dict.fromkeys(_OF_COMMITS, ATOMIC_COMMITS), **dict.fromkeys(_OF_ALL, SETUP)
}  # fmt: skip
"""The tables of what the whole store has once, and the lease under which each is written."""


class Shared(MemoryStore):
    """A store that others might share."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._leases = LeasesInMemory()

    def lease_table(self) -> LeasesInMemory:  # type: ignore[override]
        return self._leases

    def write(self, batches: Sequence[Batch]) -> None:
        """Each names the leases of what it changes: a process that was stopped before it, and replaced, changes nothing."""
        for batch in batches:
            laid = ((each.table, each.prefix + end) for each in batch.laid for end, _ in each.rows())
            rows = [*(each[:2] for each in batch.puts), *laid, *batch.deletes]
            held = {fence.resource for fence in batch.fences}
            for table, key in rows:
                of = ONCE.get(table) or topic_resource(generation_of(key + bytes(4))[:-4])
                if (table, key) == (Table.STORE_ID, _OPENINGS):
                    of = TRANSACTIONS
                assert of in held, f"{table} is written under {held}"
        self.disk.epochs = self._leases.epochs
        super().write(batches)


def life(disk: Disk, clock: ManualClock) -> AbstractAsyncContextManager[House]:
    return living(
        store=Shared(disk),
        clock=clock,
        workers=LoopWorkers(),  # to wait for threads is nearly all that these tests did
        snapshot_messages=1,
        advertised_url="http://here",
        lease_seconds=3_600,
        max_messages=1_000,
    )


async def lead(house: House) -> None:
    """What the service does in the background."""
    opening = house.service.opening
    for leader in (opening._transactions, opening._atomic):
        assert isinstance(leader, Leader)
        if leader.present is None:
            await leader.begin()


class Steps:
    """What a client does, again and again: each operation as often as it is not answered."""

    def __init__(self, house: House) -> None:
        self.house = house
        self._pointer: int | None = None

    async def publish(self) -> None:
        for first in (0, 2):
            await self.house.publish("a", numbered([b"%d" % first, b"%d" % (first + 1)], "p", first))

    async def _begun(self) -> tuple[int, bool]:
        """The pointer of the transaction, which is begun once, and whether it is in progress."""
        transactions = self.house.service.opening.transactions
        if self._pointer is None:
            self._pointer = (await transactions.start(TransactionType.SHORT)).write_pointer
        return self._pointer, (await transactions.states([self._pointer]))[self._pointer] == "in_progress"

    async def transaction(self) -> None:
        pointer, in_progress = await self._begun()
        if in_progress:
            two = replace(numbered([b"0", b"1"], "p", 0), write_pointer=pointer)
            with suppress(StoredGroupPublished):  # it is there
                await (await self.house.topic("a")).store(two)
            await self.house.publish("a", PublishRequest([], "p", write_pointer=pointer))
            await self.house.publish("b", two)
            await self.house.service.opening.transactions.commit(pointer)
        for name in "ab":
            await (await self.house.topic(name)).settle(pointer, True)

    async def roll_back(self) -> None:
        pointer, in_progress = await self._begun()
        if in_progress:
            await self.house.publish("a", replace(numbered([b"0", b"1"], "p", 0), write_pointer=pointer))
            await self.house.service.opening.transactions.abort(pointer)
        await (await self.house.topic("a")).settle(pointer, False)

    async def atomic_commit(self) -> None:
        await self.house.begin("x")
        for name in "ab":
            with suppress(TransactionNotInProgress):  # its commit was heard
                await self.house.stage("x", name, 0, numbered([b"0", b"1"], "p", 0))
        parts = {name: numbered([b"2"], "p", 2) for name in "ab"}
        await self.house.commit("x", parts, producer="driver", sequence_id=0)

    async def open_a_producer(self) -> None:
        opened = await (await self.house.topic("a")).producers.open("p", "nonce", "allow")
        assert opened.epoch == 1
        await self.house.publish("a", replace(numbered([b"0"], "p", 0), epoch=1))

    async def acknowledge(self) -> None:
        await self.house.publish("a", numbered([b"0", b"1"], "p", 0))
        opened = await (await self.house.topic("a")).subscriptions.open(OpenSubscription(name="s", nonce="nonce"))
        acknowledged = Acknowledge(epoch=opened.epoch, generation=1, offset=1)
        assert (await (await self.house.topic("a")).subscriptions.acknowledge("s", acknowledged)).cursor == 2


OPERATIONS: dict[Callable[[Steps], Awaitable[None]], dict[str, list[str]]] = {
    Steps.publish: {"a": ["0", "1", "2", "3"]},
    Steps.transaction: {"a": ["0", "1"], "b": ["0", "1"]},
    Steps.roll_back: {"a": ["0", "1"]},
    Steps.atomic_commit: {"a": ["0", "1", "2"], "b": ["0", "1", "2"]},
    Steps.open_a_producer: {"a": ["0"]},
    Steps.acknowledge: {"a": ["0", "1"]},
}
"""Operation → what a reader is given then of each topic, whether or not it is in a transaction."""


async def until_answered(house: House, ask: Callable[[], Awaitable[None]]) -> None:
    """As a client does: again and again, whatever it was refused with, if that may pass."""
    for _ in range(10):
        with suppress(StorageFailed, StorageUnavailable, TransactionsUnavailable):
            await lead(house)
            await asyncio.wait_for(ask(), PATIENCE)
            return
    raise AssertionError("it is never answered")


async def check_whole(house: House, expected: dict[str, list[str]]) -> None:
    for name, payloads in expected.items():
        found = await house.read(name)
        assert [(each.offset, each.payload.decode()) for each in found] == [*enumerate(payloads)]
    await house.verify(*expected)


@pytest.mark.parametrize("no_longer", [1, FOR_EVER], ids=["for one question", "until it is taken anew"])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_lease_that_ends_between_any_two_steps_loses_and_doubles_nothing(
    operation: Callable[[Steps], Awaitable[None]], no_longer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, expected = Questions(monkeypatch), OPERATIONS[operation]
    asyncio.get_running_loop().set_default_executor(InPlace())

    async def reaches(moment: int) -> bool:
        """Whether the operation goes on beyond this moment, at which the leases end."""
        disk, clock, failed = Disk(), ManualClock(), False
        async with life(disk, clock) as house:
            await house.service.opening.topics.policies.set("space", NamespacePolicies(deduplication=False))
            await house.create("a", "b")
            for name in "ab":
                await house.topic(name)
            steps = Steps(house)
            questions.end_after(moment, no_longer)
            try:
                await asyncio.wait_for(operation(steps), PATIENCE)
            except OncelogError:
                failed = True
            reached = questions.have_ended
            assert reached or not failed
            questions.end_after(FOR_EVER, 0)
            await until_answered(house, lambda: operation(steps))
            await check_whole(house, expected)
            assert house.service.failures.count == 0
        clock.advance(1)
        async with life(disk, clock) as house:
            await check_whole(house, expected)
        return reached

    moment = 0
    while await reaches(moment):
        moment += 1 if no_longer == FOR_EVER else 3  # what begins again at once asks the same questions
    assert moment > 3
