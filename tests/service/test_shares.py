"""Large work is done one piece at a time; who has used more than a share waits for others' small work, until that has faded."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

import pytest

from oncelog_service.bounds.shares import _MANY, SHARE, Shares
from oncelog_service.rest.exchange import Standing


class Thread(Executor):
    """Calls when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[], Any], Future[Any]]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.asked.append((lambda: call(*args, **kwargs), future))
        return future

    def work(self) -> None:
        call, future = self.asked.pop(0)
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)


class Small:
    """Who has small work under way."""

    def __init__(self) -> None:
        self.of: set[Hashable] = set()

    def others(self, who: Hashable) -> bool:
        return bool(self.of - {who})


def made(small: Small | None = None, thread: Executor | None = None) -> Shares:
    loop = asyncio.get_running_loop()
    shares = Shares(loop.time, loop.call_later, thread or Thread())
    if small is not None:
        shares.others = small.others
    return shares


@pytest.mark.parametrize("seed", range(30))
async def test_one_at_a_time_enters_who_used_least_first_and_none_who_is_over_while_others_have_small_work(
    seed: int,
) -> None:
    random, small, entered = Random(seed), Small(), list[str]()
    shares = made(small)
    waiting: list[str] = []

    async def large(who: str) -> None:
        for _ in range(5):
            await asyncio.sleep(random.random())
            waiting.append(who)
            async with shares.alone(who):
                waiting.remove(who)
                assert not entered, "one at a time"
                may = [each for each in waiting if not shares.is_over(each) or not small.others(each)]
                assert all(shares.used(each) >= shares.used(who) for each in may) or not may
                if shares.is_over(who):
                    assert not small.others(who)
                entered.append(who)
                for _ in range(random.randrange(3)):
                    await asyncio.sleep(0)
                entered.remove(who)
                shares.charge(who, random.choice((0.01, 0.1, 1.0)))

    async def others() -> None:
        while True:
            await asyncio.sleep(random.random() / 10)
            small.of = set(random.sample("abcd", random.randrange(3)))

    background = asyncio.ensure_future(others())
    await asyncio.wait_for(asyncio.gather(*(large(who) for who in "aabcc")), 60)
    background.cancel()
    assert not shares._waiting


async def test_who_is_alone_has_everything() -> None:
    """Also where one's own small work is under way."""
    small = Small()
    shares = made(small)
    small.of = {"a"}
    began = asyncio.get_running_loop().time()
    for _ in range(100):
        async with shares.alone("a"):
            shares.charge("a", 1.0)
    assert asyncio.get_running_loop().time() == began


async def test_small_work_without_an_end_holds_nobody_up_for_longer_than_what_was_used_takes_to_fade() -> None:
    small, loop = Small(), asyncio.get_running_loop()
    shares = made(small)
    small.of = {"other"}
    began, done = loop.time(), 0.0
    while loop.time() < began + 20:
        await shares.turn("a")
        shares.charge("a", 0.02)
        done += 0.02
        await asyncio.sleep(0)
    assert SHARE * 0.9 < done / 20 < SHARE * 1.2


async def test_who_needs_a_moment_only_waits_for_the_piece_that_is_under_way_and_no_other() -> None:
    shares, order = made(), list[str]()

    async def large(who: str) -> None:
        async with shares.alone(who):
            order.append(who)
            await asyncio.sleep(0.01)
            shares.charge(who, 0.01)

    loud = [asyncio.ensure_future(large("loud")) for _ in range(5)]
    await asyncio.sleep(0.001)
    await large("quiet")
    await asyncio.gather(*loud)
    assert order == ["loud", "quiet", *["loud"] * 4]


async def test_of_ones_own_the_first_goes_first_also_where_another_comes_before_anybody_has_looked() -> None:
    small, order = Small(), list[int]()
    shares = made(small)
    shares.charge("a", 10.0)
    small.of = {"other"}

    async def large(number: int) -> None:
        await shares.turn("a")
        order.append(number)

    first = asyncio.ensure_future(large(1))
    await asyncio.sleep(0.0005)
    small.of = set()
    await large(2)
    await first
    assert order == [1, 2]


