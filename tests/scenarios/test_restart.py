"""A stop waits for no reader."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from oncelog import Client, Producer, Reader
from tests.model.log import payload_of
from tests.patience import PATIENCE
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

TOPIC = "t"


def test_a_stop_does_not_wait_for_readers_who_wait_and_they_go_on_when_the_service_is_back(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        alone = _stopped(service)
        service.start()
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.extend(_read_one(service.url)))
        reader.start()
        for _ in range(3):  # a machine that is held up takes long once, a stop that waits takes long each time
            time.sleep(0.5)
            took = _stopped(service)
            service.start()
            if took < alone + 4:
                break
        assert took < alone + 4, "after 5 s what has not ended is cut off"
        with Producer(TOPIC, name="p", url=service.url) as producer:
            producer.send(payload_of("p", 0))
        reader.join(PATIENCE)
        assert read == [payload_of("p", 0)]


def _stopped(service: ServiceProcess) -> float:
    """How many seconds a clean stop took."""
    began = time.monotonic()
    assert service.stop() == 0
    return time.monotonic() - began


def _read_one(url: str) -> list[bytes]:
    with Client(url, retry=PATIENCE) as client, Reader(TOPIC, client=client) as reader:
        return [message.payload for message in reader.read(1, timeout=PATIENCE)]
