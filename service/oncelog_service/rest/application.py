"""From a request's head to its handler: the token, the table of addresses, other instances."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

from oncelog.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotServedHere,
    OncelogError,
    Overloaded,
    Unauthorized,
)
from oncelog.http.transport import READ_SECONDS
from oncelog.wire.names import IN_ADDRESSES
from oncelog_service.access.audit import NOTHING, Asked
from oncelog_service.access.checks import Unchecked
from oncelog_service.access.grants import EVERYBODY, Principal
from oncelog_service.clock import of_clients
from oncelog_service.rest import cdap
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.bearer import bearer_of
from oncelog_service.rest.bodies import json_in_slices, read_model
from oncelog_service.rest.bounds.places import address_of
from oncelog_service.rest.docs import docs_answer, openapi_answer
from oncelog_service.rest.exchange import Admitted, Head, Standing
from oncelog_service.rest.foreign import Names, check
from oncelog_service.rest.forward import ON_BEHALF, PROXY, ROUTE, Forwarder
from oncelog_service.rest.packing import Packer
from oncelog_service.rest.routes import CONSOLE, Call, Handler, Route
from oncelog_service.rest.table import ROUTES
from oncelog_service.service import Service
from oncelog_service.traffic import Times
from oncelog_service.watch.watch import Watch

_OPEN_TO_ALL = ("/healthz", "/livez", "/readyz", CONSOLE)
"""Answered without a token: for whatever watches over the process, and the page that asks for the token, with its files."""

_BUSIEST = ("/publish", "/poll", "}/commit")
"""Looked at before all others."""


class _Address(NamedTuple):
    """One method on one address, and where it counts how long it takes."""

    route: Route
    times: Times


class Spans(Protocol):
    """Has each request be a span of a trace."""

    def around(
        self, answer: Callable[[bytes], Awaitable[Answer]], route: str, path: Mapping[str, str], who: str, head: Head
    ) -> Callable[[bytes], Awaitable[Answer]]:
        """Returns what answers as ``answer`` does, within a span."""
        ...

    def refused(self, error: OncelogError, route: str | None, path: Mapping[str, str], who: str, head: Head) -> None:
        """It is answered with this error, before its handler was asked."""
        ...


class Application:
    """Answers these addresses for a service."""

    def __init__(
        self, service: Service, routes: Sequence[Route] = ROUTES, pages: Sequence[Route] = (), spans: Spans | None = None
    ) -> None:
        """``pages``: what /docs does not list; ``spans``: where requests are traced."""
        self._spans = spans
        self._service = service
        self.watch = Watch(service)
        settings = service.settings
        self._access = service.access
        self._audit = service.audit
        self._packer = Packer(service.packing)
        longest = settings.max_wait_ms / 1000 + READ_SECONDS
        self._forwarder = Forwarder(service.access, longest, network=service.network, clock=of_clients(service.clock))
        self.watch.ask = lambda url, target: self._forwarder.ask(url, "GET", target)
        self._names = Names.of(settings)
        self._serves_cdap = settings.cdap_clients
        made = {"/openapi.json": openapi_answer, "/docs": docs_answer}
        described = [Route("GET", path, _made(partial(make, routes)), "", right=None) for path, make in made.items()]
        by_path: dict[str, dict[str, _Address]] = {}
        for route in (*routes, *described, *pages):
            times = service.traffic.times_of(route.method, route.path)
            by_path.setdefault(route.path, {})[route.method] = _Address(route, times)
        busiest_first = sorted(by_path, key=lambda path: not path.endswith(_BUSIEST))
        self._addresses = [(_pattern(path), by_path[path]) for path in busiest_first]

    def admit(self, head: Head, address: Any = None) -> Admitted:
        """Who answers this. ``address``: as it was found for the same head. Raises as :func:`foreign.check`; Unauthorized,
        NotAllowed, NotFound, MethodNotAllowed, Overloaded."""
        principal = None
        try:
            if address is None:
                check(head.method, head.headers, self._names)
            try:
                principal = self._principal_of(head)
            except Unchecked as unchecked:
                return self._unchecked(head, self._access.check(unchecked, address_of(head.peer)))
            if address is None:
                address = self._address_of(head)
                check_names(address[1])  # before they are keys of what is remembered of principals
            (route, times), path = address
            route.check(principal, path)
        except OncelogError as refused:
            self._note_unrouted(principal, head, refused)
            raise
        # One token for all says nothing of who asks.
        who = None if principal is EVERYBODY or principal.is_instance else principal.name
        standing = Standing(self._service.shares)
        answer: Callable[[bytes], Awaitable[Answer]] = partial(self._answer, route, path, principal, head, standing)
        note = partial(self._note, route, principal, head)
        if self._spans is not None:
            answer = self._spans.around(answer, route.path, path, principal.name, head)
            note = partial(self._note_traced, self._spans, route, path, principal, head)
        step = None
        if route.step is not None and self._spans is None:
            step = partial(route.step, self._service, self.watch, path, principal)
        waits = route.reads or route.waits
        return Admitted(answer, route.reads, who, note, waits, principal.name, path, times, standing, None, step, address)

    def _unchecked(self, head: Head, checking: asyncio.Future[None]) -> Admitted:
        """Who asks is not known before that is done: nobody's request, which is judged anew then."""
        route = times = None
        with suppress(NotFound, MethodNotAllowed):
            (route, times), _ = self._address_of(head)
        reads = route is None or route.reads
        note = partial(self._note_unrouted, None, head)
        return Admitted(_known_no_more, reads, None, note, times=times, checking=checking)

    def _note_unrouted(self, principal: Principal | None, head: Head, refused: OncelogError) -> None:
        """It is answered with this error, before it was known who is to answer it."""
        found = None
        with suppress(NotFound, MethodNotAllowed):
            found = self._address_of(head)
            self._note(found[0].route, principal, head, refused)
        if self._spans is not None:
            self._spans.refused(refused, *_said(found), "" if principal is None else principal.name, head)

    def _address_of(self, head: Head) -> tuple[_Address, dict[str, str]]:
        """The address that a head names, and the names in it. Raises NotFound, MethodNotAllowed."""
        shown = head.path[:100]
        for pattern, methods in self._addresses:
            if found := pattern.fullmatch(head.path):
                address = methods.get("GET" if head.method == "HEAD" else head.method)
                if address is None:
                    raise MethodNotAllowed(f"{shown} takes {', '.join(methods)}, not {head.method}", allowed=list(methods))
                return address, found.groupdict()
        raise NotFound(f"there is nothing at {shown}; /docs lists what there is")

    def _judged_again(self, route: Route, path: dict[str, str], head: Head) -> Principal:
        """Who asks, if that one may still. Raises Unauthorized, NotAllowed; Overloaded: the token is to be checked once more."""
        try:
            principal = self._principal_of(head)
        except Unchecked:
            raise _to_check_again() from None
        route.check(principal, path)
        return principal

    async def _answer(
        self, route: Route, path: dict[str, str], principal: Principal, head: Head, standing: Standing, body: bytes
    ) -> Answer:
        headers = cdap.typed(route, head.headers) if self._serves_cdap else head.headers
        content_type, accept = (headers.get(name, b"").decode("latin-1") for name in (b"content-type", b"accept"))
        known = head.header(b"if-none-match").decode("latin-1")
        again = partial(self._judged_again, route, path, head)
        call = Call(self._service, path, {}, content_type, body, accept, principal, self._forwarder, standing, again, self.watch)
        call.takes_chunks, call.known = head.takes_chunks, known
        call.agent = head.header(b"user-agent").decode("latin-1")
        call.audited = route.audited
        try:
            if head.query:
                call.query = _query(head.query)
            found = await standing.follow(self._work(route, call, head))
            if _is_told(route, found):
                call.still()
        except NotServedHere as elsewhere:
            passed_on = head.header(ROUTE) == PROXY or (self._serves_cdap and cdap.is_passed_on(route, head.headers))
            if not passed_on:
                raise
            # A HEAD asks as a GET does: the body is left out here, where its client is answered.
            try:
                call.still()
                asked = (route.method, head.target, headers, body, principal, again if head.takes_chunks else None)
                answer = await self._forwarder.send(elsewhere.url, *asked)
                answer = await self._packer.packed(answer, _packings(head))
                if _is_told(route, answer):
                    again()
                return answer
            except BaseException as failure:  # whoever answers notes that
                if call.audited:
                    self._noted(principal, head, failure)
                raise
        except BaseException as failure:  # also that the service stops, and waits no longer for what came of it
            self.watch.refused(failure, path, principal.owner or "")
            if call.audited:
                self._noted(principal, head, failure, call.subject)
            raise
        if call.audited:
            self._noted(principal, head, None, call.subject)
        return found

    async def _work(self, route: Route, call: Call, head: Head) -> Answer:
        """Has the request done, its body read before where the handler takes a model, and its answer packed if that is wanted."""
        if head.path not in _OPEN_TO_ALL:  # else it would be taken for one that hangs, and ended
            await call.gives_way()
        if route.model is None:
            found = await route.handler(call)
        else:
            asked = await read_model(call, route.model)
            found = await route.handler(call, asked)
        answer = found if isinstance(found, Answer) else await json_in_slices(call, found)
        return await self._packer.packed(answer, _packings(head))

    def _note(self, route: Route, principal: Principal | None, head: Head, failure: BaseException) -> None:
        """Keeps that something administrative was refused before its handler was asked."""
        if route.audited:
            self._noted(principal, head, failure)

    def _note_traced(
        self, spans: Spans, route: Route, path: dict[str, str], principal: Principal, head: Head, failure: OncelogError
    ) -> None:
        self._note(route, principal, head, failure)
        spans.refused(failure, route.path, path, principal.name, head)

    def _noted(
        self,
        principal: Principal | None,
        head: Head,
        failure: BaseException | None = None,
        subject: Mapping[str, object] = NOTHING,
    ) -> None:
        """Keeps who asked for what, and what came of it. ``principal``: None, where nobody's credential was shown."""
        status, code = 200, None
        if failure is not None:
            status, code = (
                (failure.status or 500, failure.code) if isinstance(failure, OncelogError) else (500, InternalError.code)
            )
        name = None if principal is None else principal.name
        self._audit.note(Asked(self._service.clock.now_ms(), name, head.peer, head.method, head.path, subject), status, code)

    def _principal_of(self, head: Head) -> Principal:
        if head.nameless is not None:
            raise head.nameless.with_traceback(None)
        if head.certificate is not None and head.certificate_ends_ms <= self._service.clock.now_ms():
            raise Unauthorized("the client's certificate is nobody's: it has expired")
        if head.path in _OPEN_TO_ALL or head.path.startswith(CONSOLE + "/"):
            return EVERYBODY
        authorization = head.headers.get(b"authorization")
        bearer = None
        if authorization is not None:
            bearer = bearer_of(authorization)
            if bearer is None:
                raise Unauthorized("the Authorization header carries no bearer token")
        return self._access.principal_of(bearer, head.certificate, head.headers.get(ON_BEHALF, b""))


