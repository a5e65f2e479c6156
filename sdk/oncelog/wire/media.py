"""Media types, and the common words of addresses and messages."""

from __future__ import annotations

AVRO = "avro/binary"
"""The TMS schemas, byte for byte."""
ONCELOG_AVRO = "application/vnd.oncelog+avro"
"""The schemas with everything TMS had no word for; what the SDK speaks."""
JSON = "application/json"
"""Avro's JSON encoding of either."""
PROBLEM = "application/problem+json"
"""RFC 9457: every error."""
THRIFT = "application/vnd.apache.thrift.binary"
"""A transaction as Thrift's binary protocol has it; see :mod:`oncelog.wire.transaction`."""
NDJSON = "application/x-ndjson"
"""One JSON object a line, for work that shows progress."""

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
"""Properties in which a message carries the context of a trace, as W3C writes it. They say nothing of what the message is."""

DEFAULT_URL = "http://127.0.0.1:7070"
DEFAULT_NAMESPACE = "default"


def essence(content_type: str) -> str:
    """``application/json; charset=utf-8`` → ``application/json``."""
    return content_type.partition(";")[0].strip().lower()
