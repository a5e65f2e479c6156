"""A span for each request, below that of whoever sent it, where they say it (`traceparent`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from oncelog.errors import InternalError, OncelogError
from oncelog.wire.media import TRACEPARENT, TRACESTATE
from oncelog.wire.trace_context import carried
from oncelog_service.logs import as_said, asking
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.exchange import Head

_propagator = TraceContextTextMapPropagator()
_CARRIED = {b"traceparent": TRACEPARENT, b"tracestate": TRACESTATE}
_WORST = 500
"""From this status on it is the service that failed; below it is what was asked, and the span is no error by the conventions."""


class RequestSpans:
    """Makes them, of one server."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def around(
        self, answer: Callable[[bytes], Awaitable[Answer]], route: str, path: Mapping[str, str], who: str, head: Head
    ) -> Callable[[bytes], Awaitable[Answer]]:
        """Returns what answers as ``answer`` does, within a span. What is logged meanwhile names its trace."""

        async def traced(body: bytes) -> Answer:
            span = self._span(route, path, who, head)
            said = asking.get()
            if said is not None:
                asking.set(said._replace(trace=f"{span.get_span_context().trace_id:032x}"))
            token = current.attach(trace.set_span_in_context(span, Context()))
            try:
                answered = await answer(body)
            except BaseException as error:
                _end(span, error)
                raise
            finally:
                current.detach(token)
            span.set_attribute("http.response.status_code", answered.status)
            if not isinstance(answered.body, bytes):  # line by line: the work is still to be done
                return answered._replace(body=_Spanned(span, answered.body))
            span.end()
            return answered

        return traced

    def refused(self, error: OncelogError, route: str | None, path: Mapping[str, str], who: str, head: Head) -> None:
        """It is answered with this error, before anybody was asked."""
        _end(self._span(route, path, who, head), error)

    def _span(self, route: str | None, path: Mapping[str, str], who: str, head: Head) -> Span:
        said: dict[str, Any] = {"http.request.method": head.method, "url.path": as_said(head.path), "client.address": head.peer}
        if route is not None:
            said["http.route"] = route
        if who:
            said["enduser.id"] = who
        if "topic" in path:
            said |= {"messaging.system": "oncelog", "messaging.destination.name": as_said(f"{path['namespace']}/{path['topic']}")}
        headers = {name: head.headers[header].decode("latin-1") for header, name in _CARRIED.items() if header in head.headers}
        parent = _propagator.extract(carried(headers), Context())
        name = head.method if route is None else f"{head.method} {route}"
        return self._tracer.start_span(name, parent, SpanKind.SERVER, said)


class _Spanned(AsyncGenerator[bytes, None]):
    """The lines of an answer, whose span ends as they do: with the last one, with an error, or when nobody wants more of them.

    No generator itself: one that was closed before its first line would never have run.
    """

    def __init__(self, span: Span, lines: AsyncGenerator[bytes, None]) -> None:
        self._span = span
        self._lines = lines

    async def asend(self, value: None) -> bytes:
        try:
            return await self._lines.asend(value)
        except StopAsyncIteration:
            self._span.end()
            raise
        except BaseException as error:
            _end(self._span, error)
            raise

    async def athrow(self, *given: Any) -> bytes:
        return await self._lines.athrow(*given)

    async def aclose(self) -> None:
        try:
            await self._lines.aclose()
        finally:
            if self._span.is_recording():
                self._span.end()


def _end(span: Span, error: BaseException) -> None:
    known = error if isinstance(error, OncelogError) else InternalError() if isinstance(error, Exception) else None
    span.set_attribute("error.type", type(error).__qualname__ if known is None else known.code)
    if known is not None:
        status = known.status or _WORST
        span.set_attribute("http.response.status_code", status)
        if status >= _WORST:
            span.set_status(StatusCode.ERROR, known.detail)
    span.end()
