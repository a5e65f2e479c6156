"""kill -9 at random moments under load: nothing acknowledged is lost, nothing is stored twice, order and ids stay.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelog import Client, Message, Producer
from oncelog.errors import ProducerFenced, ProducerStopped
from tests.patience import PATIENCE, until
from tests.scenarios.judge import (
    check_acknowledged,
    check_finished,
    check_maps,
    check_order,
    check_prefix,
    read_log,
)
from tests.scenarios.load import Follower, InBatches, OneByOne, Streaming, Writer, payload_of
from tests.scenarios.seed import seeded
from tests.support import ServiceProcess

TOPIC = "t"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path / "log", snapshot_messages=200) as process:
        with Client(process.url) as client:
            client.create_topic(TOPIC)
        yield process


# --- the service is killed


def test_three_kills_of_the_service_under_load_lose_double_and_reorder_nothing(service: ServiceProcess) -> None:
    _kill_under_load(service, kills=3)


@pytest.mark.slow
def test_fifty_kills_of_the_service_under_load_lose_double_and_reorder_nothing(service: ServiceProcess) -> None:
    _kill_under_load(service, kills=50)


def _kill_under_load(service: ServiceProcess, kills: int) -> None:
    with seeded() as rng:
        writers = _writers(service, rng)
        follower = Follower(service.url, TOPIC)
        log: list[Message] = []
        with _running(writers, follower):
            for _ in range(kills):
                for writer in writers:
                    writer.allow(1_500)
                time.sleep(rng.uniform(0.05, 0.8))
                log = _kill_and_compare(service, writers, log, rng)
            _wait_for_a_share_of_each(writers)
        log = _after_the_last(service, writers, log)
        follower.read_until(len(log))
        follower.join(PATIENCE)
        assert follower.failure is None
        assert follower.messages == log


def _wait_for_a_share_of_each(writers: list[Writer]) -> None:
    """However slow the machine: a writer that published next to nothing would prove nothing."""
    for each in writers:
        until(lambda writer=each: len(writer.acknowledged) > 10 or writer.failure, f"a share of {each.producer_name}")  # type: ignore[misc]


@contextmanager
def _running(writers: list[Writer], follower: Follower) -> Iterator[None]:
    """On leaving, the writers have ended; the follower goes on unless something failed."""
    for thread in (*writers, follower):
        thread.start()
    try:
        yield
    except BaseException:
        follower.read_until(0)
        raise
    finally:
        for writer in writers:
            writer.enough()
        for writer in writers:
            writer.join(PATIENCE)


def _writers(service: ServiceProcess, rng: random.Random) -> list[Writer]:
    kinds = [OneByOne, Streaming, Streaming, InBatches, InBatches]
    return [kind(service.url, TOPIC, f"{kind.__name__}-{number}", rng.getrandbits(32)) for number, kind in enumerate(kinds)]


def _kill_and_compare(service: ServiceProcess, writers: list[Writer], before: list[Message], rng: random.Random) -> list[Message]:
    service.kill()
    acknowledged = {writer.producer_name: dict(writer.acknowledged) for writer in writers}
    if rng.random() < 0.3:
        _kill_while_starting(service, rng.uniform(0.1, 0.7))
    service.start()
    log = read_log(service.url, TOPIC)
    check_prefix(before, log)
    check_order(log)
    for producer, receipts in acknowledged.items():
        check_acknowledged(log, producer, receipts)
    return log


def _kill_while_starting(service: ServiceProcess, seconds: float) -> None:
    """A recovery, too, may be interrupted."""
    timer = threading.Timer(seconds, service.kill)
    timer.start()
    try:
        service.start()
    except RuntimeError:
        pass  # it was killed before it answered
    finally:
        timer.join()


def _after_the_last(service: ServiceProcess, writers: list[Writer], before: list[Message]) -> list[Message]:
    for writer in writers:
        assert writer.failure is None, writer.failure
    with Client(service.url) as client:
        for _ in range(2):  # live, and as folded anew after one more kill
            log = read_log(service.url, TOPIC)
            check_prefix(before, log)
            check_order(log)
            check_finished(log, writers)
            check_maps(client, TOPIC, log)
            service.kill()
            service.start()
    return log


# --- the producer is killed


def test_a_producer_killed_at_random_moments_resumes_and_every_row_is_there_once(service: ServiceProcess) -> None:
    _kill_producers(service, rows=15_000, kills=3)


@pytest.mark.slow
def test_a_producer_killed_twenty_times_resumes_and_every_row_is_there_once(service: ServiceProcess) -> None:
    _kill_producers(service, rows=100_000, kills=20)


def _kill_producers(service: ServiceProcess, rows: int, kills: int) -> None:
    """The last but one dies together with the service."""
    with seeded() as rng:
        for number in range(kills):
            acknowledged = _publish_and_kill(service, rows, rng.uniform(0.0, 0.1), with_service=number == kills - 2)
            log = read_log(service.url, TOPIC)
            assert [message.sequence_id for message in log] == list(range(len(log)))
            assert acknowledged < len(log) < rows, "a kill that comes too late proves nothing"
        with _loader(service, rows) as loader:
            loader.communicate(timeout=600)
            assert loader.returncode == 0
        log = read_log(service.url, TOPIC)
        check_order(log)
        assert [message.sequence_id for message in log] == list(range(rows))


def _publish_and_kill(service: ServiceProcess, rows: int, seconds: float, with_service: bool) -> int:
    """The highest row acknowledged to a producer that was killed so many seconds after its first receipt."""
    with _loader(service, rows) as loader:
        assert loader.stdout is not None
        first = loader.stdout.readline()
        time.sleep(seconds)
        if with_service:
            service.kill()
        loader.kill()
        told = (first + loader.stdout.read()).split(b"\n")[:-1]  # the kill may have cut the last line
    if with_service:
        service.start()
    return int(told[-1])


@contextmanager
def _loader(service: ServiceProcess, rows: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.scenarios.load", service.url, TOPIC, "loader", str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]) as loader:
        try:
            yield loader
        finally:
            loader.kill()


# --- two incarnations


def test_an_older_incarnation_is_fenced_also_after_the_service_was_killed(service: ServiceProcess) -> None:
    with Client(service.url) as client:
        old, new = (Producer[bytes](TOPIC, name="p", client=client) for _ in range(2))
        new.send(payload_of("p", 0))
        service.kill()
        service.start()
        with pytest.raises(ProducerFenced) as fenced:
            old.send(payload_of("p", 0))
        assert fenced.value.current_epoch == new.epoch == old.epoch + 1
        assert fenced.value.definite
        with pytest.raises(ProducerStopped):
            old.send(payload_of("p", 1))
        assert new.send(payload_of("p", 1)).offset == 1
    check_order(read_log(service.url, TOPIC))


def test_a_paused_producer_that_awakes_after_it_was_replaced_stores_nothing_more(service: ServiceProcess) -> None:
    rows = 15_000
    with _loader(service, rows) as old:
        assert old.stdout is not None
        old.stdout.readline()
        old.send_signal(signal.SIGSTOP)
        with Producer(TOPIC, name="loader", url=service.url) as new:
            assert new.last_sequence_id is not None
            assert new.last_sequence_id < rows - 1, "a pause that comes too late proves nothing"
            old.send_signal(signal.SIGCONT)
            _, last_words = old.communicate(timeout=PATIENCE)
            assert old.returncode == 1
            assert b"ProducerFenced" in last_words
            stored = len(read_log(service.url, TOPIC))
            assert stored == new.last_sequence_id + 1
            for row in new.resume(range(rows), sequence_id=lambda row: row):
                new.send_async(payload_of("loader", row), sequence_id=row)
    log = read_log(service.url, TOPIC)
    check_order(log)
    assert len(log) == rows
