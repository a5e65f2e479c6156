"""Nothing is written under a pointer once its topic knows that the transaction has ended, nor before it is enlisted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from oncelog.errors import TransactionNotInProgress, UnknownWritePointer
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType
from oncelog_service.log.groups.pointers import WritePointers
from oncelog_service.storage.memory import Disk
from oncelog_service.transactions.manager import TransactionManager
from tests.patience import PATIENCE
from tests.service.house import BEGIN, PARTICIPANT, opened
from tests.support import ManualClock

LIFETIME_MS = 90_000_000
FOREIGN = BEGIN * POINTERS_PER_MS + 123


class Place:
    """A topic's write pointers, with a real transaction service."""

    def __init__(self, transactions: TransactionManager, clock: ManualClock) -> None:
        self.transactions = transactions
        self.clock = clock
        self.pointers = WritePointers(transactions, PARTICIPANT, clock, LIFETIME_MS)
        self.open_to_others = WritePointers(transactions, PARTICIPANT, clock, LIFETIME_MS, foreign=True)

    async def started(self) -> int:
        return (await self.transactions.start(TransactionType.SHORT)).write_pointer

    async def told(self) -> list[tuple[int, str]]:
        return [(each.write_pointer, each.participant) for each in await self.transactions.unsettled(0)]


@asynccontextmanager
async def place() -> AsyncIterator[Place]:
    clock = ManualClock()
    async with opened(Disk(), clock) as house:
        yield Place(house.transactions, clock)


