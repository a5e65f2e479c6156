"""Group commit: what was submitted first is on disk first and answered first; behind a failed write nothing is written."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncelog.errors import StorageFailed, StorageUnavailable
from oncelog_service.cluster.leases import Lease
from oncelog_service.group_commit import Writer, complete
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Fence, StoreError, Table
from oncelog_service.workers import ThreadWorkers
from tests.patience import PATIENCE
from tests.service.house import turns
from tests.world.clock import ManualClock
from tests.world.workers import LoopWorkers


def nothing(*_: object) -> None:
    """What is done about a write that nobody notes."""


def batch(name: str) -> Batch:
    one = Batch()
    one.put(Table.MESSAGE, name.encode(), b"")
    return one


class Gate:
    """A writer on a disk whose writes wait until they are let through, and fail when told to."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.disk.before_sync = self._before_sync
        self.groups: list[list[bytes]] = []
        self.events: list[object] = []
        """What is told, in order: failures, what is written, what is answered."""
        self.fail = False
        self.writer = Writer(MemoryStore(self.disk), self.events.append, clock=ManualClock(), workers=ThreadWorkers())
        self._waiting = threading.Event()
        self._open = threading.Semaphore(0)

    def _before_sync(self, batches: Sequence[Batch]) -> None:
        self.groups.append([key for batch in batches for _, key, _ in batch.puts])
        self._waiting.set()
        assert self._open.acquire(timeout=PATIENCE)
        if self.fail:
            raise OSError("no space left on device")

    def let(self, writes: int = 1) -> None:
        self._open.release(writes)

    async def busy(self) -> None:
        """Return when a write stands at the gate."""
        assert await asyncio.to_thread(self._waiting.wait, PATIENCE)
        self._waiting.clear()

    def submit(self, name: str, lazily: bool = False, note: Callable[[], object] | None = None) -> asyncio.Future[None]:
        call = self.writer.submit_lazily if lazily else self.writer.submit
        future = call(batch(name), note or (lambda: self.events.append(name)))  # type: ignore[arg-type]
        future.add_done_callback(lambda _: self.events.append(f"{name} answered"))
        return future

    @property
    def on_disk(self) -> set[bytes]:
        return set(self.disk.tables[Table.MESSAGE])

    async def refuses(self) -> None:
        """Nothing is taken any more, for good."""
        for lazily in (False, True):
            with pytest.raises(StorageUnavailable) as refused:
                await self.submit("later", lazily)
            assert refused.value.definite
        with pytest.raises(StorageUnavailable):
            self.writer.check()


@pytest.fixture
def gate() -> AbstractAsyncContextManager[Gate]:
    return gated()


@asynccontextmanager
async def gated(*, opened: bool = False) -> AsyncIterator[Gate]:
    gate = Gate()
    if opened:
        gate.let(1_000)
    try:
        yield gate
    finally:
        gate.let(1_000)
        await gate.writer.close()


async def test_requests_that_come_during_a_sync_share_the_next_one_in_their_order_and_are_answered_behind_it(gate: Gate) -> None:
    first = gate.submit("first")
    await gate.busy()
    names = [f"{number:03}" for number in range(100)]
    futures = [gate.submit(name) for name in names]
    await turns()
    assert (gate.events, first.done(), gate.on_disk) == ([], False, set()), "nothing is answered before it is synced"
    gate.let()
    await first
    gate.let()
    await asyncio.gather(*futures)
    await turns()
    assert gate.groups == [[b"first"], [name.encode() for name in names]]
    assert (gate.writer.counts.group.count, gate.writer.counts.group.sum) == (2, 101)
    assert gate.writer.counts.sync.count == 2
    assert gate.events[:2] == ["first", "first answered"]
    assert gate.events[2:102] == names, "all of a group is noted before anyone of it is answered"
    assert gate.events[102:] == [f"{name} answered" for name in names]


