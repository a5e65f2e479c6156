"""What a topic may take is never passed, whatever happens to it: by a model that counts what is there again at each step."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import QuotaExceeded
from oncelog.wire.requests import PublishRequest
from oncelog_service.bounds.size import MaxBytes
from oncelog_service.log.append.log_end import columns_of
from oncelog_service.log.scan import bytes_in, runs_from
from oncelog_service.storage.keys import FIRST_ROW_ID
from oncelog_service.storage.payload_rows import encode_payloads
from oncelog_service.storage.rows import encode_messages
from tests.behaviours.test_removal_at_random import BEGIN, Run, lives
from tests.examples import examples
from tests.service.house import PREFIX

ERASED = 60
"""Bytes by which a message may have grown that says no more than that it is erased."""


class Limited(Run):
    """A log that may take so many bytes."""

    limit: MaxBytes
    ends: dict[int, int]
    """The offset behind each run that there was -> its bytes when it was seen last."""

    def __init__(self, limit: MaxBytes) -> None:
        super().__init__(limit)
        self.ends = {}
        self.refused = 0

    # --- what is refused

    def _held(self) -> int:
        """What counts, as the limit is judged."""
        return self._bytes(self._house.log.ranges.stable if self.limit.trims else self.model.begin)

    async def _within(self, size: int, call: Any) -> bool:
        """Do what brings so many bytes: it is refused where they are too many, and changes nothing then. Whether it was done."""
        held, before = self._held(), self._house.log.topic.stamps.upcoming_offset
        refused: Any = (await asyncio.gather(call, return_exceptions=True))[0]
        if isinstance(refused, QuotaExceeded):
            assert (refused.quota, refused.limit, refused.retry_after_ms) == ("max.bytes", self.limit.bytes, None)
            assert held + size > self.limit.bytes, "there was room"
            assert self._house.log.topic.stamps.upcoming_offset == before
            self.refused += 1
            return False
        assert not isinstance(refused, BaseException), refused
        assert held + size <= self.limit.bytes or not size, "there was none"
        return True

    async def _publish(self, count: int, named: bool) -> None:
        written, request = self._messages(count, named=named)
        if await self._within(self._size(request), self._house.log.publish(request)):
            self._appear(written)
            if named:
                self.sent.append(request)
                self.next_id += count

    async def _transact(self, count: int, stored: bool) -> None:
        pointer = await self._start()
        written, request = self._messages(count, pointer)
        if stored:
            size = encode_payloads(columns_of(request, 0, None)).total
            if not await self._within(size, self._house.log.store(request)):
                return
            await self._house.log.publish(PublishRequest([], write_pointer=pointer))
        elif not await self._within(self._size(request), self._house.log.publish(request)):
            return
        self.model.undecided.add(pointer)
        self._appear(written)

    def _size(self, request: PublishRequest) -> int:
        ids = [FIRST_ROW_ID] * len(request.payloads)
        return encode_messages(columns_of(request, 0, None), ids, len(self.model.log)).total

    # --- what is trimmed

    async def _settled(self) -> None:
        log, model = self._house.log, self.model
        await log.trimming.stop()
        runs = self._runs()
        self.ends |= runs
        if not self.limit.trims:
            return
        begin, present = log.begin_offset, log.topic.size.present
        if begin == model.begin:
            last = max(runs, default=0)
            stuck = [end for end in runs if begin < end <= log.ranges.stable and end != last]
            assert present <= self.limit.bytes or not stuck, "what could go did not"
            return
        assert model.begin < begin <= model.stable
        assert begin in self.ends, "a run is trimmed as a whole"
        assert begin < len(model.log), "and never the last one"
        spare = self.limit.bytes - self.limit.bytes // 16
        assert present + self.ends[begin] + ERASED > spare, "no more than it takes, and a sixteenth"
        model.begin = begin

    def _runs(self) -> dict[int, int]:
        with closing(runs_from(self._house.store, PREFIX, FIRST_ROW_ID)) as runs:
            return {run.end: bytes_in(self._house.store, PREFIX, run) or 0 for run in runs if run.count}


@examples(10)
@given(st.lists(lives, min_size=1, max_size=4), st.integers(1, 2_500), st.booleans())
def test_a_topic_never_takes_more_than_it_may(found: list[Any], limit: int, trims: bool) -> None:
    asyncio.run(Limited(MaxBytes(limit, trims)).through([BEGIN, *found]))
