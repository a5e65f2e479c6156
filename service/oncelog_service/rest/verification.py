"""The check that refolds a log and compares it with the live maps, with progress."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from oncelog.wire.media import NDJSON
from oncelog_service.log.reading import read
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import Findings, verification, verify_log
from oncelog_service.rest.routes import Answer, Call


async def verify(call: Call) -> Answer:
    """Lines of JSON: `{"messages": n, "of": m}` while it reads, and the verification as the last line.

    Only a last line with `ok` is an answer: a body that ends without one was cut off.
    """
    log = await call.service.topics.open(call.path["namespace"], call.path["topic"])
    return Answer(_lines(call, log), NDJSON)


async def _lines(call: Call, log: TopicLog) -> AsyncIterator[bytes]:
    of = log.position.upcoming_offset - log.earliest_offset
    steps = verify_log(call.service.store, log)
    findings = Findings()
    while (found := await read(next, steps, None)) is not None:
        findings = found
        yield _line({"messages": findings.messages, "of": of})
    result = verification(call.path["namespace"], call.path["topic"], log.row.generation, findings)
    yield _line(result.to_wire())


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