async def test_a_write_to_a_store_that_was_closed_is_definite() -> None:
    store = MemoryStore()
    writer = Writer(store, lambda _: None, clock=ManualClock(), workers=ThreadWorkers())
    store.close()
    with pytest.raises(StorageUnavailable) as refused:
        await writer.submit(batch("a"), nothing)
    assert refused.value.definite
    await writer.close()


async def test_a_lazy_submission_joins_the_next_write_ahead_of_it_and_makes_its_own_where_none_follows() -> None:
    async with gated(opened=True) as gate:
        lazy = gate.submit("lazy", lazily=True)
        await asyncio.sleep(0)
        assert gate.groups == []
        await gate.submit("next")
        assert lazy.done()
        assert [name for group in gate.groups for name in group] == [b"lazy", b"next"]
        await gate.submit("alone", lazily=True)
        assert b"alone" in gate.on_disk


@pytest.mark.parametrize("gone", [False, True])
async def test_drained_waits_for_everything_submitted_before_also_of_a_caller_who_gave_up(gate: Gate, gone: bool) -> None:
    """A topic that is closed and read back must not be read before what it handed over is there."""
    await gate.writer.drained()
    gate.submit("a")
    await gate.busy()
    last = gate.submit("b")
    if gone:
        last.cancel()
    drained = asyncio.ensure_future(gate.writer.drained())
    gate.let()
    await gate.busy()
    await turns()
    assert not drained.done()
    gate.let(2)
    await drained
    assert gate.on_disk == {b"a", b"b"}
    assert {"a", "b"} <= set(map(str, gate.events))


async def test_drained_waits_at_a_stop_too_for_what_a_caller_gave_up(gate: Gate) -> None:
    gate.submit("a")
    await gate.busy()
    gate.submit("b").cancel()
    stop, drained = asyncio.ensure_future(gate.writer.close()), asyncio.ensure_future(gate.writer.drained())
    await turns()
    assert not drained.done()
    gate.let(2)
    await drained
    assert gate.on_disk == {b"a", b"b"}
    await stop


async def test_closing_writes_what_is_queued_lazily_too_and_takes_nothing_more() -> None:
    async with gated(opened=True) as gate:
        gate.submit("a")
        gate.submit("lazy", lazily=True)
        await gate.writer.close()
        assert gate.on_disk == {b"a", b"lazy"}
        await gate.refuses()


async def test_what_memory_cannot_follow_is_a_failure_of_the_store_and_everybody_gets_an_answer(gate: Gate) -> None:
    """One of a group raises when it is told that it is written: nobody behind it is left without an answer."""
    first = gate.submit("first")
    await gate.busy()
    good, broken = gate.submit("good"), gate.submit("broken", note=lambda: next(iter(())))
    others = [gate.submit("behind"), gate.submit("lazy", lazily=True)]
    gate.let(10)
    await first
    answers = await asyncio.gather(good, broken, *others, return_exceptions=True)
    assert [type(each) for each in answers] == [type(None), StorageFailed, StorageFailed, StorageUnavailable]
    assert [type(each) for each in gate.events if isinstance(each, Exception)] == [StopIteration]
    assert "behind" not in gate.events, "nothing is told to memory that is not believed"
    await gate.refuses()


async def test_what_raises_while_memory_moves_is_a_failure_of_the_store_and_nothing_more_is_written() -> None:
    async with gated(opened=True) as gate:
        with pytest.raises(ValueError, match="and no more"), gate.writer.moving():
            raise ValueError("and no more")
        await gate.refuses()
        assert [type(each) for each in gate.events if isinstance(each, Exception)] == [ValueError]
    assert gate.on_disk == set()


async def test_whoever_asks_again_and_again_lets_the_others_have_a_turn(gate: Gate) -> None:
    turn = asyncio.ensure_future(turns(1))
    asked = 0
    while not turn.done():
        await gate.writer.drained()
        asked += 1
        assert asked < 1_000, "it keeps the event loop for itself"


