"""Group commit: what was submitted first is on disk first and answered first; behind a failed write nothing is written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from oncelog.errors import StorageFailed, StorageUnavailable
from oncelog_service.group_commit import Writer
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from tests.patience import PATIENCE


class Gate:
    """A disk whose writes wait until they are let through, and fail when told to."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.disk.before_sync = self._before_sync
        self.groups: list[list[bytes]] = []
        self.fail = False
        self.waiting = threading.Event()
        self._open = threading.Semaphore(0)

    def _before_sync(self, batches: Sequence[Batch]) -> None:
        self.groups.append([key for batch in batches for _, key, _ in batch.puts])
        self.waiting.set()
        assert self._open.acquire(timeout=PATIENCE)
        if self.fail:
            raise OSError("no space left on device")

    def let(self, writes: int = 1) -> None:
        self._open.release(writes)

    async def busy(self) -> None:
        """Return when a write stands at the gate."""
        await asyncio.to_thread(self.waiting.wait, 10)
        self.waiting.clear()


@asynccontextmanager
async def writing(gate: Gate) -> AsyncIterator[tuple[Writer, list[object]]]:
    events: list[object] = []
    writer = Writer(MemoryStore(gate.disk), events.append)
    try:
        yield writer, events
    finally:
        gate.let(1_000)
        await writer.close()


def batch(name: str) -> Batch:
    one = Batch()
    one.put(Table.MESSAGE, name.encode(), b"")
    return one


def submit(writer: Writer, events: list[object], name: str, lazily: bool = False) -> asyncio.Future[None]:
    call = writer.submit_lazily if lazily else writer.submit
    future = call(batch(name), lambda: events.append(name))
    future.add_done_callback(lambda _: events.append(f"{name} answered"))
    return future


def on_disk(gate: Gate) -> set[bytes]:
    return set(gate.disk.tables[Table.MESSAGE])


def test_nothing_is_answered_before_it_is_synced() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with writing(gate) as (writer, events):
            future = submit(writer, events, "a")
            await gate.busy()
            await asyncio.sleep(0.02)
            assert (events, future.done(), on_disk(gate)) == ([], False, set())
            gate.let()
            await future
            assert events[0] == "a"
            assert on_disk(gate) == {b"a"}

    asyncio.run(scenario())


def test_requests_that_come_during_a_sync_share_the_next_one_in_their_order() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with writing(gate) as (writer, events):
            first = submit(writer, events, "first")
            await gate.busy()
            names = [f"{number:03}" for number in range(100)]
            futures = [submit(writer, events, name) for name in names]
            gate.let()
            await first
            gate.let()
            await asyncio.gather(*futures)
            await asyncio.sleep(0)
            assert gate.groups == [[b"first"], [name.encode() for name in names]]
            assert (writer.groups, writer.submissions) == (2, 101)
            assert events[:2] == ["first", "first answered"]
            assert events[2:102] == names, "all of a group is noted before anyone of it is answered"
            assert events[102:] == [f"{name} answered" for name in names]

    asyncio.run(scenario())


def test_a_failed_write_is_indefinite_for_its_group_and_definite_for_what_is_behind_it() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with writing(gate) as (writer, events):
            await_first = submit(writer, events, "synced")
            gate.let()
            await await_first
            gate.waiting.clear()
            failing = [submit(writer, events, "failing")]
            await gate.busy()
            behind = [submit(writer, events, name) for name in ("behind 1", "behind 2")]
            lazy = submit(writer, events, "lazy", lazily=True)
            gate.fail = True
            gate.let(10)
            outcomes = await asyncio.gather(*failing, *behind, lazy, return_exceptions=True)
            assert [(type(each), each.definite) for each in outcomes] == [  # type: ignore[union-attr]
                (StorageFailed, False),
                (StorageUnavailable, True),
                (StorageUnavailable, True),
                (StorageUnavailable, True),
            ]
            with pytest.raises(StorageUnavailable) as refused:
                await submit(writer, events, "later")
            assert refused.value.definite
            with pytest.raises(StorageUnavailable):
                await submit(writer, events, "later", lazily=True)
            with pytest.raises(StorageUnavailable):
                writer.check()
            assert on_disk(gate) == {b"synced"}
            assert gate.groups == [[b"synced"], [b"failing"]], "nothing is tried behind a failed write"

    asyncio.run(scenario())


def test_the_failure_is_told_once_and_before_any_caller_hears_of_it() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.fail = True
        async with writing(gate) as (writer, events):
            futures = [submit(writer, events, "a")]
            await gate.busy()
            futures.append(submit(writer, events, "b"))
            gate.let(10)
            await asyncio.gather(*futures, return_exceptions=True)
            await asyncio.sleep(0)
            assert isinstance(events[0], Exception)
            assert events[1:] == ["a answered", "b answered"]

    asyncio.run(scenario())


def test_a_write_to_a_store_that_was_closed_is_definite() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        writer = Writer(store, lambda _: None)
        store.close()
        with pytest.raises(StorageUnavailable) as refused:
            await writer.submit(batch("a"), lambda: None)
        assert refused.value.definite
        await writer.close()

    asyncio.run(scenario())


