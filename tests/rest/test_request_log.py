"""Which requests leave a line in the log, under which id, and which answers carry that."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import requests

from oncelog_service.config import Settings
from oncelog_service.logs import TextLines, asking
from oncelog_service.rest.exchange import Admitted, Exchange, Head
from oncelog_service.rest.request_log import RequestLog
from tests.patience import until
from tests.rest.talk import TIMEOUT, connected, read_answer
from tests.world.service import RunningService, running_service

NOBODY = "/v1/namespaces/default/topics/nobody/stats"


class Lines(logging.Handler):
    """What is logged of requests, laid where it is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any], str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        about = asking.get()
        fields = {} if about is None else about.fields()
        self.found.append((record.levelname, {**fields, **record.__dict__.get("fields", {})}, TextLines().format(record)))


@pytest.fixture
def lines() -> Any:
    log, handler = logging.getLogger("oncelog.requests"), Lines()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


def ask(service: RunningService, path: str, **headers: str) -> requests.Response:
    return requests.get(
        service.url + path, headers={name.replace("_", "-"): value for name, value in headers.items()}, timeout=TIMEOUT
    )


@pytest.fixture(scope="module")
def service() -> Any:
    with running_service(log_requests=True) as service:
        yield service


def test_an_answer_that_refuses_names_its_request_and_so_does_the_log(service: RunningService, lines: Lines) -> None:
    answer = ask(service, NOBODY)
    assert answer.status_code == 404
    until(lambda: lines.found)
    ((level, said, _),) = lines.found
    assert level == "INFO"
    assert said["request"] == answer.headers["x-request-id"]
    assert (said["principal"], said["topic"], said["method"]) == ("anonymous", "default/nobody", "GET")
    assert (said["path"], said["status"], said["from"]) == (NOBODY, 404, "127.0.0.1")
    assert said["request"] != ask(service, NOBODY).headers["x-request-id"]


def test_an_answer_that_does_not_refuse_names_it_where_its_client_does(service: RunningService) -> None:
    assert "x-request-id" not in ask(service, "/healthz").headers
    assert ask(service, "/healthz", x_request_id="mine/1").headers["x-request-id"] == "mine/1"


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "caf\xe9", "tab\there"])
def test_an_id_that_does_not_fit_is_not_taken(service: RunningService, given: str) -> None:
    own = ask(service, NOBODY, x_request_id=given).headers["x-request-id"]
    assert own != given
    assert own.isascii()


def test_a_line_on_one_connection_is_of_the_request_behind_the_other_one(service: RunningService, lines: Lines) -> None:
    one = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-request-id: %b\r\n\r\n"
    with connected(service.url) as connection, connection.makefile("rb") as stream:
        connection.sendall(one % b"a" + one % b"b" + one % b"c")
        for _ in range(3):
            assert read_answer(stream)[0] == 200
    named = lambda: [said["request"] for _, said, _ in lines.found if said["request"] in "abc"]  # noqa: E731 - others come late
    until(lambda: len(named()) == 3)
    assert named() == ["a", "b", "c"]


def test_what_cannot_be_read_has_no_id_and_leaves_a_line(service: RunningService, lines: Lines) -> None:
    with connected(service.url) as connection:
        connection.sendall(b"NONSENSE\r\n\r\n")
        assert b" 400 " in connection.recv(10_000).split(b"\r\n")[0]
    until(lambda: lines.found)
    assert "request" not in lines.found[0][1]
    assert lines.found[0][1]["status"] == 400
    assert lines.found[0][1]["from"] == "127.0.0.1", "who sends nonsense is who one looks for"


SLOW = Settings(slow_request_seconds=2.0, max_wait_ms=10_000)


def taken(seconds: float, waits: bool, settings: Settings, lines: Lines) -> list[str]:
    async def answer(body: bytes) -> Any:
        raise AssertionError

    exchange = Exchange(Head("POST", "/x", b"", "/x", {}), True, Admitted(answer, False, waits=waits))
    RequestLog(settings).note(exchange, 200, seconds)
    return [level for level, _, _ in lines.found]


@pytest.mark.parametrize(
    ("seconds", "waits", "said"),
    [(2.0, False, []), (2.1, False, ["WARNING"]), (11.9, True, []), (12.1, True, ["WARNING"])],
)
def test_what_takes_long_is_said_but_not_what_waits(seconds: float, waits: bool, said: list[str], lines: Lines) -> None:
    assert taken(seconds, waits, SLOW, lines) == said


def test_slow_ones_are_not_said_where_nobody_wants_to_know(lines: Lines) -> None:
    assert taken(1e6, False, Settings(slow_request_seconds=0), lines) == []


def test_no_line_has_a_secret(service: RunningService, lines: Lines) -> None:
    ours, signed = "oncelog_" + "hush" * 10, "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJjaSJ9.hush"
    ask(service, NOBODY + "?token=hush-1", authorization="Bearer hush-2")
    ask(service, f"/v1/tokens/{ours}")
    ask(service, f"/v1/tokens/{signed}")
    for token in (ours, signed):
        ask(service, NOBODY, **{"x-request-id": token})
    until(lambda: len(lines.found) >= 5)
    assert not any("hush" in line for _, _, line in lines.found)


def test_who_is_refused_is_named(lines: Lines) -> None:
    with running_service(log_requests=True, token="hush-root") as service:
        made = requests.post(
            f"{service.url}/v1/tokens", json={"name": "shop", "grants": ["read:default/x"]}, timeout=TIMEOUT,
            headers={"Authorization": "Bearer hush-root"},
        )  # fmt: skip
        assert ask(service, "/metrics", authorization=f"Bearer {made.json()['secret']}").status_code == 403
        until(lambda: any(said["status"] == 403 for _, said, _ in lines.found))
    assert [said["principal"] for _, said, _ in lines.found if said["status"] == 403] == ["shop"]
