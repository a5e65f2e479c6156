"""Whatever a sender repeats, to whichever process, while answers are lost and the log is killed: each delivery is there once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from examples.webhook import app
from examples.webhook.app import TOPIC, receiver
from fastapi.testclient import TestClient

from oncelog import AsyncClient
from oncelog.testing import OncelogService

pytestmark = pytest.mark.real


def test_a_delivery_is_stored_once_and_a_key_used_twice_is_told(oncelog_service: OncelogService) -> None:
    with TestClient(receiver()) as one, TestClient(receiver()) as other:
        key = {"idempotency-key": "evt_17"}
        first = one.post("/hook", content=b"paid 17", headers=key)
        again = other.post("/hook", content=b"paid 17", headers=key)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json() == again.json() == {"offset": 0}
        assert other.post("/hook", content=b"paid 18", headers=key).status_code == 422
        assert one.post("/hook", content=b"paid 17").status_code == 422, "without a key it is none"
    oncelog_service.check_published(TOPIC, [b"paid 17"])


def test_senders_who_repeat_everything_at_once_to_all_processes_store_each_once(oncelog_service: OncelogService) -> None:
    oncelog_service.faults.lose_answer("publish", topic=TOPIC, nth=3)
    oncelog_service.faults.deliver_twice("publish", topic=TOPIC, nth=7)
    oncelog_service.faults.kill("publish", topic=TOPIC, nth=11)
    deliveries = [str(number) for number in range(40)]
    sent = deliveries * 4
    random.Random(1).shuffle(sent)
    with TestClient(receiver()) as one, TestClient(receiver()) as other, ThreadPoolExecutor(8) as senders:

        def deliver(delivery: str) -> int:
            process = random.choice((one, other))
            for _ in range(50):
                answer = process.post("/hook", content=delivery, headers={"idempotency-key": f"evt_{delivery}"})
                if answer.status_code != 503:
                    break
            return answer.status_code

        codes = [*senders.map(deliver, sent)]
    assert set(codes) == {200, 201}
    oncelog_service.check_published(TOPIC, [each.encode() for each in deliveries], ordered=False)


def test_it_goes_on_behind_an_outage_that_left_unknown_what_became_of_a_delivery(
    oncelog_service: OncelogService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(app, "AsyncClient", partial(AsyncClient, retry=0.5))
    lost = oncelog_service.faults.lose_answer("publish", topic=TOPIC, nth=2, times=1_000, optional=True)
    with TestClient(receiver()) as service:

        def deliver(number: int) -> int:
            return service.post("/hook", content=b"%d" % number, headers={"idempotency-key": f"evt_{number}"}).status_code

        assert deliver(0) == 201
        assert deliver(1) == 503
        lost.times = 0
        assert [deliver(number) for number in (2, 1, 0)] == [201, 200, 200]
    oncelog_service.check_published(TOPIC, [b"0", b"1", b"2"])
