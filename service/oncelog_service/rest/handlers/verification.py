"""The check that refolds a log and compares it with the live maps, with progress."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import suppress

from oncelog.wire.media import NDJSON
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import Findings, verification, verify_log
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.routes import Call

_REPORT_EVERY = 20_000


async def verify(call: Call) -> Answer:
    """Lines of JSON: `{"messages": n, "of": m}` while it reads, and the verification as the last line.

    Only a last line with `ok` is an answer: a body that ends without one was cut off.
    """
    log = await call.log()
    return Answer(_lines(call, log), NDJSON)


async def _lines(call: Call, log: TopicLog) -> AsyncGenerator[bytes, None]:
    of = log.position.upcoming_offset - log.earliest_offset
    steps = verify_log(call.service.store, log)
    findings, reported = Findings(), 0
    try:
        while (found := await call.service.scans.read(next, steps, None)) is not None:
            findings = found
            if findings.messages - reported >= _REPORT_EVERY:
                reported = findings.messages
                yield _line({"messages": findings.messages, "of": of})
    finally:
        with suppress(ValueError):  # a slice is being read; it ends, and is forgotten
            steps.close()
    yield _line({"messages": findings.messages, "of": of})
    result = verification(call.path["namespace"], call.path["topic"], log.generation, findings)
    yield _line(result.to_wire())


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
