"""From ASGI to the handlers and back: token, limits, errors as problem+json."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial
from urllib.parse import parse_qsl, quote

from starlette.routing import Route as Address
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oncelog.errors import InternalError, InvalidRequest, MethodNotAllowed, NotFound, NotServedHere, OncelogError, Unauthorized
from oncelog.http.transport import READ_SECONDS
from oncelog.wire.media import PROBLEM
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.docs import docs_answer, openapi_answer
from oncelog_service.rest.forward import PROXY, ROUTE, Forwarder
from oncelog_service.rest.limits import CONNECTION, Connection, InFlight, read_body
from oncelog_service.rest.routes import Call, Route
from oncelog_service.rest.table import ROUTES
from oncelog_service.service import Service

_log = logging.getLogger(__name__)

_OPEN_TO_ALL = ("/healthz",)
"""Answered without a token, for whatever watches over the process."""


def build_app(service: Service, routes: Sequence[Route] = ROUTES) -> ASGIApp:
    """The ASGI application over a service that answers these addresses."""
    in_flight = InFlight(service.settings.max_inflight_bytes)
    settings = service.settings
    forwarder = Forwarder(settings.token, settings.max_wait_ms / 1000 + READ_SECONDS)
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    busiest_first = sorted(by_path, key=lambda path: not path.endswith(("/publish", "/poll", "}/commit")))
    addresses = [Address(_pattern(path), _Endpoint(service, by_path[path], in_flight, forwarder)) for path in busiest_first]
    made = {"/openapi.json": openapi_answer, "/docs": docs_answer}
    addresses += [Address(path, _Made(service, partial(make, routes))) for path, make in made.items()]
    return Router(addresses, default=_Missing(service), redirect_slashes=False)


def _pattern(path: str) -> str:
    """For starlette: a participant's name holds slashes, encoded or not."""
    return path.replace("{participant}", "{participant:path}")


class _ClientGone(Exception):
    """The connection was closed under the answer."""


class _Client:
    """Sends the answer, and knows whether it has begun: behind its first byte no other can be given."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        """Sends on. Raises _ClientGone; uvloop says so by a RuntimeError where it has not noticed before."""
        self.begun = True
        try:
            await self._send(message)
        except (OSError, RuntimeError) as error:
            raise _ClientGone from error


class _Guarded:
    """Answers something whatever happens, and says whether that is definite."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        client = _Client(send)
        try:
            await self._guard(scope, receive, client)
        except _ClientGone:  # what it asked for has been done; clients hang up every day
            _log.debug("%s %s: the client has hung up", scope["method"], scope["path"])

    async def _guard(self, scope: Scope, receive: Receive, client: _Client) -> None:
        try:
            self._check_token(scope)
            await self._respond(scope, receive, client)
        except _ClientGone:
            raise
        except Exception as error:
            if client.begun:
                raise  # uvicorn writes it down and breaks the connection off, so that half an answer passes for none
            if not isinstance(error, OncelogError):
                _log.exception("%s %s failed", scope["method"], scope["path"])
                error = InternalError()
            await _send(client, _problem(error), _extra_headers(error, scope))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    def _check_token(self, scope: Scope) -> None:
        token = self._service.settings.token
        if token is None or scope["path"] in _OPEN_TO_ALL:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        # In constant time: how long a comparison takes would say how much of a guess is right.
        if not hmac.compare_digest(given, b"Bearer " + token.encode()):
            raise Unauthorized


class _Endpoint(_Guarded):
    def __init__(self, service: Service, routes: Mapping[str, Route], in_flight: InFlight, forwarder: Forwarder) -> None:
        super().__init__(service)
        self._routes = routes
        self._in_flight = in_flight
        self._forwarder = forwarder

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if route is None:
            raise MethodNotAllowed(
                f"{scope['path']} takes {', '.join(self._routes)}, not {scope['method']}", allowed=list(self._routes)
            )
        body = await read_body(scope, receive, self._service.settings, self._in_flight)
        try:
            query = _query(scope["query_string"]) if scope["query_string"] else {}
            content_type, accept = _header(scope, b"content-type"), _header(scope, b"accept")
            call = Call(self._service, scope["path_params"], query, content_type, body, accept, self._forwarder)
            connection = scope.get(CONNECTION) if route.reads else None
            with nullcontext() if connection is None else _stopping(connection):
                await _send(send, await self._answered(route, call, scope), {})
        finally:
            # Not before the answer is sent: until then the handler, or a thread that decodes, may still hold the body.
            self._in_flight.give_back(len(body))

    async def _answered(self, route: Route, call: Call, scope: Scope) -> Answer:
        try:
            return await route.handler(call)
        except NotServedHere as elsewhere:
            if _header(scope, ROUTE).encode("latin-1") != PROXY:
                raise
            headers = dict(scope["headers"])
            return await self._forwarder.send(elsewhere.url, scope["method"], _target(scope), headers, call.body)


@contextmanager
def _stopping(connection: Connection) -> Iterator[None]:
    """Raises _ClientGone in the place where the client's hanging up has stopped what it asked for."""
    try:
        with connection.reading():
            yield
    except asyncio.CancelledError as stopped:
        task = asyncio.current_task()
        if not connection.lost or task is None:
            raise
        task.uncancel()
        raise _ClientGone from stopped


class _Made(_Guarded):
    """Answers a page that is seldom asked for and takes a tenth of a second to make: on a thread, when it first is."""

    def __init__(self, service: Service, make: Callable[[], Answer]) -> None:
        super().__init__(service)
        self._make = make
        self._answer: Answer | None = None

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{scope['path']} takes GET, not {scope['method']}", allowed=["GET"])
        if self._answer is None:
            self._answer = await asyncio.to_thread(self._make)
        await _send(send, self._answer, {})


class _Missing(_Guarded):
    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotFound(f"there is nothing at {scope['path'][:200]}; /docs lists what there is")


def _header(scope: Scope, wanted: bytes) -> str:
    value: bytes = next((value for name, value in scope["headers"] if name == wanted), b"")
    return value.decode("latin-1")


def _query(raw: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise InvalidRequest("the query string cannot be read") from error


def _problem(error: OncelogError) -> Answer:
    return Answer(json.dumps(error.to_problem()).encode() + b"\n", PROBLEM, error.status or 500)


def _target(scope: Scope) -> str:
    """Path and query as they were sent."""
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    target: bytes = raw + query
    return target.decode("latin-1")


def _extra_headers(error: OncelogError, scope: Scope) -> dict[bytes, bytes]:
    if isinstance(error, NotServedHere):
        return {b"location": (error.url + _target(scope)).encode("latin-1")}
    if isinstance(error, MethodNotAllowed):
        return {b"allow": ", ".join(error.allowed).encode()}
    if error.status == 503:
        return {b"retry-after": b"1"}
    if error.status == 408:
        return {b"connection": b"close"}
    return {b"www-authenticate": b"Bearer"} if error.status == 401 else {}


async def _send(send: Send, answer: Answer, extra: Mapping[bytes, bytes]) -> None:
    body = answer.body
    headers = [(b"content-type", answer.media.encode()), *extra.items()]
    if isinstance(body, bytes):
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    async with aclosing(body) as lines:
        async for line in lines:
            await send({"type": "http.response.body", "body": line, "more_body": True})
    await send({"type": "http.response.body"})
