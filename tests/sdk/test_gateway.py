"""Whatever stands before the service and says that it is away is a service that is away; what else it says, one is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from oncelog import Client, Consumer, Outbox, OutboxRelay, Producer, Reader
from oncelog.api.retry import LONGEST_ASKED_SECONDS, pause, wait_before_retry
from oncelog.errors import (
    ConnectionFailed,
    GatewayUnavailable,
    InvalidResponse,
    OncelogError,
    ProducerStopped,
    RequestTooLarge,
    TopicExists,
    Unauthorized,
)
from oncelog.http.answers import AWAY, refusal, retry_after
from tests.sdk.fakes import Answer, Request, fake_server, forward, problem
from tests.support import RunningService

PATIENCE = 120.0
NOW = datetime(2026, 3, 1, tzinfo=UTC)
NGINX = b"<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>"


def away(status: int, body: bytes = NGINX, **headers: str) -> Answer:
    return Answer(status, body, {"content-type": "text/html", **headers})


def gateway(house: RunningService, spoil: Callable[[int], Answer | None]) -> Callable[[Request], Answer]:
    """Answers what ``spoil`` makes of the number of a request to its address, and passes on what it makes nothing of."""
    asked: dict[tuple[str, str], int] = {}

    def handle(request: Request) -> Answer:
        place = request.method, request.path
        asked[place] = asked.get(place, 0) + 1
        return spoil(asked[place]) or forward(house.url, request)

    return handle


@pytest.mark.parametrize(
    "spoilt",
    [
        away(502),
        away(503, b'{"title": "Service Unavailable", "status": 503}', **{"content-type": "application/problem+json"}),
        away(429, b"slow down", **{"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}),
        Answer(504, NGINX, {"content-type": "text/html"}, claimed_length=10_000),
    ],
    ids=["502", "503-problem", "429-date", "504-cut-short"],
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
        return spoilt if at == 2 and request.path.endswith(("/publish", "/poll", "/receive", "/ack")) else answer

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


def test_an_outbox_is_published_behind_a_gateway_that_is_away_now_and_then(house: RunningService, tmp_path: Path) -> None:
    topic = f"t-{uuid4().hex}"
    engine, outbox = create_engine(f"sqlite:///{tmp_path}/outbox.db"), Outbox(f"orders-{topic}")
    with engine.begin() as connection:
        outbox.add(connection, topic, b"x")
    with fake_server(gateway(house, lambda number: away(503) if number == 1 else None)) as fake, Client(house.url) as direct:
        direct.create_topic(topic)
        relay = OutboxRelay(outbox, engine, client=Client(fake.url, retry=PATIENCE))
        with pytest.raises(GatewayUnavailable):
            relay.run_once()  # which its loop tries again
        assert relay.run_once() == 1
    assert [message.payload for message in Reader(topic, url=house.url, timeout=0)] == [b"x"]


def test_a_producer_stops_when_the_gateway_is_away_for_longer_than_a_message_may_take(house: RunningService) -> None:
    topic = f"t-{uuid4().hex}"
    with Client(house.url) as direct:
        direct.create_topic(topic)
    lost = [False]
    with (
        fake_server(lambda request: away(503) if lost[0] else forward(house.url, request)) as fake,
        Client(fake.url, retry=0) as client,
    ):
        producer = Producer(topic, client=client, delivery_timeout=0.2)
        lost[0] = True
        with pytest.raises(GatewayUnavailable, match="503") as caught:
            producer.send(b"x")
        assert (caught.value.http_status, caught.value.definite) == (503, False)
        with pytest.raises(ProducerStopped):
            producer.send(b"y")


@pytest.mark.parametrize("status", sorted(AWAY))
def test_what_a_gateway_did_not_answer_may_have_been_done_and_is_not_repeated_unless_that_is_harmless(status: int) -> None:
    """A gateway may repeat a request by itself: a refusal of the second says nothing of the first."""
    with fake_server(lambda _: away(status)) as fake, Client(fake.url, retry=PATIENCE) as client:
        with pytest.raises(GatewayUnavailable) as caught:
            client.create_topic("t")
        assert not caught.value.definite
        assert len(fake.requests) == 1


def test_another_instance_is_asked_when_the_gateway_of_one_is_away() -> None:
    with fake_server(lambda _: away(502)) as one, fake_server(lambda _: Answer(body=b'["t"]')) as other:
        with Client(f"{one.url},{other.url}", retry=PATIENCE) as client:
            assert client.topics() == ["t"] == client.topics()
        assert (len(one.requests), len(other.requests)) == (1, 2)


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


def test_a_gateway_that_takes_no_such_request_knows_nothing_of_an_earlier_try(house: RunningService) -> None:
    """The first try got through, and its answer was lost."""
    topic = f"t-{uuid4().hex}"
    with Client(house.url) as direct:
        direct.create_topic(topic)
    answers: list[Answer] = []

    def handle(request: Request) -> Answer:
        answer = forward(house.url, request)
        return answers.pop(0) if request.path.endswith("/publish") else answer

    with fake_server(handle) as fake, Client(fake.url) as client:
        producer = Producer(topic, name="p", client=client)
        answers[:] = [away(504), away(413)]
        with pytest.raises(RequestTooLarge) as caught:
            producer.send(b"x")
        assert not caught.value.definite
        with pytest.raises(ProducerStopped):
            producer.send(b"y")
    with Producer(topic, name="p", url=house.url) as again:
        assert again.last_sequence_id == 0


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


def test_when_to_come_again_is_heeded_within_bounds() -> None:
    asked = GatewayUnavailable()
    asked.retry_after = 3.0
    assert wait_before_retry(asked, 0, 1.0, left=60) == 3.0 + pause(0, 1.0)
    asked.retry_after = 86_400.0
    assert wait_before_retry(asked, 0, 1.0, left=60) == LONGEST_ASKED_SECONDS + pause(0, 1.0)
    assert wait_before_retry(asked, 0, 1.0, left=7) == 7
    assert wait_before_retry(asked, 0, 1.0, left=0.01) is None
    assert wait_before_retry(ConnectionFailed(), 3, 0.5, left=60) == pause(3, 0.5)


def test_the_service_itself_may_say_when_to_come_again() -> None:
    answer = problem(503, "overloaded")
    error = refusal("http://x", 503, {**answer.headers, "retry-after": "2"}, answer.body, NOW)
    assert (error.code, error.retry_after) == ("overloaded", 2.0)


def test_a_success_that_is_a_page_for_people_is_none() -> None:
    """A hotel's network answers everything, with 200."""
    with fake_server(lambda _: Answer(200, b"<html>Welcome", {"content-type": "text/html"})) as fake, Client(fake.url) as client:
        with pytest.raises(InvalidResponse, match="HTML"):
            client.create_topic("t")
        assert not client.healthy()


def test_a_topic_that_was_made_by_a_try_whose_answer_was_lost_is_not_made_twice(house: RunningService) -> None:
    topic = f"t-{uuid4().hex}"

    def handle(request: Request) -> Answer:
        forward(house.url, request)
        return away(504)

    with fake_server(handle) as fake, Client(fake.url, retry=PATIENCE) as client, pytest.raises(GatewayUnavailable):
        client.create_topic(topic)
    with Client(house.url) as direct, pytest.raises(TopicExists):
        direct.create_topic(topic)
