"""Every address in one table: the router, /openapi.json and the docs page are made from it, so none can be forgotten.

A handler gets a :class:`Call` and returns an ``Answer`` or raises one of oncelog's errors; it knows nothing of status lines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from oncelog.errors import OncelogError
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
    accept: str = ""
    """What the Accept header says."""
    forwarder: Forwarder | None = None
    """Asks other instances, for what several of them have to answer together."""


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

JOURNAL = "/v1/journal"
ATOMIC = JOURNAL + "/{transaction}"
STAGE = TOPIC + "/stage/{transaction}/{chunk}"
GROUP_PRODUCER = JOURNAL + "/groups/{group}/producers/{producer}"

HAND_OVER = "/v1/cluster/hand-over"