def _to_check_again() -> Overloaded:
    """So many others were verified meanwhile, or the issuer's keys are others."""
    return Overloaded("the signed token is to be checked once more; try again")


async def _known_no_more(body: bytes) -> Answer:
    """Answers a request that was judged, and once more, and was of nobody known either time."""
    raise _to_check_again()


def _packings(head: Head) -> str:
    return head.header(b"accept-encoding").decode("latin-1")


def _is_told(route: Route, found: Answer) -> bool:
    """Whether what was found is for those alone who may have it at this moment: what a poll has waited for is, and a page that
    was read. What was done is done, whoever may learn it; and of what comes bit by bit nothing is there yet.
    """
    comes_later = not isinstance(found.body, bytes)
    return (route.reads or route.waits or route.method == "GET") and not comes_later


def _said(found: tuple[_Address, dict[str, str]] | None) -> tuple[str | None, dict[str, str]]:
    """Returns the address as it stands in the table, and the names in it."""
    return (None, {}) if found is None else (found[0].route.path, found[1])


def check_names(path: Mapping[str, str]) -> None:
    """Raises InvalidRequest unless each is a name of its kind."""
    for kind, text in path.items():
        IN_ADDRESSES[kind](text)


def _pattern(path: str) -> re.Pattern[str]:
    """Matches an address. A participant's name holds slashes, encoded or not, and that of a file."""
    parts = re.split(r"{(\w+)}", path)
    for at in range(1, len(parts), 2):
        parts[at] = f"(?P<{parts[at]}>{'.*' if parts[at] in ('participant', 'file') else '[^/]+'})"
    parts[::2] = map(re.escape, parts[::2])
    return re.compile("".join(parts))


def _made(make: Callable[[], Answer]) -> Handler:
    """Answers a page that is seldom asked for and takes a tenth of a second to make: on a thread, when it first is."""
    made: list[Answer] = []

    async def page(call: Call) -> Answer:
        if not made:
            made.append(await asyncio.to_thread(make))
        return made[0]

    return page


def _query(raw: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise InvalidRequest("the query string cannot be read") from error