# --- what joins a submission that is still queued


class Growing:
    """A batch that grows while it is queued, and what is noted of it."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.batch = batch("0")
        self.noted: list[int] = []
        self.futures = [writer.submit(self.batch, lambda: self.noted.append(len(self.batch.puts)))]

    def grow(self) -> bool:
        name = b"%d" % len(self.futures)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        joins = self.writer.join(self.batch, lambda: self.batch.put(Table.MESSAGE, name, b""), partial(complete, done))
        if joins:
            self.futures.append(done)
        return joins


async def test_what_joins_is_in_the_same_write_and_noted_once_and_whoever_gives_up_takes_nobody_with_him(gate: Gate) -> None:
    gate.submit("first")
    await gate.busy()
    growing = Growing(gate.writer)
    assert all(growing.grow() for _ in range(9))
    growing.futures[0].cancel()
    growing.futures[4].cancel()
    gate.let(2)
    answers = await asyncio.gather(*growing.futures, return_exceptions=True)
    assert [type(each) for each in answers].count(type(None)) == 8
    assert (growing.noted, gate.groups[1]) == ([10], [b"%d" % each for each in range(10)])
    assert gate.writer.counts.group.sum == 11


async def test_nothing_joins_what_is_being_written_or_is_not_the_newest_of_its_view(gate: Gate) -> None:
    writing = Growing(gate.writer)
    await gate.busy()
    assert not writing.grow(), "it is being written"
    lease = Lease(None, lambda: True)
    views = [gate.writer.under(lease) for _ in range(5)]
    behind, lazily, elsewhere, alone, other = map(Growing, views)
    assert all(each.grow() for each in (behind, lazily, elsewhere, alone, other))
    views[0].submit(batch("behind"))
    views[1].submit_lazily(batch("lazily"))
    views[2].fence(batch("of another view"))
    views[3].under(lease).submit(batch("alone"))
    assert [each.grow() for each in (behind, lazily, elsewhere, alone)] == [False, False, False, True]
    assert not views[4].join(batch("another"), nothing, nothing)
    gate.let(10)
    await asyncio.gather(*writing.futures, *alone.futures)
    assert not alone.grow(), "it is written"


async def test_a_failed_write_is_indefinite_for_its_group_and_definite_for_what_is_behind_it(gate: Gate) -> None:
    """Also for what had joined them; each caller gets an error of its own: raised twice, one would tell of both."""
    gate.let()
    await gate.submit("synced")
    await gate.busy()
    gate.submit("under way")
    await gate.busy()
    failing = Growing(gate.writer)
    assert failing.grow()
    gate.let()
    await gate.busy()
    drained = asyncio.ensure_future(gate.writer.drained())
    behind = Growing(gate.writer)
    assert behind.grow()
    lazy = gate.submit("lazy", lazily=True)
    for future in (*failing.futures, *behind.futures):
        future.add_done_callback(lambda _: gate.events.append("answered"))
    gate.fail = True
    gate.let(10)
    outcomes = await asyncio.gather(*failing.futures, drained, *behind.futures, lazy, return_exceptions=True)
    assert [(type(each), each.definite) for each in outcomes] == [  # type: ignore[union-attr]
        *((StorageFailed, False),) * 3,
        *((StorageUnavailable, True),) * 3,
    ]
    assert len({*map(id, outcomes)}) == 6
    told, *answered = gate.events[4:]
    assert isinstance(told, StoreError), "once, and before any caller hears of it"
    assert sorted(map(str, answered)) == [*["answered"] * 4, "lazy answered"]
    assert (failing.noted, behind.noted, behind.grow()) == ([], [], False), "nothing joins behind a failure"
    await gate.refuses()
    assert gate.on_disk == {b"synced", b"under way"}
    assert gate.groups == [[b"synced"], [b"under way"], [b"0", b"1"]], "nothing is tried behind a failed write"


async def test_what_is_joining_when_the_writer_takes_the_queue_is_in_the_write_or_has_not_joined() -> None:
    async with gated(opened=True) as gate:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        joined = False
        while not joined:
            growing = Growing(gate.writer)

            def slowly(grown: Batch = growing.batch) -> None:
                time.sleep(0.05)  # the thread would take it now
                grown.put(Table.MESSAGE, b"late", b"")

            joined = gate.writer.join(growing.batch, slowly, partial(complete, done))
            await growing.futures[0]
        await done
        assert b"late" in gate.on_disk
        assert growing.noted == [2]


# --- leases: what another process may have taken over is not written, nor what was decided behind it


class Leased:
    """A writer over a disk on which every resource is at epoch 1, and a lease of each."""

    def __init__(self, resources: str) -> None:
        self.disk = Disk()
        self.disk.epochs = {name.encode(): 1 for name in resources}
        self.alive = True
        self.leases = {name: Lease(Fence(name.encode(), 1), lambda: self.alive) for name in resources}
        self.failures: list[Exception] = []
        told = self.failures.append, self._fenced
        self.writer = Writer(MemoryStore(self.disk), *told, clock=ManualClock(), workers=ThreadWorkers())

    def _fenced(self, lost: frozenset[Fence]) -> None:
        for fence in lost:
            self.leases[fence.resource.decode()].lost = True

    def submit(self, key: str, resources: str) -> asyncio.Future[None]:
        """A write of this key that stands on these leases; the first one submits."""
        one = batch(key)
        for name in resources[1:]:
            self.view(name).fence(one)
        return self.view(resources[0]).submit(one, nothing)

    async def refuses(self, key: str, resources: str) -> None:
        with pytest.raises(StorageUnavailable) as refused:
            await self.submit(key, resources)
        assert refused.value.definite

    def view(self, name: str) -> Writer:
        return self.writer.under(self.leases[name])

    async def written(self) -> set[str]:
        await self.writer.close()
        return {key.decode() for key in self.disk.tables[Table.MESSAGE]}


async def test_whoever_asks_behind_what_is_refused_waits_for_what_is_still_being_written() -> None:
    """Else it would answer for a message that is not on disk, or ask again and again and let nobody else have a turn."""
    house = Leased("ab")
    at_disk, let_through = threading.Event(), threading.Semaphore(0)

    def hold(_: object) -> None:
        at_disk.set()
        assert let_through.acquire(timeout=PATIENCE)

    house.disk.before_sync = hold
    first = house.submit("first", "a")
    await asyncio.to_thread(at_disk.wait, PATIENCE)
    house.disk.epochs[b"b"] = 2
    good, refused = house.submit("good", "a"), house.submit("refused", "b")
    drained = asyncio.ensure_future(house.view("a").drained())
    at_disk.clear()
    let_through.release()
    await first
    await asyncio.to_thread(at_disk.wait, PATIENCE)  # what is left of the group without the refused one
    await turns()
    assert not drained.done()
    assert not refused.done()
    let_through.release()
    await drained
    assert good.done()
    with pytest.raises(StorageUnavailable):
        await refused
    assert await house.written() == {"first", "good"}


async def test_nothing_is_submitted_or_believed_once_this_process_may_be_taken_for_dead() -> None:
    house = Leased("ab")
    await house.submit("before", "a")
    house.alive = False
    with pytest.raises(StorageUnavailable):
        house.view("a").check()
    house.alive = True  # the heartbeat gets through again
    await house.refuses("after", "ab")
    with pytest.raises(StorageFailed):
        await house.view("a").drained()
    await house.refuses("decided on what was not written", "b")
    assert await house.written() == {"before"}


RESOURCES = "abcd"
steps = st.lists(
    st.one_of(
        st.tuples(st.just("lose"), st.sampled_from(RESOURCES)),
        st.tuples(st.just("submit"), st.text(RESOURCES, min_size=1, max_size=4).map(lambda names: "".join(dict.fromkeys(names)))),
        st.tuples(st.just("await"), st.just("")),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps)
def test_whatever_is_lost_when_nothing_follows_what_was_not_written(steps: Sequence[tuple[str, str]]) -> None:
    async def scenario() -> None:
        house = Leased(RESOURCES)
        asked: list[tuple[str, str, asyncio.Future[None]]] = []
        for number, (kind, what) in enumerate(steps):
            if kind == "lose":
                house.disk.epochs[what.encode()] = 2
            elif kind == "await":
                await asyncio.gather(*(future for _, _, future in asked), return_exceptions=True)
            elif all(house.leases[name].is_valid for name in what):  # whoever has lost one and knows it submits nothing under it
                asked.append((str(number), what, house.submit(str(number), what)))
        await asyncio.gather(*(future for _, _, future in asked), return_exceptions=True)
        for name, lease in house.leases.items():
            with pytest.raises(StorageFailed) if lease.lost else nullcontext():
                await house.view(name).drained()
        assert house.failures == [], "the store goes on"
        written, fallen = await house.written(), set[str]()
        for key, names, future in asked:
            assert (future.exception() is None) == (key in written)
            if key in written:
                assert fallen.isdisjoint(names), "written behind what was not"
            else:
                fallen |= set(names)
                assert any(house.disk.epochs[name.encode()] == 2 for name in fallen), "refused for nothing"

    asyncio.run(scenario())


class Behind(MemoryStore):
    """A store that falls behind with every write, by the seconds that it is told."""

    def __init__(self, *seconds: float) -> None:
        super().__init__()
        self._seconds = [*seconds]

    def behind(self) -> float:
        return self._seconds.pop(0)


class Asleep(ManualClock):
    """Nothing takes time but sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def elapsed(self) -> float:
        return sum(self.slept)

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.Handle:
        if seconds:
            self.slept.append(seconds)
        return asyncio.get_running_loop().call_soon(call)


