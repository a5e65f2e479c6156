"""Is it up, what does it offer, how is it doing."""

from __future__ import annotations

from typing import Any

import oncelog
from oncelog_service.metrics import exposition
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.routes import Call


async def healthz(call: Call) -> dict[str, Any]:
    """200 only while the store is open and read back and, where it is shared, in reach; 503 otherwise.

    A disk that is nearly full, or full so that nothing more is taken in, ends no reading, nor does a failing task: both are said,
    and no load balancer takes the service away for it.
    """
    call.service.check_serves()
    topics = call.service.topics
    failing = call.service.background.failing
    room = call.service.room
    status = "damaged" if call.service.damaged else "full" if room.state == "full" else "failing" if failing else "ok"
    found: dict[str, Any] = {"status": status, "version": oncelog.__version__, "openTopics": len(topics.opened)}
    if room.state != "ok":
        found["disk"] = {"state": room.state, "freeBytes": room.free, "minFreeBytes": room.floor}
    return {**found, "failing": failing} if failing else found


async def metrics(call: Call) -> Answer:
    """Counters and gauges in Prometheus' text format."""
    body, media = exposition(call.service)
    return Answer(body, media)
