"""Is it up, what does it offer, how is it doing."""

from __future__ import annotations

import oncelog
from oncelog_service.metrics import exposition
from oncelog_service.rest.bodies import json_answer
from oncelog_service.rest.routes import Answer, Call


async def healthz(call: Call) -> Answer:
    """200 only while the store is open and read back and, where it is shared, in reach; 503 otherwise."""
    call.service.check_serves()
    topics = call.service.topics
    status = "damaged" if call.service.damaged else "ok"
    return json_answer({"status": status, "version": oncelog.__version__, "openTopics": len(topics.opened)})


async def metrics(call: Call) -> Answer:
    """Counters and gauges in Prometheus' text format."""
    body, media = exposition(call.service)
    return Answer(body, media)
