"""Every address in one table: the router, /openapi.json and the docs page are made from it, so none can be forgotten.

A handler gets a :class:`Call`, and the body as the model that its signature names; it returns what is answered, or raises one of
oncelog's errors. It knows nothing of status lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel

from oncelog import errors
from oncelog.errors import OncelogError, Overloaded, StorageUnavailable
from oncelog.wire.media import JSON
from oncelog.wire.requests import PublishRequest
from oncelog_service.access.grants import EVERY_TOPIC, EVERYBODY, SERVICE_WIDE, Principal, Right
from oncelog_service.bounds.slices import slices
from oncelog_service.bounds.turns import STOPPING, Sizes, Turn
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.rest.exchange import Answers, Exchange, Standing, Step
from oncelog_service.rest.forward import Forwarder
from oncelog_service.service import Service
from oncelog_service.watch.watch import Watch

T = TypeVar("T")

_JUDGED_AT_ONCE = 40
"""Names that are held against grants in one step: half a millisecond, where there are some grants."""


@dataclass(slots=True)
class Call:
    """A request, read completely and within its bounds."""

    service: Service
    path: dict[str, str]
    query: dict[str, str]
    content_type: str
    body: bytes
    accept: str
    """What the Accept header says."""
    principal: Principal
    """Who asks."""
    forwarder: Forwarder
    """Asks other instances, for what several of them have to answer together."""
    standing: Standing
    judged_again: Callable[[], Principal]
    """Finds out anew who asks, and whether that one may what the address says. Raises Unauthorized, NotAllowed."""
    watch: Watch
    """Knows what is wrong, and how the service is doing."""
    takes_chunks: bool = True
    """An answer whose length is not known can be sent, and told from one that broke off."""
    agent: str = ""
    """What the User-Agent header says."""
    known: str = ""
    """What the If-None-Match header says: who asks has that already."""
    subject: Mapping[str, object] = field(default_factory=dict)
    """What the audit log says beside the address; a handler sets it, and puts no secret there."""
    audited: bool = False
    """As the address is (:attr:`Route.audited`); a handler that knows whose it is that is asked for says so again."""

    def note(self, asked: BaseModel) -> None:
        """Has the audit log say what is asked for, where that is short and holds no secret."""
        self.subject = asked.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def log(self) -> TopicLog:
        """Opens the topic in the address. Raises TopicNotFound, TopicDamaged, NotServedHere; and as :meth:`still`."""
        log = await self.service.opening.topics.logs.open(self.path["namespace"], self.path["topic"])
        self.still()
        return log

    def still(self) -> None:
        """Judges who asks again, if that was before something was waited for: a token may have been revoked meanwhile.

        To be called between what is waited for and what is done, or told, by the right of who asks. Raises Unauthorized,
        NotAllowed.
        """
        if self.standing.waited:
            self.standing.waited = False
            self.principal = self.judged_again()

    @property
    def is_held_up(self) -> bool:
        """Who asks has used more than a share, and others wait: it may not have now what they wait for."""
        return not self.service.shares.may(self.standing.who)

    async def gives_way(self) -> None:
        """Returns when it may go on: who has used more than a share waits for others who wait, and holds nothing that they wait
        for. Raises as :meth:`still`."""
        shares, standing = self.service.shares, self.standing
        if shares.is_over(standing.who):
            standing.idle = True
            try:
                await shares.turn(standing.who)
            finally:
                standing.idle = False
            self.still()

    async def seen(self, items: Sequence[T], may: Callable[[Principal, T], bool]) -> list[T]:
        """Those that who asks may, at this moment, know of. Some are judged at a time, and others have their turns in between."""
        if len(items) <= _JUDGED_AT_ONCE:
            self.still()
            return [each for each in items if may(self.principal, each)]
        async with self.service.shares.alone(self.standing.who):
            while True:
                self.still()
                principal, found = self.principal, list[T]()
                for part in slices(items, _JUDGED_AT_ONCE):
                    found += [each for each in part if may(principal, each)]
                    await asyncio.sleep(0)
                self.still()
                if self.principal.grants == principal.grants:
                    return found

    def turn(self, sizes: Sizes = ()) -> _InTurn:
        """Waits, where it is entered, until the request may be worked on: nothing has been done for it before.

        ``sizes``: of what it brings to each topic; as a rule its body goes to the topic in the address.

        Raises Overloaded: too much waits. StorageUnavailable: the service stops. Unauthorized, NotAllowed: who asks may not any
        more, after waiting.
        """
        return _InTurn(self, sizes or (((self.path["namespace"], self.path["topic"]), len(self.body)),))

    def may_write(self, namespace: str, topic: str, producers: Iterable[str | None] = ()) -> None:
        """Raises NotAllowed, Unauthorized unless who asks may, at this very moment, have messages of these producers appear on a
        topic; None among them: of no producer."""
        self.still()
        self.principal.check(Right.WRITE, namespace, topic)
        for producer in producers:
            self.principal.check_producer(namespace, topic, producer)

    def count(self, *requests: PublishRequest) -> None:
        """Counts the messages that who asks sends; once it is known that they are served here. Raises QuotaExceeded."""
        quotas = self.service.principal_quotas
        if quotas.are_limited and self.principal is not EVERYBODY:
            messages, size = sum(len(each.payloads) for each in requests), sum(each.size for each in requests)
            quotas.admit(self.principal.name, messages, size, self.service.clock.monotonic())

    def check(self, right: Right, topic: str) -> None:
        """Raises NotAllowed unless who asks has the right on a topic of the namespace in the address."""
        self.principal.check(right, self.path["namespace"], topic)

    async def ask(self, url: str, method: str, target: str, value: object = None) -> Any:
        """Returns the JSON that another instance answers. Raises its refusal; StorageUnavailable if it answers no JSON."""
        return await self.forwarder.ask(url, method, target, value)


class _InTurn:
    """A request's turn, from when it is entered."""

    __slots__ = ("_call", "_sizes", "_turn")

    def __init__(self, call: Call, sizes: Sizes) -> None:
        self._call = call
        self._sizes = sizes

    async def __aenter__(self) -> None:
        await self._begin()
        while self._call.is_held_up:
            self._call.service.turns.end(self._turn)
            await self._call.gives_way()
            await self._begin()

    async def _begin(self) -> None:
        service = self._call.service
        turns = service.turns
        try:
            turn = self._turn = turns.begin(self._sizes)
        except Overloaded:
            service.traffic.refused["waiting"] += 1
            raise
        if turn.waits:
            try:
                await self._wait(turn)
            except BaseException:
                turns.end(turn)
                raise

    async def _wait(self, turn: Turn) -> None:
        call, begun = self._call, asyncio.Event()
        turn.go = begun.set
        call.standing.idle = True
        try:
            await begun.wait()
        finally:
            call.standing.idle = False
        if turn.refused:
            raise StorageUnavailable(STOPPING)
        call.still()

    async def __aexit__(self, *raised: object) -> None:
        self._call.service.turns.end(self._turn)


