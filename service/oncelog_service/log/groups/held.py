"""Describes what a topic holds back: messages of transactions that are not decided, and everything behind them.

Consumers, Spark, snapshots and retention all end before the first of these messages. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oncelog.wire.models import HeldMessages
from oncelog_dedup import Run
from oncelog_service.storage.keys import split_row_id


def held_messages(unsettled: Mapping[int, Sequence[Run]], limit: int | None = None) -> Iterator[HeldMessages]:
    """Makes one entry for each write pointer, in the order of their first messages: the first one is what stops everybody. What
    is held when the first one is asked for is what counts."""
    first = sorted(unsettled.items(), key=lambda each: each[1][0].first_offset)[:limit]
    for pointer, runs in [(pointer, (*runs,)) for pointer, runs in first]:
        yield _held(pointer, runs)


def count_held(unsettled: Mapping[int, Sequence[Run]]) -> int:
    """Returns how many messages are held back."""
    return sum(run.count for runs in unsettled.values() for run in runs)


def _held(pointer: int, runs: Sequence[Run]) -> HeldMessages:
    since_ms, _ = split_row_id(runs[0].first_id)
    return HeldMessages(
        write_pointer=pointer,
        since_ms=since_ms,
        first_offset=runs[0].first_offset,
        messages=sum(run.count for run in runs),
        producers=sorted({producer for run in runs for producer, _ in run.last_entries}),
    )
