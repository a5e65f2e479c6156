"""One process among those that share a store: where it takes leases, how long they are valid, and what it leads under them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from oncelog.errors import NotServedHere, StorageUnavailable
from oncelog_service.background import Background
from oncelog_service.clock import Clock, SystemClock
from oncelog_service.cluster.leader import Leader
from oncelog_service.cluster.leases import ATOMIC_COMMITS, SETUP, Lease, Leases, held_briefly, topic_resource
from oncelog_service.cluster.membership import Membership
from oncelog_service.cluster.placement import preferred
from oncelog_service.storage.port import Fence, StoreError
from oncelog_service.workers import ThreadWorkers, Workers
from tests.patience import until
from tests.world.clock import ManualClock
from tests.world.leases import LeasesInMemory
from tests.world.workers import LoopWorkers

TTL = 600.0


class Member:
    """A membership over a table, and what it was told."""

    def __init__(
        self, table: LeasesInMemory, url: str, clock: Clock | None = None, ttl: float = TTL, workers: Workers | None = None
    ) -> None:
        self.dead: list[Exception] = []
        self.lost: list[bytes] = []
        self.clock = clock or ManualClock()
        told = self.dead.append, self.lost.append
        self.membership = Membership(table, url, None, ttl, self.clock, *told, workers=workers or ThreadWorkers())

    async def joined(self) -> Membership:
        await self.membership.join()
        return self.membership


@pytest.fixture
def table() -> LeasesInMemory:
    return LeasesInMemory()


def beating() -> Workers:
    """Those of a heart that beats whenever the loop has turned a few times, whatever its clock says."""
    return LoopWorkers(lambda seconds, call: asyncio.get_running_loop().call_later(0.001 if seconds else 0, call))


async def test_a_topic_is_taken_where_it_belongs_and_the_others_say_where_that_is(table: LeasesInMemory) -> None:
    both = [await Member(table, f"http://{number}").joined() for number in range(2)]
    for each in both:
        each._renewed(0.0, table.instances())  # as the next heartbeat does
    by_id = {each.id: each for each in both}
    for number in range(20):
        resource = topic_resource(f"default:t{number}:".encode())
        wanted = by_id[preferred(resource, by_id) or ""]
        (other,) = (each for each in both if each is not wanted)
        assert wanted.belongs_here(resource)
        assert not other.belongs_here(resource)
        with pytest.raises(NotServedHere) as elsewhere:
            await other.take(resource)
        assert elsewhere.value.url == wanted.url
        lease = await wanted.take(resource)
        assert lease is await wanted.take(resource)
        wanted.lost([Fence(resource, 0)])  # an older one
        assert lease.is_valid
        assert lease.fence is not None
        wanted.lost([lease.fence])
        assert not lease.is_valid
    for each in both:
        await each.leave()
    assert table.there == {}


async def test_what_is_held_briefly_stays_held_until_the_one_who_holds_it_is_done(table: LeasesInMemory) -> None:
    """A process takes a lease once, so another of its callers who is done first would give it away."""
    one = await Member(table, "http://a").joined()
    holding = 0

    async def hold(turns: int) -> None:
        nonlocal holding
        async with held_briefly(one, SETUP) as lease:
            holding += 1
            assert holding == 1
            for _ in range(turns):
                await asyncio.sleep(0)
                assert lease.is_valid
            assert table.held()[SETUP].instance == one.id
            holding -= 1

    await asyncio.gather(*map(hold, (50, 1, 20, 1)))
    assert SETUP not in table.held()
    await one.leave()


async def test_a_process_that_serves_nothing_is_given_nothing_and_nobody_is_sent_there(table: LeasesInMemory) -> None:
    one = await Member(table, "http://a").joined()
    command = await Member(table, "oncelog on a machine, process 5").joined()
    one._renewed(0.0, table.instances())  # as the next heartbeat does
    assert one.alive == (one.id, (one.id,))
    assert [each.url for each in (await one.overview())[0]] == ["http://a"]
    for number in range(20):
        resource = topic_resource(f"default:t{number}:".encode())
        assert one.belongs_here(resource)
        await one.take(resource)
    await one.take(ATOMIC_COMMITS)
    with pytest.raises(NotServedHere):
        await command.take(ATOMIC_COMMITS)
    await command.leave()
    await one.leave()


async def test_what_was_not_known_to_be_alive_for_a_moment_begins_anew(table: LeasesInMemory) -> None:
    """Its leases end by its own clock before anybody else may take them; what was decided under one is not valid again."""
    member = Member(table, "http://a", workers=beating())
    one = await member.joined()
    lease = await one.take(ATOMIC_COMMITS)
    table.error = StoreError("the heartbeat does not get through")
    member.clock.advance(round(TTL * 500))  # type: ignore[attr-defined]
    await _beats(table, 2)
    assert lease.is_valid
    member.clock.advance(round(TTL * 480))  # type: ignore[attr-defined]
    assert not lease.is_valid, "the others still take it for alive"
    with pytest.raises(StorageUnavailable):
        await one.take(ATOMIC_COMMITS)
    table.error = None
    await _beats(table, 2)
    one.check_alive()
    assert not lease.is_valid
    again = await one.take(ATOMIC_COMMITS)
    assert again.is_valid
    assert again.fence == Fence(ATOMIC_COMMITS, 2)
    one.abandon()


async def _beats(table: LeasesInMemory, number: int) -> None:
    """So many heartbeats later."""
    before = table.renewals
    while table.renewals < before + number:
        await asyncio.sleep(0.001)


async def test_an_instance_that_was_taken_for_dead_is_told_and_holds_nothing_any_more(table: LeasesInMemory) -> None:
    member = Member(table, "http://a", workers=beating())
    lease = await (await member.joined()).take(ATOMIC_COMMITS)
    table.leave(member.membership.id)  # as another one does that found it expired
    while not member.dead:
        await asyncio.sleep(0.001)
    assert not lease.is_valid
    with pytest.raises(StorageUnavailable):
        await member.membership.take(ATOMIC_COMMITS)
    member.membership.abandon()


async def test_a_heartbeat_goes_on_after_an_error_that_nobody_foresaw(
    table: LeasesInMemory, caplog: pytest.LogCaptureFixture
) -> None:
    one = await Member(table, "http://a", workers=beating()).joined()
    table.error = ValueError("nobody thought of this")
    await _beats(table, 2)
    table.error = None
    await _beats(table, 1)
    await one.leave()

    assert "nobody thought of this" in caplog.text


async def test_a_loop_that_does_not_turn_lets_its_leases_end(table: LeasesInMemory, caplog: pytest.LogCaptureFixture) -> None:
    """A thread that renews them all the same would keep everybody else from serving what nobody answers for."""

    def skipped() -> int:
        return sum("has not turned" in record.getMessage() for record in caplog.records)

    one = await Member(table, "http://a", SystemClock(), ttl=0.04).joined()
    lease = Lease(None, one._standing)
    until(lambda: skipped() >= 1, "a heartbeat that is left out", seconds=20)  # on the loop, which so does not turn
    before = table.renewals
    until(lambda: skipped() >= 8, "more of them", seconds=20)
    assert table.renewals == before
    assert not lease.is_valid
    await _beats(table, 1)
    assert not lease.is_valid, "it is to be taken anew"
    await one.leave()


def test_topics_spread_over_the_instances_and_only_what_has_to_move_moves() -> None:
    topics = [f"topic:default:t{number}:".encode() for number in range(3_000)]
    three = [f"{number:032x}" for number in (7, 77, 777)]
    before = {topic: preferred(topic, three) for topic in topics}
    assert all(800 < count < 1_200 for count in Counter(before.values()).values())
    after = {topic: preferred(topic, reversed(three[:2])) for topic in topics}
    assert all(after[topic] == before[topic] for topic in topics if before[topic] in three[:2])
    assert preferred(topics[0], []) is None


# --- a component that follows a lease


class Recovered:
    async def run(self) -> None: ...

    def release(self) -> None: ...


async def test_what_could_not_be_read_back_is_read_back_under_another_lease() -> None:
    """What the first attempt has handed over may still be on its way, and its lease is valid."""

    class Holding(Leases):
        """As a membership: the same lease while it is valid."""

        lease: Lease | None = None

        async def take(self, resource: bytes, *, claim: bool = False) -> Lease:
            if self.lease is None or not self.lease.is_valid:
                self.lease = await super().take(resource, claim=claim)
            return self.lease

    tried: list[Lease] = []

    async def recover(lease: Lease) -> Recovered:
        tried.append(lease)
        if len(tried) == 1:
            raise StorageUnavailable("the heartbeat was late")
        return Recovered()

    leader = Leader(ATOMIC_COMMITS, Holding(), recover, Background(ManualClock()))
    with pytest.raises(StorageUnavailable):
        await leader.begin()
    await leader.begin()
    assert leader.present is not None
    assert tried[0] is not tried[1]
    assert not tried[0].is_valid
