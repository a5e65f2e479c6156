"""The producer's twin for asyncio: what only it has to keep. What both promise is proved in test_producer, which runs on both."""

from __future__ import annotations

import asyncio
import gc
import os
from uuid import uuid4

import pytest

from oncelog import AsyncClient, AsyncProducer, Client
from oncelog.errors import (
    Forked,
    OncelogError,
    ProducerClosed,
    ProducerFenced,
    ProducerStopped,
    RequestTooLarge,
)
from oncelog.wire.requests import PublishRequest, ReceiptRun
from tests.sdk.topics import payloads
from tests.world.awaits import Moment, at_each_await, cancelled
from tests.world.service import RunningService


class Watched(AsyncClient):
    """A client that notes its publishes, and holds them until it may."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.seen: list[PublishRequest] = []
        self.came, self.may = asyncio.Event(), asyncio.Event()
        self.may.set()

    async def publish(self, topic: str, request: PublishRequest, namespace: str = "default") -> list[ReceiptRun]:
        self.seen.append(request)
        self.came.set()
        await self.may.wait()
        return await super().publish(topic, request, namespace)


# --- cancelled


async def test_a_load_that_is_cancelled_at_any_await_and_resumed_is_stored_once_and_in_order(
    client: Client, house: RunningService
) -> None:
    rows = [b"%d" % number for number in range(7)]

    async def load(topic: str) -> None:
        async with AsyncProducer(topic, name="loader", url=house.url, linger=0, batch_max_messages=2) as producer:
            for number, row in producer.resume(list(enumerate(rows)), sequence_id=lambda row: row[0]):
                if number % 3:
                    await producer.send_async(row, sequence_id=number)
                else:
                    await producer.send(row, sequence_id=number)
            await producer.flush()

    async def once(moment: Moment) -> None:
        topic = f"t-{uuid4().hex}"
        client.create_topic(topic)
        await cancelled(load(topic), moment)
        before = payloads(client, topic)
        assert before == rows[: len(before)], moment
        await load(topic)
        assert payloads(client, topic) == rows, moment

    assert await at_each_await(once)


@pytest.mark.parametrize("sends", ["send", "send_async", "send_batch"])
async def test_a_cancelled_send_is_on_its_way_or_was_never_sent_and_the_next_one_follows(
    client: Client, house: RunningService, sends: str
) -> None:
    async def once(moment: Moment) -> None:
        topic = f"t-{uuid4().hex}"
        client.create_topic(topic)
        async with AsyncProducer(topic, name="p", url=house.url) as producer:
            await producer.send(b"first")
            done = await cancelled(getattr(producer, sends)([b"second"] if sends == "send_batch" else b"second"), moment)
            await producer.send(b"third")
            await producer.flush()
        found = payloads(client, topic)
        assert found in ([b"first", b"second", b"third"], [b"first", b"third"]), moment
        assert done is None or len(found) == 3, moment
        assert client.producer(topic, "p").last_persisted == len(found) - 1, "no number is left out"

    await at_each_await(once)


async def test_a_failure_whose_sender_was_cancelled_is_told_by_flush(client: Client, topic: str, house: RunningService) -> None:
    async def once(moment: Moment) -> None:
        async with AsyncProducer(topic, name="p", url=house.url) as producer:
            client.open_producer(topic, "p")
            try:
                await cancelled(producer.send(b"x"), moment)
            except ProducerFenced:
                return
            with pytest.raises(ProducerFenced):
                await producer.flush()

    assert await at_each_await(once)


async def test_a_cancelled_close_can_be_repeated_and_loses_nothing(client: Client, house: RunningService) -> None:
    async def once(moment: Moment) -> None:
        topic = f"t-{uuid4().hex}"
        client.create_topic(topic)
        producer = await AsyncProducer(topic, name="p", url=house.url).open()
        futures = [await producer.send_async(b"%d" % number) for number in range(3)]
        await cancelled(producer.close(), moment)
        with pytest.raises(ProducerClosed):
            await producer.send(b"late")
        await producer.close()
        assert [future.result().offset for future in futures] == [0, 1, 2], moment
        assert payloads(client, topic) == [b"0", b"1", b"2"], moment

    assert await at_each_await(once)


async def test_a_future_that_is_cancelled_takes_nothing_back(client: Client, topic: str, house: RunningService) -> None:
    async with AsyncProducer(topic, name="p", url=house.url) as producer:
        future = await producer.send_async(b"x")
        future.cancel()
    assert payloads(client, topic) == [b"x"]


# --- together, and with bounds


async def test_what_many_tasks_send_goes_together(client: Client, topic: str, house: RunningService) -> None:
    async with Watched(house.url) as watched, AsyncProducer(topic, client=watched) as producer:
        receipts = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(64)))
        assert sorted(receipt.offset or 0 for receipt in receipts) == list(range(64))
        assert len(watched.seen) == 1
    assert sorted(payloads(client, topic)) == sorted(b"%d" % number for number in range(64))


async def test_one_request_is_under_way_and_what_comes_meanwhile_waits_for_room(
    client: Client, topic: str, house: RunningService
) -> None:
    async with Watched(house.url) as watched, AsyncProducer(topic, name="p", client=watched, max_pending=3, linger=0) as producer:
        watched.may.clear()
        for number in range(3):
            await producer.send_async(b"%d" % number)
        late = asyncio.ensure_future(producer.send_async(b"late"))
        given_up = asyncio.ensure_future(producer.send_async(b"given up"))
        await watched.came.wait()
        assert not late.done()
        given_up.cancel()
        with pytest.raises(TimeoutError):
            await producer.flush(0.01)
        assert len(watched.seen) == 1
        watched.may.set()
        await (await late)
    assert payloads(client, topic) == [b"0", b"1", b"2", b"late"]


async def test_a_failure_in_a_batch_that_is_cancelled_behind_it_is_told_by_flush(topic: str, house: RunningService) -> None:
    large, small = b"x" * 9_000_000, b"x"
    for at in range(2):
        async with Watched(house.url) as watched:
            producer = await AsyncProducer(topic, client=watched, batch_max_messages=1, max_pending=1 + at).open()
            sending = asyncio.ensure_future(producer.send_batch([large, small, small, small]))
            while len(watched.seen) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            watched.may.clear()
            sending.cancel()
            await asyncio.wait([sending])
            watched.may.set()
            with pytest.raises(RequestTooLarge):
                await producer.flush()
            await producer.close()


# --- its event loop, its process


def test_what_is_unsent_when_the_event_loop_ends_is_named_and_its_futures_fail(topic: str, house: RunningService) -> None:
    kept = []

    async def send_and_go(pause: bool) -> None:
        watched = Watched(house.url)
        watched.may.clear()
        producer = await AsyncProducer(topic, name="p", client=watched, linger=60).open()
        future = await producer.send_async(b"x")
        if pause:
            await asyncio.sleep(0)
        kept.append((producer, future))

    for pause in (False, True):
        with pytest.warns(ResourceWarning, match="producer 'p' of default/.*: 1 messages have no outcome"):
            asyncio.run(send_and_go(pause))
    for _, future in kept:
        assert isinstance(future.exception(), OncelogError)


def test_what_is_unsent_when_a_loop_is_left_is_named(topic: str, house: RunningService) -> None:
    loop = asyncio.new_event_loop()

    async def send() -> None:
        producer = await AsyncProducer(topic, name="p", url=house.url, linger=60).open()
        await producer.send_async(b"x")

    loop.run_until_complete(send())
    loop.close()
    del loop
    with pytest.warns(ResourceWarning, match="its event loop was closed"):
        gc.collect()


async def test_a_producer_whose_task_was_cancelled_stops_and_says_so(topic: str, house: RunningService) -> None:
    async with Watched(house.url) as watched:
        producer = await AsyncProducer(topic, name="p", client=watched).open()
        watched.may.clear()
        future = await producer.send_async(b"x")
        await watched.came.wait()
        (task,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("oncelog-producer")]
        task.cancel()
        with pytest.warns(ResourceWarning, match="interrupted"), pytest.raises(OncelogError):
            await future
        with pytest.raises(ProducerStopped):
            await producer.send(b"y")
        with pytest.raises(OncelogError):
            await producer.close()


def test_it_is_opened_first_and_belongs_to_its_event_loop(topic: str, house: RunningService) -> None:
    producer = AsyncProducer(topic, url=house.url)
    with pytest.raises(RuntimeError, match="not open"):
        asyncio.run(producer.send(b"x"))
    asyncio.run(producer.open())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(producer.send(b"x"))


@pytest.mark.real
async def test_in_a_forked_child_it_raises_and_names_nothing_of_its_parents(
    client: Client, topic: str, house: RunningService
) -> None:
    async with AsyncProducer(topic, name="p", url=house.url, linger=0.05) as producer:
        await producer.send_async(b"x")
        child = os.fork()
        if not child:
            try:
                producer.send(b"y").send(None)
            except Forked:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7  # noqa: ASYNC222
    assert payloads(client, topic) == [b"x"]
