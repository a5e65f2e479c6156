"""Whether this process traces its calls: one switch, which :mod:`oncelog.telemetry` turns on.

Off, as every process begins, a call pays for one look at :attr:`Switch.tracing`, and a message for none. Nothing of
OpenTelemetry is known here: what is behind the switch makes the spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

Properties = Mapping[str, str] | None
"""Of a message."""


class Place(NamedTuple):
    """The topic that a span is about."""

    namespace: str
    topic: str
    url: str
    """Of the service."""


class Span(Protocol):
    """One call that is under way. As a context manager it is the current one, and ends with the block."""

    context: Mapping[str, str]
    """What a message carries of it: W3C's `traceparent` and `tracestate`; empty where nothing records it."""

    def __enter__(self) -> Span: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None: ...

    def end(self, error: BaseException | None) -> None:
        """The call has ended, with this error if it met one."""
        ...

    def ends_with(self, future: Any) -> None:
        """Have it end as this future does."""
        ...


class Receiving(Protocol):
    """A page that was asked for."""

    def brought(self, records: Sequence[Mapping[str, Any]]) -> None:
        """These messages are in it."""
        ...


class Tracing(Protocol):
    """Makes the spans of this process."""

    def send(self, place: Place, properties: Sequence[Properties], count: int) -> Span:
        """Begin the span of a call that sends so many messages; ``properties``: those that were given any."""
        ...

    def request(self, place: Place, properties: Sequence[Properties], count: int) -> AbstractContextManager[Any]:
        """Be around one request that publishes messages, of one call or of several."""
        ...

    def receive(self, place: Place, subscription: str | None) -> AbstractContextManager[Receiving]:
        """Be around one request for a page of messages."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Return what a request says of the span that is current where it is made."""
        ...


class Switch:
    """What a process has once."""

    __slots__ = ("tracing",)

    def __init__(self) -> None:
        self.tracing: Tracing | None = None


switch = Switch()
