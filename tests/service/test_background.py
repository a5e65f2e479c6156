"""What runs in the background goes on after an error that nobody foresaw: else its work waits for a restart."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from oncelog_service import settlement
from oncelog_service.retention import Retention
from oncelog_service.settlement import SettlementTask
from tests.patience import PATIENCE
from tests.support import ManualClock

NOBODY: Any = None


def tasks() -> list[Retention | SettlementTask]:
    clock = ManualClock()
    return [
        Retention(NOBODY, lambda _: False, NOBODY, clock, 0.0, 1),
        SettlementTask(NOBODY, NOBODY, clock),
    ]


@pytest.mark.parametrize("index", [0, 1], ids=["retention", "settlement"])
def test_an_error_that_nobody_foresaw_ends_no_background_task(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "_PAUSE_SECONDS", 0.0)

    async def scenario() -> None:
        task = tasks()[index]
        again = asyncio.Event()
        rounds = 0

        async def once(*_: object) -> int:
            nonlocal rounds
            rounds += 1
            if rounds == 1:
                raise ValueError("a bug")
            again.set()
            return 0

        cast(Any, task).once = once
        running = asyncio.create_task(task.run())
        waiting = asyncio.create_task(again.wait())
        await asyncio.wait([running, waiting], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert again.is_set()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
