"""What is large is done in pieces, or on a thread: others have their turns."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from oncelog.wire.models import OpenSubscription, ReceiveMessages, StartPosition
from oncelog.wire.requests import ConsumeRequest, PublishRequest
from oncelog_dedup import Deduplicator
from oncelog_service.log import topic_log
from oncelog_service.log.read import pages, polls
from oncelog_service.log.read.pages import AS_JSON, AS_ONCELOG, Encoding, Page
from oncelog_service.reading import Scans
from oncelog_service.storage.memory import Disk
from oncelog_service.workers import ThreadWorkers
from tests.service.house import House, opened, turns
from tests.world.clock import ManualClock
from tests.world.polls import decoded

SLICE = 50
SMALL = AS_JSON._replace(max_messages=120)


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "_CACHED_ROWS", SLICE)
    monkeypatch.setattr(polls, "_SLICE_ROWS", SLICE)
    monkeypatch.setattr(topic_log, "_ENDED_AT_ONCE", SLICE)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each slice has looked at."""
    found: list[int] = []
    ended = pages._Collected.ended

    def counted(page: pages._Collected, undecided: bool = False) -> Page:
        found.append(page._bounds.rows - page.rows)
        return ended(page, undecided)

    monkeypatch.setattr(pages._Collected, "ended", counted)
    return found


async def poll(house: House, encoding: Encoding = AS_ONCELOG, **asked: object) -> list[bytes]:
    return payloads(await house.log.poll(ConsumeRequest(**asked), encoding))  # type: ignore[arg-type]


def payloads(page: Page) -> list[bytes]:
    records, *_ = decoded(page)
    return [each["payload"] for each in records]


async def with_expired(house: House, clock: ManualClock, expired: int) -> None:
    """One message that lives before so many that have expired, and one behind them."""
    await house.log.publish(PublishRequest([b"first"]))
    await house.log.publish(PublishRequest([b"gone"] * expired, ttls=[1] * expired))
    await house.log.publish(PublishRequest([b"last"]))
    clock.advance(2_000)


@pytest.mark.parametrize("cached", [True, False], ids=["in the cache", "in the store"])
async def test_expired_messages_hold_up_nobody_and_hide_nothing(cached: bool, looked_at: list[int]) -> None:
    clock, disk = ManualClock(), Disk()
    async with opened(disk, clock) as house:
        await with_expired(house, clock, 1_000)
        if not cached:
            house.log.topic.cache.clear()
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        assert await poll(house) == [b"first", b"last"]
        task.cancel()
        assert max(looked_at) <= SLICE
        assert len(looked_at) >= 1_000 // SLICE
        assert turns >= len(looked_at) - 1, "one between each slice and the next"


async def test_retention_looks_at_some_producers_in_one_turn_and_finds_all_that_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    async with opened(Disk(), clock) as house:
        log = house.log
        names = [(await log.producers.open(None, str(number), "allow")).name for number in range(6 * SLICE)]
        clock.advance(26 * 3_600_000)
        used = names[: 2 * SLICE] + names[3 * SLICE :: 2]  # whole slices are used, whole ones idle, and some are mixed
        for name in used:
            await log.publish(PublishRequest([b"x"], name, 1, [0]))
        seen, last_pushed = [0], Deduplicator.last_pushed

        def counted(dedup: Deduplicator, name: str) -> object:
            seen[-1] += 1
            return last_pushed(dedup, name)

        async def others() -> None:
            while True:
                seen.append(0)
                await asyncio.sleep(0)

        monkeypatch.setattr(Deduplicator, "last_pushed", counted)
        task = asyncio.ensure_future(others())
        await log.end_idle_producers()
        task.cancel()
        assert max(seen) <= SLICE
        assert sum(seen) == len(names), "each is looked at once"
        assert set(log.producers.names_of_rows()) == set(used)


@pytest.mark.parametrize(("limit", "encoding", "sizes"), [(420, AS_ONCELOG, [420, 80]), (1_000, SMALL, [120] * 4 + [20])])
async def test_a_limit_is_filled_from_many_slices_and_what_ends_before_it_goes_on(
    house: House, limit: int, encoding: Encoding, sizes: list[int], looked_at: list[int]
) -> None:
    """A page of JSON is short: it is printed in one go."""
    await house.log.publish(PublishRequest([b"%d" % number for number in range(500)]))
    found, start = list[list[bytes]](), None
    while (page := await house.log.poll(ConsumeRequest(start_from=start, inclusive=False, limit=limit), encoding)).messages:
        found.append(payloads(page))
        start = page.last_id
    assert [int(each) for part in found for each in part] == list(range(500))
    assert list(map(len, found)) == sizes
    assert max(looked_at) <= SLICE


class CountingClock(ManualClock):
    """Fails whoever asks it again and again instead of waiting."""

    asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        assert self.asked < 1_000, "somebody spins"
        return super().monotonic()


async def test_whoever_waits_behind_what_has_expired_waits() -> None:
    """Everything has expired, as on a topic that nobody writes to: a reader from the beginning and a consumer that has not
    acknowledged it wait for what comes next. They asked again and again without a pause, and nobody else had a turn."""
    clock = CountingClock()
    async with opened(Disk(), clock) as house:
        log = house.log
        log.change(replace(log.row, properties={"ttl": "1"}))
        await log.publish(PublishRequest([b"gone"]))
        clock.advance(5_000)
        group = await log.subscriptions.open(OpenSubscription(name="g", nonce="n", start=StartPosition(at="earliest")))
        waiting = [
            asyncio.ensure_future(poll(house, wait=10_000)),
            asyncio.ensure_future(log.subscriptions.receive("g", ReceiveMessages(epoch=group.epoch, wait=10_000), AS_ONCELOG)),
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        await log.publish(PublishRequest([b"next"]))
        assert await waiting[0] == [b"next"]
        page = await waiting[1]
        assert isinstance(page, Page)
        assert len(page.messages) == 1


async def test_a_large_page_keeps_its_place_until_it_is_left_and_an_empty_one_has_none(house: House) -> None:
    scans = Scans(ThreadWorkers())
    with scans.place() as first:
        assert not (await house.log.poll(ConsumeRequest(limit=1_000), AS_ONCELOG, place=first)).messages
        assert not first.taken
        await house.log.publish(PublishRequest([b"x"] * (SLICE - 10)))
        assert len(payloads(await house.log.poll(ConsumeRequest(limit=1_000), AS_ONCELOG, place=first))) == SLICE - 10
        assert first.taken
        with scans.place() as second:
            waits = asyncio.ensure_future(house.log.poll(ConsumeRequest(limit=1_000), AS_ONCELOG, place=second))
            await turns()
            assert not waits.done()
            with scans.place() as small:
                assert (await house.log.poll(ConsumeRequest(limit=10), AS_ONCELOG, place=small)).delivered == 10
                assert not small.taken
            first.leave()
            assert (await waits).delivered == SLICE - 10


async def test_few_messages_that_are_large_take_a_place_and_are_all_there(house: House) -> None:
    sent = [bytes([number]) * 200_000 for number in range(20)]
    await house.log.publish(PublishRequest(sent))
    with Scans(ThreadWorkers()).place() as place:
        page = await house.log.poll(ConsumeRequest(limit=20), AS_ONCELOG, place=place)
        assert place.taken
    assert payloads(page) == sent
