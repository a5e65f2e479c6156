"""HTTP as the SDK speaks it: no redirect followed blindly, no secret carried elsewhere, every failure one of our errors."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog import Client
from oncelog.errors import ConnectionFailed, InvalidRequest, InvalidResponse, OncelogError, ResponseTimeout, TopicNotFound
from oncelog.http.transport import Transport
from oncelog.wire.media import DEFAULT_URL
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, Request, fake_server, problem
from tests.support import free_port


def redirect(status: int, location: str) -> Callable[[Request], Answer]:
    return lambda _: Answer(status, b"", {"location": location})


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("relative", [True, False])
def test_a_redirected_post_stays_a_post_with_its_body(status: int, relative: bool) -> None:
    def handle(request: Request) -> Answer:
        if request.path == "/there":
            return Answer(200, b"done")
        return Answer(status, b"", {"location": "/there" if relative else f"http://{request.headers['host']}/there"})

    with fake_server(handle) as fake:
        assert Transport(fake.url, token="secret").call("POST", "/here", b"body", "text/plain") == b"done"
    first, second = fake.requests
    assert (second.method, second.path, second.body) == ("POST", "/there", b"body")
    assert second.headers["content-type"] == "text/plain"
    assert first.headers["authorization"] == second.headers["authorization"] == "Bearer secret"


def test_a_redirect_that_names_the_query_does_not_get_it_twice() -> None:
    def handle(request: Request) -> Answer:
        if request.path.startswith("/there"):
            return Answer(200, b"done")
        return Answer(307, b"", {"location": request.path.replace("/here", "/there")})

    with fake_server(handle) as fake:
        Transport(fake.url).call("GET", "/here", params={"after": "a b", "limit": "5"})
    assert fake.requests[1].path == fake.requests[0].path.replace("/here", "/there")


@pytest.mark.parametrize("status", [301, 302, 303, 300, 304])
def test_a_redirect_that_would_change_the_method_is_not_followed(status: int) -> None:
    with fake_server(redirect(status, "/there")) as fake, pytest.raises(InvalidResponse) as caught:
        Transport(fake.url).call("POST", "/here", b"body", "text/plain")
    assert len(fake.requests) == 1
    assert not caught.value.definite


def test_a_token_is_not_carried_to_another_origin_and_comes_back_with_the_own_one() -> None:
    with fake_server(lambda _: Answer(200, b"there")) as there, fake_server(redirect(307, there.url + "/x")) as here:
        assert Transport(here.url, token="secret").call("POST", "/x", b"body", "text/plain") == b"there"
        assert here.requests[0].headers["authorization"] == "Bearer secret"
        assert "authorization" not in there.requests[0].headers


def test_redirects_end() -> None:
    with fake_server(redirect(307, "/again")) as fake, pytest.raises(InvalidResponse, match="redirects"):
        Transport(fake.url).call("GET", "/")
    assert len(fake.requests) == 6


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http:///nowhere"])
def test_a_redirect_to_what_is_not_http_is_refused(location: str) -> None:
    with fake_server(redirect(307, location)) as fake, pytest.raises(InvalidResponse, match="redirects"):
        Transport(fake.url).call("GET", "/")


def test_neither_netrc_nor_a_proxy_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\ndefault login a password b\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with fake_server(lambda _: Answer(200)) as fake:
        Transport(fake.url).call("GET", "/")
        Transport(fake.url, token="secret").call("GET", "/")
    assert "authorization" not in fake.requests[0].headers
    assert fake.requests[1].headers["authorization"] == "Bearer secret"


def test_no_cookie_is_kept() -> None:
    with fake_server(lambda _: Answer(200, b"", {"set-cookie": "a=b; Path=/"})) as fake:
        transport = Transport(fake.url)
        transport.call("GET", "/")
        transport.call("GET", "/")
    assert "cookie" not in fake.requests[1].headers


@pytest.mark.parametrize("started", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"])
def test_an_answer_that_does_not_come_times_out_and_may_have_been_done(started: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(started)
                while connection.recv(65_536):  # the body, and then until the client hangs up
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        transport = Transport(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.2)
        begin = time.monotonic()
        with pytest.raises(ResponseTimeout) as caught:
            transport.call("POST", "/", b"body", "text/plain")
        assert time.monotonic() - begin < 30
        assert not caught.value.definite
        transport.close()
        thread.join(PATIENCE)


@pytest.mark.parametrize("code", ["storage_unavailable", "storage_failed"])
def test_an_instance_that_cannot_serve_is_left_for_another_one(code: str) -> None:
    with fake_server(lambda _: problem(503, code)) as cut_off, fake_server(lambda _: Answer(body=b'["t"]')) as other:
        with Client(f"{cut_off.url},{other.url}", retry=30) as client:
            for _ in range(3):
                assert client.topics() == ["t"]
        assert (len(cut_off.requests), len(other.requests)) == (1, 3)


def test_one_that_has_too_much_to_do_is_asked_again() -> None:
    answers = iter([problem(503, "overloaded")])
    with fake_server(lambda _: next(answers, Answer(body=b'["t"]'))) as busy, fake_server(lambda _: Answer(body=b"[]")) as other:
        with Client(f"{busy.url},{other.url}", retry=30) as client:
            assert client.topics() == ["t"]
        assert (len(busy.requests), len(other.requests)) == (2, 0)


def test_a_refused_connection_is_definite() -> None:
    with pytest.raises(ConnectionFailed) as caught:
        Transport(f"http://127.0.0.1:{free_port()}").call("POST", "/", b"body", "text/plain")
    assert caught.value.definite


def test_a_connection_cut_after_sending_is_not_definite() -> None:
    with fake_server(lambda _: None) as fake, pytest.raises(ConnectionFailed) as caught:
        Transport(fake.url).call("POST", "/", b"body", "text/plain")
    assert not caught.value.definite
    assert len(fake.requests) == 1


def test_an_answer_cut_short_is_no_answer() -> None:
    with fake_server(lambda _: Answer(200, b"half", claimed_length=100)) as fake, pytest.raises(ConnectionFailed) as caught:
        Transport(fake.url).call("GET", "/")
    assert not caught.value.definite


@pytest.mark.parametrize("status", [400, 403, 404, 500, 501, 100 + 399])
@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("text/html", b"<html>Bad Gateway</html>"),
        ("application/json", b'{"code": "topic_not_found"}'),
        ("application/problem+json", b"not json"),
        ("application/problem+json", b"[1]"),
        ("", b"\xff\xfe"),
    ],
)
def test_an_answer_that_is_no_problem_of_ours_is_invalid(status: int, media: str, body: bytes) -> None:
    with fake_server(lambda _: Answer(status, body, {"content-type": media})) as fake, pytest.raises(InvalidResponse) as caught:
        Transport(fake.url).call("GET", "/")
    assert str(status) in caught.value.detail
    assert not caught.value.definite


def test_a_problem_becomes_the_error_it_stands_for() -> None:
    with fake_server(lambda _: problem(404, "topic_not_found")) as fake, pytest.raises(TopicNotFound, match="planted"):
        Transport(fake.url).call("GET", "/")
    with fake_server(lambda _: problem(418, "something_newer", definite=False)) as fake, pytest.raises(InvalidRequest) as caught:
        Transport(fake.url).call("GET", "/")
    assert not caught.value.definite


def test_an_error_of_a_streamed_answer_is_one_of_ours_even_if_it_breaks_off() -> None:
    half = Answer(500, b"{", {"content-type": "application/problem+json"}, claimed_length=100)
    with fake_server(lambda _: half) as fake, pytest.raises(OncelogError):
        list(Transport(fake.url).lines("POST", "/"))
    with fake_server(lambda _: problem(404, "topic_not_found")) as fake, pytest.raises(TopicNotFound):
        list(Transport(fake.url).lines("POST", "/"))


@pytest.mark.parametrize(
    "url",
    [
        "host:7070",
        "ftp://host",
        "http://",
        "http://:7070",
        "file:///x",
        "http://host:99999",
        "http://host:x",
        "http://h?a=b",
        "//h",
        " ",
    ],
)
def test_what_is_no_url_of_a_service_is_refused(url: str) -> None:
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
    assert [request.headers["authorization"] for request in fake.requests] == ["Bearer from-environment", "Bearer given"]
    monkeypatch.setenv("ONCELOG_URL", "nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        Client()


def test_a_service_below_a_path_is_reached_there() -> None:
    with fake_server(lambda _: Answer(200, b"[]")) as fake, Client(fake.url + "/log/") as client:
        client.topics()
    assert fake.requests[0].path == "/log/v1/namespaces/default/topics"


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
