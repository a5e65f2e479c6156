"""What sockets in memory do is what those of this machine do: the same, asked of both."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Iterator

import pytest

pytestmark = [
    pytest.mark.parametrize("world", ["memory", pytest.param("machine", marks=pytest.mark.real)]),
    pytest.mark.usefixtures("world"),
]
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def world() -> None:
    """The mark alone decides which of them :mod:`socket` has."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        opened.listen()
        yield opened


@pytest.fixture
def pair(listener: socket.socket) -> Iterator[Pair]:
    with socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            yield one, other


def test_nobody_is_reached_where_nobody_listens(listener: socket.socket) -> None:
    address = listener.getsockname()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_port_has_one_listener(listener: socket.socket) -> None:
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(listener.getsockname())


def test_a_port_that_is_only_named_may_be_shared() -> None:
    with socket.socket() as kept, socket.socket() as used:
        for each in (kept, used):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        used.bind(kept.getsockname())
        used.listen()
        with socket.create_connection(used.getsockname()):
            pass


def test_both_ends_know_each_other(pair: Pair) -> None:
    one, other = pair
    assert (one.getpeername(), one.getsockname()) == (other.getsockname(), other.getpeername())


def test_bytes_come_in_order_and_the_end_behind_them(pair: Pair) -> None:
    one, other = pair
    one.sendall(b"ab")
    one.sendall(b"c")
    one.shutdown(socket.SHUT_WR)
    with other.makefile("rb") as file:
        assert file.read() == b"abc"
    other.sendall(b"back")
    assert one.recv(10) == b"back"


def test_what_is_closed_unread_is_reset(pair: Pair) -> None:
    one, other = pair
    one.sendall(b"unread")
    other.close()
    with pytest.raises(ConnectionResetError):
        one.recv(1)


def test_what_does_not_linger_is_reset(pair: Pair) -> None:
    one, other = pair
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    with pytest.raises(ConnectionResetError):
        one.recv(1)


def test_whoever_sends_to_nobody_hears_of_it(pair: Pair) -> None:
    one, other = pair
    other.close()
    assert one.recv(1) == b""
    one.sendall(b"x")  # which is answered so
    with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
        one.sendall(b"x")


def test_whoever_is_not_read_can_send_no_more(pair: Pair) -> None:
    one, other = pair
    one.setblocking(False)
    with pytest.raises(BlockingIOError):
        one.sendall(b"x" * (1 << 26))
    waiting = select.poll()
    waiting.register(one, select.POLLOUT)
    assert not waiting.poll(0)
    while not waiting.poll(0):
        other.recv(1 << 20)


def test_a_listener_that_is_shut_down_takes_nobody(listener: socket.socket) -> None:
    listener.shutdown(socket.SHUT_RDWR)
    with pytest.raises(OSError, match="Invalid argument"):
        listener.accept()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname())


def test_two_ends_that_are_made_together_are_connected() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"x")
        assert other.recv(10) == b"x"


def test_what_does_not_come_in_time_is_given_up(pair: Pair) -> None:
    one, _ = pair
    one.settimeout(0.01)
    with pytest.raises(TimeoutError):
        one.recv(1)


async def test_an_event_loop_serves_and_asks(listener: socket.socket) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, sock=listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"hello")
    assert await reader.read() == b"hello"
    writer.close()
    server.close()
