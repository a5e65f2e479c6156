"""Answers of several readers at once stand on what each of them has judged, in whatever order that gets to disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from oncelog.wire.requests import ConsumeRequest, PublishRequest
from oncelog_service.log.keep import expiry
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.storage.memory import Disk
from tests.service.house import House, crashed, opened
from tests.support import ManualClock


async def _delivered(house: House) -> int:
    house.log.change(replace(house.log.row, properties={"ttl": "60"}))
    return len((await house.log.poll(ConsumeRequest(), AS_ONCELOG)).messages)


def test_a_reader_that_was_held_up_undoes_no_later_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked when one message had expired and wrote that down behind a reader for whom both had. Over a restart with the
    clock set back the second one was delivered again."""

    async def scenario() -> None:
        disk, clock = Disk(), ManualClock()
        held_up, go_on = asyncio.Event(), asyncio.Event()
        read = expiry.read

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

    asyncio.run(scenario())
