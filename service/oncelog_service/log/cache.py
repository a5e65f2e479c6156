"""Recent messages in memory, so that readers near the end cost no read of the store. Bounded in bytes over all topics.

A topic's cache is contiguous up to the end of its log: it is filled by publishing alone, what was written first leaves first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, MutableSequence, Sequence
from typing import NamedTuple

_OBJECT_OVERHEAD = 160
"""Bytes CPython spends per message beside its row: two bytes objects' heads, the row id, list slots."""


class _Block(NamedTuple):
    row_ids: Sequence[bytes]
    rows: MutableSequence[bytes]
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

    def __init__(self, budget: RecentMessages) -> None:
        self._budget = budget
        self._blocks = _NO_BLOCKS
        self.messages = 0
        """How many messages are held."""

    def append(self, row_ids: Sequence[bytes], rows: MutableSequence[bytes]) -> None:
        """Hold the rows of a write, which follow directly on what is held."""
        size = sum(map(len, rows)) + _OBJECT_OVERHEAD * len(rows)
        if not self._blocks:
            self._blocks = deque()
        self._blocks.append(_Block(row_ids, rows, size))
        self.messages += len(rows)
        self._budget._added(self, size)

    def covers(self, start: bytes) -> bool:
        """Whether every message at or after the key ``start`` is here."""
        return bool(self._blocks) and self._blocks[0].row_ids[0] <= start

    def rows(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(row id, row) from ``start`` on, rising. Only after :meth:`covers`, and without a pause in between."""
        first = self._block_of(start)
        for index in range(first, len(self._blocks)):
            block = self._blocks[index]
            at = bisect_left(block.row_ids, start) if index == first else 0
            yield from zip(block.row_ids[at:], block.rows[at:], strict=True)

    def replace(self, row_ids: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Hold these rows for the ones with the same ids (and of the same size) that are held, if they are."""
        for row_id, row in zip(row_ids, rows, strict=True):
            index = self._block_of(row_id)
            if index < len(self._blocks):
                block = self._blocks[index]
                at = bisect_left(block.row_ids, row_id)
                if block.row_ids[at] == row_id:
                    block.rows[at] = row

    def clear(self) -> None:
        """Let everything go."""
        blocks, self._blocks = self._blocks, _NO_BLOCKS
        self.messages = 0
        self._budget._cleared(blocks)

    def _block_of(self, start: bytes) -> int:
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle].row_ids[-1] < start:
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
        self.messages -= len(block.rows)
        return block.size
