"""Whoever is refused because a transaction has ended is told so when its end is on disk, so that no crash takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from oncelog.errors import StorageFailed, StorageUnavailable, TransactionNotInProgress
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Batch
from tests.patience import PATIENCE
from tests.service.house import opened

CALLS = {"publish": ("publish", [b"late"]), "store": ("store", [b"late"]), "publish what is stored": ("publish", [])}


@pytest.mark.parametrize("end", ["commit", "abort", "invalidate"])
@pytest.mark.parametrize("call", CALLS)
def test_nobody_is_told_of_an_end_that_may_not_reach_the_disk(call: str, end: str) -> None:
    method, payloads = CALLS[call]

    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, clean=False) as house:
            pointer = (await house.transactions.start(TransactionType.SHORT)).write_pointer
            late = PublishRequest(payloads, write_pointer=pointer)
            await house.log.store(PublishRequest([b"stored"], write_pointer=pointer))
            disk.before_sync = fail
            ending = asyncio.ensure_future(getattr(house.transactions, end)(pointer))
            await asyncio.sleep(0)  # it is decided, and not on disk
            with pytest.raises(StorageUnavailable):
                await getattr(house.log, method)(late)
            with pytest.raises(StorageFailed):
                await ending
        disk.before_sync = None
        async with opened(disk, clean=False) as house:
            assert (await house.transactions.show(pointer)).state == "in_progress"
            await getattr(house.log, method)(late)
            await getattr(house.transactions, end)(pointer)
            with pytest.raises(TransactionNotInProgress):
                await getattr(house.log, method)(late)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def fail(_: Sequence[Batch]) -> None:
    raise OSError("no space left on device")