async def test_a_store_that_falls_behind_is_told_of_and_waited_for_once_it_is_far_behind() -> None:
    """What is told of it waits at once; a small write behind a large one does not, up to a point."""
    clock = Asleep()
    told: list[float] = []
    store = Behind(0.0, 0.04, 0.03, 2.0, 0.0, 0.0)
    writer = Writer(store, lambda _: None, on_behind=told.append, clock=clock, workers=LoopWorkers(clock.after))
    for name in ("even", "a little", "a little more"):
        await writer.submit(batch(name), nothing)
    assert clock.slept == []
    assert told == pytest.approx([0.04, 0.07])
    await writer.submit(batch("far"), nothing)
    assert sum(clock.slept) == pytest.approx(0.02)
    await writer.submit(batch("behind it"), nothing)
    assert sum(clock.slept) == pytest.approx(2.02)
    assert told == pytest.approx([0.04, 0.07, 2.05])
    await writer.close()


async def test_whoever_fails_to_hear_that_the_store_is_behind_keeps_nobodys_answer() -> None:
    def deaf(_: float) -> None:
        raise RuntimeError("deaf")

    clock = Asleep()
    writer = Writer(Behind(0.04), nothing, on_behind=deaf, clock=clock, workers=LoopWorkers(clock.after))
    async with asyncio.timeout(PATIENCE):
        await writer.submit(batch("behind"), nothing)


