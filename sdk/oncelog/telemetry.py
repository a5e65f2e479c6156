"""Spans of what this process sends, receives and processes, by OpenTelemetry's conventions for messaging (the extra `otel`).

    from oncelog import telemetry

    telemetry.instrument()                              # once, where the process begins
    ...
    with telemetry.processing(message, reader):         # parent: the span in which the message was sent
        session.execute(…)                              # spans of SQLAlchemy, and all others, are below it

The context of a trace travels in a message's properties, as W3C writes it (`traceparent`, `tracestate`), and in the headers of
the requests, so that the service's spans join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

try:
    from opentelemetry import context as current
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as missing:
    raise ImportError("oncelog.telemetry needs OpenTelemetry: pip install 'oncelog[otel]'") from missing

from oncelog.errors import OncelogError
from oncelog.http.engines import names_a_store
from oncelog.process.tracing import Place, Properties, switch
from oncelog.reading.twins import StreamTwin, place_of
from oncelog.values.message import Message
from oncelog.wire.media import TRACEPARENT
from oncelog.wire.trace_context import carried

__all__ = ["instrument", "processing", "uninstrument"]

MOST_LINKS = 128
"""Of one span: what OpenTelemetry's SDK keeps by default."""

_NAME = "oncelog"
_SCHEMA = "https://opentelemetry.io/schemas/1.43.0"
_propagator = TraceContextTextMapPropagator()


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace what this process sends and receives from now on, until :func:`uninstrument`.

    ``tracer_provider``: else the global one, as it is when this is called or set later. Calls that are under way stay without.
    """
    from oncelog import __version__

    switch.tracing = _Tracing(trace.get_tracer(_NAME, __version__, tracer_provider, _SCHEMA))


def uninstrument() -> None:
    """Trace nothing more. Spans that are under way end as their calls do."""
    switch.tracing = None


@contextmanager
def processing(message: Message[Any], stream: StreamTwin[Any, Any] | None = None) -> Iterator[trace.Span]:
    """Be around what is done with one message: a CONSUMER span, current in the block, below the span in which it was sent.

    An exception that leaves the block is recorded, and goes on. Without :func:`instrument`, and for a message that carries no
    context, it nests in what is current. ``stream``: the reader or consumer that delivered it, which says of which topic it is.
    """
    tracing = switch.tracing
    if tracing is None:
        yield trace.get_current_span()
        return
    assert isinstance(tracing, _Tracing)
    with tracing.process(message, stream) as span:
        yield span


class _Tracing:
    """What is behind the switch while it is on."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def send(self, place: Place, properties: Sequence[Properties], count: int) -> _Span:
        """Begin the span of a call that sends; linked to contexts that the caller has put into messages itself."""
        attributes = {**_said(place, "send", "send"), "messaging.batch.message_count": count}
        span = self._tracer.start_span(
            _named("send", place), kind=SpanKind.PRODUCER, attributes=attributes, links=_links(_contexts(properties))
        )
        return _Span(span)

    @contextmanager
    def request(self, place: Place, properties: Sequence[Properties], count: int) -> Iterator[None]:
        """Be around one request that publishes. Of one call it is a part; of several it is a trace of its own, with links."""
        contexts = [*islice(_contexts(properties), MOST_LINKS)]
        attributes = {**_said(place, "publish", "send"), "messaging.batch.message_count": count}
        one = len(contexts) == 1
        span = self._tracer.start_span(
            _named("publish", place),
            context=_extracted(contexts[0]) if one else Context(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=() if one else _links(contexts),
        )
        with _Span(span):
            yield

    @contextmanager
    def receive(self, place: Place, subscription: str | None) -> Iterator[_Receiving]:
        """Be around one request for a page. What brings nothing and meets no error is dropped: it was waiting, and no work."""
        attributes = {**_said(place, "receive", "receive"), **_group(subscription)}
        receiving = _Receiving(self._tracer.start_span(_named("receive", place), kind=SpanKind.CLIENT, attributes=attributes))
        error: BaseException | None = None
        try:
            with trace.use_span(receiving.span, record_exception=False, set_status_on_exception=False):
                yield receiving
        except BaseException as failure:
            error = failure
            raise
        finally:
            if receiving.has_brought or isinstance(error, OncelogError):
                _end(receiving.span, error)

    @contextmanager
    def process(self, message: Message[Any], stream: StreamTwin[Any, Any] | None) -> Iterator[trace.Span]:
        """Be around what is done with a message."""
        properties = message.properties
        place, subscription = (None, None) if stream is None else place_of(stream)
        attributes: dict[str, Any] = {
            **_said(place, "process", "process"),
            **_group(subscription),
            "messaging.message.id": str(message.message_id),
            "messaging.message.body.size": len(message.payload),
            "messaging.oncelog.offset": message.offset,
        }
        parent = _extracted(properties) if TRACEPARENT in properties else None
        span = self._tracer.start_span(_named("process", place), parent, SpanKind.CONSUMER, attributes)
        with _Span(span):
            yield span

    def headers(self) -> Mapping[str, str]:
        """Return the current context as headers."""
        return _injected(None)


class _Span:
    """One call that is under way."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.context = _injected(trace.set_span_in_context(span, Context()))
        self._token: Any = None

    def __enter__(self) -> _Span:
        self._token = current.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        current.detach(self._token)
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """The call has ended."""
        _end(self._span, error)

    def ends_with(self, future: Any) -> None:
        """Have it end as this future does."""
        future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        error: BaseException | None = None
        try:
            error = future.exception()
        except BaseException as cancelled:  # asyncio's, which nobody waits for any more; what is sent is sent
            error = cancelled
        self.end(error)


class _Receiving:
    """A page that was asked for."""

    def __init__(self, span: trace.Span) -> None:
        self.span = span
        self.has_brought = False

    def brought(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Note its messages."""
        if records:
            self.has_brought = True
            self.span.set_attribute("messaging.batch.message_count", len(records))
            for link in _links(_contexts(record["properties"] for record in records)):
                self.span.add_link(link.context, link.attributes)


def _end(span: trace.Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_attribute("error.type", error.code if isinstance(error, OncelogError) else type(error).__qualname__)
        span.set_status(StatusCode.ERROR, str(error)[:1000])
    span.end()


def _contexts(properties: Iterable[Properties]) -> Iterator[Mapping[str, str]]:
    """Yield each context that messages carry, once, in their order."""
    seen: set[str] = set()
    for each in properties:
        if each and (said := each.get(TRACEPARENT)) is not None and said not in seen:
            seen.add(said)
            yield each


def _links(contexts: Iterable[Mapping[str, str]]) -> list[Link]:
    """Return links to the first of these contexts; what is none, whoever wrote it, is passed over."""
    links = []
    for each in islice(contexts, MOST_LINKS):
        linked = trace.get_current_span(_extracted(each)).get_span_context()
        if linked.is_valid:
            links.append(Link(linked))
    return links


def _extracted(properties: Mapping[str, str]) -> Context:
    return _propagator.extract(carried(properties), Context())


def _injected(context: Context | None) -> Mapping[str, str]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier


def _named(operation: str, place: Place | None) -> str:
    return operation if place is None else f"{operation} {place.namespace}/{place.topic}"


def _said(place: Place | None, operation: str, kind: str) -> dict[str, str | int]:
    said: dict[str, str | int] = {
        "messaging.system": "oncelog",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if place is not None:
        said["messaging.destination.name"] = f"{place.namespace}/{place.topic}"
        said |= _server(place.url)
    return said


def _group(subscription: str | None) -> dict[str, str]:
    return {} if subscription is None else {"messaging.consumer.group.name": subscription}


@lru_cache(64)
def _server(url: str) -> dict[str, str | int]:
    if names_a_store(url):
        return {}
    parts = urlsplit(url)
    server: dict[str, str | int] = {"server.address": parts.hostname or ""}
    with suppress(ValueError):
        server["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    return server
