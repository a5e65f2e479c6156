"""A client lives in the surroundings that it is given: it reaches hosts by that network alone, and goes by that clock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from oncelog import AsyncClient, Client
from oncelog.api.api import surrounded
from oncelog.errors import ConnectionFailed, OncelogError, ResponseTimeout
from oncelog.http.sockets import CONNECT_SECONDS, Deadline
from oncelog.process.clock import Clock
from oncelog.process.procedures import answer_of
from oncelog.wire.models import Acknowledge

URL = "http://10.0.0.1:7070"


class Surroundings:
    """A network of hosts that answer nothing, and a clock that goes while somebody waits."""

    def __init__(self, *, refuses: bool = False, hosts: int = 1) -> None:
        """``refuses``: no connection is taken; ``hosts``: addresses of a name, of which more than one takes none either."""
        self.now = 0.0
        self.clock = Clock(lambda: self.now, lambda: self.now, self.sleep)
        self.began: list[float] = []
        """When each connection was asked for."""
        self._refuses, self._hosts = refuses, hosts

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def addresses(self, host: str, port: int, deadline: Deadline) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{at}", port)) for at in range(self._hosts)]

    async def connect(self, address: Any, deadline: Deadline) -> Any:
        self.began.append(self.now)
        if self._refuses:
            raise ConnectionRefusedError
        if self._hosts > 1:
            await self.receive(1, deadline)
        return self

    async def send(self, data: bytes, deadline: Deadline) -> None:
        """It is swallowed."""

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        self.now += deadline.left()
        deadline.left()
        raise AssertionError("its time is over")

    def close(self) -> None: ...


class Threads:
    """How a test asks: by the client of threads."""

    kind: type[Any] = Client

    def error(self, here: Surroundings, call: Callable[[Any], Any], url: str = URL, **options: float) -> OncelogError:
        """What a call ends with."""

        async def asked() -> OncelogError:
            client = surrounded(self.kind, network=here, clock=here.clock)(url, **options)
            with pytest.raises(OncelogError) as caught:
                await answer_of(call, client)
            await answer_of(client.close)
            return caught.value

        return asyncio.run(asked())


class Loop(Threads):
    """By that for asyncio."""

    kind = AsyncClient


@pytest.fixture(params=[Threads, Loop])
def asking(request: pytest.FixtureRequest) -> Threads:
    asking: Threads = request.param()
    return asking


def test_a_call_ends_with_its_time_by_the_clock_that_the_client_was_given(asking: Threads) -> None:
    error = asking.error(here := Surroundings(), lambda client: client.topics(), timeout=1e6, retry=0)
    assert isinstance(error, ResponseTimeout)
    assert (here.now, here.began) == (1e6, [0.0])


def test_a_call_that_is_to_end_within_a_time_does_however_long_an_answer_may_take(asking: Threads) -> None:
    acknowledged = Acknowledge(epoch=1, offset=0)
    error = asking.error(
        here := Surroundings(), lambda client: client.acknowledge("t", "s", acknowledged, within=0.3), timeout=30
    )
    assert isinstance(error, ResponseTimeout)
    assert here.now == 0.3


def test_the_addresses_of_a_host_share_the_time_for_connecting(asking: Threads) -> None:
    """One that does not answer leaves as much to the next one; and connecting has a time of its own, whatever the answer has."""
    error = asking.error(
        here := Surroundings(hosts=8), lambda client: client.topics(), "http://many.example", timeout=30, retry=0
    )
    assert (type(error), error.definite) == (ConnectionFailed, True)
    assert here.began == pytest.approx([CONNECT_SECONDS * at / 8 for at in range(8)])
    assert here.now == pytest.approx(CONNECT_SECONDS)


def test_a_call_is_tried_again_over_the_network_and_by_the_clock_that_the_client_was_given() -> None:
    error = Threads().error(here := Surroundings(refuses=True), lambda client: client.topics(), retry=1e3)
    assert (type(error), error.definite) == (ConnectionFailed, True)
    assert 1e3 - 10 < here.now <= 1e3
    assert len(here.began) > 100