async def test_what_is_done_on_a_thread_is_alone_until_it_is_done_also_where_nobody_waits_any_more() -> None:
    thread = Thread()
    shares = made(thread=thread)
    first = asyncio.ensure_future(shares.apart("a", False, int, "7"))
    second = asyncio.ensure_future(shares.apart("b", False, int, "8"))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    assert len(thread.asked) == 1, "the thread has not ended"
    thread.work()
    await asyncio.sleep(0.01)
    thread.work()
    assert await second == 8


async def test_who_holds_what_others_wait_for_goes_first_and_is_held_up_by_no_small_work() -> None:
    small, order = Small(), list[str]()
    shares = made(small)
    small.of = {"other"}
    shares.charge("holder", 10.0)

    async def large(who: str, holds: bool) -> None:
        await shares.turn(who, holds=holds)
        order.append(who)

    async with shares.alone("a"):
        waiting = [asyncio.ensure_future(large(who, who == "holder")) for who in ("a", "holder")]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order == ["holder", "a"]


async def test_a_call_that_fails_on_the_thread_is_heard_of_and_lets_the_next_one_in() -> None:
    thread = Thread()
    shares = made(thread=thread)
    failing = asyncio.ensure_future(shares.apart("a", False, int, "x"))
    await asyncio.sleep(0)
    thread.work()
    with pytest.raises(ValueError, match="invalid literal"):
        await failing
    await asyncio.wait_for(shares.turn("b"), 1)


async def test_a_thread_that_takes_nothing_more_holds_nobody_up() -> None:
    class Ended(Thread):
        def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise RuntimeError("these threads call nothing more")

    shares = made(thread=Ended())
    with pytest.raises(RuntimeError):
        await shares.apart("a", False, int, "7")
    await asyncio.wait_for(shares.turn("b"), 1)


@pytest.mark.parametrize("steps", range(4))
async def test_who_gives_up_while_it_waits_or_just_when_its_turn_has_come_holds_nobody_up(steps: int) -> None:
    shares = made()
    async with shares.alone("a"):
        waiting = [asyncio.ensure_future(shares.turn("b")) for _ in range(3)]
        await asyncio.sleep(0)
    for _ in range(steps):
        await asyncio.sleep(0)
    for each in waiting[:2]:
        each.cancel()
    await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1)
    await asyncio.wait_for(shares.turn("c"), 1)
    assert not shares._waiting


async def test_who_has_used_nothing_lately_is_forgotten() -> None:
    shares = made()
    for number in range(3 * _MANY):
        shares.charge(number, 0.01)
        if number % 100 == 0:
            await asyncio.sleep(1)
    assert len(shares._used) <= 2 * _MANY
    await asyncio.sleep(100)
    for number in range(_MANY + 1):
        shares.charge(-number, 0.01)
    assert len(shares._used) <= _MANY + 1


async def test_a_request_is_charged_for_how_long_it_keeps_the_event_loop_and_not_for_how_long_it_waits() -> None:
    passed = [0.0]
    shares = Shares(lambda: passed[0], asyncio.get_running_loop().call_later, Thread())
    standing, waited = Standing(shares), asyncio.get_running_loop().create_future()
    standing.who = "a"

    async def work() -> None:
        passed[0] += 0.1
        await waited
        passed[0] += 0.2
        raise ValueError("it has failed")

    asked = asyncio.ensure_future(standing.follow(work()))
    await asyncio.sleep(0)
    assert shares.used("a") == pytest.approx(0.1)
    passed[0] += 1
    waited.set_result(None)
    with pytest.raises(ValueError, match="failed"):
        await asked
    assert shares.used("a") == pytest.approx(0.1 / math.e / math.e**0.2 + 0.2)
