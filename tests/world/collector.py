"""A small collector of OpenTelemetry: OTLP over HTTP, decoded, and kept in lists."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.patience import PATIENCE, until


class Collector:
    """What came in so far."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.exports: list[dict[str, Any]] = []
        """Metric by its name, of each export."""
        self.resources: list[dict[str, Any]] = []
        self.came = threading.Event()
        """Set when a request came, also one that hangs."""
        self.may = threading.Event()
        self.may.set()
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(said(resource.resource))
                known = {each.span_id for each in self.spans}  # what is not answered in time is sent again
                self.spans += [span for scope in resource.scope_spans for span in scope.spans if span.span_id not in known]
        else:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resources.append(said(resource.resource))
                self.exports.append({each.name: each for scope in resource.scope_metrics for each in scope.metrics})

    def named(self, name: str, count: int = 1) -> list[Any]:
        """The spans of this name, at least so many of them, as soon as they are there."""
        until(lambda: len([each for each in self.spans if each.name == name]) >= count, f"{count} spans {name!r}")
        return [each for each in self.spans if each.name == name]


def said(what: Any) -> dict[str, Any]:
    """Attributes as a mapping."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in what.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.came.set()
            collector.may.wait(PATIENCE)
            collector.take(self.path, gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="oncelog-test-collector")
    thread.start()
    try:
        yield collector
    finally:
        collector.may.set()
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()
