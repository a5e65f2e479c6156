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

PRODUCERS = 2_000


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


async def test_200_pages_look_at_each_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "_SORTED_AT_ONCE", 300)
    async with opened(Disk()) as house:
        names = [f"p{number * 7 % PRODUCERS:05}" for number in range(PRODUCERS)]
        await publish(house, names)
        fold = counting(house)
        assert await listed(house) == sorted(names)
        assert fold.looked_at == PRODUCERS
        await house.log.publish(numbered([b"x"], names[0], 1))
        assert await listed(house) == sorted(names)
        assert fold.looked_at == PRODUCERS, "another message of a producer that is known changes no list"


async def test_the_list_follows_who_comes_and_goes() -> None:
    """Also one that comes when another one goes, so that they are as many as before."""
    async with opened(Disk()) as house:
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
        pointer = (await house.transactions.start(TransactionType.LONG)).write_pointer
        answer = await house.log.publish(PublishRequest([b"x"], "f", sequence_ids=[0], write_pointer=pointer))
        assert await listed(house, 1) == ["c", "d", "e", "f"]
        place = answer.start_timestamp, answer.start_sequence_id
        await house.log.roll_back(Rollback(pointer, place, place))
        await publish(house, ["g"])
        assert await listed(house, 1) == ["c", "d", "e", "g"]
