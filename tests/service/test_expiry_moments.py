"""Answers of several readers at once stand on what each of them has judged, in whatever order that gets to disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from oncelog.errors import MessagesExpired, OffsetOutOfRange
from oncelog.wire.requests import ConsumeRequest, PublishRequest
from oncelog_service.log.keep import expiry
from oncelog_service.log.read import polls, ranges
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.storage.memory import Disk
from tests.service.house import House, crashed, opened
from tests.world.clock import ManualClock


async def _delivered(house: House) -> int:
    house.log.change(replace(house.log.row, properties={"ttl": "60"}))
    return len((await house.log.poll(ConsumeRequest(), AS_ONCELOG)).messages)


async def test_a_reader_that_was_held_up_undoes_no_later_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked when one message had expired and wrote that down behind a reader for whom both had. Over a restart with the
    clock set back the second one was delivered again."""
    disk, clock = Disk(), ManualClock()
    held_up, go_on = asyncio.Event(), asyncio.Event()
    read = expiry.read  # type: ignore[attr-defined]

    async def held_up_once(call: Callable[..., Any], *args: Any) -> Any:
        found = await read(call, *args)
        if not held_up.is_set():
            held_up.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(expiry, "read", held_up_once)
    async with opened(disk, clock) as house:
        await house.log.publish(PublishRequest([b"first"]))
        clock.advance(20_000)
        await house.log.publish(PublishRequest([b"second"]))
        clock.advance(41_000)
        early = asyncio.ensure_future(_delivered(house))
        await held_up.wait()
        clock.advance(30_000)
        assert await _delivered(house) == 0
        go_on.set()
        await early
        after = crashed(disk)
    clock.advance(-3_600_000)
    async with opened(after, clock) as house:
        assert await _delivered(house) == 0


@pytest.mark.parametrize("refuse", [False, True])
async def test_a_reader_that_is_to_be_told_of_losses_is_told_of_those_within_a_page(
    monkeypatch: pytest.MonkeyPatch, refuse: bool
) -> None:
    """What expired between two slices of it was passed over, and the reader went on behind."""
    monkeypatch.setattr(polls, "_CACHED_ROWS", 2)
    clock = ManualClock()

    async def between_two_slices() -> None:
        clock.advance(35_000)

    async with opened(Disk(), clock) as house:
        house.log.change(replace(house.log.row, properties={"ttl": "61"}))
        for _ in range(6):
            await house.log.publish(PublishRequest([b""]))
            clock.advance(10_000)
        between = asyncio.ensure_future(between_two_slices())
        poll = house.log.poll(ConsumeRequest(start_offset=0, refuse_expired=refuse), AS_ONCELOG)
        if refuse:
            with pytest.raises(MessagesExpired) as refusal:
                await poll
            assert (refusal.value.first, refusal.value.earliest) == (0, 4)
        else:
            assert len((await poll).messages) == 4
        await between


@pytest.mark.parametrize("refuse", [False, True])
async def test_a_range_that_retention_shortened_while_it_was_read_is_refused_where_losses_are_to_be_told(
    house: House, monkeypatch: pytest.MonkeyPatch, refuse: bool
) -> None:
    await house.log.publish(PublishRequest([b""] * 4))
    encoded = ranges._encoded_columns

    def overtaken(*args: Any) -> bytes:
        house.log.topic.earliest_offset = 2
        return encoded(*args)

    monkeypatch.setattr(ranges, "_encoded_columns", overtaken)
    read = house.log.ranges.columns(0, 4, refuse_expired=refuse)
    if refuse:
        with pytest.raises(OffsetOutOfRange):
            await read
    else:
        assert await read