# --- at the end of the loop's turn


class Quick(MemoryStore):
    """A disk that is as quick, and as much in use, as it is told; it remembers who wrote what."""

    def __init__(self, clock: Passing) -> None:
        super().__init__()
        self.seconds = 0.0
        self.in_use = False
        self.fails = False
        self.groups: list[tuple[str, list[str]]] = []
        self._clock = clock

    def write(self, batches: Sequence[Batch]) -> None:
        self._note("worker", batches)

    def write_at_once(self, batches: Sequence[Batch]) -> bool:
        if not self.in_use:
            self._note("loop", batches)
        return not self.in_use

    def _note(self, by: str, batches: Sequence[Batch]) -> None:
        self.groups.append((by, [key.decode() for each in batches for _, key, _ in each.puts]))
        self._clock.now += self.seconds
        if self.fails:
            self.disk.before_sync = lambda _: (_ for _ in ()).throw(OSError("no space left on device"))
        super().write(batches)


class Passing(ManualClock):
    """Time passes where it is told to."""

    now = 0.0

    def elapsed(self) -> float:
        return self.now


class AtOnce:
    """A writer of which the loop may write, on a disk that has shown that it is quick; a thread goes on where it is let."""

    def __init__(self) -> None:
        self.threads: list[Callable[[], None]] = []
        """What threads do next: a step of the worker, or what it tells."""
        clock = Passing()
        self.store = Quick(clock)
        self.failures: list[Exception] = []
        workers = LoopWorkers(self._after)
        self.writer = Writer(self.store, self.failures.append, clock=clock, workers=workers, at_once=True)
        self.asked: dict[str, asyncio.Future[None]] = {}
        self.told: list[str] = []

    def _after(self, seconds: float, call: Callable[[], None]) -> asyncio.Handle:
        self.threads.append(call)
        return asyncio.get_running_loop().call_soon(lambda: None)

    def thread(self) -> None:
        if self.threads:
            self.threads.pop(0)()

    async def rest(self) -> None:
        """Until nobody has anything to do."""
        await turns()
        while self.threads:
            self.thread()
            await turns()

    def hand_over(self, name: str, size: int = 0) -> None:
        one = Batch()
        one.put(Table.MESSAGE, name.encode(), bytes(size))
        self._watch(name, self.writer.submit(one))

    def hand_over_lazily(self, name: str) -> None:
        self._watch(name, self.writer.submit_lazily(batch(name)))

    def _watch(self, name: str, done: asyncio.Future[None]) -> None:
        self.asked[name] = done
        done.add_done_callback(lambda _: self.told.append(name))

    @classmethod
    async def warm(cls) -> AtOnce:
        self = cls()
        for number in range(40):
            self.hand_over(f"warm {number}")
            await self.rest()
        assert self.store.groups[0][0] == "worker", "the disk has not shown yet that it is quick"
        assert self.store.groups[-1][0] == "loop"
        self.store.groups.clear()
        self.asked.clear()
        self.told.clear()
        return self


