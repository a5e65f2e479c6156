"""Sends spans and metrics to a collector, over OTLP as HTTP, as the variables `OTEL_…` say.

A collector that is away, or hangs, holds up nothing: spans wait in a bounded queue and leave on a thread of their own, metrics
on another one; neither is waited for when the process ends, but for :data:`FLUSH_SECONDS` in all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import oncelog
from oncelog_service.background import Background
from oncelog_service.metrics.exposition import collected
from oncelog_service.service import Service
from oncelog_service.telemetry.measuring import data_of
from oncelog_service.telemetry.spans import RequestSpans

_log = logging.getLogger(__name__)
T = TypeVar("T")

FLUSH_SECONDS = 3.0
"""For what waits when the service stops, spans and metrics together."""
_INTERVAL_MS = 60_000.0
"""Between two exports of metrics, unless OTEL_METRIC_EXPORT_INTERVAL says otherwise: what OpenTelemetry's SDK has."""
_NAME = "oncelog_service"


class Telemetry:
    """Of one process. Belongs to one event loop."""

    def __init__(self) -> None:
        self._begun_ns = time.time_ns()
        self._resource = _resource()
        self._exporter = OTLPMetricExporter() if _exports("METRICS") else None
        self._interval = _interval_seconds()
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        if _exports("TRACES"):
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.spans = RequestSpans(self._provider.get_tracer(_NAME, oncelog.__version__))

    async def run(self, service: Service, background: Background) -> None:
        """Sends the metrics again and again, until cancelled."""
        await background.keep("sending metrics", partial(self._run, service))

    async def _run(self, service: Service) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._send(service)

    async def _send(self, service: Service) -> None:
        """Sends what there is to say now. An export that fails is the exporter's to log; the next one says all again."""
        exporter = self._exporter
        if exporter is not None:
            scope = InstrumentationScope(_NAME, oncelog.__version__)
            families = await collected(service)

            def send() -> None:
                exporter.export(data_of(families, self._resource, scope, self._begun_ns, time.time_ns()))

            await _aside(send)

    async def end(self, service: Service) -> None:
        """Sends what waits, within FLUSH_SECONDS; what does not leave by then is lost, and the log says so."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                spans = asyncio.ensure_future(_aside(self._provider.shutdown))
                await asyncio.gather(spans, self._send(service))
        except TimeoutError:
            _log.warning("spans or metrics did not reach their collector within %g s, and are lost", FLUSH_SECONDS)
        except Exception:
            _log.exception("the last spans and metrics could not be sent")


def _aside(call: Callable[[], T]) -> asyncio.Future[T]:
    """Returns what the call will have returned, on a thread that no end of the process waits for, as it does for the event loop's
    own: a collector that hangs would hold it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(set_it: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if future.done() else set_it())

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            failure = error
            tell(lambda: future.set_exception(failure))
        else:
            tell(lambda: future.set_result(result))

    threading.Thread(target=run, name="oncelog-telemetry", daemon=True).start()
    return future


def _resource() -> Resource:
    """Returns what is said of this process. What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say goes before."""
    named = {"service.name": "oncelog", "service.version": oncelog.__version__, "service.instance.id": str(uuid4())}
    given = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in named.items() if name not in given})


def _exports(what: str) -> bool:
    """Whether OTEL_TRACES_EXPORTER, or OTEL_METRICS_EXPORTER, does not say `none`."""
    return os.environ.get(f"OTEL_{what}_EXPORTER", "").strip().lower() != "none" and not _is_disabled()


def _is_disabled() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _interval_seconds() -> float:
    given = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    with suppress(ValueError):
        if (interval := float(given)) > 0:
            return interval / 1000
    if given:
        _log.warning("OTEL_METRIC_EXPORT_INTERVAL is a number of milliseconds greater than 0, not %r", given[:50])
    return _INTERVAL_MS / 1000
