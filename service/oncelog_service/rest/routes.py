"""Every address in one table: the router, /openapi.json and the docs page are made from it, so none can be forgotten.

A handler gets a :class:`Call` and returns an ``Answer`` or raises one of oncelog's errors; it knows nothing of status lines.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from oncelog.errors import OncelogError, StorageUnavailable, from_problem
from oncelog.wire.media import JSON
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.forward import Forwarder
from oncelog_service.service import Service


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
    forwarder: Forwarder
    """Asks other instances, for what several of them have to answer together."""

    async def log(self) -> TopicLog:
        """Opens the topic in the address. Raises TopicNotFound, TopicDamaged, NotServedHere."""
        return await self.service.topics.open(self.path["namespace"], self.path["topic"])

    async def ask(self, url: str, method: str, target: str, value: object = None) -> Any:
        """Returns the JSON that another instance answers. Raises its refusal; StorageUnavailable if it answers no JSON."""
        headers = {} if value is None else {b"content-type": JSON.encode()}
        answer = await self.forwarder.send(url, method, target, headers, b"" if value is None else json.dumps(value).encode())
        try:
            found = json.loads(answer.body) if isinstance(answer.body, bytes) else None
        except ValueError:
            found = None
        if answer.status != 200 and isinstance(found, dict):
            raise from_problem(found, answer.status)
        if answer.status != 200 or found is None:
            raise StorageUnavailable(f"{url} serves some of the topics and answered {answer.status}, which says nothing of them")
        return found


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one address."""

    method: str
    path: str
    handler: Handler
    summary: str
    """One line; what the handler's docstring says at length is the description."""
    request: dict[str, Any] = field(default_factory=dict)
    """Media type → JSON schema or Avro schema name of the body."""
    response: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    errors: tuple[type[OncelogError], ...] = ()
    query: dict[str, str] = field(default_factory=dict)
    """Query parameter → what it means."""
    reads: bool = False
    """It looks at much, or waits, and changes nothing: it ends when its client has hung up."""


TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"
"""Begins every address of a topic, exactly as in the TMS page."""

PRODUCER = TOPIC + "/producers/{producer}"
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

HAND_OVER = "/v1/cluster/hand-over"