async def test_what_a_turn_of_the_loop_hands_over_is_one_write_at_its_end() -> None:
    house = await AtOnce.warm()
    for name in "abc":
        house.hand_over(name)
    assert house.store.groups == [], "others may still come in this turn"
    await turns()
    assert house.store.groups == [("loop", ["a", "b", "c"])]
    assert house.told == ["a", "b", "c"]
    assert not house.threads, "no thread was woken for it"


async def test_the_loop_writes_nothing_before_all_that_the_worker_wrote_is_told() -> None:
    """The worker is idle before that, and its lock is free: what was handed over later would be told first."""
    house = await AtOnce.warm()
    house.hand_over("large", 2**17)
    await turns()
    house.thread()  # it is on disk
    house.hand_over("small")
    await turns()
    assert (house.store.groups, house.told) == ([("worker", ["large"])], [])
    await house.rest()
    assert (house.store.groups[1:], house.told) == ([("loop", ["small"])], ["large", "small"])


async def test_one_slow_write_and_the_worker_has_it_until_the_disk_was_quick_for_a_while() -> None:
    house = await AtOnce.warm()
    house.store.seconds = 0.02
    house.hand_over("slow")
    await house.rest()
    house.store.seconds = 0.0
    by = []
    for number in range(20):
        house.hand_over(str(number))
        await house.rest()
        by.append(house.store.groups[-1][0])
    assert by == [*["worker"] * (n := by.index("loop")), *["loop"] * (20 - n)]
    assert n > 5


