"""A producer is in one transaction at a time, and what is refused for another's sake names that other one."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.errors import ProducerInTransaction
from oncelog.wire.requests import STORED, PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.memory import Disk
from tests.service.house import House, numbered, opened


async def started(house: House) -> int:
    return (await house.transactions.start(TransactionType.SHORT)).write_pointer


def under(pointer: int, first: int) -> PublishRequest:
    request = numbered([b"x"], "p", first)
    request.write_pointer = pointer
    return request


@pytest.mark.parametrize("end", ["in progress", "aborted", "invalid"])
@pytest.mark.parametrize("way", ["publish", "store"])
def test_another_transaction_that_is_not_settled_refuses_the_request_and_not_the_requests_own_transaction(
    end: str, way: str
) -> None:
    """It had answered that the transaction is not in progress: which a client must take for its own."""

    async def scenario() -> None:
        async with opened(Disk()) as house:
            before, own = await started(house), await started(house)
            await house.log.publish(under(before, 0))
            if end != "in progress":
                await (house.transactions.abort if end == "aborted" else house.transactions.invalidate)(before)
            request = under(own, 0)
            attempt = house.log.publish if way == "publish" else house.log.store
            with pytest.raises(ProducerInTransaction) as refusal:
                await attempt(request)
            assert refusal.value.write_pointer == before
            if end == "in progress":
                await house.transactions.abort(before)
            await house.log.settle(before, committed=False)
            assert [each.status for each in (await attempt(request)).receipts] == [STORED]

    asyncio.run(scenario())


def test_a_plain_request_settles_what_has_ended_and_goes_on() -> None:
    async def scenario() -> None:
        async with opened(Disk()) as house:
            for number, end in enumerate((house.transactions.abort, house.transactions.commit)):
                pointer = await started(house)
                await house.log.publish(under(pointer, number))
                with pytest.raises(ProducerInTransaction):
                    await house.log.publish(numbered([b"x"], "p", number))
                await end(pointer)
                answer = await house.log.publish(numbered([b"x"], "p", number + (end == house.transactions.commit)))
                assert [each.status for each in answer.receipts] == [STORED]
            assert not house.log.dedup.fold.unsettled

    asyncio.run(scenario())
