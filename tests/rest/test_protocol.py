"""HTTP on a connection, its bytes cut anywhere: the protocol itself, on a transport that holds what was written."""

from __future__ import annotations

import asyncio
import gc
import gzip
import re
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from itertools import repeat
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import MethodNotAllowed, NotFound, Unauthorized
from oncelog_service.clock import SystemClock
from oncelog_service.config import Settings
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.bounds.pace import Pace
from oncelog_service.rest.exchange import CONTINUE, Admitted, Answers, Exchange, Head, Step
from oncelog_service.rest.heads import Heads, Known
from oncelog_service.rest.limits import Bodies
from oncelog_service.rest.protocol import HttpConnection, Shared
from oncelog_service.traffic import Traffic
from tests.rest.talk import head, read_answer

LIMIT = 1_024
"""Bytes of a body."""
ALL = 4_096
"""Bytes of all bodies."""


class Echo:
    """Answers /echo with what it was sent, after a turn or two of the event loop, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.stopped = 0
        self.gate = asyncio.Event()
        self.gate.set()

    def admit(self, head: Head, address: object = None) -> Admitted:
        if head.path not in ("/echo", "/read"):
            raise NotFound("nothing here")
        if head.method != "POST":
            raise MethodNotAllowed("POST only", allowed=["POST"])
        return Admitted(partial(self._answer, head.path), head.path == "/read")

    async def _answer(self, path: str, body: bytes) -> Answer:
        self.seen.append(body)
        try:
            await self.gate.wait()
            for _ in range(len(body) % 3):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return Answer(body, path)


class Stepping(Echo):
    """Answers some of them in a step, a turn or two of the event loop later."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def admit(self, head: Head, address: object = None) -> Admitted:
        admitted = super().admit(head)
        return admitted._replace(step=partial(Echoing, self), address=head.path) if head.path == "/echo" else admitted


class Echoing:
    """One step of it."""

    def __init__(self, echo: Stepping, exchange: Exchange, connection: Answers) -> None:
        self.echo, self.exchange, self.connection = echo, exchange, connection

    def begin(self, behind: Step | None = None) -> bool:
        body = self.exchange.body
        if len(body) % 4 == 3 or self.exchange.head.is_packed:
            return False
        self.echo.seen.append(body)
        self.echo.steps += 1
        self.give(len(body) % 4)
        return True

    def give(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self.give, turns - 1)
        else:
            asyncio.get_running_loop().call_soon(
                self.connection.give, self.exchange, Answer(self.exchange.body, self.exchange.head.path)
            )


