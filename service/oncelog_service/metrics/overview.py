"""What is true of all open topics together. There may be ten thousand: others have their turns between one few and the next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice

from oncelog_service.counting.topics import TopicName
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.storage.keys import split_row_id

_AT_ONCE = 250
"""Topics that are looked at in one turn of the event loop: 1 ms."""

Lag = tuple[int, str, str, str]
"""(lag, namespace, topic, subscription)."""


@dataclass(slots=True)
class Overview:
    """The open topics, as each was when it was looked at."""

    now_ms: int
    most_lags: int
    unsnapshotted: int = 0
    """Messages that no snapshot has."""
    snapshot_age: float = 0.0
    """Seconds for which a topic has had such messages, of all the longest."""
    subscriptions: int = 0
    lags: list[Lag] = field(default_factory=list)
    """Of those that are farthest behind, the farthest first."""
    held: int = 0
    """Topics that hold something back."""
    held_seconds: float = 0.0
    """For how long the oldest of it has been."""

    def add(self, logs: Mapping[TopicName, TopicLog]) -> None:
        """Looks at some more of them."""
        lags = self.lags
        for (namespace, topic), log in logs.items():
            self.unsnapshotted += log.snapshots.behind
            self.snapshot_age = max(self.snapshot_age, log.snapshots.age())
            before = len(lags)
            lags += ((lag, namespace, topic, name) for name, lag in log.subscriptions.lags())
            self.subscriptions += len(lags) - before
            held = log.ranges.held_from
            if held is not None:
                self.held += 1
                self.held_seconds = max(self.held_seconds, (self.now_ms - split_row_id(held.first_id)[0]) / 1000)
        self.lags = nlargest(max(1, self.most_lags), lags)


async def look_over(opened: Mapping[TopicName, TopicLog], now_ms: int, most_lags: int) -> Overview:
    """Looks at all of them; of one that is opened or closed meanwhile it may say nothing, or what was."""
    overview = Overview(now_ms, most_lags)
    left = iter([*opened.items()])
    while some := dict(islice(left, _AT_ONCE)):
        overview.add(some)
        await asyncio.sleep(0)
    return overview
