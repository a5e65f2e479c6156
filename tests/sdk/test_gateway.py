"""Whatever stands before the service and says that it is away is a service that is away; what else it says, one is told."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from oncelog.errors import (
    GatewayUnavailable,
    InvalidResponse,
    OncelogError,
    RequestTooLarge,
    Unauthorized,
)
from oncelog.http.answers import AWAY, refusal, retry_after
from tests.sdk.fakes import problem

NOW = datetime(2026, 3, 1, tzinfo=UTC)
NGINX = b"<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>"


@pytest.mark.parametrize(
    ("status", "headers", "kind", "definite", "says"),
    [
        (413, {}, RequestTooLarge, True, "no request of this size"),
        (401, {}, Unauthorized, True, "asks who this is"),
        (407, {}, Unauthorized, True, "proxy"),
        (403, {}, InvalidResponse, False, "refuses it"),
        (302, {"location": "https://login.example/"}, InvalidResponse, False, "login.example"),
        (500, {}, InvalidResponse, False, "500"),
        (418, {}, InvalidResponse, False, "418"),
    ],
)
def test_what_else_it_answers_is_told_as_it_is(
    status: int, headers: dict[str, str], kind: type[OncelogError], definite: bool, says: str
) -> None:
    error = refusal("http://x", status, {"content-type": "text/html", **headers}, b"<html>\xff", NOW)
    assert (type(error), error.definite) == (kind, definite)
    assert says in error.detail


def test_what_is_no_problem_of_ours_may_have_been_done_and_says_whether_the_service_is_away() -> None:
    """A gateway may repeat a request by itself: a refusal of the second says nothing of the first."""
    answers = [("text/html", NGINX), ("application/json", b'{"code": "topic_not_found"}'), ("", b"\xff\xfe")]
    problems = (b"not json", b"[1]", b'{"code": 5}', b'{"title": "Service Unavailable", "status": 503}', b"[" * 100_000)
    answers += [("application/problem+json", body) for body in problems]
    for media, body in answers:
        for status in (400, 404, 499, 500, 501, *AWAY):
            error = refusal("http://x", status, {"content-type": media}, body, NOW)
            assert (type(error), error.definite) == (GatewayUnavailable if status in AWAY else InvalidResponse, False)
            assert getattr(error, "http_status", status) == status
            assert str(status) in error.detail


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("9" * 400, 999_999_999.0),
        ("Sun, 01 Mar 2026 00:00:30 GMT", 30.0),
        ("Sat, 28 Feb 2026 00:00:00 GMT", 0.0),
        ("Sun, 01 Mar 2026 00:00:30", 30.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("٣", None),
        ("Sun, 99 Mar 2026 00:00:30 GMT", None),
        (None, None),
    ],
)
def test_when_to_come_again_is_read_as_seconds_or_as_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after(text, NOW) == seconds


def test_the_service_itself_may_say_when_to_come_again() -> None:
    answer = problem(503, "overloaded")
    error = refusal("http://x", 503, {**answer.headers, "retry-after": "2"}, answer.body, NOW)
    assert (error.code, error.retry_after) == ("overloaded", 2.0)
