"""What is sent back: a value that knows nothing of addresses or servers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from math import ceil
from typing import NamedTuple

from oncelog.errors import MethodNotAllowed, NotServedHere, OncelogError, QuotaExceeded, UnsupportedMediaType
from oncelog.wire.media import PROBLEM
from oncelog_service.bounds.quotas import Rates

_NONE: Mapping[str, str] = {}


class Answer(NamedTuple):
    """What to send back. A body of bytes is there as a whole before the first of them leaves; an iterator is work that shows
    progress, line by line, where the last line alone is the answer, or a poll for everything (handlers/cdap_polls.py)."""

    body: bytes | AsyncGenerator[bytes, None]
    media: str
    status: int = 200
    headers: Mapping[str, str] = _NONE
    """Further ones, names in lower case."""


def refusal(error: OncelogError, target: str) -> Answer:
    """An error as problem+json. ``target``: path and query as they were sent, which another instance is to be asked for."""
    return Answer(json.dumps(error.to_problem()).encode() + b"\n", PROBLEM, error.status or 500, _headers(error, target))


def _headers(error: OncelogError, target: str) -> Mapping[str, str]:
    if isinstance(error, NotServedHere):
        return {"location": error.url + target}
    if isinstance(error, MethodNotAllowed):
        return {"allow": ", ".join(error.allowed)}
    if isinstance(error, QuotaExceeded):
        return _headers_of_quota(error)
    if error.status in (503, 507):
        return {"retry-after": "1"}
    if isinstance(error, UnsupportedMediaType) and error.codings:  # only then (RFC 9110, 15.5.16)
        return {"accept-encoding": ", ".join(error.codings)}
    return {"www-authenticate": "Bearer"} if error.status == 401 else _NONE


def _headers_of_quota(error: QuotaExceeded) -> Mapping[str, str]:
    if error.retry_after_ms is None:
        return _NONE
    seconds, rate = ceil(error.retry_after_ms / 1000), f'"{error.quota}"'
    headers = {"retry-after": str(seconds), "oncelog-retry-after-ms": str(error.retry_after_ms)}
    if error.quota in Rates._fields:
        headers |= {"ratelimit-policy": f"{rate};q={error.limit};w=1", "ratelimit": f"{rate};r=0;t={seconds}"}
    return headers
