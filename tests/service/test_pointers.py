"""Nothing is written under a pointer once its topic knows that the transaction has ended, nor before it is enlisted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest

from oncelog.errors import (
    NotAllowed,
    StorageFailed,
    StorageUnavailable,
    TransactionNotInProgress,
    UnknownWritePointer,
)
from oncelog.wire.requests import ConsumeRequest, PublishRequest, Rollback
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType
from oncelog_service.cluster.leases import Lease
from oncelog_service.log import settling
from oncelog_service.log.groups.held import held_messages
from oncelog_service.log.groups.pointers import WritePointers
from oncelog_service.log.limits import Limits
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.port import Owned
from tests.model.rows import entries
from tests.patience import PATIENCE
from tests.service.house import BEGIN, PARTICIPANT, opened, turns
from tests.world.clock import ManualClock
from tests.world.disk import Gate, arm, crashed, disarm, no_space

LIFETIME_MS = 90_000_000
FOREIGN = BEGIN * POINTERS_PER_MS + 123


class There:
    """A topic's write pointers, with a real transaction service."""

    def __init__(self, transactions: TransactionManager, clock: ManualClock) -> None:
        self.transactions = transactions
        self.clock = clock
        self.pointers = WritePointers(transactions, PARTICIPANT, clock, LIFETIME_MS)
        self.foreign = WritePointers(transactions, PARTICIPANT, clock, LIFETIME_MS, foreign=True)
        """Another service is in use too."""
        self.enlisted: list[tuple[Any, ...]] = []
        self.let_in = asyncio.Event()
        self.let_in.set()
        self._enlist = transactions.enlist
        transactions.enlist = self._noted  # type: ignore[method-assign]

    async def _noted(self, *given: Any) -> Owned | None:
        self.enlisted.append(given)
        await self.let_in.wait()
        return await self._enlist(*given)

    async def started(self, owner: str | None = None) -> int:
        return (await self.transactions.start(TransactionType.SHORT, owner=owner)).write_pointer

    async def told(self) -> list[tuple[int, str]]:
        return [(each.write_pointer, each.participant) for each in await self.transactions.unacknowledged(0)]

    async def refuses(self, pointer: int) -> None:
        await refused(use(self.pointers, pointer))


@pytest.fixture
@asynccontextmanager
async def at() -> AsyncIterator[There]:
    clock = ManualClock()
    async with opened(Disk(), clock) as house:
        yield There(house.transactions, clock)


async def refused(attempt: Awaitable[object], match: str | None = None) -> None:
    with pytest.raises(TransactionNotInProgress, match=match):
        await attempt


async def use(pointers: WritePointers, pointer: int, by: str | None = None) -> None:
    async with pointers.entered(pointer, by):
        pass


async def test_the_topic_is_enlisted_before_anything_is_written_and_a_use_learns_at_the_last_moment_of_the_end(at: There) -> None:
    pointer = await at.started()
    async with at.pointers.entered(pointer):
        at.pointers.check(pointer)
        await at.transactions.abort(pointer)
        assert await at.told() == [(pointer, PARTICIPANT)]
        with pytest.raises(TransactionNotInProgress):
            at.pointers.check(pointer)


@pytest.mark.parametrize("end", ["commit", "abort", "invalidate"])
async def test_nothing_begins_under_a_transaction_that_has_ended_nor_under_its_checkpoints(at: There, end: str) -> None:
    never_used, known = await at.started(), await at.started()
    checkpoint = (await at.transactions.checkpoint(known)).write_pointer
    for each in (known, checkpoint):
        await use(at.pointers, each)
    for each in (never_used, known):
        await getattr(at.transactions, end)(each)
    for each in (never_used, known, checkpoint):
        await at.refuses(each)
    assert not at.pointers.in_use


async def test_a_pointer_that_nobody_handed_out_is_refused(at: There) -> None:
    handed_out = await at.started()
    for made_up in (1, FOREIGN, handed_out - 1, handed_out + 1, handed_out + LIFETIME_MS * POINTERS_PER_MS, 2**63 - 1):
        with pytest.raises(UnknownWritePointer) as refusal:
            await use(at.pointers, made_up)
        assert (refusal.value.definite, refusal.value.write_pointer) == (True, made_up)
    assert not at.pointers.in_use


# --- closing


