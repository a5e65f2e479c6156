"""Visitors at once are answered each for its own reading, whatever the log does meanwhile, and all of them are there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from examples.fastapi_service.app import TOPIC, app
from fastapi.testclient import TestClient

from oncelog import Reader
from oncelog.testing import OncelogService

pytestmark = pytest.mark.real


def test_each_visitor_is_answered_for_its_own_reading(oncelog_service: OncelogService) -> None:
    oncelog_service.faults.lose_answer("publish", topic=TOPIC, nth=2)
    readings = [float(number) for number in range(60)]
    with TestClient(app) as service, ThreadPoolExecutor(20) as visitors:
        late = visitors.submit(service.get, "/readings", params={"first": 0, "wait": 20})
        answers = [*visitors.map(lambda celsius: service.post("/readings", json={"celsius": celsius}), readings)]
        assert {answer.status_code for answer in answers} == {201}
        assert late.result().json()[0]["offset"] == 0
        assert service.get("/readings", params={"first": -1}).status_code == 422
    offsets = {answer.json()["offset"]: celsius for answer, celsius in zip(answers, readings, strict=True)}
    with Reader(TOPIC, timeout=0, codec="json") as reader:
        assert {message.offset: message.value["celsius"] for message in reader} == offsets


def test_a_visitor_learns_whether_anything_was_written_and_the_next_one_is_served(oncelog_service: OncelogService) -> None:
    with TestClient(app) as service:
        assert service.post("/readings", json={"celsius": 0}).json()["offset"] == 0
        (producer,) = oncelog_service.client.producers(TOPIC)
        oncelog_service.fence(TOPIC, producer=producer.name)
        answer = service.post("/readings", json={"celsius": 1})
        assert (answer.status_code, answer.json()) == (503, {"code": "producer_fenced", "definite": True})
        with ThreadPoolExecutor(4) as visitors:
            answers = [*visitors.map(lambda celsius: service.post("/readings", json={"celsius": celsius}), [2, 3, 4, 5])]
        assert [answer.status_code for answer in answers] == [201] * 4
    assert len(list(oncelog_service.client.producers(TOPIC))) <= 2, "one that is new serves all"
