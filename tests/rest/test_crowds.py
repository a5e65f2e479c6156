"""Crowds of connections against a real service, and everybody else is served meanwhile."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests

from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, done, head, read_answer
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

POLL = "/v1/namespaces/default/topics/t/poll"


@contextmanager
def served(data: Path, files: int | None = None, **settings: object) -> Iterator[ServiceProcess]:
    service = ServiceProcess(data / "store", **settings)
    service.files = files
    service.log_to = data / "log"
    with service:
        yield service


def connect(service: ServiceProcess, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), TIMEOUT, (address, 0))


def metric(service: ServiceProcess, name: str) -> float:
    for line in requests.get(service.url + "/metrics", timeout=TIMEOUT).text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def descriptors(service: ServiceProcess) -> int:
    return len(os.listdir(f"/proc/{service.pid}/fd"))


def assert_told(connection: socket.socket) -> None:
    """It was refused as a problem that says when to come again, and closed; not reset."""
    stream = connection.makefile("rb")
    status, headers, body = read_answer(stream)
    assert (status, headers["content-type"], headers["retry-after"]) == (503, "application/problem+json", "1")
    assert headers["connection"] == "close"
    assert (json.loads(body)["code"], json.loads(body)["definite"]) == ("overloaded", True)
    assert stream.read() == b""


@contextmanager
def waiting(service: ServiceProcess, topic: Topic, polls: int) -> Iterator[list[Future[list[str]]]]:
    """Others' long polls, which go on until the topic has a message more."""
    behind = topic.stats()["upcomingOffset"]
    with ThreadPoolExecutor(polls) as pool:
        ask = [Topic(service.url, create=False) for _ in range(polls)]
        found = [pool.submit(each.payloads, startOffset=behind, wait=60_000) for each in ask]
        until(lambda: metric(service, "oncelog_connections") >= polls, "the polls have come")
        yield found


def serves_others(service: ServiceProcess, message: str) -> None:
    """New clients, and one after another, on connections of their own."""
    for _ in range(5):
        topic = Topic(service.url, create=False)
        at = done(topic.publish(message)).json()["receipts"][0]["offset"]["long"]
        assert topic.payloads(startOffset=at, limit=1) == [message]
        assert requests.get(service.url + "/healthz", timeout=TIMEOUT).status_code == 200


def test_4100_silent_connections_keep_nobody_else_from_being_served(tmp_path: Path) -> None:
    with served(tmp_path, max_connections_per_address=2_000, header_timeout_seconds=600) as service, ExitStack() as stack:
        topic = Topic(service.url)
        before = descriptors(service)
        with waiting(service, topic, 3) as polls:
            for number in range(4_100):
                stack.enter_context(connect(service, f"127.0.0.{2 + number % 3}"))
            assert metric(service, "oncelog_connections") <= 4_096
            serves_others(service, "crowded")
            assert not any(poll.done() and poll.result() != ["crowded"] for poll in polls)
            assert [poll.result(TIMEOUT)[:1] for poll in polls] == [["crowded"]] * 3
        stack.close()
        until(lambda: metric(service, "oncelog_connections") < 20, "all as before")
        until(lambda: descriptors(service) < before + 20, "no descriptor is lost")
        serves_others(service, "after")
        assert service.stop() == 0
    assert "Too many open files" not in (tmp_path / "log").read_text()


def test_125_connections_where_128_files_may_be_open_keep_nobody_else_from_being_served(tmp_path: Path) -> None:
    with served(tmp_path, files=128, header_timeout_seconds=600) as service, ExitStack() as stack:
        topic = Topic(service.url)
        with waiting(service, topic, 3) as polls:
            for _ in range(125):
                stack.enter_context(connect(service))
            serves_others(service, "crowded")
            assert [poll.result(TIMEOUT)[:1] for poll in polls] == [["crowded"]] * 3
        assert descriptors(service) < 128 - 20, "the store has its reserve"
        # What opens files goes on meanwhile: topics with snapshots, and more data than LevelDB keeps in its log.
        for number in range(6):
            for _ in range(8):
                done(Topic(service.url, f"t{number}").publish("x" * 1_000_000))
        stack.close()
        until(lambda: metric(service, "oncelog_connections") < 5, "all as before")
        serves_others(service, "after")
        assert service.stop() == 0
    assert "Too many open files" not in (tmp_path / "log").read_text()
    again = ServiceProcess(tmp_path / "store")
    with again:
        assert Topic(again.url, create=False).verify()["ok"]


