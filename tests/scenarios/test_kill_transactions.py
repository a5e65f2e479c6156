"""kill -9 in the middle of transactions: each is wholly there or wholly not, and its status says which.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Client
from oncelog.wire.requests import PublishRequest
from tests.model.log import check_verified
from tests.patience import PATIENCE, until
from tests.scenarios.transacting import attempts_of, check_ended, check_meanwhile, transacting, visible
from tests.world.crash import process, seeded, wait_for_attempts
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

TOPIC = "t"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path / "log", snapshot_messages=100) as process:
        yield process


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[Client]:
    with Client(service.url, retry=PATIENCE) as client:
        client.create_topic(TOPIC)
        yield client


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_kills_under_load_leave_every_transaction_whole_or_absent(service: ServiceProcess, client: Client, kills: int) -> None:
    with seeded() as rng:
        with transacting(service.url, TOPIC, rng.getrandbits(32)) as clients:
            for _ in range(kills):
                wait_for_attempts(clients, 1)
                time.sleep(rng.uniform(0, 0.5))
                service.kill()
                service.start()
                check_meanwhile(client, TOPIC, clients)
            wait_for_attempts(clients, 2)
        for _ in range(2):
            check_ended(client, TOPIC, clients)
            check_verified(service.url, [TOPIC])
            service.kill()
            service.start()
        assert {each.answered for each in attempts_of(clients)} >= {"committed", "aborted"}, "what is compared does not happen"


def test_a_client_killed_in_its_transaction_with_the_service_leaves_nothing_behind(
    service: ServiceProcess, client: Client
) -> None:
    with process("tests.scenarios.transacting", service.url, TOPIC, "p", 1.5) as other:
        assert other.stdout is not None
        pointer = int(other.stdout.readline())
    service.kill()
    service.start()
    assert visible(client, TOPIC) == []
    until(lambda: client.transaction_status(pointer).state == "invalid", "the transaction times out", every=0.05)
    until(lambda: not client.transaction_status(pointer).participants, "the rows are rolled back", every=0.05)
    assert client.producer(TOPIC, "p").last_persisted is None
    check_verified(service.url, [TOPIC])
    assert client.open_producer(TOPIC, "p").last_sequence_id is None, "the ids of the transaction are usable again"
    client.publish(TOPIC, PublishRequest([b"new"], "p", sequence_ids=[0]))
    assert visible(client, TOPIC) == ["new"]
