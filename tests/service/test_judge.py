"""What a producer's request is judged by holds when its messages are handed over: its epoch, and the producer's transactions.

A producer is in one transaction at a time, and what is refused for another's sake names that other one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from oncelog.errors import ProducerFenced, ProducerInTransaction
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.log.limits import Limits
from oncelog_service.log.settling import Settling
from oncelog_service.storage.memory import Disk
from tests.patience import PATIENCE
from tests.service.house import BEGIN, House, numbered, opened, turns


def under(pointer: int, first: int) -> PublishRequest:
    request = numbered([b"x"], "p", first)
    request.write_pointer = pointer
    return request


@pytest.mark.parametrize("end", ["in progress", "aborted", "invalid"])
@pytest.mark.parametrize("way", ["publish", "store"])
async def test_another_transaction_that_is_not_settled_refuses_the_request_and_not_the_requests_own_transaction(
    house: House, end: str, way: str
) -> None:
    """It had answered that the transaction is not in progress: which a client must take for its own."""
    before, own = await house.start(), await house.start()
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

        async def refused(first: int) -> None:
            with pytest.raises(ProducerInTransaction) as refusal:
                await publish(first)
            assert refusal.value.write_pointer == foreign

        await publish(3)
        await house.log.publish(under(foreign, 7))
        await refused(7)
        resumed = await house.log.producers.open("p", "n", "allow")
        assert resumed.last_sequence_id == 3, "what is undecided may yet be rolled back"
        assert await publish(9) == [STORED]
        assert await publish(3) == await publish(9) == [DUPLICATE]
        await refused(7)
        assert [each.status for each in (await house.log.publish(under(foreign, 7))).receipts] == [DUPLICATE]
        await house.log.settling.end_foreign(foreign, committed=True)
        assert await publish(7) == [DUPLICATE]


async def test_a_request_that_waited_for_the_disk_while_its_producer_was_opened_anew_is_fenced() -> None:
    """The new incarnation was told how far the producer has come: nothing may be stored behind its back."""
    looks, goes = threading.Event(), threading.Event()
    async with opened(Disk()) as house:
        epoch = (await house.log.producers.open("p", "n", "allow")).epoch
        await house.log.publish(numbered([b"0"], "p", 0))
        scan = house.store.scan

        def held_up(*asked: Any, **how: Any) -> Iterator[tuple[bytes, bytes]]:
            looks.set()
            assert goes.wait(PATIENCE)
            return scan(*asked, **how)

        house.store.scan = held_up  # type: ignore[assignment, method-assign]
        request = numbered([b"0", b"1"], "p", 0)
        request.epoch = epoch
        again = asyncio.ensure_future(house.log.publish(request))
        assert await asyncio.to_thread(looks.wait, PATIENCE)
        opening = asyncio.ensure_future(house.log.producers.open("p", "m", "allow"))
        await turns()
        assert house.log.producers.show("p").epoch == epoch + 1
        goes.set()
        with pytest.raises(ProducerFenced):
            await again
        assert (await opening).last_sequence_id == house.log.producers.show("p").last_pushed == 0


async def test_a_request_that_waited_for_a_settlement_while_its_producer_was_opened_anew_is_fenced(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, goes = house.log, asyncio.Event()
    epoch = (await log.producers.open("p", "n", "allow")).epoch
    pointer = await house.start()
    await log.publish(replace(under(pointer, 0), epoch=epoch))
    await house.transactions.commit(pointer)
    settle_ended = Settling.settle_ended

    async def held_up(*asked: Any, **how: Any) -> Any:
        monkeypatch.undo()
        found = await settle_ended(*asked, **how)
        await goes.wait()
        return found

    monkeypatch.setattr(Settling, "settle_ended", held_up)
    late = asyncio.ensure_future(log.publish(replace(numbered([b"1"], "p", 1), epoch=epoch)))
    await turns()
    await log.producers.open("p", "m", "allow")
    goes.set()
    with pytest.raises(ProducerFenced):
        await late
    assert log.position.upcoming_offset == 1