@pytest.mark.parametrize("what", ["large", "lazy", "in use", "behind lazy"])
async def test_the_worker_has_what_is_large_or_lazy_or_would_wait(what: str) -> None:
    house = await AtOnce.warm()
    house.store.in_use = what == "in use"
    if "lazy" in what:
        house.hand_over_lazily("lazy")
    if what != "lazy":
        house.hand_over(what, 2**16 if what == "large" else 0)
    house.writer.hurry()
    await house.rest()
    assert {by for by, _ in house.store.groups} == {"worker"}
    assert house.told == [*house.asked]


async def test_a_write_of_the_loop_that_fails_is_as_one_of_the_worker() -> None:
    house = await AtOnce.warm()
    house.store.fails = True
    house.hand_over("fails")
    await turns()
    house.hand_over("behind")
    await house.rest()
    outcomes = await asyncio.gather(*house.asked.values(), return_exceptions=True)
    assert [type(each) for each in outcomes] == [StorageFailed, StorageUnavailable]
    assert len(house.failures) == 1
    assert len(house.store.groups) == 1


async def test_what_was_handed_over_before_memory_is_given_up_is_not_written_at_the_end_of_the_turn() -> None:
    house = await AtOnce.warm()
    house.hand_over("never")
    house.writer.give_up(RuntimeError("memory could not follow"))
    await house.rest()
    assert isinstance(house.asked["never"].exception(), StorageUnavailable)
    assert house.store.groups == []


@pytest.mark.parametrize("size", [0, 2**17])
async def test_at_a_close_what_waits_for_the_end_of_the_turn_is_written(size: int) -> None:
    house = await AtOnce.warm()
    closing = asyncio.ensure_future(house.writer.close())  # before the end of the turn
    house.hand_over("last", size)
    await house.rest()
    await closing
    assert house.told == ["last"]


@example(["large", "turn", "thread", "small", "turn", "thread", "thread"])
@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["small", "small", "large", "lazy", "turn", "thread", "thread", "slow", "quick", "in use", "free", "fail"]
        ),
        max_size=60,
    )
)
def test_whoever_writes_what_was_handed_over_first_is_on_disk_and_told_first(steps: Sequence[str]) -> None:
    async def scenario() -> None:
        house = await AtOnce.warm()
        order: list[str] = []
        lazy: list[str] = []
        for number, step in enumerate(steps):
            name = f"{step} {number}"
            if step == "lazy":
                house.hand_over_lazily(name)
                lazy.append(name)
            elif step in ("small", "large"):
                order += [*lazy, name] if not house.failures else [name]
                lazy.clear()
                house.hand_over(name, 2**17 if step == "large" else 10)
            elif step == "turn":
                await asyncio.sleep(0)
            elif step == "thread":
                house.thread()
            elif step in ("slow", "quick"):
                house.store.seconds = 0.01 if step == "slow" else 0.0
            elif step in ("in use", "free"):
                house.store.in_use = step == "in use"
            else:
                house.store.fails = True
        house.writer.hurry()
        await house.rest()
        written = [name for _, group in house.store.groups for name in group]
        assert written == [name for name in [*order, *lazy] if name in written], "one order"
        outcomes = {name: done.exception() for name, done in house.asked.items()}
        kept = {name for name, error in outcomes.items() if error is None}
        assert kept == {key.decode() for key in house.store.disk.tables[Table.MESSAGE]} & house.asked.keys()
        assert [name for name in house.told if name in kept] == [name for name in written if name in kept], "told in that order"
        for by, group in house.store.groups:
            assert by == "worker" or not any(name.startswith(("large", "lazy")) for name in group)

    asyncio.run(scenario())
