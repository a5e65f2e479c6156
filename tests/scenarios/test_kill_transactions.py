"""kill -9 in the middle of transactions: each is wholly there or wholly not, and its status says which.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import PATIENCE, until
from tests.scenarios.seed import seeded
from tests.scenarios.transaction_judge import (
    check_nothing_undecided,
    check_verified,
    check_whole,
    end_what_is_open,
    visible,
)
from tests.scenarios.transaction_load import STAGES, Api, Attempt, Stage, Transactor
from tests.support import ServiceProcess

TOPIC = "t"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path / "log", snapshot_messages=100) as process:
        Api(process.url).call("PUT", f"namespaces/default/topics/{TOPIC}", {})
        yield process


# --- the service is killed


def test_the_service_killed_at_each_stage_leaves_every_transaction_whole_or_absent(service: ServiceProcess) -> None:
    _kill_in_transactions(service, STAGES)


@pytest.mark.slow
def test_forty_kills_at_all_stages_leave_every_transaction_whole_or_absent(service: ServiceProcess) -> None:
    _kill_in_transactions(service, STAGES * 10)


def _kill_in_transactions(service: ServiceProcess, stages: Sequence[Stage]) -> None:
    with seeded() as rng, _working(service, rng) as transactors:
        for stage in rng.sample(stages, len(stages)):
            _let_go(transactors)
            _kill_at(service, transactors, stage, rng)
            _check_after_restart(service, transactors, rng)
        _let_go(transactors)
        time.sleep(0.3)
        _wait_for_commits(transactors, len(stages))
        _park(transactors)
        _check_after_restart(service, transactors, rng)
        assert not [each.refused for each in transactors if each.refused], "an id that was lost is not usable again"


def _wait_for_commits(transactors: Sequence[Transactor], wanted: int) -> None:
    """However slow the machine: with next to nothing committed nothing would be proved."""
    until(lambda: sum(each.answered == "committed" for each in _attempts(transactors)) > wanted, f"{wanted} commits")


@contextmanager
def _working(service: ServiceProcess, rng: random.Random) -> Iterator[list[Transactor]]:
    transactors = [Transactor(service.url, TOPIC, f"p{number}", rng.getrandbits(32)) for number in range(3)]
    for each in transactors:
        each.start()
    try:
        yield transactors
    finally:
        for each in transactors:
            each.enough()
        for each in transactors:
            each.join(PATIENCE)
    assert [each.failure for each in transactors] == [None] * len(transactors)


def _attempts(transactors: Sequence[Transactor]) -> list[Attempt]:
    return [attempt for each in transactors for attempt in each.attempts]


def _let_go(transactors: Sequence[Transactor]) -> None:
    for each in transactors:
        each.stage = None
        each.gate.set()


def _park(transactors: Sequence[Transactor]) -> None:
    for each in transactors:
        each.gate.clear()
    for each in transactors:
        assert each.parked.wait(PATIENCE), f"{each.name} does not come to rest"


def _kill_at(service: ServiceProcess, transactors: Sequence[Transactor], stage: Stage, rng: random.Random) -> None:
    """Some time after the beginning, when one of them is there or a moment later."""
    time.sleep(rng.uniform(0.1, 0.5))
    until(lambda: any(each.stage == stage for each in transactors), f"somebody is {stage}", every=0.0005)
    time.sleep(rng.choice([0.0, rng.uniform(0, 0.02)]))
    for each in transactors:
        each.gate.clear()
    service.kill()
    _park(transactors)
    service.start()


def _check_after_restart(service: ServiceProcess, transactors: Sequence[Transactor], rng: random.Random) -> None:
    attempts = _attempts(transactors)
    check_nothing_undecided(service.url, TOPIC, attempts)
    end_what_is_open(service.url, attempts)
    if rng.random() < 0.3:
        service.kill()  # while rows are being marked
        service.start()
    check_whole(service.url, TOPIC, attempts)
    check_verified(service.url, TOPIC)


# --- the client is killed


@pytest.mark.parametrize(("how", "with_service"), [("published", False), ("stored", True)], ids=["", "and the service"])
def test_a_client_killed_in_its_transaction_leaves_nothing_behind(service: ServiceProcess, how: str, with_service: bool) -> None:
    command = [sys.executable, "-m", "tests.scenarios.transaction_load", service.url, TOPIC, "p", how, "1500"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as client:
        try:
            assert client.stdout is not None
            pointer = int(client.stdout.readline())
        finally:
            client.kill()
    if with_service:
        service.kill()
        service.start()
    api = Api(service.url)
    assert visible(service.url, TOPIC) == []
    _wait_for_time_out(api, pointer)
    _wait_until_marked(api, pointer)
    check_verified(service.url, TOPIC)
    began = api.next_id(TOPIC, "p")
    assert began == 0, "the ids of the transaction are usable again"
    api.topic(TOPIC, "publish", {"messages": ["new"], "producer": "p", "sequenceIds": [0]})
    assert visible(service.url, TOPIC) == ["new"]


def _wait_for_time_out(api: Api, pointer: int) -> None:
    until(lambda: api.state(pointer) != "in_progress", "the transaction times out", every=0.05)
    assert api.state(pointer) == "invalid"


def _wait_until_marked(api: Api, pointer: int) -> None:
    """The service marks the rows by itself: then no participant waits any more, and the producer steps back."""
    until(lambda: not api.call("GET", f"transactions/{pointer}")["participants"], "the rows are marked", every=0.05)
    producer = api.call("GET", f"namespaces/default/topics/{TOPIC}/producers/p")
    assert producer["lastPersisted"] is None
