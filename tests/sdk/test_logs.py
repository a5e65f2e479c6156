"""What the SDK says through logging, where nobody is raised an error for it, or not at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from uuid import uuid4

import pytest

from oncelog import Client, Consumer, Producer, Receipt, errors
from tests.patience import PATIENCE, until
from tests.sdk.fakes import Answer, Request, fake_server, forward, problem
from tests.world.awaits import of_threads
from tests.world.service import RunningService

pytestmark = pytest.mark.usefixtures("twin")


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncelog")


def said(caplog: pytest.LogCaptureFixture, name: str, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == f"oncelog.{name}" and each.levelno == level]


def refusing(
    house: RunningService, path: str, code: str, status: int, times: int, **values: object
) -> Callable[[Request], Answer]:
    """Refuses what goes to this address so many times; all else goes on to the service."""
    left = [times]

    def handle(request: Request) -> Answer:
        if request.path.endswith(path) and left[0]:
            left[0] -= 1
            return problem(status, code, **values)
        return forward(house.url, request)

    return handle


def test_a_call_that_is_tried_again_says_so(house: RunningService, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        fake_server(refusing(house, "/stats", "storage_unavailable", 503, 2)) as fake,
        Client(fake.url) as client,
    ):
        client.stats(topic)
    lines = said(caplog, "client", logging.INFO)
    assert len(lines) == 2
    assert all("is tried again in 0." in line and "storage_unavailable: a planted" in line for line in lines)


def test_a_request_of_a_producer_that_is_sent_again_says_so(
    house: RunningService, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        fake_server(refusing(house, "/publish", "storage_failed", 503, 2, definite=False)) as fake,
        Client(fake.url) as client,
        Producer[bytes](topic, name="p", client=client) as producer,
    ):
        producer.send(b"x")
    lines = said(caplog, "producer", logging.INFO)
    assert len(lines) == 2
    assert all(line.startswith("producer 'p' of ") and "is sent again in 0." in line for line in lines)
    assert said(caplog, "producer", logging.WARNING) == []


@pytest.mark.parametrize("kind", ["client", "producer"])
def test_a_service_that_is_away_is_told_of_once_after_two_seconds(
    house: RunningService, topic: str, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """There were fourteen seconds of silence."""
    is_away = False

    def handle(request: Request) -> Answer | None:
        return None if is_away else forward(house.url, request)

    caplog.set_level(logging.WARNING, "oncelog")
    with fake_server(handle) as fake, Client(fake.url, retry=10) as client:
        for times in (1, 2):
            producer = Producer[bytes](topic, client=client, delivery_timeout=10)
            began, is_away = time.time(), True
            for call in (lambda: client.stats(topic), lambda: producer.send(b"x"))[:: 1 if kind == "client" else -1]:  # noqa: B023
                with pytest.raises(errors.ConnectionFailed):
                    call()
            with suppress(errors.OncelogError):
                producer.close()
            told = [each for each in caplog.records if "the service has been away for" in each.message]
            assert ([each.levelname for each in told], told[-1].name) == (["WARNING"] * times, f"oncelog.{kind}")
            assert 2 <= told[-1].created - began < 5
            is_away = False
            client.stats(topic)


def test_a_producer_that_is_fenced_says_so_once(client: Client, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with Producer[bytes](topic, name="twin", client=client) as old, Producer[bytes](topic, name="twin", client=client):
        for _ in range(2):
            with suppress(errors.ProducerFenced, errors.ProducerStopped):
                old.send(b"too late")
        with suppress(errors.OncelogError):
            old.flush()
    (line,) = said(caplog, "producer", logging.WARNING)
    assert line.startswith("producer 'twin' of ")
    assert "has stopped, nothing more is sent: producer_fenced: " in line


def test_a_message_that_is_refused_stops_nobody(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    name = f"t-{uuid4().hex}"
    client.create_topic(name, {"check.expected.offsets": True})
    with Producer[bytes](name, name="p", client=client) as producer:
        with pytest.raises(errors.OffsetMismatch):
            producer.send(b"x", expected_offset=7)
        producer.send(b"y")
    (line,) = said(caplog, "producer", logging.INFO)
    assert "messages are refused: offset_mismatch: " in line
    assert said(caplog, "producer", logging.WARNING) == []


@pytest.mark.parametrize("in_the_background", [True, False])
def test_a_consumer_that_is_fenced_says_so_once(
    client: Client, filled: str, caplog: pytest.LogCaptureFixture, in_the_background: bool
) -> None:
    old = Consumer(filled, "s", client=client, ack_interval=0.01)
    message = old.read(1, timeout=0)[0]
    with Consumer(filled, "s", client=client):
        if in_the_background:
            old.ack_async(message)
            until(lambda: said(caplog, "consumer", logging.WARNING))
        else:
            with pytest.raises(errors.ConsumerFenced):
                old.ack(message)
        for _ in range(2):
            with pytest.raises(errors.ConsumerFenced):
                old.read(timeout=0)
    old.close()
    (line,) = said(caplog, "consumer", logging.WARNING)
    assert line.startswith(f"a consumer of subscription 's' of default/{filled} has ended: consumer_fenced: ")


class Publishing(logging.Handler):
    """Publishes what is logged: who logs holds its lock until there is room."""

    def __init__(self, producer: Producer[bytes], then: Callable[[Future[Receipt]], object]) -> None:
        super().__init__()
        self._producer, self._then = producer, then
        self.futures: list[Future[Receipt]] = []

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(errors.OncelogError):
            self.futures.append(self._producer.send_async(record.getMessage().encode()))
            self.futures[-1].add_done_callback(self._then)


def published(producer: Producer[bytes], then: Callable[[Future[Receipt]], object] = bool) -> list[Future[Receipt]]:
    """What became of lines that an application has logged."""
    handler, root = Publishing(producer, then), logging.getLogger()
    root.addHandler(handler)
    try:
        for each in range(3):
            logging.getLogger("application").warning("line %d", each)
        with suppress(errors.OncelogError):
            producer.close()
    finally:
        root.removeHandler(handler)
    return handler.futures


def test_a_handler_that_publishes_what_is_logged_keeps_no_message_from_its_end(house: RunningService, topic: str) -> None:
    """The sender, which makes the room, has something to say meanwhile: it wanted that lock first, past every time-out."""

    def handle(request: Request) -> Answer | None:
        return None if request.path.endswith("/publish") else forward(house.url, request)

    with fake_server(handle) as fake, Client(fake.url) as client:
        producer = Producer[bytes](topic, name="p", client=client, max_pending=1, delivery_timeout=3, linger=0)
        first, *_ = published(producer)
        assert isinstance(first.exception(PATIENCE), errors.ConnectionFailed)


@of_threads
def test_so_does_what_is_logged_of_callbacks_that_raise(client: Client, topic: str) -> None:
    producer = Producer[bytes](topic, client=client, max_pending=1, linger=0)
    futures = published(producer, lambda _: 1 // 0)
    assert [future.exception(PATIENCE) for future in futures[:3]] == [None] * 3


def test_nothing_is_said_where_nothing_happens(client: Client, filled: str, caplog: pytest.LogCaptureFixture) -> None:
    with Consumer(filled, "s", client=client, timeout=5) as consumer, Producer[bytes](filled, client=client) as producer:
        producer.send(b"x")
        consumer.ack(consumer.read()[-1])
    names = [f"oncelog.{each}" for each in ("client", "producer", "reader", "consumer", "exit")]
    assert [record.getMessage() for record in caplog.records if record.name in names] == []
