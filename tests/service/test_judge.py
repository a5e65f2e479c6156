"""A producer is in one transaction at a time, and what is refused for another's sake names that other one."""

from __future__ import annotations

import pytest

from oncelog.errors import ProducerInTransaction
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType
from oncelog_service.log.limits import Limits
from oncelog_service.storage.memory import Disk
from tests.service.house import BEGIN, House, numbered, opened


async def started(house: House) -> int:
    return (await house.transactions.start(TransactionType.SHORT)).write_pointer


def under(pointer: int, first: int) -> PublishRequest:
    request = numbered([b"x"], "p", first)
    request.write_pointer = pointer
    return request


@pytest.mark.parametrize("end", ["in progress", "aborted", "invalid"])
@pytest.mark.parametrize("way", ["publish", "store"])
async def test_another_transaction_that_is_not_settled_refuses_the_request_and_not_the_requests_own_transaction(
    end: str, way: str
) -> None:
    """It had answered that the transaction is not in progress: which a client must take for its own."""
    async with opened(Disk()) as house:
        before, own = await started(house), await started(house)
        await house.log.publish(under(before, 0))
        if end != "in progress":
            await (house.transactions.abort if end == "aborted" else house.transactions.invalidate)(before)
        request = under(own, 0)
        attempt = house.log.publish if way == "publish" else house.log.store
        with pytest.raises(ProducerInTransaction) as refusal:
            await attempt(request)
        assert (refusal.value.producer, refusal.value.write_pointer) == ("p", before)
        if end == "in progress":
            await house.transactions.abort(before)
        await house.log.settle(before, committed=False)
        assert [each.status for each in (await attempt(request)).receipts] == [STORED]


async def test_an_id_that_only_a_foreign_transaction_holds_is_no_duplicate_whatever_is_settled_behind_it() -> None:
    """It was answered as one, and then it was rolled back."""
    foreign = BEGIN * POINTERS_PER_MS + 5
    async with opened(Disk(), limits=Limits(foreign_write_pointers=True)) as house:

        async def publish(first: int) -> list[str]:
            return [each.status for each in (await house.log.publish(numbered([b"x"], "p", first))).receipts]

        await publish(3)
        await house.log.publish(under(foreign, 7))
        assert await publish(9) == [STORED]
        assert await publish(3) == await publish(9) == [DUPLICATE]
        with pytest.raises(ProducerInTransaction) as refusal:
            await publish(7)
        assert refusal.value.write_pointer == foreign
        assert [each.status for each in (await house.log.publish(under(foreign, 7))).receipts] == [DUPLICATE]
        await house.log.settling.end_foreign(foreign, committed=True)
        assert await publish(7) == [DUPLICATE]


async def test_a_plain_request_settles_what_has_ended_and_goes_on() -> None:
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
