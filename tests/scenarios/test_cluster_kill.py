"""Three instances over one PostgreSQL, killed, stopped and restarted under load: nothing acknowledged is lost, nothing is there
twice, everybody reads one order.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog import Receipt
from oncelog.errors import OncelogError
from tests.cluster.instances import Instance, Instances, instances, until
from tests.patience import PATIENCE
from tests.postgres import PostgresServer
from tests.scenarios.writing import MIXED, Load
from tests.world.crash import seeded

pytestmark = pytest.mark.real

TOPIC = "t"
STOPPED_SECONDS = 10.0
"""Longer than a lease stands, so that whoever awakes has been replaced."""


@pytest.fixture
def cluster(postgres: PostgresServer, tmp_path: Path) -> Iterator[Instances]:
    with instances(postgres.fresh_schema(), tmp_path, snapshot_messages=500) as found:
        with found.client(retry=PATIENCE) as client:
            client.create_topic(TOPIC)
        yield found


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seconds", [1, pytest.param(120, marks=pytest.mark.slow)])
def test_kills_stops_and_restarts_lose_double_and_reorder_nothing(
    cluster: Instances, postgres: PostgresServer, seconds: int
) -> None:
    with seeded() as rng:
        load = Load([each.url for each in cluster.all], TOPIC, rng, writers=MIXED, followers=4, back=cluster.make_whole)
        with load.running():
            load.allow(3_000)
            until(lambda: load.goes_on([0] * 8))
            struck = _chaos(cluster, load, rng, float(os.environ.get("KILL_SECONDS", seconds)), postgres)
            before = load.counts
            load.allow(1_000)
            until(lambda: load.goes_on(before))
        load.check_at_the_end()
        print(f"{struck} strikes in {seconds:.0f} s")
        assert all(each.running for each in cluster.all)


def _chaos(cluster: Instances, load: Load, rng: random.Random, seconds: float, postgres: PostgresServer) -> dict[str, int]:
    """Strike one of those that run, mostly the topic's owner, or the database; each comes back by and by. One of them always
    runs. However slow the machine is, it goes on until each way to strike was taken."""
    struck = dict.fromkeys(("kill", "stop", "end", "database"), 0)
    ways: list[str] = []
    to_check: dict[str, dict[int, Receipt]] = {}
    back: list[tuple[float, Callable[[], None]]] = []
    strike_at = time.monotonic()
    end = strike_at + seconds
    while (now := time.monotonic()) < end or back or to_check or not all(struck.values()):
        for each in [each for each in back if each[0] <= now]:
            back.remove(each)
            each[1]()
        if strike_at <= now and (now < end or not all(struck.values())) and len(up := _healthy(cluster)) >= 2:
            load.allow(1_500)
            acknowledged = load.acknowledged()
            ways = ways or rng.sample(("kill", "kill", "stop", "stop", "end", "database"), 6)
            how = ways.pop()
            owner = _owner(cluster)
            victim = owner if owner in up and rng.random() < 0.7 else rng.choice(up)
            struck[how] += 1
            if how == "kill":
                victim.kill()
                back.append((now + rng.uniform(0, 3), victim.begin))
            elif how == "stop":
                victim.freeze()
                back.append((now + rng.choice((2.9, 3.1, 5.0, STOPPED_SECONDS)), victim.thaw))
            elif how == "end":
                victim.end()
                back.append((now + 10, lambda victim=victim: _restart(victim)))  # type: ignore[misc]
            else:
                postgres.kill()
                time.sleep(rng.choice((0.0, 1.0, 5.0)))  # shorter and longer than a lease is valid
                postgres.start()
            strike_at = now + rng.uniform(1, 8)
            if rng.random() < 0.3:
                to_check = acknowledged
        if to_check and not back:
            load.check_so_far(to_check)
            to_check = {}
        load.goes_on(load.counts, 0)
        time.sleep(0.02)
    return struck


def _owner(cluster: Instances) -> Instance | None:
    try:
        return cluster.holder(TOPIC)
    except OncelogError:
        return None


def _healthy(cluster: Instances) -> list[Instance]:
    found = []
    for each in cluster.running():
        try:
            if each.healthy:
                found.append(each)
        except OSError:
            continue  # requests' errors are; it is starting, or ending
    return found


def _restart(instance: Instance) -> None:
    instance.kill()
    instance.begin()
