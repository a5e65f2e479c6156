"""Whatever stands before the service and says that it is away is a service that is away; what else it says, one is told."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from oncelog import Client, Consumer, Producer, Reader
from oncelog.errors import (
    GatewayUnavailable,
    InvalidResponse,
    OncelogError,
    RequestTooLarge,
    Unauthorized,
)
from oncelog.http.answers import AWAY, refusal, retry_after
from tests.sdk.fakes import Answer, Request, fake_server, forward, problem
from tests.world.service import RunningService

pytestmark = pytest.mark.usefixtures("twin")

PATIENCE = 120.0
NOW = datetime(2026, 3, 1, tzinfo=UTC)
NGINX = b"<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>"


def away(status: int, body: bytes = NGINX, **headers: str) -> Answer:
    return Answer(status, body, {"content-type": "text/html", **headers})


@pytest.mark.parametrize(
    "spoilt",
    [away(502), Answer(504, NGINX, {"content-type": "text/html"}, claimed_length=10_000)],
    ids=["502", "504-cut-short"],
)
def test_everything_goes_on_behind_a_gateway_that_loses_every_second_request(house: RunningService, spoilt: Answer) -> None:
    """Some it loses before the service has them, some after: nothing is there twice."""
    topic, other = f"t-{uuid4().hex}", f"t-{uuid4().hex}"
    with Client(house.url) as direct:
        direct.create_topic(topic)
        direct.create_topic(other)
    turn = iter(range(1_000_000))

    def handle(request: Request) -> Answer:
        at = next(turn) % 4
        if at == 0:
            return spoilt
        answer = forward(house.url, request)
        return spoilt if at == 2 and request.address.endswith(("/publish", "/poll", "/receive", "/ack")) else answer

    with fake_server(handle) as fake, Client(fake.url, retry=PATIENCE) as client:
        with Producer(topic, name="p", client=client, delivery_timeout=PATIENCE) as producer:
            for number in range(6):
                producer.send(b"%d" % number)
        with Reader(topic, client=client, timeout=0) as reader:
            assert [message.payload for message in reader] == [b"%d" % number for number in range(6)]
        with Consumer(topic, "s", client=client, timeout=0) as consumer:
            for message in consumer:
                consumer.ack(message)
            assert consumer.lag == 0
        with Producer(other, name="q", client=client) as producer, client.atomic() as batch:
            batch.send(other, b"atomic", producer=producer)
        assert [message.payload for message in Reader(other, client=client, timeout=0)] == [b"atomic"]


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


def test_a_body_too_large_for_the_gateway_is_sent_in_parts(house: RunningService) -> None:
    topic = f"t-{uuid4().hex}"
    with Client(house.url) as direct:
        direct.create_topic(topic)
    with (
        fake_server(lambda request: away(413) if len(request.body) > 2_000 else forward(house.url, request)) as fake,
        Client(fake.url) as client,
    ):
        producer = Producer(topic, name="p", client=client, linger=60)
        futures = [producer.send_async(bytes(100)) for _ in range(50)]
        large = producer.send_async(bytes(5_000))
        futures.append(producer.send_async(b"behind it"))
        with pytest.raises(RequestTooLarge, match="no request of this size"):
            producer.flush()
        assert [future.result().offset for future in futures] == list(range(51))
        with pytest.raises(RequestTooLarge):
            large.result()
        producer.close()


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
