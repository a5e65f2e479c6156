"""A client lives in the surroundings that it is given: it reaches hosts by that network alone, and goes by that clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog import AsyncClient, Client
from oncelog.api.api import surrounded
from oncelog.errors import ConnectionFailed, OncelogError, ResponseTimeout
from oncelog.http.sockets import Deadline
from oncelog.process.clock import REAL, Clock
from tests.patience import PATIENCE
from tests.world.on_loop import clients_on_loop, on_loop

URL = "http://10.0.0.1:7070"


class Surroundings:
    """A network of one host and a clock that goes while somebody waits."""

    def __init__(self, *, refuses: bool) -> None:
        self.now = 0.0
        self.clock = Clock(lambda: self.now, lambda: self.now, self.sleep)
        self.connections = 0
        self._refuses = refuses

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def connect(self, address: Any, deadline: Deadline) -> Any:
        self.connections += 1
        if self._refuses:
            raise ConnectionRefusedError
        return self

    async def send(self, data: bytes, deadline: Deadline) -> None:
        """It is swallowed."""

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        self.now += deadline.left()
        deadline.left()
        raise AssertionError("its time is over")

    def close(self) -> None: ...


def asked(here: Surroundings, *, timeout: float, retry: float) -> OncelogError:
    """What a call of the client of threads ends with."""
    with surrounded(Client, network=here, clock=here.clock)(URL, timeout=timeout, retry=retry) as client:
        with pytest.raises(OncelogError) as caught:
            client.topics()
        return caught.value


def asked_in_a_loop(here: Surroundings, *, timeout: float, retry: float) -> OncelogError:
    """What a call of the client for asyncio ends with."""

    async def asked() -> OncelogError:
        async with surrounded(AsyncClient, network=here, clock=here.clock)(URL, timeout=timeout, retry=retry) as client:
            with pytest.raises(OncelogError) as caught:
                await client.topics()
            return caught.value

    return asyncio.run(asked())


@pytest.mark.parametrize("asks", [asked, asked_in_a_loop])
def test_a_call_ends_with_its_time_by_the_clock_that_the_client_was_given(asks: Any) -> None:
    here = Surroundings(refuses=False)
    assert isinstance(asks(here, timeout=1e6, retry=0), ResponseTimeout)
    assert (here.now, here.connections) == (1e6, 1)


def test_a_call_is_tried_again_over_the_network_and_by_the_clock_that_the_client_was_given() -> None:
    here = Surroundings(refuses=True)
    assert isinstance(asked(here, timeout=30, retry=1e4), ConnectionFailed)
    assert 1e4 - 10 < here.now <= 1e4
    assert here.connections > 1_000


class Meeting:
    """A network of an event loop, of one host that answers no request before a second one has come."""

    def __init__(self) -> None:
        self._requests = 0
        self._both = asyncio.Event()

    async def connect(self, address: Any, deadline: Deadline) -> Any:
        return self

    async def send(self, data: bytes, deadline: Deadline) -> None:
        self._requests += 1
        if self._requests == 2:
            self._both.set()

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        async with asyncio.timeout(deadline.left()):
            await self._both.wait()
        return b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n["default"]'

    def is_quiet(self) -> bool:
        return True

    def close(self) -> None: ...


def test_calls_of_the_twin_of_threads_are_made_side_by_side_on_one_event_loop() -> None:
    async def both() -> list[list[str]]:
        clients = clients_on_loop(Meeting(), REAL)
        return await asyncio.gather(*(on_loop(clients(URL, timeout=PATIENCE, retry=0).namespaces) for _ in range(2)))

    assert asyncio.run(both()) == [["default"], ["default"]]
