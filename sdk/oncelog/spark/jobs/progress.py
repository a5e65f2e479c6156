"""How far streaming queries are: batches, rows and lag, as Spark's own progress has them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS = 0.5
"""Spark keeps the last 100 batches of a query, and none takes less than 50 ms: no batch is missed."""

START_SECONDS = 300.0
"""How long a query is started again whose processes are too slow."""
_TOO_SLOW = "failed to connect back"
"""Spark gives a Python process 10 seconds to start, for good and all: on a busy machine that is not always enough."""


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query that has begun. Several are started one after the other so, and their processes do not hold each other up.

    A Python process of it that was too slow to start is no reason to fail: nothing was done, and it is started again.
    """
    end = time.monotonic() + START_SECONDS
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.05)
        if _TOO_SLOW not in str(query.exception()) or time.monotonic() > end:
            return query


@dataclass(frozen=True, slots=True)
class Progress:
    """What a query has done since this process started it."""

    batch: int | None = None
    """Number of the newest finished batch, as the checkpoint counts them; None before the first one."""
    batches: int = 0
    """Those that had rows."""
    rows: int = 0
    """Read from its sources."""
    lag: int | None = None
    """Offsets of its topics that are stable and were not read; None where no source is a topic."""

    def after(self, batches: Sequence[Mapping[str, Any]]) -> Progress:
        """With further batches, as Spark's progress has them; those that are known already do not count again."""
        now = self
        for entry in batches:
            number, rows = int(entry["batchId"]), int(entry.get("numInputRows") or 0)
            if now.batch is None or number > now.batch:
                now = Progress(number, now.batches + (rows > 0), now.rows + rows)
            if now.batch == number:  # an idle query has its last batch among the newest again
                now = replace(now, lag=lag(entry))
        return now


def lag(progress: Mapping[str, Any]) -> int | None:
    """How many offsets the topics of a query are ahead of what it has read, by one entry of its progress."""
    lags = []
    for source in progress.get("sources", []):
        latest, read = _positions(source.get("latestOffset")), _positions(source.get("endOffset")) or {}
        if latest is not None:
            lags.append(sum(max(0, position - read.get(topic, 0)) for topic, position in latest.items()))
    return sum(lags) if lags else None


def _positions(offset: Any) -> dict[str, int] | None:
    """Topic → position, of an offset of this package's source; None of any other."""
    if isinstance(offset, str):
        with suppress(ValueError):
            offset = json.loads(offset)
    topics = offset.get("topics") if isinstance(offset, dict) else None
    if not isinstance(topics, dict):
        return None
    return {topic: one["pos"] for topic, one in topics.items() if isinstance(one, dict) and "pos" in one}


def follow(
    queries: Mapping[str, StreamingQuery], on_progress: Callable[[dict[str, Progress]], None] = lambda _: None
) -> dict[str, Progress]:
    """Wait until all queries have ended by themselves, and say how far they are meanwhile; their last progress.

    When one fails, or this is interrupted, all are stopped. Raises StreamingQueryException: the first failed one's.
    """
    found = {name: Progress() for name in queries}
    try:
        running = True
        while running:
            running = any(query.isActive for query in queries.values())
            found = {
                name: found[name].after([json.loads(each.json) for each in query.recentProgress])
                for name, query in queries.items()
            }
            on_progress(found)
            for query in queries.values():
                if not query.isActive:
                    query.awaitTermination()  # raises what it failed with
            if running:
                time.sleep(LOOK_SECONDS)
    finally:
        for query in queries.values():
            query.stop()
    return found