def test_a_lazy_submission_joins_the_next_write_ahead_of_it() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.let(10)
        async with writing(gate) as (writer, events):
            lazy = submit(writer, events, "lazy", lazily=True)
            await asyncio.sleep(0)
            assert gate.groups == []
            await submit(writer, events, "next")
            assert lazy.done()
            assert [name for group in gate.groups for name in group] == [b"lazy", b"next"]
            assert on_disk(gate) == {b"lazy", b"next"}

    asyncio.run(scenario())


def test_a_lazy_submission_that_nothing_follows_makes_its_own_write() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.let(10)
        async with writing(gate) as (writer, events):
            await asyncio.wait_for(submit(writer, events, "lazy", lazily=True), PATIENCE)
            assert on_disk(gate) == {b"lazy"}

    asyncio.run(scenario())


def test_settled_waits_for_everything_submitted_before() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with writing(gate) as (writer, events):
            await writer.settled()
            submit(writer, events, "a")
            await gate.busy()
            submit(writer, events, "b")
            settled = asyncio.ensure_future(writer.settled())
            gate.let()
            await gate.busy()
            await asyncio.sleep(0.02)
            assert not settled.done()
            gate.let()
            await settled
            assert {"a", "b"} <= set(map(str, events))

    asyncio.run(scenario())


def test_settled_raises_when_what_it_waited_for_may_not_be_there() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.fail = True
        async with writing(gate) as (writer, events):
            submit(writer, events, "a")
            settled = asyncio.ensure_future(writer.settled())
            await gate.busy()
            gate.let(10)
            with pytest.raises(StorageFailed) as failed:
                await settled
            assert not failed.value.definite

    asyncio.run(scenario())


def test_closing_writes_what_is_queued_lazily_too_and_takes_nothing_more() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.let(10)
        async with writing(gate) as (writer, events):
            submit(writer, events, "a")
            submit(writer, events, "lazy", lazily=True)
            await writer.close()
            assert on_disk(gate) == {b"a", b"lazy"}
            with pytest.raises(StorageUnavailable, match="stopping"):
                await submit(writer, events, "late")

    asyncio.run(scenario())


def test_a_caller_who_gave_up_does_not_hold_up_the_others() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with writing(gate) as (writer, events):
            gone = submit(writer, events, "gone")
            await gate.busy()
            gone.cancel()
            other = submit(writer, events, "other")
            gate.let(10)
            await other
            assert on_disk(gate) == {b"gone", b"other"}
            assert [each for each in events if each in ("gone", "other")] == ["gone", "other"]

    asyncio.run(scenario())


def test_what_memory_cannot_follow_is_a_failure_of_the_store_and_everybody_gets_an_answer() -> None:
    """One of a group raises when it is told that it is written: nobody behind it is left without an answer."""

    async def scenario() -> None:
        gate = Gate()
        async with writing(gate) as (writer, events):
            first = submit(writer, events, "first")
            await gate.busy()
            good = submit(writer, events, "good")
            broken = writer.submit(batch("broken"), lambda: next(iter(())))
            others = [submit(writer, events, "behind"), submit(writer, events, "lazy", lazily=True)]
            gate.let(10)
            await first
            answers = await asyncio.wait_for(asyncio.gather(good, broken, *others, return_exceptions=True), PATIENCE)
            assert [type(each) for each in answers] == [type(None), StorageFailed, StorageFailed, StorageUnavailable]
            assert [type(each) for each in events if isinstance(each, Exception)] == [StopIteration]
            with pytest.raises(StorageUnavailable):
                writer.check()
            with pytest.raises(StorageUnavailable):
                await submit(writer, events, "later")
            assert "behind" not in events, "nothing is told to memory that is not believed"

    asyncio.run(scenario())


def test_what_raises_while_memory_moves_is_a_failure_of_the_store_and_nothing_more_is_written() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.let(10)
        async with writing(gate) as (writer, events):
            with pytest.raises(ValueError, match="and no more"), writer.moving():
                raise ValueError("and no more")
            with pytest.raises(StorageUnavailable):
                await submit(writer, events, "later")
            assert [type(each) for each in events if isinstance(each, Exception)] == [ValueError]
        assert on_disk(gate) == set()

    asyncio.run(scenario())


def test_whoever_asks_again_and_again_lets_the_others_have_a_turn() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with writing(gate) as (writer, _):
            turned = False

            async def turn() -> None:
                nonlocal turned
                turned = True

            task = asyncio.ensure_future(turn())
            asked = 0
            while not turned:
                await writer.settled()
                asked += 1
                assert asked < 1_000, "it keeps the event loop for itself"
            await task

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_settled_waits_for_the_write_of_a_caller_who_gave_up() -> None:
    """A topic that is closed and read back must not be read before what it handed over is there."""

    async def scenario() -> None:
        gate = Gate()
        async with writing(gate) as (writer, events):
            submit(writer, events, "one").cancel()
            await gate.busy()
            settled = asyncio.ensure_future(writer.settled())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not settled.done()
            gate.let(2)
            await settled
            assert on_disk(gate) == {b"one"}
            assert "one" in events

    asyncio.run(scenario())
