"""Names that go work on, and warn at the line that uses them: that is promised (docs/stability.md)."""

from __future__ import annotations

import pytest

from oncelog import AsyncClient, AsyncConsumer, Client, Consumer, Producer
from oncelog.errors import TransactionNotFound
from tests.world.service import RunningService


def test_a_consumer_is_read_from_by_receive_too(client: Client, topic: str) -> None:
    with Producer(topic, client=client) as producer, Consumer(topic, "s", client=client) as consumer:
        producer.send(b"x")
        with pytest.warns(DeprecationWarning, match=r"called Consumer\.read now") as said:
            assert [message.payload for message in consumer.receive(2, timeout=0)] == [b"x"]
    assert [each.filename for each in said] == [__file__]


def test_a_topic_is_settled_by_end_held_too(client: Client, topic: str) -> None:
    with pytest.warns(DeprecationWarning, match="settle_topic") as said, pytest.raises(TransactionNotFound):
        client.end_held(topic, 1, committed=False)
    assert [each.filename for each in said] == [__file__]


async def test_an_asyncio_client_settles_a_topic_by_end_held_too(topic: str, house: RunningService) -> None:
    async with AsyncClient(house.url) as client:
        with (
            pytest.warns(DeprecationWarning, match=r"called AsyncClient\.settle_topic now") as said,
            pytest.raises(TransactionNotFound),
        ):
            await client.end_held(topic, 1, committed=False)
    assert [each.filename for each in said] == [__file__]


async def test_an_asyncio_consumer_is_read_from_by_receive_too(client: Client, topic: str, house: RunningService) -> None:
    async with AsyncConsumer(topic, "s", url=house.url) as consumer:
        with pytest.warns(DeprecationWarning, match=r"called AsyncConsumer\.read now") as said:
            assert await consumer.receive(2, timeout=0) == []
    assert [each.filename for each in said] == [__file__]
