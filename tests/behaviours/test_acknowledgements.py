"""A topic's acknowledgement that a transaction has ended is lost, or told although the topic has done nothing (CONTRACT §4).

The invariant: whatever becomes of that word, nothing stays held or undecided for ever, and nothing of an aborted transaction
appears, to whoever reads in whatever way, at any moment.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any, Literal, TypeAlias, get_args

import pytest

from oncelog.errors import StorageUnavailable, TransactionsUnavailable
from oncelog.wire.models import Settlement
from oncelog_service.group_commit import Writer
from oncelog_service.renewal import further_incarnation
from oncelog_service.service import Service
from oncelog_service.settlement import ASK_SECONDS, SettlementTask
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.remote import RemoteTransactions
from tests.patience import until
from tests.world.clock import ManualClock
from tests.world.disk import crashed, opened
from tests.world.house import HOUR, SECOND, House
from tests.world.service import running_service

How: TypeAlias = Literal["request lost", "answer lost", "caller killed", "told wrongly"]


class Losing:
    """The first acknowledgement of a transaction that ``transactions`` is told goes wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, transactions: type[Any], how: How) -> None:
        self.pointers: list[int] = []
        self._how = how
        self._acknowledge, self._settle = transactions.acknowledge, SettlementTask._settle
        if how == "told wrongly":
            monkeypatch.setattr(SettlementTask, "_settle", lambda task, each: self._settled(task, each))
        else:
            monkeypatch.setattr(
                transactions, "acknowledge", lambda asked, pointer, name: self._acknowledged(asked, pointer, name)
            )

    async def _settled(self, task: SettlementTask, each: Settlement) -> bool:
        if each.write_pointer in self.pointers:
            return await self._settle(task, each)
        self.pointers.append(each.write_pointer)
        return True

    async def _acknowledged(self, asked: Any, pointer: int, participant: str) -> None:
        first = pointer not in self.pointers
        if not first or self._how == "answer lost":
            await self._acknowledge(asked, pointer, participant)
        if first:
            self.pointers.append(pointer)
            if self._how == "caller killed":
                await asyncio.Event().wait()
            raise TransactionsUnavailable(self._how)


def committed(house: House) -> list[str]:
    """What readers of what is committed are given."""
    return [each["payload"] for each in house.topic.good("POST", "/poll?isolation=committed", json={})]


@pytest.mark.parametrize("end", ["commit", "abort", "invalidate"])
@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("apart", [False, True])
def test_it_heals_by_itself_and_nothing_of_what_was_aborted_appears(
    monkeypatch: pytest.MonkeyPatch, how: How, end: str, apart: bool
) -> None:
    with ExitStack() as stack:
        settings = {"transactions_url": stack.enter_context(running_service()).url} if apart else {}
        house = stack.enter_context(House(**settings))
        losing = Losing(monkeypatch, RemoteTransactions if apart else TransactionManager, how)
        pointer = house.start()
        assert house.topic.publish_under(pointer, "a", "b").ok
        assert house.topic.publish("behind").ok
        house.end(pointer, end)
        until(lambda: pointer in losing.pointers, "the acknowledgement is lost")
        expected = ["a", "b", "behind"] if end == "commit" else ["behind"]
        assert house.now() == expected
        if how == "caller killed":
            house.crash()
            assert house.now() == expected
        house.clock.advance(ASK_SECONDS * SECOND)
        until(lambda: committed(house) == expected, "it is decided")
        house.settle()
        assert house.client.held() == []
        assert house.now() == expected
        assert (pointer in house.client.start_transaction().invalids) is (end == "invalidate")


def test_an_instance_that_lost_its_lease_acknowledges_nothing_of_a_generation_that_another_one_has_made() -> None:
    with House() as house, pytest.MonkeyPatch.context() as patch:
        assert house.topic.publish("m").ok
        first = house.service.service.opening.topics.logs.opened["default", "t"].participant
        patch.setattr(Writer, "is_valid", False)
        with pytest.raises(StorageUnavailable):
            house.service.on_loop(
                lambda service: service.opening.topics.participants.settle(first.removesuffix("1") + "2", 5, committed=False)
            )


def test_a_poll_gives_nothing_that_may_have_been_undone_while_nobody_can_say() -> None:
    with ExitStack() as stack:
        away = ExitStack()
        elsewhere = away.enter_context(running_service(clock=(clock := ManualClock())))
        house = stack.enter_context(House(clock=clock, transactions_url=elsewhere.url))
        house.damaged = True
        pointer = house.start()
        house.topic.publish_under(pointer, "x")
        house.topic.publish("behind")

        async def told_wrongly(service: Service) -> None:
            await service.opening.transactions.abort(pointer)
            for each in list(service.opening.transactions.state.waiting):  # type: ignore[union-attr]
                await service.opening.transactions.acknowledge(pointer, each)

        elsewhere.on_loop(told_wrongly)
        later = house.client.start_transaction()
        assert house.topic.seen(later) == ["behind"]
        house.crash()
        away.close()
        assert house.topic.seen(later) == [], "the page ends before what nobody speaks of"


def test_what_a_store_that_was_put_back_holds_is_not_taken_for_committed_once_its_end_is_forgotten() -> None:
    with ExitStack() as stack:
        elsewhere = stack.enter_context(House(clock=(clock := ManualClock())))
        house = stack.enter_context(House(clock=clock, transactions_url=elsewhere.service.url))
        house.damaged = True
        pointer = house.start()
        house.topic.publish_under(pointer, "x")
        house.topic.publish("behind")
        before = crashed(house.disk)
        house.end(pointer, "invalidate")
        house.settle()
        for _ in range(3):
            clock.advance(25 * HOUR)
            elsewhere.service.on_loop(_forget)
        elsewhere.restart()
        house._settings["transactions_url"] = elsewhere.service.url
        assert not elsewhere.service.on_loop(lambda service: service.opening.transactions.states([pointer]))
        with house.off():
            house.disk = before
            store = opened(before, None)
            store.write([further_incarnation(store, clock.ms)[1]])
            store.close()
        clock.advance(ASK_SECONDS * SECOND)
        house.retain()
        assert committed(house) == []
        assert house.now() == []
        assert [each.write_pointer for each in house.client.held()] == [pointer], "an operator says how it ended"


async def _forget(service: Service) -> None:
    while await service.opening.transactions.forget_outcomes():  # type: ignore[union-attr]
        pass