def test_who_finds_no_place_is_told_so_at_once_and_comes_in_when_there_is_one(tmp_path: Path) -> None:
    with served(tmp_path, max_connections=12, max_connections_per_address=8) as service, ExitStack() as stack:
        Topic(service.url).session.close()
        until(lambda: metric(service, "oncelog_connections") == 1, "this one alone")
        body = b'{"startOffset": 0, "wait": 60000}'
        poll = head("POST", POLL, "content-type: application/json", f"content-length: {len(body)}") + body
        held: dict[int, socket.socket] = {}

        def full() -> bool:
            for number in range(12):
                if number not in held:
                    held[number] = stack.enter_context(connect(service, f"127.0.0.{2 + number // 8}"))
                    held[number].sendall(poll)
            refused = answered_to(service, "127.0.0.9") is None
            early = select.select(held.values(), [], [], 0)[0]  # a connection from before had its place
            for number in [number for number, each in held.items() if each in early]:
                del held[number]
            return refused and len(held) == 12

        until(full, "every place is taken")
        for address in ("127.0.0.2", "127.0.0.9"):
            for asks in (b"", b"GET", head("GET", "/healthz"), head("POST", "/x", "content-length: 100000") + b"x" * 100_000):
                with connect(service, address) as connection:
                    connection.sendall(asks)
                    assert_told(connection)
        held.pop(11).close()
        until(lambda: answered_to(service, "127.0.0.9") is not None, "there is a place")
        with connect(service, "127.0.0.2") as connection:
            assert_told(connection)
        for each in held.values():
            each.close()
        until(lambda: metric(service, "oncelog_connections") < 3, "all as before")


def answered_to(service: ServiceProcess, address: str) -> int | None:
    """What /healthz answers to this address; None where there is no place for it."""
    with connect(service, address) as connection:
        connection.sendall(head("GET", "/healthz", "connection: close"))
        status = read_answer(connection.makefile("rb"))[0]
        return None if status == 503 else status


@pytest.fixture(scope="module")
def _narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    waits = {"header_timeout_seconds": 600, "body_timeout_seconds": 600}
    with served(tmp_path_factory.mktemp("narrow"), max_connections=4, **waits) as service:
        Topic(service.url).session.close()
        yield service


@pytest.fixture
def narrow(_narrow: ServiceProcess) -> ServiceProcess:
    """With four places, of which nobody has one, and which waits for ever."""
    until(lambda: metric(_narrow, "oncelog_connections") == 1, "this one alone")
    return _narrow


@pytest.mark.parametrize("begun", [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nx: y\r\n"])
def test_who_is_in_a_head_gives_way_and_is_told(narrow: ServiceProcess, begun: bytes) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(narrow, "127.0.0.2")) for _ in range(4)]
        for each in slow:
            each.sendall(begun)
        until(lambda: answered_to(narrow, "127.0.0.1") == 200, "another one is served")
        told = select.select(slow, [], [], TIMEOUT)[0]
        assert_told(told[0])


def test_who_is_idle_gives_way_before_who_is_in_a_head(narrow: ServiceProcess) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(narrow, "127.0.0.2")) for _ in range(2)]
        for each in idle:
            each.sendall(head("GET", "/healthz"))
            assert read_answer(each.makefile("rb"))[0] == 200
        half = [stack.enter_context(connect(narrow, "127.0.0.2")) for _ in range(2)]
        half[0].sendall(b"G")
        for address in ("127.0.0.3", "127.0.0.4"):
            other = stack.enter_context(connect(narrow, address))
            other.sendall(head("GET", "/healthz"))
            assert read_answer(other.makefile("rb"))[0] == 200
        for each in idle:
            assert each.recv(1) == b"", "closed, without a word that nobody asked for"
        half[0].sendall(head("GET", "/healthz")[1:])
        assert read_answer(half[0].makefile("rb"))[0] == 200


PUBLISH = head("POST", "/v1/namespaces/default/topics/t/publish", "content-type: application/json")[:-2]


@pytest.mark.parametrize(
    "begun",
    [
        PUBLISH + b"content-length: 1000\r\n\r\n{",
        PUBLISH + b"content-length: 1000\r\nexpect: 100-continue\r\n\r\n",
        PUBLISH + b"transfer-encoding: chunked\r\n\r\n1;a=",
        PUBLISH + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: ",
    ],
    ids=["body", "continue", "chunk", "trailer"],
)
def test_who_sends_a_body_too_slowly_gives_way(narrow: ServiceProcess, begun: bytes) -> None:
    with ExitStack() as stack:

        def all_have_begun() -> bool:
            stack.close()
            for _ in range(4):
                stack.enter_context(connect(narrow, "127.0.0.2")).sendall(begun)
            time.sleep(0.1)
            return answered_to(narrow, "127.0.0.1") is None

        until(all_have_begun, "every place is taken")
        until(lambda: answered_to(narrow, "127.0.0.1") == 200, "another one is served")


def test_who_owes_the_rest_of_a_body_that_was_refused_gives_way(narrow: ServiceProcess) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            refused = stack.enter_context(connect(narrow, "127.0.0.2"))
            refused.sendall(head("POST", POLL, "content-type: text/plain", "content-length: 1000") + b"{")
            assert read_answer(refused.makefile("rb"))[0] == 415
        assert answered_to(narrow, "127.0.0.1") == 200