async def test_closing_waits_for_those_who_write_and_refuses_those_who_come_later(at: There) -> None:
    pointer, other = await at.started(), await at.started()
    leave, events = asyncio.Event(), []

    async def writer(name: str) -> None:
        async with at.pointers.entered(pointer):
            await leave.wait()
            with pytest.raises(TransactionNotInProgress):
                at.pointers.check(pointer)
            events.append(name)

    async def closer() -> None:
        async with at.pointers.closed(pointer):
            events.append("closed")
            await at.refuses(pointer)

    tasks = [asyncio.ensure_future(writer("one")), asyncio.ensure_future(writer("two"))]
    await turns()
    tasks.append(asyncio.ensure_future(closer()))
    await turns()
    await at.refuses(pointer)
    await use(at.pointers, other)
    await turns()
    assert events == [], "others who leave let nobody in"
    leave.set()
    await asyncio.gather(*tasks)
    assert events == ["one", "two", "closed"]


async def test_who_is_still_asking_the_transaction_service_when_it_closes_is_refused(at: There) -> None:
    pointer = await at.started()
    at.let_in.clear()
    late = asyncio.ensure_future(use(at.pointers, pointer))
    await turns()

    async def close() -> None:
        async with at.pointers.closed(pointer):
            assert late.done()

    closing = asyncio.ensure_future(close())
    await turns()
    assert not closing.done()
    at.let_in.set()
    await closing
    await refused(late)


async def test_a_use_or_a_closing_that_fails_or_is_cancelled_holds_nobody_up(at: There) -> None:
    pointer = await at.started()

    async def forever() -> None:
        async with at.pointers.entered(pointer):
            await asyncio.Event().wait()

    cancelled = asyncio.ensure_future(forever())
    await turns()
    cancelled.cancel()
    for using in (at.pointers.entered, at.pointers.closed):
        with pytest.raises(ZeroDivisionError):
            async with using(pointer):
                raise ZeroDivisionError
    async with at.pointers.closed(pointer):
        assert not at.pointers.in_use
    assert cancelled.cancelled()
    await use(at.pointers, pointer)  # the transaction itself has not ended


async def test_the_transaction_service_is_asked_once_and_again_when_the_pointer_was_forgotten(at: There) -> None:
    pointer = await at.started()
    for _ in range(3):
        await use(at.pointers, pointer)
    assert len(at.enlisted) == 1
    at.pointers.forget(pointer)
    at.pointers.forget(pointer)
    await use(at.pointers, pointer)
    assert at.enlisted == [(pointer, PARTICIPANT, None)] * 2


# --- whose it is


async def test_nobody_spoils_or_takes_a_pointer_that_is_handed_out_only_later(at: There) -> None:
    """They are numbered by time, so the next ones can be guessed."""
    upcoming = await at.started("bob") + 1
    with pytest.raises(UnknownWritePointer):
        await use(at.pointers, upcoming, "bob")
    await at.pointers.check_owner(upcoming, "bob")
    assert await at.started("ada") == upcoming
    with pytest.raises(NotAllowed):
        await use(at.pointers, upcoming, "bob")
    with pytest.raises(NotAllowed):
        await at.pointers.check_owner(upcoming, "bob")
    await use(at.pointers, upcoming, "ada")


async def test_a_pointer_is_changed_by_one_at_a_time_and_pointers_independently(at: There) -> None:
    inside: list[int] = []
    leave = asyncio.Event()

    async def change(pointer: int) -> None:
        async with at.pointers.changing(pointer):
            inside.append(pointer)
            await leave.wait()
            inside.remove(pointer)

    tasks = [asyncio.ensure_future(change(each)) for each in (1, 1, 2, 1)]
    await turns()
    assert sorted(inside) == [1, 2]
    leave.set()
    await asyncio.gather(*tasks)
    assert inside == []


# --- age


@pytest.mark.parametrize("side", [-1, 1])
async def test_a_foreign_pointer_is_taken_up_to_the_lifetime_of_a_transaction_and_not_beyond(at: There, side: int) -> None:
    await use(at.foreign, (BEGIN + side * LIFETIME_MS) * POINTERS_PER_MS)
    beyond = (BEGIN + side * (LIFETIME_MS + 1)) * POINTERS_PER_MS
    await refused(use(at.foreign, beyond), "as its number says")
    assert at.foreign.expired(beyond) == (side < 0)
    assert not at.foreign.in_use