class Wire(asyncio.Transport):
    """A connection whose client reads nothing before it is asked."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False
        self.lost = False
        self.unread: Iterator[int] = iter(range(0))
        """How much is unread whenever that is asked; nothing at last."""
        self.reads = True
        self.lingers = False
        """It can be closed in one direction."""
        self.ended = False
        self.protocol = HttpConnection(shared)
        self.protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return next(self.unread, 0)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        if not self.get_write_buffer_size():
            self.abort()

    def abort(self) -> None:
        self.closed = True
        if not self.lost:
            self.lost = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return self.lingers

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    @property
    def is_done(self) -> bool:
        """All that has come is answered."""
        connection = self.protocol
        return self.closed or (connection._current is None and not (connection._framing and connection._framing.has_more))

    async def send(self, data: bytes, turns: int = 0) -> None:
        """As the network brings it: only while the protocol reads."""
        await until(lambda: self.reads or self.closed)
        if not self.closed:
            self.protocol.data_received(data)
        for _ in range(turns):
            await asyncio.sleep(0)

    def answers(self) -> list[tuple[int, bytes]]:
        stream, found = BytesIO(self.sent), []
        while (answer := read_answer(stream))[0]:
            found.append((answer[0], answer[2]))
        return [each for each in found if each[0] != 100]


class Told(NamedTuple):
    """A request, and what it must be answered."""

    raw: bytes
    status: int
    body: bytes | None = None
    """It is obeyed, and answered with this."""
    ends: bool = False
    """No other request follows on the connection."""


def declared(body: bytes, *headers: str) -> bytes:
    return head("POST", "/echo", f"content-length: {len(body)}", *headers) + body


def chunked(parts: list[bytes], trailer: bytes = b"expect: 100-continue") -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)
    return head("POST", "/echo", "transfer-encoding: chunked") + chunks + b"0\r\n" + trailer + b"\r\n\r\n"


BODIES = st.binary(max_size=300) | st.just(b"GET / HTTP/1.1\r\n\r\n")
GOOD = (
    BODIES.map(lambda body: Told(declared(body), 200, body))
    | BODIES.map(lambda body: Told(declared(body, "Expect: 100-Continue"), 200, body))
    | BODIES.map(lambda body: Told(declared(body, "connection: Upgrade, HTTP2-Settings", "upgrade: h2c"), 200, body))
    | BODIES.map(
        lambda body: Told(declared(gzip.compress(body), "Content-Encoding: X-GZip \t", "expect: 100-continue "), 200, body)
    )
    | st.lists(BODIES, max_size=3).map(lambda parts: Told(chunked(parts), 200, b"".join(parts)))
    | st.sampled_from(
        [
            Told(head("GET", "/nothing"), 404),
            Told(head("GET", "/nothing", "connection: upgrade", "upgrade: h2c"), 404),
            Told(head("GET", "/echo"), 405),
            Told(head("POST", "/nothing", "content-length: 2000") + b"x" * 2_000, 404),
            Told(declared(b"x" * LIMIT), 200, b"x" * LIMIT),
            Told(declared(b"x" * (LIMIT + 1)), 413),
            Told(chunked([b"x" * 700] * 2), 413),
        ]
    )
)
ENDS = [
    Told(declared(b"bye", "connection: close"), 200, b"bye", ends=True),
    Told(chunked([b"bye"], b"connection: close"), 200, b"bye", ends=True),
    Told(declared(b"old").replace(b"HTTP/1.1", b"HTTP/1.0"), 200, b"old", ends=True),
    *(
        Told(garbage, 400, ends=True)
        for garbage in (
            b"garbage\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # who speaks TLS
            b"GET\r\n\r\n",
            b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
            head("POST", "/echo", "bad header"),
            head("POST", "/echo", "content-length: -5"),
            head("POST", "/echo", f"content-length: {10**30}"),
            head("POST", "/echo", *["x:"] * 100),
        )
    ),
    Told(declared(b"x", "transfer-encoding: chunked"), 400, ends=True),
    Told(head("POST", "/echo", "transfer-encoding: chunked") + b"zz\r\n", 400, ends=True),
    Told(head("POST", "/nothing", "transfer-encoding: chunked") + b"zz\r\n", 404, ends=True),
    *(
        Told(chunked([b"x"]).replace(b"transfer-encoding: chunked", coding), 400, ends=True)
        for coding in (
            b"transfer-encoding: gzip, chunked",
            b"transfer-encoding: gzip\r\ntransfer-encoding: chunked",
            b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            b"transfer-encoding: identity",
        )
    ),
    Told(b"CONNECT oncelog:80 HTTP/1.1\r\n\r\n", 400, ends=True),
]
"""What is the last that is answered on a connection."""
LAST = st.sampled_from(ENDS)


def exchanges() -> int:
    """How many requests are remembered."""
    return sum(type(each) is Exchange for each in gc.get_objects())


async def until(holds: Callable[[], object]) -> None:
    """Give the event loop turns until this holds."""
    for _ in range(1_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never comes to hold")


async def in_time(holds: Callable[[], object]) -> None:
    """Wait until this holds."""
    for _ in range(100_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never comes to hold")


def run(check: Callable[[Echo, Shared], object], room: int = ALL, answers: type[Echo] = Echo) -> None:
    """``check``: a coroutine function; ``room``: bytes of all bodies."""

    async def main() -> None:
        echo = answers()
        shared = Shared(echo, Settings(store="memory://", max_request_bytes=LIMIT, max_inflight_bytes=room), SystemClock())
        await check(echo, shared)  # type: ignore[misc]
        for connection in shared.connections:
            connection.abort()
        await until(lambda: not shared.connections and not shared.exchanges)
        assert (shared._under_way, dict(shared._of_one), shared._long, dict(shared._long_of_one)) == (0, {}, 0, {})
        shared.bodies.take(Exchange(Head("", "", b"", "", {}), True), b"")
        for _ in range(room // LIMIT):
            shared.bodies.take(Exchange(Head("", "", b"", "", {}), True), b"x" * LIMIT)  # all of it was given back

    asyncio.run(main())


@given(st.lists(GOOD, max_size=5), st.none() | LAST, st.sampled_from([Echo, Stepping]), st.booleans(), st.data())
def test_however_the_bytes_are_cut_the_same_is_answered_and_done_in_order(
    requests: list[Told], last: Told | None, kind: type[Echo], one_by_one: bool, data: st.DataObject
) -> None:
    """Also where each is answered before the next one comes, so that heads come again which are remembered."""
    told = requests * 3 if one_by_one else requests
    told = told if last is None else [*told, last]
    raw = b"".join(each.raw for each in told) + (b"" if last is None else b"POST /echo HTTP/1.1\r\n\r\n")
    if one_by_one:
        cuts = [(sum(len(each.raw) for each in told[:upto]), 9) for upto in range(1, len(told) + 1)]
    else:
        cuts = data.draw(st.lists(st.tuples(st.integers(0, len(raw)), st.integers(0, 12)), max_size=6).map(sorted), "cuts")

    async def check(echo: Echo, shared: Shared) -> None:
        for _ in range(3):  # what one connection has left behind is met by the next
            echo.seen.clear()
            wire, at = Wire(shared), 0
            for cut, turns in [*cuts, (len(raw), 0)]:
                await wire.send(raw[at:cut], turns)
                at = cut
            await until(lambda wire=wire: wire.is_done)  # type: ignore[misc]
            await asyncio.sleep(0)
            answers, expected = wire.answers(), [each.status for each in told]
            if last is not None and last.status == 400 and len(answers) < len(expected):
                expected.pop()  # an answer was still to come, and this must not pass for it
            assert [status for status, _ in answers] == expected
            obeyed = [each.body for each in told if each.body is not None]
            assert [body for status, body in answers if status == 200] == obeyed == echo.seen
            assert wire.closed == (last is not None)

    run(check, 8 * LIMIT, kind)  # six requests that arrive in one go are all held, and three quarters of the room are for such


@pytest.mark.parametrize("ends", [HttpConnection.shut_down, HttpConnection._look_at_the_clock], ids=["stopped", "due"])
def test_what_is_to_end_a_connection_that_is_about_to_be_looked_at_ends_it_then(ends: Callable[[HttpConnection], None]) -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(b"GET /echo HTTP/1.1\r\nhost: oncelog\r\n\r\n", turns=9)
        assert len(wire.answers()) == 1
        wire.protocol.resume_writing()  # its client has read the answer
        wire.protocol._due = asyncio.get_running_loop().time()
        ends(wire.protocol)
        await until(lambda: wire.closed)

    run(check)


def test_whatever_ends_a_connection_is_answered_and_nothing_behind_it_is_read() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        for last in ENDS:
            wire = Wire(shared)
            for byte in last.raw + b"POST /echo HTTP/1.1\r\n\r\n":
                await wire.send(bytes([byte]))
            await until(lambda wire=wire: wire.closed)  # type: ignore[misc]
            assert [status for status, _ in wire.answers()] == [last.status], last

    run(check)


@given(st.integers(0, 400), st.booleans())
def test_a_request_that_is_cut_off_is_not_obeyed(cut: int, chunks: bool) -> None:
    raw = chunked([b"x" * 100, b"y" * 100]) if chunks else declared(b"x" * 200)

    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(raw[: min(cut, len(raw) - 1)])
        wire.protocol.connection_lost(None)
        wire.closed = True
        await asyncio.sleep(0)
        assert echo.seen == []

    run(check)


def test_a_request_whose_client_has_gone_before_it_is_begun_is_not_obeyed() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(declared(b"first") + declared(b"second"))
        wire.closed = True
        wire.protocol.connection_lost(None)
        await asyncio.sleep(0)
        assert echo.seen == []

    run(check)


@pytest.mark.parametrize("path", ["/echo", "/read"])
def test_what_only_reads_ends_with_its_client_and_nothing_else(path: str) -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        echo.gate.clear()
        await wire.send(head("POST", path, "content-length: 4") + b"body", turns=2)
        wire.closed = True
        wire.protocol.connection_lost(None)
        await asyncio.sleep(0)
        assert echo.stopped == (path == "/read")
        echo.gate.set()
        await until(lambda: not shared.exchanges)

    run(check)


def test_to_a_client_that_does_not_read_nothing_more_is_answered_and_what_it_sends_is_not_read() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        wire.protocol.pause_writing()
        await wire.send(declared(b"x" * 3) * 5, turns=20)
        assert wire.sent == b""
        assert echo.seen == [], "each is begun when its answer can be written"
        assert not wire.reads
        wire.protocol.resume_writing()
        await until(lambda: wire.is_done)
        assert [status for status, _ in wire.answers()] == [200] * 5
        assert wire.reads

    run(check)


def test_who_asks_whether_to_send_a_body_is_told_only_if_it_will_be_read_and_when_its_turn_has_come() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        asking = head("POST", "/echo", "content-length: 4", "expect: 100-continue")
        wire = Wire(shared)
        await wire.send(asking, turns=2)
        assert wire.sent == CONTINUE
        echo.gate.clear()
        await wire.send(b"body" + asking, turns=2)
        assert wire.sent == CONTINUE
        echo.gate.set()
        await until(lambda: wire.sent.count(CONTINUE) == 2)
        assert wire.sent.endswith(b"body" + CONTINUE)
        for hopeless in (asking.replace(b"/echo", b"/nothing"), asking.replace(b"length: 4", b"length: 5000")):
            other = Wire(shared)
            await other.send(hopeless, turns=5)
            assert not other.sent.startswith(CONTINUE)
            assert len(other.answers()) == 1

    run(check)


def test_a_stop_finishes_what_is_under_way_says_that_it_is_the_last_and_takes_no_more() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        idle, busy = Wire(shared), Wire(shared)
        await idle.send(declared(b"before"))
        await until(lambda: bool(idle.answers()))
        echo.gate.clear()
        await busy.send(declared(b"one") + declared(b"two"), turns=2)
        for wire in (idle, busy):
            wire.protocol.shut_down()
        assert (idle.closed, busy.closed) == (True, False)
        echo.gate.set()
        await until(lambda: busy.closed)
        assert b"\r\nconnection: close\r\n" in busy.sent
        assert busy.answers() == [(200, b"one"), (200, b"two")]
        assert busy.sent.index(b"connection: close") > busy.sent.index(b"one"), "only the last one says so"
        assert echo.seen == [b"before", b"one", b"two"]

    run(check)


@pytest.mark.parametrize("of_one", [False, True])
def test_more_requests_at_once_than_the_service_takes_are_refused_and_counted_until_they_end(of_one: bool) -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        if of_one:
            shared._most_of_one = 2
        else:
            shared.places.all = 2
        echo.gate.clear()
        wires = [Wire(shared) for _ in range(4)]
        for wire in wires[:2]:
            await wire.send(declared(b"x"), turns=2)
        wires[0].closed = True
        wires[0].protocol.connection_lost(None)
        await wires[2].send(declared(b"x"), turns=5)
        assert [status for status, _ in wires[2].answers()] == [503], "one whose client has hung up is still under way"
        assert wires[2].closed
        echo.gate.set()
        await wires[3].send(b"", turns=5)
        await wires[3].send(declared(b"y") * 9)
        await until(lambda: len(wires[3].answers()) == 9)
        assert wires[3].answers() == [(200, b"y")] * 9, "what waits behind another request is not counted"

    run(check)


def test_who_is_refused_takes_nobodys_turn() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        shared.places.all = 1
        wires = [Wire(shared) for _ in range(9)]
        for wire in wires[:8]:
            await wire.send(b"garbage\r\n\r\n")  # its refusal is under way
        await wires[8].send(declared(b"x"), turns=9)
        assert wires[8].answers() == [(200, b"x")]

    run(check)


def test_of_a_head_request_only_the_head_is_answered() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(head("HEAD", "/echo"), turns=5)
        assert wire.sent.startswith(b"HTTP/1.1 405 Method Not Allowed\r\ndate: ")
        assert re.search(rb"\r\nallow: POST\r\ncontent-length: 165\r\nx-request-id: [0-9a-f]{8}-1\r\n\r\n$", wire.sent)

    run(check)


@pytest.mark.parametrize("first", [b"", declared(b"good")])
def test_a_request_that_cannot_even_be_judged_ends_its_connection(first: bytes) -> None:
    class Fails(Echo):
        def admit(self, head: Head, address: object = None) -> Admitted:
            if head.path == "/fails":
                raise RuntimeError("nobody foresaw it")
            return super().admit(head)

    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(first + head("GET", "/fails") + declared(b"behind"))
        await until(lambda: wire.closed)
        assert [status for status, _ in wire.answers()] == [200, 500][not first :]
        assert echo.seen == [b"good"][not first :]

    run(check, answers=Fails)


def test_what_waits_behind_a_request_is_bytes_and_is_answered_however_much_it_is() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        echo.gate.clear()
        gc.collect()
        before = exchanges()
        await wire.send(b"".join(declared(b"%d" % number) for number in range(2_000)), turns=9)
        assert exchanges() == before + 1
        assert not wire.reads
        echo.gate.set()
        await in_time(lambda: wire.is_done)
        assert [body for _, body in wire.answers()] == echo.seen == [b"%d" % number for number in range(2_000)]
        assert wire.reads

    run(check)


@given(st.lists(st.binary(min_size=1, max_size=600), max_size=20))
def test_a_body_is_what_its_parts_are_and_takes_about_as_much_memory(parts: list[bytes]) -> None:
    exchange, bodies = Exchange(Head("", "", b"", "", {}), True), Bodies(10**6, 10**6, Traffic(), SystemClock().elapsed)
    for part in parts:
        bodies.take(exchange, part)
    assert exchange.body == b"".join(parts)
    assert isinstance(exchange.body, bytes)
    assert len(exchange.parts) <= 2 + 2 * len(exchange.body) // 512


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_takes_nothing_of_its_answer_is_waited_for_only_so_long(reads: bool) -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        shared.unread.pace = Pace(1, 0.05)
        waiting, closing = Wire(shared), Wire(shared)
        for wire in (waiting, closing):
            wire.unread = iter(range(9, 0, -1)) if reads else repeat(9)
        waiting.protocol.pause_writing()
        await waiting.send(declared(b"x"))
        await closing.send(declared(b"x", "connection: close"))
        if reads:
            await in_time(lambda: next(waiting.unread, None) is None)
            assert (waiting.lost, closing.lost) == (False, False)
            waiting.protocol.resume_writing()
            await until(lambda: waiting.answers())
        else:
            await in_time(lambda: waiting.lost and closing.lost)
            assert waiting.answers() == []

    run(check)


AROUND = head("POST", "/echo", "transfer-encoding: chunked") + b"2\r\nxy\r\n"


@pytest.mark.parametrize(
    "begun", [b"POST /echo HTTP/1.1\r\nx: ", AROUND + b"0\r\nx: ", AROUND + b"1;"], ids=["head", "trailer", "extension"]
)
@pytest.mark.parametrize("path", [b"/echo", b"/nothing"])
def test_a_head_and_what_surrounds_a_body_are_bounded(path: bytes, begun: bytes) -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(begun.replace(b"/echo", path), turns=5)
        sent = 0
        while not wire.closed:
            await wire.send(b"x" * 1_000, turns=5)
            sent += 1_000
        assert 60_000 < sent < 70_000
        assert [status for status, _ in wire.answers()] == [404 if path == b"/nothing" and begun.startswith(AROUND) else 400]
        assert echo.seen == []

    run(check)


@pytest.mark.parametrize(
    "raw",
    [
        head("POST", "/nothing", "content-length: 0"), declared(bytes(LIMIT + 1)), chunked([bytes(LIMIT), b"x"]),
        head("POST", "/echo", "transfer-encoding: gzip"), b"garbage\r\n\r\n",
    ],
)  # fmt: skip
def test_of_a_request_that_was_refused_nothing_stays_until_a_collection(raw: bytes) -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(raw)
        await until(lambda: not shared.exchanges)
        assert [status >= 400 for status, _ in wire.answers()] == [True]
        wire.abort()
        await until(lambda: not shared.connections)
        vars(wire).clear()  # as a transport lets go of what it was of

    gc.collect()
    gc.disable()
    try:
        before = exchanges()
        run(check)
        assert exchanges() == before
    finally:
        gc.enable()


def test_a_head_that_came_before_is_not_parsed_again_and_its_request_is_judged_again() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire, raw = Wire(shared), declared(b"four")
        for _ in range(2):
            await wire.send(raw, 9)
        assert [*shared.heads.known] == [raw[: -len(b"four")]]
        assert wire.protocol._framing is not None
        wire.protocol._framing._parser = _Deaf()
        await wire.send(raw, 9)
        assert wire.answers() == [(200, b"four")] * 3
        shared.application = Refusing()
        await wire.send(raw, 9)
        assert wire.answers()[3][0] == 401

    run(check, answers=Stepping)


class _Deaf:
    def feed_data(self, data: bytes) -> None:
        raise AssertionError("it is parsed")


class Refusing:
    def admit(self, head: Head, address: object = None) -> Admitted:
        raise Unauthorized


@pytest.mark.parametrize(
    "raw",
    [
        declared(b"four", "expect: 100-continue"),
        declared(b"four", "x-request-id: 1"),
        declared(b"four", "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        declared(b"four", "connection: close"),
        declared(b"four", f"x: {'.' * 2_048}"),
        declared(b"four").replace(b"content-length: 4", b"content-length: 04"),
        declared(b"four").replace(b"HTTP/1.1", b"HTTP/1.0"),
        declared(gzip.compress(b"", mtime=0), "content-encoding: gzip"),
        chunked([b"four"]),
    ],
    ids=str,
)
def test_a_head_that_makes_its_request_another_one_is_not_remembered(raw: bytes) -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        for _ in range(3):
            wire = Wire(shared) if wire.closed else wire
            await wire.send(raw, 9)
        assert not shared.heads.known

    run(check, answers=Stepping)


def test_heads_that_are_remembered_are_bounded_and_one_that_never_comes_again_is_none() -> None:
    heads, known = Heads(), Known("POST", "/echo", b"", "/echo", {}, 4, "/echo")
    for number in range(20_000):
        heads.came(b"once %d" % number, known)
    assert not heads.known
    assert len(heads._once) <= 4_096
    for number in range(10_000):
        for _ in range(2):
            heads.came(b"%05d" % number + b"." * 1_500, known)
        assert len(heads.known) <= 4_096
        assert sum(map(len, heads.known)) <= 4 * 2**20
    assert heads.known


def test_what_a_step_gives_waits_for_a_client_that_does_not_read_and_nothing_is_begun_meanwhile() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(declared(b"xx"))
        wire.protocol.pause_writing()
        await until(lambda: wire.protocol._current is not None and wire.protocol._current.answering is not None)
        assert wire.sent == b""
        wire.protocol.resume_writing()
        await until(lambda: not shared.exchanges)
        assert wire.answers() == [(200, b"xx")]

    run(check, answers=Stepping)


def test_a_client_that_has_gone_is_given_nothing_and_its_step_counts_until_it_ends() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(declared(b"xx"))
        wire.abort()
        await asyncio.sleep(0)
        assert wire.protocol._lost
        assert shared.exchanges, "it is handed over"
        await until(lambda: not shared.exchanges)
        assert (echo.seen, wire.sent) == ([b"xx"], b"")

    run(check, answers=Stepping)


def test_what_follows_in_a_head_that_has_begun_is_no_request() -> None:
    """The first bytes of a second head come with the first request, and the rest once that is answered: however often that
    happens, nothing of it is remembered, and what looks like a head there that is remembered is none."""

    async def check(echo: Echo, shared: Shared) -> None:
        raw = declared(b"four", "authorization: Bearer secret")
        tail = raw.index(b"content-length")
        for _ in range(3):
            wire = Wire(shared)
            await wire.send(raw + raw[:tail], 9)
            await wire.send(raw[tail:], 9)
            assert wire.answers() == [(200, b"four")] * 2
        for known in shared.heads.known:
            assert known.startswith(b"POST /echo HTTP/1.1")
        wire = Wire(shared)
        await wire.send(raw[tail:], 9)
        assert [status for status, _ in wire.answers()] == [400]
        for _ in range(2):
            await Wire(shared).send(raw, 9)
        assert raw[: -len(b"four")] in shared.heads.known
        wire = Wire(shared)
        await wire.send(raw + head("POST", "/echo", "content-length: 3", "x: ")[:-4], 9)
        await wire.send(raw, 9)
        await until(lambda: wire.closed or len(wire.answers()) == 2)
        assert wire.answers()[0] == (200, b"four")
        assert (200, b"four") not in wire.answers()[1:], "it is a part of a header"

    run(check, 8 * LIMIT, answers=Stepping)
