"""In a real browser: a page of another origin, and one whose name is made to lead to the service, read and change nothing.

The page tries what a page can have a browser send, and tells a server of the test's what it came to know.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from oncelog.errors import OncelogError
from oncelog_service.rest import application
from oncelog_service.rest.exchange import Admitted, Head
from tests.patience import PATIENCE, until
from tests.rest.talk import Calls, Topic
from tests.world.service import RunningService, free_port, running_service

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGE = Path(__file__).with_name("strange_page.html")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP strange.example 127.0.0.1, MAP rebound.example 127.0.0.1",
)  # fmt: skip

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH; .ci/run installs it"),
]


class Server(ThreadingHTTPServer):
    """One that is gone when it is closed: a browser opens connections before it needs them, and each has its thread."""

    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._taken: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._taken.append(connection)
        return connection, address

    def server_close(self) -> None:
        super().server_close()
        for each in self._taken:
            with suppress(OSError):  # it has ended
                each.shutdown(socket.SHUT_RDWR)


class Strangers:
    """Serves the page, tells it when to begin, and takes what it found. Other origins may ask it."""

    def __init__(self, port: int = 0) -> None:
        self.page = b""
        self.asked, self.told = threading.Event(), threading.Event()
        self._go, self._pointer = threading.Event(), b""
        self.report: dict[str, Any] = {}
        strangers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/go":
                    return self.answer(strangers.page if self.path == "/" else b"")
                strangers.asked.set()
                strangers._go.wait(PATIENCE)
                return self.answer(strangers._pointer)

            def do_POST(self) -> None:
                strangers.report = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.answer(b"")
                strangers.told.set()

            def answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(body)))
                self.send_header("access-control-allow-origin", "*")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = Server(port, Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def begin(self, pointer: str) -> None:
        """Has the page begin; what it is to end, if it can: a transaction."""
        self._pointer = pointer.encode()
        self._go.set()

    def close(self) -> None:
        self._go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


@contextmanager
def chromium(url: str, home: Path) -> Iterator[None]:
    """A browser that shows this page."""
    assert CHROMIUM is not None
    log = (home / "chromium.log").open("wb")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={home / 'profile'}", url]
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its processes are a group of their own
        process.wait(PATIENCE)
        log.close()


class Kept:
    """A service that has something to lose, what it was asked, and what of it became of that."""

    def __init__(self, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls = Calls(service.url, "")
        topic = Topic(service.url, "kept")
        topic.send("p", 0, 1)
        topic.good("POST", "/subscriptions", json={"name": "s", "nonce": "n"})
        self.pointer = str(self._calls.good("POST", "/v1/transactions", json={"type": "long"})["writePointer"])
        self._calls.good("POST", "/v1/atomic", json={"id": "a", "group": "g", "timeoutMs": 3_600_000})
        self.before = self.state()
        self.asked: dict[int, tuple[Head, OncelogError | None]] = {}
        """By the number of the try."""
        ask = application.Application.admit

        def admit(this: application.Application, head: Head, address: object = None) -> Admitted:
            refused: OncelogError | None = None
            try:
                return ask(this, head, address)
            except OncelogError as error:
                refused = error
                raise
            finally:
                if b"try=" in head.query:
                    self.asked[int(parse_qs(head.query.decode())["try"][0])] = head, refused

        monkeypatch.setattr(application.Application, "admit", admit)

    def changed(self) -> dict[str, object]:
        """What is other than it was."""
        return {path: (self.before[path], now) for path, now in self.state().items() if now != self.before[path]}

    def state(self) -> dict[str, object]:
        """Everything that a stranger may have changed."""
        paths = (
            "/v1/namespaces", "/v1/namespaces/default/topics", "/v1/namespaces/default/topics/kept",
            "/v1/namespaces/default/topics/kept/rows", "/v1/namespaces/default/topics/kept/producers",
            "/v1/namespaces/default/topics/kept/subscriptions", "/v1/transactions", "/v1/transactions?state=invalid",
            "/v1/atomic",
        )  # fmt: skip
        return {path: _without_deadlines(self._calls.good("GET", path)) for path in paths}


def _without_deadlines(answer: Any) -> Any:
    """They are durations, and as times of day a millisecond more or less."""
    listed = isinstance(answer, list) and answer and isinstance(answer[0], dict)
    return [{**each, "expiresMs": None} for each in answer] if listed else answer


def methods(kept: Kept) -> set[str]:
    return {head.method for head, _ in kept.asked.values()}


def page_for(targets: list[str], collector: Strangers) -> bytes:
    page = PAGE.read_text("utf-8").replace("{collector}", f"http://127.0.0.1:{collector.port}")
    return page.replace("{targets}", json.dumps(targets)).encode()


def attacked_from(name: str, kept: Kept, service: RunningService, home: Path) -> list[dict[str, Any]]:
    """What a page of this name came to know, after it has tried everything."""
    port = service.url.rpartition(":")[2]
    strangers = Strangers()
    try:
        targets = [f"http://{host}:{port}" for host in ("127.0.0.1", "localhost", "0.0.0.0")]
        strangers.page = page_for(targets, strangers)
        strangers.begin(kept.pointer)
        with chromium(f"http://{name}:{strangers.port}/", home):
            assert strangers.told.wait(PATIENCE), (home / "chromium.log").read_text(errors="replace")
            until(lambda: strangers.report["tries"] in kept.asked, "the last beacon has arrived")
    finally:
        strangers.close()
    found: list[dict[str, Any]] = strangers.report["found"]
    return found


@pytest.mark.parametrize("name", ["strange.example", "127.0.0.1"])
def test_a_page_of_another_origin_reads_and_changes_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the service takes what is put without a type, as it does for CDAP's clients."""
    with running_service(cdap_clients=True) as running:
        kept = Kept(running, monkeypatch)
        found = attacked_from(name, kept, running, tmp_path)
        assert [each for each in found if each["seen"] is not None] == []
        assert not kept.changed()
        assert methods(kept) >= {"GET", "POST", "HEAD", "OPTIONS"}, "its requests have arrived, and were refused"
        assert "PUT" not in methods(kept), "the browser asks before it puts anything, and is not answered"
        assert [head for head, refused in kept.asked.values() if refused is None] == []


