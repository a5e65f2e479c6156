"""What stands between the SDK and a service when things go wrong: a server that answers as told, a proxy that loses things."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from oncelog import Client
from tests.patience import PATIENCE


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def address(self) -> str:
        """The path without what is asked behind it."""
        return self.path.partition("?")[0]


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    claimed_length: int | None = None
    """Content-Length, when it is not to be the body's: the connection closes before so many bytes came. Below 0: it says none."""


Handler = Callable[[Request], Answer | None]
"""None cuts the connection without an answer."""


class FakeServer:
    """Its address, and every request that arrived."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []


def problem(status: int, code: str, definite: bool = True, **values: object) -> Answer:
    """An answer as the service gives it for an error."""
    body = {"status": status, "code": code, "detail": f"a planted {code}", "definite": definite, **values}
    return Answer(status, json.dumps(body).encode(), {"content-type": "application/problem+json"})


@contextmanager
def fake_server(handle: Handler, tls: ssl.SSLContext | None = None) -> Iterator[FakeServer]:
    """An HTTP server on loopback that answers what ``handle`` says; with ``tls``, an HTTPS server."""

    class Talk(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one piece: in two, each answer takes 40 ms (Nagle and the delayed acknowledgement)

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            fake.requests.append(request)
            answer = handle(request)
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            length = len(answer.body) if answer.claimed_length is None else answer.claimed_length
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if length >= 0:
                self.send_header("content-length", str(length))
            self.end_headers()
            self.wfile.write(answer.body)
            if length != len(answer.body):
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = _any  # noqa: N815  # the names that BaseHTTPRequestHandler looks for

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that hangs up is what many of these tests are about

    server = Server(("127.0.0.1", 0), Talk)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    fake = FakeServer(f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def listening(talk: Callable[[socket.socket], object], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that talks so on each of its connections, and hangs up when it has; its URL."""

    def converse(plain: socket.socket) -> None:
        with suppress(OSError), plain if tls is None else tls.wrap_socket(plain, server_side=True) as connection:
            connection.settimeout(PATIENCE)
            talk(connection)  # OSError: the client has hung up, or the test has ended

    def serve() -> None:
        with suppress(OSError):
            while True:
                Thread(target=converse, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def forward(target: str, request: Request) -> Answer:
    """What the real service answers."""
    connection = http.client.HTTPConnection(urlsplit(target).netloc, timeout=30)
    headers = {k: v for k, v in request.headers.items() if k in ("content-type", "authorization", "accept")}
    try:
        connection.request(request.method, request.path, request.body, headers)
        response = connection.getresponse()
        kept = {
            name.lower(): value for name, value in response.getheaders() if name.lower().startswith(("content-type", "oncelog-"))
        }
        return Answer(response.status, response.read(), kept)
    finally:
        connection.close()


Fate = Answer | str | None
"""What a request meets: an answer in the service's place; ``"request"`` or ``"answer"``, which is lost; None: nothing."""


@contextmanager
def meeting(target: str, fate: Callable[[Request], Fate], **options: Any) -> Iterator[tuple[Client, list[Request]]]:
    """A client whose requests meet their fate on the way to the service, and the requests that it has made."""

    def handle(request: Request) -> Answer | None:
        met = fate(request)
        if isinstance(met, Answer):
            return met
        answer = None if met == "request" else forward(target, request)
        return None if met == "answer" else answer

    with fake_server(handle) as fake, Client(fake.url, **options) as client:
        yield client, fake.requests