RouteStep = Callable[[Service, Watch, dict[str, str], Principal, Exchange, Answers], Step]
"""Makes a request to an address, by a principal who may do what that says, one that is done in a step."""

Handler = Callable[..., Coroutine[Any, Any, object]]
"""Is given a Call and, if its signature has a second parameter, a model of that kind, which the body was read as. It returns an
Answer, or what is to be answered as JSON."""


@dataclass(frozen=True)
class Route:
    """One method on one address. What the handler's signature and the address say of it is not said again."""

    method: str
    path: str
    handler: Handler
    summary: str
    """One line; what the handler's docstring says at length is the description."""
    right: Right | tuple[Right, ...] | None = field(kw_only=True)
    """What who asks must be allowed: on the topic in the address, on all topics of the namespace in it, or of the service; a
    right of topics where it names none: on any. None: nothing, or what the handler finds out from names that the body holds."""
    one_of: tuple[Right, ...] = field(default=(), kw_only=True)
    """One of these is needed besides, on whatever topic."""
    audited: bool = field(default=False, kw_only=True)
    """Administrative: who asked, and what came of it, is kept."""
    refusals: tuple[type[OncelogError], ...] = ()
    """Errors of its own; see :attr:`errors`."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Query parameter → what it means."""
    takes: Mapping[str, Any] | None = None
    """Media type → type or Avro schema name of the body, where the handler's signature does not say it."""
    gives: Mapping[str, Any] | None = None
    """The same of the answer."""
    waits: bool = False
    """It may be held until there is something to answer, as what ``reads`` may."""
    step: RouteStep | None = None
    """Does what the handler does, where nothing has to be waited for."""
    reads: bool = False
    """It looks at much, or waits, and changes nothing: it ends when its client has hung up."""

    @cached_property
    def rights(self) -> tuple[Right, ...]:
        """All that must be allowed."""
        return self.right if isinstance(self.right, tuple) else () if self.right is None else (self.right,)

    def check(self, principal: Principal, path: Mapping[str, str]) -> None:
        """Raises NotAllowed, by the address alone."""
        namespace = path.get("namespace", "")
        for right in self.rights:
            if namespace or right in SERVICE_WIDE:
                principal.check(right, namespace, path.get("topic", EVERY_TOPIC) if namespace else "")
            else:
                principal.check_anywhere(right)
        if self.one_of:
            principal.check_anywhere(*self.one_of)

    @cached_property
    def _said(self) -> dict[str, Any]:
        """The types in the handler's signature, but for the call's."""
        hints = get_type_hints(self.handler)
        return {name: kind for name, kind in hints.items() if kind is not Call}

    @cached_property
    def model(self) -> type[BaseModel] | None:
        """What the body is read as before the handler is called."""
        return next((kind for name, kind in self._said.items() if name != "return"), None)

    @cached_property
    def request(self) -> Mapping[str, Any]:
        """Media type → type or Avro schema name of the body; empty: there is none."""
        return self.takes or ({} if self.model is None else {JSON: self.model})

    @cached_property
    def response(self) -> Mapping[str, Any]:
        """The same of the answer."""
        return self.gives or {JSON: self._said["return"]}

    @cached_property
    def errors(self) -> tuple[type[OncelogError], ...]:
        """What it may be refused with: its own errors, and those of all that have such an address, or a body."""
        found = [*self.refusals]
        if "{" in self.path or self.query or self.request:
            found.append(errors.InvalidRequest)
        if self.request:
            found.append(errors.RequestTooLarge)
        if "{topic}" in self.path and errors.TopicExists not in found:
            found += [errors.TopicNotFound, errors.TopicDamaged]
        if self.path.startswith(TRANSACTIONS):
            found.append(errors.TransactionsUnavailable)
        if self.path.startswith("/v1/"):
            found += [errors.StorageUnavailable, errors.StorageFailed]
        if self.method != "GET":
            found.append(errors.UnsupportedMediaType)
        return (*dict.fromkeys(found), errors.Unauthorized, errors.NotAllowed, errors.ForeignOrigin, errors.HostNotAllowed)


TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"
"""Begins every address of a topic, exactly as in the TMS page."""

NAMESPACE = "/v1/namespaces/{namespace}"
PRODUCER = TOPIC + "/producers/{producer}"
SUBSCRIPTIONS = "/v1/subscriptions"
HELD = "/v1/held"
HELD_ON_TOPIC = TOPIC + "/held"
SUBSCRIPTION = TOPIC + "/subscriptions/{subscription}"
TRANSACTIONS = "/v1/transactions"
TRANSACTION = "/v1/transactions/{writePointer}"
PARTICIPANT = TRANSACTION + "/participants/{participant}"
"""A participant's name holds slashes: the rest of the address."""

ATOMIC_COMMITS = "/v1/atomic"
ATOMIC_COMMIT = ATOMIC_COMMITS + "/{transaction}"
STAGE = TOPIC + "/stage/{transaction}/{chunk}"
GROUP_PRODUCER = ATOMIC_COMMITS + "/groups/{group}/producers/{producer}"

CONSOLE = "/console"

HAND_OVER = "/v1/cluster/hand-over"

TOKENS = "/v1/tokens"
TOKEN = TOKENS + "/{token}"