def run(scenario: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        async with place() as there:
            await asyncio.wait_for(scenario(there), PATIENCE)

    asyncio.run(inside())


async def turns(count: int = 5) -> None:
    """Let everything go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def refused(attempt: Awaitable[object]) -> None:
    with pytest.raises(TransactionNotInProgress):
        await attempt


async def use(pointers: WritePointers, pointer: int) -> None:
    async with pointers.entered(pointer):
        pass


def test_the_topic_is_enlisted_before_anything_is_written() -> None:
    async def scenario(place: Place) -> None:
        pointer = await place.started()
        async with place.pointers.entered(pointer):
            await place.transactions.abort(pointer)
            assert await place.told() == [(pointer, PARTICIPANT)]

    run(scenario)


def test_nothing_begins_under_a_transaction_that_has_ended() -> None:
    async def scenario(place: Place) -> None:
        for end in (place.transactions.commit, place.transactions.abort, place.transactions.invalidate):
            pointer = await place.started()
            await end(pointer)
            await refused(use(place.pointers, pointer))
            known = await place.started()
            await use(place.pointers, known)
            await end(known)
            await refused(use(place.pointers, known))
            assert not place.pointers.in_use

    run(scenario)


def test_a_use_under_way_learns_at_the_last_moment_that_the_transaction_has_ended() -> None:
    async def scenario(place: Place) -> None:
        pointer = await place.started()
        async with place.pointers.entered(pointer):
            place.pointers.check(pointer)
            await place.transactions.abort(pointer)
            with pytest.raises(TransactionNotInProgress):
                place.pointers.check(pointer)

    run(scenario)


def test_a_checkpoint_is_used_like_its_transaction_and_ends_with_it() -> None:
    async def scenario(place: Place) -> None:
        root = await place.started()
        pointer = (await place.transactions.checkpoint(root)).write_pointer
        await use(place.pointers, pointer)
        await place.transactions.abort(root)
        await refused(use(place.pointers, pointer))

    run(scenario)


def test_a_pointer_that_nobody_handed_out_is_refused() -> None:
    async def scenario(place: Place) -> None:
        handed_out = await place.started()
        for made_up in (1, FOREIGN, handed_out - 1, handed_out + 1, handed_out + LIFETIME_MS * POINTERS_PER_MS, 2**63 - 1):
            with pytest.raises(UnknownWritePointer) as refusal:
                await use(place.pointers, made_up)
            assert refusal.value.definite
            assert refusal.value.write_pointer == made_up
        assert not place.pointers.in_use
        await use(place.pointers, handed_out)

    run(scenario)


def test_a_foreign_pointer_is_taken_where_another_service_is_in_use_and_nobody_is_told() -> None:
    async def scenario(place: Place) -> None:
        async with place.open_to_others.entered(FOREIGN):
            assert place.open_to_others.in_use
            place.open_to_others.check(FOREIGN)
        assert await place.told() == []

    run(scenario)


def test_a_foreign_pointer_that_an_operator_has_ended_is_refused() -> None:
    async def scenario(place: Place) -> None:
        place.open_to_others.end_by_hand(FOREIGN)
        await refused(use(place.open_to_others, FOREIGN))
        await use(place.open_to_others, FOREIGN + 1)

    run(scenario)


# --- closing


def test_closing_waits_for_those_who_write_and_refuses_those_who_come_later() -> None:
    async def scenario(place: Place) -> None:
        pointer, other = await place.started(), await place.started()
        leave, events = asyncio.Event(), []

        async def writer(name: str) -> None:
            async with place.pointers.entered(pointer):
                await leave.wait()
                with pytest.raises(TransactionNotInProgress):
                    place.pointers.check(pointer)
                events.append(name)

        async def closer() -> None:
            async with place.pointers.closed(pointer):
                events.append("closed")
                await refused(use(place.pointers, pointer))

        tasks = [asyncio.ensure_future(writer("one")), asyncio.ensure_future(writer("two"))]
        await turns()
        tasks.append(asyncio.ensure_future(closer()))
        await turns()
        await refused(use(place.pointers, pointer))
        await use(place.pointers, other)
        await turns()
        assert events == [], "others who leave let nobody in"
        leave.set()
        await asyncio.gather(*tasks)
        assert events == ["one", "two", "closed"]

    run(scenario)


def test_who_is_still_asking_the_transaction_service_when_it_closes_is_refused() -> None:
    async def scenario(place: Place) -> None:
        pointer = await place.started()
        entering, asked = asyncio.Event(), asyncio.Event()
        enlist = place.transactions.enlist

        async def slowly(*arguments: Any) -> bool:
            asked.set()
            await entering.wait()
            return await enlist(*arguments)

        place.transactions.enlist = slowly  # type: ignore[method-assign]
        late = asyncio.ensure_future(use(place.pointers, pointer))
        await asked.wait()

        async def close() -> None:
            async with place.pointers.closed(pointer):
                assert late.done()

        closing = asyncio.ensure_future(close())
        await turns()
        assert not closing.done()
        entering.set()
        await closing
        await refused(late)

    run(scenario)


def test_a_use_that_fails_or_is_cancelled_holds_nobody_up() -> None:
    async def scenario(place: Place) -> None:
        pointer = await place.started()

        async def forever() -> None:
            async with place.pointers.entered(pointer):
                await asyncio.Event().wait()

        cancelled = asyncio.ensure_future(forever())
        await turns()
        cancelled.cancel()
        with pytest.raises(ZeroDivisionError):
            async with place.pointers.entered(pointer):
                raise ZeroDivisionError
        async with place.pointers.closed(pointer):
            assert not place.pointers.in_use
        assert cancelled.cancelled()

    run(scenario)


def test_a_closing_that_failed_can_be_done_again() -> None:
    async def scenario(place: Place) -> None:
        pointer = await place.started()
        await use(place.pointers, pointer)
        with pytest.raises(ZeroDivisionError):
            async with place.pointers.closed(pointer):
                raise ZeroDivisionError
        async with place.pointers.closed(pointer):
            pass
        await use(place.pointers, pointer)  # the transaction itself has not ended

    run(scenario)


def test_the_transaction_service_is_asked_once_and_again_when_the_pointer_was_forgotten() -> None:
    async def scenario(place: Place) -> None:
        pointer = await place.started()
        asked = []
        enlist = place.transactions.enlist

        async def counted(*arguments: Any) -> bool:
            asked.append(arguments)
            return await enlist(*arguments)

        place.transactions.enlist = counted  # type: ignore[method-assign]
        for _ in range(3):
            await use(place.pointers, pointer)
        assert len(asked) == 1
        place.pointers.forget(pointer)
        place.pointers.forget(pointer)
        await use(place.pointers, pointer)
        assert asked == [(pointer, PARTICIPANT)] * 2
        await place.transactions.commit(pointer)
        place.pointers.forget(pointer)
        await refused(use(place.pointers, pointer))

    run(scenario)


def test_a_pointer_is_changed_by_one_at_a_time_and_pointers_independently() -> None:
    async def scenario(place: Place) -> None:
        inside: list[int] = []
        leave = asyncio.Event()

        async def change(pointer: int) -> None:
            async with place.pointers.changing(pointer):
                inside.append(pointer)
                await leave.wait()
                inside.remove(pointer)

        tasks = [asyncio.ensure_future(change(each)) for each in (1, 1, 2, 1)]
        await turns()
        assert sorted(inside) == [1, 2]
        leave.set()
        await asyncio.gather(*tasks)
        assert inside == []

    run(scenario)


# --- age


@pytest.mark.parametrize("side", [-1, 1])
def test_a_foreign_pointer_is_taken_up_to_the_lifetime_of_a_transaction_and_not_beyond(side: int) -> None:
    async def scenario(place: Place) -> None:
        at_the_bound = (BEGIN + side * LIFETIME_MS) * POINTERS_PER_MS
        await use(place.open_to_others, at_the_bound)
        beyond = (BEGIN + side * (LIFETIME_MS + 1)) * POINTERS_PER_MS
        with pytest.raises(TransactionNotInProgress, match="as its number says"):
            await use(place.open_to_others, beyond)
        assert not place.open_to_others.in_use

    run(scenario)


def test_a_foreign_pointer_has_outlived_itself_a_millisecond_after_its_last_one() -> None:
    async def scenario(place: Place) -> None:
        pointers = place.open_to_others
        assert not pointers.outlived(FOREIGN)
        place.clock.advance(LIFETIME_MS)
        assert not pointers.outlived(FOREIGN)
        await use(pointers, FOREIGN)
        place.clock.advance(1)
        assert pointers.outlived(FOREIGN)
        await refused(use(pointers, FOREIGN))
        assert not pointers.outlived((place.clock.ms + 2 * LIFETIME_MS) * POINTERS_PER_MS)

    run(scenario)


def test_a_clock_that_is_set_forward_ages_no_foreign_pointer() -> None:
    async def scenario(place: Place) -> None:
        place.clock.ms += LIFETIME_MS + 1
        assert not place.open_to_others.outlived(FOREIGN)
        await use(place.open_to_others, FOREIGN)

    run(scenario)


@pytest.mark.parametrize("step_ms", [-2 * LIFETIME_MS, 2 * LIFETIME_MS])
def test_our_own_pointers_are_taken_whatever_the_clock_says(step_ms: int) -> None:
    async def scenario(place: Place) -> None:
        before = await place.started()
        place.clock.ms += step_ms
        await use(place.pointers, before)
        await use(place.pointers, await place.started())
        place.clock.ms -= step_ms
        after = await place.started()
        assert after > before
        await use(place.pointers, after)

    run(scenario)
