"""The twins of reader and consumer for asyncio: what only they have to keep. What both promise is proved where both twins run."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from oncelog import AsyncClient, AsyncConsumer, AsyncReader, Client, Message, MessageId, Producer
from oncelog.errors import ConsumerClosed, MessagesExpired, ReaderClosed
from oncelog.wire.requests import ConsumeRequest, Polled
from tests.sdk.test_position import page
from tests.world.awaits import Moment, at_each_await, cancelled
from tests.world.service import RunningService


async def test_a_reader_that_is_cancelled_at_any_await_goes_on_where_it_stood(filled: str, house: RunningService) -> None:
    async def once(moment: Moment) -> None:
        found: list[Message[bytes]] = []

        async def read() -> None:
            async for message in reader:
                found.append(message)
                if message.offset == 4:
                    await reader.has_message_available()
                    await reader.seek(5)

        async with AsyncReader(filled, url=house.url, timeout=0, page_size=3) as reader:
            await cancelled(read(), moment)
            found += await reader.read(2, timeout=0)
            await read()
        assert [message.offset for message in found] == list(range(10)), moment

    assert await at_each_await(once)


async def test_a_consumer_that_is_cancelled_at_any_await_loses_nothing_and_acknowledges_no_more_than_it_was_told(
    client: Client, filled: str, house: RunningService
) -> None:
    async def consume(name: str, found: list[int]) -> None:
        async with AsyncConsumer(filled, name, url=house.url, timeout=0, page_size=3, ack_interval=0.001) as consumer:
            async for message in consumer:
                found.append(message.offset)
                if message.offset % 2:
                    await consumer.ack(message)
                else:
                    consumer.ack_async(message)

    async def once(moment: Moment) -> None:
        name, first, then = f"s-{uuid4().hex}", list[int](), list[int]()
        client.open_subscription(filled, name)
        await cancelled(consume(name, first), moment)
        cursor = client.subscription(filled, name).cursor
        assert first == list(range(len(first))), moment
        assert cursor <= len(first), moment
        await consume(name, then)
        assert then == list(range(cursor, 10)), moment
        assert client.subscription(filled, name).cursor == 10, moment

    assert await at_each_await(once)


async def test_a_cancelled_close_acknowledges_when_it_is_repeated(client: Client, filled: str, house: RunningService) -> None:
    async def once(moment: Moment) -> None:
        name = f"s-{uuid4().hex}"
        consumer = await AsyncConsumer(filled, name, url=house.url, ack_interval=60).open()
        consumer.ack_async((await consumer.read(4))[-1])
        await cancelled(consumer.close(), moment)
        await consumer.close()
        assert client.subscription(filled, name).cursor == 4, moment
        with pytest.raises(ConsumerClosed):
            await consumer.read()

    assert await at_each_await(once)


async def test_close_ends_the_waiting_of_another_task(topic: str, house: RunningService) -> None:
    reader = await AsyncReader(topic, url=house.url).open()
    waiting = [asyncio.ensure_future(reader.read())]
    await asyncio.sleep(0.01)
    await reader.close()
    assert await waiting[0] == []
    with pytest.raises(ReaderClosed):
        await reader.read()


async def test_it_is_opened_first(topic: str, house: RunningService) -> None:
    for stream in (AsyncReader(topic, url=house.url), AsyncConsumer(topic, "s", url=house.url)):
        with pytest.raises(RuntimeError, match="not open"):
            await anext(aiter(stream))


async def test_what_has_expired_where_it_was_before_a_seek_is_no_matter() -> None:
    asked, may = asyncio.Event(), asyncio.Event()

    class Overtaken(AsyncClient):
        async def poll(self, topic: str, request: ConsumeRequest, namespace: str = "default") -> Polled:
            if request.start_offset is not None:
                return page(7)
            asked.set()
            await may.wait()
            raise MessagesExpired(first=0, earliest=5, upcoming=9)

    async with Overtaken("http://127.0.0.1:9") as client, AsyncReader("t", client=client) as reader:
        reading = asyncio.ensure_future(reader.read(1))
        await asked.wait()
        await reader.seek(7)
        may.set()
        assert [message.offset for message in await reading] == [7]


async def test_an_answer_from_before_a_seek_that_comes_behind_it_is_not_delivered(filled: str, house: RunningService) -> None:
    came, may = asyncio.Event(), asyncio.Event()

    class Late(AsyncClient):
        async def receive(self, *given: Any) -> Polled:
            polled = await super().receive(*given)
            came.set()
            await may.wait()
            return polled

    async with Late(house.url) as client, AsyncConsumer(filled, "s", client=client) as consumer:
        reading = asyncio.ensure_future(consumer.read(1))
        await came.wait()
        await consumer.seek(8)
        may.set()
        assert [message.offset for message in await reading] == [8]


@pytest.mark.parametrize("kind", [AsyncReader, AsyncConsumer])
async def test_what_is_polled_by_two_tasks_is_delivered_once_and_a_seek_counts_whoever_waits(
    client: Client, filled: str, house: RunningService, kind: Any
) -> None:
    name = ("s",) if kind is AsyncConsumer else ()
    async with kind(filled, *name, url=house.url, start=8, inclusive=True, page_size=3) as stream:
        read = stream.read
        found = await asyncio.gather(read(1), stream.has_message_available(), read(1))
        assert sorted(message.offset for message in found[0] + found[2]) == [8, 9]
        waiting = asyncio.ensure_future(read(4))
        await asyncio.to_thread(house.arrived, 1)
        await stream.seek(0)
        with Producer[bytes](filled, client=client) as producer:
            await asyncio.to_thread(producer.send, b"10")
        offsets = [message.offset for message in await waiting]
        while len(offsets) < 11:
            offsets += [message.offset for message in await read(4)]
        assert offsets == list(range(11))


@pytest.mark.parametrize("start", ["latest", MessageId.parse("ff" * 20)])
async def test_from_the_end_only_what_comes_afterwards(client: Client, filled: str, house: RunningService, start: Any) -> None:
    async with AsyncReader(filled, url=house.url, start=start) as reader:
        with Producer[bytes](filled, client=client) as producer:
            await asyncio.to_thread(producer.send, b"10")
        assert [message.offset for message in await reader.read(4)] == [10]
