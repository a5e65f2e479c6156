"""HTTP in bytes: however an answer is cut into pieces it is the same one, and none is taken for the answer to another request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import ConnectionFailed, InvalidResponse
from oncelog.http.connections import Connections
from oncelog.http.exchange import MAX_HEAD_BYTES, BadAnswer, Incoming, basic, request_bytes, target_of
from oncelog.http.sockets import Deadline
from oncelog.http.transport import Transport
from oncelog.http.trust import Trust
from oncelog.process.procedures import drive
from tests.patience import PATIENCE
from tests.sdk.fakes import listening

OK = b"HTTP/1.1 200 OK\r\n"
ONE = OK + b"Content-Length: 3\r\n\r\none"

# --- the core


def framed(body: bytes, how: str, chunk: int) -> bytes:
    """An answer with that body, framed so."""
    if how == "length":
        return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
    if how == "end":
        return OK + b"\r\n" + body
    pieces = [body[at : at + chunk] for at in range(0, len(body), chunk)]
    chunks = b"".join(b"%x;x=y\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Trailer: t\r\n\r\n"


@given(
    bodies=st.lists(st.tuples(st.binary(max_size=60), st.sampled_from(["length", "chunked"])), min_size=1, max_size=4),
    last=st.none() | st.binary(max_size=40),
    interim=st.booleans(),
    chunk=st.integers(1, 70),
    cuts=st.integers(1, 50),
)
def test_however_answers_are_cut_into_pieces_each_has_its_own_body(
    bodies: list[tuple[bytes, str]], last: bytes | None, interim: bool, chunk: int, cuts: int
) -> None:
    incoming = Incoming()
    wanted = [*bodies, *([] if last is None else [(last, "end")])]
    for body, how in wanted:
        data = (b"HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n" if interim else b"") + framed(body, how, chunk)
        incoming.begin()
        got = []
        for at in range(0, len(data), cuts):
            assert not incoming.complete
            got += incoming.feed(data[at : at + cuts])
        if how == "end":
            assert not incoming.complete
            incoming.feed(b"")
        assert (b"".join(got), incoming.status, incoming.complete) == (body, 200, True)
        assert not {"x-early", "x-trailer"} & incoming.headers.keys()
        assert incoming.reusable == (how != "end")


@given(body=st.binary(max_size=60), how=st.sampled_from(["length", "chunked"]), missing=st.integers(1, 400))
def test_an_answer_that_breaks_off_is_none(body: bytes, how: str, missing: int) -> None:
    data = framed(body, how, 7)
    incoming = Incoming()
    if sent := data[:-missing]:
        incoming.feed(sent)
    with pytest.raises(BadAnswer, match="closed before"):
        incoming.feed(b"")


def test_the_head_of_a_request_shows_nothing_of_what_is_in_it() -> None:
    head = request_bytes("GET", "here", "/", {"authorization": "Bearer s3cret"}, None)
    assert b"s3cret" in head
    assert repr(head) == f"<head of {len(head)} bytes>"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length : 5\r\n",
        b"no header\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(BadAnswer, match="no answer in HTTP"):
        Incoming().feed(OK + head + b"\r\n")


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("begin", [b"", b"X: ", CHUNKED + b"0\r\nX: ", CHUNKED + b"5;"])
def test_headers_trailers_and_extensions_end(begin: bytes) -> None:
    incoming = Incoming()
    with pytest.raises(BadAnswer, match="bytes of headers"):  # noqa: PT012
        incoming.feed(OK + begin)
        for _ in range(MAX_HEAD_BYTES // 100 + 2):
            incoming.feed(b"x" * 100 if begin else b"X: " + b"x" * 95 + b"\r\n")


@pytest.mark.parametrize("more", [ONE, b"HTTP/1.1 200 OK\r\nConte", b"garbage", b"\r\nH"])
def test_behind_an_answer_nobody_asked_for_no_other_request_is_sent(more: bytes) -> None:
    incoming = Incoming()
    assert incoming.feed(ONE + more) == [b"one"]
    assert (incoming.complete, incoming.reusable) == (True, False)


def test_a_request_is_its_lines_and_no_value_makes_a_line_of_its_own() -> None:
    assert request_bytes("POST", "h:1", "/a?b", {"accept": "x", "authorization": "y"}, b"12") == (
        b"POST /a?b HTTP/1.1\r\nhost: h:1\r\nuser-agent: oncelog\r\naccept-encoding: identity\r\naccept: x\r\n"
        b"authorization: y\r\ncontent-length: 2\r\n\r\n"
    )
    assert b"content-length" not in request_bytes("GET", "h", "/", {}, None)
    assert b"content-length: 0\r\n" in request_bytes("DELETE", "h", "/", {}, None)
    for broken in ("a\nb: c", "a\r", "\0"):
        with pytest.raises(ValueError, match="line break"):
            request_bytes("GET", "h", "/", {"authorization": broken}, None)
    with pytest.raises(ValueError, match="the token is no single line"):
        Transport("http://127.0.0.1:1", token="of a file\nwith two lines")
    with pytest.raises(ConnectionFailed, match="line break") as caught:
        Transport("http://127.0.0.1:1").call("GET", "/", accept="x\ny: z")
    assert caught.value.definite
    assert target_of(urlsplit("http://h/a b?ü=%41")) == "/a%20b?%C3%BC=%41"
    assert [basic(urlsplit(f"http://{who}h")) for who in ("a%3A:b%40@", "a@", "")] == ["Basic YTo6YkA=", "Basic YTo=", None]


def test_what_arrives_on_a_connection_that_was_closed_is_no_answer() -> None:
    incoming = Incoming()
    incoming.feed(ONE[:-1])
    incoming.close()
    with pytest.raises(BadAnswer, match="is closed"):
        incoming.feed(ONE[-1:])


# --- connections


def talking(*conversations: Callable[[socket.socket], None]) -> AbstractContextManager[str]:
    """A server that talks so on its first connection, so on its second, and hangs up when it has."""
    left = iter(conversations)
    return listening(lambda connection: next(left)(connection))


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    """Answers one request each."""

    def talk(connection: socket.socket) -> None:
        for answer in answers:
            assert connection.recv(65_536)
            connection.sendall(answer)

    return talk


def test_head_and_body_come_in_one_piece() -> None:
    seen = []

    def talk(connection: socket.socket) -> None:
        seen.append(connection.recv(65_536))
        connection.sendall(ONE)

    with talking(talk) as url:
        assert Transport(url).call("POST", "/", b"body" * 1_000, "text/plain") == b"one"
    assert seen[0].startswith(b"POST / HTTP/1.1\r\n")
    assert seen[0].endswith(b"\r\n\r\n" + b"body" * 1_000)


def test_a_connection_that_was_closed_meanwhile_is_not_asked() -> None:
    closed = threading.Event()

    def once(connection: socket.socket) -> None:
        answering(ONE)(connection)
        connection.shutdown(socket.SHUT_RDWR)
        closed.set()

    with talking(once, answering(ONE, ONE)) as url:
        transport = Transport(url)
        assert transport.call("GET", "/") == b"one"
        assert closed.wait(PATIENCE)
        assert [transport.call("POST", "/", b"x") for _ in range(2)] == [b"one", b"one"]
        transport.close()


def test_where_an_answer_is_still_to_come_no_other_request_is_sent() -> None:
    def half(connection: socket.socket) -> None:
        answering(OK + b"Content-Length: 3\r\n\r\n")(connection)
        connection.recv(1)

    with talking(half, answering(ONE)) as url:
        transport = Transport(url)
        with pytest.raises(InvalidResponse):
            transport.call("GET", "/", most=2)
        assert transport.call("GET", "/") == b"one"
        transport.close()


def test_an_answer_that_comes_unasked_is_nobodys() -> None:
    late = threading.Event()
    sent = threading.Event()

    def twice(connection: socket.socket) -> None:
        answering(ONE)(connection)
        late.wait(PATIENCE)
        connection.sendall(ONE.replace(b"one", b"bad"))
        sent.set()
        with suppress(OSError):  # closed with the answer unread
            connection.recv(1)

    with talking(twice, answering(ONE)) as url:
        transport = Transport(url)
        assert transport.call("GET", "/") == b"one"
        late.set()
        assert sent.wait(PATIENCE)
        assert transport.call("GET", "/") == b"one"
        transport.close()


class Deaf:
    """A network with one host, which has answered and takes nothing."""

    async def addresses(self, host: str, port: int, deadline: Deadline) -> list[Any]:
        raise AssertionError("it is no name")

    async def connect(self, address: Any, deadline: Deadline) -> Any:
        return self

    async def send(self, data: bytes, deadline: Deadline) -> None:
        raise BrokenPipeError

    async def receive(self, most: int, deadline: Deadline) -> bytes:
        return ONE


def test_who_refuses_a_body_unread_may_have_answered() -> None:
    response = drive(Connections(Trust(), Deaf()).ask("POST", "http://127.0.0.1:1", b"body", {}, Deadline(PATIENCE)))
    assert (response.status, drive(response.content())) == (200, b"one")
