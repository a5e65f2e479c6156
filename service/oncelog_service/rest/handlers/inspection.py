"""Shows rows of a topic as they lie in its tables."""

from __future__ import annotations

from oncelog.wire.models import InspectedGroup, InspectedPayload, InspectedRow
from oncelog_service.rest.bodies import query_int, query_limit
from oncelog_service.rest.routes import Call


async def rows(call: Call) -> list[InspectedRow]:
    """The rows of the log from the offset `first` on, at most `limit`; also what was rolled back, and whole groups as one row.

    Each says its write pointer and what became of that: `in_progress`, `committed`, `rolled_back` or `invalid`; `unknown`: the
    transaction service does not know it, and it has not ended. Of payloads the beginning.
    """
    log = await call.log()
    return await log.inspection.rows(query_int(call, "first", 0), query_limit(call))


async def groups(call: Call) -> list[InspectedGroup]:
    """What is stored apart from the log, by write pointer: stored groups and what atomic commits have staged, at most `limit`."""
    log = await call.log()
    return await log.inspection.groups(query_limit(call))


async def payloads(call: Call) -> list[InspectedPayload]:
    """The payloads stored under the write pointer `under` (of an atomic commit: minus its number), in order, at most `limit`."""
    log = await call.log()
    return await log.inspection.payloads(query_int(call, "under"), query_limit(call))
