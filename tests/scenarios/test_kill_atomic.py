"""kill -9 in the middle of atomic commits: each is wholly on all its topics or on none, once, and its outcome says which.

What a crash behind each single write leaves is in tests/atomic/test_at_random.py. A failing run names its seed;
``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from oncelog import Client
from tests.patience import until
from tests.scenarios.committing import Committer, check_commits, committing
from tests.world.crash import kill_while_starting, seeded, wait_for_attempts
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

TOPICS = ("a", "b", "c")


@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_kills_under_load_leave_every_commit_whole_or_absent(tmp_path: Path, kills: int) -> None:
    with seeded() as rng, ServiceProcess(tmp_path / "log", snapshot_messages=100) as service:
        with Client(service.url) as client:
            for topic in TOPICS:
                client.create_topic(topic)
        with committing(service.url, TOPICS, rng.getrandbits(32)) as clients:
            for _ in range(kills):
                wait_for_attempts(clients, 1)
                time.sleep(rng.uniform(0.1, 0.8))
                service.kill()
                if rng.random() < 0.3:
                    kill_while_starting(service, rng.uniform(0.3, 1.2))
                service.start()
            wait_for_attempts(clients, 3)
            until(lambda: _states(clients) == {"committed", "duplicate"}, "what is compared happens")
        check_commits(service.url, TOPICS, clients)
        service.kill()
        service.start()
        check_commits(service.url, TOPICS, clients)


def _states(clients: Sequence[Committer]) -> set[str]:
    return {each.state for client in clients for each in tuple(client.answered.values())}
