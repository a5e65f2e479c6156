"""Waiting is not trying: who waits for messages outlives what a service, or what stands before it, does meanwhile."""

from __future__ import annotations

import json
import threading
import time
from uuid import uuid4

import pytest

from oncelog import Client, Consumer, Producer, Reader
from oncelog.wire.codec import decode_consume_request
from oncelog.wire.models import TopicAsked
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, Request, fake_server, forward
from tests.world.service import RunningService

pytestmark = pytest.mark.usefixtures("twin")


def is_held(request: Request) -> bool:
    """Whether the service is to wait until there is something."""
    if request.address.endswith("/poll"):
        return bool(decode_consume_request(request.headers["content-type"], request.body).wait)
    return request.address.endswith(("/receive", "/offsets")) and bool(json.loads(request.body).get("wait"))


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
            lambda: Consumer(topic, "s", client=client, start="latest").receive()[0].payload,
            lambda: client.offsets({topic: TopicAsked(after=2)}, wait=PATIENCE)[topic].stable,
        ):
            while cuts.acquire(blocking=False):
                pass
            publishing = threading.Thread(target=publish, daemon=True)
            publishing.start()
            assert read() in (b"late", 3)
            publishing.join()
