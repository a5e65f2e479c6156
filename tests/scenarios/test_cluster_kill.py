"""Three instances over one PostgreSQL, killed, stopped and restarted under load: nothing acknowledged is lost, nothing is there
twice, everybody reads one order.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelog import Message, Receipt
from oncelog.errors import OncelogError
from tests.cluster.instances import Instance, Instances, instances, until
from tests.patience import PATIENCE
from tests.postgres import PostgresServer
from tests.scenarios.judge import check_acknowledged, check_finished, check_maps, check_order, check_prefix, read_log
from tests.scenarios.load import Follower, InBatches, OneByOne, Streaming, Writer
from tests.scenarios.seed import seeded

TOPIC = "t"
STOPPED_SECONDS = 10.0
"""Longer than a lease stands, so that whoever awakes has been replaced."""


class Load:
    """8 named producers and 4 readers, and what they were told."""

    def __init__(self, cluster: Instances, rng: random.Random) -> None:
        self._cluster = cluster
        kinds = [OneByOne, OneByOne, Streaming, Streaming, Streaming, InBatches, InBatches, InBatches]
        # Each knows of all instances, and asks another one first.
        self.writers: list[Writer] = [
            kind(self._url(number), TOPIC, f"{kind.__name__}-{number}", rng.getrandbits(32)) for number, kind in enumerate(kinds)
        ]
        self.followers = [Follower(self._url(number), TOPIC) for number in range(4)]
        for thread in (*self.writers, *self.followers):
            thread.patience = 2 * PATIENCE
        self._log: list[Message] = []

    def _url(self, number: int) -> str:
        urls = [each.url for each in self._cluster.all]
        return ",".join(urls[number % len(urls) :] + urls[: number % len(urls)])

    @contextmanager
    def running(self) -> Iterator[None]:
        """On leaving, the writers have ended; the followers go on unless something failed."""
        for thread in (*self.writers, *self.followers):
            thread.start()
        try:
            yield
        except BaseException:
            for follower in self.followers:
                follower.read_until(0)
            raise
        finally:
            for writer in self.writers:
                writer.enough()
            self._cluster.make_whole(PATIENCE)
            for writer in self.writers:
                writer.join(PATIENCE)

    def allow(self, more: int) -> None:
        for writer in self.writers:
            writer.allow(more)

    @property
    def counts(self) -> list[int]:
        """How many messages each writer has been told are stored."""
        return [len(writer.acknowledged) for writer in self.writers]

    def goes_on(self, before: list[int], more: int = 5) -> bool:
        """Whether each writer has got that many acknowledged since. Raises what ended one."""
        for writer in self.writers:
            if writer.failure is not None:
                raise writer.failure
        return all(count >= earlier + more for earlier, count in zip(before, self.counts, strict=True))

    def acknowledged(self) -> dict[str, dict[int, Receipt]]:
        return {writer.producer_name: dict(writer.acknowledged) for writer in self.writers}

    def check_so_far(self, acknowledged: dict[str, dict[int, Receipt]]) -> None:
        """What had been acknowledged is there; what was read before is where it was."""
        log = until(lambda: read_log(self._cluster.url, TOPIC))
        check_prefix(self._log, log)
        check_order(log)
        for producer, receipts in acknowledged.items():
            check_acknowledged(log, producer, receipts)
        self._log = log

    def check_at_the_end(self) -> None:
        for writer in self.writers:
            assert writer.failure is None, writer.failure
        log = read_log(self._cluster.url, TOPIC)
        check_prefix(self._log, log)
        check_order(log)
        check_finished(log, self.writers)
        with self._cluster.client(retry=PATIENCE) as client:
            check_maps(client, TOPIC, log)
        for follower in self.followers:
            follower.read_until(len(log))
        for follower in self.followers:
            follower.join(PATIENCE)
            assert follower.failure is None, follower.failure
            assert follower.messages == log, "somebody was given something else"
        print(f"{len(log)} messages of {len(self.writers)} producers, the same for {len(self.followers)} readers")


@pytest.fixture
def cluster(postgres: PostgresServer, tmp_path: Path) -> Iterator[Instances]:
    with instances(postgres.fresh_schema(), tmp_path, snapshot_messages=500) as found:
        with found.client(retry=PATIENCE) as client:
            client.create_topic(TOPIC)
        yield found


# --- instances


def test_an_owner_killed_and_one_stopped_under_load_lose_double_and_reorder_nothing(cluster: Instances) -> None:
    with seeded() as rng:
        load = Load(cluster, rng)
        with load.running():
            load.allow(3_000)
            until(lambda: load.goes_on([0] * 8))
            first = cluster.owner(TOPIC)
            _and_it_goes_on(load, "killed", first.kill)
            first.begin()
            second = cluster.owner(TOPIC)
            _and_it_goes_on(load, "stopped", second.freeze, second)
        load.check_at_the_end()


def _and_it_goes_on(load: Load, what: str, strike: Callable[[], None], stopped: Instance | None = None) -> None:
    """Every writer gets more acknowledged after an owner was struck. One that is stopped awakes when it was replaced: some of
    the requests that wait in its sockets are answered then only."""
    load.allow(3_000)
    acknowledged, before = load.acknowledged(), load.counts
    strike()
    struck = time.monotonic()
    if stopped is not None:
        until(lambda: _is_replaced(load, stopped, 1 + time.monotonic() - struck))
        print(f"{what}: replaced after {time.monotonic() - struck:.2f} s")
        stopped.thaw()
    until(lambda: load.goes_on(before))
    print(f"{what}: all writers had more acknowledged after {time.monotonic() - struck:.2f} s")
    load.check_so_far(acknowledged)


def _is_replaced(load: Load, stopped: Instance, seconds: float) -> bool:
    # Somebody has to ask for the topic: requests that wait at the one that is stopped do not, whoever handed them on to it.
    cluster = load._cluster
    asked = [each.poll(TOPIC, proxy=True, limit=1, timeout=seconds).status_code == 200 for each in cluster.others(stopped)]
    return any(asked) and cluster.holder(TOPIC) not in (None, stopped)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_two_minutes_of_kills_stops_and_restarts_lose_double_and_reorder_nothing(cluster: Instances) -> None:
    seconds = float(os.environ.get("KILL_SECONDS", "120"))
    with seeded() as rng:
        load = Load(cluster, rng)
        with load.running():
            load.allow(3_000)
            until(lambda: load.goes_on([0] * 8))
            struck = _chaos(cluster, load, rng, seconds)
            before = load.counts
            load.allow(1_000)
            until(lambda: load.goes_on(before))
        load.check_at_the_end()
        print(f"{struck} strikes in {seconds:.0f} s")


def _chaos(cluster: Instances, load: Load, rng: random.Random, seconds: float) -> dict[str, int]:
    """Strike one of those that run, mostly the topic's owner; each comes back by and by. One of them always runs.

    However slow the machine is, it goes on until each way to strike was taken.
    """
    struck = dict.fromkeys(("kill", "stop", "end"), 0)
    ways: list[str] = []
    back: list[tuple[float, Callable[[], None]]] = []
    end = time.monotonic() + seconds
    strike_at = time.monotonic()
    while (now := time.monotonic()) < end or back or not all(struck.values()):
        for each in [each for each in back if each[0] <= now]:
            back.remove(each)
            each[1]()
        if strike_at <= now and (now < end or not all(struck.values())) and len(up := _healthy(cluster)) >= 2:
            load.allow(1_500)
            acknowledged = load.acknowledged()
            ways = ways or rng.sample(("kill", "kill", "stop", "stop", "end"), 5)
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
            else:
                victim.end()
                back.append((now + 10, lambda victim=victim: _restart(victim)))  # type: ignore[misc]
            strike_at = now + rng.uniform(1, 8)
            if rng.random() < 0.3:
                load.check_so_far(acknowledged)
        for writer in load.writers:
            if writer.failure is not None:
                raise writer.failure
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


# --- the database


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_a_database_killed_several_times_under_load_loses_doubles_and_reorders_nothing(
    cluster: Instances, postgres: PostgresServer
) -> None:
    with seeded() as rng:
        load = Load(cluster, rng)
        with load.running():
            load.allow(3_000)
            until(lambda: load.goes_on([0] * 8))
            for _ in range(int(os.environ.get("KILLS", "6"))):
                load.allow(3_000)
                time.sleep(rng.uniform(0.1, 2.0))
                postgres.kill()
                acknowledged = load.acknowledged()
                time.sleep(rng.choice((0.0, 1.0, 5.0)))  # shorter and longer than a lease stands
                before = load.counts
                load.allow(1_000)
                postgres.start()
                began = time.monotonic()
                until(lambda: load.goes_on(before))  # noqa: B023
                print(f"all writers had more acknowledged {time.monotonic() - began:.2f} s after the database was back")
                load.check_so_far(acknowledged)
        load.check_at_the_end()
        assert all(each.running for each in cluster.all)
