"""Between Spark and the service: hands every request on, and does harm at exactly the one that a test means."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from oncelog.wire.codec import decode_commit_request
from oncelog.wire.requests import CommitRequest
from tests.patience import PATIENCE

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server"}


class Request(NamedTuple):
    """One call of Spark's."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def is_stage(self) -> bool:
        return self.method == "PUT" and "/stage/" in self.path

    @property
    def is_publish(self) -> bool:
        return self.method == "POST" and self.path.endswith("/publish")

    @property
    def commit(self) -> CommitRequest | None:
        """What it commits, if it is a commit."""
        address = self.path.partition("?")[0]
        if not (self.method == "POST" and address.startswith("/v1/atomic/") and address.endswith("/commit")):
            return None
        return decode_commit_request(self.headers["content-type"], self.body)

    def commits(self, batch: int) -> bool:
        """Whether it is the commit of this micro-batch."""
        commit = self.commit
        return commit is not None and commit.sequence_id == batch


@dataclass
class Answer:
    """What Spark gets to see."""

    status: int
    headers: dict[str, str]
    body: bytes
    then: Callable[[], None] | None = None
    """Called once it has left."""

    @property
    def state(self) -> str:
        """What became of a commit."""
        return str(json.loads(self.body)["state"] if self.status == 200 else self.status)


Rule = Callable[[Request, Callable[[], Answer]], Answer | None]
"""From a request, and what hands it on, the answer; None: the connection is cut without one."""


def hand_on(_: Request, forward: Callable[[], Answer]) -> Answer:
    """Do no harm."""
    return forward()


class FaultProxy:
    """A context manager. ``rule`` may be changed at any time; ``answered`` notes what was handed back to Spark."""

    def __init__(self, target: str) -> None:
        self.rule: Rule = hand_on
        self.answered: list[tuple[Request, Answer]] = []
        self._target = urlsplit(target).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, self.rfile.read(length))
                try:
                    answer = proxy.rule(request, lambda: proxy.forward(request))
                except (OSError, http.client.HTTPException):
                    answer = None  # the service is not there: neither is an answer
                if answer is None:
                    self.close_connection = True
                    return
                proxy.answered.append((request, answer))
                try:
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(answer.body)))
                    self.end_headers()
                    self.wfile.write(answer.body)
                except OSError:
                    self.close_connection = True  # whoever asked was killed
                finally:
                    if answer.then is not None:
                        answer.then()

            do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # a client that was killed

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="fault-proxy")

    def forward(self, request: Request) -> Answer:
        """What the service answers."""
        connection = http.client.HTTPConnection(self._target, timeout=90)
        try:
            headers = {name: value for name, value in request.headers.items() if name not in _HOP}
            connection.request(request.method, request.path, request.body or None, headers)
            response = connection.getresponse()
            kept = {name.lower(): value for name, value in response.getheaders() if name.lower() not in _HOP}
            return Answer(response.status, kept, response.read())
        finally:
            connection.close()

    def commits(self, batch: int) -> list[str]:
        """What became of each commit of a micro-batch, as Spark was answered."""
        return [answer.state for request, answer in self.answered if request.commits(batch)]

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(PATIENCE)
        self._server.server_close()
