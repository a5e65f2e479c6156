"""Recent messages in memory, so that readers near the end cost no read of the store. Bounded in bytes over all topics.

A topic's cache is contiguous up to the end of its log: it is filled by publishing alone, what was written first leaves first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oncelog_service.storage.runs import StoredRun

_OBJECT_OVERHEAD = 400
"""Bytes CPython spends on a run beside its row."""


class _Block(NamedTuple):
    runs: list[StoredRun]
    messages: int
    size: int


_NO_BLOCKS: deque[_Block] = deque(maxlen=0)
"""Of every topic without a message in memory: a deque takes 600 bytes of each."""


class RecentMessages:
    """The budget that the caches of all topics share."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._order: deque[TopicCache] = deque()
        self._stale = 0
        self.size = 0
        """Bytes held now, overhead included."""

    def topic(self) -> TopicCache:
        """An empty cache for one topic."""
        return TopicCache(self)

    def _added(self, cache: TopicCache, size: int) -> None:
        self.size += size
        self._order.append(cache)
        while self.size > self._max_bytes and self._order:
            self.size -= self._order.popleft()._drop_oldest()

    def _cleared(self, blocks: Sequence[_Block]) -> None:
        self.size -= sum(block.size for block in blocks)
        self._stale += len(blocks)
        if 2 * self._stale > len(self._order):  # so that a topic's end costs no walk over all turns, nor its turns stay for ever
            self._order = deque(cache for cache in self._order if cache._blocks)
            self._stale = 0


class TopicCache:
    """The newest messages of one topic, in blocks of what was written together."""

    __slots__ = ("_blocks", "_budget", "messages")

    def __init__(self, budget: RecentMessages) -> None:
        self._budget = budget
        self._blocks = _NO_BLOCKS
        self.messages = 0
        """How many messages are held."""

    def append(self, runs: list[StoredRun]) -> None:
        """Hold the runs of a write, which follow directly on what is held."""
        size = sum(len(run.data) + _OBJECT_OVERHEAD for run in runs)
        messages = sum(map(len, runs))
        if not self._blocks:
            self._blocks = deque()
        self._blocks.append(_Block(runs, messages, size))
        self.messages += messages
        self._budget._added(self, size)

    def covers(self, start: bytes) -> bool:
        """Whether every message at or after the key ``start`` is here."""
        return bool(self._blocks) and self._blocks[0].runs[0].first_id <= start

    def runs(self, start: bytes) -> Iterator[StoredRun]:
        """Those with messages from ``start`` on, rising. Only after :meth:`covers`, and without a pause in between."""
        first = self._block_of(start)
        for index in range(first, len(self._blocks)):
            runs = self._blocks[index].runs
            yield from runs[bisect_left(runs, start, key=_id) if index == first else 0 :]

    def replace(self, runs: Sequence[StoredRun]) -> None:
        """Hold these runs for the ones with the same ids (and of the same size) that are held, if they are."""
        for run in runs:
            index = self._block_of(run.id)
            if index < len(self._blocks):
                held = self._blocks[index].runs
                at = bisect_left(held, run.id, key=_id)
                if held[at].id == run.id:
                    held[at] = run

    def clear(self) -> None:
        """Let everything go."""
        blocks, self._blocks = self._blocks, _NO_BLOCKS
        self.messages = 0
        self._budget._cleared(blocks)

    def _block_of(self, start: bytes) -> int:
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle].runs[-1].id < start:
                low = middle + 1
            else:
                high = middle
        return low

    def _drop_oldest(self) -> int:
        if not self._blocks:
            return 0
        block = self._blocks.popleft()
        if not self._blocks:
            self._blocks = _NO_BLOCKS
        self.messages -= block.messages
        return block.size


def _id(run: StoredRun) -> bytes:
    return run.id
