"""A call has ended when its time is up, whatever comes back, and however slowly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle

import pytest

from oncelog import Client, Producer
from oncelog.errors import ConnectionFailed, OncelogError, ResponseTimeout
from oncelog.http.transport import Transport
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, Request, fake_server

_PACE = 0.02
_DRIPS = 1_500
"""So many bytes at that pace take half a minute: a client that waits for all of them is one that waits too long."""


class Dripping:
    def __init__(self, url: str) -> None:
        self.url = url
        self.sent = 0


@contextmanager
def dripping(begin: bytes, drip: bytes) -> Iterator[Dripping]:
    """A server that answers each connection with ``begin`` at once, and then byte by byte with ``drip``, over and over."""
    ended = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection:
            connection.recv(65_536)
            connection.sendall(begin)
            for byte in cycle(drip):
                if ended.wait(_PACE) or server.sent >= _DRIPS:
                    return
                connection.sendall(bytes([byte]))
                server.sent += 1

    def serve() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_quietly, args=(talk, connection), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Dripping(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def _quietly(talk: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with suppress(OSError):  # the client has hung up
        talk(connection)


_OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (b"", b"HTTP/1.1 200 OK"),
        (_OK + b"X-A: ", b"x"),
        (_OK, b"X-A: b\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (_OK + b"Content-Length: 100000\r\n\r\n", b"x"),
        (_OK + b"\r\n", b"x"),
        (_OK + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n", b"x"),
        (_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 503 Away\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"HTTP/1.1 307 There\r\nLocation: /there\r\nContent-Length: 100000\r\n\r\n", b"x"),
    ],
    ids=["status", "header", "headers", "continue", "body", "unframed", "chunk", "chunks", "refusal", "redirect"],
)
def test_an_answer_that_drips_ends_with_its_time(begin: bytes, drip: bytes) -> None:
    with dripping(begin, drip) as server:
        transport = Transport(server.url, timeout=0.3)
        with pytest.raises(ConnectionFailed) as caught:
            transport.call("POST", "/", b"body", "text/plain")
        assert server.sent < _DRIPS
        assert not caught.value.definite or begin.startswith(b"HTTP/1.1 307")  # who redirects has not done it
        transport.close()


def test_a_line_that_drips_ends_with_its_time() -> None:
    with dripping(_OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\n{}\n{\r\nffff\r\n", b"x") as server:
        transport = Transport(server.url, timeout=0.3)
        lines = transport.lines("POST", "/")
        assert next(lines) == b"{}"
        with pytest.raises(ResponseTimeout):
            next(lines)
        assert server.sent < _DRIPS
        transport.close()


def test_lines_that_come_one_by_one_may_take_longer_than_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    later = 0.0
    monkeypatch.setattr("oncelog.http.deadline.time.monotonic", lambda real=time.monotonic: real() + later)
    with dripping(_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nline\n\r\n") as server:
        transport = Transport(server.url, timeout=60)
        lines = transport.lines("POST", "/")
        for _ in range(4):
            assert next(lines) == b"line"
            later += 40
        later += 40
        with pytest.raises(ResponseTimeout):
            next(lines)
        transport.close()


def test_a_connection_that_is_used_again_has_the_time_of_its_own_request() -> None:
    """The time-out of a socket outlives its request."""
    hold = threading.Event()

    def handle(request: Request) -> Answer:
        if request.path == "/held":
            hold.wait(PATIENCE)
        return Answer(200, b"x")

    with fake_server(handle) as fake:
        transport = Transport(fake.url)
        assert transport.call("GET", "/", timeout=0.5) == b"x"
        time.sleep(0.6)
        assert transport.call("GET", "/", timeout=PATIENCE) == b"x"
        with pytest.raises(ConnectionFailed):
            transport.call("GET", "/held", timeout=0.3)
        hold.set()
        transport.close()


def test_a_send_ends_with_its_time_when_the_answer_drips() -> None:
    opened = Answer(200, b'{"name": "p", "epoch": 1, "lastSequenceId": null, "lastMessageId": null}')
    with (
        fake_server(lambda _: opened) as fake,
        dripping(_OK + b"Content-Length: 100000\r\n\r\n", b"x") as server,
        Client(fake.url, timeout=0.3, retry=0) as client,
    ):
        producer = Producer("t", name="p", client=client, delivery_timeout=0.5)
        client._transport._bases = [server.url]
        with pytest.raises(OncelogError) as caught:
            producer.send(b"x")
        assert server.sent < _DRIPS
        assert not caught.value.definite


def test_the_addresses_of_a_host_share_the_time_for_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight that do not answer took eight times as long."""
    with _full() as (family, address):
        real = socket.getaddrinfo

        def eight(host: str, *given: object, **named: object) -> object:
            if host != "many.example":
                return real(host, *given, **named)  # type: ignore[arg-type]
            return [(family, socket.SOCK_STREAM, 6, "", address)] * 8

        monkeypatch.setattr(socket, "getaddrinfo", eight)
        transport = Transport(f"http://many.example:{address[1]}", timeout=0.4)
        begun = time.monotonic()
        with pytest.raises(ConnectionFailed) as caught:
            transport.call("GET", "/")
        assert time.monotonic() - begun < 20
        assert caught.value.definite


def test_a_name_that_is_not_found_in_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, real = threading.Event(), socket.getaddrinfo

    def slow(host: str, *given: object, **named: object) -> object:
        if host == "slow.example":
            if named or socket.AI_NUMERICHOST in given:
                raise socket.gaierror(-2, "a name")
            ended.wait(PATIENCE)
        return real(host, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        with pytest.raises(ConnectionFailed) as caught:
            Transport("http://slow.example", timeout=0.2).call("GET", "/")
        assert caught.value.definite
        assert not ended.is_set()
    finally:
        ended.set()


@contextmanager
def _full() -> Iterator[tuple[socket.AddressFamily, tuple[str, int]]]:
    """An address that takes no connection and refuses none: its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        try:
            for _ in range(4):
                each = socket.socket()
                waiting.append(each)
                each.setblocking(False)
                each.connect_ex(listener.getsockname())
            yield socket.AF_INET, listener.getsockname()
        finally:
            for each in waiting:
                each.close()
