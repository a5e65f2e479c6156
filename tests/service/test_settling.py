"""A roll-back holds no more in memory than it must, however large the messages are (log/settling.py)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from oncelog.wire.requests import PublishRequest
from oncelog_service.log import settling
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch
from tests.service.house import crashed, opened
from tests.world.polls import read_all

SIZE = 1_000


class Weighed(MemoryStore):
    """Notes how many rows each write rewrites."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.puts: list[int] = []

    def write(self, batches: Sequence[Batch]) -> None:
        self.puts.append(sum(len(value) >= SIZE for batch in batches for _, _, value in batch.puts))
        super().write(batches)


@pytest.mark.parametrize("at_once", [1, 3 * SIZE, 2**40])
async def test_large_messages_are_rolled_back_some_at_a_time(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(settling, "_BYTES_AT_ONCE", at_once)
    disk = Disk()
    store = Weighed(disk)
    async with opened(disk, clean=False, store=store) as house:
        pointer = await house.start()
        for _ in range(10):
            await house.log.publish(PublishRequest([b"." * SIZE], write_pointer=pointer))
        await house.log.publish(PublishRequest([b"behind"]))
        store.puts.clear()
        await house.transactions.abort(pointer)
        await house.log.settle(pointer, False)
        assert (sum(store.puts), max(store.puts)) == (10, {1: 1, 3 * SIZE: 3}.get(at_once, 10))
        assert house.log.ranges.stable == 11
    async with opened(crashed(disk)) as house:
        assert house.log.ranges.stable == 11
        assert [each.payload for each in await read_all(house.log)][-1] == b"behind"