@pytest.mark.parametrize("committed", [True, False])
async def test_what_waited_while_an_operator_ended_its_foreign_pointer_is_refused_or_ended_with_it(committed: bool) -> None:
    disk = Disk()
    async with opened(disk, limits=Limits(foreign_write_pointers=True)) as house:

        async def publish(*ids: int) -> object:
            return await house.log.publish(PublishRequest([b""] * len(ids), "p", sequence_ids=ids, write_pointer=FOREIGN))

        await publish(0)
        gate = disk.before_sync = Gate()
        written = asyncio.ensure_future(publish(1))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        waits = asyncio.ensure_future(publish(1, 2))
        await turns()
        end = asyncio.ensure_future(house.log.settling.end_foreign(FOREIGN, committed))
        await turns()
        gate.opened.set()
        await written
        [outcome] = await asyncio.gather(waits, return_exceptions=True)
        await end
        # Whose pointer it is, the disk is asked: where that takes longer, what waited is stored and ends with the others.
        stored = not isinstance(outcome, TransactionNotInProgress | StorageUnavailable)
        fold = house.log.dedup.fold
        assert (len(fold.unsettled), fold.stable.position.upcoming_offset) == (0, 2 + stored)


BOTH = Limits(foreign_write_pointers=True)


async def ended_by_hand(disk: Disk, committed: bool, keyed: bool = False) -> Rollback:
    """An operator ends the foreign pointer, which is taken for good by whoever was told; the process is killed. Returns what its
    client would roll back."""
    async with opened(disk, limits=BOTH, clean=False, keyed=keyed) as house:
        stored = await house.log.publish(PublishRequest([b"x"], "p", sequence_ids=[0], keys=[b"k"], write_pointer=FOREIGN))
        await house.log.publish(PublishRequest([b"y"], "p", sequence_ids=[1], keys=[b"k"]))
        await house.log.settling.end_foreign(FOREIGN, committed)
    assert stored.start_sequence_id is not None
    place = stored.start_timestamp, stored.start_sequence_id
    return Rollback(FOREIGN, place, place)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("committed", [True, False])
async def test_what_an_operator_says_of_a_pointer_is_on_disk_when_it_is_answered(committed: bool, keyed: bool) -> None:
    disk = Disk()
    rollback = await ended_by_hand(disk, committed, keyed)
    disk = crashed(disk)
    for clean in (False, True, True):
        async with opened(disk, limits=BOTH, keyed=keyed, clean=clean) as house:
            for position in (
                house.log.dedup.fold.stable.position,
                *([house.log.topic.keys.snapshot().position] if house.log.topic.keys else []),
            ):
                assert position.upcoming_offset == 2
            await refused(house.log.publish(PublishRequest([b"late"], write_pointer=FOREIGN)))
            await house.log.settling.end_foreign(FOREIGN, committed)
            with pytest.raises(TransactionNotInProgress, match="was committed" if committed else "was rolled back"):
                await house.log.settling.end_foreign(FOREIGN, not committed)
            with pytest.raises(TransactionNotInProgress) if committed else nullcontext():
                await house.log.roll_back(rollback)
    assert [each.counts for each in entries(disk.tables, "orders")] == [committed, True]


async def test_nobody_sees_what_an_operator_says_of_a_pointer_before_it_is_on_disk() -> None:
    disk = Disk()
    async with opened(disk, limits=BOTH) as house:
        await house.log.publish(PublishRequest([b"x"], write_pointer=FOREIGN))
        gate = disk.before_sync = Gate()
        ending = asyncio.ensure_future(house.log.settling.end_foreign(FOREIGN, True))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        await turns()
        before = house.log.dedup.fold.stable.position.upcoming_offset
        gate.opened.set()
        await ending
        assert (before, house.log.dedup.fold.stable.position.upcoming_offset) == (0, 1)


@pytest.mark.parametrize("by", ["another word", "retention", "its client"])
async def test_a_roll_back_that_an_operator_began_is_finished_by_whoever_comes_first_in_the_next_process(by: str) -> None:
    disk = Disk()
    async with opened(disk, limits=BOTH, clean=False) as house:
        stored = await house.log.publish(PublishRequest([b"x"], write_pointer=FOREIGN))
        arm(disk, "fails", 1)
        with pytest.raises(StorageFailed):
            await house.log.settling.end_foreign(FOREIGN, False)
    async with opened(crashed(disk), limits=BOTH) as house:
        assert list(house.log.dedup.fold.unsettled) == [FOREIGN]
        if by == "another word":
            with pytest.raises(TransactionNotInProgress):
                await house.log.settling.end_foreign(FOREIGN, True)
        elif by == "retention":
            await house.log.settling.settle_expired()
        else:
            place = stored.start_timestamp, stored.start_sequence_id or 0
            await house.log.roll_back(Rollback(FOREIGN, place, place))
        assert not house.log.dedup.fold.unsettled


