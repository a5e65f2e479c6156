"""kill -9 at random moments under load: nothing acknowledged is lost, nothing is stored twice, order and ids stay.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from oncelog import Client, Producer
from tests.model.log import check_order, payload_of, read_log
from tests.patience import PATIENCE, until
from tests.scenarios.writing import MIXED, Awaiting, Load, OneByOne
from tests.world.crash import kill_while_starting, process, seeded
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

TOPIC = "t"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path / "log", snapshot_messages=200) as process:
        with Client(process.url) as client:
            client.create_topic(TOPIC)
        yield process


# --- the service is killed


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_of_the_service_under_load_lose_double_and_reorder_nothing(service: ServiceProcess, kills: int) -> None:
    with seeded() as rng:
        load = Load([service.url], TOPIC, rng, writers=MIXED[:5], followers=1, back=lambda: None)
        with load.running():
            for _ in range(kills):
                load.allow(1_500)
                time.sleep(rng.uniform(0.05, 0.8))
                service.kill()
                acknowledged = load.acknowledged()
                if rng.random() < 0.3:
                    kill_while_starting(service, rng.uniform(0.1, 0.7))
                service.start()
                load.check_so_far(acknowledged)
            until(lambda: load.goes_on([0] * 5, 10), "a share of each, however slow the machine")
        load.check_at_the_end()
        service.kill()
        service.start()
        load.check_at_the_end()  # as folded anew


SENDERS = 64


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        (OneByOne, 2),
        pytest.param(OneByOne, 100, marks=pytest.mark.slow),
        pytest.param(Awaiting, 100, marks=pytest.mark.slow),
    ],
)
def test_senders_who_all_wait_for_one_message_when_the_service_is_killed_lose_double_and_reorder_nothing(
    service: ServiceProcess, kind: type[OneByOne], kills: int
) -> None:
    """What the service writes in one go for many who wait is there or not for each of them as its own receipt says.

    Each sender may go on by the same number of ids and has got at least three receipts when it has used them up, so with fewer
    than three each on average somebody still waits when the kill comes; mostly nearly all of them do.
    """
    with seeded() as rng:
        load = Load([service.url], TOPIC, rng, writers=[kind] * SENDERS, followers=1, back=lambda: None)
        with load.running():
            for _ in range(kills):
                load.allow(4 * kind.LONGEST_STEP)
                load.wait_for_receipts(rng.randrange(3 * SENDERS))
                service.kill()
                acknowledged = load.acknowledged()
                if rng.random() < 0.1:
                    kill_while_starting(service, rng.uniform(0.1, 0.7))
                service.start()
                load.check_so_far(acknowledged)
        load.check_at_the_end()


# --- the producer is killed


@pytest.mark.parametrize(
    ("kind", "rows", "kills"),
    [("calls", 8_000, 2), ("tasks", 8_000, 2), pytest.param("calls", 100_000, 20, marks=pytest.mark.slow)],
)
def test_a_producer_killed_at_random_moments_resumes_and_every_row_is_there_once(
    service: ServiceProcess, kind: str, rows: int, kills: int
) -> None:
    """The last but one dies together with the service."""
    with seeded() as rng:
        for number in range(kills):
            acknowledged = _publish_and_kill(service, kind, rows, rng.uniform(0.0, 0.1), with_service=number == kills - 2)
            log = read_log(service.url, TOPIC)
            assert [message.sequence_id for message in log] == list(range(len(log)))
            assert acknowledged < len(log) < rows, "a kill that comes too late proves nothing"
        with _loader(service, kind, rows) as loader:
            loader.communicate(timeout=600)
            assert loader.returncode == 0
        log = read_log(service.url, TOPIC)
        check_order(log)
        assert [message.sequence_id for message in log] == list(range(rows))


def _publish_and_kill(service: ServiceProcess, kind: str, rows: int, seconds: float, with_service: bool) -> int:
    """The highest row acknowledged to a producer that was killed so many seconds after its first receipt."""
    with _loader(service, kind, rows) as loader:
        assert loader.stdout is not None
        first = loader.stdout.readline()
        time.sleep(seconds)
        if with_service:
            service.kill()
        loader.kill()
        told = (first + loader.stdout.read()).split("\n")[:-1]  # the kill may have cut the last line
    if with_service:
        service.start()
    return int(told[-1])


def _loader(service: ServiceProcess, kind: str, rows: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """It does not get far without being heard, however long it takes to strike it."""
    return process("tests.scenarios.writing", kind, service.url, TOPIC, "loader", rows, unread_bytes=4_096)


# --- two incarnations


def test_a_paused_producer_that_awakes_after_it_was_replaced_stores_nothing_more(service: ServiceProcess) -> None:
    rows = 15_000
    with _loader(service, "calls", rows) as old:
        assert old.stdout is not None
        old.stdout.readline()
        old.send_signal(signal.SIGSTOP)
        with Producer(TOPIC, name="loader", url=service.url) as new:
            assert new.last_sequence_id is not None
            assert new.last_sequence_id < rows - 1, "a pause that comes too late proves nothing"
            old.send_signal(signal.SIGCONT)
            _, last_words = old.communicate(timeout=PATIENCE)
            assert old.returncode == 1
            assert "ProducerFenced" in last_words
            stored = len(read_log(service.url, TOPIC))
            assert stored == new.last_sequence_id + 1
            for row in new.resume(range(rows), sequence_id=lambda row: row):
                new.send_async(payload_of("loader", row), sequence_id=row)
    log = read_log(service.url, TOPIC)
    check_order(log)
    assert len(log) == rows
