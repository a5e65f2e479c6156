"""A topic that is opened for somebody who has gone meanwhile."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from oncelog_service.service import Service
from tests.world.service import RunningService


def test_that_it_could_not_be_opened_for_who_has_gone_is_nobodys_unheard_error(running: RunningService) -> None:
    async def open_and_go(service: Service) -> list[dict[str, Any]]:
        unheard: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unheard.append(context))
        asking = asyncio.ensure_future(service.opening.topics.logs.open("default", "missing"))
        await asyncio.sleep(0)
        opening = next(iter(service.opening.topics.logs._opening.values()))
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.wait([opening])
        assert opening.done()
        del opening, asking
        gc.collect()
        await asyncio.sleep(0)
        loop.set_exception_handler(None)
        return unheard

    assert running.on_loop(open_and_go) == []
