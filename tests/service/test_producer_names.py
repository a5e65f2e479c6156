"""Listing a topic's producers page by page looks at each name a bounded number of times, however many pages there are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from oncelog.wire.requests import PublishRequest, Rollback
from oncelog.wire.transaction import TransactionType
from oncelog_dedup import Fold, LastEntry
from oncelog_service.log.append import producers
from oncelog_service.storage.memory import Disk
from tests.service.house import House, numbered, opened

PRODUCERS = 600


class Counting(Fold):
    """A fold that counts the names it is asked for."""

    __slots__ = ("looked_at",)
    looked_at: int

    def items(self) -> Iterator[tuple[str, LastEntry]]:
        for item in super().items():
            self.looked_at += 1
            yield item


def counting(house: House) -> Counting:
    fold = house.log.dedup.fold = Counting(house.log.dedup.fold.stable)
    fold.looked_at = 0
    return fold


async def listed(house: House, limit: int = 10) -> list[str]:
    names: list[str] = []
    while page := await house.log.producers.names(names[-1] if names else "", limit):
        names += page
    return names


async def publish(house: House, names: list[str]) -> None:
    await asyncio.gather(*(house.log.publish(numbered([b"x"], name, 0)) for name in names))


async def test_the_list_follows_who_comes_and_goes(house: House) -> None:
    """Also one that comes when another one goes, so that they are as many as before."""
    producers = house.log.producers
    await publish(house, ["c", "a"])
    assert await listed(house, 1) == ["a", "c"]
    await producers.open("b", "nonce", "allow")
    assert await listed(house, 1) == ["a", "b", "c"]
    await producers.forget("a")
    await publish(house, ["d"])
    assert await listed(house, 1) == ["b", "c", "d"]
    await producers.forget("b")
    await producers.open("e", "nonce", "allow")
    assert await listed(house, 1) == ["c", "d", "e"]
    pointer = await house.start(TransactionType.LONG)
    answer = await house.log.publish(PublishRequest([b"x"], "f", sequence_ids=[0], write_pointer=pointer))
    assert await listed(house, 1) == ["c", "d", "e", "f"]
    place = answer.start_timestamp, answer.start_sequence_id
    await house.log.roll_back(Rollback(pointer, place, place))
    await publish(house, ["g"])
    assert await listed(house, 1) == ["c", "d", "e", "g"]


async def test_who_comes_and_goes_while_pages_are_read_costs_no_look_at_all_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name that came or went had all of them sorted anew, a page at a time: 10 s for 100,000."""
    monkeypatch.setattr(producers, "_INSERTED", 1)
    monkeypatch.setattr(producers, "_SORTED_AT_ONCE", 100)
    async with opened(Disk()) as house:
        names = {f"p{number:05}" for number in range(0, PRODUCERS, 2)}
        await publish(house, sorted(names))
        fold, seen, page = counting(house), list[str](), [""]
        ended = (await house.log.producers.open(None, "nonce", "allow")).name
        stays, count = set(names), 0
        while page := await house.log.producers.names(page[-1], 10):
            seen += page
            count += 2
            if count == 20:
                await house.log.producers.end(ended, 1)
                await house.log.producers.forget("p00300")
                stays -= {"p00300"}
            await publish(house, [f"p{count * 20 + 1:05}"])
            await house.log.publish(numbered([b"x"], "p00000", count))  # that is known
            await house.log.producers.open(f"p{count * 20 + 3:05}", "nonce", "allow")
        assert seen == sorted(set(seen)), "each once, in order"
        assert stays <= set(seen)
        assert fold.looked_at == len(names), "all of them at the first page alone"
        everybody = await listed(house)
        assert fold.looked_at == len(names)
        assert everybody == sorted(set(house.log.producers.names_of_rows()) - {"p00300"} | set(fold.copy()))


async def test_names_that_were_opened_while_others_were_sorted_are_listed(house: House) -> None:
    await publish(house, [f"p{number:05}" for number in range(300)])
    pages = [asyncio.ensure_future(house.log.producers.names("", 1_000)) for _ in range(3)]
    for number in range(5):
        await house.log.producers.open(f"q{number}", "nonce", "allow")
        pages.append(asyncio.ensure_future(house.log.producers.names("", 1_000)))
    for page in await asyncio.gather(*pages):
        assert page == sorted(page)
    assert (await listed(house))[300:] == [f"q{number}" for number in range(5)]
