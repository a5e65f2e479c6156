"""Transactions and atomic commits for asyncio: what only they have to keep, wherever a task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import pytest

from oncelog import AsyncClient, AsyncProducer, AsyncTransactionContext, Client, Producer
from oncelog.errors import TransactionClosed, TransactionConflict
from oncelog.wire.transaction import Transaction
from tests.patience import until
from tests.sdk.test_sent_together import visible
from tests.world.awaits import Moment, at_each_await, cancelled
from tests.world.service import RunningService


@pytest.fixture(params=["transaction", "atomic"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.real
async def test_wherever_it_is_cancelled_both_topics_have_all_of_it_or_nothing(
    client: Client, house: RunningService, kind: str
) -> None:
    """And the producer that it sent through goes on, with no number left out or used twice, unless it is in doubt."""

    async def send(topics: list[str], begun: list[Any], buffer_bytes: int) -> None:
        async with AsyncClient(house.url) as asking, AsyncProducer(topics[0], name="p", client=asking) as producer:
            begun.append(made := getattr(asking, kind)(buffer_bytes=buffer_bytes, timeout=5))
            async with made:
                await made.send(topics[0], b"one", producer=producer)
                await made.send(topics[1], b"other")
                await made.send(topics[0], b"two", producer=producer)

    async def once(moment: Moment) -> None:
        topics = [f"t-{uuid4().hex}" for _ in range(2)]
        for topic in topics:
            client.create_topic(topic)
        begun: list[Any] = []
        await cancelled(send(topics, begun, moment.at % 2 * 1_000), moment)
        if begun and kind == "transaction" and begun[0].state != "new":
            pointer = begun[0].transaction_id
            until(lambda: client.transaction_status(pointer).state != "in_progress", f"{moment}: it has ended")
        found = [visible(client, topic) for topic in topics]
        assert found in ([[b"one", b"two"], [b"other"]], [[], []]), moment
        if begun and kind == "atomic":
            assert found[1] or begun[0].outcome is None, moment
        elif begun and begun[0].state != "in_doubt":
            assert bool(found[1]) is (begun[0].state == "committed"), moment
        with Producer[bytes](topics[0], name="p", client=client) as producer:
            assert producer.last_sequence_id == (1 if found[0] else None), moment

    assert await at_each_await(once)


async def test_producers_of_the_other_twin_are_refused(client: Client, topic: str, house: RunningService, kind: str) -> None:
    async with AsyncClient(house.url) as asking, AsyncProducer(topic, client=asking) as awaited:
        with Producer[bytes](topic, client=client) as blocking:
            begun = getattr(asking, kind)()
            with pytest.raises(TypeError, match="AsyncProducer"):
                async with begun:
                    await begun.send(topic, b"x", producer=blocking)
        with pytest.raises(TypeError, match="AsyncProducer"), getattr(client, kind)() as other:
            other.send(topic, b"x", producer=awaited)


class Awaited:
    """A participant of coroutine functions, which writes down its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def _noted(self, call: str) -> None:
        await asyncio.sleep(0)
        self.calls.append(call)

    async def start_tx(self, tx: Transaction) -> None:
        await self._noted("start_tx")

    async def get_tx_changes(self) -> Iterable[bytes]:
        await self._noted("get_tx_changes")
        return [b"key"]

    async def commit_tx(self) -> None:
        await self._noted("commit_tx")

    async def post_tx_commit(self) -> None:
        await self._noted("post_tx_commit")

    async def rollback_tx(self) -> None:
        await self._noted("rollback_tx")


async def test_participants_may_be_awaited_and_are_rolled_back_wherever_a_task_is_cancelled(
    client: Client, topic: str, house: RunningService
) -> None:
    async def change(participant: Any, begun: list[AsyncTransactionContext]) -> None:
        async with AsyncClient(house.url) as asking:
            begun.append(asking.transaction(participant, timeout=5))
            async with begun[0] as tx:
                await tx.send(topic, b"x")
                await tx.checkpoint()

    async def once(moment: Moment) -> None:
        participant, begun = Awaited(), list[AsyncTransactionContext]()
        await cancelled(change(participant, begun), moment)
        calls = participant.calls
        match begun[0].state if begun else "new":
            case "committed":
                # Its last call may be what was cancelled.
                assert calls[:3] == ["start_tx", "get_tx_changes", "commit_tx"], moment
                assert "rollback_tx" not in calls, moment
            case "aborted" | "invalid":
                assert calls[-1:] in (["rollback_tx"], []), moment
                assert "post_tx_commit" not in calls, moment
            case "in_doubt":
                assert "rollback_tx" not in calls, moment

    assert await at_each_await(once)


async def test_a_conflict_is_tried_again_and_a_finished_one_is_closed(client: Client, topic: str, house: RunningService) -> None:
    attempts = []

    async def change(tx: AsyncTransactionContext) -> int:
        attempts.append(tx)
        if len(attempts) == 1:
            other = client.start_transaction()
            client.can_commit(other.transaction_id, [b"key"])
            client.commit_transaction(other.transaction_id)
        await tx.send(topic, b"%d" % len(attempts))
        return len(attempts)

    async with AsyncClient(house.url) as asking:
        assert await asking.run_in_transaction(change, Awaited()) == 2
        with pytest.raises(TransactionClosed):
            await attempts[-1].send(topic, b"late")
        attempts.clear()
        with pytest.raises(TransactionConflict):
            await asking.run_in_transaction(change, Awaited(), attempts=1)
    assert visible(client, topic) == [b"2"]
