"""What an answer means that is no success: the service's own words, or those of something on the way to it. Pure.

A gateway, a load balancer or a proxy answers in HTML or in words of its own. Where it says that the service is away or that too
much is asked of it, that is :class:`~oncelog.errors.GatewayUnavailable`, which is tried again as a broken connection is. It is
never definite: such a thing may have passed the request on, even more than once, before it gave up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from oncelog.errors import (
    GatewayUnavailable,
    InvalidResponse,
    OncelogError,
    QuotaExceeded,
    RequestTooLarge,
    Unauthorized,
    from_problem,
)
from oncelog.wire.media import PROBLEM, essence

AWAY = frozenset({408, 421, 425, 429, 502, 503, 504, 520, 521, 522, 523, 524, 529, 530})
"""What is said for a service that is away, by whatever stands before it: also that the request did not come whole (408), to the
right one (421), late enough (425), or seldom enough (429). 520 to 530 are Cloudflare's."""


def problem_in(content_type: str, body: bytes) -> dict[str, Any] | None:
    """The service's problem; None where the answer is not one of its."""
    if essence(content_type) != PROBLEM:
        return None
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return problem if isinstance(problem, dict) and isinstance(problem.get("code"), str) else None


def refusal(url: str, status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> OncelogError:
    """The error that the answer of ``url`` stands for. ``body`` may be cut off, unless it is a problem; ``now``: for dates."""
    problem = problem_in(headers.get("content-type", ""), body)
    error = None if problem is None else from_problem(problem, status)
    if error is None:
        error = _of_something_else(url, status, headers, body)
    error.retry_after = retry_after(headers.get("retry-after"), now)
    if isinstance(error, QuotaExceeded) and error.retry_after_ms is not None:
        error.retry_after = max(0, error.retry_after_ms) / 1000  # the header has whole seconds
    return error


_SAID = {
    401: (Unauthorized, "Something in front of the service asks who this is"),
    403: (InvalidResponse, "Something in front of the service refuses it"),
    407: (Unauthorized, "The proxy asks who this is: name user and password in its URL"),
    413: (RequestTooLarge, "Something in front of the service takes no request of this size"),
}


def _of_something_else(url: str, status: int, headers: Mapping[str, str], body: bytes) -> OncelogError:
    said = f"{url} answered {status}, which is no oncelog service's answer: {body[:200].decode('utf-8', 'replace')!r}"
    if status in AWAY:
        return GatewayUnavailable(f"{said}. Something in front of the service says that it is away", http_status=status)
    if status in _SAID:
        kind, what = _SAID[status]
        return kind(f"{said}. {what}")
    if 300 <= status < 400 and "location" in headers:
        return InvalidResponse(
            f"{said}. It redirects to {headers['location'][:200]!r} (a page to log in?), which is not followed"
        )
    return InvalidResponse(said)


def retry_after(text: str | None, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` asks for, which may be a number or a date; None without one that can be read."""
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return float(text.strip()[:9])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return max(0.0, (at - now).total_seconds())
