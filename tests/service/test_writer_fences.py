"""Writes that stand on leases: what another process may have taken over is not written, nor what was decided behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.errors import StorageFailed, StorageUnavailable
from oncelog_service.cluster.leases import Lease
from oncelog_service.group_commit import Writer
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Fence, Table
from tests.patience import PATIENCE


class House:
    """A writer over a disk on which every resource is at epoch 1, and a lease of each."""

    def __init__(self, resources: str) -> None:
        self.disk = Disk()
        self.disk.epochs = {name.encode(): 1 for name in resources}
        self.alive = True
        self.leases = {name: Lease(name.encode(), Fence(name.encode(), 1), lambda: self.alive) for name in resources}
        self.failures: list[Exception] = []
        self.writer = Writer(MemoryStore(self.disk), self.failures.append, self._fenced)

    def _fenced(self, lost: frozenset[Fence]) -> None:
        for fence in lost:
            self.leases[fence.resource.decode()].lost = True

    def submit(self, key: str, resources: str) -> asyncio.Future[None]:
        """A write of this key that stands on these leases; the first one submits."""
        batch = Batch()
        batch.put(Table.MESSAGE, key.encode(), b"")
        for name in resources[1:]:
            self.view(name).fence(batch)
        return self.view(resources[0]).submit(batch, lambda: None)

    def view(self, name: str) -> Writer:
        return self.writer.under(self.leases[name])

    @property
    def written(self) -> set[str]:
        return {key.decode() for key in self.disk.tables[Table.MESSAGE]}


def test_what_stands_on_a_lost_lease_is_definitely_not_written_and_the_rest_is() -> None:
    async def scenario() -> None:
        house = House("ab")
        house.disk.epochs[b"a"] = 2  # somebody took it over
        a, b = house.submit("on a", "a"), house.submit("on b", "b")
        with pytest.raises(StorageUnavailable) as refused:
            await a
        await b
        assert refused.value.definite
        assert house.written == {"on b"}
        assert house.failures == [], "the store goes on"
        with pytest.raises(StorageUnavailable):
            await house.submit("again", "a")
        with pytest.raises(StorageFailed):
            await house.view("a").settled()
        await house.view("b").settled()
        await house.writer.close()

    asyncio.run(scenario())


def test_what_is_behind_a_write_that_was_not_made_is_not_made_either() -> None:
    async def scenario() -> None:
        house = House("jt")
        house.disk.epochs[b"t"] = 2
        # The journal's memory moved by the first of these; the second was decided on it.
        first, second = house.submit("journal and topic", "jt"), house.submit("journal alone", "j")
        for each in (first, second):
            with pytest.raises(StorageUnavailable):
                await each
        assert house.written == set()
        await house.writer.close()

    asyncio.run(scenario())


def test_whoever_asks_behind_what_is_refused_waits_for_what_is_still_being_written() -> None:
    """Else it would answer for a message that is not on disk, or ask again and again and let nobody else have a turn."""

    async def scenario() -> None:
        house = House("ab")
        at_disk, let_through = threading.Event(), threading.Semaphore(0)

        def hold(_: object) -> None:
            at_disk.set()
            assert let_through.acquire(timeout=PATIENCE)

        house.disk.before_sync = hold
        first = house.submit("first", "a")
        await asyncio.to_thread(at_disk.wait, PATIENCE)
        house.disk.epochs[b"b"] = 2
        good, refused = house.submit("good", "a"), house.submit("refused", "b")
        settled = asyncio.ensure_future(house.view("a").settled())
        at_disk.clear()
        let_through.release()
        await first
        await asyncio.to_thread(at_disk.wait, PATIENCE)  # what is left of the group without the refused one
        await asyncio.sleep(0.05)
        assert not settled.done()
        assert not refused.done()
        let_through.release()
        await settled
        assert good.done()
        assert house.written == {"first", "good"}
        with pytest.raises(StorageUnavailable):
            await refused
        await house.writer.close()

    asyncio.run(scenario())


def test_nothing_is_submitted_or_believed_once_this_process_may_be_taken_for_dead() -> None:
    async def scenario() -> None:
        house = House("ab")
        await house.submit("before", "a")
        house.alive = False
        with pytest.raises(StorageUnavailable):
            house.view("a").check()
        house.alive = True  # the heartbeat gets through again
        with pytest.raises(StorageUnavailable):
            await house.submit("after", "ab")
        with pytest.raises(StorageFailed):
            await house.view("a").settled()
        with pytest.raises(StorageUnavailable):
            await house.submit("decided on what was not written", "b")
        await house.writer.close()
        assert house.written == {"before"}

    asyncio.run(scenario())


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
        house = House(RESOURCES)
        asked: list[tuple[str, str, asyncio.Future[None]]] = []
        for number, (kind, what) in enumerate(steps):
            if kind == "lose":
                house.disk.epochs[what.encode()] = 2
            elif kind == "await":
                await asyncio.gather(*(future for _, _, future in asked), return_exceptions=True)
            elif all(house.leases[name].stands for name in what):  # whoever has lost one and knows it submits nothing under it
                asked.append((str(number), what, house.submit(str(number), what)))
        await asyncio.gather(*(future for _, _, future in asked), return_exceptions=True)
        await house.writer.close()
        fallen: set[str] = set()
        for key, names, future in asked:
            assert (future.exception() is None) == (key in house.written)
            if key in house.written:
                assert fallen.isdisjoint(names), "written behind what was not"
            else:
                fallen |= set(names)
                assert any(house.disk.epochs[name.encode()] == 2 for name in fallen), "refused for nothing"

    asyncio.run(scenario())
