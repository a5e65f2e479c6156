"""Is it up, what does it offer, how is it doing."""

from __future__ import annotations

from typing import Any

import oncelog
from oncelog.errors import InvalidRequest
from oncelog.wire.overview import Alarms, Overview
from oncelog_service import health
from oncelog_service.metrics.exposition import exposition
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.bodies import query_int
from oncelog_service.rest.routes import Call


async def healthz(call: Call) -> dict[str, Any]:
    """200 only while the store is open and read back, answers and, where it is shared, is in reach; 503 otherwise.

    A disk that is nearly full, or full so that nothing more is taken in, ends no reading, nor does a failing task: both are said,
    and no load balancer takes the service away for it.
    """
    health.check_answers(call.service)
    opened = len(call.service.opening.topics.logs.opened)
    failing = call.service.background.failing
    room = call.service.room
    found: dict[str, Any] = {
        "status": health.status(call.service),
        "version": oncelog.__version__,
        "openTopics": opened,
    }
    if room.state != "ok":
        found["disk"] = {"state": room.state, "freeBytes": room.free, "minFreeBytes": room.floor}
    return {**found, "failing": failing} if failing else found


async def livez(call: Call) -> dict[str, str]:
    """200 as long as the process answers at all, whatever becomes of its store: no reason to end it."""
    return {"status": "ok"}


async def readyz(call: Call) -> dict[str, str]:
    """200 while requests are to be sent here: the store is open and read back, answers and, where it is shared, is in reach;
    writes are taken; it is not about to stop. 503 otherwise.

    A full disk is said, and refuses what adds messages, but ends no reading, acknowledging and deleting: it stays ready.
    """
    health.check_ready(call.service)
    return {"status": health.status(call.service)}


async def metrics(call: Call) -> Answer:
    """Counters, gauges and histograms in Prometheus' text format."""
    body, media = await exposition(call.service)
    return Answer(body, media)


async def alarms(call: Call) -> Alarms:
    """What is wrong, the most severe first: since when, with its figures, and the commands that end it.

    Also with the other instances over the store; with `here=true` only of the one that is asked. It answers while the store is
    closed, too, and says why that is. Judged at most once in a second.
    """
    found, seen = await call.watch.alarms(here=call.query.get("here", "false") == "true")
    return Alarms(now_ms=call.service.clock.now_ms(), alarms=found, topics_seen=seen)


async def overview(call: Call) -> Overview:
    """What a first page shows in one answer: rates, latency, disk, the busiest topics, alarms, and half an hour of samples.

    With `after`, the number of a sample, only those behind it; with `wait` (ms) it is answered when there is one.
    """
    after, wait_ms = query_int(call, "after", 0), query_int(call, "wait", 0)
    if after < 0 or wait_ms < 0:
        raise InvalidRequest("after is the number of a sample, and wait is 0 ms or more")
    return await call.watch.overview(after, min(wait_ms, call.service.settings.max_wait_ms))