def test_without_the_rules_the_same_page_does_harm(
    running: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(running, monkeypatch)
    monkeypatch.setattr(application, "check", lambda *_: None)
    attacked_from("strange.example", kept, running, tmp_path)
    assert "/v1/transactions" in kept.changed()


def test_a_page_whose_name_is_made_to_lead_to_the_service_reads_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is the stranger's until the page is there, and then the service's."""
    first, collector = Strangers(free_port()), Strangers()
    try:
        url = f"http://rebound.example:{first.port}"
        first.page = page_for([url], collector)
        with chromium(url + "/", tmp_path):
            assert collector.asked.wait(PATIENCE), (tmp_path / "chromium.log").read_text(errors="replace")
            first.close()
            with running_service(port=first.port) as service:
                kept = Kept(service, monkeypatch)
                collector.begin(kept.pointer)
                assert collector.told.wait(PATIENCE), (tmp_path / "chromium.log").read_text(errors="replace")
                until(lambda: collector.report["tries"] in kept.asked, "the last beacon has arrived")
                assert not kept.changed()
    finally:
        collector.close()
    seen = [each["seen"] for each in collector.report["found"] if each["seen"] is not None]
    assert seen
    for answer in seen:
        assert answer["status"] == 421, answer
        assert not answer["body"] or json.loads(answer["body"])["code"] == "host_not_allowed"
    assert methods(kept) >= {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}
    assert all(refused is not None and refused.code == "host_not_allowed" for _, refused in kept.asked.values())
