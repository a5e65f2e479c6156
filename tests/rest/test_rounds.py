"""Connections on which much waits go round, by address: nobody else is kept waiting by them."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_service.clock import SystemClock
from oncelog_service.config import Settings
from oncelog_service.rest.bounds.rounds import AT_ONCE, HELD_BYTES, ONCE, TAKEN_AT_ONCE, Rounds
from oncelog_service.rest.exchange import Admitted, Head
from oncelog_service.rest.limits import PARTS_OF_A_REQUEST
from oncelog_service.rest.protocol import Shared
from tests.rest.talk import head
from tests.rest.test_protocol import Echo, Wire, declared, until


class Much:
    """A connection on which so many parts wait."""

    def __init__(self, rounds: Rounds, address: str, parts: int, looked: list[str]) -> None:
        self.rounds, self.address, self.parts, self.looked = rounds, address, parts, looked

    def look_on(self, most: int) -> int:
        took = min(self.parts, most)
        self.parts -= took
        self.looked.append(self.address)
        if self.parts:
            self.rounds.add(self)
        return took


def test_addresses_go_round_and_within_one_its_connections_and_a_turn_is_bounded() -> None:
    turns: list[object] = []
    looked: list[str] = []
    rounds = Rounds(turns.append)
    for _ in range(9):
        rounds.add(Much(rounds, "loud", 10 * ONCE, looked))
    rounds.add(Much(rounds, "quiet", 1, looked))
    count = 0
    while turns:
        before = len(looked)
        turns.pop()()  # type: ignore[operator]
        assert len(looked) - before <= AT_ONCE // ONCE + 1
        count += 1
    assert looked[:2] == ["loud", "quiet"]
    assert looked.count("loud") == 90
    assert count <= 46, "who is alone has every turn"
    assert not rounds._waiting


def test_one_that_fails_stands_in_nobodys_way() -> None:
    class Failing(Much):
        def look_on(self, most: int) -> int:
            raise RuntimeError("nobody foresaw this")

    turns: list[object] = []
    looked: list[str] = []
    rounds = Rounds(turns.append)
    rounds.add(Failing(rounds, "failing", 1, looked))
    rounds.add(Much(rounds, "quiet", 1, looked))
    with pytest.raises(RuntimeError):
        turns.pop()()  # type: ignore[operator]
    turns.pop()()  # type: ignore[operator]
    assert looked == ["quiet"]


class Counting(Echo):
    """Counts the requests that are judged."""

    judged = 0

    def admit(self, head: Head, address: object = None) -> Admitted:
        self.judged += 1
        return super().admit(head)


async def test_of_what_arrives_on_many_connections_in_one_turn_a_part_is_looked_at_and_who_asks_next_goes_past_the_rest() -> None:
    """The first requests of 500 connections took 75 ms together."""
    shared = Shared(echo := Counting(), Settings(store="memory://"), SystemClock())
    loud, quiet = [Wire(shared) for _ in range(500)], Wire(shared)
    for wire in loud:
        wire.protocol.data_received(declared(b"four"))
    assert echo.judged <= TAKEN_AT_ONCE // PARTS_OF_A_REQUEST
    quiet.protocol.address = "quiet"
    quiet.protocol.data_received(declared(b"four"))
    await until(lambda: quiet.is_done)
    assert sum(wire.is_done for wire in loud) < 200
    await until(lambda: all(wire.is_done for wire in loud))
    for wire in (*loud, quiet):
        assert len(wire.answers()) == 1
        assert wire.reads
        wire.abort()
    await asyncio.sleep(0)


async def test_what_waits_of_what_has_arrived_is_bounded_in_bytes_and_beyond_that_nothing_does() -> None:
    """A thousand bodies, of each what a connection reads at a time, were 250 MB that no bound knew of."""
    shared = Shared(Counting(), Settings(store="memory://"), SystemClock())
    wires, part = [Wire(shared) for _ in range(300)], b"x" * 2**18
    shared.rounds.taken = 10 * TAKEN_AT_ONCE
    shared.rounds.turn_soon()
    for wire in wires:
        wire.protocol.data_received(head("POST", "/", "content-length: 8000000") + part)
    assert HELD_BYTES - 2**19 < shared.rounds.held <= HELD_BYTES
    wires[0].protocol.connection_lost(None)
    for wire in wires[1:]:
        wire.abort()
    await until(lambda: not shared.rounds.held)
    await asyncio.sleep(0)


async def test_heads_that_never_end_are_looked_at_as_few_at_a_time_as_they_take() -> None:
    """A thousand of 64 KiB kept everybody waiting for 150 ms."""
    shared = Shared(Counting(), Settings(store="memory://"), SystemClock())
    wires, half = [Wire(shared) for _ in range(100)], head("GET", "/", *(f"a{number}: {'x' * 640}" for number in range(90)))[:-2]
    for wire in wires:
        wire.protocol.data_received(half)
    assert sum(wire.protocol._framing.is_within for wire in wires if wire.protocol._framing is not None) <= 20
    before = 20
    for _ in range(60):
        await asyncio.sleep(0)
        now = sum(wire.protocol._framing.is_within for wire in wires if wire.protocol._framing is not None)
        assert now - before <= 4
        before = max(now, before)
    assert before == 100
    for wire in wires:
        wire.abort()
    await asyncio.sleep(0)


async def test_a_byte_of_a_long_head_counts_as_a_byte() -> None:
    """Else 17 clients that send one now and then would have what all others send wait."""
    shared = Shared(Counting(), Settings(store="memory://"), SystemClock())
    half = head("GET", "/", *(f"a{number}: {'x' * 640}" for number in range(90)))[:-2]
    wires = [Wire(shared) for _ in range(20)]
    for wire in wires:
        await wire.send(half, turns=9)
    assert shared.rounds.taken < TAKEN_AT_ONCE // 2
    before = shared.rounds.taken
    for wire in wires:
        wire.protocol.data_received(b"x")
    assert shared.rounds.taken == before
    for wire in wires:
        wire.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize("raw", [head("GET", "/nothing"), declared(b"four")], ids=["refused", "obeyed"])
async def test_however_many_connections_wait_a_few_requests_are_begun_in_one_turn_of_the_event_loop(raw: bytes) -> None:
    """500 connections with 512 refusals behind one another each kept everybody waiting for 8 s."""
    shared = Shared(echo := Counting(), Settings(store="memory://"), SystemClock())
    wires = [Wire(shared) for _ in range(100)]
    for wire in wires:
        await wire.send(raw * 20)
    while not all(wire.is_done for wire in wires):
        before = echo.judged
        await asyncio.sleep(0)
        assert echo.judged - before <= AT_ONCE // PARTS_OF_A_REQUEST
    for wire in wires:
        assert len(wire.answers()) == 20
        wire.abort()
    await asyncio.sleep(0)