async def test_what_an_operator_says_of_a_topic_that_was_closed_while_he_waited_is_not_noted() -> None:
    """Who has opened it since has read what was noted."""
    disk = Disk()
    async with opened(disk, limits=BOTH, clean=False) as house:
        await house.log.publish(PublishRequest([b"x"], write_pointer=FOREIGN))
        async with house.log.topic.pointers.changing(FOREIGN):
            ending = asyncio.ensure_future(house.log.settling.end_foreign(FOREIGN, True))
            await house.writer.synced()
            await turns()
            await house.log.close()
        with pytest.raises(StorageUnavailable):
            await ending
        assert not disk.tables[Table.ENDED]


@pytest.mark.parametrize("committed", [True, False])
async def test_nobody_is_told_for_good_of_an_end_that_an_operator_said_before_it_is_on_disk(committed: bool) -> None:
    disk = Disk()
    async with opened(disk, limits=BOTH, clean=False) as house:
        await house.log.publish(PublishRequest([b"x"], write_pointer=FOREIGN))
        gate = disk.before_sync = Gate(no_space())
        ending = asyncio.ensure_future(house.log.settling.end_foreign(FOREIGN, committed))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        late = asyncio.ensure_future(house.log.publish(PublishRequest([b"late"], write_pointer=FOREIGN)))
        await turns()
        gate.opened.set()
        for each in (ending, late):
            with pytest.raises((StorageFailed, StorageUnavailable)):
                await each
    disarm(disk)
    async with opened(crashed(disk), limits=BOTH) as house:
        await house.log.publish(PublishRequest([b"late"], write_pointer=FOREIGN))


@pytest.mark.parametrize("payloads", [[b"x"], []])  # without messages: the group that was stored under it, which is empty
async def test_what_an_operator_said_of_a_pointer_is_kept_until_both_snapshots_have_it_and_the_pointer_is_too_old(
    payloads: list[bytes],
) -> None:
    disk, clock = Disk(), ManualClock()
    async with opened(disk, clock, BOTH) as house:
        await house.log.publish(PublishRequest(payloads, write_pointer=FOREIGN))
        await house.log.settling.end_foreign(FOREIGN, False)

        async def kept() -> int:
            await house.log.settling.settle_expired()
            assert house.log.topic.rolled_back_by_hand == disk.tables[Table.ENDED].keys()
            return len(disk.tables[Table.ENDED])

        assert await kept() == 1
        clock.advance(LIFETIME_MS + 1)
        if not payloads:
            for _ in range(2):
                await house.log.snapshots.take()
            assert await kept() == 1
            await house.log.publish(PublishRequest([b"y"]))
        for left in (1, 1, 0):
            assert await kept() == left
            await house.log.snapshots.take()
        await refused(house.log.publish(PublishRequest([b"late"], write_pointer=FOREIGN)), "as its number says")


async def test_what_a_foreign_pointer_has_left_counts_for_good_a_millisecond_after_its_last_one() -> None:
    """Of a clock that is set forward nothing ages."""
    clock = ManualClock()
    async with opened(Disk(), clock, Limits(foreign_write_pointers=True)) as house:
        await house.log.publish(PublishRequest([b"x"], write_pointer=FOREIGN))
        clock.ms += LIFETIME_MS + 1
        await house.log.settling.settle_expired()
        clock.ms -= LIFETIME_MS + 1
        clock.advance(LIFETIME_MS)
        await house.log.settling.settle_expired()
        assert list(house.log.dedup.fold.unsettled) == [FOREIGN]
        clock.advance(1)
        await house.log.settling.settle_expired()
        assert not house.log.dedup.fold.unsettled
        assert house.log.inspection.row_state(house.log.inspection.glance(), FOREIGN, 0) == "committed"
        await refused(house.log.publish(PublishRequest([b"x"], write_pointer=FOREIGN)))


