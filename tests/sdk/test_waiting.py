"""Waiting is not trying: who waits for messages outlives what a service, or what stands before it, does meanwhile."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from oncelog import Client, Consumer, Producer, Reader, errors
from oncelog.wire.codec import decode_consume_request, encode_consume_request
from oncelog.wire.models import TopicAsked
from oncelog.wire.requests import ConsumeRequest
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, Request, fake_server, forward, problem
from tests.world.service import RunningService

pytestmark = pytest.mark.usefixtures("twin")


def is_held(request: Request) -> bool:
    """Whether the service is to wait until there is something."""
    if request.address.endswith("/poll"):
        return bool(decode_consume_request(request.headers["content-type"], request.body).wait)
    return request.address.endswith(("/receive", "/offsets")) and bool(json.loads(request.body).get("wait"))


@pytest.mark.parametrize(
    ("reads", "retry"), [("reader", 0), ("reader", 15), ("consumer", 15), ("poll", 15), ("offsets", 15), ("pause", 60)]
)
def test_closing_a_client_ends_the_waiting_of_those_who_read_through_it(
    house: RunningService, topic: str, reads: str, retry: int
) -> None:
    """They waited on for what the service held, 20 s and more, and for the pause before another try."""
    came, met = threading.Semaphore(0), list[object]()

    def handle(request: Request) -> Answer | None:
        if reads == "pause" and request.address.endswith("/poll"):
            came.release()
            return replace(problem(503, "storage_unavailable"), headers={"retry-after": "25"})
        if is_held(request):
            came.release()
        return forward(house.url, request)

    with fake_server(handle) as fake:
        client = Client(fake.url, retry=retry)
        read = {
            "reader": Reader(topic, client=client, start=0).read,
            "pause": Reader(topic, client=client, start=0).read,
            "consumer": Consumer(topic, "s", client=client).read,
            "poll": lambda: client.poll(topic, ConsumeRequest(start_offset=0, wait=25_000)),
            "offsets": lambda: client.offsets({topic: TopicAsked(after=0)}, wait=25),
        }[reads]

        def reading() -> None:
            try:
                met.append(read())
            except errors.OncelogError as error:
                met.append(type(error))

        thread = threading.Thread(target=reading, daemon=True)
        thread.start()
        assert came.acquire(timeout=PATIENCE)
        time.sleep(0.1)
        client.close()
        thread.join(5)
        assert met == [errors.ClientClosed]


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_waits_that_are_answered_at_once_and_empty_are_not_asked_for_in_a_loop(
    house: RunningService, topic: str, kind: str
) -> None:
    """Something on the way answers so, or a service that stops: there were thousands of polls a second."""
    polls = []

    def handle(request: Request) -> Answer:
        if request.address.endswith("/poll"):
            asked = replace(decode_consume_request(request.headers["content-type"], request.body), wait=0)
            polls.append(asked)
            request = replace(request, body=encode_consume_request(asked))
        elif request.address.endswith("/receive"):
            polls.append(request)
            request = replace(request, body=json.dumps({**json.loads(request.body), "wait": 0}).encode())
        return forward(house.url, request)

    with fake_server(handle) as fake, Client(fake.url) as client:
        read = Reader(topic, client=client, start=0).read if kind == "reader" else Consumer(topic, "s", client=client).read
        assert read(timeout=60) == []
        assert 10 < len(polls) < 100
        polls.clear()
        with Client(house.url) as direct, Producer(topic, client=direct) as producer:
            producer.send(b"x")
        assert [each.payload for each in read()] == [b"x"]
        assert len(polls) == 1
        assert read(timeout=1) == []
        assert 2 < len(polls) < 12  # at first soon: what was there was


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_pages_are_about_what_is_asked_for_at_first_and_grow_as_reading_goes_on(
    house: RunningService, topic: str, kind: str
) -> None:
    """To read ten messages anywhere in a log fetched 5,000."""
    limits = list[int | None]()

    def handle(request: Request) -> Answer:
        if request.address.endswith("/poll"):
            limits.append(decode_consume_request(request.headers["content-type"], request.body).limit)
        elif request.address.endswith("/receive"):
            limits.append(json.loads(request.body)["limit"])
        return forward(house.url, request)

    with fake_server(handle) as fake, Client(fake.url) as client, Client(house.url) as direct:
        with Producer[bytes](topic, client=direct) as producer:
            producer.send_batch([b"x"] * 1_500)
        reader: Any = Reader(topic, client=client, start=700, page_size=200)
        if kind == "consumer":
            reader = Consumer(topic, "s", client=client, start=700, page_size=200)
        read = reader.read
        assert len(read(10)) == 10
        assert [len(read(10)) for _ in range(5)] == [10] * 5
        assert limits == [10, 40, 160]
        assert len([*zip(range(300), reader, strict=False)]) == 300
        assert limits[3:] == [200]
        limits.clear()
        reader.seek(100)
        assert reader.has_message_available()
        assert len(read(3)) == 3
        reader.seek(50)
        assert len([*zip(range(129), reader, strict=False)]) == 129
        reader.seek(50)
        assert len(read()) == 200
        assert limits == [128, 128, 200, 200]
        reader.close()


def test_a_quiet_topic_goes_on_behind_a_gateway_that_cuts_every_wait(house: RunningService) -> None:
    """It used to end its reader at the first cut, without one more try: the wait had taken the time for trying."""
    topic, cuts = f"t-{uuid4().hex}", threading.Semaphore(0)

    def handle(request: Request) -> Answer | None:
        if not is_held(request):
            return forward(house.url, request)
        time.sleep(0.3)
        cuts.release()
        return None

    with Client(house.url) as direct, fake_server(handle) as fake, Client(fake.url, retry=0.2) as client:
        direct.create_topic(topic)

        def publish() -> None:
            for _ in range(2):
                assert cuts.acquire(timeout=PATIENCE)
            with Client(house.url) as late, Producer(topic, client=late) as producer:
                producer.send(b"late")

        for read in (
            lambda: Reader(topic, client=client, start="latest").read()[0].payload,
            lambda: Consumer(topic, "s", client=client, start="latest").read()[0].payload,
            lambda: client.offsets({topic: TopicAsked(after=2)}, wait=PATIENCE)[topic].stable,
        ):
            while cuts.acquire(blocking=False):
                pass
            publishing = threading.Thread(target=publish, daemon=True)
            publishing.start()
            assert read() in (b"late", 3)
            publishing.join()
