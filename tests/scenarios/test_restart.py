"""What a restart costs: nothing after a clean stop; after kill -9 at most the messages since the newest snapshot."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from oncelog import Client, Producer, Reader
from oncelog.errors import ConnectionFailed
from tests.patience import PATIENCE, until
from tests.scenarios.judge import check_maps, check_order, check_prefix, read_log
from tests.scenarios.load import payload_of
from tests.support import ServiceProcess

TOPIC = "t"


def test_after_a_clean_stop_nothing_is_replayed(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        for name in ("a", "b"):
            with Producer(TOPIC, name=name, url=service.url) as producer:
                producer.send_batch([payload_of(name, number) for number in range(1_234)])
        before = read_log(service.url, TOPIC)
        assert service.stop() == 0
        service.start()
        assert client.stats(TOPIC).replayed == 0
        after = read_log(service.url, TOPIC)
        assert len(before) == len(after) == 2 * 1_234
        check_prefix(before, after)
        check_maps(client, TOPIC, after)
        with Producer(TOPIC, name="a", url=service.url) as producer:
            assert producer.send(payload_of("a", 1_234)).offset == len(after)


def test_a_stop_does_not_wait_for_readers_who_wait_and_they_go_on_when_the_service_is_back(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        alone = _stopped(service)
        service.start()
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.extend(_read_one(service.url)))
        reader.start()
        time.sleep(0.5)
        assert _stopped(service) < alone + 4, "uvicorn cuts off after 5 s what has not ended"
        service.start()
        with Producer(TOPIC, name="p", url=service.url) as producer:
            producer.send(payload_of("p", 0))
        reader.join(PATIENCE)
        assert read == [payload_of("p", 0)]


def _unread(port: int) -> bool:
    """Whether a connection to this port has got something that was not read yet."""
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(
        local.endswith(f":{port:04X}") and int(queues[9:], 16) for _, local, _, state, queues, *_ in connections if state == "01"
    )


def _stopped(service: ServiceProcess) -> float:
    """How many seconds a clean stop took."""
    began = time.monotonic()
    assert service.stop() == 0
    return time.monotonic() - began


def _read_one(url: str) -> list[bytes]:
    with Client(url, retry=PATIENCE) as client, Reader(TOPIC, client=client) as reader:
        return [message.payload for message in reader.read(1, timeout=PATIENCE)]


def test_after_a_kill_at_most_the_messages_since_the_newest_snapshot_are_replayed(tmp_path: Path) -> None:
    _kill_while_publishing(tmp_path, messages=20_000, kills=3)


@pytest.mark.slow
def test_after_a_kill_300_000_messages_are_not_replayed_but_only_those_since_the_newest_snapshot(tmp_path: Path) -> None:
    _kill_while_publishing(tmp_path, messages=300_000, kills=6)


@pytest.mark.parametrize("request_messages", [400, 1_500], ids=["smaller than a snapshot's interval", "larger"])
def test_at_no_moment_more_than_a_snapshots_interval_and_one_request_wait_for_a_snapshot(
    tmp_path: Path, request_messages: int
) -> None:
    with ServiceProcess(tmp_path / "log", snapshot_messages=1_000) as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        enough = threading.Event()
        loader = threading.Thread(target=_publish_until, args=(service.url, enough, request_messages))
        loader.start()
        behind = published = 0
        deadline = time.monotonic() + PATIENCE
        while published < 20_000 or behind < request_messages:  # however seldom a slow machine lets this thread look
            if time.monotonic() > deadline:
                break
            stats = client.stats(TOPIC)
            published = stats.upcoming_offset
            behind = max(behind, published - (stats.snapshot_offset or 0))
        enough.set()
        loader.join()
        assert request_messages <= behind < 1_000 + request_messages


def _kill_while_publishing(tmp_path: Path, messages: int, kills: int, snapshot_messages: int = 1_000, request: int = 400) -> None:
    with ServiceProcess(tmp_path / "log", snapshot_messages=snapshot_messages) as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        loader = threading.Thread(target=_publish, args=(service.url, messages, request))
        loader.start()
        try:
            for number in range(1, kills + 1):
                goal = messages * number // (kills + 1) + 37 * number
                while client.stats(TOPIC).upcoming_offset < goal:
                    time.sleep(0.001)
                service.kill()
                service.start()
                stats = client.stats(TOPIC)
                assert stats.upcoming_offset >= goal
                assert 0 <= stats.replayed <= snapshot_messages + request, f"at {stats.upcoming_offset} messages"
        finally:
            loader.join(PATIENCE)
        log = read_log(service.url, TOPIC)
        check_order(log)
        assert len(log) == messages
        check_maps(client, TOPIC, log)


def _publish(url: str, messages: int, request: int) -> None:
    with Producer(TOPIC, name="p", url=url, batch_max_messages=request) as producer:
        for number in range(messages):
            producer.send_async(payload_of("p", number))


def _publish_until(url: str, enough: threading.Event, request: int) -> None:
    with Producer(TOPIC, name="p", url=url, batch_max_messages=request) as producer:
        while not enough.is_set():
            for future in [producer.send_async(payload_of("p", number)) for number in range(5 * request)]:
                future.result()


def test_a_producer_waits_for_a_service_that_is_down_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        with Producer(TOPIC, name="p", url=service.url) as producer:
            producer.send(payload_of("p", 0))
            service.kill()
            waiting = [producer.send_async(payload_of("p", number)) for number in range(1, 50)]
            service.start()
            assert [future.result(PATIENCE).offset for future in waiting] == list(range(1, 50))


def test_a_producer_that_gives_up_does_not_call_definite_what_may_have_arrived(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        producer = Producer[bytes](TOPIC, name="p", client=client, delivery_timeout=4.0)
        producer.send(payload_of("p", 0))
        os.kill(service.pid, signal.SIGSTOP)
        # The first try reaches the paused service and gets no answer; every later one is refused, certainly not done.
        killer = threading.Thread(target=lambda: until(lambda: _unread(service.port)) and service.kill())
        killer.start()
        with pytest.raises(ConnectionFailed) as failed:
            producer.send(payload_of("p", 1))
        killer.join()
        assert not failed.value.definite
        service.start()
        with Producer(TOPIC, name="p", url=service.url) as again:
            assert again.last_sequence_id == 0
            assert again.send(payload_of("p", 1)).offset == 1
