"""`examples/web.py`: visitors at once are answered each for its own reading, and when the service stops all of them are there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread

import pytest
import requests
import uvicorn
from examples.web import TOPIC, app

from oncelog import Client, Reader
from tests.patience import PATIENCE, until
from tests.world.service import RunningService, free_port


@contextmanager
def serving() -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{port}/readings"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


def test_each_visitor_is_answered_for_its_own_reading_and_all_are_there_in_the_end(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCELOG_URL", running.url)
    readings = [str(number) for number in range(60)]
    with serving() as url, ThreadPoolExecutor(20) as visitors:
        late = visitors.submit(requests.get, url, params={"first": "0", "wait": "20"}, timeout=PATIENCE)
        answers = [*visitors.map(lambda reading: requests.post(url, reading, timeout=PATIENCE), readings)]
        assert {answer.status_code for answer in answers} == {201}
        assert late.result().json()[0]["offset"] == 0
        offsets = {answer.json()["offset"]: reading for answer, reading in zip(answers, readings, strict=True)}
        page = requests.get(url, params={"first": "50"}, timeout=PATIENCE).json()
        assert page == [{"offset": offset, "value": offsets[offset]} for offset in range(50, 60)]
    with Client(running.url) as client, Reader(TOPIC, client=client, timeout=0, codec="str") as reader:
        assert {message.offset: message.value for message in reader} == offsets


def test_a_service_whose_log_is_away_says_what_is_certain(running: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELOG_URL", running.url)
    with serving() as url:
        with Client(running.url) as client:
            client.delete_topic(TOPIC)
        answer = requests.post(url, "20.4", timeout=PATIENCE)
        assert (answer.status_code, answer.json()) == (503, {"code": "topic_not_found", "definite": True})
