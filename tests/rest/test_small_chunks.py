"""Bodies in chunks of next to nothing, and those that are refused: what they may cost, and for how long."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, cast

from oncelog.errors import InvalidRequest
from oncelog_service.config import Settings
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.exchange import Admitted, Head
from oncelog_service.rest.limits import MAX_SMALL_PARTS
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


class Echo:
    """Answers with how long the body is."""

    def admit(self, head: Head) -> Admitted:
        async def answer(body: bytes) -> Answer:
            return Answer(b"%d bytes" % len(body), "text/plain")

        return Admitted(answer, reads=False)


async def told(*reads: bytes, application: Application | None = None) -> tuple[bytes, int]:
    """What a connection writes that is given these, and how much of a body it takes."""
    shared, below = Shared(application or Echo(), Settings(store="memory://")), Below()
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
        def admit(self, head: Head) -> Admitted:
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


async def test_a_read_full_of_chunks_of_a_byte_is_refused_before_it_has_cost_much() -> None:
    written, taken = await told(HEAD, chunks(40_000, 1))
    assert written.startswith(b"HTTP/1.1 400 ")
    assert taken <= MAX_SMALL_PARTS


async def test_chunks_that_hold_something_and_small_ones_that_come_by_and_by_are_taken() -> None:
    for reads in ([chunks(20_000, 16)], [chunks(1_000, 1)] * 20):
        written, taken = await told(HEAD, *reads, b"0\r\n\r\n")
        assert written.startswith(b"HTTP/1.1 200 ")
        assert written.endswith(b"%d bytes" % taken)
