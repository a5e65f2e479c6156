"""HTTP as the SDK speaks it: in time, no redirect followed blindly, every failure one of our errors, whoever answers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from oncelog import Client
from oncelog.errors import (
    ConnectionFailed,
    InvalidResponse,
    OncelogError,
    ResponseTimeout,
    TopicNotFound,
)
from oncelog.http.transport import Transport
from oncelog.process.clock import Clock
from oncelog.process.procedures import drive_all
from oncelog.wire.media import DEFAULT_URL
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, Request, fake_server, listening, problem
from tests.world.awaits import of_threads
from tests.world.clock import later
from tests.world.service import free_port

pytestmark = pytest.mark.usefixtures("twin")


def redirect(status: int, location: str) -> Callable[[Request], Answer]:
    return lambda _: Answer(status, b"", {"location": location})


def test_a_redirected_post_stays_a_post_with_its_body() -> None:
    for status, there in ((307, "/there"), (308, "http://{host}/there")):

        def handle(request: Request, status: int = status, there: str = there) -> Answer:
            if request.path == "/there":
                return Answer(200, b"done")
            return Answer(status, b"", {"location": there.format(host=request.headers["host"])})

        with fake_server(handle) as fake:
            sent = {"params": {"after": "a b", "limit": "5"}, "media": "text/plain"}
            assert Transport(fake.url, token="secret").call("POST", "/here", b"body", **sent) == b"done"
        first, second = fake.requests
        assert first.path == "/here?after=a+b&limit=5"
        assert (second.method, second.path, second.body) == ("POST", "/there", b"body"), "who redirects names the query"
        assert second.headers["content-type"] == "text/plain"
        assert first.headers["authorization"] == second.headers["authorization"] == "Bearer secret"


def test_a_redirect_that_would_change_the_method_or_leads_elsewhere_or_nowhere_is_not_followed() -> None:
    wrong = [*((status, "/there", 1) for status in (300, 301, 302, 303, 304)), (307, "/again", 6), (307, "http:///nowhere", 6)]
    wrong += [(307, location, 1) for location in ("ftp://127.0.0.1/x", "file:///etc/passwd")]
    for status, location, asked in wrong:
        with fake_server(redirect(status, location)) as fake, pytest.raises(InvalidResponse, match="redirects") as caught:
            Transport(fake.url).call("POST", "/here", b"body", "text/plain")
        assert len(fake.requests) == asked
        assert not caught.value.definite


def test_a_token_is_not_carried_to_another_origin_and_comes_back_with_the_own_one() -> None:
    with fake_server(lambda _: Answer(200, b"there")) as there, fake_server(redirect(307, there.url + "/x")) as here:
        assert Transport(here.url, token="secret").call("POST", "/x", b"body", "text/plain") == b"there"
        assert here.requests[0].headers["authorization"] == "Bearer secret"
        assert "authorization" not in there.requests[0].headers


def test_no_netrc_is_used_and_no_cookie_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\ndefault login a password b\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with fake_server(lambda _: Answer(200, b"", {"set-cookie": "a=b; Path=/"})) as fake:
        transport = Transport(fake.url)
        for _ in range(2):
            transport.call("GET", "/")
    assert not {"authorization", "cookie"} & (fake.requests[0].headers.keys() | fake.requests[1].headers.keys())


def test_an_instance_that_cannot_serve_is_left_for_another_one_and_one_that_has_too_much_to_do_is_not() -> None:
    away = Answer(502, b"<html>", {"content-type": "text/html"})
    for said, asked in (
        (problem(503, "storage_unavailable"), (1, 2)),
        (problem(503, "storage_failed"), (1, 2)),
        (away, (1, 2)),
        (problem(503, "overloaded"), (3, 0)),
        (Answer(429, b"<html>", {"content-type": "text/html"}), (3, 0)),
    ):
        answers, good = iter([said]), Answer(body=b"[]")
        first = fake_server(lambda _, answers=answers, good=good: next(answers, good))  # type: ignore[misc]
        with first as one, fake_server(lambda _, good=good: good) as other:  # type: ignore[misc]
            with Client(f"{one.url},{other.url}", retry=30) as client:
                assert client.topics() == client.topics() == []
            assert (len(one.requests), len(other.requests)) == asked


def test_an_instance_behind_a_gateway_whose_path_has_the_same_beginning_is_left_for_another_one_too() -> None:
    away = problem(503, "storage_unavailable")
    with fake_server(lambda _: away) as one, fake_server(lambda _: Answer(body=b"[]")) as other:
        with Client(f"{one.url}/api/v1/logs,{other.url}/v1", retry=30) as client:
            for namespace in ("a", "v1"):
                assert client.topics(namespace) == []
        assert [each.path for each in one.requests] == ["/api/v1/logs/v1/namespaces/a/topics"]
        assert [each.path for each in other.requests] == [f"/v1/v1/namespaces/{name}/topics" for name in ("a", "v1")]


@of_threads
def test_an_instance_whose_answer_breaks_off_is_left_for_another_one_also_where_its_url_has_a_password() -> None:
    with fake_server(lambda _: Answer(200, b"x", claimed_length=9)) as breaks_off, fake_server(lambda _: Answer(200)) as other:
        first, second = (fake.url.replace("//", "//ada:secret@") for fake in (breaks_off, other))
        transport = Transport(f"{first},{second}")
        with pytest.raises(ConnectionFailed):
            transport.call("GET", "/v1/x")
        assert transport._bases == [second, first]
        transport.close()


def test_only_a_refused_connection_is_definite_not_one_that_is_cut_after_sending() -> None:
    with pytest.raises(ConnectionFailed) as caught:
        Transport(f"http://127.0.0.1:{free_port()}").call("POST", "/", b"body", "text/plain")
    assert caught.value.detail.endswith("; is it running? `oncelog serve` starts one")
    assert caught.value.definite
    for answer in (None, Answer(200, b"half", claimed_length=100)):
        with fake_server(lambda _, answer=answer: answer) as fake, pytest.raises(ConnectionFailed) as caught:  # type: ignore[misc]
            Transport(fake.url).call("POST", "/", b"body", "text/plain")
        assert not caught.value.definite
        assert len(fake.requests) == 1


def test_an_error_of_a_streamed_answer_is_one_of_ours_even_if_it_breaks_off() -> None:
    half = Answer(500, b"{", {"content-type": "application/problem+json"}, claimed_length=100)
    with fake_server(lambda _: half) as fake, pytest.raises(OncelogError):
        list(drive_all(Transport(fake.url).ask_lines("POST", "/")))
    with fake_server(lambda _: problem(404, "topic_not_found")) as fake, pytest.raises(TopicNotFound):
        list(drive_all(Transport(fake.url).ask_lines("POST", "/")))


def test_what_is_no_url_of_a_service_is_refused() -> None:
    wrong = ("host:7070", "ftp://host", "http://", "http://:7070", "file:///x", "http://host:99999", "http://host:x")
    for url in (*wrong, "http://h?a=b", "//h", " "):
        with pytest.raises(ValueError, match="URL"):
            Client(url)


def test_url_and_token_come_from_the_environment_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Client().url == DEFAULT_URL
    with fake_server(lambda _: Answer(200, b"[]")) as fake:
        monkeypatch.setenv("ONCELOG_URL", fake.url + "/")
        monkeypatch.setenv("ONCELOG_TOKEN", "from-environment")
        with Client() as client:
            assert client.url == fake.url
            client.topics()
        with Client(token="given") as client:
            client.topics()
        assert Client("http://other:1").url == "http://other:1"
        with Client(fake.url + "/log/", token="given") as client:  # a service below a path
            client.topics()
        assert fake.requests.pop().path == "/log/v1/namespaces/default/topics"
    assert [request.headers["authorization"] for request in fake.requests] == ["Bearer from-environment", "Bearer given"]
    monkeypatch.setenv("ONCELOG_URL", "nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        Client()


@of_threads
def test_threads_that_have_ended_leave_no_connection_behind() -> None:
    with fake_server(lambda _: Answer(200)) as fake:
        transport = Transport(fake.url)
        for _ in range(5):
            thread = threading.Thread(target=transport.call, args=("GET", "/"))
            thread.start()
            thread.join()
        transport.call("GET", "/")
        assert len(transport._sessions) == 1
        transport.close()
        assert len(transport._sessions) == 0
        transport.close()


@of_threads
def test_what_is_read_bit_by_bit_at_once_leaves_no_more_connections_than_a_thread_keeps() -> None:
    with fake_server(lambda _: Answer(200, b"1\n2\n")) as fake:
        transport = Transport(fake.url)
        answers = [drive_all(transport.ask_lines("GET", "/")) for _ in range(5)]
        assert [next(answer) for answer in answers] == [b"1"] * 5
        assert [[*answer] for answer in answers] == [[b"2"]] * 5
        assert len(transport._sessions) <= 2
        transport.close()


# --- in time ------------------------------------------------------------------------------------------------------------


_PACE = 0.02
DRIPS = 1_500
"""So many bytes at that pace take half a minute: a client that waits for all of them is one that waits too long."""


class Dripping:
    url: str
    sent = 0


@contextmanager
def dripping(begin: bytes, drip: bytes, tls: ssl.SSLContext | None = None) -> Iterator[Dripping]:
    """A server that answers each connection with ``begin`` at once, and then byte by byte with ``drip``, over and over."""
    ended, server = threading.Event(), Dripping()

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(begin)
        for byte in cycle(drip):
            if ended.wait(_PACE) or server.sent >= DRIPS:
                return
            connection.sendall(bytes([byte]))
            server.sent += 1

    with listening(talk, tls) as server.url:
        yield server
        ended.set()


def each_drip_takes_a_second(server: Dripping) -> Clock:
    """To the client."""
    return later(lambda: server.sent)


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
)
def test_an_answer_that_drips_ends_with_its_time(begin: bytes, drip: bytes) -> None:
    with dripping(begin, drip) as server:
        transport = Transport(server.url, timeout=30, clock=each_drip_takes_a_second(server))
        with pytest.raises(ConnectionFailed) as caught:
            transport.call("POST", "/", b"body", "text/plain")
        assert server.sent < DRIPS
        assert not caught.value.definite or begin.startswith(b"HTTP/1.1 307")  # who redirects has not done it
        transport.close()


def test_a_line_that_drips_ends_with_its_time() -> None:
    with dripping(_OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\n{}\n{\r\nffff\r\n", b"x") as server:
        transport = Transport(server.url, timeout=30, clock=each_drip_takes_a_second(server))
        lines = drive_all(transport.ask_lines("POST", "/"))
        assert next(lines) == b"{}"
        with pytest.raises(ResponseTimeout):
            next(lines)
        assert server.sent < DRIPS
        transport.close()


def test_lines_that_come_one_by_one_may_take_longer_than_one_of_them() -> None:
    passed = 0.0
    with dripping(_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nline\n\r\n") as server:
        transport = Transport(server.url, timeout=60, clock=later(lambda: passed))
        lines = drive_all(transport.ask_lines("POST", "/"))
        for _ in range(4):
            assert next(lines) == b"line"
            passed += 40
        passed += 40
        with pytest.raises(ResponseTimeout):
            next(lines)
        transport.close()


def test_a_connection_that_is_used_again_has_the_time_of_its_own_request() -> None:
    """The time-out of a socket outlives its request."""
    hold, passed = threading.Event(), 0.0

    def handle(request: Request) -> Answer:
        if request.path == "/held":
            hold.wait(PATIENCE)
        return Answer(200, b"x")

    with fake_server(handle) as fake:
        transport = Transport(fake.url, clock=later(lambda: passed))
        assert transport.call("GET", "/", timeout=60) == b"x"
        passed = 61.0
        assert transport.call("GET", "/", timeout=PATIENCE) == b"x"
        with pytest.raises(ConnectionFailed):
            transport.call("GET", "/held", timeout=0.3)
        hold.set()
        transport.close()


def test_a_host_that_takes_no_connection_is_not_waited_for_longer_than_its_time() -> None:
    with _full() as (host, port), pytest.raises(ConnectionFailed) as caught:
        Transport(f"http://{host}:{port}", timeout=0.2).call("GET", "/")
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
def _full() -> Iterator[tuple[str, int]]:
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
            yield listener.getsockname()
        finally:
            for each in waiting:
                each.close()
