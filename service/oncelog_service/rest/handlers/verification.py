"""The check that refolds a log and compares it with the live maps, with progress."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress

from oncelog.errors import OncelogError
from oncelog.wire.media import NDJSON
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import Findings, verification, verify_log
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.routes import Call

_REPORT_EVERY = 20_000

_Steps = Generator[Findings]


async def verify(call: Call) -> Answer:
    """Lines of JSON: `{"messages": n, "of": m}` while it reads, and the verification as the last line.

    Only a last line with `ok` is an answer: `{"problem": …}` says why there is none, and a body that ends without either was cut
    off.
    """
    log = await call.log()
    steps = verify_log(call.service.opening.store, log)
    first = await _next(call, steps)  # a store that cannot be read is answered with a status
    return Answer(_lines(call, log, steps, first), NDJSON)


async def _lines(call: Call, log: TopicLog, steps: _Steps, found: Findings | None) -> AsyncGenerator[bytes, None]:
    of = log.position.upcoming_offset - log.earliest_offset
    findings, reported = Findings(), 0
    try:
        while found is not None:
            findings = found
            if findings.messages - reported >= _REPORT_EVERY:
                reported = findings.messages
                yield _line({"messages": findings.messages, "of": of})
            found = await _next(call, steps)
    except OncelogError as error:
        yield _line({"problem": error.to_problem()})
        return
    finally:
        with suppress(ValueError):  # a slice is being read; it ends, and is forgotten
            steps.close()
    yield _line({"messages": findings.messages, "of": of})
    result = verification(call.path["namespace"], call.path["topic"], log.generation, findings)
    yield _line(result.to_wire())


async def _next(call: Call, steps: _Steps) -> Findings | None:
    return await call.service.scans.read(next, steps, None)


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
