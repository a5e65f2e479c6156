"""Coroutines that are cancelled at one of their awaits, and what belongs to asyncio looked at by tests that block."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import pytest

from oncelog import AsyncClient, Client
from tests.gate.loop import Loop as GateLoop
from tests.patience import PATIENCE

T = TypeVar("T")

of_threads = pytest.mark.parametrize("twin", ["threads"], indirect=True)
"""A test of what only the twin of threads has."""


class Moment:
    """The await number ``at`` of a coroutine: when it begins, or with ``late`` when what it waits for has come."""

    def __init__(self, at: int, late: bool) -> None:
        self.at = at
        self.late = late
        self.reached = False

    def __repr__(self) -> str:
        return f"await {self.at}{', late' if self.late else ''}"


class _Watched(Awaitable[T]):
    """A coroutine whose task is cancelled at a moment."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], moment: Moment) -> None:
        self._coroutine = coroutine
        self._moment = moment

    def __await__(self) -> Generator[Any, Any, T]:
        task = asyncio.current_task()
        assert task is not None
        steps, at = self._coroutine.__await__(), 0
        send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            try:
                awaited = send()
            except StopIteration as end:
                result: T = end.value
                return result
            if at == self._moment.at and not self._moment.reached:
                self._moment.reached = True
                if self._moment.late and isinstance(awaited, asyncio.Future):
                    awaited.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            at += 1
            try:
                yield awaited
                send = lambda: next(steps)  # noqa: E731
            except BaseException as error:
                send = lambda error=error: steps.throw(error)  # type: ignore[misc]  # noqa: E731


async def cancelled(coroutine: Coroutine[Any, Any, T], moment: Moment) -> T | None:
    """What it returns; None where it was cancelled."""

    async def watched() -> T:
        return await _Watched(coroutine, moment)

    task = asyncio.ensure_future(watched())
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


async def at_each_await(once: Callable[[Moment], Awaitable[object]]) -> int:
    """Have ``once`` cancel at each moment in turn, until there is none any more. How many there were.

    An answer may be there before it is awaited: so there is none any more where two runs in a row do not come to it.
    """
    most = 0
    for late in (False, True):
        at = missed = 0
        while missed < (2 if at else 10):  # on a busy machine the first answers may all be there at once
            moment = Moment(at, late)
            await once(moment)
            at, missed = (at + 1, 0) if moment.reached else (at, missed + 1)
            assert at < 1_000, "a thousand awaits"
        most = max(most, at)
    return most


class Loop:
    """An event loop on a thread of its own; in the gate one that goes on while somebody waits."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._clients: dict[Client, AsyncClient] = {}
        self._thread = Thread(target=self.loop.run_forever, name="oncelog-test-loop")
        if not isinstance(self.loop, GateLoop):
            self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if isinstance(self.loop, GateLoop):
            return self.loop.done(self.loop.create_task(coroutine), PATIENCE)
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def client(self, client: Client) -> AsyncClient:
        """A client of the same service."""
        if client not in self._clients:
            self._clients[client] = AsyncClient(client.url) if type(client) is Client else _Through(client)
        return self._clients[client]

    def stop(self) -> None:
        for client in self._clients.values():
            self.run(client.close())
        if isinstance(self.loop, GateLoop):
            self.loop.end()
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


@contextmanager
def event_loop() -> Iterator[Loop]:
    loop = Loop()
    try:
        yield loop
    finally:
        loop.stop()


class _Through(AsyncClient):
    """A client whose calls go through one that blocks and does something of its own with them."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.url)
        self._client = client

    def __getattribute__(self, name: str) -> Any:
        if name not in ("publish", "poll", "receive", "acknowledge", "seek_subscription"):
            return super().__getattribute__(name)
        return partial(asyncio.to_thread, getattr(self._client, name))


class Blocking:
    """What belongs to asyncio, as its twin of threads is used: each call waits, each iteration blocks."""

    def __init__(self, loop: Loop, made: Any) -> None:
        self._loop = loop
        self._made = made

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._made, name)
        if not callable(found) or isinstance(found, type):
            return found

        def call(*args: Any, **options: Any) -> Any:
            async def called() -> Any:
                answer = found(*map(_bare, args), **{key: _bare(each) for key, each in options.items()})
                return await answer if inspect.isawaitable(answer) and not isinstance(answer, asyncio.Future) else answer

            return blocking(self._loop, self._loop.run(called()))

        return call() if name == "lag" else call  # a property of the one twin is awaited of the other

    def __iter__(self) -> Iterator[Any]:
        async def begun() -> AsyncIterator[Any]:
            return aiter(self._made)

        return _each(self._loop, self._loop.run(begun()))

    def __enter__(self) -> Blocking:
        self._loop.run(self._made.__aenter__())
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._loop.run(self._made.__aexit__(*error))


class Maker:
    """A class of the asyncio twin under the name of that of threads: what is made belongs to the loop, and blocks its caller."""

    def __init__(self, loop: Loop, kind: Callable[..., Any]) -> None:
        self._loop = loop
        self._kind = kind

    def __getitem__(self, _: object) -> Maker:
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        async def made() -> Any:
            new = self._kind(*map(self._twin, args), **{name: self._twin(each) for name, each in options.items()})
            if hasattr(new, "open"):
                await new.open()
            return new

        return Blocking(self._loop, self._loop.run(made()))

    def _twin(self, given: Any) -> Any:
        """A client of threads stands for one of this loop."""
        return self._loop.client(given) if isinstance(given, Client) else _bare(given)


def blocking(loop: Loop, answer: Any) -> Any:
    """An answer of what belongs to asyncio, as a test that blocks looks at it."""
    if isinstance(answer, asyncio.Future):
        future: Future[Any] = Future()

        def done(done: asyncio.Future[Any]) -> None:
            if (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        loop.loop.call_soon_threadsafe(answer.add_done_callback, done)
        return future
    if isinstance(answer, AsyncIterator):
        return _each(loop, answer)
    return Blocking(loop, answer) if hasattr(answer, "__aenter__") else answer


def _each(loop: Loop, items: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> T:
        return await anext(items)

    while True:
        try:
            item = loop.run(following())
        except StopAsyncIteration:
            return
        yield item


def _bare(given: Any) -> Any:
    return given._made if isinstance(given, Blocking) else given