def put_back(disk: Disk, to: Disk) -> Disk:
    """The transaction service's part of the disk as it was earlier, beside the topic as it is."""
    found = crashed(disk)
    for table in (Table.TRANSACTION_EDIT, Table.TRANSACTION_SNAPSHOT, Table.OUTCOME, Table.STORE_ID):
        found.tables[table] = dict(to.tables[table])
    return found


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("committed", [False, True])
async def test_what_a_transaction_service_lost_since_it_was_put_back_never_counts_by_its_age(both: bool, committed: bool) -> None:
    disk, clock, limits = Disk(), ManualClock(), Limits(foreign_write_pointers=both)
    async with opened(disk, clock, limits) as house:
        await house.transactions.commit(await house.start())
    before = crashed(disk)
    async with opened(disk, clock, limits, clean=False) as house:
        lost = await house.start()
        await house.log.publish(PublishRequest([b"x"], write_pointer=lost))
    disk = put_back(disk, before)
    for _ in range(2):
        async with opened(disk, clock, limits, clean=False) as house:
            with pytest.raises(UnknownWritePointer):
                await house.log.publish(PublishRequest([b"late"], write_pointer=lost))
            clock.advance(2 * LIFETIME_MS)
            await house.transactions.commit(await house.start())  # so there are younger ones that it knows
            clock.advance(2 * LIFETIME_MS)
            while await house.transactions.forget_outcomes():
                pass
            await house.log.settling.settle_expired()
            await house.log.settling.settle_all_ended()
            [held] = held_messages(house.log.dedup.fold.unsettled)
            assert (held.write_pointer, held.messages) == (lost, 1)
            reading = await house.transactions.start(TransactionType.SHORT)
            page = await house.log.poll(ConsumeRequest(transaction=reading.to_bytes()), AS_ONCELOG)
            assert (page.delivered, page.undecided) == (0, True)
    async with opened(disk, clock, limits) as house:
        await house.log.settling.end_foreign(lost, committed)
        assert not house.log.dedup.fold.unsettled
    assert [each.counts for each in entries(disk.tables, "orders")] == [committed]


async def test_what_has_committed_counts_also_when_its_outcome_is_forgotten_before_a_snapshot_holds_it() -> None:
    """A topic with more producers than messages takes none for days, and is killed."""
    disk, clock = Disk(), ManualClock()
    for _ in range(2):
        async with opened(disk, clock, clean=False) as house:
            pointer = await house.start()
            pointer = (await house.transactions.checkpoint(pointer)).write_pointer
            await house.log.publish(PublishRequest([b"x"], write_pointer=pointer))
            await house.transactions.commit(pointer)
            await house.log.settle(pointer, True)
            await house.transactions.acknowledge(pointer, PARTICIPANT)
            await house.writer.drained()
    clock.advance(2 * LIFETIME_MS)
    async with opened(disk, clock, clean=False) as house:
        clock.advance(2 * LIFETIME_MS)
        assert await house.transactions.forget_outcomes() == 4
        assert len(house.log.dedup.fold.unsettled) == 2
        await house.log.settling.settle_all_ended()
        assert not house.log.dedup.fold.unsettled


@pytest.mark.parametrize("step_ms", [-2 * LIFETIME_MS, 2 * LIFETIME_MS])
async def test_our_own_pointers_are_taken_whatever_the_clock_says(at: There, step_ms: int) -> None:
    before = await at.started()
    at.clock.ms += step_ms
    await use(at.pointers, before)
    await use(at.pointers, await at.started())
    at.clock.ms -= step_ms
    after = await at.started()
    assert after > before
    await use(at.pointers, after)


async def test_a_message_that_waited_while_its_transaction_ended_is_not_written() -> None:
    disk = Disk()
    async with opened(disk) as house:
        pointer = await house.start()
        disk.before_sync = gate = Gate()
        first, late = (
            asyncio.ensure_future(house.log.publish(PublishRequest([b"x"], "p", sequence_ids=[each], write_pointer=pointer)))
            for each in (0, 1)
        )
        await asyncio.to_thread(gate.entered.wait)
        await turns()  # the second one waits for the first one of its producer
        ending = asyncio.ensure_future(house.transactions.abort(pointer))
        await turns()
        gate.opened.set()
        await asyncio.gather(first, ending)
        await refused(late)
        assert house.log.position.upcoming_offset == 1


async def test_a_large_transaction_is_rolled_back_some_rows_at_a_time_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_ROLLED_BACK_AT_ONCE", 4)
    disk = Disk()
    async with opened(disk) as house:
        pointer = await house.start()
        for _ in range(5):
            await house.log.publish(PublishRequest([b"x"] * 3, write_pointer=pointer))
        await house.transactions.abort(pointer)
        before = disk.writes
        await house.log.settle(pointer, committed=False)
        assert disk.writes == before + 3
        assert not house.log.dedup.fold.unsettled
        assert {each.pointer for each in entries(disk.tables, "orders")} == {-pointer}


async def test_a_topic_that_may_be_served_elsewhere_answers_nothing_from_memory() -> None:
    alive = True
    async with opened(Disk()) as house:
        house.log.topic.writer = house.writer.under(Lease(None, lambda: alive))
        await house.log.poll(ConsumeRequest(), AS_ONCELOG)
        alive = False
        for asked in (house.log.poll(ConsumeRequest(), AS_ONCELOG), house.log.publish(PublishRequest([b"x"]))):
            with pytest.raises(StorageUnavailable):
                await asked
