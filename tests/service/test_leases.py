"""Who holds what, in a real PostgreSQL: one holder at a time, whatever its clock says, no write under a lease that is gone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn, cast

import pytest

from oncelog.errors import NotServedHere, StorageUnavailable
from oncelog_service.background import Background
from oncelog_service.clock import Clock, SystemClock
from oncelog_service.cluster import membership
from oncelog_service.cluster.leases import JOURNAL, TOPIC_PREFIX, Alone, Lease
from oncelog_service.cluster.led import Led
from oncelog_service.cluster.membership import Membership
from oncelog_service.cluster.placement import preferred
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Dead, Fence, Instance, LeaseTable, Store, StoreError, StoreFenced, Table
from tests.patience import PATIENCE, until
from tests.postgres import PostgresServer
from tests.support import ManualClock

LONG = 60_000
A, B = "a" * 32, "b" * 32
TOPIC = b"topic:default:t:"


@pytest.fixture
def store(postgres: PostgresServer) -> Iterator[Store]:
    opened = store_opener(postgres.fresh_schema())()
    yield opened
    opened.close()


@pytest.fixture
def table(store: Store) -> LeaseTable:
    found = store.lease_table()
    assert found is not None
    return found


def fence(found: Fence | Instance) -> Fence:
    assert isinstance(found, Fence), found
    return found


def under(fence: Fence, key: bytes) -> Batch:
    batch = Batch()
    batch.put(Table.MESSAGE, key, b"value")
    batch.fences.add(fence)
    return batch


# --- the table


def test_a_lease_is_held_by_the_one_who_took_it_first(table: LeaseTable) -> None:
    table.join(A, "http://a", LONG)
    table.join(B, "http://b", LONG)
    assert fence(table.take(A, TOPIC)) == Fence(TOPIC, 1)
    held = table.take(B, TOPIC)
    assert isinstance(held, Instance)
    assert (held.id, held.url) == (A, "http://a")
    assert table.holder(TOPIC) is not None
    assert table.holder(b"topic:default:other:") is None


def test_of_many_who_want_it_at_once_one_gets_it(table: LeaseTable) -> None:
    names = [f"{number:032}" for number in range(8)]
    for name in names:
        table.join(name, f"http://{name}", LONG)
    found: dict[str, Fence | Instance] = {}
    together = threading.Barrier(len(names))

    def take(name: str) -> None:
        together.wait()
        found[name] = table.take(name, TOPIC)

    threads = [threading.Thread(target=take, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [name for name, each in found.items() if isinstance(each, Fence)]
    assert len(winners) == 1
    assert {each.id for each in found.values() if isinstance(each, Instance)} == set(winners)


def test_no_write_is_made_under_a_lease_that_somebody_else_has_now(table: LeaseTable, store: Store) -> None:
    table.join(A, "http://a", LONG)
    table.join(B, "http://b", LONG)
    before = fence(table.take(A, TOPIC))
    store.write([under(before, b"1")])
    table.leave(A)
    after = fence(table.take(B, TOPIC))
    assert after.epoch > before.epoch
    with pytest.raises(StoreFenced) as fenced:
        store.write([under(before, b"2"), under(after, b"3")])
    assert fenced.value.lost == {before}
    store.write([under(after, b"3")])
    assert [key for key, _ in store.scan(Table.MESSAGE, b"", b"\xff")] == [b"1", b"3"]


def test_whoever_was_declared_dead_cannot_renew_and_must_begin_anew(table: LeaseTable) -> None:
    table.join(A, "http://a", LONG)
    table.join(B, "http://b", LONG)
    table.take(A, TOPIC)
    table.renew(A, 1_000)
    while isinstance(table.take(B, TOPIC), Instance):
        pass
    with pytest.raises(Dead):
        table.renew(A, LONG)
    with pytest.raises(Dead):
        table.take(A, b"topic:default:another:")
    assert [each.id for each in table.renew(B, LONG)] == [B]


def test_a_renewed_instance_keeps_what_it_has(table: LeaseTable) -> None:
    table.join(A, "http://a", LONG)
    table.join(B, "http://b", LONG)
    table.take(A, TOPIC)
    assert {each.id for each in table.renew(A, 2 * LONG)} == {A, B}
    (left,) = (each.expires_in_ms for each in table.instances() if each.id == A)
    assert left > LONG
    assert isinstance(table.take(B, TOPIC), Instance)


def test_what_is_handed_over_belongs_to_the_one_it_was_handed_to(table: LeaseTable) -> None:
    for name in (A, B, "c" * 32):
        table.join(name, f"http://{name[0]}", LONG)
    first = fence(table.take(A, TOPIC))
    table.give_up(B, first, "c" * 32)  # who does not have it gives nothing up
    assert isinstance(table.take(B, TOPIC), Instance)
    table.give_up(A, first, B)
    held = table.take("c" * 32, TOPIC)
    assert isinstance(held, Instance)
    assert held.id == B
    assert fence(table.take(B, TOPIC)).epoch > first.epoch


def test_who_starts_at_the_address_of_another_one_takes_over_from_it_at_once(table: LeaseTable) -> None:
    table.join(A, "http://a", LONG)
    table.join(B, "http://b", LONG)
    before = fence(table.take(A, TOPIC))
    table.join("c" * 32, "http://a", LONG)  # killed, and started again
    assert {each.id for each in table.instances()} == {B, "c" * 32}
    assert fence(table.take("c" * 32, TOPIC)).epoch > before.epoch
    with pytest.raises(Dead):
        table.renew(A, LONG)


def test_epochs_rise_with_every_change_of_hands_and_none_is_used_twice(table: LeaseTable) -> None:
    table.join(A, "http://a", LONG)
    epochs = []
    for _ in range(5):
        epochs.append(fence(table.take(A, TOPIC)).epoch)
        table.give_up(A, Fence(TOPIC, epochs[-1]))
    assert epochs == sorted(set(epochs))


def test_a_write_and_a_take_over_at_the_same_time_are_one_behind_the_other(table: LeaseTable, store: Store) -> None:
    """Whoever takes over sees every write that was not refused: no row appears behind its back."""
    for turn in range(20):
        writer, taker = f"{turn:031}w", f"{turn:031}t"
        resource = TOPIC + bytes([turn])
        table.join(writer, "http://w", LONG)
        table.join(taker, "http://t", LONG)
        mine = fence(table.take(writer, resource))
        written: list[bytes] = []

        def write(turn: int = turn, mine: Fence = mine, written: list[bytes] = written) -> None:
            for number in range(1_000):
                key = f"{turn:02}.{number:04}".encode()
                try:
                    store.write([under(mine, key)])
                except StoreFenced:
                    return
                written.append(key)

        thread = threading.Thread(target=write)
        thread.start()
        while len(written) < 3:
            pass
        table.give_up(writer, mine)
        theirs = fence(table.take(taker, resource))
        seen = [key for key, _ in store.scan(Table.MESSAGE, f"{turn:02}.".encode(), f"{turn:02}/".encode())]
        thread.join()
        left = [key for key, _ in store.scan(Table.MESSAGE, f"{turn:02}.".encode(), f"{turn:02}/".encode())]
        assert theirs.epoch > mine.epoch
        assert seen == left == written


# --- one process among others


class Member:
    """A membership in this process, and what it was told."""

    def __init__(self, table: LeaseTable, url: str, ttl_seconds: float = 30.0, clock: Clock | None = None) -> None:
        self.dead: list[Exception] = []
        self.lost: list[bytes] = []
        self.membership = Membership(table, url, None, ttl_seconds, clock or SystemClock(), self.dead.append, self.lost.append)


def test_a_topic_is_taken_where_it_belongs_and_the_others_say_where_that_is(table: LeaseTable) -> None:
    async def scenario() -> None:
        first, second = Member(table, "http://first"), Member(table, "http://second")
        await first.membership.join()
        await second.membership.join()
        for each in (first, second):
            each.membership._renewed(SystemClock().monotonic(), table.instances())  # as the next heartbeat does
        both = {each.membership.id: each.membership for each in (first, second)}
        for number in range(20):
            resource = TOPIC_PREFIX + f"default:t{number}:".encode()
            wanted = preferred(resource, both)
            assert wanted is not None
            other = next(each for name, each in both.items() if name != wanted)
            with pytest.raises(NotServedHere) as elsewhere:
                await other.take(resource)
            assert elsewhere.value.url == both[wanted].url
            assert (await both[wanted].take(resource)).stands
        for each in both.values():
            await each.leave()

    asyncio.run(scenario())


def test_who_was_taken_for_dead_is_told_and_holds_nothing_any_more(table: LeaseTable) -> None:
    async def scenario() -> None:
        member = Member(table, "http://a", ttl_seconds=3.0)
        await member.membership.join()
        lease = await member.membership.take(b"journal")
        assert lease.stands
        table.leave(member.membership.id)  # as another one does that found it expired
        while not member.dead:
            await asyncio.sleep(0.01)
        assert not lease.stands
        with pytest.raises(StorageUnavailable):
            await member.membership.take(b"journal")
        member.membership.abandon()

    asyncio.run(scenario())


def test_leases_end_by_its_own_clock_before_anybody_else_may_take_them(
    table: LeaseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def unreachable(*_: object) -> NoReturn:
        failed.set()
        raise StoreError("the heartbeat does not get through")

    async def scenario() -> None:
        clock = ManualClock()
        member = Member(table, "http://a", ttl_seconds=600.0, clock=clock)
        await member.membership.join()
        lease = await member.membership.take(b"journal")
        assert lease.stands
        monkeypatch.setattr(table, "renew", unreachable)
        (left,) = (each.expires_in_ms for each in table.instances())
        clock.advance(left // 2)
        for _ in range(2):  # the second began and failed at this time
            failed.clear()
            assert await asyncio.to_thread(failed.wait, PATIENCE)
        assert lease.stands
        clock.advance(left - left // 2 - 1_000)  # the others will still take it for alive
        assert not lease.stands
        member.membership.abandon()

    monkeypatch.setattr(membership, "_BEATS", 6_000)  # ten a second
    asyncio.run(scenario())


# --- where a topic belongs


def test_a_heartbeat_goes_on_after_an_error_that_nobody_foresaw(caplog: pytest.LogCaptureFixture) -> None:
    class Fails:
        renewed = 0

        def join(self, *_: object) -> None: ...

        def instances(self) -> list[Instance]:
            return []

        def renew(self, *_: object) -> list[Instance]:
            self.renewed += 1
            if self.renewed == 1:
                raise ValueError("nobody thought of this")
            return []

        def leave(self, *_: object) -> None: ...

    async def scenario() -> None:
        table = Fails()
        one = Membership(cast(LeaseTable, table), "http://a", None, 0.04, SystemClock(), lambda _: None, lambda _: None)
        await one.join()
        while table.renewed < 3:
            await asyncio.sleep(0.001)
        await one.leave()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert "nobody thought of this" in caplog.text


def test_a_loop_that_does_not_turn_lets_its_leases_end(caplog: pytest.LogCaptureFixture) -> None:
    """A thread that renews them all the same would keep everybody else from serving what nobody answers for."""
    renewed: list[int] = []

    class Agrees:
        def join(self, *_: object) -> None: ...

        def instances(self) -> list[Instance]:
            return []

        def renew(self, *_: object) -> list[Instance]:
            renewed.append(1)
            return []

        def leave(self, *_: object) -> None: ...

    def skipped() -> int:
        return sum("has not turned" in record.getMessage() for record in caplog.records)

    async def scenario() -> None:
        def never(_: object) -> None:
            raise AssertionError

        table = cast(LeaseTable, Agrees())
        one = Membership(table, "http://a", None, 0.04, SystemClock(), never, never)
        await one.join()
        lease = Lease(JOURNAL, None, one._standing)
        until(lambda: skipped() >= 1, "a heartbeat that is left out")  # on the loop, which so does not turn
        before = len(renewed)
        until(lambda: skipped() >= 8, "more of them")
        assert len(renewed) == before
        assert not lease.stands
        while len(renewed) == before:
            await asyncio.sleep(0.001)
        assert not lease.stands, "it is to be taken anew"
        await one.leave()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_topics_spread_over_the_instances_and_only_what_has_to_move_moves() -> None:
    topics = [f"topic:default:t{number}:".encode() for number in range(3_000)]
    three = [f"{number:032x}" for number in (7, 77, 777)]
    before = {topic: preferred(topic, three) for topic in topics}
    assert all(800 < count < 1_200 for count in Counter(before.values()).values())
    after = {topic: preferred(topic, reversed(three[:2])) for topic in topics}
    assert all(after[topic] == before[topic] for topic in topics if before[topic] in three[:2])
    assert preferred(topics[0], []) is None


# --- what is led


class Recovered:
    async def run(self) -> None: ...

    def release(self) -> None: ...


def test_what_could_not_be_read_back_is_read_back_under_another_lease() -> None:
    """What the first attempt has handed over may still be on its way, and its lease stands."""

    class Holding(Alone):
        """As a membership: the same lease while it stands."""

        lease: Lease | None = None

        async def take(self, resource: bytes, *, claim: bool = False) -> Lease:
            if self.lease is None or not self.lease.stands:
                self.lease = await super().take(resource, claim=claim)
            return self.lease

    async def scenario() -> None:
        tried: list[Lease] = []

        async def recover(lease: Lease) -> Recovered:
            tried.append(lease)
            if len(tried) == 1:
                raise StorageUnavailable("the heartbeat was late")
            return Recovered()

        led = Led(JOURNAL, Holding(), recover, Background(ManualClock()))
        with pytest.raises(StorageUnavailable):
            await led.begin()
        await led.begin()
        assert led.present is not None
        assert tried[0] is not tried[1]
        assert not tried[0].stands

    asyncio.run(scenario())
