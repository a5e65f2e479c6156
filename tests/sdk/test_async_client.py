"""The client's twin for asyncio: the same calls, awaited; a request that is cancelled leaves nothing behind for the next one."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from oncelog import (
    AsyncAtomicBatch,
    AsyncAtomicBranch,
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    AsyncTransactionContext,
    AtomicBatch,
    AtomicBranch,
    Client,
    Consumer,
    Producer,
    Reader,
    TransactionContext,
)
from oncelog.api.api import Api
from oncelog.api.topics import AsyncApi
from oncelog.errors import ClientClosed, ConnectionFailed, Forked
from tests.sdk.fakes import Answer, Request, fake_server
from tests.world.awaits import Moment, at_each_await, cancelled
from tests.world.service import RunningService


def test_both_twins_have_the_same_members_with_the_same_arguments() -> None:
    for one, other in (
        (Api, AsyncApi),
        (Client, AsyncClient),
        (TransactionContext, AsyncTransactionContext),
        (AtomicBatch, AsyncAtomicBatch),
        (AtomicBranch, AsyncAtomicBranch),
        (Producer, AsyncProducer),
        (Reader, AsyncReader),
        (Consumer, AsyncConsumer),
    ):
        members = signatures(other)
        if one in (Producer, Reader, Consumer):
            assert members.pop("open") == ["self: ''"]
        assert members.pop("lag", None) in (None, ["self: ''"]), "a property of the other twin"
        assert signatures(one) == members


def signatures(kind: type) -> dict[str, list[str]]:
    """The public members of a class, and the arguments of each; what it returns is of its twin."""
    members = {name: getattr(kind, name) for name in (*dir(kind), "__init__") if not name.startswith("_") or name == "__init__"}
    return {
        name: [str(each.replace(annotation="")) for each in inspect.signature(member).parameters.values()]
        for name, member in members.items()
        if callable(member)
    }


async def test_many_tasks_ask_at_once_and_each_gets_its_own_answer(house: RunningService) -> None:
    async with AsyncClient(house.url) as client:
        names = [f"t-{uuid4().hex}" for _ in range(30)]
        await asyncio.gather(*map(client.create_topic, names))
        found = await asyncio.gather(*map(client.topic, names))
        assert [each.name for each in found] == names
        assert {name async for name in _topics(client)} >= set(names)
        assert [each async for each in client.producers(names[0])] == []
        *_, last = [each async for each in client.verify(names[0])]
        assert getattr(last, "ok", False)


async def _topics(client: AsyncClient) -> Any:
    for each in await client.topics():
        yield each


async def test_a_cancelled_request_leaves_its_answer_to_nobody_else() -> None:
    """Whatever it waits for when it is cancelled: the next one gets its own answer, over a connection that is its own."""

    def handle(request: Request) -> Answer:
        time.sleep(0.002)  # else the answer may be there before anybody waits for it
        return Answer(200, json.dumps([request.path]).encode())

    with fake_server(handle) as fake:
        async with AsyncClient(fake.url) as client:

            async def once(moment: Moment) -> None:
                first = await cancelled(client.topics("first"), moment)
                assert first in (None, ["/v1/namespaces/first/topics"]), moment
                assert await client.topics("second") == ["/v1/namespaces/second/topics"], moment

            assert await at_each_await(once)


async def test_a_closed_client_stays_closed(house: RunningService) -> None:
    async with AsyncClient(house.url) as client:
        assert await client.healthy()
    with pytest.raises(ClientClosed):
        await client.topics()
    await client.close()


@pytest.mark.parametrize(("host", "says"), [("no-such-host.invalid", "no-such-host"), (f"{'a' * 70}.example", "no host's name")])
async def test_a_host_that_nobody_knows_or_that_is_no_name_cannot_be_reached(host: str, says: str) -> None:
    async with AsyncClient(f"http://{host}", retry=0, timeout=20) as client:
        with pytest.raises(ConnectionFailed, match=says):
            await client.topics()


def test_on_another_event_loop_it_raises(house: RunningService) -> None:
    client = AsyncClient(house.url)
    assert asyncio.run(client.healthy())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(client.topics())


@pytest.mark.real
def test_in_a_forked_child_it_raises(house: RunningService) -> None:
    client = AsyncClient(house.url)
    child = os.fork()
    if not child:
        try:
            asyncio.run(client.topics())
        except Forked:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.topics(),
        lambda client: AsyncProducer("t", client=client).__aenter__(),
        lambda client: AsyncReader("t", client=client).__aenter__(),
        lambda client: AsyncConsumer("t", "s", client=client).__aenter__(),
        lambda client: client.transaction().__aenter__(),
        lambda client: client.atomic().abort(),
        lambda client: client.run_in_transaction(lambda _: None),
    ],
)
def test_under_another_loop_than_asyncios_it_says_what_it_needs(call: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> None:
    """As trio's, whose loop steps a coroutine as this does."""
    coroutine = call(AsyncClient("http://127.0.0.1:9"))
    with pytest.raises(RuntimeError, match="needs asyncio"):
        coroutine.send(None)
