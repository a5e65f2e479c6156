"""Bodies in chunks of next to nothing, and those that are refused: what they may cost in one go, and for how long."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, cast

import pytest

from oncelog.errors import InvalidRequest
from oncelog_service.clock import SystemClock
from oncelog_service.config import Settings
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.exchange import Admitted, Head
from oncelog_service.rest.limits import PARTS_AT_ONCE
from oncelog_service.rest.protocol import Application, HttpConnection, Shared

HEAD = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


class Below:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Reading(Below):
    """One that knows whether it reads."""

    reads, closing = True, False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


class Echo:
    """Answers with how long the body is."""

    def admit(self, head: Head, address: object = None) -> Admitted:
        async def answer(body: bytes) -> Answer:
            return Answer(b"%d bytes" % len(body), "text/plain")

        return Admitted(answer, reads=False)


async def told(*reads: bytes, application: Application | None = None) -> tuple[bytes, int]:
    """What a connection writes that is given these, and how much of a body it takes."""
    shared, below = Shared(application or Echo(), Settings(store="memory://"), SystemClock()), Below()
    connection = HttpConnection(shared)
    connection.connection_made(cast(asyncio.Transport, below))
    for each in reads:
        connection.data_received(each)
    for _ in range(100):  # turns of the loop; nothing here waits for anything else
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return bytes(below.written), shared.traffic.body_bytes


def chunks(count: int, size: int) -> bytes:
    return (b"%x\r\n%b\r\n" % (size, b"x" * size)) * count


async def test_a_body_that_is_refused_is_held_no_longer_than_that_takes() -> None:
    """What was counted for it is given back then."""
    kept: list[weakref.ref[Below]] = []

    class Refusing:
        def admit(self, head: Head, address: object = None) -> Admitted:
            async def answer(body: bytes) -> Answer:
                kept.append(weakref.ref(held := Below()))  # in the frame, as the body is
                held.write(body)
                raise InvalidRequest("no")

            return Admitted(answer, reads=False)

    gc.disable()
    try:
        written, _ = await told(HEAD, chunks(1, 16), b"0\r\n\r\n", application=Refusing())
        assert written.startswith(b"HTTP/1.1 400 ")
        assert [each() for each in kept] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [1, 16])
async def test_a_read_full_of_small_chunks_is_looked_at_in_turns_and_taken(size: int) -> None:
    """As one who streams what json's iterencode yields sends them, where the service is busy for a moment."""
    shared, below = Shared(Echo(), Settings(store="memory://"), SystemClock()), Reading()
    connection = HttpConnection(shared)
    connection.connection_made(cast(asyncio.Transport, below))
    connection.data_received(HEAD + chunks(40_000, size) + b"0\r\n\r\n" + HEAD + chunks(40_000, size) + b"0\r\n\r\n")
    before, goes_on = 0, True
    while goes_on:
        taken = shared.traffic.body_bytes
        assert taken - before <= 2 * PARTS_AT_ONCE * size
        assert connection._framing is not None
        assert below.reads == (not connection._framing.has_more)
        before, goes_on = taken, connection._framing.has_more
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert below.written.count(b"%d bytes" % (40_000 * size)) == 2
    assert below.reads
    connection.connection_lost(None)


async def test_what_waits_for_its_turn_goes_with_its_connection() -> None:
    for ends in (HttpConnection.abort, lambda connection: connection.connection_lost(None)):
        shared, below = Shared(Echo(), Settings(store="memory://"), SystemClock()), Reading()
        connection = HttpConnection(shared)
        connection.connection_made(cast(asyncio.Transport, below))
        connection.data_received(HEAD + chunks(40_000, 1))
        ends(connection)
        taken = shared.traffic.body_bytes
        for _ in range(10):
            await asyncio.sleep(0)
        assert shared.traffic.body_bytes in (0, taken)
        assert connection._framing is None
        if not connection._lost:
            connection.connection_lost(None)


async def test_chunks_that_hold_something_and_small_ones_that_come_by_and_by_are_taken() -> None:
    for reads in ([chunks(20_000, 16)], [chunks(1_000, 1)] * 20):
        written, taken = await told(HEAD, *reads, b"0\r\n\r\n")
        assert written.startswith(b"HTTP/1.1 200 ")
        assert written.endswith(b"%d bytes" % taken)
